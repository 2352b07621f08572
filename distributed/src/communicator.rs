//! What a rank can ask of the others.
//!
//! In: this rank's buffers. Out: sums, copies and gathered bytes, equal on all ranks.
//! Invariant: every rank makes the same collectives in the same order; an `Err` from any call but a refused peer ends the job.
//! Source: MPI standard 3.1, chapter 3 (messages), chapter 5 (collectives), 6.4 (duplicates) and section 8.7 (`MPI_Abort`).

use std::fmt::Debug;
use std::sync::Arc;

use crate::CollectiveError;
#[cfg(feature = "mpi")]
pub use crate::mpi::MpiCommunicator;
pub use crate::single::SingleCommunicator;
pub use crate::threads::ThreadCommunicator;
pub use crate::topology::Topology;

/// The rank that acts for all: it prints, writes files and gives its parameters to the others.
pub const ROOT: usize = 0;

/// How a rank waits for the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum WaitPolicy {
    /// It looks without pause.
    #[default]
    Spin,
    /// It sleeps between looks, 50 µs to 1 ms, so that another thread of this process can compute on this core: for an eighth of its wait, or, where it had
    /// waits when it was to sleep the time before, for a quarter of the mean time between those.
    Sleep,
}

/// The ranks of one job, seen from one of them.
///
/// Every method with a `# Collective` section blocks until all ranks have called it. Messages go between two different ranks; those
/// of one sender with one tag arrive in the order in which they were sent, and at most one thread of a rank uses a tag at a time.
/// The two highest tags belong to [`AllReducer`](crate::reduction::AllReducer).
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

    /// Replaces `values` by their largest over all ranks, position by position.
    ///
    /// # Errors
    /// As for [`all_reduce_sum`](Communicator::all_reduce_sum).
    ///
    /// # Collective
    /// Must be called by all ranks, with equal lengths.
    fn all_reduce_max_u64(&self, values: &mut [u64]) -> Result<(), CollectiveError>;

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

    /// Ends this rank's part of the job in good order: the last call on any communicator of the job. Returns when all ranks have
    /// called it.
    ///
    /// An `MpiCommunicator` of several ranks that is dropped without it ends the job on all of them. [`launch`](crate::launch())
    /// calls it. A communicator around another one passes it on.
    ///
    /// # Errors
    /// When the job ends.
    ///
    /// # Collective
    /// Must be called by all ranks.
    fn finish(&self) -> Result<(), CollectiveError> {
        self.barrier()
    }

    /// Sends `bytes` to rank `to`, which must [`receive`](Communicator::receive) them with the same tag.
    ///
    /// May return before they are received, and may wait until they are: two ranks that first send to each other and then receive can
    /// wait forever; they [`exchange`](Communicator::exchange).
    ///
    /// # Errors
    /// When `to` is no other rank, has left, or the job ends.
    fn send(&self, to: usize, tag: u16, bytes: &[u8]) -> Result<(), CollectiveError>;

    /// Fills `bytes` with the next message of rank `from` with this tag.
    ///
    /// # Errors
    /// When `from` is no other rank, its message has another length ([`CollectiveError::LengthMismatch`]), it has left without one,
    /// or the job ends.
    fn receive(&self, from: usize, tag: u16, bytes: &mut [u8]) -> Result<(), CollectiveError>;

    /// Sends `outgoing` to rank `to` and fills `incoming` from rank `from`, both at once; meets only other exchanges.
    ///
    /// # Errors
    /// As for [`send`](Communicator::send) and [`receive`](Communicator::receive).
    fn exchange(
        &self,
        to: usize,
        outgoing: &[u8],
        from: usize,
        incoming: &mut [u8],
    ) -> Result<(), CollectiveError>;

    /// Waits for the next message with this tag, from whichever rank; that rank and its bytes.
    ///
    /// # Errors
    /// When there is no other rank, all have left, or the job ends.
    fn receive_any(&self, tag: u16) -> Result<(usize, Vec<u8>), CollectiveError>;

    /// The next message with this tag if one is there, without waiting.
    ///
    /// # Errors
    /// As for [`receive_any`](Communicator::receive_any); a single rank never gets a message.
    fn try_receive_any(&self, tag: u16) -> Result<Option<(usize, Vec<u8>)>, CollectiveError>;

    /// A communicator of the same ranks whose calls never mix with those of this one, for use by another thread.
    ///
    /// It belongs to the job until its end: a job makes a few, at its start.
    ///
    /// # Errors
    /// When the job ends.
    ///
    /// # Collective
    /// Must be called by all ranks.
    fn duplicate(&self) -> Result<Arc<dyn Communicator>, CollectiveError>;

    /// As [`duplicate`](Communicator::duplicate), but no call on it is noted as what this rank does: for whoever watches the rank.
    ///
    /// # Errors
    /// When the job ends.
    ///
    /// # Collective
    /// Must be called by all ranks.
    fn unwatched_duplicate(&self) -> Result<Arc<dyn Communicator>, CollectiveError> {
        self.duplicate()
    }

    /// A communicator of ranks `0..count` alone, for these ranks; the others get `None`. As for a
    /// [`duplicate`](Communicator::duplicate), its calls never mix with those of this one.
    ///
    /// # Errors
    /// When the job ends.
    ///
    /// # Panics
    /// When `count` is 0 or above the world size.
    ///
    /// # Collective
    /// Must be called by all ranks, with the same count.
    fn first_ranks(&self, count: usize) -> Result<Option<Arc<dyn Communicator>>, CollectiveError>;

    /// Whether one thread may use this communicator while another uses a duplicate.
    fn supports_threads(&self) -> bool;

    /// How calls on this communicator wait, beginning with those that wait now; may be called from any thread.
    ///
    /// Collectives on the communicator that `MpiCommunicator::init` made always wait [busily](WaitPolicy::Spin), inside MPI. Threads
    /// always sleep until they are woken.
    fn set_wait_policy(&self, wait_policy: WaitPolicy);

    /// Memory that the ranks of one node share, for reductions; `None`, on all ranks, where some node cannot share memory.
    ///
    /// `members` are the ranks of this rank's node, ascending. Longer buffers are cut to `bytes`. The memory belongs to the job until
    /// its end.
    ///
    /// # Errors
    /// When the job ends.
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

    /// Runs `wait`, in which this rank waits for others without a call of this communicator.
    fn waiting(&self, wait: &mut dyn FnMut()) {
        wait();
    }

    /// How many elements of a real buffer each element of a buffer stands for: 1, but in a simulation.
    ///
    /// What cuts buffers to pieces of a fixed length divides that length by it.
    fn magnification(&self) -> f64 {
        1.0
    }

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

