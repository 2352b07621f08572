//! Ranks as threads with a clock each, which shows when a rank would be done on a network of its own.
//!
//! In: what ranks compute, send and receive. Out: the same results as on any communicator, and the virtual time.
//! Invariant: without `receive_any` and `try_receive_any`, times do not depend on how the threads are scheduled.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use distributed::{
    CollectiveError, Communicator,
    communicator::{
        NodeMemory, ReduceBuffer, ThreadCommunicator, Topology, WaitPolicy, expect_peer,
    },
    run_ranks,
};

use crate::clock::{Clock, Route};
use crate::library::Library;
use crate::memory::VirtualMemory;
use crate::network::NetworkModel;

/// Bytes before those of a message: when it departed.
const HEADER: usize = size_of::<f64>();

/// One thread's view of a world in virtual time.
///
/// Sends, receives and exchanges take the time of the network model, collectives that of a library on it.
#[derive(Debug)]
pub struct VirtualCommunicator {
    threads: Arc<dyn Communicator>,
    topology: Topology,
    network: NetworkModel,
    library: Library,
    magnification: f64,
    clock: Arc<Mutex<Clock>>,
}

/// The topology of `rank` where each node has as many ranks as the network says.
pub(crate) fn topology(network: &NetworkModel, rank: usize, world_size: usize) -> Topology {
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

impl VirtualCommunicator {
    fn new(threads: ThreadCommunicator, network: NetworkModel) -> Self {
        let world_size = threads.world_size();
        Self {
            topology: topology(&network, threads.rank(), world_size),
            threads: Arc::new(threads),
            network,
            library: Library::new(&network, world_size),
            magnification: 1.0,
            clock: Arc::default(),
        }
    }

    /// This communicator where each byte of a buffer stands for `magnification` bytes; must be the same on all ranks.
    pub fn magnified(self, magnification: f64) -> Self {
        Self {
            magnification,
            ..self
        }
    }

    /// This rank's time, in seconds since the start.
    pub fn now(&self) -> f64 {
        self.clock().now
    }

    /// Lets this rank compute for `seconds`.
    pub fn advance(&self, seconds: f64) {
        self.clock().now += seconds;
    }

    /// Lets this rank wait until `time`, in seconds since the start, if that is still to come.
    pub fn advance_to(&self, time: f64) {
        let mut clock = self.clock();
        clock.now = clock.now.max(time);
    }

    fn clock(&self) -> MutexGuard<'_, Clock> {
        self.clock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn magnify(&self, bytes: usize) -> f64 {
        bytes as f64 * self.magnification
    }

    /// A message of `bytes` that leaves now.
    fn stamp(&self, to: usize, bytes: &[u8]) -> Vec<u8> {
        let route = Route::new(&self.network, self.rank(), to, self.magnify(bytes.len()));
        let departed = self.clock().send(route);
        [&departed.to_le_bytes()[..], bytes].concat()
    }

    /// Takes a message of rank `from` and the time it takes.
    fn take<'a>(&self, from: usize, message: &'a [u8]) -> &'a [u8] {
        let (departed, bytes) = message.split_at(HEADER);
        let departed = departed
            .iter()
            .rev()
            .fold(0, |bits, &byte| (bits << 8) | u64::from(byte));
        let route = Route::new(&self.network, from, self.rank(), self.magnify(bytes.len()));
        self.clock().receive(route, f64::from_bits(departed));
        bytes
    }

    /// Fills `bytes` from a message of rank `from` that `receive` puts into a buffer.
    fn fill(
        &self,
        from: usize,
        bytes: &mut [u8],
        receive: impl FnOnce(&mut [u8]) -> Result<(), CollectiveError>,
    ) -> Result<(), CollectiveError> {
        let mut message = vec![0; HEADER + bytes.len()];
        receive(&mut message).map_err(|mut error| {
            if let CollectiveError::LengthMismatch { expected, got, .. } = &mut error {
                (*expected, *got) = (*expected - HEADER, *got - HEADER);
            }
            error
        })?;
        bytes.copy_from_slice(self.take(from, &message));
        Ok(())
    }

    /// Makes a collective that begins when the last rank comes and takes `seconds`.
    fn collective<T>(
        &self,
        seconds: f64,
        call: impl FnOnce() -> Result<T, CollectiveError>,
    ) -> Result<T, CollectiveError> {
        // The bits of numbers that are not negative are in the order of the numbers.
        let mut latest = [self.now().to_bits()];
        self.threads.all_reduce_max_u64(&mut latest)?;
        let result = call()?;
        self.clock().collective(f64::from_bits(latest[0]), seconds);
        Ok(result)
    }
}

