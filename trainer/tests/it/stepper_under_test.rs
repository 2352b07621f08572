//! A rank that runs single steps, so that a test can inspect the state between steps.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use burn::tensor::Device;
use burn_resnet::{ResNet, ResNetConfig};
use datasets::{
    Augment, ImageSamples, LoadedStep, Loader, LoaderConfig, Pixels, ShapesDataset, ShardConfig,
    ShardPlan, Upload,
};
use distributed::Communicator;
use distributed::replica::{ParameterLayout, read};
use trainer::config::cli::ModelArgs;
use trainer::config::{AdamConfig, OptimizerChoice, SgdConfig, SyncSection};
use trainer::measure::timer::Timer;
use trainer::model::ImageClassifier;
use trainer::model::family::{ModelFamily, ModelRequest};
use trainer::model::loss::{CrossEntropy, Loss};
use trainer::step::OptimizerState;
use trainer::step::{StepConfig, StepContext, StepEnd, StepResults, Stepper};
use trainer::task::Classification;

/// Momentum and weight decay.
pub(crate) const SGD: SgdConfig = SgdConfig {
    momentum: 0.9,
    nesterov: false,
    weight_decay: 1e-4,
    decay_norm_and_bias: Some(true),
};

const ADAM: AdamConfig = AdamConfig {
    beta1: 0.9,
    beta2: 0.999,
    epsilon: 1e-6,
    weight_decay: 0.01,
    decay_norm_and_bias: Some(false),
};

/// The optimizers other than SGD.
pub(crate) const OTHER_OPTIMIZERS: [OptimizerChoice; 3] = [
    OptimizerChoice::Adamw(ADAM),
    OptimizerChoice::Lars {
        sgd: SgdConfig {
            decay_norm_and_bias: Some(false),
            ..SGD
        },
        trust_coefficient: 0.1,
    },
    OptimizerChoice::Lamb(ADAM),
];

/// Returns a configuration with SGD and default options.
pub(crate) fn step_config() -> StepConfig {
    StepConfig::new(OptimizerChoice::Sgd(SGD), SyncSection::default())
}

/// Returns a small network with normalisation, with the same weights in each call.
pub(crate) fn resnet8(device: &Device) -> ResNet {
    ResNetConfig::cifar(8)
        .unwrap()
        .init(3, &device.clone().autodiff())
}

/// Returns a one-rank shard of the first epoch with this number of samples.
pub(crate) fn one_shard(num_samples: usize, global_batch_size: usize) -> ShardConfig {
    ShardConfig {
        seed: 5,
        shuffle: true,
        ..ShardConfig::new(num_samples, global_batch_size)
    }
}

/// Returns all steps of a shard of the shapes data set.
pub(crate) fn steps(
    shard: ShardConfig,
    micro_batch_size: usize,
    augment: Augment,
) -> Vec<LoadedStep> {
    let data = ShapesDataset::new(shard.num_samples, 10, 1).unwrap();
    let images = ImageSamples {
        augment,
        ..ImageSamples::new(data.train, data.normalization)
    };
    let how = LoaderConfig::new(micro_batch_size);
    Loader::start(Arc::new(images), ShardPlan::new(shard).unwrap(), how)
        .map(Result::unwrap)
        .collect()
}

/// Returns the step with this value in a pixel of its last micro-batch.
pub(crate) fn with_bad_pixel(mut loaded: LoadedStep, value: f32) -> LoadedStep {
    let Some(Pixels::Normalised(pixels)) = loaded
        .micro_batches
        .last_mut()
        .map(|micro| &mut micro.batch.pixels)
    else {
        panic!("expected normalised pixels");
    };
    pixels[100] = value;
    loaded
}

/// All values that a step changes.
pub(crate) type State = ([Vec<u32>; 3], Option<u64>);

/// A family of models that are made elsewhere.
pub(crate) struct Bare<M>(PhantomData<fn() -> M>);

impl<M: ImageClassifier + 'static> ModelFamily for Bare<M> {
    const NAME: &'static str = "bare";
    type Args = ModelArgs;
    type Model = M;

    fn build(_: &ModelArgs, _: &ModelRequest<'_>) -> Result<M> {
        bail!("bare: expected a model that the test makes")
    }
}

type TaskOf<M> = Classification<Bare<M>>;

/// A stepper whose steps all have the same learning rate.
pub(crate) struct StepperUnderTest<M: ImageClassifier + 'static = ResNet> {
    task: Arc<TaskOf<M>>,
    stepper: Stepper<M>,
}

impl<M: ImageClassifier + 'static> StepperUnderTest<M> {
    /// Returns a stepper with the cross entropy.
    pub(crate) fn new(
        model: M,
        config: StepConfig,
        communicator: Arc<dyn Communicator>,
        device: &Device,
    ) -> Self {
        let loss = Arc::new(CrossEntropy::default());
        Self::with_loss(loss, model, config, communicator, device)
    }

    pub(crate) fn with_loss(
        loss: Arc<dyn Loss>,
        model: M,
        config: StepConfig,
        communicator: Arc<dyn Communicator>,
        device: &Device,
    ) -> Self {
        let task = Arc::new(Classification::with(loss, Vec::new()));
        let stepper = Stepper::new(&task, model, config, communicator, device).unwrap();
        Self { task, stepper }
    }

    /// Runs the step with this number.
    pub(crate) fn step(&mut self, step: usize, loaded: LoadedStep) -> Result<StepEnd> {
        self.step_at(0.02, step, loaded)
    }

    /// Runs the step at another learning rate.
    pub(crate) fn step_at(
        &mut self,
        learning_rate: f64,
        step: usize,
        loaded: LoadedStep,
    ) -> Result<StepEnd> {
        let context = StepContext {
            step: step as u64,
            learning_rate,
            ..StepContext::default()
        };
        let loaded = loaded.map(|batch| batch.upload(self.device()));
        let timer = Timer::default();
        self.stepper.step(&self.task, context, loaded, &timer)
    }

    pub(crate) fn wait(&mut self) -> Result<Option<StepResults>> {
        self.stepper.wait(&Timer::default())
    }

    /// Runs the step and waits for its results.
    pub(crate) fn complete(&mut self, step: usize, loaded: LoadedStep) -> Result<StepResults> {
        let end = self.step(step, loaded)?;
        let results = self.wait()?.or(end.results);
        results.context("results: expected those of the step")
    }

    pub(crate) fn norm_statistics(&self) -> Vec<f32> {
        let model = self.model().valid();
        read(&model, &ParameterLayout::state(&model))
    }

    /// Returns all values that a step changes: the bits of parameters, moments and norm statistics,
    /// so that NaN equals NaN, and the number of updates if the rule uses it.
    pub(crate) fn state(&self) -> State {
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect();
        let OptimizerState {
            moments,
            num_updates,
            ..
        } = self.optimizer_state();
        (
            [
                bits(&self.parameters()),
                bits(&moments),
                bits(&self.norm_statistics()),
            ],
            num_updates,
        )
    }
}

impl<M: ImageClassifier + 'static> Deref for StepperUnderTest<M> {
    type Target = Stepper<M>;

    fn deref(&self) -> &Self::Target {
        &self.stepper
    }
}

impl<M: ImageClassifier + 'static> DerefMut for StepperUnderTest<M> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.stepper
    }
}
