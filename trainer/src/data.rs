//! The data set of a run, opened as its configuration says.
//!
//! In: the resolved data section. Out: train and test split with their normalisation.
//! Invariant: nothing is downloaded unless asked for, and then by root alone while the others wait.

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use datasets::{
    Augment, Cifar, DatasetSplits, ImageFolderConfig, ImageShape, Normalization, OnBadImage, ShapesConfig, Subset,
    SyntheticConfig, cifar, image_folder, shapes, synthetic,
};
use distributed::Communicator;

use crate::config::{AugmentKind, DataConfig, DataSource, OnBadImageKind};
use crate::report::Reporter;

/// Pixels of black around an image before a random crop, as He et al. 2015 (1512.03385), section 4.2.
const CROP_PAD: usize = 4;

/// Opens the data set, its splits limited as configured.
///
/// # Errors
/// When files are missing or broken, or a download fails.
///
/// # Collective
/// Must be called by all ranks.
pub fn open(
    config: &DataConfig,
    limit_train: Option<usize>,
    communicator: &dyn Communicator,
    reporter: &Reporter,
) -> Result<DatasetSplits> {
    let mut splits = match &config.source {
        DataSource::Shapes { num_train, num_test, seed } => {
            shapes::open(&ShapesConfig { num_train: *num_train, num_test: *num_test, seed: *seed })?
        }
        DataSource::Cifar10 { dir, download } => open_cifar(Cifar::Ten, dir, *download, communicator, reporter)?,
        DataSource::Cifar100 { dir, download } => open_cifar(Cifar::Hundred, dir, *download, communicator, reporter)?,
        DataSource::ImageFolder { dir, image_size, on_bad_image } => {
            let mut folder = ImageFolderConfig::new(*image_size);
            folder.on_bad_image = match on_bad_image {
                OnBadImageKind::Fail => OnBadImage::Fail,
                OnBadImageKind::Skip => OnBadImage::Skip,
            };
            image_folder::open(dir, &folder)?
        }
        DataSource::Synthetic { num_train, num_test, num_classes, image_size } => synthetic::open(&SyntheticConfig {
            num_train: *num_train,
            num_test: *num_test,
            num_classes: *num_classes,
            shape: ImageShape { height: *image_size, width: *image_size, channels: 3 },
            seed: 0,
        })?,
    };
    for split in [&splits.train, &splits.test] {
        for note in split.notes() {
            reporter.note(&format!("{}: {note}", split.name()));
        }
    }
    if let Some(limit) = limit_train {
        splits.train = Arc::new(Subset::first(splits.train, limit)?);
    }
    if let Some(limit) = config.limit_test {
        splits.test = Arc::new(Subset::first(splits.test, limit)?);
    }
    if let Some(own) = &config.normalization {
        let floats = |values: &[f64; 3]| values.iter().map(|&value| value as f32).collect();
        splits.normalization = Normalization { mean: floats(&own.mean), std: floats(&own.std) };
    }
    Ok(splits)
}

/// The loader's form of the configured augmentation.
pub fn augment(kind: AugmentKind) -> Augment {
    match kind {
        AugmentKind::None => Augment::None,
        AugmentKind::CropFlip => Augment::CropFlip { pad: CROP_PAD },
    }
}

#[cfg(feature = "download")]
fn open_cifar(
    which: Cifar,
    dir: &Path,
    download: bool,
    communicator: &dyn Communicator,
    reporter: &Reporter,
) -> Result<DatasetSplits> {
    if download {
        if communicator.rank() == distributed::ROOT {
            let name = which.name();
            datasets::download::download(which, dir, &mut |done, total| reporter.download(name, done, total))?;
        }
        communicator.barrier()?;
    }
    Ok(cifar::open(dir, which)?)
}

#[cfg(not(feature = "download"))]
fn open_cifar(
    which: Cifar,
    dir: &Path,
    download: bool,
    _communicator: &dyn Communicator,
    _reporter: &Reporter,
) -> Result<DatasetSplits> {
    anyhow::ensure!(
        !download,
        "download: this program was built without it, expected the cargo feature `download`; rebuild with --features download"
    );
    Ok(cifar::open(dir, which)?)
}
