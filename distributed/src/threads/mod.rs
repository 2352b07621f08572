//! Ranks as threads of one process, so that everything above a communicator is tested without MPI.
//!
//! In: one buffer a rank. Out: results computed once, by the rank that comes last, in rank order.
//! Invariant: deterministic bits; ranks that disagree all get the same error; a rank that ends early ends the others' waiting.
//! Speed is no aim: threads share one compute pool, processes do not.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use self::deposit::Deposit;
use self::world::{Message, Tag, World};
use crate::communicator::expect_peer;
use crate::{
    CollectiveError, Communicator,
    communicator::{Topology, WaitPolicy},
};

mod deposit;
mod world;

/// One thread's view of a world of threads.
///
/// Dropping it leaves the world: ranks that wait for a collective or a message of it, or ask for one later, get
/// [`CollectiveError::Aborted`]. Each rank builds its own model: a clone would share burn's running state.
#[derive(Debug)]
pub struct ThreadCommunicator {
    world: Arc<World>,
    topology: Topology,
    /// Collectives this rank has finished; locked through a collective, so two threads of a rank take turns.
    round: Mutex<u64>,
}

impl ThreadCommunicator {
    /// The communicators of a world of `world_size` ranks, in rank order.
    ///
    /// # Panics
    /// When `world_size` is 0.
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

    /// Brings `deposit`, waits for every rank's, and returns the common result.
    fn combine(&self, deposit: Deposit) -> Result<Arc<Deposit>, CollectiveError> {
        let mut round = lock(&self.round);
        let result = self.world.combine(self.topology.rank, *round, deposit);
        *round += 1;
        result
    }

    /// The message that `call` waits for, which must fill `bytes`.
    fn receive_into(
        &self,
        call: &'static str,
        from: usize,
        tag: Tag,
        bytes: &mut [u8],
    ) -> Result<(), CollectiveError> {
        let message = self.world.receive(self.topology.rank, Some(from), tag)?;
        if message.bytes.len() != bytes.len() {
            let (expected, got) = (bytes.len(), message.bytes.len());
            return Err(CollectiveError::LengthMismatch {
                collective: call,
                rank: from,
                expected,
                got,
            });
        }
        bytes.copy_from_slice(&message.bytes);
        Ok(())
    }

    fn send_as(&self, to: usize, tag: Tag, bytes: &[u8]) -> Result<(), CollectiveError> {
        self.world.send(
            to,
            Message {
                from: self.topology.rank,
                tag,
                bytes: bytes.to_vec(),
            },
        )
    }
}

impl Communicator for ThreadCommunicator {
    fn rank(&self) -> usize {
        self.topology.rank
    }

    fn world_size(&self) -> usize {
        self.topology.world_size
    }

    fn all_reduce_sum(&self, values: &mut [f32]) -> Result<(), CollectiveError> {
        if let Deposit::SumF32(sum) = &*self.combine(Deposit::SumF32(values.to_vec()))? {
            values.copy_from_slice(sum);
        }
        Ok(())
    }

    fn all_reduce_sum_f64(&self, values: &mut [f64]) -> Result<(), CollectiveError> {
        if let Deposit::SumF64(sum) = &*self.combine(Deposit::SumF64(values.to_vec()))? {
            values.copy_from_slice(sum);
        }
        Ok(())
    }

    fn all_reduce_sum_u64(&self, values: &mut [u64]) -> Result<(), CollectiveError> {
        if let Deposit::SumU64(sum) = &*self.combine(Deposit::SumU64(values.to_vec()))? {
            values.copy_from_slice(sum);
        }
        Ok(())
    }

    fn all_reduce_max_u64(&self, values: &mut [u64]) -> Result<(), CollectiveError> {
        if let Deposit::MaxU64(largest) = &*self.combine(Deposit::MaxU64(values.to_vec()))? {
            values.copy_from_slice(largest);
        }
        Ok(())
    }

    fn broadcast(&self, root: usize, bytes: &mut [u8]) -> Result<(), CollectiveError> {
        if let Deposit::Broadcast { bytes: sent, .. } = &*self.combine(Deposit::Broadcast {
            root,
            bytes: bytes.to_vec(),
        })? {
            bytes.copy_from_slice(sent);
        }
        Ok(())
    }

