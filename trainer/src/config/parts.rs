//! The sections of a resolved configuration.
//!
//! In: values that [`super::resolve`] checked. Out: plain structs. Invariant: what belongs to one choice only, as the
//! milestones to multistep, lives inside that choice.

use crate::choices::{
    AugmentKind, BatchNormKind, ConvolutionKind, CpuKind, DatasetKind, DeviceChoice, Dtype, InputKind, KernelsKind,
    OnBadImageKind, OnNonFiniteKind, ScheduleKind, ShortcutKind,
};
use crate::loss_scale::LossScaling;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Which network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelConfig {
    /// Weighted layers, 6n+2.
    pub depth: usize,
    /// Shortcut where the shape changes.
    pub shortcut: ShortcutKind,
}

impl ModelConfig {
    /// Name such as `resnet20`.
    pub fn name(&self) -> String {
        format!("resnet{}", self.depth)
    }
}

/// Where the samples come from, with what that source needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "dataset", rename_all = "kebab-case")]
pub enum DataSource {
    /// Drawn figures.
    Shapes {
        /// Training images.
        num_train: usize,
        /// Test images.
        num_test: usize,
        /// Seed of the figures.
        seed: u64,
    },
    /// CIFAR-10.
    Cifar10 {
        /// The folder of the binary release, or its parent.
        dir: PathBuf,
        /// Fetch it if it is not there.
        download: bool,
    },
    /// CIFAR-100.
    Cifar100 {
        /// The folder of the binary release, or its parent.
        dir: PathBuf,
        /// Fetch it if it is not there.
        download: bool,
    },
    /// Folders of images.
    ImageFolder {
        /// The folder with `train` and `test` or `val`.
        dir: PathBuf,
        /// Height and width, pixels.
        image_size: usize,
        /// What to do with a broken file.
        on_bad_image: OnBadImageKind,
    },
    /// Random pixels.
    Synthetic {
        /// Training images.
        num_train: usize,
        /// Test images.
        num_test: usize,
        /// Classes.
        num_classes: usize,
        /// Height and width, pixels.
        image_size: usize,
    },
}

impl DataSource {
    /// The folder that it is read from, if it is not made.
    pub fn folder(&self) -> Option<&Path> {
        match self {
            Self::Cifar10 { dir, .. } | Self::Cifar100 { dir, .. } | Self::ImageFolder { dir, .. } => Some(dir),
            Self::Shapes { .. } | Self::Synthetic { .. } => None,
        }
    }
}

impl DataSource {
    /// The choice without its details.
    pub fn kind(&self) -> DatasetKind {
        match self {
            Self::Shapes { .. } => DatasetKind::Shapes,
            Self::Cifar10 { .. } => DatasetKind::Cifar10,
            Self::Cifar100 { .. } => DatasetKind::Cifar100,
            Self::ImageFolder { .. } => DatasetKind::ImageFolder,
            Self::Synthetic { .. } => DatasetKind::Synthetic,
        }
    }

    /// Height and width of the images, pixels.
    pub fn image_size(&self) -> usize {
        match self {
            Self::ImageFolder { image_size, .. } | Self::Synthetic { image_size, .. } => *image_size,
            _ => 32,
        }
    }
}

/// Mean and standard deviation of each channel, of pixels scaled to 0..1.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NormalizationConfig {
    /// Subtracted.
    pub mean: [f64; 3],
    /// Divided by.
    pub std: [f64; 3],
}

/// Which images, and how they are read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DataConfig {
    /// The data set.
    pub source: DataSource,
    /// Normalisation instead of the data set's own.
    pub normalization: Option<NormalizationConfig>,
    /// Use this many test images.
    pub limit_test: Option<usize>,
    /// Threads of one rank that prepare batches; 0 means the training thread does it.
    pub loader_threads: usize,
}

/// What only training does with the data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrainSplitConfig {
    /// Use this many training images.
    pub limit_train: Option<usize>,
    /// Random changes.
    pub augment: AugmentKind,
    /// Leave out the last, partial batch of an epoch.
    pub drop_last: bool,
}

/// Samples of a step: `global_batch_size = micro_batch_size * grad_accum_steps * world_size`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchConfig {
    /// Samples of one step over all ranks.
    pub global_batch_size: usize,
    /// Samples of one rank's forward pass.
    pub micro_batch_size: usize,
    /// Forward and backward passes of a step.
    pub grad_accum_steps: usize,
    /// Number of ranks that train.
    pub world_size: usize,
    /// Over which samples batch statistics go.
    pub batch_norm: BatchNormKind,
}

