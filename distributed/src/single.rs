//! A world of one rank.
//!
//! In, out: the caller's buffers, untouched. Invariant: no copy and no system call, so one rank pays nothing for being able to be many.

use std::sync::Arc;

use crate::communicator::expect_peer;
use crate::{
    CollectiveError, Communicator,
    communicator::{Topology, WaitPolicy},
};

/// The communicator of a process that trains alone.
#[derive(Clone, Debug)]
pub struct SingleCommunicator {
    topology: Topology,
}

impl SingleCommunicator {
    /// A world of this process alone.
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
    fn rank(&self) -> usize {
        0
    }

    fn world_size(&self) -> usize {
        1
    }

    fn all_reduce_sum(&self, _values: &mut [f32]) -> Result<(), CollectiveError> {
        Ok(())
    }

    fn all_reduce_sum_f64(&self, _values: &mut [f64]) -> Result<(), CollectiveError> {
        Ok(())
    }

    fn all_reduce_sum_u64(&self, _values: &mut [u64]) -> Result<(), CollectiveError> {
        Ok(())
    }

    fn all_reduce_max_u64(&self, _values: &mut [u64]) -> Result<(), CollectiveError> {
        Ok(())
    }

    fn broadcast(&self, root: usize, _bytes: &mut [u8]) -> Result<(), CollectiveError> {
        if root == 0 {
            return Ok(());
        }
        Err(CollectiveError::NoSuchRoot {
            collective: "broadcast",
            root,
            world_size: 1,
        })
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
        Err(CollectiveError::NoSuchPeer {
            call: "receive_any",
            peer: 0,
            rank: 0,
            world_size: 1,
        })
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

    fn topology(&self) -> &Topology {
        &self.topology
    }
}
