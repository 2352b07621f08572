//! The sections of a training run as typed: one struct is a heading of `--help` and a `[section]` of a TOML file.
//!
//! In: flags, or TOML with the flags' names as keys. Out: options. Invariant: unknown keys are refused.

use super::family::ModelSection;
use super::optimizer::OptimizerArgs;
use super::sync::SyncArgs;
use crate::config::choices::{
    AugmentKind, BatchNormKind, ConvolutionKind, CpuKind, CropScale, DatasetKind, DeviceChoice,
    Dtype, InputKind, KernelsKind, Monitor, OnBadImageKind, OnNonFiniteKind, RecomputeKind,
    Resolution, SamplerKind, ScheduleKind, ShortcutKind,
};
use crate::config::recipes::Recipe;
use clap::{Args, value_parser};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Largest seed: TOML integers are signed.
const MAX_SEED: u64 = i64::MAX as u64;

/// Flags of `trainer train` and, but for the first four, keys of its TOML file.
#[derive(Debug, Clone, Default, PartialEq, Args, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct TrainArgs {
    /// TOML file with the same options, as `trainer config` prints it; flags win over the file [default: none]
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub config: Option<PathBuf>,

    /// A published training, as options that stand below those of --config and these; `trainer config` prints them [default: none]
    #[arg(long, value_enum, value_name = "NAME")]
    #[serde(skip)]
    pub recipe: Option<Recipe>,

    /// Continue from the newest checkpoint of the output directory, with the options saved in that of --output-dir; with more --epochs it trains longer; start anew if there is none [default: off]
    #[arg(long)]
    #[serde(skip)]
    pub resume: bool,

    /// With --resume: go on though the images are not those that the run began with, of the same classes [default: off]
    #[arg(long, requires = "resume")]
    #[serde(skip)]
    pub allow_changed_data: bool,

    /// Which network.
    #[arg(skip)]
    pub model: ModelSection,
    /// Which images.
    #[command(flatten)]
    pub data: DataArgs,
    /// What only training does with them.
    #[command(flatten)]
    pub train_split: TrainSplitArgs,
    /// Samples of a step.
    #[command(flatten)]
    pub batch: BatchArgs,
    /// How the ranks' gradients or parameters become one.
    #[command(flatten)]
    pub sync: SyncArgs,
    /// Descent and loss.
    #[command(flatten)]
    pub optimizer: OptimizerArgs,
    /// Epochs and learning rate.
    #[command(flatten)]
    pub schedule: ScheduleArgs,
    /// Start, output and cadence.
    #[command(flatten)]
    pub run: RunArgs,
    /// Device and threads.
    #[command(flatten)]
    pub compute: ComputeArgs,
}

/// Which residual network.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Model")]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct ModelArgs {
    /// For small images resnet20, resnet32, resnet44, resnet56, resnet110 or any resnet<6n+2>, cifar-resnet18, cifar-resnet34; for ImageNet resnet18, 34, 50, 101, 152; or `resnet` with --depth [default: resnet20]
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,

    /// Number of weighted layers, 6n+2, 18, 34 or 101 [default: that of --model]
    #[arg(long, value_name = "LAYERS")]
    pub depth: Option<usize>,

    /// Shortcut where the shape changes: a (padded identity) or b (1x1 convolution) [default: a; b for cifar-resnet18 and -34; ImageNet's have b]
    #[arg(long, value_enum, value_name = "KIND", hide_possible_values = true)]
    pub shortcut: Option<ShortcutKind>,
}

