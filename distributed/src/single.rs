//! A world of one rank.
//!
//! In, out: the caller's buffers, unchanged.
//! Invariant: there are no copies and no system calls, so that the communicator costs a single rank
//! nothing.

use std::sync::Arc;

use crate::communicator::{ReduceBuffer, Topology, WaitPolicy, expect_peer, expect_root};
use crate::{CollectiveError, Communicator};

/// Communicator of a process that is the only rank.
#[derive(Clone, Debug)]
pub struct SingleCommunicator {
    topology: Topology,
}

impl SingleCommunicator {
    /// Returns a world of this process.
    pub fn new() -> Self {
        Self {
            topology: Topology::on_one_node(0, 1),
        }
    }
}

impl Default for SingleCommunicator {
    fn default() -> Self {
        Self::new()
    }
}

impl Communicator for SingleCommunicator {
    fn topology(&self) -> &Topology {
        &self.topology
    }

    fn all_reduce(&self, _buffer: ReduceBuffer<'_>) -> Result<(), CollectiveError> {
        Ok(())
    }

    fn broadcast(&self, root: usize, _bytes: &mut [u8]) -> Result<(), CollectiveError> {
        expect_root(1, root)
    }

    fn all_gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        Ok(vec![bytes.to_vec()])
    }

    fn barrier(&self) -> Result<(), CollectiveError> {
        Ok(())
    }

    fn send(&self, to: usize, _tag: u16, _bytes: &[u8]) -> Result<(), CollectiveError> {
        expect_peer(&self.topology, "send", to)
    }

    fn receive(&self, from: usize, _tag: u16, _bytes: &mut [u8]) -> Result<(), CollectiveError> {
        expect_peer(&self.topology, "receive", from)
    }

    fn exchange(
        &self,
        to: usize,
        _outgoing: &[u8],
        from: usize,
        _incoming: &mut [u8],
    ) -> Result<(), CollectiveError> {
        expect_peer(&self.topology, "exchange", to)
            .and_then(|()| expect_peer(&self.topology, "exchange", from))
    }

    fn receive_any(&self, _tag: u16) -> Result<(usize, Vec<u8>), CollectiveError> {
        expect_peer(&self.topology, "receive_any", 0).map(|()| (0, Vec::new()))
    }

    fn try_receive_any(&self, _tag: u16) -> Result<Option<(usize, Vec<u8>)>, CollectiveError> {
        Ok(None)
    }

    fn duplicate(&self) -> Result<Arc<dyn Communicator>, CollectiveError> {
        Ok(Arc::new(self.clone()))
    }

    fn first_ranks(&self, count: usize) -> Result<Option<Arc<dyn Communicator>>, CollectiveError> {
        assert_eq!(count, 1, "first ranks: expected 1 of a world of one");
        self.duplicate().map(Some)
    }

    fn supports_threads(&self) -> bool {
        true
    }

    fn set_wait_policy(&self, _policy: WaitPolicy) {}

    fn abort(&self, _reason: &str, _exit_code: i32) {}

    fn library(&self) -> String {
        "none".to_owned()
    }
}
