//! Ranks as threads of one process, so that all code above a communicator can be tested without
//! MPI.
//!
//! In: one buffer per rank. Out: results that each rank computes from all buffers, in rank order.
//! Invariant: the bits are deterministic. Ranks that disagree all get the same error. A rank that
//! ends early ends the waits of other ranks.
//! Speed is not a goal: threads share one compute pool, and processes do not.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use self::world::{Deposit, Deposits, Mail, World};
use crate::communicator::{ReduceBuffer, Topology, WaitPolicy, expect_peer, expect_root};
use crate::{CollectiveError, Communicator, ROOT};

mod world;

/// Communicator of one rank in a world of threads.
///
/// Its drop leaves the world. Ranks that wait for a collective or a message of this rank, now or
/// later, get [`CollectiveError::Aborted`]. Each rank must create its own model, because clones
/// share burn's running state.
#[derive(Debug)]
pub struct ThreadCommunicator {
    world: Arc<World>,
    topology: Topology,
    /// Number of finished collectives. The lock is held during a collective, so that two threads of
    /// a rank take turns.
    round: Mutex<u64>,
}

impl ThreadCommunicator {
    /// Returns the communicators of a world of `world_size` ranks, in rank order.
    ///
    /// # Panics
    /// Panics if `world_size` is 0.
    pub fn world(world_size: usize) -> Vec<Self> {
        assert!(world_size > 0, "a world has at least one rank");
        let world = World::new(world_size);
        (0..world_size)
            .map(|rank| Self::in_world(Arc::clone(&world), Topology::on_one_node(rank, world_size)))
            .collect()
    }

    fn in_world(world: Arc<World>, topology: Topology) -> Self {
        Self {
            world,
            topology,
            round: Mutex::new(0),
        }
    }

    /// Runs one collective and returns the deposits of all ranks in rank order.
    fn combine(&self, deposit: Deposit) -> Deposits {
        let mut round = lock(&self.round);
        let deposits = self.world.combine(self.topology.rank, *round, deposit);
        *round += 1;
        deposits
    }

    /// Receives the message for which `call` waits. The message must fill `bytes`.
    fn receive_into(
        &self,
        call: &'static str,
        from: usize,
        tag: Option<u16>,
        bytes: &mut [u8],
    ) -> Result<(), CollectiveError> {
        expect_peer(&self.topology, call, from)?;
        let message = self.world.receive(self.topology.rank, Some(from), tag)?;
        if message.bytes.len() != bytes.len() {
            let got = message.bytes.len();
            return Err(CollectiveError::lengths(call, from, bytes.len(), got));
        }
        bytes.copy_from_slice(&message.bytes);
        Ok(())
    }

    fn send_as(
        &self,
        call: &'static str,
        to: usize,
        tag: Option<u16>,
        bytes: &[u8],
    ) -> Result<(), CollectiveError> {
        expect_peer(&self.topology, call, to)?;
        let message = Mail {
            from: self.topology.rank,
            tag,
            bytes: bytes.to_vec(),
        };
        self.world.send(to, message)
    }

    /// Creates a world of the first `count` ranks. Root's deposit distributes it to all ranks.
    fn relative(&self, count: usize) -> Result<Arc<World>, CollectiveError> {
        let deposits = self.combine(Deposit {
            world: Some(self.world.relative(count)),
            ..Deposit::new("duplicate", &[])
        })?;
        let world = deposits[ROOT].world.clone();
        Ok(world.expect("all ranks make a duplicate"))
    }
}

impl Communicator for ThreadCommunicator {
    fn topology(&self) -> &Topology {
        &self.topology
    }

    fn all_reduce(&self, mut buffer: ReduceBuffer<'_>) -> Result<(), CollectiveError> {
        let mut deposit = Deposit::new(buffer.collective(), buffer.bytes());
        deposit.len = Some(deposit.bytes.len() / buffer.element_bytes());
        let deposits = self.combine(deposit)?;
        buffer.bytes().copy_from_slice(&deposits[0].bytes);
        for deposit in &deposits[1..] {
            buffer.reduce(&deposit.bytes);
        }
        Ok(())
    }

    fn broadcast(&self, root: usize, bytes: &mut [u8]) -> Result<(), CollectiveError> {
        let deposits = self.combine(Deposit {
            root: Some(root),
            len: Some(bytes.len()),
            ..Deposit::new("broadcast", bytes)
        })?;
        expect_root(deposits.len(), root)?;
        bytes.copy_from_slice(&deposits[root].bytes);
        Ok(())
    }

