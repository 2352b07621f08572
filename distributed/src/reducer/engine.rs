//! Who reduces buckets, and when: a communication thread beside the backward pass, or the caller after it.
//!
//! In: jobs in the order in which every rank sends them. Out: their results, in the same order.
//! Invariant: after a failed job no further one touches the communicator.
//! Source: Li et al. 2020, PyTorch Distributed (2006.15704), section 3.2.3.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Instant;

use crate::reduction::{BucketContext, BucketReduction, Traffic};
use crate::{CollectiveError, Communicator, communicator::WaitPolicy};

/// What is to be brought together over the ranks.
#[derive(Debug)]
pub(super) enum Job {
    Header(Vec<u8>),
    /// A bucket's gradients, complete since `ready`.
    Bucket {
        context: BucketContext,
        index: usize,
        values: Vec<f32>,
        ready: Instant,
    },
    /// None; no other will follow.
    End,
}

/// Where jobs go in.
#[derive(Debug)]
pub(super) struct JobSender {
    jobs: Sender<Job>,
    num_pending: Arc<AtomicUsize>,
}

impl JobSender {
    pub(super) fn send(&self, job: Job) {
        if !matches!(job, Job::End) {
            self.num_pending.fetch_add(1, Ordering::SeqCst);
        }
        // Nobody receives after the communication thread ended; what ended it is told when the step ends.
        let _ = self.jobs.send(job);
    }
}

/// When a bucket was complete, and when it was reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketTimes {
    /// When this rank had all its gradients.
    pub ready: Instant,
    /// When its reduction began.
    pub start: Instant,
    /// When its reduction ended.
    pub end: Instant,
}

#[derive(Debug)]
pub(super) enum Finished {
    Headers(Vec<Vec<u8>>),
    Bucket {
        index: usize,
        values: Vec<f32>,
        traffic: Traffic,
        times: BucketTimes,
    },
}

/// A reduction that the worker uses within a step, and whoever owns the worker between steps.
#[derive(Clone, Debug)]
pub(super) struct SharedReduction(Arc<Mutex<Box<dyn BucketReduction>>>);

impl SharedReduction {
    pub(super) fn new(reduction: Box<dyn BucketReduction>) -> Self {
        Self(Arc::new(Mutex::new(reduction)))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Box<dyn BucketReduction>> {
        // A poisoned lock means that a sum panicked; the job ends with that panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Does jobs one after the other.
#[derive(Debug)]
pub(super) struct Worker {
    jobs: Receiver<Job>,
    communicator: Arc<dyn Communicator>,
    reduction: SharedReduction,
    /// Whether there is anything to do beside handing buckets back.
    is_needed: bool,
    num_pending: Arc<AtomicUsize>,
    failure: Option<CollectiveError>,
}

/// The worker, on a thread of its own or not.
#[derive(Debug)]
pub(super) enum Engine {
    Inline(Worker),
    Background {
        finished: Receiver<Result<Finished, CollectiveError>>,
        /// All that the thread waits on, perhaps shared with a server beside.
        communicators: Vec<Arc<dyn Communicator>>,
        thread: Option<JoinHandle<()>>,
        num_pending: Arc<AtomicUsize>,
    },
}

impl Worker {
    pub(super) fn new(
        communicator: Arc<dyn Communicator>,
        reduction: SharedReduction,
    ) -> (Self, JobSender) {
        let (job_sender, jobs) = channel();
        let is_needed = communicator.world_size() > 1 || reduction.lock().runs_on_one_rank();
        let num_pending = Arc::new(AtomicUsize::new(0));
        let job_sender = JobSender {
            jobs: job_sender,
            num_pending: Arc::clone(&num_pending),
        };
        (
            Self {
                jobs,
                communicator,
                reduction,
                is_needed,
                num_pending,
                failure: None,
            },
            job_sender,
        )
    }

    fn work(&mut self, job: Job) -> Result<Finished, CollectiveError> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        let result = match job {
            Job::Header(bytes) => self.communicator.all_gather(&bytes).map(Finished::Headers),
            Job::Bucket {
                context,
                index,
                mut values,
                ready,
            } => {
                let start = Instant::now();
                let traffic = match self.is_needed {
                    true => self.reduction.lock().reduce(context, index, &mut values),
                    false => Ok(Traffic::default()),
                };
                traffic.map(|traffic| {
                    let times = BucketTimes {
                        ready,
                        start,
                        end: Instant::now(),
                    };
                    Finished::Bucket {
                        index,
                        values,
                        traffic,
                        times,
                    }
                })
            }
            Job::End => unreachable!("it ends the loop that asks for jobs"),
        };
        self.num_pending.fetch_sub(1, Ordering::SeqCst);
        if let Err(error) = &result {
            self.failure = Some(error.clone());
        }
        result
    }
}

impl Engine {
    /// Puts the worker on a thread of its own.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub(super) fn background(mut worker: Worker) -> std::io::Result<Self> {
        let mut communicators = vec![Arc::clone(&worker.communicator)];
        communicators.extend(worker.reduction.lock().waits_on());
        let num_pending = Arc::clone(&worker.num_pending);
        let (results, finished) = channel();
        let thread = Builder::new()
            .name("communication".to_owned())
            .spawn(move || {
                while let Ok(job) = worker.jobs.recv() {
                    if matches!(job, Job::End) {
                        return;
                    }
                    let result = worker.work(job);
                    if results.send(result).is_err() {
                        return;
                    }
                }
            })?;
        Ok(Self::Background {
            finished,
            communicators,
            thread: Some(thread),
            num_pending,
        })
    }

    pub(super) fn is_beside(&self) -> bool {
        matches!(self, Self::Background { .. })
    }

    /// The caller begins to compute: the thread leaves it the core.
    pub(super) fn begin(&self) {
        if let Self::Background { communicators, .. } = self {
            communicators
                .iter()
                .for_each(|communicator| communicator.set_wait_policy(WaitPolicy::Sleep));
        }
    }

    /// The caller has nothing left but to wait.
    pub(super) fn spin(&self) {
        if let Self::Background {
            communicators,
            thread,
            ..
        } = self
        {
            communicators
                .iter()
                .for_each(|communicator| communicator.set_wait_policy(WaitPolicy::Spin));
            if let Some(thread) = thread {
                thread.thread().unpark();
            }
        }
    }

    /// The next result, in the order of the jobs.
    pub(super) fn next(&mut self) -> Result<Finished, CollectiveError> {
        match self {
            Self::Inline(worker) => {
                let job = worker
                    .jobs
                    .try_recv()
                    .expect("as many jobs were sent as results are asked for");
                worker.work(job)
            }
            Self::Background {
                finished,
                communicators,
                ..
            } => {
                // A panic of the thread has been told by the panic hook.
                finished.recv().unwrap_or_else(|_| {
                    let reason = "the communication thread panicked".to_owned();
                    Err(CollectiveError::Aborted {
                        rank: communicators[0].rank(),
                        reason,
                    })
                })
            }
        }
    }
}

impl Engine {
    /// Waits for the thread's end after [`Job::End`], unless it may be waiting for ranks that will never come.
    pub(super) fn join(&mut self) {
        if let Self::Background {
            thread,
            num_pending,
            ..
        } = self
            && num_pending.load(Ordering::SeqCst) == 0
            && let Some(thread) = thread.take()
        {
            let _ = thread.join();
        }
    }
}
