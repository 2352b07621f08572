//! A communicator that writes down what one rank asks of the others, and lets it go on at once.
//!
//! In: the calls of one rank. Out: its operations, in their order.
//! Invariant: nothing is computed: what a rank receives or sums keeps its value, so operations must not depend on values.
//!
//! Only bytes gathered at the start are the true ones, as algorithms plan by them: a gather fails until the bytes of all ranks are known,
//! which the caller finds out by letting all ranks run into it and start again. Later a rank gathers its own bytes alone, for as long as
//! if all had brought as many.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use distributed::{
    CollectiveError, Communicator,
    communicator::{NodeMemory, ReduceBuffer, Topology, WaitPolicy, expect_peer},
};

use crate::communicator::topology;
use crate::library::Library;
use crate::memory::RecordedMemory;
use crate::network::NetworkModel;

/// What a rank did.
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
    /// The ranks of one node meet, and all go on some time after the last one.
    Meeting {
        seconds: f64,
    },
}

/// What all ranks brought to a gather.
pub(crate) type Gathered = Vec<Vec<u8>>;

/// The communicator of one rank that runs alone.
#[derive(Debug)]
pub(crate) struct Recorder {
    topology: Topology,
    library: Library,
    /// The gathers that all ranks have come to.
    known: Arc<Vec<Gathered>>,
    state: Arc<Mutex<State>>,
    network: NetworkModel,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) operations: Vec<Operation>,
    pub(crate) magnification: f64,
    /// Whether the start is over.
    has_begun: bool,
    /// Gathers that this rank has come to.
    gathers: usize,
    /// What it brought to the first one that is not known.
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

    /// Begins anew, with buffers whose bytes stand for `magnification` bytes each.
    pub(crate) fn begin(&self, magnification: f64) {
        let mut state = self.state();
        state.operations.clear();
        state.magnification = magnification;
        state.has_begun = true;
    }

    /// What the rank has done since the beginning.
    pub(crate) fn take(&self) -> Vec<Operation> {
        std::mem::take(&mut self.state().operations)
    }

    /// What the rank brought to the gather at which it stopped, if it did.
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
            return self.refuse("the bytes of the other ranks are not known yet");
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
        let (to, from) = (self.peer("exchange", to)?, self.peer("exchange", from)?);
        let operation = Operation::Exchange {
            to,
            outgoing: outgoing.len(),
            from,
            incoming: incoming.len(),
        };
        self.state().operations.push(operation);
        Ok(())
    }

    fn receive_any(&self, _tag: u16) -> Result<(usize, Vec<u8>), CollectiveError> {
        self.refuse("a rank that runs alone cannot receive from any")
    }

    fn try_receive_any(&self, _tag: u16) -> Result<Option<(usize, Vec<u8>)>, CollectiveError> {
        self.refuse("a rank that runs alone cannot receive from any")
    }

    fn duplicate(&self) -> Result<Arc<dyn Communicator>, CollectiveError> {
        self.refuse("a rank that runs alone cannot duplicate its communicator")
    }

    fn first_ranks(&self, _count: usize) -> Result<Option<Arc<dyn Communicator>>, CollectiveError> {
        self.refuse("a rank that runs alone cannot part from the others")
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
        let (state, leads) = (
            Arc::clone(&self.state),
            members.first() == Some(&self.topology.rank),
        );
        Ok(Some(Box::new(RecordedMemory {
            state,
            leads,
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
