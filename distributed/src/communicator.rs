//! What a rank can ask of the others.
//!
//! In: this rank's buffers. Out: sums, copies and gathered bytes, equal on all ranks.
//! Invariant: every rank makes the same calls in the same order; an `Err` from a collective ends the job.
//! Source: MPI standard 3.1, chapter 5 (collectives) and section 8.7 (`MPI_Abort`).

use std::fmt::Debug;

use crate::{CollectiveError, Topology};

/// The rank that acts for all: it prints, writes files and gives its parameters to the others.
pub const ROOT: usize = 0;

/// The ranks of one job, seen from one of them.
///
/// Every method with a `# Collective` section blocks until all ranks have called it.
/// After an error the communicator must not be used again, except for [`abort`](Communicator::abort).
pub trait Communicator: Send + Sync + Debug {
    /// Index of this rank, `0..world_size`.
    fn rank(&self) -> usize;

    /// Number of ranks.
    fn world_size(&self) -> usize;

    /// Replaces `values` by their sum over all ranks, the same bits on every rank.
    ///
    /// # Errors
    /// When lengths differ between ranks (where the communicator can tell), or the job ends.
    ///
    /// # Collective
    /// Must be called by all ranks, with equal lengths.
    fn all_reduce_sum(&self, values: &mut [f32]) -> Result<(), CollectiveError>;

    /// Replaces `values` by their sum over all ranks, the same bits on every rank.
    ///
    /// # Errors
    /// As for [`all_reduce_sum`](Communicator::all_reduce_sum).
    ///
    /// # Collective
    /// Must be called by all ranks, with equal lengths.
    fn all_reduce_sum_f64(&self, values: &mut [f64]) -> Result<(), CollectiveError>;

    /// Replaces `values` by their sum over all ranks, modulo 2^64.
    ///
    /// # Errors
    /// As for [`all_reduce_sum`](Communicator::all_reduce_sum).
    ///
    /// # Collective
    /// Must be called by all ranks, with equal lengths.
    fn all_reduce_sum_u64(&self, values: &mut [u64]) -> Result<(), CollectiveError>;

    /// Replaces `bytes` by those of rank `root`.
    ///
    /// # Errors
    /// When `root` is no rank, lengths differ (where the communicator can tell), or the job ends.
    ///
    /// # Collective
    /// Must be called by all ranks, with the same root and equal lengths.
    fn broadcast(&self, root: usize, bytes: &mut [u8]) -> Result<(), CollectiveError>;

    /// The bytes of every rank, in rank order; lengths may differ.
    ///
    /// # Errors
    /// When the job ends.
    ///
    /// # Collective
    /// Must be called by all ranks.
    fn all_gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError>;

    /// Returns when all ranks have called it.
    ///
    /// # Errors
    /// When the job ends.
    ///
    /// # Collective
    /// Must be called by all ranks.
    fn barrier(&self) -> Result<(), CollectiveError>;

    /// Ends the job on all ranks, so that none waits for this one.
    ///
    /// MPI: `MPI_Abort` with `exit_code`, does not return. Threads: every pending and later collective returns
    /// [`CollectiveError::Aborted`] on every rank. Single: nothing to do. The caller prints its error first.
    fn abort(&self, reason: &str, exit_code: i32);

    /// The library that moves the bytes, for manifests: `none`, `threads`, or the first line MPI tells of itself.
    fn library(&self) -> String;

    /// Where this rank and the others run.
    fn topology(&self) -> &Topology;
}

/// Checks that `value` is the same text on all ranks; `what` names it.
///
/// # Errors
/// [`CollectiveError::PlanMismatch`] with the first rank that differs from root, on all ranks.
///
/// # Collective
/// Must be called by all ranks.
pub(crate) fn expect_equal(
    communicator: &dyn Communicator,
    what: &'static str,
    value: &str,
) -> Result<(), CollectiveError> {
    let values = communicator.all_gather(value.as_bytes())?;
    let text = |rank: usize| String::from_utf8_lossy(&values[rank]).into_owned();
    match values.iter().position(|value| *value != values[ROOT]) {
        None => Ok(()),
        Some(rank) => Err(CollectiveError::PlanMismatch { what, rank, expected: text(ROOT), got: text(rank) }),
    }
}
