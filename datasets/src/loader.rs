//! Iterator over the steps of an epoch, with threads that read ahead.
//!
//! In: [`Samples`], a [`ShardPlan`]. Out: [`LoadedStep`]s in step order.
//! Invariants:
//! - The output does not depend on the number of threads.
//! - At most `prefetch_steps` steps are in progress or ready.
//! - A waiting thread uses no CPU time.
//! - Threads end when the loader is dropped.
//! - A failure is returned as an error, after which the loader ends. It never hangs.
//! - If the operating system rejects a thread, the caller prepares the thread's steps.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use crate::batch::HostBatch;
use crate::error::DatasetError;
use crate::progress;
use crate::samples::{Draws, Samples};
use crate::shard::ShardPlan;
use crate::threads;

/// Settings of a [`Loader`].
#[derive(Clone, Copy, Debug)]
pub struct LoaderConfig {
    /// Maximum number of samples in a micro-batch.
    pub micro_batch_size: usize,
    /// Seed of the random numbers of samples.
    pub seed: u64,
    /// Epoch of the random numbers of samples, from 0.
    pub epoch: u64,
    /// Number of loading threads. With 0 the calling thread loads.
    ///
    /// One thread (the default) suffices for a network on small images. More threads help only if
    /// images are decoded on demand.
    pub num_threads: usize,
    /// Number of steps that are prepared ahead, at least 1. The number limits the threads that work
    /// at the same time.
    pub prefetch_steps: usize,
    /// First step, for a run that resumes inside an epoch.
    pub first_step: usize,
}

impl LoaderConfig {
    /// Returns the defaults: seed and epoch 0, one thread, two steps ahead, from the first step.
    pub fn new(micro_batch_size: usize) -> Self {
        Self {
            micro_batch_size,
            seed: 0,
            epoch: 0,
            num_threads: 1,
            prefetch_steps: 2,
            first_step: 0,
        }
    }

    /// Sets the number of threads. The number of steps ahead becomes the same, but at least two.
    #[must_use]
    pub fn with_threads(self, num_threads: usize) -> Self {
        Self {
            num_threads,
            prefetch_steps: num_threads.max(2),
            ..self
        }
    }
}

/// One shard's part of one step, as micro-batches in host memory or of another type.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadedStep<B = HostBatch> {
    /// Index of the step in the epoch.
    pub step_in_epoch: usize,
    /// Number of samples in the step over all shards.
    pub global_num_samples: usize,
    /// Sum of the [weights](Samples::weight) of the samples in the step over all shards.
    pub global_weight: f64,
    /// Micro-batches of the reader's shards, shard by shard. Every shard has the same number of
    /// micro-batches. In the last step some may be empty.
    pub micro_batches: Vec<MicroBatch<B>>,
}

/// The samples of one forward pass.
#[derive(Clone, Debug, PartialEq)]
pub struct MicroBatch<B = HostBatch> {
    /// Number of samples; 0 for a shard without samples in the last step of an epoch.
    pub num_samples: usize,
    /// Sum of the [weights](Samples::weight) of the samples.
    pub weight: f64,
    /// The samples. An empty micro-batch has one sample of another shard, for a forward pass that
    /// other ranks wait for.
    pub batch: B,
}

impl<B> LoadedStep<B> {
    /// Returns the step with the samples of each micro-batch converted by `turn`, in order.
    pub fn map<T>(self, mut turn: impl FnMut(B) -> T) -> LoadedStep<T> {
        let convert = |micro: MicroBatch<B>| MicroBatch {
            num_samples: micro.num_samples,
            weight: micro.weight,
            batch: turn(micro.batch),
        };
        LoadedStep {
            step_in_epoch: self.step_in_epoch,
            global_num_samples: self.global_num_samples,
            global_weight: self.global_weight,
            micro_batches: self.micro_batches.into_iter().map(convert).collect(),
        }
    }
}

/// Steps of an epoch from `first_step` on. The iterator ends after an error.
#[derive(Debug)]
pub struct Loader<S: Samples> {
    maker: Arc<StepMaker<S>>,
    /// Lanes of the loader. `None` for a thread that the operating system has rejected so far.
    lanes: Vec<Option<Lane<S::Batch>>>,
    next_step: usize,
    end_step: usize,
    stop: Arc<AtomicBool>,
}

/// A thread and the channel of its steps. Lane i of T lanes prepares the steps first + i, first + i
/// + T, …
#[derive(Debug)]
struct Lane<B> {
    steps: Receiver<Result<LoadedStep<B>, DatasetError>>,
    thread: Option<JoinHandle<()>>,
}

