//! A world of one rank.
//!
//! In, out: the caller's buffers, untouched. Invariant: no copy and no system call, so one rank pays nothing for being able to be many.

use crate::{CollectiveError, Communicator, Topology};

/// The communicator of a process that trains alone.
#[derive(Clone, Debug)]
pub struct SingleCommunicator {
    topology: Topology,
}

impl SingleCommunicator {
    /// A world of this process alone.
    pub fn new() -> Self {
        Self { topology: Topology::on_one_node(0, 1) }
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

    fn broadcast(&self, root: usize, _bytes: &mut [u8]) -> Result<(), CollectiveError> {
        if root == 0 {
            return Ok(());
        }
        Err(CollectiveError::NoSuchRoot { collective: "broadcast", root, world_size: 1 })
    }

    fn all_gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        Ok(vec![bytes.to_vec()])
    }

    fn barrier(&self) -> Result<(), CollectiveError> {
        Ok(())
    }

    fn abort(&self, _reason: &str, _exit_code: i32) {}

    fn library(&self) -> String {
        "none".to_owned()
    }

    fn topology(&self) -> &Topology {
        &self.topology
    }
}
