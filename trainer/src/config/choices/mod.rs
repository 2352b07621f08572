//! The named choices of a run: data set, device, schedule and the like, each with one spelling for flags and files.
//!
//! In: text of the command line or of a TOML file. Out: enums.
//! Invariant: `Display`, `FromStr`, clap and serde agree on the spelling.

mod class_weights;
mod compute;
mod crop_scale;
mod device;
mod loss_scaling;
mod monitor;
mod rate_factor;
mod resolution;

pub use class_weights::ClassWeights;
pub use compute::{ConvolutionKind, CpuKind, Dtype, KernelsKind, RecomputeKind};
pub use crop_scale::CropScale;
pub use device::{DeviceChoice, nvidia_driver_present};
pub use loss_scaling::LossScaling;
pub use monitor::{Figure, Monitor};
pub use rate_factor::RateFactor;
pub use resolution::Resolution;

use clap::ValueEnum;
use distributed::reduction::{CompressionKind, ParseCompressionError, ReductionKind};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Where the samples come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DatasetKind {
    /// Ten classes of drawn geometric figures, made in memory: needs no files.
    Shapes,
    /// CIFAR-10, the original binary release.
    Cifar10,
    /// CIFAR-100 with its fine labels, the original binary release.
    Cifar100,
    /// A folder `train/<class>/*` and `test/<class>/*` (or `val`) of images.
    ImageFolder,
    /// Tar files `train-*.tar` and `val-*.tar` (or `test-*.tar`) of images and labels, as WebDataset names them.
    Shards,
    /// Parquet files `train-*` and `validation-*` of images and labels, as Hugging Face publishes them.
    Parquet,
    /// Random pixels and random labels, for measuring speed.
    Synthetic,
    /// That of the program's model family.
    Own,
}

/// Shortcut of a block that changes the shape (He et al. 2015, section 4.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ShortcutKind {
    /// Identity with zero-padded channels, without parameters: the paper's choice for CIFAR.
    A,
    /// A 1x1 convolution with normalisation.
    B,
}

/// Over which samples the batch statistics of training are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BatchNormKind {
    /// The micro batch of each rank on its own.
    Local,
    /// The micro batches of all ranks together.
    Sync,
}

/// What a model is trained by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LossKind {
    /// Of the softmax over all classes.
    CrossEntropy,
    /// Of a sigmoid for each class.
    BinaryCrossEntropy,
}

/// Random changes of the training images.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AugmentKind {
    /// The images as they are.
    None,
    /// Four pixels of padding, a random crop and a random horizontal flip.
    CropFlip,
    /// The same after one operation of TrivialAugment.
    Trivial,
    /// A random part of the image brought to its size, and a random horizontal flip.
    ResizedCrop,
}

/// A split of a data set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SplitKind {
    /// Training images, without those of `--val-fraction`.
    Train,
    /// Images by which the best model is chosen: a split of the data set, or those of `--val-fraction`.
    Val,
    /// Images to measure the result by.
    Test,
}

/// The order in which an epoch reads the training images.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SamplerKind {
    /// A random order of all images, each once.
    Shuffle,
    /// As many draws with replacement, every class with the same probability.
    Balanced,
}

/// What to do with an image file that cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnBadImageKind {
    /// Stop and name the file.
    Fail,
    /// Leave it out and say so.
    Skip,
}

/// What to do with a step whose loss or gradient is not finite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnNonFiniteKind {
    /// End the run on all ranks, naming step, rank and parameter.
    Stop,
    /// Leave the step out on all ranks, and count it.
    Skip,
}

/// What makes parameters of gradients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OptimizerKind {
    /// Stochastic gradient descent with momentum.
    Sgd,
    /// Adam with decoupled weight decay.
    Adamw,
    /// Descent with momentum, its step scaled for each tensor.
    Lars,
    /// Adam's direction, its step scaled for each tensor.
    Lamb,
    /// That of the program's model family.
    Own,
}

/// How the learning rate moves over the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ScheduleKind {
    /// The same rate after warmup.
    Constant,
    /// Multiplied by gamma at each milestone.
    Multistep,
    /// Half a cosine from the rate to zero.
    Cosine,
    /// A cosine rise, then a cosine fall to almost zero.
    OneCycle,
}

/// Who crops, flips and normalises the images of a batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum InputKind {
    /// The loader's threads; f32 pixels go to the device.
    #[default]
    Host,
    /// The device; u8 pixels go to it, one step ahead.
    Device,
}

