//! The sections of a training run as typed. Each struct is a heading of `--help` and a `[section]`
//! of a TOML file.
//!
//! In: flags, or TOML with the flags' names as keys. Out: options. Invariant: unknown keys are
//! rejected.

use super::family::ModelSection;
use super::optimizer::OptimizerArgs;
use super::sync::SyncArgs;
use crate::config::choices::{
    Activations, AugmentKind, BatchNormKind, Convolution, CpuKind, CropScale, DatasetKind,
    DeviceChoice, InputKind, Kernels, Monitor, OnBadImage, OnNonFiniteKind, Recompute, Resolution,
    SamplerKind, ScheduleKind, Shortcut,
};
use crate::config::recipes::Recipe;
use clap::{Args, value_parser};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Largest seed: TOML integers are signed.
const MAX_SEED: u64 = i64::MAX as u64;

/// Flags of `trainer train`. All except the first four are also keys of its TOML file.
#[derive(Debug, Clone, Default, PartialEq, Args, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct TrainArgs {
    /// TOML file with the same options, as `trainer config` prints it; flags win [default: none]
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub config: Option<PathBuf>,

    /// Published training, as options below those of --config and flags [default: none]
    #[arg(long, value_name = "NAME")]
    #[serde(skip)]
    pub recipe: Option<Recipe>,

    /// Continue the run of --output-dir from its newest checkpoint [default: off]
    #[arg(long)]
    #[serde(skip)]
    pub resume: bool,

    /// Continue even if the images changed; classes must match (with --resume) [default: off]
    #[arg(long, requires = "resume")]
    #[serde(skip)]
    pub allow_changed_data: bool,

    /// The network.
    #[arg(skip)]
    pub model: ModelSection,
    /// The images.
    #[command(flatten)]
    pub data: DataArgs,
    /// Options of training images.
    #[command(flatten)]
    pub train_split: TrainSplitArgs,
    /// Samples of a step.
    #[command(flatten)]
    pub batch: BatchArgs,
    /// Synchronisation of the ranks.
    #[command(flatten)]
    pub sync: SyncArgs,
    /// Optimizer and loss.
    #[command(flatten)]
    pub optimizer: OptimizerArgs,
    /// Epochs and learning rate.
    #[command(flatten)]
    pub schedule: ScheduleArgs,
    /// Start, output and intervals.
    #[command(flatten)]
    pub run: RunArgs,
    /// Device and threads.
    #[command(flatten)]
    pub compute: ComputeArgs,
}

/// A network.
#[derive(Debug, Clone, Default, PartialEq, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Model")]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct ModelArgs {
    /// Network, such as resnet20, resnet50, vit-tiny or mobilenet-v2: docs/models.md [default:
    /// resnet20]
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,

    /// Number of weighted layers: 6n+2, 18, 34 or 101 [default: that of --model]
    #[arg(long, value_name = "LAYERS")]
    pub depth: Option<usize>,

    /// Shortcut where the shape changes [default: a; for ImageNet and cifar-resnet18, -34 b]
    #[arg(long, value_name = "KIND")]
    pub shortcut: Option<Shortcut>,

    /// Probability of skipping the last block, less for earlier ones: convnext-tiny, vit-tiny
    /// [default: 0]
    #[arg(long, value_name = "PROBABILITY")]
    pub stochastic_depth: Option<f64>,
}

