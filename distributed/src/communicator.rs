//! Communication between ranks.
//!
//! In: this rank's buffers. Out: sums, copies and gathered bytes, equal on all ranks.
//! Invariant: every rank calls the same collectives in the same order. An `Err` from any call ends
//! the job, except the error of a rejected peer.
//! Source: MPI standard 3.1, chapter 3 (messages), chapter 5 (collectives), 6.4 (duplicates) and
//! section 8.7 (`MPI_Abort`).

use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use crate::CollectiveError;
pub use crate::cpus::{CpuLimits, CpuQuota, control_groups};
pub use crate::launch::{check_world, join, leave, mpi_library};
#[cfg(feature = "mpi")]
pub use crate::mpi::MpiCommunicator;
pub use crate::single::SingleCommunicator;
pub use crate::threads::ThreadCommunicator;
pub use crate::topology::{Launcher, Topology, check_place, check_world_size, scheduler_job};

/// The rank that prints, writes files and broadcasts its parameters.
pub const ROOT: usize = 0;

/// Behaviour of a rank while it waits for the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum WaitPolicy {
    /// Polls without pause.
    #[default]
    Spin,
    /// Sleeps 50 µs to 1 ms between polls, so that another thread can compute on this core.
    Sleep,
}

/// A buffer of one reduction, with its element type and operation.
#[derive(Debug)]
pub enum ReduceBuffer<'a> {
    /// Sum of 32-bit floats.
    SumF32(&'a mut [f32]),
    /// Sum of 64-bit floats.
    SumF64(&'a mut [f64]),
    /// Sum of integers, modulo 2^64.
    SumU64(&'a mut [u64]),
    /// Maximum of integers, position by position.
    MaxU64(&'a mut [u64]),
}

impl ReduceBuffer<'_> {
    /// Returns the name of the [`Communicator`] method that reduces this buffer.
    pub fn collective(&self) -> &'static str {
        match self {
            Self::SumF32(_) => "all_reduce_sum",
            Self::SumF64(_) => "all_reduce_sum_f64",
            Self::SumU64(_) => "all_reduce_sum_u64",
            Self::MaxU64(_) => "all_reduce_max_u64",
        }
    }

    /// Returns the number of elements.
    #[expect(clippy::len_without_is_empty, reason = "no caller asks")]
    pub fn len(&self) -> usize {
        match self {
            Self::SumF32(values) => values.len(),
            Self::SumF64(values) => values.len(),
            Self::SumU64(values) | Self::MaxU64(values) => values.len(),
        }
    }

    /// Returns the elements in `range`.
    pub fn slice(&mut self, range: Range<usize>) -> ReduceBuffer<'_> {
        match self {
            Self::SumF32(values) => ReduceBuffer::SumF32(&mut values[range]),
            Self::SumF64(values) => ReduceBuffer::SumF64(&mut values[range]),
            Self::SumU64(values) => ReduceBuffer::SumU64(&mut values[range]),
            Self::MaxU64(values) => ReduceBuffer::MaxU64(&mut values[range]),
        }
    }

    /// Reduces the elements in `bytes` into this buffer. `bytes` have this machine's byte order.
    pub fn reduce(&mut self, bytes: &[u8]) {
        fn each<T, const N: usize>(values: &mut [T], bytes: &[u8], put: impl Fn(&mut T, [u8; N])) {
            for (value, other) in values.iter_mut().zip(bytes.as_chunks().0) {
                put(value, *other);
            }
        }
        match self {
            Self::SumF32(values) => each(values, bytes, |value, other| {
                *value += f32::from_ne_bytes(other);
            }),
            Self::SumF64(values) => each(values, bytes, |value, other| {
                *value += f64::from_ne_bytes(other);
            }),
            Self::SumU64(values) => each(values, bytes, |value, other| {
                *value = value.wrapping_add(u64::from_ne_bytes(other));
            }),
            Self::MaxU64(values) => each(values, bytes, |value, other| {
                *value = u64::from_ne_bytes(other).max(*value);
            }),
        }
    }

    /// Returns the bytes of the elements.
    pub fn bytes(&mut self) -> &mut [u8] {
        match self {
            Self::SumF32(values) => bytemuck::cast_slice_mut(values),
            Self::SumF64(values) => bytemuck::cast_slice_mut(values),
            Self::SumU64(values) | Self::MaxU64(values) => bytemuck::cast_slice_mut(values),
        }
    }

    /// Returns the size of an element in bytes.
    pub fn element_bytes(&self) -> usize {
        match self {
            Self::SumF32(_) => size_of::<f32>(),
            Self::SumF64(_) => size_of::<f64>(),
            Self::SumU64(_) | Self::MaxU64(_) => size_of::<u64>(),
        }
    }
}