impl Communicator for VirtualCommunicator {
    fn topology(&self) -> &Topology {
        &self.topology
    }

    fn all_reduce(&self, mut buffer: ReduceBuffer<'_>) -> Result<(), CollectiveError> {
        let seconds = self.library.reduce(self.magnify(buffer.bytes().len()));
        self.collective(seconds, || self.threads.all_reduce(buffer))
    }

    fn broadcast(&self, root: usize, bytes: &mut [u8]) -> Result<(), CollectiveError> {
        let seconds = self.library.broadcast(self.magnify(bytes.len()));
        self.collective(seconds, || self.threads.broadcast(root, bytes))
    }

    fn all_gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        let gathered = self.collective(0.0, || self.threads.all_gather(bytes))?;
        self.advance(
            self.library
                .gather(self.magnify(gathered.iter().map(Vec::len).sum())),
        );
        Ok(gathered)
    }

    fn barrier(&self) -> Result<(), CollectiveError> {
        self.collective(self.library.barrier(), || self.threads.barrier())
    }

    fn send(&self, to: usize, tag: u16, bytes: &[u8]) -> Result<(), CollectiveError> {
        expect_peer(&self.topology, "send", to)?;
        self.threads.send(to, tag, &self.stamp(to, bytes))
    }

    fn receive(&self, from: usize, tag: u16, bytes: &mut [u8]) -> Result<(), CollectiveError> {
        self.fill(from, bytes, |message| {
            self.threads.receive(from, tag, message)
        })
    }

    fn exchange(
        &self,
        to: usize,
        outgoing: &[u8],
        from: usize,
        incoming: &mut [u8],
    ) -> Result<(), CollectiveError> {
        expect_peer(&self.topology, "exchange", to)?;
        let outgoing = self.stamp(to, outgoing);
        self.fill(from, incoming, |incoming| {
            self.threads.exchange(to, &outgoing, from, incoming)
        })
    }

    fn receive_any(&self, tag: u16) -> Result<(usize, Vec<u8>), CollectiveError> {
        let (from, message) = self.threads.receive_any(tag)?;
        Ok((from, self.take(from, &message).to_vec()))
    }

    fn try_receive_any(&self, tag: u16) -> Result<Option<(usize, Vec<u8>)>, CollectiveError> {
        let message = self.threads.try_receive_any(tag)?;
        Ok(message.map(|(from, message)| (from, self.take(from, &message).to_vec())))
    }

    /// Its clock goes on from the latest of all ranks' and then alone, with links of its own.
    fn duplicate(&self) -> Result<Arc<dyn Communicator>, CollectiveError> {
        let threads = self.collective(self.library.barrier(), || self.threads.duplicate())?;
        Ok(Arc::new(Self {
            threads,
            topology: self.topology.clone(),
            clock: Arc::new(Mutex::new(Clock::at(self.now()))),
            ..*self
        }))
    }

    /// Its clock goes on as a duplicate's does.
    fn first_ranks(&self, count: usize) -> Result<Option<Arc<dyn Communicator>>, CollectiveError> {
        let threads =
            self.collective(self.library.barrier(), || self.threads.first_ranks(count))?;
        Ok(threads.map(|threads| -> Arc<dyn Communicator> {
            let topology = threads.topology().clone();
            Arc::new(Self {
                threads,
                topology,
                clock: Arc::new(Mutex::new(Clock::at(self.now()))),
                ..*self
            })
        }))
    }

    fn supports_threads(&self) -> bool {
        true
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
        Ok(Some(Box::new(VirtualMemory {
            threads: Arc::clone(&self.threads),
            clock: Arc::clone(&self.clock),
            link: node.link,
            members: members.to_vec(),
            bytes,
            magnification: self.magnification,
        })))
    }

    fn abort(&self, reason: &str, exit_code: i32) {
        self.threads.abort(reason, exit_code);
    }

    fn library(&self) -> String {
        format!("virtual {}", self.network)
    }
}

/// Runs `rank_main` on `world_size` threads with a virtual clock each, and returns what the ranks return, in rank order.
///
/// # Panics
/// When `world_size` is 0 or a rank panics; a panic ends the world for the others.
pub fn run_virtual_ranks<T: Send>(
    world_size: usize,
    network: &NetworkModel,
    rank_main: impl Fn(VirtualCommunicator) -> T + Sync,
) -> Vec<T> {
    run_ranks(world_size, |threads| {
        rank_main(VirtualCommunicator::new(threads, *network))
    })
}
