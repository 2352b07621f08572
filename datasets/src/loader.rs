//! Iterator over the steps of an epoch, with threads that read ahead.
//!
//! In: a data set, a [`ShardPlan`], augmentation and normalisation. Out: [`LoadedStep`]s in step
//! order, with normalised or raw pixels.
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

use crate::augment::{Augment, ImageShift};
use crate::batch::{HostBatch, MixedLabels, Pixels, RawPixels};
use crate::dataset::{ImageDataset, ImageShape, Normalization};
use crate::error::DatasetError;
use crate::mix::{Mix, Mixture};
use crate::normalize::NormalizationTable;
use crate::progress;
use crate::shard::{ShardPlan, StepShard};
use crate::threads;

/// Settings that convert a shard's samples to batches.
#[derive(Clone, Debug)]
pub struct LoaderConfig {
    /// Maximum number of samples in a micro-batch.
    pub micro_batch_size: usize,
    /// Augmentation of images. `None` for testing.
    pub augment: Augment,
    /// Mixing of two images. No mixing for testing or for raw pixels.
    pub mix: Mix,
    /// Shape of the images, if it differs from the data set's. Only for resized crops.
    pub image_shape: Option<ImageShape>,
    /// Mean and standard deviation of each channel.
    pub normalization: Normalization,
    /// True if the device crops, flips and normalises the pixels.
    pub raw: bool,
    /// Seed of the augmentation.
    pub seed: u64,
    /// Epoch of the augmentation, from 0.
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
    /// Returns the defaults: no augmentation, no mixing, normalised pixels, seed and epoch 0, one
    /// thread, two steps ahead, from the first step.
    pub fn new(micro_batch_size: usize, normalization: Normalization) -> Self {
        Self {
            micro_batch_size,
            augment: Augment::None,
            mix: Mix::default(),
            image_shape: None,
            normalization,
            raw: false,
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
    /// Micro-batches of the reader's shards, shard by shard. Every shard has the same number of
    /// micro-batches. In the last step some may be empty.
    pub micro_batches: Vec<B>,
}

impl<B> LoadedStep<B> {
    /// Returns the step with each micro-batch converted by `turn`, in order.
    pub fn map<T>(self, turn: impl FnMut(B) -> T) -> LoadedStep<T> {
        let Self {
            step_in_epoch,
            global_num_samples,
            micro_batches,
        } = self;
        LoadedStep {
            step_in_epoch,
            global_num_samples,
            micro_batches: micro_batches.into_iter().map(turn).collect(),
        }
    }
}

/// Steps of an epoch from `first_step` on. The iterator ends after an error.
#[derive(Debug)]
pub struct Loader {
    maker: Arc<StepMaker>,
    /// Lanes of the loader. `None` for a thread that the operating system has rejected so far.
    lanes: Vec<Option<Lane>>,
    next_step: usize,
    end_step: usize,
    stop: Arc<AtomicBool>,
}

/// A thread and the channel of its steps. Lane i of T lanes prepares the steps first + i, first + i
/// + T, …
#[derive(Debug)]
struct Lane {
    steps: Receiver<Result<LoadedStep, DatasetError>>,
    thread: Option<JoinHandle<()>>,
}

impl Loader {
    /// Starts the threads.
    ///
    /// # Panics
    /// - If raw pixels are to be mixed.
    /// - If the plan was made for another number of samples than `dataset` has.
    /// - If the normalisation is for another number of channels.
    /// - If `image_shape` differs from the data set's without resized crops.
    /// - If `micro_batch_size` is 0, or `prefetch_steps` is 0 though there are threads.
    /// - If `first_step` is beyond the plan's last step.
    pub fn start(dataset: Arc<dyn ImageDataset>, plan: ShardPlan, config: LoaderConfig) -> Self {
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
        let maker = Arc::new(StepMaker::new(dataset, plan, config));
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
    fn make(&self, step_in_epoch: usize) -> Result<LoadedStep, DatasetError> {
        let loaded = self.maker.make(step_in_epoch, &self.stop);
        loaded.map(|step| step.expect("only dropping the loader stops a step"))
    }

    fn receive(&mut self, step_in_epoch: usize) -> Result<LoadedStep, DatasetError> {
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

impl Iterator for Loader {
    type Item = Result<LoadedStep, DatasetError>;

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

impl Drop for Loader {
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
fn run_lane(
    maker: &StepMaker,
    stop: &AtomicBool,
    steps: impl Iterator<Item = usize>,
    sender: &SyncSender<Result<LoadedStep, DatasetError>>,
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
struct StepMaker {
    dataset: Arc<dyn ImageDataset>,
    plan: ShardPlan,
    table: Arc<NormalizationTable>,
    shape: ImageShape,
    config: LoaderConfig,
}

impl std::fmt::Debug for StepMaker {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("StepMaker")
            .field("dataset", &self.dataset)
            .field("shard", self.plan.config())
            .field("config", &self.config)
            .finish()
    }
}

impl StepMaker {
    fn new(dataset: Arc<dyn ImageDataset>, plan: ShardPlan, config: LoaderConfig) -> Self {
        let table = Arc::new(NormalizationTable::new(&config.normalization));
        assert_eq!(
            plan.config().num_samples,
            dataset.len(),
            "num_samples of plan and data set"
        );
        assert_eq!(
            table.num_channels(),
            dataset.image_shape().channels,
            "channels of normalisation and data set"
        );
        assert!(
            config.micro_batch_size > 0,
            "micro_batch_size: expected at least 1, got 0"
        );
        assert!(
            !config.raw || config.mix == Mix::default(),
            "mix: expected normalised pixels, got raw ones"
        );
        let shape = config.image_shape.unwrap_or(dataset.image_shape());
        let is_of_crops = matches!(config.augment, Augment::ResizedCrop(_) | Augment::Rand(..))
            && shape.channels == dataset.image_shape().channels;
        assert!(
            is_of_crops || shape == dataset.image_shape(),
            "image_shape: expected that of {dataset:?}, got {shape:?}"
        );
        Self {
            dataset,
            plan,
            table,
            shape,
            config,
        }
    }

    /// Prepares one step. Returns `None` if it was stopped.
    fn make(
        &self,
        step_in_epoch: usize,
        stop: &AtomicBool,
    ) -> Result<Option<LoadedStep>, DatasetError> {
        let mut micro_batches = Vec::new();
        let mut num_global = 0;
        for shard in self.plan.own_shards() {
            let StepShard {
                global_num_samples,
                draws,
                ..
            } = self.plan.step_of(shard, step_in_epoch);
            num_global = global_num_samples;
            // Every shard has the number of micro-batches of the fullest shard, so that all shards
            // run the same number of micro-steps.
            let fullest = self.plan.max_shard_samples(global_num_samples);
            let mut chunks = draws.chunks(self.config.micro_batch_size);
            for _ in 0..fullest.div_ceil(self.config.micro_batch_size) {
                match self.make_batch(chunks.next().unwrap_or_default(), stop)? {
                    Some(batch) => micro_batches.push(batch),
                    None => return Ok(None),
                }
            }
        }
        Ok(Some(LoadedStep {
            step_in_epoch,
            global_num_samples: num_global,
            micro_batches,
        }))
    }

    /// Returns a micro-batch of samples with these [draws](StepShard::draws).
    fn make_batch(
        &self,
        draws: &[usize],
        stop: &AtomicBool,
    ) -> Result<Option<HostBatch>, DatasetError> {
        let shape = self.shape;
        let len = shape.num_values();
        let mixtures = self.mixtures(draws);
        let mut pixels = match self.config.raw {
            true => {
                let shifts = draws.iter().map(|draw| self.shift(*draw)).collect();
                Pixels::Raw(RawPixels::black(shifts, shape, Arc::clone(&self.table)))
            }
            false => Pixels::Normalised(vec![0.0; draws.len() * len]),
        };
        let mut bytes = vec![0; len];
        let mut other = vec![0.0; if mixtures.is_empty() { 0 } else { len }];
        for (position, draw) in draws.iter().enumerate() {
            if stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            let values = position * len..(position + 1) * len;
            match &mut pixels {
                Pixels::Raw(raw) => self.read(*draw, &mut raw.bytes[values])?,
                Pixels::Normalised(pixels) => {
                    let image = &mut pixels[values];
                    self.read_normalised(*draw, &mut bytes, image)?;
                    if let Some(mixture) = mixtures.get(position) {
                        self.read_normalised(mixture.other, &mut bytes, &mut other)?;
                        mixture.apply(image, &other, shape);
                    }
                }
            }
        }
        let indices: Vec<usize> = draws.iter().map(|draw| draw % self.dataset.len()).collect();
        let labels = indices.iter().map(|index| self.label(*index)).collect();
        let mixed = (!mixtures.is_empty()).then(|| MixedLabels {
            labels: mixtures
                .iter()
                .map(|mixture| self.label(mixture.other))
                .collect(),
            shares: mixtures.iter().map(|mixture| mixture.share).collect(),
        });
        Ok(Some(HostBatch {
            pixels,
            labels,
            mixed,
            indices,
            shape,
        }))
    }

    /// Returns the mixtures of the samples. Empty without mixing.
    fn mixtures(&self, draws: &[usize]) -> Vec<Mixture> {
        let LoaderConfig {
            mix, seed, epoch, ..
        } = self.config;
        let num_samples = self.dataset.len();
        draws
            .iter()
            .filter_map(|draw| mix.draw(seed, epoch, *draw, num_samples, self.shape))
            .collect()
    }

    /// Reads one image, cropped, flipped and normalised. `bytes` is scratch memory.
    fn read_normalised(
        &self,
        draw: usize,
        bytes: &mut [u8],
        output: &mut [f32],
    ) -> Result<(), DatasetError> {
        self.read(draw, bytes)?;
        self.table
            .apply(bytes, self.shape, self.shift(draw), output);
        Ok(())
    }

    /// Reads one image with its changes of pixel values.
    fn read(&self, draw: usize, bytes: &mut [u8]) -> Result<(), DatasetError> {
        let LoaderConfig {
            augment,
            seed,
            epoch,
            ..
        } = self.config;
        augment.read(
            (seed, epoch, draw),
            &*self.dataset,
            self.shape,
            &self.config.normalization,
            bytes,
        )
    }

    fn shift(&self, draw: usize) -> ImageShift {
        self.config
            .augment
            .draw(self.config.seed, self.config.epoch, draw)
    }

    fn label(&self, index: usize) -> u32 {
        self.dataset.label(index) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
        let start = |num_threads| {
            let plan = ShardPlan::new(ShardConfig::new(40, 4)).unwrap();
            let config =
                LoaderConfig::new(4, splits.normalization.clone()).with_threads(num_threads);
            Loader::start(Arc::clone(&splits.train), plan, config)
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