    fn all_gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        let deposits = self.combine(Deposit::new("all_gather", bytes))?;
        Ok(deposits
            .iter()
            .map(|deposit| deposit.bytes.clone())
            .collect())
    }

    fn barrier(&self) -> Result<(), CollectiveError> {
        self.combine(Deposit::new("barrier", &[])).map(drop)
    }

    fn send(&self, to: usize, tag: u16, bytes: &[u8]) -> Result<(), CollectiveError> {
        self.send_as("send", to, Some(tag), bytes)
    }

    fn receive(&self, from: usize, tag: u16, bytes: &mut [u8]) -> Result<(), CollectiveError> {
        self.receive_into("receive", from, Some(tag), bytes)
    }

    fn exchange(
        &self,
        to: usize,
        outgoing: &[u8],
        from: usize,
        incoming: &mut [u8],
    ) -> Result<(), CollectiveError> {
        expect_peer(&self.topology, "exchange", from)?;
        self.send_as("exchange", to, None, outgoing)?;
        self.receive_into("exchange", from, None, incoming)
    }

    fn receive_any(&self, tag: u16) -> Result<(usize, Vec<u8>), CollectiveError> {
        if self.world_size() == 1 {
            expect_peer(&self.topology, "receive_any", self.topology.rank)?;
        }
        let message = self.world.receive(self.topology.rank, None, Some(tag))?;
        Ok((message.from, message.bytes))
    }

    fn try_receive_any(&self, tag: u16) -> Result<Option<(usize, Vec<u8>)>, CollectiveError> {
        if self.world_size() == 1 {
            return Ok(None);
        }
        let message = self.world.try_receive(self.topology.rank, Some(tag))?;
        Ok(message.map(|message| (message.from, message.bytes)))
    }

    fn duplicate(&self) -> Result<Arc<dyn Communicator>, CollectiveError> {
        let world = self.relative(self.world_size())?;
        Ok(Arc::new(Self::in_world(world, self.topology.clone())))
    }

    fn first_ranks(&self, count: usize) -> Result<Option<Arc<dyn Communicator>>, CollectiveError> {
        assert!(
            (1..=self.world_size()).contains(&count),
            "first ranks: {count} of {}",
            self.world_size()
        );
        let world = self.relative(count)?;
        if self.topology.rank >= count {
            return Ok(None);
        }
        let topology = Topology::on_one_node(self.topology.rank, count);
        Ok(Some(Arc::new(Self::in_world(world, topology))))
    }

    fn supports_threads(&self) -> bool {
        true
    }

    fn set_wait_policy(&self, _policy: WaitPolicy) {}

    fn abort(&self, reason: &str, _exit_code: i32) {
        self.world.abort(self.topology.rank, reason);
    }

    fn library(&self) -> String {
        "threads".to_owned()
    }
}

impl Drop for ThreadCommunicator {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.world.abort(self.topology.rank, "the rank panicked");
        } else {
            self.world.leave(self.topology.rank);
        }
    }
}

/// Runs `rank_main` on `world_size` threads, one per rank, and returns the results in rank order.
///
/// A panic of one rank ends the world for the other ranks. When all ranks have returned, the first
/// panic continues in the caller.
///
/// # Panics
/// Panics if `world_size` is 0, if a rank panics, or if the system cannot create a thread.
pub fn run_ranks<T: Send>(
    world_size: usize,
    rank_main: impl Fn(ThreadCommunicator) -> T + Sync,
) -> Vec<T> {
    try_run_ranks(world_size, rank_main).expect("the system refused a thread")
}

/// Runs `rank_main` like [`run_ranks`], but returns an error if the system cannot create a thread.
///
/// # Panics
/// Panics if `world_size` is 0 or if a rank panics.
pub fn try_run_ranks<T: Send>(
    world_size: usize,
    rank_main: impl Fn(ThreadCommunicator) -> T + Sync,
) -> io::Result<Vec<T>> {
    let first_panic = Mutex::new(None);
    let outcomes = thread::scope(|scope| -> io::Result<Vec<Option<T>>> {
        let start = |communicator: ThreadCommunicator| {
            let rank_main = &rank_main;
            let first_panic = &first_panic;
            thread::Builder::new().spawn_scoped(scope, move || {
                let world = Arc::clone(&communicator.world);
                let rank = communicator.topology.rank;
                let outcome = catch_unwind(AssertUnwindSafe(|| rank_main(communicator)));
                outcome.map_err(|panic| {
                    // A communicator that is still alive elsewhere would not end the world with its
                    // drop.
                    lock(first_panic).get_or_insert(panic);
                    world.abort(rank, "the rank panicked");
                })
            })
        };
        // Ranks without a thread drop their communicators, which ends the collectives of other
        // ranks.
        let threads: Vec<_> = ThreadCommunicator::world(world_size)
            .into_iter()
            .map(start)
            .collect::<io::Result<_>>()?;
        Ok(threads
            .into_iter()
            .map(|thread| thread.join().ok().and_then(Result::ok))
            .collect())
    });
    if let Some(panic) = lock(&first_panic).take() {
        resume_unwind(panic);
    }
    let outcomes = outcomes?.into_iter();
    Ok(outcomes
        .map(|outcome| outcome.expect("a rank without a result has panicked"))
        .collect())
}

/// Locks `mutex`. Ignores poison, because a rank that panics inside a collective ends the world.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
