//! Ranks as threads of one process, so that everything above a communicator is tested without MPI.
//!
//! In: one buffer a rank. Out: results computed once, by the rank that comes last, in rank order.
//! Invariant: deterministic bits; ranks that disagree all get the same error; a rank that ends early ends the others' waiting.
//! Speed is no aim: threads share one compute pool, processes do not.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::{CollectiveError, Communicator, Topology};

/// One thread's view of a world of threads.
///
/// Dropping it leaves the world: ranks that wait for a collective with it, or call one later, get
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
        let state = State { deposits: vec![None; world_size], result: None, ended: None };
        let world = Arc::new(World { state: Mutex::new(state), changed: Condvar::new() });
        (0..world_size)
            .map(|rank| Self {
                world: Arc::clone(&world),
                topology: Topology::on_one_node(rank, world_size),
                round: Mutex::new(0),
            })
            .collect()
    }

    /// Brings `deposit`, waits for every rank's, and returns the common result.
    fn exchange(&self, deposit: Deposit) -> Result<Arc<Deposit>, CollectiveError> {
        let mut round = lock(&self.round);
        let mut state = lock(&self.world.state);
        if let Some(ended) = &state.ended {
            return Err(ended.clone());
        }
        state.deposits[self.topology.rank] = Some(deposit);
        if state.deposits.iter().all(Option::is_some) {
            let deposits: Vec<Deposit> = state.deposits.iter_mut().filter_map(Option::take).collect();
            state.result = Some((*round, combine(deposits).map(Arc::new)));
            self.world.changed.notify_all();
        }
        loop {
            // A finished result comes before the end of the world: a rank may leave right after its last collective.
            if let Some((finished, result)) = &state.result
                && *finished == *round
            {
                *round += 1;
                return result.clone();
            }
            if let Some(ended) = &state.ended {
                return Err(ended.clone());
            }
            state = self.world.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
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
        if let Deposit::SumF32(sum) = &*self.exchange(Deposit::SumF32(values.to_vec()))? {
            values.copy_from_slice(sum);
        }
        Ok(())
    }

    fn all_reduce_sum_f64(&self, values: &mut [f64]) -> Result<(), CollectiveError> {
        if let Deposit::SumF64(sum) = &*self.exchange(Deposit::SumF64(values.to_vec()))? {
            values.copy_from_slice(sum);
        }
        Ok(())
    }

    fn all_reduce_sum_u64(&self, values: &mut [u64]) -> Result<(), CollectiveError> {
        if let Deposit::SumU64(sum) = &*self.exchange(Deposit::SumU64(values.to_vec()))? {
            values.copy_from_slice(sum);
        }
        Ok(())
    }

    fn broadcast(&self, root: usize, bytes: &mut [u8]) -> Result<(), CollectiveError> {
        if let Deposit::Broadcast { bytes: sent, .. } =
            &*self.exchange(Deposit::Broadcast { root, bytes: bytes.to_vec() })?
        {
            bytes.copy_from_slice(sent);
        }
        Ok(())
    }

    fn all_gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        match &*self.exchange(Deposit::Gather(vec![bytes.to_vec()]))? {
            Deposit::Gather(gathered) => Ok(gathered.clone()),
            _ => unreachable!("combine keeps the kind of the deposits"),
        }
    }

    fn barrier(&self) -> Result<(), CollectiveError> {
        self.exchange(Deposit::Barrier).map(|_| ())
    }

    fn abort(&self, reason: &str, _exit_code: i32) {
        self.world.end(self.topology.rank, reason);
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
        let reason = if std::thread::panicking() { "the rank panicked" } else { "the rank has left" };
        self.world.end(self.topology.rank, reason);
    }
}

/// Runs `rank_main` on `world_size` threads, one a rank, and returns what the ranks return, in rank order.
///
/// A rank that panics ends the world for the others; when all have returned, the panic of the rank that panicked first goes on in
/// the caller.
///
/// # Panics
/// When `world_size` is 0 or a rank panics.
pub fn run_ranks<T: Send>(world_size: usize, rank_main: impl Fn(ThreadCommunicator) -> T + Sync) -> Vec<T> {
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
                        world.end(rank, "the rank panicked");
                    })
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().ok().and_then(Result::ok)).collect()
    });
    if let Some(panic) = lock(&first_panic).take() {
        resume_unwind(panic);
    }
    outcomes.into_iter().map(|outcome| outcome.expect("a rank without a result has panicked")).collect()
}

