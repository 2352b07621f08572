//! A task: the data, the model, the loss and the metrics of a program.
//!
//! In: flags. Out: batches, a model, and for each batch a summed loss and what the metrics need of
//! it. [`Classification`] is the task of the built-in image classifiers.
//! Invariant: losses and metrics are sums. They are added over micro-batches, steps and ranks, and
//! divided once at the end.

mod classification;
mod input;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::AddAssign;
use std::sync::{Arc, PoisonError};

use anyhow::{Context, Result, ensure};
use burn::module::Module;
use burn::optim::ModuleOptimizer;
use burn::tensor::{Device, Tensor, TensorData};
use clap::Args;
use datasets::{MicroBatch, OnDevice, Picture, Upload};
use distributed::Communicator;
use distributed::replica::ParameterLayout;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::config::{
    BenchConfig, ComputeSection, ConfigError, EvalConfig, Family, ModelOption, TrainConfig, decided,
};
use crate::measure::metrics::ScoreSums;
use crate::measure::report::Reporter;
use crate::model::family::DRAWING;
use crate::model::floats;

pub use crate::model::family::ModelRequest;
pub use classification::Classification;
pub use datasets::{Arrays, DatasetError, Draw, Draws, Samples, Splits, Stream};
pub use input::ModelInput;

/// A batch of a task on a device.
pub type BatchOf<T> = <<<T as Task>::Samples as Samples>::Batch as Upload>::OnDevice;