impl<S: Samples> Loader<S> {
    /// Starts the threads.
    ///
    /// # Panics
    /// - If the plan was made for another number of samples than `samples` has.
    /// - If `micro_batch_size` is 0, or `prefetch_steps` is 0 though there are threads.
    /// - If `first_step` is beyond the plan's last step.
    pub fn start(samples: Arc<S>, plan: ShardPlan, config: LoaderConfig) -> Self {
        assert_eq!(
            plan.config().num_samples,
            samples.len(),
            "num_samples of plan and data set"
        );
        assert!(
            config.micro_batch_size > 0,
            "micro_batch_size: expected at least 1, got 0"
        );
        let first_step = config.first_step;
        let end_step = plan.num_steps();
        assert!(
            first_step <= end_step,
            "first_step: expected at most {end_step}, got {first_step}"
        );
        let num_lanes = config.num_threads.min(config.prefetch_steps);
        assert!(
            num_lanes > 0 || config.num_threads == 0,
            "prefetch_steps: expected at least 1 with threads, got 0"
        );
        let maker = Arc::new(StepMaker {
            samples,
            plan,
            config,
        });
        let stop = Arc::new(AtomicBool::new(false));
        let lanes = (0..num_lanes).map(|_| None).collect();
        let mut loader = Self {
            maker,
            lanes,
            next_step: first_step,
            end_step,
            stop,
        };
        (0..num_lanes).for_each(|lane| loader.start_lane(lane, first_step + lane));
        loader
    }

    /// Tries to start the thread of a lane, for the lane's steps from `step` on.
    fn start_lane(&mut self, lane: usize, step: usize) {
        let num_lanes = self.lanes.len();
        // A lane holds the step in progress and the steps in its channel. So a channel of capacity
        // c means c + 1 steps ahead. The sum over lanes is `prefetch_steps`.
        let prefetch_steps = self.maker.config.prefetch_steps;
        let share = prefetch_steps / num_lanes + usize::from(lane < prefetch_steps % num_lanes);
        let (sender, steps) = sync_channel(share - 1);
        let maker = Arc::clone(&self.maker);
        let stop = Arc::clone(&self.stop);
        let own_steps = (step..self.end_step).step_by(num_lanes);
        let work = move |sender| run_lane(&maker, &stop, own_steps, &sender);
        let thread = threads::start(&format!("loader {lane}"), sender, work);
        self.lanes[lane] = thread.ok().map(|thread| Lane {
            steps,
            thread: Some(thread),
        });
    }

    /// Prepares a step in the calling thread.
    fn make(&self, step_in_epoch: usize) -> Result<LoadedStep<S::Batch>, DatasetError> {
        let loaded = self.maker.make(step_in_epoch, &self.stop);
        loaded.map(|step| step.expect("only dropping the loader stops a step"))
    }

    fn receive(&mut self, step_in_epoch: usize) -> Result<LoadedStep<S::Batch>, DatasetError> {
        let since_first = step_in_epoch - self.maker.config.first_step;
        let Some(index) = since_first.checked_rem(self.lanes.len()) else {
            return self.make(step_in_epoch);
        };
        if self.lanes[index].is_none() {
            self.start_lane(index, step_in_epoch);
        }
        let Some(lane) = &mut self.lanes[index] else {
            return self.make(step_in_epoch);
        };
        if let Ok(loaded) = lane.steps.recv() {
            return loaded;
        }
        // The sender was dropped before the last step was sent, so the thread has panicked.
        let reason = match lane.thread.take().map(JoinHandle::join) {
            Some(Err(payload)) => panic_text(&*payload),
            _ => "the thread ended early".into(),
        };
        Err(DatasetError::LoaderPanicked {
            step_in_epoch,
            reason,
        })
    }
}

impl<S: Samples> Iterator for Loader<S> {
    type Item = Result<LoadedStep<S::Batch>, DatasetError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.next_step >= self.end_step {
            return None;
        }
        let loaded = self.receive(self.next_step);
        progress::advance(1);
        self.next_step = if loaded.is_ok() {
            self.next_step + 1
        } else {
            self.end_step
        };
        Some(loaded)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        // An error ends the iteration early, so the number of remaining steps is an upper bound.
        let num_left = self.end_step - self.next_step;
        (num_left.min(1), Some(num_left))
    }
}

impl<S: Samples> Drop for Loader<S> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for Lane { steps, thread } in self.lanes.drain(..).flatten() {
            // Without a receiver, a thread that waits to send a step wakes up and ends.
            drop(steps);
            if let Some(thread) = thread {
                // A panic in a step that is no longer needed is ignored.
                let _ = thread.join();
            }
        }
    }
}

