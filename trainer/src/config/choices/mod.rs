//! The named choices of a run, each with one spelling for flags and files.
//!
//! In: text of the command line or of a TOML file. Out: enums.
//! Invariant: `Display`, clap and serde agree on the spelling.

mod class_weights;
mod device;
mod loss_scaling;
mod monitor;
mod resolution;

pub use burn_resnet::Shortcut;
pub use class_weights::ClassWeights;
pub use datasets::{OnBadImage, Split};
pub use device::{DeviceChoice, nvidia_driver_present};
pub use distributed::gradients::{ReductionChoice, ServerPlacement};
pub use layers::backend::{Activations, Convolution, Kernels, Recompute};
pub use loss_scaling::LossScaling;
pub use monitor::Monitor;
pub use resolution::Resolution;

use clap::ValueEnum;
use distributed::gradients::CompressionKind;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Defines enums whose variants are spelled in kebab case by clap, serde and `Display`.
macro_rules! choices {
    ($($(#[$doc:meta])* $name:ident { $($(#[$note:meta])* $variant:ident),+ $(,)? })+) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum $name {
            $($(#[$note])* $variant,)+
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let value = self.to_possible_value().expect("no variant is skipped");
                f.pad(value.get_name())
            }
        }
    )+};
}

choices! {
    /// An option of how a network is made or computed that a model family may support.
    ModelOption {
        /// `--zero-gamma`.
        ZeroGamma,
        /// `--kernels`.
        Kernels,
        /// `--dtype`.
        Dtype,
        /// `--convolution`.
        Convolution,
        /// `--recompute`.
        Recompute,
        /// `--cpu`.
        Cpu,
    }

    /// A data set.
    DatasetKind {
        /// Ten classes of drawn figures, made in memory.
        Shapes,
        /// CIFAR-10, the original binary release.
        Cifar10,
        /// CIFAR-100 with its fine labels, the original binary release.
        Cifar100,
        /// A folder of images: `train/<class>/*` and `test/<class>/*` or `val/<class>/*`.
        ImageFolder,
        /// Tar files `train-*.tar` and `val-*.tar` or `test-*.tar`, named as WebDataset does.
        Shards,
        /// Parquet files `train-*` and `validation-*`, as Hugging Face publishes them.
        Parquet,
        /// Random pixels and random labels, for measuring speed.
        Synthetic,
        /// The data set of a custom program.
        Custom,
    }

    /// The samples of the batch statistics in training.
    BatchNormKind {
        /// The micro batch of each rank.
        Local,
        /// The micro batches of all ranks together.
        Sync,
    }

    /// A loss.
    LossKind {
        /// Cross entropy of the softmax over all classes.
        CrossEntropy,
        /// Cross entropy of a sigmoid for each class.
        BinaryCrossEntropy,
    }

    /// Random changes of the training images.
    AugmentKind {
        /// The unchanged images.
        None,
        /// Four pixels of padding, a random crop and a random horizontal flip.
        CropFlip,
        /// One operation of TrivialAugment, then as crop-flip.
        Trivial,
        /// A random part of the image, resized and flipped at random.
        ResizedCrop,
    }

    /// The order of the training images in an epoch.
    SamplerKind {
        /// A random order of all images, each once.
        Shuffle,
        /// As many draws with replacement, every class with the same probability.
        Balanced,
    }

    /// Treatment of a step whose loss or gradient is not finite.
    OnNonFiniteKind {
        /// Stop all ranks, naming step, rank and parameter.
        Stop,
        /// Skip the step on all ranks, and count it.
        Skip,
    }

    /// An optimizer.
    OptimizerKind {
        /// Stochastic gradient descent with momentum.
        Sgd,
        /// Adam with decoupled weight decay.
        Adamw,
        /// Descent with momentum, its step scaled for each tensor.
        Lars,
        /// Adam's direction, its step scaled for each tensor.
        Lamb,
        /// The optimizer of a custom program.
        Custom,
    }

    /// Course of the learning rate over the run.
    ScheduleKind {
        /// The same rate after warmup.
        Constant,
        /// Multiplied by gamma at each milestone.
        Multistep,
        /// Half a cosine from the rate to zero.
        Cosine,
        /// A cosine rise, then a cosine fall to almost zero.
        OneCycle,
        /// Half cosines from the rate to zero, again and again.
        CosineRestarts,
        /// A power of the share that is left, from the rate to zero.
        Polynomial,
        /// Multiplied by gamma after evaluations without a better one.
        Plateau,
    }

    /// Place where images are cropped, flipped and normalised.
    InputKind {
        /// In the loader's threads; f32 pixels are uploaded.
        Host,
        /// On the device; u8 pixels are uploaded one step ahead.
        Device,
    }

    /// Place where gradients become parameters.
    UpdateKind {
        /// In main memory, by Lockstep's own kernel.
        Host,
        /// On the device of each rank; results are read one step later.
        Device,
    }

    /// A method of synchronisation.
    SyncKind {
        /// Every step sums all gradients.
        Allreduce,
        /// Servers sum the gradients of all ranks, update the parameters and send them back.
        ParameterServer,
        /// Servers update the parameters with the gradients of each rank as they arrive.
        AsyncParameterServer,
        /// Ranks update independently and average their parameters at intervals.
        LocalSgd,
        /// Sums all gradients at first, then local SGD.
        PostLocalSgd,
    }

    /// A switch.
    OnOff {
        /// In use.
        On,
        /// Not in use.
        Off,
    }

    /// The instruction set of Lockstep's own kernels.
    #[derive(Default)]
    CpuKind {
        /// The best that the CPU has.
        #[default]
        Auto,
        /// AVX-512 without its bf16 instructions.
        Avx512,
        /// AVX2 with FMA.
        Avx2,
        /// The baseline of the target.
        Portable,
    }
}

impl ModelOption {
    /// All options.
    pub const ALL: &'static [Self] = &[
        Self::ZeroGamma,
        Self::Kernels,
        Self::Dtype,
        Self::Convolution,
        Self::Recompute,
        Self::Cpu,
    ];

    /// The options of computation, which layers of crate `layers` take from the
    /// [`PassContext`](layers::PassContext).
    pub const OF_LAYERS: &'static [Self] = Self::ALL.split_at(1).1;
}