/// The subject of a program: data, model, loss and metrics.
/// [`task_program`](crate::commands::program::task_program) is the program of one
/// task.
///
/// A step makes the exact mean of the losses of its samples, each with its
/// [weight](Samples::weight), however the samples are distributed over ranks.
pub trait Task: Default + Debug + Send + Sync + 'static {
    /// Name in checkpoints: letters, digits, `-`, `_` and `.`. Only programs of the same task read
    /// these checkpoints.
    const NAME: &'static str;

    /// General options that the model supports; the program rejects the others. Default: the
    /// options of computation, which apply to layers of crate `layers`.
    const OPTIONS: &'static [ModelOption] = ModelOption::OF_LAYERS;

    /// True if the general options of labelled images and their losses apply, such as `--dataset`.
    /// The program of another task rejects them. Default: false.
    const HAS_IMAGES: bool = false;

    /// Flags of the task, each an `Option`. A flag that was not typed keeps the value of the TOML
    /// file. In section `[model]` of the file, each key is the name of a flag (`#[serde(default,
    /// deny_unknown_fields, rename_all = "kebab-case")]`).
    type Args: Args + Default + Debug + Serialize + DeserializeOwned;

    /// The module to train.
    type Model: Module + 'static;

    /// The samples of a split.
    type Samples: Samples;

    /// Results of a forward pass, such as `Tensor<3>`.
    type Outputs;

    /// Applies defaults to the flags that were not typed. Default: nothing.
    ///
    /// # Errors
    /// A [`ConfigError`] that names the flag, if there is no such model.
    fn fill(_args: &mut Self::Args) -> Result<(), ConfigError> {
        Ok(())
    }

    /// Returns the name of a model in run directories and reports. Default: the name of the task.
    fn name(_args: &Self::Args) -> String {
        Self::NAME.to_owned()
    }

    /// Opens the data. There is a val or a test split besides train.
    /// Collective: all ranks.
    ///
    /// # Errors
    /// If the data cannot be opened.
    fn open(args: &Self::Args, opening: &Opening<'_>) -> Result<Splits<Self::Samples>>;

    /// Opens only the split with this name, for `eval`. `None` if there is no such split. Default:
    /// opens all.
    /// Collective: all ranks.
    ///
    /// # Errors
    /// Same as [`open`](Self::open).
    fn open_split(
        args: &Self::Args,
        name: &str,
        _input: Option<&ModelInput>,
        opening: &Opening<'_>,
    ) -> Result<Option<Arc<Self::Samples>>> {
        let splits = Self::open(args, opening)?;
        let split = datasets::Split::of_name(name);
        Ok(split.and_then(|split| splits.get(split)).cloned())
    }

    /// Returns the task on these data. Default: `Self::default()`.
    ///
    /// # Errors
    /// If flags and data contradict each other.
    fn new(_args: &Self::Args, _setup: &Setup<'_, Self::Samples>) -> Result<Self> {
        Ok(Self::default())
    }

    /// Returns the request for a model of these data, with seed 0. Default: no classes, channels
    /// and image sizes.
    fn request<'a>(&'a self, compute: &'a ComputeSection, device: &'a Device) -> ModelRequest<'a> {
        ModelRequest {
            in_channels: 0,
            image_sizes: &[],
            ..ModelRequest::new(0, compute, device)
        }
    }

    /// Returns the model with its initial weights, from flags with defaults applied.
    ///
    /// # Errors
    /// If there is no such model.
    fn build(&self, args: &Self::Args, request: &ModelRequest<'_>) -> Result<Self::Model>;

    /// Returns the number of values of the model, if known without making the model. A weights file
    /// with fewer bytes is rejected before memory is allocated. Default: `None`.
    ///
    /// # Errors
    /// If there is no such model.
    fn num_values(&self, _args: &Self::Args, _request: &ModelRequest<'_>) -> Result<Option<u64>> {
        Ok(None)
    }

    /// Returns the optimizer of `--optimizer custom`. It updates at the learning rate of the
    /// schedule. Default: `None`.
    fn optimizer(_args: &Self::Args) -> Option<ModuleOptimizer> {
        None
    }

    /// Runs the model on a batch. With `--batch-norm sync`, a rank without samples runs it on a
    /// sample of another rank, whose outputs do not count.
    ///
    /// # Errors
    /// If the model does not fit the batch.
    fn forward(&self, model: &Self::Model, batch: &BatchOf<Self>) -> Result<Self::Outputs>;

    /// Returns the loss of a batch, summed and not averaged, for differentiation. A sample of
    /// [weight](Samples::weight) w adds w losses, such as those of w tokens. Sums of 16 bits are
    /// inexact: cast the outputs to f32 first.
    ///
    /// # Shapes
    /// Returns `[1]`.
    fn loss_sum(&self, outputs: &Self::Outputs, batch: &BatchOf<Self>) -> Tensor<1>;

    /// Returns the loss that evaluations report. Default: the training loss.
    ///
    /// # Shapes
    /// Returns `[1]`, or parts of the sum, which are added in f64.
    fn test_loss_sum(&self, outputs: &Self::Outputs, batch: &BatchOf<Self>) -> Tensor<1> {
        self.loss_sum(outputs, batch)
    }

    /// Returns the metrics besides the loss. Default: none.
    fn metrics(&self) -> Vec<Arc<dyn TaskMetric<Self>>> {
        Vec::new()
    }

    /// Returns the figure that chooses the best epoch, unless `--monitor` names another. Default:
    /// the loss.
    fn goal(&self) -> Goal {
        Goal::min("loss")
    }

    /// Returns true if all layers of the model belong to crate `layers`. Such layers synchronise
    /// norm statistics and hand over each gradient during the backward pass. Gradients of other
    /// layers are read after the pass. Default: false.
    fn supports_pass_context(&self, _model: &Self::Model) -> bool {
        false
    }

    /// Returns true if a step performs the same operations for every batch of one shape: it draws
    /// no random numbers and does not branch on values. A GPU may then capture a step and replay
    /// it. Default: false.
    fn is_recordable(&self, _model: &Self::Model) -> bool {
        false
    }

    /// Returns the figures by which `goal` and `--monitor` may rank epochs, each with true if lower
    /// is better, besides the loss. Default: those of [`metrics`](Self::metrics).
    fn ranked_figures(&self) -> BTreeMap<String, bool> {
        let metrics = self.metrics();
        let named = metrics
            .iter()
            .map(|metric| (metric.name(), metric.lower_is_better()));
        named.collect()
    }

    /// Returns the tensors of a batch that [`score`](Self::score) needs in host memory. Default:
    /// the sums of [`metrics`](Self::metrics).
    fn to_read(&self, outputs: &Self::Outputs, batch: &BatchOf<Self>) -> Vec<Tensor<1>> {
        let metrics = self.metrics();
        let sums = metrics.iter().map(|metric| metric.sums(outputs, batch));
        sums.collect()
    }

    /// Adds a batch to the scores; `read` has the values of [`to_read`](Self::to_read), `labels` those
    /// of the batch. Default: the sums of [`metrics`](Self::metrics).
    fn score(&self, read: &[Vec<f32>], _labels: &[u32], scores: &mut Scores) {
        for (metric, values) in self.metrics().iter().zip(read) {
            for (index, value) in values.iter().enumerate() {
                let value = f64::from(*value);
                scores.sums.add_to(&metric.name(), index, value);
            }
        }
    }

    /// Returns the values of the metrics that `sums` has. Default: those of
    /// [`metrics`](Self::metrics).
    fn figures(&self, sums: &ScoreSums) -> BTreeMap<String, f64> {
        let mut figures = BTreeMap::new();
        for metric in self.metrics() {
            let name = metric.name();
            let values = sums.of_metric(&name);
            if !values.is_empty() {
                figures.insert(name, metric.value(&values, sums.num_samples as f64));
            }
        }
        figures
    }

    /// Describes the input of a model trained on `train`, for its use without the data;
    /// `evaluated` is the split of evaluations. Default: `None`.
    fn input(_train: &Self::Samples, _evaluated: &Self::Samples) -> Option<ModelInput> {
        None
    }

    /// Returns further lines for the head of the log, by name. Default: none.
    fn facts(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// Describes the samples of an epoch, for the log if the text differs from that of the epoch
    /// before. Default: `None`.
    fn note_of_epoch(_samples: &Self::Samples, _epoch: u64) -> Option<String> {
        None
    }

    /// Returns a picture of a batch for TensorBoard. Default: `None`.
    fn picture(_samples: &Self::Samples, _batch: &BatchOf<Self>) -> Option<Picture> {
        None
    }
}

/// A metric besides the loss. It is printed, and written to `metrics.jsonl`.
///
/// Ranks exchange sums, so a metric is a function of sums over samples, such as hits and counts.
pub trait TaskMetric<T: Task>: Debug + Send + Sync {
    /// Returns the name in records.
    fn name(&self) -> String;

    /// Returns the sums of a batch, in training and in evaluations. They are read in f32, which
    /// holds counts up to 2^24, and added in f64.
    ///
    /// # Shapes
    /// Returns `[S]`, the same S for every batch.
    fn sums(&self, outputs: &T::Outputs, batch: &BatchOf<T>) -> Tensor<1>;

    /// Returns the value of the metric, of the sums over all batches of this number of samples.
    fn value(&self, sums: &[f64], num_samples: f64) -> f64;

    /// Returns true if a lower value is better, for `--monitor`. Default: false.
    fn lower_is_better(&self) -> bool {
        false
    }
}

/// The figure that ranks epochs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Goal {
    /// `loss`, or the name of a metric.
    pub figure: String,
    /// True if the lowest value is the best.
    pub lower_is_better: bool,
}

