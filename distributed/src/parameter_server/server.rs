//! A running parameter server.
//!
//! In: requests, as messages from other ranks and as calls of this rank's worker. Out: answers.
//! Invariant: the shard is locked while answers to a request are sent, so that a worker receives
//! answers in the order of their creation.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::message::{Request, TO_SERVER, TO_WORKER};
use super::shard::{Consistency, Shard, ShardUpdate, assign_buckets};
use crate::pause::{LOOKS_A_WAKE, pause_after};
use crate::{CollectiveError, Communicator, gradients::BucketPlan, replica::floats_to_bytes};

/// Assignment of buckets to servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerPlan {
    /// Ranks `0..num_workers` compute gradients.
    pub num_workers: usize,
    /// Rank of each server.
    pub servers: Vec<usize>,
    /// Index in `servers` for each bucket.
    server_of: Vec<usize>,
    /// Times of the updates.
    pub consistency: Consistency,
}

impl ServerPlan {
    /// Assigns buckets to `servers` by size.
    pub fn new(
        plan: &BucketPlan,
        num_workers: usize,
        servers: Vec<usize>,
        consistency: Consistency,
    ) -> Self {
        let sizes: Vec<usize> = plan
            .buckets()
            .iter()
            .map(|bucket| bucket.elements.len())
            .collect();
        Self {
            num_workers,
            server_of: assign_buckets(&sizes, servers.len()),
            servers,
            consistency,
        }
    }

    /// Returns the rank that serves a bucket.
    pub(crate) fn rank_of(&self, bucket: usize) -> usize {
        self.servers[self.server_of[bucket]]
    }

    /// Returns the buckets that a rank serves.
    pub(crate) fn buckets_of(&self, rank: usize) -> impl Iterator<Item = usize> {
        (0..self.server_of.len()).filter(move |&bucket| self.rank_of(bucket) == rank)
    }
}

/// A server with the buckets of one rank.
#[derive(Debug)]
pub struct Server {
    communicator: Arc<dyn Communicator>,
    shard: Mutex<Shard>,
    /// Answers for this rank's worker. After an error no answer follows.
    own_answers: Mutex<VecDeque<Result<Vec<u8>, CollectiveError>>>,
    answered: Condvar,
}

impl Server {
    /// Returns the server of this rank. `update` holds the buckets that the plan assigns to it.
    pub fn new(
        plan: &ServerPlan,
        communicator: Arc<dyn Communicator>,
        update: Box<dyn ShardUpdate>,
    ) -> Self {
        let buckets: Vec<usize> = plan.buckets_of(communicator.rank()).collect();
        let shard = Mutex::new(Shard::new(
            update,
            plan.consistency,
            plan.num_workers,
            buckets,
        ));
        Self {
            communicator,
            shard,
            own_answers: Mutex::new(VecDeque::new()),
            answered: Condvar::new(),
        }
    }

    /// Serves the workers of other ranks until all workers have left.
    ///
    /// # Errors
    /// Returns an error if the job ends.
    pub fn serve(&self) -> Result<(), CollectiveError> {
        let mut last_request = Instant::now();
        let mut looks: u32 = 0;
        loop {
            let shard = lock(&self.shard);
            if shard.is_abandoned() {
                break;
            }
            // Ranks that have left send no requests.
            let listens = !shard.is_abandoned_but_by(self.communicator.rank());
            drop(shard);
            let request = if listens {
                self.communicator.try_receive_any(TO_SERVER)?
            } else {
                None
            };
            match request {
                Some((worker, bytes)) => {
                    self.handle(worker, Request::from_bytes(&bytes))?;
                    last_request = Instant::now();
                    looks = 0;
                }
                // A worker may compute on the same core.
                None => {
                    looks = looks.wrapping_add(1);
                    if looks.is_multiple_of(LOOKS_A_WAKE) {
                        std::thread::sleep(pause_after(last_request.elapsed()));
                    }
                }
            }
        }
        Ok(())
    }

    /// Runs [`serve`](Self::serve) on a thread that is not joined while the job runs.
    ///
    /// An error ends the job immediately, and is the next answer for this rank's worker.
    ///
    /// # Errors
    /// Returns an error in the cases of [`serve`](Self::serve), if the communicator's abort
    /// returns.
    pub fn serve_or_end_the_job(&self) -> Result<(), CollectiveError> {
        self.serve().inspect_err(|error| {
            self.communicator
                .abort(&format!("parameter server: {error}"), 1);
            self.answer_own(Err(error.clone()));
        })
    }

    /// Processes the request of a worker.
    pub(super) fn handle(&self, worker: usize, request: Request) -> Result<(), CollectiveError> {
        let mut shard = lock(&self.shard);
        match request {
            Request::Push {
                bucket,
                learning_rate,
                gradient,
            } => {
                for to in shard.push(worker, bucket, learning_rate, gradient) {
                    self.answer(to, floats_to_bytes(shard.state(bucket).0))?;
                }
            }
            Request::Fetch { bucket } => {
                shard.fetch(worker, bucket);
                let (parameters, velocities) = shard.state(bucket);
                self.answer(
                    worker,
                    [floats_to_bytes(parameters), floats_to_bytes(velocities)].concat(),
                )?;
            }
            Request::Restore {
                bucket,
                parameters,
                velocities,
            } => shard.restore(bucket, &parameters, &velocities),
            Request::Histogram => {
                let counts = shard
                    .histogram()
                    .iter()
                    .flat_map(|count| count.to_le_bytes())
                    .collect();
                self.answer(worker, counts)?;
            }
            Request::Leave => {
                for (bucket, to) in shard.leave(worker) {
                    self.answer(to, floats_to_bytes(shard.state(bucket).0))?;
                }
            }
        }
        Ok(())
    }

    /// Returns the next answer for this rank's worker, or the error that ended the server.
    pub(super) fn own_answer(&self) -> Result<Vec<u8>, CollectiveError> {
        let mut answers = lock(&self.own_answers);
        loop {
            match answers.pop_front() {
                Some(answer) => return answer,
                None => {
                    answers = self
                        .answered
                        .wait(answers)
                        .unwrap_or_else(PoisonError::into_inner)
                }
            }
        }
    }

    fn answer(&self, worker: usize, bytes: Vec<u8>) -> Result<(), CollectiveError> {
        if worker == self.communicator.rank() {
            self.answer_own(Ok(bytes));
            return Ok(());
        }
        self.communicator.send(worker, TO_WORKER, &bytes)
    }

    fn answer_own(&self, answer: Result<Vec<u8>, CollectiveError>) {
        lock(&self.own_answers).push_back(answer);
        self.answered.notify_one();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