/// The images.
#[derive(Debug, Clone, Default, PartialEq, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Data")]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct DataArgs {
    /// Data set [default: shapes; eval: that of the checkpoint]
    #[arg(long, value_name = "NAME")]
    pub dataset: Option<DatasetKind>,

    /// Directory of the data set; required for all that are read from files [default: none]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,

    /// Download cifar10 or cifar100 into --data-dir if absent [default: off]
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub download: Option<bool>,

    /// Height and width of the images, pixels [default: 32]
    #[arg(long, value_name = "PIXELS")]
    pub image_size: Option<usize>,

    /// Height and width of images cropped as torchvision does, pixels; 160:224@eval varies
    /// [default: off]
    #[arg(long, value_name = "PIXELS")]
    pub resolution: Option<Resolution>,

    /// Shorter side before the middle is cut out, pixels [default: 256 for each 224 of
    /// --resolution]
    #[arg(long, value_name = "PIXELS")]
    pub eval_resize: Option<usize>,

    /// Treatment of images that cannot be decoded [default: fail]
    #[arg(long, value_name = "WHAT")]
    pub on_bad_image: Option<OnBadImage>,

    /// Mean of each channel of pixels in 0..1, comma-separated [default: that of the data set]
    #[arg(long, value_delimiter = ',', value_name = "R,G,B")]
    pub normalize_mean: Option<Vec<f64>>,

    /// Standard deviation of each channel, comma-separated [default: that of the data set]
    #[arg(long, value_delimiter = ',', value_name = "R,G,B")]
    pub normalize_std: Option<Vec<f64>>,

    /// Test images of shapes [default: 2000]
    #[arg(long, value_name = "IMAGES")]
    pub shapes_test: Option<usize>,

    /// Seed of the drawn shapes [default: 0]
    #[arg(long, value_name = "SEED", value_parser = value_parser!(u64).range(..=MAX_SEED))]
    pub shapes_seed: Option<u64>,

    /// Test images of synthetic [default: 2000]
    #[arg(long, value_name = "IMAGES")]
    pub synthetic_test: Option<usize>,

    /// Classes of synthetic [default: 10]
    #[arg(long, value_name = "CLASSES")]
    pub synthetic_classes: Option<usize>,

    /// Number of images used of the val split and of the test split [default: all]
    #[arg(long, value_name = "IMAGES")]
    pub limit_test: Option<usize>,

    /// Folder or file prefix of the split to evaluate [default: val, valid or validation]
    #[arg(long, value_name = "NAME")]
    pub eval_split: Option<String>,

    /// Threads of a rank that prepare batches; 0: between steps [default: 1; image files 2]
    #[arg(long, value_name = "THREADS")]
    pub loader_threads: Option<usize>,
}

/// Options of training images.
#[derive(Debug, Clone, Default, PartialEq, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Train split")]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct TrainSplitArgs {
    /// Training images of shapes [default: 10000]
    #[arg(long, value_name = "IMAGES")]
    pub shapes_train: Option<usize>,

    /// Training images of synthetic [default: 10000]
    #[arg(long, value_name = "IMAGES")]
    pub synthetic_train: Option<usize>,

    /// Number of images used of the train split [default: all]
    #[arg(long, value_name = "IMAGES")]
    pub limit_train: Option<usize>,

    /// Share of the training images for the val split, above 0, below 1; stratified [default: none]
    #[arg(long, value_name = "SHARE")]
    pub val_fraction: Option<f64>,

    /// Order of the training images [default: shuffle]
    #[arg(long, value_name = "KIND")]
    pub sampler: Option<SamplerKind>,

    /// Random changes of training images [default: resized-crop with --resolution; crop-flip if
    /// small]
    #[arg(long, value_name = "KIND")]
    pub augment: Option<AugmentKind>,

    /// Share of the image area in a resized crop, smallest:largest [default: 0.08:1]
    #[arg(long, value_name = "MIN:MAX")]
    pub crop_scale: Option<CropScale>,

    /// Magnitude of RandAugment after a resized crop, 0 to 10 [default: off]
    #[arg(long, value_name = "MAGNITUDE")]
    pub rand_augment: Option<f64>,

    /// Random brightness, contrast, saturation and hue, such as 0.4,0.4,0.4,0.1 [default: off]
    #[arg(long, value_delimiter = ',', value_name = "B,C,S[,H]")]
    pub color_jitter: Option<Vec<f64>>,

    /// Largest angle of a random rotation in either direction, degrees [default: off]
    #[arg(long, value_name = "DEGREES")]
    pub rotation: Option<f64>,

    /// Probability of erasing a random rectangle of an image, above 0, at most 1 [default: off]
    #[arg(long, value_name = "PROBABILITY")]
    pub random_erasing: Option<f64>,

    /// Beta parameter of mixup, such as 0.2 [default: off]
    #[arg(long, value_name = "ALPHA")]
    pub mixup: Option<f64>,

    /// Beta parameter of CutMix, such as 1; with --mixup each image takes one [default: off]
    #[arg(long, value_name = "ALPHA")]
    pub cutmix: Option<f64>,

    /// Leave out the last, partial batch of an epoch [default: off]
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub drop_last: Option<bool>,
}