/// Where gradients become parameters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UpdateKind {
    /// In main memory, by our own kernel.
    #[default]
    Host,
    /// On the device, which gradients do not leave, where a rank trains alone and does nothing but sum; results are read a step
    /// later. Else as host, as ranks meet in main memory, but a thread waits for the gradients and copies them.
    Device,
}

/// What the ranks bring together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SyncKind {
    /// Every step sums all gradients.
    Allreduce,
    /// Servers take the gradients of all ranks, update the parameters and send them back.
    ParameterServer,
    /// Servers update the parameters with each rank's gradients as they come.
    AsyncParameterServer,
    /// Ranks update alone and average their parameters now and then.
    LocalSgd,
    /// Sums all gradients at first, then local SGD.
    PostLocalSgd,
}

/// How gradients are summed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReductionChoice {
    /// The collective of the communication library.
    Mpi,
    /// Around a ring of ranks.
    Ring,
    /// Recursive halving and doubling.
    HalvingDoubling,
    /// Inside each machine, then between machines.
    Hierarchical,
    /// The same bits on any number of ranks.
    Exact,
    /// NVIDIA's NCCL on the ranks' GPUs.
    Nccl,
}

impl ReductionChoice {
    /// The algorithm over the ranks' messages that it names; `None` for the one that sums on GPUs.
    pub fn kind(self) -> Option<ReductionKind> {
        Some(match self {
            Self::Mpi => ReductionKind::Library,
            Self::Ring => ReductionKind::Ring,
            Self::HalvingDoubling => ReductionKind::HalvingDoubling,
            Self::Hierarchical => ReductionKind::Hierarchical,
            Self::Exact => ReductionKind::Exact,
            Self::Nccl => return None,
        })
    }
}

/// What stays as ranks are added.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ScalingKind {
    /// The batch of each rank.
    #[default]
    Weak,
    /// The global batch.
    Strong,
}

/// Where parameter servers are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PlacementKind {
    /// On the first ranks, which train as well.
    Beside,
    /// On the last ranks, which do nothing else.
    Own,
}

/// A switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnOff {
    /// In use.
    On,
    /// Not in use.
    Off,
}

/// What gradients are on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Compression(pub CompressionKind);

impl Compression {
    /// Whether anything is compressed.
    pub fn is_some(self) -> bool {
        self.0 != CompressionKind::None
    }

    /// Whether its first steps may go uncompressed.
    pub fn has_warmup(self) -> bool {
        matches!(
            self.0,
            CompressionKind::PowerSgd { .. } | CompressionKind::TopK { .. }
        )
    }
}

impl Default for Compression {
    fn default() -> Self {
        Self(CompressionKind::None)
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Compression {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse()
            .map(Self)
            .map_err(|error: ParseCompressionError| error.to_string())
    }
}

/// Writes how serde reads and writes a type by its `FromStr` and `Display`.
macro_rules! text_in_files {
    ($($kind:ty),+) => {$(
        impl TryFrom<String> for $kind {
            type Error = String;

            fn try_from(text: String) -> Result<Self, String> {
                text.parse()
            }
        }

        impl From<$kind> for String {
            fn from(value: $kind) -> Self {
                value.to_string()
            }
        }
    )+};
}

text_in_files!(
    ClassWeights,
    CropScale,
    DeviceChoice,
    Monitor,
    RateFactor,
    Compression
);

/// Writes `Display` and `FromStr` of a [`ValueEnum`] in clap's spelling, which is also serde's.
macro_rules! spelled_as_in_clap {
    ($($kind:ty),+) => {$(
        impl fmt::Display for $kind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let value = self.to_possible_value().expect("no variant is skipped");
                f.pad(value.get_name())
            }
        }

        impl FromStr for $kind {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                <Self as ValueEnum>::from_str(text, false)
            }
        }
    )+};
}

spelled_as_in_clap!(
    DatasetKind,
    ShortcutKind,
    BatchNormKind,
    LossKind,
    AugmentKind,
    SamplerKind,
    SplitKind,
    OnBadImageKind,
    OnNonFiniteKind,
    ScalingKind,
    OptimizerKind,
    ScheduleKind,
    KernelsKind,
    InputKind,
    UpdateKind,
    ConvolutionKind,
    RecomputeKind,
    CpuKind,
    Dtype,
    SyncKind,
    ReductionChoice,
    PlacementKind,
    OnOff
);

impl DatasetKind {
    /// Whether it is one of the two CIFAR sets.
    pub fn is_cifar(self) -> bool {
        matches!(self, Self::Cifar10 | Self::Cifar100)
    }

    /// Whether its images are files of any size.
    pub fn is_of_files(self) -> bool {
        matches!(self, Self::ImageFolder | Self::Shards | Self::Parquet)
    }
}