/// Prepares a lane's steps until all are done, a step fails, or the loader is dropped.
fn run_lane<S: Samples>(
    maker: &StepMaker<S>,
    stop: &AtomicBool,
    steps: impl Iterator<Item = usize>,
    sender: &SyncSender<Result<LoadedStep<S::Batch>, DatasetError>>,
) {
    for step_in_epoch in steps {
        let Some(loaded) = maker.make(step_in_epoch, stop).transpose() else {
            return;
        };
        let failed = loaded.is_err();
        if sender.send(loaded).is_err() || failed {
            return;
        }
    }
}

fn panic_text(payload: &(dyn Any + Send)) -> String {
    payload
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| payload.downcast_ref::<&str>().map(ToString::to_string))
        .unwrap_or_else(|| "no message".into())
}

/// Preparation of any step of the epoch, shared by all threads.
#[derive(Debug)]
struct StepMaker<S> {
    samples: Arc<S>,
    plan: ShardPlan,
    config: LoaderConfig,
}

impl<S: Samples> StepMaker<S> {
    /// Prepares one step. Returns `None` if it was stopped.
    fn make(
        &self,
        step_in_epoch: usize,
        stop: &AtomicBool,
    ) -> Result<Option<LoadedStep<S::Batch>>, DatasetError> {
        let all: Vec<usize> = self.plan.global_draws(step_in_epoch).collect();
        // Every shard has the number of micro-batches of the fullest shard, so that all shards run
        // the same number of micro-steps.
        let fullest = self.plan.max_shard_samples(all.len());
        let num_micro_batches = fullest.div_ceil(self.config.micro_batch_size);
        let mut micro_batches = Vec::new();
        let mut foreign: Option<S::Batch> = None;
        for shard in self.plan.own_shards() {
            let own = self.plan.step_of(shard, step_in_epoch).draws;
            let mut chunks = own.chunks(self.config.micro_batch_size);
            for _ in 0..num_micro_batches {
                let numbers = chunks.next().unwrap_or_default();
                let batch = match &foreign {
                    _ if !numbers.is_empty() => self.samples.batch(&self.draws(numbers, stop))?,
                    Some(foreign) => foreign.clone(),
                    None => {
                        let batch = self.samples.batch(&self.draws(&all[..1], stop))?;
                        foreign.insert(batch).clone()
                    }
                };
                if stop.load(Ordering::Relaxed) {
                    return Ok(None);
                }
                micro_batches.push(MicroBatch {
                    num_samples: numbers.len(),
                    weight: self.weight(numbers, stop)?,
                    batch,
                });
            }
        }
        Ok(Some(LoadedStep {
            step_in_epoch,
            global_num_samples: all.len(),
            global_weight: self.weight(&all, stop)?,
            micro_batches,
        }))
    }

    fn draws<'a>(&self, numbers: &'a [usize], stop: &'a AtomicBool) -> Draws<'a> {
        let epoch = (self.config.seed, self.config.epoch);
        Draws::new(epoch, self.samples.len(), numbers, stop)
    }

    /// Returns the sum of the weights of these draws.
    fn weight(&self, numbers: &[usize], stop: &AtomicBool) -> Result<f64, DatasetError> {
        let weights = self.draws(numbers, stop).iter().map(|draw| {
            let weight = self.samples.weight(draw);
            if weight >= 0.0 && weight.is_finite() {
                return Ok(weight);
            }
            let expected = format!("0 or more for sample {}", draw.index);
            Err(DatasetError::config("weight", expected, weight))
        });
        weights.sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::ImageShape;
    use crate::images::ImageSamples;
    use crate::shard::ShardConfig;
    use crate::synthetic::{self, SyntheticConfig};
    use crate::threads::REFUSES;

    #[test]
    fn steps_are_the_same_where_threads_are_refused_at_the_start_and_given_later() {
        let shape = ImageShape {
            height: 2,
            width: 2,
            channels: 1,
        };
        let config = SyntheticConfig {
            shape,
            num_classes: 2,
            num_train: 40,
            num_test: 2,
            seed: 1,
        };
        let splits = synthetic::open(&config).unwrap();
        let images = ImageSamples::new(splits.train, splits.normalization);
        let images = Arc::new(images);
        let start = |num_threads| {
            let plan = ShardPlan::new(ShardConfig::new(40, 4)).unwrap();
            let config = LoaderConfig::new(4).with_threads(num_threads);
            Loader::start(Arc::clone(&images), plan, config)
        };
        let expected: Vec<LoadedStep> = start(0).map(Result::unwrap).collect();
        for num_threads in [1, 3] {
            REFUSES.set(true);
            let mut loader = start(num_threads);
            let mut steps: Vec<LoadedStep> = loader.by_ref().take(4).map(Result::unwrap).collect();
            assert!(loader.lanes.iter().all(Option::is_none));
            REFUSES.set(false);
            steps.extend(loader.by_ref().map(Result::unwrap));
            assert_eq!(steps, expected);
            assert!(loader.lanes.iter().all(Option::is_some));
        }
    }
}
