//! Image data sets, the order in which shards read them, augmentation and loading.
//!
//! In: bytes on disk (CIFAR's binary release, folders of images) or a seed (shapes, synthetic).
//! Out: [`LoadedStep`]s of `[N, H, W, C]` micro-batches, normalised on the host or on the device.
//! Invariant: the samples of a step and their pixels depend on the seed, the epoch and the step.
//! They do not depend on the number of shards or threads. The crate has (shard_index, num_shards)
//! instead of ranks, and only [`batch`] uses tensors.
//!
//! Each module imports only modules below it in this list.

#[cfg(feature = "download")]
pub mod download;

pub mod cifar;
pub mod image_folder;
#[cfg(feature = "parquet")]
pub mod parquet_files;
mod shapes;
pub mod synthetic;
pub mod tar_shards;

mod encoded;

pub mod classes;

pub mod limited;

mod images;

pub mod loader;
pub mod samples;

pub mod batch;
pub mod shard;

pub mod augment;
pub mod distort;
pub mod mix;
pub mod normalize;

mod operation;
pub mod rand_augment;
mod resized_crop;
mod trivial_augment;

pub mod decode;
pub mod picture;

mod memory;

pub mod dataset;

pub mod split;

mod resize;

mod random;

mod file;

mod progress;

pub mod threads;

pub mod error;

pub use augment::{Augment, ImageShift};
pub use batch::{
    Arrays, DeviceBatch, HostBatch, ImageBatch, MixedLabels, MixedTargets, OnDevice, Pixels,
    RawPixels, Targets, Upload,
};
pub use cifar::Cifar;
pub use classes::normal_form;
pub use dataset::{DatasetSplits, ImageDataset, ImageShape, Normalization};
pub use decode::{Sizing, load_image};
pub use distort::Distortion;
pub use encoded::{OnBadImage, ReadConfig};
pub use error::DatasetError;
pub use images::{ImageSamples, SideOfEpoch};
pub use limited::{Subset, class_sizes};
pub use loader::{LoadedStep, Loader, LoaderConfig, MicroBatch};
pub use mix::Mix;
pub use picture::{Picture, picture};
pub use progress::{Counted, progress};
pub use rand_augment::RandAugment;
pub use random::Stream;
pub use resize::CropBox;
pub use resized_crop::ResizedCrop;
pub use samples::{Draw, Draws, Samples, Splits};
pub use shapes::ShapesDataset;
pub use shard::{ShardConfig, ShardPlan, StepShard};
pub use split::Split;
pub use synthetic::SyntheticConfig;

/// The example of the crate's documentation, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
