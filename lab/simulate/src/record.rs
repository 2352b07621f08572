//! Communicator that records the operations of one rank without waiting.
//!
//! In: the calls of one rank. Out: its operations in order.
//! Invariant: buffers keep their values, so operations must not depend on received values.
//!
//! Gathers during construction return real bytes, because algorithms plan with them. Such a gather
//! fails until the bytes of all ranks are known; the caller collects them and constructs the
//! algorithm again. Later gathers return the rank's own bytes.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use distributed::communicator::{
    BetweenNodes, NodeMemory, ReduceBuffer, Topology, WaitPolicy, expect_peer,
};
use distributed::{CollectiveError, Communicator};

use crate::network::{Library, Link, NetworkModel};

/// Operation of a rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Operation {
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
    Collective {
        seconds: f64,
    },
    /// The ranks of a node wait for the last of them, and for `seconds`.
    Meeting {
        seconds: f64,
    },
}

/// Bytes of all ranks in a gather.
pub(crate) type Gathered = Vec<Vec<u8>>;

/// Recording communicator of one rank.
#[derive(Debug)]
pub(crate) struct Recorder {
    topology: Topology,
    library: Library,
    /// Gathers with known bytes.
    known: Arc<Vec<Gathered>>,
    state: Arc<Mutex<State>>,
    network: NetworkModel,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) operations: Vec<Operation>,
    pub(crate) magnification: f64,
    /// True after construction.
    has_begun: bool,
    /// Completed gathers of the construction.
    gathers: usize,
    /// Bytes for the first unknown gather.
    brought: Option<Vec<u8>>,
}

impl Default for State {
    fn default() -> Self {
        Self {
            operations: Vec::new(),
            magnification: 1.0,
            has_begun: false,
            gathers: 0,
            brought: None,
        }
    }
}

impl Recorder {
    pub(crate) fn new(
        network: &NetworkModel,
        rank: usize,
        world_size: usize,
        known: Arc<Vec<Gathered>>,
    ) -> Self {
        Self {
            topology: topology(network, rank, world_size),
            library: Library::new(network, world_size),
            known,
            state: Arc::default(),
            network: *network,
        }
    }

    /// Discards the operations; each byte of a buffer now represents `magnification` bytes.
    pub(crate) fn begin(&self, magnification: f64) {
        let mut state = self.state();
        state.operations.clear();
        state.magnification = magnification;
        state.has_begun = true;
    }

    /// Returns the operations since [`begin`](Self::begin).
    pub(crate) fn take(&self) -> Vec<Operation> {
        std::mem::take(&mut self.state().operations)
    }

    /// Returns the bytes for the unknown gather at which the rank stopped.
    pub(crate) fn brought(&self) -> Option<Vec<u8>> {
        self.state().brought.take()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn peer(&self, call: &'static str, peer: usize) -> Result<u32, CollectiveError> {
        expect_peer(&self.topology, call, peer)?;
        Ok(u32::try_from(peer).expect("a simulated world is smaller than 2^32"))
    }

    fn collective(
        &self,
        bytes: usize,
        seconds: impl FnOnce(f64) -> f64,
    ) -> Result<(), CollectiveError> {
        let mut state = self.state();
        let seconds = seconds(bytes as f64 * state.magnification);
        state.operations.push(Operation::Collective { seconds });
        Ok(())
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

    fn all_gather(&self, bytes: &[u8]) -> Result<Gathered, CollectiveError> {
        let mut state = self.state();
        if state.has_begun {
            drop(state);
            self.collective(self.topology.world_size * bytes.len(), |bytes| {
                self.library.gather(bytes)
            })?;
            return Ok(vec![bytes.to_vec()]);
        }
        let Some(gathered) = self.known.get(state.gathers) else {
            state.brought = Some(bytes.to_vec());
            return self.refuse("the bytes of other ranks are unknown");
        };
        state.gathers += 1;
        drop(state);
        self.collective(gathered.iter().map(Vec::len).sum(), |bytes| {
            self.library.gather(bytes)
        })?;
        Ok(gathered.clone())
    }

    fn barrier(&self) -> Result<(), CollectiveError> {
        self.collective(0, |_| self.library.barrier())
    }

    fn send(&self, to: usize, tag: u16, bytes: &[u8]) -> Result<(), CollectiveError> {
        let operation = Operation::Send {
            to: self.peer("send", to)?,
            tag,
            bytes: bytes.len(),
        };
        self.state().operations.push(operation);
        Ok(())
    }

    fn receive(&self, from: usize, tag: u16, bytes: &mut [u8]) -> Result<(), CollectiveError> {
        let operation = Operation::Receive {
            from: self.peer("receive", from)?,
            tag,
            bytes: bytes.len(),
        };
        self.state().operations.push(operation);
        Ok(())
    }

    fn exchange(
        &self,
        to: usize,
        outgoing: &[u8],
        from: usize,
        incoming: &mut [u8],
    ) -> Result<(), CollectiveError> {
        let operation = Operation::Exchange {
            to: self.peer("exchange", to)?,
            outgoing: outgoing.len(),
            from: self.peer("exchange", from)?,
            incoming: incoming.len(),
        };
        self.state().operations.push(operation);
        Ok(())
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

/// Returns the ranges of a buffer that go through memory of `bytes`, rounded up as the reducers do.
fn pieces(
    buffer: &ReduceBuffer<'_>,
    bytes: usize,
    magnification: f64,
) -> impl Iterator<Item = Range<usize>> + use<> {
    let length = buffer.len();
    let elements = ((bytes / buffer.element_bytes()) as f64 / magnification).ceil() as usize;
    (0..length)
        .step_by(elements)
        .map(move |start| start..length.min(start + elements))
}

/// Returns the seconds of a meeting in shared memory.
fn meeting(link: Link, ranks: usize, bytes: f64) -> f64 {
    if ranks == 1 {
        0.0
    } else {
        link.seconds(bytes * (ranks - 1) as f64 / ranks as f64)
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
        let magnification = state().magnification;
        for range in pieces(&buffer, self.bytes, magnification) {
            let mut piece = buffer.slice(range);
            let bytes = piece.bytes().len() as f64 * magnification;
            let seconds = meeting(self.link, self.ranks, bytes);
            state().operations.push(Operation::Meeting { seconds });
            if let Some(between) = &mut between
                && self.leads
            {
                between(piece)?;
            }
            state().operations.push(Operation::Meeting { seconds });
        }
        Ok(())
    }
}
