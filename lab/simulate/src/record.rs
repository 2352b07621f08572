//! Communicator that records the operations of one rank without waiting.
//!
//! In: the calls of one rank. Out: its operations in order.
//! Invariant: buffers keep their values, so operations must not depend on received values.
//!
//! Gathers during construction return real bytes, because algorithms plan with them: the number of
//! each rank's node. Later gathers return the rank's own bytes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use distributed::communicator::{
    BetweenNodes, NodeMemory, ReduceBuffer, Topology, WaitPolicy, expect_peer,
};
use distributed::{CollectiveError, Communicator};

use crate::network::{Library, Link, NetworkModel};

/// Call of a rank to its communicator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum RecordedCall {
    Send {
        to: u32,
        tag: u16,
        bytes: usize,
    },
    Receive {
        from: u32,
        tag: u16,
        bytes: usize,
    },
    Exchange {
        to: u32,
        outgoing: usize,
        from: u32,
        incoming: usize,
    },
    /// All ranks, or those of a node, wait for the last of them, and for `seconds`.
    Meeting {
        of_node: bool,
        seconds: f64,
    },
}

/// Recording communicator of one rank.
#[derive(Debug)]
pub(crate) struct Recorder {
    topology: Topology,
    library: Library,
    state: Arc<Mutex<State>>,
    network: NetworkModel,
}

#[derive(Debug, Default)]
struct State {
    operations: Vec<RecordedCall>,
    /// Bytes that a byte of a buffer represents; absent during construction.
    magnification: Option<f64>,
}

impl Recorder {
    pub(crate) fn new(network: &NetworkModel, rank: usize, world_size: usize) -> Self {
        Self {
            topology: topology(network, rank, world_size),
            library: Library::new(network, world_size),
            state: Arc::default(),
            network: *network,
        }
    }

    /// Discards the operations; each byte of a buffer now represents `magnification` bytes.
    pub(crate) fn begin(&self, magnification: f64) {
        *self.state() = State {
            operations: Vec::new(),
            magnification: Some(magnification),
        };
    }

    /// Returns the operations since [`begin`](Self::begin).
    pub(crate) fn take(&self) -> Vec<RecordedCall> {
        std::mem::take(&mut self.state().operations)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn peer(&self, call: &'static str, peer: usize) -> Result<u32, CollectiveError> {
        expect_peer(&self.topology, call, peer)?;
        Ok(u32::try_from(peer).expect("a simulated world is smaller than 2^32"))
    }

    fn push(&self, call: RecordedCall) -> Result<(), CollectiveError> {
        self.state().operations.push(call);
        Ok(())
    }

    fn collective(
        &self,
        bytes: usize,
        seconds: impl FnOnce(f64) -> f64,
    ) -> Result<(), CollectiveError> {
        let magnification = self.state().magnification.unwrap_or(1.0);
        self.push(RecordedCall::Meeting {
            of_node: false,
            seconds: seconds(bytes as f64 * magnification),
        })
    }

    fn refuse<T>(&self, reason: &str) -> Result<T, CollectiveError> {
        Err(CollectiveError::Aborted {
            rank: self.topology.rank,
            reason: reason.to_owned(),
        })
    }
}

impl Communicator for Recorder {
    fn topology(&self) -> &Topology {
        &self.topology
    }

    fn all_reduce(&self, mut buffer: ReduceBuffer<'_>) -> Result<(), CollectiveError> {
        self.collective(buffer.bytes().len(), |bytes| self.library.reduce(bytes))
    }

    fn broadcast(&self, _root: usize, bytes: &mut [u8]) -> Result<(), CollectiveError> {
        self.collective(bytes.len(), |bytes| self.library.broadcast(bytes))
    }

    fn all_gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        if self.state().magnification.is_some() {
            self.collective(self.topology.world_size * bytes.len(), |bytes| {
                self.library.gather(bytes)
            })?;
            return Ok(vec![bytes.to_vec()]);
        }
        let each = self.network.ranks_per_node();
        let node = |rank: usize| ((rank / each) as u64).to_le_bytes();
        if bytes != node(self.topology.rank) {
            return self.refuse("the bytes of other ranks are unknown");
        }
        Ok((0..self.topology.world_size)
            .map(|rank| node(rank).to_vec())
            .collect())
    }