/// The ranks of one job, as one rank sees them.
///
/// Every method with a `# Collective` section blocks until all ranks have called it.
/// Messages go between two different ranks. Messages of one sender with one tag arrive in the order
/// in which they were sent. At most one thread of a rank uses a tag at a time.
/// The two highest tags belong to [`AllReducer`](crate::gradients::AllReducer).
/// After an error only [`abort`](Communicator::abort) may be called.
pub trait Communicator: Send + Sync + Debug {
    /// Returns the position of this rank among all ranks.
    fn topology(&self) -> &Topology;

    /// Returns the index of this rank, `0..world_size`.
    fn rank(&self) -> usize {
        self.topology().rank
    }

    /// Returns the number of ranks.
    fn world_size(&self) -> usize {
        self.topology().world_size
    }

    /// Replaces the elements of `buffer` by their reduction over all ranks, the same bits on every
    /// rank.
    ///
    /// # Errors
    /// Returns an error if lengths or kinds differ between ranks (where the communicator detects a
    /// difference), or if the job ends.
    ///
    /// # Collective
    /// Must be called by all ranks, with the same kind of buffer and equal lengths.
    fn all_reduce(&self, buffer: ReduceBuffer<'_>) -> Result<(), CollectiveError>;

    /// Replaces `values` by their sum over all ranks.
    ///
    /// # Errors
    /// Returns an error in the cases of [`all_reduce`](Communicator::all_reduce).
    ///
    /// # Collective
    /// Must be called by all ranks, with equal lengths.
    fn all_reduce_sum(&self, values: &mut [f32]) -> Result<(), CollectiveError> {
        self.all_reduce(ReduceBuffer::SumF32(values))
    }

    /// Replaces `values` by their sum over all ranks.
    ///
    /// # Errors
    /// Returns an error in the cases of [`all_reduce`](Communicator::all_reduce).
    ///
    /// # Collective
    /// Must be called by all ranks, with equal lengths.
    fn all_reduce_sum_f64(&self, values: &mut [f64]) -> Result<(), CollectiveError> {
        self.all_reduce(ReduceBuffer::SumF64(values))
    }

    /// Replaces `values` by their sum over all ranks, modulo 2^64.
    ///
    /// # Errors
    /// Returns an error in the cases of [`all_reduce`](Communicator::all_reduce).
    ///
    /// # Collective
    /// Must be called by all ranks, with equal lengths.
    fn all_reduce_sum_u64(&self, values: &mut [u64]) -> Result<(), CollectiveError> {
        self.all_reduce(ReduceBuffer::SumU64(values))
    }

    /// Replaces `values` by their maximum over all ranks, position by position.
    ///
    /// # Errors
    /// Returns an error in the cases of [`all_reduce`](Communicator::all_reduce).
    ///
    /// # Collective
    /// Must be called by all ranks, with equal lengths.
    fn all_reduce_max_u64(&self, values: &mut [u64]) -> Result<(), CollectiveError> {
        self.all_reduce(ReduceBuffer::MaxU64(values))
    }

    /// Replaces `bytes` by the bytes of rank `root`.
    ///
    /// # Errors
    /// Returns an error if `root` is not a rank, if lengths differ (where the communicator detects
    /// a difference), or if the job ends.
    ///
    /// # Collective
    /// Must be called by all ranks, with the same root and equal lengths.
    fn broadcast(&self, root: usize, bytes: &mut [u8]) -> Result<(), CollectiveError>;

    /// Returns the bytes of every rank, in rank order. Lengths may differ.
    ///
    /// # Errors
    /// Returns an error if the job ends.
    ///
    /// # Collective
    /// Must be called by all ranks.
    fn all_gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError>;

    /// Blocks until all ranks have called this method.
    ///
    /// # Errors
    /// Returns an error if the job ends.
    ///
    /// # Collective
    /// Must be called by all ranks.
    fn barrier(&self) -> Result<(), CollectiveError>;

    /// Leaves the job in good order. This is the last call on any communicator of the job.
    ///
    /// Dropping an `MpiCommunicator` of several ranks before `finish` ends the job on all ranks.
    /// [`launch`](crate::launch()) calls `finish`. A wrapper of a communicator forwards the call.
    ///
    /// # Errors
    /// Returns an error if the job ends.
    ///
    /// # Collective
    /// Must be called by all ranks.
    fn finish(&self) -> Result<(), CollectiveError> {
        self.barrier()
    }

    /// Sends `bytes` to rank `to`, which must [`receive`](Communicator::receive) them with the same
    /// tag.
    ///
    /// May return before the message is received, or block until then. Two ranks that both send
    /// before they receive can deadlock. They need [`exchange`](Communicator::exchange).
    ///
    /// # Errors
    /// Returns an error if `to` is not another rank, if `to` has left, or if the job ends.
    fn send(&self, to: usize, tag: u16, bytes: &[u8]) -> Result<(), CollectiveError>;

    /// Fills `bytes` with the next message of rank `from` with this tag.
    ///
    /// # Errors
    /// Returns an error if `from` is not another rank, if `from` has left without a message, if the
    /// message has another length, or if the job ends.
    fn receive(&self, from: usize, tag: u16, bytes: &mut [u8]) -> Result<(), CollectiveError>;

    /// Sends `outgoing` to rank `to` and fills `incoming` from rank `from`, both at once. An
    /// exchange matches only other exchanges.
    ///
    /// # Errors
    /// Returns an error in the cases of [`send`](Communicator::send) and
    /// [`receive`](Communicator::receive).
    fn exchange(
        &self,
        to: usize,
        outgoing: &[u8],
        from: usize,
        incoming: &mut [u8],
    ) -> Result<(), CollectiveError>;

    /// Waits for the next message with this tag from any rank. Returns the sender and the bytes.
    ///
    /// # Errors
    /// Returns an error if there is no other rank, if all others have left, or if the job ends.
    fn receive_any(&self, tag: u16) -> Result<(usize, Vec<u8>), CollectiveError>;

    /// Returns the next message with this tag if one has arrived, without waiting.
    ///
    /// # Errors
    /// Returns an error in the cases of [`receive_any`](Communicator::receive_any), except that a
    /// single rank gets `None`.
    fn try_receive_any(&self, tag: u16) -> Result<Option<(usize, Vec<u8>)>, CollectiveError>;

    /// Returns a communicator of the same ranks for another thread. Its calls never mix with calls
    /// on this communicator.
    ///
    /// The duplicate exists until the end of the job. A job makes only a few duplicates, at its
    /// start.
    ///
    /// # Errors
    /// Returns an error if the job ends.
    ///
    /// # Collective
    /// Must be called by all ranks.
    fn duplicate(&self) -> Result<Arc<dyn Communicator>, CollectiveError>;

    /// Returns a communicator of ranks `0..count` on these ranks, and `None` on the others. As for
    /// a [`duplicate`](Communicator::duplicate), its calls never mix with calls on this
    /// communicator.
    ///
    /// # Errors
    /// Returns an error if the job ends.
    ///
    /// # Panics
    /// Panics if `count` is 0 or above the world size.
    ///
    /// # Collective
    /// Must be called by all ranks, with the same count.
    fn first_ranks(&self, count: usize) -> Result<Option<Arc<dyn Communicator>>, CollectiveError>;

    /// Returns true if one thread may use this communicator while another uses a duplicate.
    fn supports_threads(&self) -> bool;

    /// Sets how calls on this communicator wait, including calls in progress. Any thread may call
    /// this method.
    ///
    /// Collectives on the communicator of `MpiCommunicator::init` always [spin](WaitPolicy::Spin)
    /// inside MPI. A thread-rank always sleeps until another thread wakes it.
    fn set_wait_policy(&self, wait_policy: WaitPolicy);

    /// Allocates memory that the ranks of one node share, for reductions. Returns `None` on all
    /// ranks if a node cannot share memory.
    ///
    /// `members` are the ranks of this rank's node, ascending. Buffers longer than `bytes` are
    /// reduced in pieces. The memory exists until the end of the job.
    ///
    /// # Errors
    /// Returns an error if the job ends.
    ///
    /// # Collective
    /// Must be called by all ranks, with the same number of bytes.
    fn node_memory(
        &self,
        members: &[usize],
        bytes: usize,
    ) -> Result<Option<Box<dyn NodeMemory>>, CollectiveError> {
        let _ = (members, bytes);
        Ok(None)
    }

    /// Ends the job on all ranks, so that no rank waits for this rank.
    ///
    /// MPI calls `MPI_Abort` with `exit_code` and does not return. With thread-ranks, every pending
    /// and later collective returns [`CollectiveError::Aborted`] on every rank. A single rank does
    /// nothing. The caller prints its error before the call.
    fn abort(&self, reason: &str, exit_code: i32);

    /// Returns the library that transfers the data, for manifests: `none`, `threads`, or the first
    /// line of MPI's version text.
    fn library(&self) -> String;
}

/// Callback that adds the sums of other nodes to a node's sum, on the first rank of the node.
pub type BetweenNodes<'a> = &'a mut dyn FnMut(ReduceBuffer<'_>) -> Result<(), CollectiveError>;

/// Memory that the ranks of one node share.
pub trait NodeMemory: Send + Debug {
    /// Replaces the elements of `buffer`, `f32` or `u64`, by their sum over the ranks of the node.
    ///
    /// The parts are added in rank order. If there are other nodes, `between` then adds the sums of
    /// these nodes.
    ///
    /// # Errors
    /// Returns an error if `between` fails.
    ///
    /// # Collective
    /// Must be called by all ranks of the node, with the same kind of buffer and equal lengths.
    fn sum(
        &mut self,
        buffer: ReduceBuffer<'_>,
        between: Option<BetweenNodes<'_>>,
    ) -> Result<(), CollectiveError>;
}

/// Rejects a peer that is not a rank or is this rank, for implementors of [`Communicator`]. `call`
/// is the name of the method.
///
/// # Errors
/// Returns an error if the peer is not another rank.
pub fn expect_peer(
    topology: &Topology,
    call: &'static str,
    peer: usize,
) -> Result<(), CollectiveError> {
    let Topology {
        rank, world_size, ..
    } = topology;
    if peer < *world_size && peer != *rank {
        return Ok(());
    }
    Err(CollectiveError::Failed(format!(
        "{call}: expected a rank below the world size {world_size} and not {rank} itself, got {peer} (rank {rank})"
    )))
}

/// Rejects a root that is not a rank.
pub(crate) fn expect_root(world_size: usize, root: usize) -> Result<(), CollectiveError> {
    if root < world_size {
        return Ok(());
    }
    Err(CollectiveError::Failed(format!(
        "broadcast: expected a root below the world size {world_size}, got {root}"
    )))
}

/// Checks that `value` is the same text on all ranks. `what` is its name in the error.
///
/// # Errors
/// Returns an error on all ranks if a value differs. The error names the first rank that differs
/// from root.
///
/// # Collective
/// Must be called by all ranks.
pub(crate) fn expect_equal(
    communicator: &dyn Communicator,
    what: &str,
    value: &str,
) -> Result<(), CollectiveError> {
    let values = communicator.all_gather(value.as_bytes())?;
    match values.iter().position(|value| *value != values[ROOT]) {
        None => Ok(()),
        Some(rank) => Err(CollectiveError::Failed(format!(
            "{what} differs: expected {} as on rank {ROOT}, got {} (rank {rank}). Build the same model with the same options on every rank.",
            String::from_utf8_lossy(&values[ROOT]),
            String::from_utf8_lossy(&values[rank])
        ))),
    }
}
