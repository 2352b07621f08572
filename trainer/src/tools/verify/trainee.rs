//! A small network in training by the step that `train` makes, on any device.
//!
//! In: a device, how it computes, what is trained. Out: the loss of each step, the parameters.
//! Invariant: weights and batches are functions of a seed, so that two devices begin with the same bits.

use std::sync::Arc;

use anyhow::Result;
use burn::tensor::Device;
use burn_resnet::ResNet;
use datasets::{LoadedStep, Loader, LoaderConfig, ShapesConfig, ShardConfig, ShardPlan, shapes};
use distributed::{Communicator, communicator::SingleCommunicator};

use crate::config::ComputeSection;
use crate::config::cli::ModelArgs;
use crate::config::{LossScaling, SyncConfig};
use crate::measure::timer::Timer;
use crate::model::family::ModelRequest;
use crate::model::network::resnet;
use crate::step::optimizer::{AdamConfig, OptimizerConfig, SgdConfig};
use crate::step::{StepConfig, StepContext, Stepper};

/// In turn, since a step that is replayed must not keep the rate of the one that was recorded. At these the first losses fall smoothly: at rates that
/// make them jump every rounding is amplified.
const LEARNING_RATES: [f64; 3] = [0.002, 0.004, 0.001];

/// The usual rule, with a weight decay that ten steps show.
pub(super) const SGD: OptimizerConfig = OptimizerConfig::Sgd(SgdConfig {
    momentum: 0.9,
    nesterov: false,
    weight_decay: 1e-1,
    decay_norm_and_bias: true,
});

/// With an epsilon of the size of gradients: a small one makes its first steps follow their signs, and with these their roundings.
pub(super) const ADAMW: OptimizerConfig = OptimizerConfig::AdamW(AdamConfig {
    betas: [0.9, 0.99],
    epsilon: 0.1,
    weight_decay: 1e-1,
    decay_norm_and_bias: true,
});

#[derive(Clone, Copy, Debug)]
pub(super) struct Lesson {
    pub(super) depth: usize,
    pub(super) batch_size: usize,
    /// Different batches, which come in turn.
    pub(super) num_batches: usize,
    /// Images that the last of them has.
    pub(super) last_batch_size: usize,
    pub(super) optimizer: OptimizerConfig,
}

pub(super) struct Trainee {
    stepper: Stepper<ResNet>,
    batches: Vec<LoadedStep>,
    timer: Timer,
    num_steps: u64,
}

impl Trainee {
    /// Trained by one rank.
    pub(super) fn new(lesson: Lesson, compute: &ComputeSection, device: &Device) -> Result<Self> {
        Self::of_rank(lesson, compute, device, Arc::new(SingleCommunicator::new()))
    }

    /// Trained by several ranks, of which this is one, with norm statistics over all.
    pub(super) fn of_rank(
        lesson: Lesson,
        compute: &ComputeSection,
        device: &Device,
        communicator: Arc<dyn Communicator>,
    ) -> Result<Self> {
        let num_samples = lesson.batch_size * (lesson.num_batches - 1) + lesson.last_batch_size;
        let data = shapes::open(&ShapesConfig {
            num_train: num_samples,
            num_test: 1,
            seed: 7,
        })?;
        let plan = ShardPlan::new(ShardConfig {
            seed: 7,
            shuffle: true,
            shard_index: communicator.rank(),
            num_shards: communicator.world_size(),
            ..ShardConfig::new(num_samples, lesson.batch_size)
        })?;
        let micro_batch_size = lesson.batch_size.div_ceil(communicator.world_size());
        let how = LoaderConfig {
            num_threads: 0,
            ..LoaderConfig::new(micro_batch_size, data.normalization)
        };
        let model = ModelArgs::resnet(lesson.depth);
        let training_device = device.clone().autodiff();
        let request = ModelRequest {
            in_channels: data.train.image_shape().channels,
            seed: 7,
            ..ModelRequest::new(data.train.class_names().len(), compute, &training_device)
        };
        let sync = SyncConfig {
            update: compute.device.update(),
            ..SyncConfig::default()
        };
        let config = StepConfig {
            loss_scale: LossScaling::of(compute.dtype()),
            sync_batch_norm: communicator.world_size() > 1,
            ..StepConfig::new(lesson.optimizer, sync)
        };
        let model = resnet(&model, &request)?;
        Ok(Self {
            stepper: Stepper::new(model, config, communicator, device)?,
            batches: Loader::start(data.train, plan, how).collect::<Result<_, _>>()?,
            timer: Timer::default(),
            num_steps: 0,
        })
    }

    /// Makes a step; the mean loss of this rank's samples.
    pub(super) fn step(&mut self) -> Result<f32> {
        let loaded = self.batches[self.num_steps as usize % self.batches.len()].clone();
        let loaded = loaded.map(|batch| batch.upload(self.stepper.device()));
        let learning_rate = LEARNING_RATES[self.num_steps as usize % LEARNING_RATES.len()];
        let context = StepContext {
            step: self.num_steps,
            learning_rate,
            ..StepContext::default()
        };
        let end = self.stepper.step(context, loaded, &self.timer)?;
        let scores = self
            .stepper
            .wait(&self.timer)?
            .or(end.scores)
            .unwrap_or_default();
        self.num_steps += 1;
        Ok(scores.loss_mean() as f32)
    }

    /// Gives all full batches the images of the first one, as a device would that brings none of its own.
    #[cfg(all(test, feature = "flex"))]
    pub(super) fn show_one_batch(&mut self) {
        let first = self.batches[0].micro_batches[0].clone();
        let others = self
            .batches
            .iter_mut()
            .flat_map(|step| &mut step.micro_batches);
        others
            .filter(|batch| batch.labels.len() == first.labels.len())
            .for_each(|batch| batch.pixels = first.pixels.clone());
    }

    /// All parameters, flat in module order.
    pub(super) fn parameters(&self) -> Vec<f32> {
        self.stepper.parameters().into_owned()
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::super::reference::reference;
    use super::*;

    #[test]
    fn an_epoch_ends_with_the_short_batch_and_training_goes_on_after_it() -> Result<()> {
        let (device, compute) =
            reference(&ComputeSection::default()).expect("this test is built with the reference");
        let lesson = Lesson {
            depth: 8,
            batch_size: 4,
            num_batches: 3,
            last_batch_size: 3,
            optimizer: SGD,
        };
        let mut trainee = Trainee::new(lesson, &compute, &device)?;
        let sizes: Vec<_> = trainee
            .batches
            .iter()
            .map(|step| step.global_num_samples)
            .collect();
        assert_eq!(sizes, [4, 4, 3]);
        for _ in 0..4 {
            assert!(trainee.step()?.is_finite());
        }
        Ok(())
    }
}