impl DatasetKind {
    /// Returns true for the two CIFAR sets.
    pub fn is_cifar(self) -> bool {
        matches!(self, Self::Cifar10 | Self::Cifar100)
    }

    /// Returns true for data sets of image files of any size.
    pub fn is_of_files(self) -> bool {
        matches!(self, Self::ImageFolder | Self::Shards | Self::Parquet)
    }
}

impl ScheduleKind {
    /// Returns true if the rate of a step depends on the number of planned epochs.
    pub fn depends_on_epochs(self) -> bool {
        matches!(self, Self::Cosine | Self::OneCycle | Self::Polynomial)
    }
}

/// Encoding of gradients between ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub struct Compression(pub CompressionKind);

impl Compression {
    /// Returns true if gradients are compressed.
    pub fn is_some(self) -> bool {
        self.0 != CompressionKind::None
    }

    /// Returns true if the first steps can be sent uncompressed.
    pub fn has_warmup(self) -> bool {
        matches!(
            self.0,
            CompressionKind::PowerSgd { .. } | CompressionKind::TopK { .. }
        )
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
        text.parse().map(Self)
    }
}

/// Smallest and largest share of an image's area in a random crop, as `0.08:1`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub struct CropScale {
    /// Smallest share, above 0.
    pub min: f64,
    /// Largest share, from `min` to 1.
    pub max: f64,
}

impl Default for CropScale {
    /// Returns the default of Szegedy et al. 2014 (1409.4842) and torchvision.
    fn default() -> Self {
        Self {
            min: 0.08,
            max: 1.0,
        }
    }
}

impl fmt::Display for CropScale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.min, self.max)
    }
}

impl FromStr for CropScale {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text
            .split_once(':')
            .and_then(|(min, max)| Some((min.parse().ok()?, max.parse().ok()?)));
        match parsed {
            Some((min, max)) if 0.0 < min && min <= max && max <= 1.0 => Ok(Self { min, max }),
            _ => Err(format!(
                "expected two shares above 0 and up to 1, the smaller one first, such as 0.08:1, got `{text}`"
            )),
        }
    }
}

/// A factor on the learning rate of a part of the model, as `layer1=0.1`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub struct RateFactor {
    /// Names of the fields from the model's root, joined by dots.
    pub part: String,
    /// Factor on the learning rate.
    pub factor: f64,
}

impl fmt::Display for RateFactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.part, self.factor)
    }
}

impl FromStr for RateFactor {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text
            .split_once('=')
            .and_then(|(part, factor)| Some((part.trim(), factor.trim().parse::<f64>().ok()?)));
        match parsed {
            Some((part, factor)) if !part.is_empty() && factor > 0.0 && factor.is_finite() => {
                Ok(Self {
                    part: part.to_owned(),
                    factor,
                })
            }
            _ => Err(format!(
                "expected a part of the model and a number above 0, such as layer1=0.1, got `{text}`"
            )),
        }
    }
}

/// A choice in a file: a number or text.
#[derive(Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a text in quotes or a whole number")]
enum Written {
    Number(i64),
    Text(String),
}

/// Implements serde for a type through its `FromStr` and `Display`.
macro_rules! text_in_files {
    ($($kind:ty),+) => {$(
        impl TryFrom<Written> for $kind {
            type Error = String;

            fn try_from(written: Written) -> Result<Self, String> {
                match written {
                    Written::Number(number) => number.to_string().parse(),
                    Written::Text(text) => text.parse(),
                }
            }
        }

        impl From<$kind> for Written {
            fn from(value: $kind) -> Self {
                let text = value.to_string();
                text.parse().map_or(Self::Text(text), Self::Number)
            }
        }
    )+};
}

text_in_files!(
    ClassWeights,
    CropScale,
    DeviceChoice,
    LossScaling,
    Monitor,
    RateFactor,
    Resolution,
    Compression
);