    fn all_gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        match &*self.combine(Deposit::Gather(vec![bytes.to_vec()]))? {
            Deposit::Gather(gathered) => Ok(gathered.clone()),
            _ => unreachable!("combine keeps the kind of the deposits"),
        }
    }

    fn barrier(&self) -> Result<(), CollectiveError> {
        self.combine(Deposit::Barrier).map(|_| ())
    }

    fn send(&self, to: usize, tag: u16, bytes: &[u8]) -> Result<(), CollectiveError> {
        expect_peer(&self.topology, "send", to)?;
        self.send_as(to, Tag::User(tag), bytes)
    }

    fn receive(&self, from: usize, tag: u16, bytes: &mut [u8]) -> Result<(), CollectiveError> {
        expect_peer(&self.topology, "receive", from)?;
        self.receive_into("receive", from, Tag::User(tag), bytes)
    }

    fn exchange(
        &self,
        to: usize,
        outgoing: &[u8],
        from: usize,
        incoming: &mut [u8],
    ) -> Result<(), CollectiveError> {
        expect_peer(&self.topology, "exchange", to)?;
        expect_peer(&self.topology, "exchange", from)?;
        self.send_as(to, Tag::Exchange, outgoing)?;
        self.receive_into("exchange", from, Tag::Exchange, incoming)
    }

    fn receive_any(&self, tag: u16) -> Result<(usize, Vec<u8>), CollectiveError> {
        if self.world_size() == 1 {
            expect_peer(&self.topology, "receive_any", self.topology.rank)?;
        }
        let message = self
            .world
            .receive(self.topology.rank, None, Tag::User(tag))?;
        Ok((message.from, message.bytes))
    }

    fn try_receive_any(&self, tag: u16) -> Result<Option<(usize, Vec<u8>)>, CollectiveError> {
        if self.world_size() == 1 {
            return Ok(None);
        }
        let message = self.world.try_receive(self.topology.rank, Tag::User(tag))?;
        Ok(message.map(|message| (message.from, message.bytes)))
    }

    fn duplicate(&self) -> Result<Arc<dyn Communicator>, CollectiveError> {
        match &*self.combine(Deposit::Duplicate(self.world.duplicate()))? {
            Deposit::Duplicate(world) => Ok(Arc::new(Self::in_world(
                Arc::clone(world),
                self.topology.clone(),
            ))),
            _ => unreachable!("combine keeps the kind of the deposits"),
        }
    }

    fn first_ranks(&self, count: usize) -> Result<Option<Arc<dyn Communicator>>, CollectiveError> {
        assert!(
            (1..=self.world_size()).contains(&count),
            "first ranks: {count} of {}",
            self.world_size()
        );
        match &*self.combine(Deposit::Duplicate(self.world.relative(count)))? {
            Deposit::Duplicate(world) if self.topology.rank < count => {
                let topology = Topology::on_one_node(self.topology.rank, count);
                Ok(Some(Arc::new(Self::in_world(Arc::clone(world), topology))))
            }
            _ => Ok(None),
        }
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

    fn topology(&self) -> &Topology {
        &self.topology
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

/// Runs `rank_main` on `world_size` threads, one a rank, and returns what the ranks return, in rank order.
///
/// A rank that panics ends the world for the others; when all have returned, the panic of the rank that panicked first goes on in
/// the caller.
///
/// # Panics
/// When `world_size` is 0 or a rank panics.
pub fn run_ranks<T: Send>(
    world_size: usize,
    rank_main: impl Fn(ThreadCommunicator) -> T + Sync,
) -> Vec<T> {
    let first_panic = Mutex::new(None);
    let outcomes: Vec<Option<T>> = std::thread::scope(|scope| {
        let threads: Vec<_> = ThreadCommunicator::world(world_size)
            .into_iter()
            .map(|communicator| {
                scope.spawn(|| {
                    let world = Arc::clone(&communicator.world);
                    let rank = communicator.topology.rank;
                    let outcome = catch_unwind(AssertUnwindSafe(|| rank_main(communicator)));
                    outcome.map_err(|panic| {
                        // A communicator kept alive elsewhere would not end the world by its drop.
                        lock(&first_panic).get_or_insert(panic);
                        world.abort(rank, "the rank panicked");
                    })
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().ok().and_then(Result::ok))
            .collect()
    });
    if let Some(panic) = lock(&first_panic).take() {
        resume_unwind(panic);
    }
    outcomes
        .into_iter()
        .map(|outcome| outcome.expect("a rank without a result has panicked"))
        .collect()
}

/// A rank that panics inside a collective ends the world; its poisoned lock says nothing more.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