/// The samples of a step: global = per rank * accumulation * ranks, exactly.
#[derive(Debug, Clone, Default, PartialEq, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Batch")]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct BatchArgs {
    /// Samples of a step over all ranks [default: 64; image files, cifar and custom 128]
    #[arg(long, value_name = "SAMPLES")]
    pub global_batch_size: Option<usize>,

    /// Samples of a pass of one rank, instead of --global-batch-size [default: derived]
    #[arg(long, value_name = "SAMPLES")]
    pub batch_size_per_rank: Option<usize>,

    /// Forward and backward passes accumulated in a step [default: 1]
    #[arg(long, value_name = "PASSES")]
    pub grad_accum_steps: Option<usize>,

    /// Samples of the batch statistics [default: local]
    #[arg(long, value_name = "KIND")]
    pub batch_norm: Option<BatchNormKind>,
}

/// Length of the run and course of the learning rate.
#[derive(Debug, Clone, Default, PartialEq, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Schedule")]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct ScheduleArgs {
    /// Passes over the train split [default: 5; cifar 200; image files 90]
    #[arg(long)]
    pub epochs: Option<u64>,

    /// Epochs of the whole schedule, where they differ from --epochs [default: --epochs]
    #[arg(long, value_name = "EPOCHS")]
    pub schedule_epochs: Option<u64>,

    /// Course of the learning rate after warmup [default: cosine]
    #[arg(long, value_name = "KIND")]
    pub schedule: Option<ScheduleKind>,

    /// Length of the linear warmup, epochs [default: 1 from 5 epochs on; one-cycle 0.3 of the run]
    #[arg(long, value_name = "EPOCHS")]
    pub warmup_epochs: Option<f64>,

    /// First rate of the warmup, as a share of the learning rate [default: 0.1; one-cycle 0.04]
    #[arg(long, value_name = "SHARE")]
    pub warmup_start_factor: Option<f64>,

    /// Epochs after which multistep lowers the rate, comma-separated [default: 1/2 and 3/4 of the
    /// run]
    #[arg(long, value_delimiter = ',', value_name = "EPOCHS")]
    pub milestones: Option<Vec<u64>>,

    /// Factor of multistep at each milestone, and of plateau [default: 0.1]
    #[arg(long, value_name = "FACTOR")]
    pub gamma: Option<f64>,

    /// Length of the first cosine of cosine-restarts, epochs [default: 10]
    #[arg(long, value_name = "EPOCHS")]
    pub restart_epochs: Option<u64>,

    /// Length of each cosine of cosine-restarts as a multiple of the one before [default: 1]
    #[arg(long, value_name = "FACTOR")]
    pub restart_factor: Option<u64>,

    /// Exponent of polynomial [default: 1]
    #[arg(long, value_name = "EXPONENT")]
    pub power: Option<f64>,

    /// Evaluations without a better one that plateau accepts [default: 10]
    #[arg(long, value_name = "EVALUATIONS")]
    pub plateau_patience: Option<u64>,

    /// Change of the figure that counts as better for plateau, as a share [default: 0.0001]
    #[arg(long, value_name = "SHARE")]
    pub plateau_threshold: Option<f64>,
}