impl Goal {
    /// Ranks the lowest value best.
    pub fn min(figure: &str) -> Self {
        Self {
            figure: figure.to_owned(),
            lower_is_better: true,
        }
    }

    /// Ranks the highest value best.
    pub fn max(figure: &str) -> Self {
        Self {
            figure: figure.to_owned(),
            lower_is_better: false,
        }
    }
}

/// Flags of a task that has none.
#[derive(Clone, Copy, Debug, Default, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoArgs {}

/// The scores of some batches.
#[derive(Clone, Debug, Default)]
pub struct Scores {
    /// Sums of loss and metrics.
    pub sums: ScoreSums,
    /// Number of samples of each (label, answer); `Some` in an evaluation.
    pub answers: Option<BTreeMap<(u32, u32), u64>>,
}

impl AddAssign for Scores {
    fn add_assign(&mut self, other: Self) {
        self.sums += other.sums;
        for (place, count) in other.answers.into_iter().flatten() {
            *self
                .answers
                .get_or_insert_default()
                .entry(place)
                .or_default() += count;
        }
    }
}

/// The results of a pass that a device may still be computing.
#[derive(Debug)]
pub struct UnreadPass {
    read: Vec<TensorData>,
    loss_sum: TensorData,
    size: PassSize,
}

/// The samples of a pass, as far as scores need them.
#[derive(Clone, Debug)]
pub struct PassSize {
    /// Number of samples.
    pub num_samples: usize,
    /// Sum of their weights.
    pub weight: f64,
    /// [Labels](OnDevice::labels) of the batch.
    pub labels: Vec<u32>,
}

