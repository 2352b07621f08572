//! A communicator that notes the call in which its rank waits.
//!
//! In: calls. Out: the same calls on the inner communicator, each noted while it is in progress.
//! Invariant: results, errors and their order equal those of the inner communicator.

use std::sync::Arc;

use super::status::RankStatus;
use crate::communicator::{BetweenNodes, NodeMemory, ReduceBuffer, Topology, WaitPolicy};
use crate::{CollectiveError, Communicator};

/// A communicator that notes its waiting calls in a [`RankStatus`]. Its duplicates and its shared
/// memory do the same.
///
/// A note costs two readings of the clock and an uncontended lock. `try_receive_any` does not wait
/// and is not noted. A thread that may wait without limit, for instance in `receive_any`, needs a
/// communicator without notes.
#[derive(Debug)]
pub struct WatchedCommunicator {
    inner: Arc<dyn Communicator>,
    rank_status: Arc<RankStatus>,
}

impl WatchedCommunicator {
    /// Returns a communicator that notes the calls on `inner`.
    pub fn new(inner: Arc<dyn Communicator>, rank_status: Arc<RankStatus>) -> Self {
        Self { inner, rank_status }
    }
}

impl Communicator for WatchedCommunicator {
    fn topology(&self) -> &Topology {
        self.inner.topology()
    }

    fn all_reduce(&self, buffer: ReduceBuffer<'_>) -> Result<(), CollectiveError> {
        let _noted = self.rank_status.note(buffer.collective());
        self.inner.all_reduce(buffer)
    }

    fn broadcast(&self, root: usize, bytes: &mut [u8]) -> Result<(), CollectiveError> {
        let _noted = self.rank_status.note("broadcast");
        self.inner.broadcast(root, bytes)
    }

    fn all_gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        let _noted = self.rank_status.note("all_gather");
        self.inner.all_gather(bytes)
    }

    fn barrier(&self) -> Result<(), CollectiveError> {
        let _noted = self.rank_status.note("barrier");
        self.inner.barrier()
    }

    fn finish(&self) -> Result<(), CollectiveError> {
        let _noted = self.rank_status.note("barrier");
        self.inner.finish()
    }

    fn send(&self, to: usize, tag: u16, bytes: &[u8]) -> Result<(), CollectiveError> {
        let _noted = self.rank_status.note("send");
        self.inner.send(to, tag, bytes)
    }

    fn receive(&self, from: usize, tag: u16, bytes: &mut [u8]) -> Result<(), CollectiveError> {
        let _noted = self.rank_status.note("receive");
        self.inner.receive(from, tag, bytes)
    }

    fn exchange(
        &self,
        to: usize,
        outgoing: &[u8],
        from: usize,
        incoming: &mut [u8],
    ) -> Result<(), CollectiveError> {
        let _noted = self.rank_status.note("exchange");
        self.inner.exchange(to, outgoing, from, incoming)
    }

    fn receive_any(&self, tag: u16) -> Result<(usize, Vec<u8>), CollectiveError> {
        let _noted = self.rank_status.note("receive_any");
        self.inner.receive_any(tag)
    }

    fn try_receive_any(&self, tag: u16) -> Result<Option<(usize, Vec<u8>)>, CollectiveError> {
        self.inner.try_receive_any(tag)
    }

    fn duplicate(&self) -> Result<Arc<dyn Communicator>, CollectiveError> {
        let _noted = self.rank_status.note("duplicate");
        Ok(Arc::new(Self::new(
            self.inner.duplicate()?,
            Arc::clone(&self.rank_status),
        )))
    }

    fn first_ranks(&self, count: usize) -> Result<Option<Arc<dyn Communicator>>, CollectiveError> {
        let _noted = self.rank_status.note("duplicate");
        let part = self.inner.first_ranks(count)?;
        Ok(part.map(|part| -> Arc<dyn Communicator> {
            Arc::new(Self::new(part, Arc::clone(&self.rank_status)))
        }))
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
        let _noted = self.rank_status.note("node_memory");
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
}

/// Shared memory whose reductions are noted.
#[derive(Debug)]
struct WatchedMemory {
    inner: Box<dyn NodeMemory>,
    rank_status: Arc<RankStatus>,
}

impl NodeMemory for WatchedMemory {
    fn sum(
        &mut self,
        buffer: ReduceBuffer<'_>,
        between: Option<BetweenNodes<'_>>,
    ) -> Result<(), CollectiveError> {
        let _noted = self.rank_status.note(match buffer {
            ReduceBuffer::SumF32(_) => "node_memory.sum_f32",
            _ => "node_memory.sum_u64",
        });
        self.inner.sum(buffer, between)
    }
}
