//! Reduction of buckets, either on a communication thread during the backward pass or by the caller
//! after the pass.
//!
//! In: jobs, in the same order on every rank. Out: the jobs' results, in the same order.
//! Invariant: after a failed job no other job uses the communicator.
//! Source: Li et al. 2020, PyTorch Distributed (2006.15704), section 3.2.3.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{Builder, JoinHandle};
use std::time::Instant;

use super::lock;
use crate::communicator::WaitPolicy;
use crate::header::are_finite;
use crate::reduction::{BucketContext, BucketReduction, Traffic};
use crate::watchdog::RankStatus;
use crate::{CollectiveError, Communicator};

/// A reduction that the worker uses during a step, and its owner between steps.
pub(super) type SharedReduction = Arc<Mutex<Box<dyn BucketReduction>>>;

/// A job of the worker: one exchange with the other ranks.
#[derive(Debug)]
pub(super) enum Job {
    Header(Vec<u8>),
    Bucket {
        context: BucketContext,
        index: usize,
        values: Vec<f32>,
        /// True if no value is NaN or infinite.
        is_finite: bool,
    },
}

#[derive(Debug)]
pub(super) enum JobResult {
    Headers(Vec<Vec<u8>>),
    Bucket {
        values: Vec<f32>,
        /// True if no value is NaN or infinite. The sum of finite values can overflow.
        is_finite: bool,
        traffic: Traffic,
        times: BucketTimes,
    },
}

/// Start and end of a bucket's reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketTimes {
    /// Start of the reduction.
    pub start: Instant,
    /// End of the reduction.
    pub end: Instant,
}

/// Executor of jobs, one at a time.
#[derive(Debug)]
pub(super) struct Worker {
    jobs: Receiver<Job>,
    communicator: Arc<dyn Communicator>,
    reduction: SharedReduction,
    /// True if buckets must be reduced. Otherwise the worker returns them unchanged.
    is_needed: bool,
    rank_status: Arc<RankStatus>,
    failure: Option<CollectiveError>,
}

impl Worker {
    pub(super) fn new(
        communicator: Arc<dyn Communicator>,
        reduction: SharedReduction,
        rank_status: Arc<RankStatus>,
    ) -> (Self, Sender<Job>) {
        let (sender, jobs) = channel();
        let is_needed = communicator.world_size() > 1 || lock(&reduction).runs_on_one_rank();
        let worker = Self {
            jobs,
            communicator,
            reduction,
            is_needed,
            rank_status,
            failure: None,
        };
        (worker, sender)
    }

    fn work(&mut self, job: Job) -> Result<JobResult, CollectiveError> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        let result = match job {
            Job::Header(bytes) => self.communicator.all_gather(&bytes).map(JobResult::Headers),
            Job::Bucket {
                context,
                index,
                mut values,
                is_finite,
            } => {
                let start = Instant::now();
                let traffic = if self.is_needed {
                    self.rank_status.bucket(Some(index));
                    let traffic = lock(&self.reduction).reduce(context, index, &mut values);
                    self.rank_status.bucket(None);
                    traffic
                } else {
                    Ok(Traffic::default())
                };
                let end = Instant::now();
                let is_finite = if self.is_needed {
                    are_finite(&values)
                } else {
                    is_finite
                };
                traffic.map(|traffic| JobResult::Bucket {
                    values,
                    is_finite,
                    traffic,
                    times: BucketTimes { start, end },
                })
            }
        };
        self.failure = result.as_ref().err().cloned();
        result
    }
}

/// The worker, on its own thread or on the caller's.
#[derive(Debug)]
pub(super) enum Engine {
    Inline(Worker),
    Background {
        results: Receiver<Result<JobResult, CollectiveError>>,
        /// All communicators on which the thread waits. A server on this rank may share them.
        communicators: Vec<Arc<dyn Communicator>>,
        thread: Option<JoinHandle<()>>,
    },
}

impl Engine {
    /// Moves the worker to its own thread.
    ///
    /// # Errors
    /// Returns an error if the system cannot create a thread.
    pub(super) fn background(mut worker: Worker) -> std::io::Result<Self> {
        let mut communicators = vec![Arc::clone(&worker.communicator)];
        communicators.extend(lock(&worker.reduction).waits_on());
        let (sender, results) = channel();
        let run = move || {
            while let Ok(job) = worker.jobs.recv() {
                if sender.send(worker.work(job)).is_err() {
                    return;
                }
            }
        };
        let thread = Builder::new().name("communication".to_owned()).spawn(run)?;
        Ok(Self::Background {
            results,
            communicators,
            thread: Some(thread),
        })
    }

    /// Makes the thread's waits sleep, so that the caller can compute on this core.
    pub(super) fn sleep(&self) {
        if let Self::Background { communicators, .. } = self {
            for communicator in communicators {
                communicator.set_wait_policy(WaitPolicy::Sleep);
            }
        }
    }

    /// Makes the thread's waits spin, because from now on the caller only waits.
    pub(super) fn spin(&self) {
        if let Self::Background {
            communicators,
            thread,
            ..
        } = self
        {
            for communicator in communicators {
                communicator.set_wait_policy(WaitPolicy::Spin);
            }
            if let Some(thread) = thread {
                thread.thread().unpark();
            }
        }
    }

    /// Returns the next job's result, in the order of the jobs.
    pub(super) fn next(&mut self) -> Result<JobResult, CollectiveError> {
        match self {
            Self::Inline(worker) => {
                let job = worker.jobs.try_recv();
                worker.work(job.expect("as many jobs were sent as results are expected"))
            }
            Self::Background {
                results,
                communicators,
                ..
            } => results.recv().unwrap_or_else(|_| {
                // The panic hook has printed the panic.
                Err(CollectiveError::Aborted {
                    rank: communicators[0].rank(),
                    reason: "the communication thread panicked".to_owned(),
                })
            }),
        }
    }

    /// Waits for the thread's end, after the drop of the job sender.
    pub(super) fn join(&mut self) {
        if let Self::Background { thread, .. } = self {
            // The panic hook has printed a panic.
            drop(thread.take().map(JoinHandle::join));
        }
    }
}