impl PassSize {
    /// Returns the size of a pass over this micro-batch.
    pub fn of<B: OnDevice>(micro: &MicroBatch<B>) -> Self {
        Self {
            num_samples: micro.num_samples,
            weight: micro.weight,
            labels: micro.batch.labels(),
        }
    }
}

impl UnreadPass {
    /// Starts the computation on the device without waiting for a GPU. burn copies the results when
    /// they are read. All tensors are detached; `read` is that of [`Task::to_read`].
    pub fn new(read: Vec<Tensor<1>>, loss_sum: Tensor<1>, size: PassSize) -> Self {
        Self {
            read: read.into_iter().map(Tensor::into_data).collect(),
            loss_sum: loss_sum.into_data(),
            size,
        }
    }

    /// Waits for the results and adds them to `scores`.
    ///
    /// # Errors
    /// If the results cannot be read.
    pub fn add_to<T: Task>(self, task: &T, scores: &mut Scores) -> Result<()> {
        let read: Vec<Vec<f32>> = self.read.into_iter().map(floats).collect::<Result<_>>()?;
        let losses = floats(self.loss_sum)?;
        scores.sums += ScoreSums {
            loss_sum: losses.into_iter().map(f64::from).sum(),
            num_samples: self.size.num_samples as u64,
            weight: self.size.weight,
            metrics: BTreeMap::new(),
        };
        task.score(&read, &self.size.labels, scores);
        Ok(())
    }
}

/// The purpose of opened data.
#[derive(Clone, Copy, Debug)]
pub enum Purpose<'a> {
    /// Training.
    Train(&'a TrainConfig),
    /// Evaluation of saved weights.
    Eval(&'a EvalConfig),
    /// Measurement of steps.
    Bench(&'a BenchConfig),
}

/// The ranks that open data, and their purpose.
#[derive(Clone, Copy)]
pub struct Opening<'a> {
    /// The use of the data.
    pub purpose: Purpose<'a>,
    /// All ranks.
    pub communicator: &'a dyn Communicator,
    /// Takes notes and warnings.
    pub reporter: &'a Reporter,
}

/// The facts from which a task is made.
#[derive(Clone, Copy, Debug)]
pub struct Setup<'a, S> {
    /// The use of the task.
    pub purpose: Purpose<'a>,
    /// The training samples; in an evaluation those to evaluate.
    pub samples: &'a S,
    /// Input of the saved model, in an evaluation of a checkpoint.
    pub input: Option<&'a ModelInput>,
    /// Device of the tensors, without autodiff.
    pub device: &'a Device,
}

impl Family {
    /// Returns the facts of `T` that a configuration needs.
    pub fn of<T: Task>() -> Self {
        Self {
            name: T::NAME,
            options: T::OPTIONS,
            has_images: T::HAS_IMAGES,
            decide: |flags| decided::<T::Args>(flags, T::fill, T::name),
        }
    }
}

/// Returns the model with its weights drawn.
///
/// # Errors
/// If there is no such model, or two of its modules share a parameter.
pub fn build<T: Task>(task: &T, args: &T::Args, request: &ModelRequest<'_>) -> Result<T::Model> {
    let _turn = DRAWING.lock().unwrap_or_else(PoisonError::into_inner);
    request.device.seed(request.seed);
    let model = task.build(args, request)?;
    // burn draws a parameter at its first read: here, in module order.
    let layout = ParameterLayout::new(&model);
    ParameterLayout::state(&model);
    layout.expect_unshared().context("model")?;
    Ok(model)
}

/// Returns the model for a weights file of `num_bytes` bytes. Allocates no memory for a model that
/// exceeds the file.
///
/// # Errors
/// If there is no such model, or it has more values than the file has bytes.
pub fn build_within<T: Task>(
    task: &T,
    num_bytes: u64,
    args: &T::Args,
    request: &ModelRequest<'_>,
) -> Result<T::Model> {
    if let Some(num_values) = task.num_values(args, request)? {
        ensure!(
            num_values <= num_bytes,
            "{} for {} classes and {} channels: expected at most {num_bytes} values, as many as the weights file has bytes, \
             got {num_values}; check that it is a file of weights, the flags of the model and the number of classes",
            T::name(args),
            request.num_classes,
            request.in_channels
        );
    }
    task.build(args, request)
}