/// What all ranks of a world share.
#[derive(Debug)]
struct World {
    state: Mutex<State>,
    changed: Condvar,
}

impl World {
    /// Ends the world, unless it has ended before.
    fn end(&self, rank: usize, reason: &str) {
        lock(&self.state).ended.get_or_insert_with(|| CollectiveError::Aborted { rank, reason: reason.to_owned() });
        self.changed.notify_all();
    }
}

/// The collective in progress and the last one finished.
///
/// One result is enough: the next one needs a deposit of every rank, and a rank deposits only after it took the last result.
#[derive(Debug)]
struct State {
    deposits: Vec<Option<Deposit>>,
    result: Option<(u64, Result<Arc<Deposit>, CollectiveError>)>,
    ended: Option<CollectiveError>,
}

/// What a rank brings to a collective; the result has the same kind.
#[derive(Clone, Debug)]
enum Deposit {
    SumF32(Vec<f32>),
    SumF64(Vec<f64>),
    SumU64(Vec<u64>),
    Broadcast { root: usize, bytes: Vec<u8> },
    Gather(Vec<Vec<u8>>),
    Barrier,
}

impl Deposit {
    fn collective(&self) -> &'static str {
        match self {
            Self::SumF32(_) => "all_reduce_sum",
            Self::SumF64(_) => "all_reduce_sum_f64",
            Self::SumU64(_) => "all_reduce_sum_u64",
            Self::Broadcast { .. } => "broadcast",
            Self::Gather(_) => "all_gather",
            Self::Barrier => "barrier",
        }
    }

    /// The collective with what must be equal on all ranks beside the length.
    fn signature(&self) -> String {
        match self {
            Self::Broadcast { root, .. } => format!("broadcast from root {root}"),
            _ => self.collective().to_owned(),
        }
    }

    /// The length that must be equal on all ranks.
    fn len(&self) -> usize {
        match self {
            Self::SumF32(values) => values.len(),
            Self::SumF64(values) => values.len(),
            Self::SumU64(values) => values.len(),
            Self::Broadcast { bytes, .. } => bytes.len(),
            Self::Gather(_) | Self::Barrier => 0,
        }
    }
}

/// The result of a collective from every rank's deposit, in rank order.
fn combine(deposits: Vec<Deposit>) -> Result<Deposit, CollectiveError> {
    let world_size = deposits.len();
    let root_deposit = &deposits[crate::ROOT];
    let (collective, expected) = (root_deposit.collective(), root_deposit.signature());
    for (rank, deposit) in deposits.iter().enumerate() {
        if deposit.signature() != expected {
            return Err(CollectiveError::OperationMismatch { rank, expected, got: deposit.signature() });
        }
        if deposit.len() != root_deposit.len() {
            let (expected, got) = (root_deposit.len(), deposit.len());
            return Err(CollectiveError::LengthMismatch { collective, rank, expected, got });
        }
    }
    if let Deposit::Broadcast { root, .. } = *root_deposit {
        let sent = deposits.into_iter().nth(root);
        return sent.ok_or(CollectiveError::NoSuchRoot { collective, root, world_size });
    }
    let mut deposits = deposits.into_iter();
    let first = deposits.next().expect("a world has at least one rank");
    Ok(deposits.fold(first, add))
}

/// The sum, or the concatenation, of two deposits of one kind.
fn add(mut total: Deposit, deposit: Deposit) -> Deposit {
    match (&mut total, deposit) {
        (Deposit::SumF32(total), Deposit::SumF32(values)) => {
            total.iter_mut().zip(values).for_each(|(total, value)| *total += value);
        }
        (Deposit::SumF64(total), Deposit::SumF64(values)) => {
            total.iter_mut().zip(values).for_each(|(total, value)| *total += value);
        }
        (Deposit::SumU64(total), Deposit::SumU64(values)) => {
            total.iter_mut().zip(values).for_each(|(total, value)| *total = total.wrapping_add(value));
        }
        (Deposit::Gather(total), Deposit::Gather(mut bytes)) => total.append(&mut bytes),
        _ => {}
    }
    total
}

/// A rank that panics inside a collective ends the world; its poisoned lock says nothing more.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