    fn barrier(&self) -> Result<(), CollectiveError> {
        self.collective(0, |_| self.library.barrier())
    }

    fn send(&self, to: usize, tag: u16, bytes: &[u8]) -> Result<(), CollectiveError> {
        self.push(RecordedCall::Send {
            to: self.peer("send", to)?,
            tag,
            bytes: bytes.len(),
        })
    }

    fn receive(&self, from: usize, tag: u16, bytes: &mut [u8]) -> Result<(), CollectiveError> {
        self.push(RecordedCall::Receive {
            from: self.peer("receive", from)?,
            tag,
            bytes: bytes.len(),
        })
    }

    fn exchange(
        &self,
        to: usize,
        outgoing: &[u8],
        from: usize,
        incoming: &mut [u8],
    ) -> Result<(), CollectiveError> {
        self.push(RecordedCall::Exchange {
            to: self.peer("exchange", to)?,
            outgoing: outgoing.len(),
            from: self.peer("exchange", from)?,
            incoming: incoming.len(),
        })
    }

    fn receive_any(&self, _tag: u16) -> Result<(usize, Vec<u8>), CollectiveError> {
        self.refuse("a recorded rank cannot receive from any rank")
    }

    fn try_receive_any(&self, _tag: u16) -> Result<Option<(usize, Vec<u8>)>, CollectiveError> {
        self.refuse("a recorded rank cannot receive from any rank")
    }

    fn duplicate(&self) -> Result<Arc<dyn Communicator>, CollectiveError> {
        self.refuse("a recorded rank cannot duplicate its communicator")
    }

    fn first_ranks(&self, _count: usize) -> Result<Option<Arc<dyn Communicator>>, CollectiveError> {
        self.refuse("a recorded rank cannot form a group")
    }

    fn supports_threads(&self) -> bool {
        false
    }

    fn set_wait_policy(&self, _policy: WaitPolicy) {}

    fn node_memory(
        &self,
        members: &[usize],
        bytes: usize,
    ) -> Result<Option<Box<dyn NodeMemory>>, CollectiveError> {
        let Some(node) = self.network.node.filter(|node| node.shared) else {
            return Ok(None);
        };
        Ok(Some(Box::new(RecordedMemory {
            state: Arc::clone(&self.state),
            leads: members.first() == Some(&self.topology.rank),
            link: node.link,
            ranks: members.len(),
            bytes,
        })))
    }

    fn abort(&self, _reason: &str, _exit_code: i32) {}

    fn library(&self) -> String {
        "recorder".to_owned()
    }
}

fn topology(network: &NetworkModel, rank: usize, world_size: usize) -> Topology {
    let each = network.ranks_per_node();
    let node_index = rank / each;
    Topology {
        rank,
        world_size,
        local_rank: rank % each,
        local_size: each.min(world_size - node_index * each),
        node: format!("virtual{node_index}"),
        node_index,
        num_nodes: world_size.div_ceil(each),
        num_cpus: 1,
    }
}

/// Shared memory of a recorded rank.
#[derive(Debug)]
struct RecordedMemory {
    state: Arc<Mutex<State>>,
    /// True for the first rank of the node.
    leads: bool,
    link: Link,
    ranks: usize,
    bytes: usize,
}

impl NodeMemory for RecordedMemory {
    fn sum(
        &mut self,
        mut buffer: ReduceBuffer<'_>,
        mut between: Option<BetweenNodes<'_>>,
    ) -> Result<(), CollectiveError> {
        let state = || self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let magnification = state().magnification.unwrap_or(1.0);
        // Rounded up as the reducers do.
        let elements =
            ((self.bytes / buffer.element_bytes()) as f64 / magnification).ceil() as usize;
        let length = buffer.len();
        for start in (0..length).step_by(elements) {
            let mut piece = buffer.slice(start..length.min(start + elements));
            let bytes = piece.bytes().len() as f64 * magnification;
            let seconds = match self.ranks {
                1 => 0.0,
                ranks => self.link.seconds(bytes * (ranks - 1) as f64 / ranks as f64),
            };
            let meeting = RecordedCall::Meeting {
                of_node: true,
                seconds,
            };
            state().operations.push(meeting);
            if let Some(between) = &mut between
                && self.leads
            {
                between(piece)?;
            }
            state().operations.push(meeting);
        }
        Ok(())
    }
}