/// Which images, and how they are read.
#[derive(Debug, Clone, Default, PartialEq, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Data")]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct DataArgs {
    /// Data set; shapes and synthetic are made in memory, own is that of a program of your own [default: shapes; eval: that of the checkpoint]
    #[arg(long, value_enum, value_name = "NAME")]
    pub dataset: Option<DatasetKind>,

    /// Directory of cifar10, cifar100, image-folder, shards or parquet [default: none, required for these]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,

    /// Fetch cifar10 or cifar100 into --data-dir if it is not there [default: off]
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub download: Option<bool>,

    /// Height and width of the images of image-folder, shards, parquet or synthetic, pixels [default: 32]
    #[arg(long, value_name = "PIXELS")]
    pub image_size: Option<usize>,

    /// Height and width of the images as the model takes them, pixels, read from image-folder, shards or parquet at their own size when they are wanted, as torchvision does: training takes random parts (--augment resized-crop), testing the middle; instead of --image-size. 160:192@0.65:224@eval trains with 160, from 0.65 of the epochs on with 192, and tests with 224 [default: off]
    #[arg(long, value_name = "PIXELS")]
    pub resolution: Option<Resolution>,

    /// With --resolution: length of the shorter side before the middle is cut out, pixels [default: 256 for each 224 of --resolution]
    #[arg(long, value_name = "PIXELS")]
    pub eval_resize: Option<usize>,

    /// Image that cannot be decoded, or sample without one (image-folder, shards, parquet): fail, or skip it with a note [default: fail]
    #[arg(long, value_enum, value_name = "WHAT", hide_possible_values = true)]
    pub on_bad_image: Option<OnBadImageKind>,

    /// Mean of each channel of pixels in 0..1, comma-separated [default: that of the data set]
    #[arg(long, value_delimiter = ',', value_name = "R,G,B")]
    pub normalize_mean: Option<Vec<f64>>,

    /// Standard deviation of each channel of pixels in 0..1, comma-separated [default: that of the data set]
    #[arg(long, value_delimiter = ',', value_name = "R,G,B")]
    pub normalize_std: Option<Vec<f64>>,

    /// Test images that shapes draws [default: 2000]
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

    /// Use this many images of the test split and of the val split; a smaller val split is used whole [default: all]
    #[arg(long, value_name = "IMAGES")]
    pub limit_test: Option<usize>,

    /// Folder or file prefix of the split to evaluate instead of val or test [default: val, valid or validation]
    #[arg(long, value_name = "NAME")]
    pub eval_split: Option<String>,

    /// Threads of one rank that prepare batches, each one of its own, so that memory grows with them; 0 prepares them between the steps [default: 1, image-folder, shards and parquet 2]
    #[arg(long, value_name = "THREADS")]
    pub loader_threads: Option<usize>,
}

/// What only training does with the data.
#[derive(Debug, Clone, Default, PartialEq, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Train split")]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct TrainSplitArgs {
    /// Training images that shapes draws [default: 10000]
    #[arg(long, value_name = "IMAGES")]
    pub shapes_train: Option<usize>,

    /// Training images of synthetic [default: 10000]
    #[arg(long, value_name = "IMAGES")]
    pub synthetic_train: Option<usize>,

    /// Use this many images of the train split [default: all]
    #[arg(long, value_name = "IMAGES")]
    pub limit_train: Option<usize>,

    /// Share of the training images for the val split, above 0 and below 1; stratified, by --seed [default: none]
    #[arg(long, value_name = "SHARE")]
    pub val_fraction: Option<f64>,

    /// Order of the training images: shuffle, or balanced (classes equally likely, with replacement) [default: shuffle]
    #[arg(long, value_enum, value_name = "KIND", hide_possible_values = true)]
    pub sampler: Option<SamplerKind>,

    /// Random changes: crop-flip (pad 4 pixels, crop, flip), trivial (the same after one operation of TrivialAugment), resized-crop (a random part, resized and flipped) or none [default: resized-crop with --resolution; crop-flip for cifar and for image-folder, shards and parquet up to 64 pixels; else none]
    #[arg(long, value_enum, value_name = "KIND", hide_possible_values = true)]
    pub augment: Option<AugmentKind>,

    /// Share of an image's area that --augment resized-crop takes, smallest:largest [default: 0.08:1]
    #[arg(long, value_name = "MIN:MAX")]
    pub crop_scale: Option<CropScale>,

    /// After --augment resized-crop two operations of RandAugment, each with probability one half, of about this magnitude, 0 to 10 (Cubuk et al. 2019, as timm's rand-mM-mstd0.5-inc1) [default: off]
    #[arg(long, value_name = "MAGNITUDE")]
    pub rand_augment: Option<f64>,

    /// Mix each image with another, and their labels, by shares from a beta distribution with this parameter, such as 0.2 (Zhang et al. 2018) [default: off]
    #[arg(long, value_name = "ALPHA")]
    pub mixup: Option<f64>,

    /// Paste a part of another image into each, and mix labels by area (CutMix, Yun et al. 2019), such as 1; beside --mixup each image takes one of the two at random [default: off]
    #[arg(long, value_name = "ALPHA")]
    pub cutmix: Option<f64>,

    /// Leave out the last, partial batch of an epoch [default: off]
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub drop_last: Option<bool>,
}