/// What the first rank of a node does with its sum before the others get it: adds those of other nodes.
pub type Between<'a, T> = &'a mut dyn FnMut(&mut [T]) -> Result<(), CollectiveError>;

/// Memory that the ranks of one node share; made by [`Communicator::node_memory`].
pub trait NodeMemory: Send + Debug {
    /// Replaces `values` by their sum over the ranks of the node, added in rank order, after `between` if there are other nodes.
    ///
    /// # Errors
    /// When `between` fails.
    ///
    /// # Collective
    /// Must be called by all ranks of the node, with equal lengths.
    fn sum_f32(
        &mut self,
        values: &mut [f32],
        between: Option<Between<'_, f32>>,
    ) -> Result<(), CollectiveError>;

    /// [`sum_f32`](NodeMemory::sum_f32) of integers, modulo 2^64.
    ///
    /// # Errors
    /// When `between` fails.
    ///
    /// # Collective
    /// Must be called by all ranks of the node, with equal lengths.
    fn sum_u64(
        &mut self,
        values: &mut [u64],
        between: Option<Between<'_, u64>>,
    ) -> Result<(), CollectiveError>;
}

/// Refuses a peer that is no rank or this rank itself, for implementors of [`Communicator`]; `call` names the method.
///
/// # Errors
/// [`CollectiveError::NoSuchPeer`].
pub fn expect_peer(
    topology: &Topology,
    call: &'static str,
    peer: usize,
) -> Result<(), CollectiveError> {
    let Topology {
        rank, world_size, ..
    } = *topology;
    if peer < world_size && peer != rank {
        return Ok(());
    }
    Err(CollectiveError::NoSuchPeer {
        call,
        peer,
        rank,
        world_size,
    })
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
        Some(rank) => Err(CollectiveError::PlanMismatch {
            what,
            rank,
            expected: text(ROOT),
            got: text(rank),
        }),
    }
}