/// Start, output and intervals of the run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Run")]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct RunArgs {
    /// Treatment of a loss or gradient that is not finite [default: stop]
    #[arg(long, value_name = "WHAT")]
    pub on_non_finite: Option<OnNonFiniteKind>,

    /// Steps of the run that may be skipped (with --on-non-finite skip) [default: 10]
    #[arg(long, value_name = "STEPS")]
    pub max_skipped_steps: Option<u64>,

    /// Seed of the weights, the order of the samples and the augmentation [default: 0]
    #[arg(long, value_parser = value_parser!(u64).range(..=MAX_SEED))]
    pub seed: Option<u64>,

    /// Start the last normalisation of every block at zero [default: off]
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub zero_gamma: Option<bool>,

    /// Initial weights: safetensors or a PyTorch checkpoint [default: none]
    #[arg(long, value_name = "FILE")]
    pub weights: Option<PathBuf>,

    /// Leave out the last layer of --weights, for other classes [default: off]
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub new_head: Option<bool>,

    /// Name of the run; its directory is runs/<name> [default: model, data set, changed options,
    /// seed]
    #[arg(long, value_name = "NAME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,

    /// Directory of metrics, log and checkpoints; new, empty or with --resume [default:
    /// runs/<name>]
    #[arg(long, value_name = "DIR")]
    pub output_dir: Option<PathBuf>,

    /// Epochs between evaluations; the last epoch always has one [default: 1]
    #[arg(long, value_name = "EPOCHS")]
    pub eval_every_epochs: Option<u64>,

    /// Evaluations without a better one after which the run ends [default: off]
    #[arg(long, value_name = "EVALUATIONS")]
    pub patience: Option<u64>,

    /// Figure that chooses the best model: val-top1, val-loss or val-METRIC [default: val-top1]
    #[arg(long, value_name = "FIGURE")]
    pub monitor: Option<Monitor>,

    /// Epochs between checkpoints; the last epoch always has one [default: 1]
    #[arg(long, value_name = "EPOCHS")]
    pub checkpoint_every_epochs: Option<u64>,

    /// Steps between further checkpoints [default: off]
    #[arg(long, value_name = "STEPS")]
    pub checkpoint_every_steps: Option<u64>,

    /// Number of newest checkpoints kept [default: 2]
    #[arg(long, value_name = "CHECKPOINTS")]
    pub keep_checkpoints: Option<usize>,

    /// Steps between lines of the log; also one each --log-every-seconds [default: 50]
    #[arg(long, value_name = "STEPS")]
    pub log_every_steps: Option<u64>,

    /// Longest time between lines of the log, seconds [default: 10]
    #[arg(long, value_name = "SECONDS")]
    pub log_every_seconds: Option<u64>,

    /// Write a line of CSV for each step, steps.csv in the directory of the run [default: off]
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub log_steps: Option<bool>,

    /// Also log phases of steps, memory, checkpoints and the slowest rank [default: off]
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub verbose: Option<bool>,

    /// Directory for event files of TensorBoard [default: none]
    #[arg(long, value_name = "DIR")]
    pub tensorboard: Option<PathBuf>,

    /// Steps between points of TensorBoard [default: as the log; gradients each epoch]
    #[arg(long, value_name = "STEPS")]
    pub tensorboard_every: Option<u64>,

    /// First steps left out of the speed in the summary [default: 5]
    #[arg(long, value_name = "STEPS")]
    pub warmup_steps: Option<u64>,

    /// Measure the noise of gradients, for the choice of the batch size [default: off]
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub gradient_noise: Option<bool>,
}

/// Device, number format and threads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Compute")]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct ComputeArgs {
    /// Device: flex or ndarray (CPU), cuda or cuda:INDEX [default: cuda if present, else flex]
    #[arg(long)]
    pub device: Option<DeviceChoice>,

    /// Place where images are cropped, flipped and normalised [default: device for cuda, else host]
    #[arg(long, value_name = "WHERE")]
    pub input: Option<InputKind>,

    /// Kernel implementation [default: fused]
    #[arg(long)]
    pub kernels: Option<Kernels>,

    /// Number format of activations and their gradients; all else is f32 [default: f32]
    #[arg(long)]
    pub dtype: Option<Activations>,

    /// Algorithm of Lockstep's own convolutions [default: auto]
    #[arg(long, value_name = "ALGORITHM")]
    pub convolution: Option<Convolution>,

    /// Results that the backward pass computes again to save memory [default: none]
    #[arg(long, value_name = "WHAT")]
    pub recompute: Option<Recompute>,

    /// Instruction set of Lockstep's own kernels; a named one fixes the bits [default: auto]
    #[arg(long, value_name = "SET", env = super::CPU_VARIABLE)]
    pub cpu: Option<CpuKind>,

    /// Compute threads of a rank [default: the rank's share of the CPUs]
    #[arg(long)]
    pub threads: Option<usize>,
}
