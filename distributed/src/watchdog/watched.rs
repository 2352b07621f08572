//! A communicator that tells in which call its rank waits.
//!
//! In: calls. Out: the same calls on the communicator within, each noted while it is under way.
//! Invariant: results, errors and their order are those of the communicator within.

use std::sync::Arc;

use super::rank_status::{Call, RankStatus};
use crate::communicator::Between;
use crate::{
    CollectiveError, Communicator,
    communicator::{NodeMemory, Topology, WaitPolicy},
};

/// A communicator whose waiting calls are noted in a [`RankStatus`], as are those of its duplicates and its shared memory.
///
/// A call costs a look at the clock and three atomic writes more. `try_receive_any`, which does not wait, is not noted. A
/// thread that may wait as long as it likes, for instance for orders in `receive_any`, belongs on a communicator that is not watched.
#[derive(Debug)]
pub struct WatchedCommunicator {
    inner: Arc<dyn Communicator>,
    rank_status: Arc<RankStatus>,
}

impl WatchedCommunicator {
    /// Watches the calls made through this one.
    pub fn new(inner: Arc<dyn Communicator>, rank_status: Arc<RankStatus>) -> Self {
        Self { inner, rank_status }
    }
}

impl Communicator for WatchedCommunicator {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn world_size(&self) -> usize {
        self.inner.world_size()
    }

    fn all_reduce_sum(&self, values: &mut [f32]) -> Result<(), CollectiveError> {
        let _noted = self.rank_status.note(Call::SumF32);
        self.inner.all_reduce_sum(values)
    }

    fn all_reduce_sum_f64(&self, values: &mut [f64]) -> Result<(), CollectiveError> {
        let _noted = self.rank_status.note(Call::SumF64);
        self.inner.all_reduce_sum_f64(values)
    }

    fn all_reduce_sum_u64(&self, values: &mut [u64]) -> Result<(), CollectiveError> {
        let _noted = self.rank_status.note(Call::SumU64);
        self.inner.all_reduce_sum_u64(values)
    }

    fn all_reduce_max_u64(&self, values: &mut [u64]) -> Result<(), CollectiveError> {
        let _noted = self.rank_status.note(Call::MaxU64);
        self.inner.all_reduce_max_u64(values)
    }

    fn broadcast(&self, root: usize, bytes: &mut [u8]) -> Result<(), CollectiveError> {
        let _noted = self.rank_status.note(Call::Broadcast);
        self.inner.broadcast(root, bytes)
    }

    fn all_gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        let _noted = self.rank_status.note(Call::AllGather);
        self.inner.all_gather(bytes)
    }

    fn barrier(&self) -> Result<(), CollectiveError> {
        let _noted = self.rank_status.note(Call::Barrier);
        self.inner.barrier()
    }

    fn finish(&self) -> Result<(), CollectiveError> {
        let _noted = self.rank_status.note(Call::Barrier);
        self.inner.finish()
    }

    fn send(&self, to: usize, tag: u16, bytes: &[u8]) -> Result<(), CollectiveError> {
        let _noted = self.rank_status.note(Call::Send);
        self.inner.send(to, tag, bytes)
    }

    fn receive(&self, from: usize, tag: u16, bytes: &mut [u8]) -> Result<(), CollectiveError> {
        let _noted = self.rank_status.note(Call::Receive);
        self.inner.receive(from, tag, bytes)
    }

    fn exchange(
        &self,
        to: usize,
        outgoing: &[u8],
        from: usize,
        incoming: &mut [u8],
    ) -> Result<(), CollectiveError> {
        let _noted = self.rank_status.note(Call::Exchange);
        self.inner.exchange(to, outgoing, from, incoming)
    }

    fn receive_any(&self, tag: u16) -> Result<(usize, Vec<u8>), CollectiveError> {
        let _noted = self.rank_status.note(Call::ReceiveAny);
        self.inner.receive_any(tag)
    }

    fn try_receive_any(&self, tag: u16) -> Result<Option<(usize, Vec<u8>)>, CollectiveError> {
        self.inner.try_receive_any(tag)
    }

    fn duplicate(&self) -> Result<Arc<dyn Communicator>, CollectiveError> {
        let _noted = self.rank_status.note(Call::Duplicate);
        Ok(Arc::new(Self::new(
            self.inner.duplicate()?,
            Arc::clone(&self.rank_status),
        )))
    }

    fn unwatched_duplicate(&self) -> Result<Arc<dyn Communicator>, CollectiveError> {
        let _noted = self.rank_status.note(Call::Duplicate);
        self.inner.unwatched_duplicate()
    }

    fn first_ranks(&self, count: usize) -> Result<Option<Arc<dyn Communicator>>, CollectiveError> {
        let _noted = self.rank_status.note(Call::Duplicate);
        let part = self.inner.first_ranks(count)?;
        Ok(part.map(|part| -> Arc<dyn Communicator> {
            Arc::new(Self::new(part, Arc::clone(&self.rank_status)))
        }))
    }

    fn waiting(&self, wait: &mut dyn FnMut()) {
        let _noted = self.rank_status.note(Call::Answer);
        wait();
    }

    fn magnification(&self) -> f64 {
        self.inner.magnification()
    }

    fn supports_threads(&self) -> bool {
        self.inner.supports_threads()
    }

    fn set_wait_policy(&self, wait_policy: WaitPolicy) {
        self.inner.set_wait_policy(wait_policy);
    }

    fn node_memory(
        &self,
        members: &[usize],
        bytes: usize,
    ) -> Result<Option<Box<dyn NodeMemory>>, CollectiveError> {
        let _noted = self.rank_status.note(Call::NodeMemory);
        let memory = self.inner.node_memory(members, bytes)?;
        Ok(memory.map(|inner| -> Box<dyn NodeMemory> {
            Box::new(WatchedMemory {
                inner,
                rank_status: Arc::clone(&self.rank_status),
            })
        }))
    }

    fn abort(&self, reason: &str, exit_code: i32) {
        self.inner.abort(reason, exit_code);
    }

    fn library(&self) -> String {
        self.inner.library()
    }

    fn topology(&self) -> &Topology {
        self.inner.topology()
    }
}

/// Shared memory whose reductions are noted.
#[derive(Debug)]
struct WatchedMemory {
    inner: Box<dyn NodeMemory>,
    rank_status: Arc<RankStatus>,
}

impl NodeMemory for WatchedMemory {
    fn sum_f32(
        &mut self,
        values: &mut [f32],
        between: Option<Between<'_, f32>>,
    ) -> Result<(), CollectiveError> {
        let _noted = self.rank_status.note(Call::NodeSumF32);
        self.inner.sum_f32(values, between)
    }

    fn sum_u64(
        &mut self,
        values: &mut [u64],
        between: Option<Between<'_, u64>>,
    ) -> Result<(), CollectiveError> {
        let _noted = self.rank_status.note(Call::NodeSumU64);
        self.inner.sum_u64(values, between)
    }
}