/// How many samples make a step: global = per rank * accumulation * ranks, exactly.
#[derive(Debug, Clone, Default, PartialEq, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Batch")]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct BatchArgs {
    /// Samples of one step over all ranks [default: 64, cifar, image-folder, shards, parquet and own 128, rounded up to divide]
    #[arg(long, value_name = "SAMPLES")]
    pub global_batch_size: Option<usize>,

    /// Samples of one forward pass of one rank, instead of --global-batch-size [default: from the global size]
    #[arg(long, value_name = "SAMPLES")]
    pub batch_size_per_rank: Option<usize>,

    /// Forward and backward passes that are summed to one step [default: 1]
    #[arg(long, value_name = "PASSES")]
    pub grad_accum_steps: Option<usize>,

    /// Batch statistics of each rank alone (local) or of all ranks together (sync) [default: local]
    #[arg(long, value_enum, value_name = "KIND", hide_possible_values = true)]
    pub batch_norm: Option<BatchNormKind>,
}

/// Length of the run and course of the learning rate.
#[derive(Debug, Clone, Default, PartialEq, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Schedule")]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct ScheduleArgs {
    /// Passes over the train split [default: 5; cifar 200, image-folder, shards and parquet 90]
    #[arg(long, value_name = "EPOCHS")]
    pub epochs: Option<u64>,

    /// Epochs over which cosine or one-cycle runs its course, after which the last rate stays; with --resume and other --epochs: as many as before to keep the schedule, another number to stretch it [default: those of --epochs]
    #[arg(long, value_name = "EPOCHS")]
    pub schedule_epochs: Option<u64>,

    /// Course of the learning rate after warmup [default: cosine]
    #[arg(long, value_enum, value_name = "KIND")]
    pub schedule: Option<ScheduleKind>,

    /// Linear warmup, or the rise of one-cycle, epochs or parts of one [default: 1 from 5 epochs on, else 0; one-cycle 0.3 of the run]
    #[arg(long, value_name = "EPOCHS")]
    pub warmup_epochs: Option<f64>,

    /// Rate of the first warmup step, as a share of the learning rate [default: 0.1; one-cycle 0.04]
    #[arg(long, value_name = "SHARE")]
    pub warmup_start_factor: Option<f64>,

    /// Epochs after which multistep multiplies the rate by --gamma, comma-separated [default: half and three quarters of the run]
    #[arg(long, value_delimiter = ',', value_name = "EPOCHS")]
    pub milestones: Option<Vec<u64>>,

    /// Factor of multistep at each milestone [default: 0.1]
    #[arg(long, value_name = "FACTOR")]
    pub gamma: Option<f64>,
}