/// Descent and loss.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OptimizerConfig {
    /// Learning rate as given; [`super::TrainConfig::peak_learning_rate`] is the one to train with.
    pub learning_rate: f64,
    /// Batch size the learning rate is meant for, if it is to be scaled.
    pub reference_batch_size: Option<usize>,
    /// Momentum, 0 up to but not 1.
    pub momentum: f64,
    /// Nesterov's form.
    pub nesterov: bool,
    /// L2 penalty.
    pub weight_decay: f64,
    /// Whether normalisation parameters and biases decay too.
    pub decay_norm_and_bias: bool,
    /// Share of the target spread over all classes.
    pub label_smoothing: f64,
    /// Largest global L2 norm of the gradient.
    pub clip_grad_norm: Option<f64>,
    /// Factor on the loss.
    #[serde(default)]
    pub loss_scale: LossScaling,
}

/// Course of the learning rate after warmup.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "schedule", rename_all = "kebab-case")]
pub enum Course {
    /// The same rate.
    Constant,
    /// Multiplied by `gamma` after each of the `milestones`, epochs.
    Multistep {
        /// Epochs, ascending, from 1.
        milestones: Vec<u64>,
        /// Factor.
        gamma: f64,
    },
    /// Half a cosine to zero.
    Cosine,
    /// Cosine rise over the warmup, cosine fall after it.
    OneCycle,
}

impl Course {
    /// The choice without its details.
    pub fn kind(&self) -> ScheduleKind {
        match self {
            Self::Constant => ScheduleKind::Constant,
            Self::Multistep { .. } => ScheduleKind::Multistep,
            Self::Cosine => ScheduleKind::Cosine,
            Self::OneCycle => ScheduleKind::OneCycle,
        }
    }
}

/// Epochs and learning rate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScheduleConfig {
    /// Passes over the train split.
    pub epochs: u64,
    /// Epochs that the course is planned over, if said; [`Self::planned_epochs`] is the number.
    #[serde(default)]
    pub schedule_epochs: Option<u64>,
    /// Warmup, epochs or parts of one.
    pub warmup_epochs: f64,
    /// First rate as a share of the peak.
    pub warmup_start_factor: f64,
    /// After warmup.
    pub course: Course,
}

impl ScheduleConfig {
    /// Epochs over which the rate runs its course.
    pub fn planned_epochs(&self) -> u64 {
        self.schedule_epochs.unwrap_or(self.epochs)
    }

    /// Whether the rate of a step depends on how many epochs are planned.
    pub fn depends_on_epochs(&self) -> bool {
        matches!(self.course, Course::Cosine | Course::OneCycle)
    }
}

/// What is done about a step whose loss or gradient is not finite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnNonFinite {
    /// All ranks stop before the update.
    #[default]
    Stop,
    /// All ranks leave the step out: parameters, velocities and norm statistics stay as they were before it.
    Skip {
        /// Steps of the whole run that may be; one more ends it.
        limit: u64,
    },
}

impl OnNonFinite {
    /// The choice without its details.
    pub fn kind(self) -> OnNonFiniteKind {
        match self {
            Self::Stop => OnNonFiniteKind::Stop,
            Self::Skip { .. } => OnNonFiniteKind::Skip,
        }
    }
}

/// Start, output and cadence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunConfig {
    /// Seed of weights, order and augmentation.
    pub seed: u64,
    /// Last normalisation of every block starts at zero.
    pub zero_gamma: bool,
    /// Weights to start from.
    pub weights: Option<PathBuf>,
    /// Where the run writes; `None` is the next free default that [`crate::output::OutputDirectory`] finds.
    pub output_dir: Option<PathBuf>,
    /// Continue from the newest checkpoint. Not part of the TOML: it belongs to one start, not to the run.
    pub resume: bool,
    /// Steps whose loss or gradient is not finite.
    #[serde(default)]
    pub on_non_finite: OnNonFinite,
    /// Evaluate every so many epochs and after the last.
    pub eval_every_epochs: u64,
    /// Save every so many epochs and after the last.
    pub checkpoint_every_epochs: u64,
    /// Save also every so many steps.
    pub checkpoint_every_steps: Option<u64>,
    /// Checkpoints to keep.
    pub keep_checkpoints: usize,
    /// Print a line every so many steps.
    pub log_every_steps: u64,
    /// First steps outside the speed statistics.
    pub warmup_steps: u64,
}

/// Device, number format and threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComputeConfig {
    /// Backend and device.
    pub device: DeviceChoice,
    /// Who makes its images.
    #[serde(default)]
    pub input: InputKind,
    /// Whose kernels compute the layers.
    pub kernels: KernelsKind,
    /// Number format of activations.
    pub dtype: Dtype,
    /// How our own kernels convolve.
    pub convolution: ConvolutionKind,
    /// Their instruction set.
    pub cpu: CpuKind,
    /// Threads of one rank, if given.
    pub threads: Option<usize>,
}