/// Start, output and cadence of the run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Run")]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct RunArgs {
    /// Loss or gradient that is not finite, on any rank: stop all, or skip the step on all (sync allreduce) [default: stop]
    #[arg(long, value_enum, value_name = "WHAT", hide_possible_values = true)]
    pub on_non_finite: Option<OnNonFiniteKind>,

    /// Steps of the run that may be skipped; one more ends it (with --on-non-finite skip) [default: 10]
    #[arg(long, value_name = "STEPS")]
    pub max_skipped_steps: Option<u64>,

    /// Seed of the weights, the order of the samples and the augmentation [default: 0]
    #[arg(long, value_name = "SEED", value_parser = value_parser!(u64).range(..=MAX_SEED))]
    pub seed: Option<u64>,

    /// Start the last normalisation of every block at zero, so that blocks begin as identities [default: off]
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub zero_gamma: Option<bool>,

    /// Weights to start from instead of random ones: safetensors or a PyTorch checkpoint [default: none]
    #[arg(long, value_name = "FILE")]
    pub weights: Option<PathBuf>,

    /// With --weights: leave out the file's last layer, for other classes, and say how many tensors of each part were taken and which are new [default: off]
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub new_head: Option<bool>,

    /// Name of the run; its directory is runs/<name>, numbered if that exists [default: model, data set, changed options, seed]
    #[arg(long, value_name = "NAME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,

    /// Directory for metrics, log and checkpoints; must be empty or new unless --resume [default: runs/<name>]
    #[arg(long, value_name = "DIR")]
    pub output_dir: Option<PathBuf>,

    /// Epochs between evaluations on the val split, otherwise the test split; the last epoch always has one [default: 1]
    #[arg(long, value_name = "EPOCHS")]
    pub eval_every_epochs: Option<u64>,

    /// Evaluations without a better one after which the run ends [default: off]
    #[arg(long, value_name = "EVALUATIONS")]
    pub patience: Option<u64>,

    /// Figure that chooses the best model: val-top1, val-loss, or val-NAME for a metric [default: val-top1; custom loss: val-loss]
    #[arg(long, value_name = "FIGURE")]
    pub monitor: Option<Monitor>,

    /// Save every so many epochs, and after the last [default: 1]
    #[arg(long, value_name = "EPOCHS")]
    pub checkpoint_every_epochs: Option<u64>,

    /// Save also every so many steps [default: off]
    #[arg(long, value_name = "STEPS")]
    pub checkpoint_every_steps: Option<u64>,

    /// Newest checkpoints to keep [default: 2]
    #[arg(long, value_name = "CHECKPOINTS")]
    pub keep_checkpoints: Option<usize>,

    /// Steps between lines of the log; a line also follows after 10 s without one [default: 50]
    #[arg(long, value_name = "STEPS")]
    pub log_every_steps: Option<u64>,

    /// Directory for event files of TensorBoard: curves by step and epoch, gradients by parameter and epoch, images of the first batch; a run that goes on adds a file [default: none]
    #[arg(long, value_name = "DIR")]
    pub tensorboard: Option<PathBuf>,

    /// With --tensorboard: write curves, gradients and images every so many steps [default: curves with the log's lines, gradients each epoch, images once]
    #[arg(long, value_name = "STEPS")]
    pub tensorboard_every: Option<u64>,

    /// First steps that do not count in the images/s of the summary [default: 5]
    #[arg(long, value_name = "STEPS")]
    pub warmup_steps: Option<u64>,

    /// Measure in every step how much gradients of the ranks and passes differ, and tell after each epoch the batch size from which on larger ones bring little (McCandlish et al. 2018); with --sync allreduce, uncompressed, and several passes or ranks [default: off]
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub gradient_noise: Option<bool>,
}

/// Device, number format and threads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Compute")]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct ComputeArgs {
    /// flex or ndarray (CPU), cuda (GPU of the rank's place on its machine) or cuda:INDEX [default: cuda if built in and present, else flex]
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<DeviceChoice>,

    /// Who crops, flips and normalises images: host (loader threads), or device, from raw pixels a step ahead; the bits are equal [default: device for cuda, else host]
    #[arg(long, value_enum, value_name = "WHERE", hide_possible_values = true)]
    pub input: Option<InputKind>,

    /// Whose kernels compute the layers: fused (one operation a layer, our own kernels on flex) or stock (burn's) [default: fused]
    #[arg(long, value_enum, value_name = "KERNELS", hide_possible_values = true)]
    pub kernels: Option<KernelsKind>,

    /// Number format of activations and their gradients: f32, or bf16 or f16 with fused kernels on cuda and flex (f16 on flex to check, not for speed); all else stays f32 [default: f32]
    #[arg(long, value_enum, value_name = "DTYPE", hide_possible_values = true)]
    pub dtype: Option<Dtype>,

    /// How our own kernels convolve: auto (Winograd where it is faster) or direct [default: auto]
    #[arg(
        long,
        value_enum,
        value_name = "ALGORITHM",
        hide_possible_values = true
    )]
    pub convolution: Option<ConvolutionKind>,

    /// What the backward pass computes again to save memory, with the same bits, on flex with fused kernels: none, norms (with residual and ReLU) or convolutions (a forward pass more) [default: none]
    #[arg(long, value_enum, value_name = "WHAT", hide_possible_values = true)]
    pub recompute: Option<RecomputeKind>,

    /// Instruction set of our own kernels: auto, avx512, avx2 or portable; a named one gives the same bits on every processor that has it [default: auto, the best of the processor]
    #[arg(long, value_enum, value_name = "SET", hide_possible_values = true, env = super::CPU_VARIABLE)]
    pub cpu: Option<CpuKind>,

    /// Compute threads of one rank [default: the rank's share of the machine's cores]
    #[arg(long, value_name = "THREADS")]
    pub threads: Option<usize>,
}
