//! The sections `[data]` and `[train-split]`: the images, and their changes in training.
//!
//! In: [`DataArgs`] and [`TrainSplitArgs`]. Out: [`DataSection`] and [`TrainSplitSection`].
//! Invariant: no file is opened.

use super::error::{ConfigError, conflict, invalid, missing, no_effect, within};
use super::{file, options};
use crate::config::choices::{
    AugmentKind, CropScale, DatasetKind, OnBadImage, Resolution, SamplerKind,
};
use crate::config::cli::{DataArgs, TrainSplitArgs};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Default height and width of images, pixels.
const DEFAULT_SIDE: usize = 32;
/// Largest side of images that are augmented by default. On larger images a crop by four pixels has
/// no visible effect.
const MAX_AUGMENTED_SIZE: usize = 64;
/// Largest height and width of images, pixels.
pub(crate) const MAX_IMAGE_SIDE: usize = 1 << 12;
/// Largest number of classes.
pub(crate) const MAX_CLASSES: usize = 1 << 16;

/// The images of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct DataSection {
    /// The data set with its options.
    #[serde(flatten)]
    pub dataset: DatasetChoice,
    /// Normalisation that replaces the normalisation of the data set.
    #[serde(flatten)]
    pub normalization: Option<NormalizationChoice>,
    /// Number of images used from the val split and from the test split.
    pub limit_test: Option<usize>,
    /// Number of threads of a rank that prepare batches.
    pub loader_threads: usize,
}

/// A data set with its options.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(
    tag = "dataset",
    rename_all = "kebab-case",
    rename_all_fields = "kebab-case"
)]
pub enum DatasetChoice {
    /// Drawn figures.
    Shapes {
        shapes_test: usize,
        shapes_seed: u64,
    },
    /// CIFAR-10.
    Cifar10(CifarFiles),
    /// CIFAR-100.
    Cifar100(CifarFiles),
    /// A folder of images.
    ImageFolder(ImageFiles),
    /// Tar files.
    Shards(ImageFiles),
    /// Parquet files.
    Parquet(ImageFiles),
    /// Random pixels.
    Synthetic {
        image_size: usize,
        synthetic_test: usize,
        synthetic_classes: usize,
    },
    /// The data set of the model family.
    Custom,
}

/// The files of CIFAR.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct CifarFiles {
    /// The folder of the binary release.
    pub data_dir: PathBuf,
    /// True if absent files are downloaded.
    pub download: bool,
}

/// Encoded images of any size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ImageFiles {
    /// The folder of the data set.
    pub data_dir: PathBuf,
    /// Conversion to the image size of the model.
    #[serde(flatten)]
    pub size: ImageSize,
    /// Treatment of images that cannot be decoded.
    pub on_bad_image: OnBadImage,
    /// Name of the split to evaluate instead of val or test.
    pub eval_split: Option<String>,
}

/// Conversion of image files to the image size of the model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged, rename_all_fields = "kebab-case")]
pub enum ImageSize {
    /// Resized to a square, without regard to the aspect ratio.
    Square { image_size: usize },
    /// Decoded at the size in the file, then cropped.
    Cropped {
        resolution: Resolution,
        eval_resize: usize,
    },
}

/// Mean and standard deviation of each channel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct NormalizationChoice {
    pub normalize_mean: Vec<f64>,
    pub normalize_std: Vec<f64>,
}

/// Options of training images.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct TrainSplitSection {
    pub shapes_train: Option<usize>,
    pub synthetic_train: Option<usize>,
    pub limit_train: Option<usize>,
    pub val_fraction: Option<f64>,
    /// `None` for the default, a shuffled order.
    pub sampler: Option<SamplerKind>,
    pub augment: AugmentKind,
    /// `Some` with `--augment resized-crop`.
    pub crop_scale: Option<CropScale>,
    pub rand_augment: Option<f64>,
    pub color_jitter: Option<Vec<f64>>,
    pub rotation: Option<f64>,
    pub random_erasing: Option<f64>,
    pub mixup: Option<f64>,
    pub cutmix: Option<f64>,
    pub drop_last: bool,
}

impl DataArgs {
    /// Returns the flags of a task with its own data.
    pub(super) fn of_task() -> Self {
        Self {
            dataset: Some(DatasetKind::Custom),
            ..Self::default()
        }
    }

    /// Decides this section and the train split for a command that does not train.
    pub(super) fn decide_with(
        self,
        split: TrainSplitArgs,
    ) -> Result<(DataSection, TrainSplitSection), ConfigError> {
        options::expect_ranges(&self)?;
        options::expect_ranges(&split)?;
        let data = self.clone().decide()?;
        options::expect_effect(&self, &data)?;
        data.expect_offered()?;
        let split = split.decide(&data)?;
        Ok((data, split))
    }

    /// Applies the defaults and rejects contradictions.
    pub(super) fn decide(mut self) -> Result<DataSection, ConfigError> {
        let kind = *self.dataset.get_or_insert(DatasetKind::Shapes);
        let folder = match kind {
            DatasetKind::Shapes | DatasetKind::Synthetic | DatasetKind::Custom => None,
            DatasetKind::Cifar10 | DatasetKind::Cifar100 => {
                Some("of the binary release (with --download it is fetched into it)")
            }
            DatasetKind::ImageFolder => Some("that holds train/<class>/ and val/<class>/"),
            DatasetKind::Shards => Some(
                "that holds train-*.tar and val-*.tar (`trainer shard` makes it of a folder of images)",
            ),
            DatasetKind::Parquet => Some("of the downloaded data set"),
        };
        if let Some(folder) = folder
            && self.data_dir.is_none()
        {
            return Err(missing(
                "--data-dir",
                format!("--dataset {kind} is read from files"),
                format!("give the folder {folder}, or --dataset shapes, which needs no files"),
            ));
        }
        self.download.get_or_insert(false);
        self.on_bad_image.get_or_insert(OnBadImage::Fail);
        self.shapes_test.get_or_insert(2_000);
        self.shapes_seed.get_or_insert(0);
        self.synthetic_test.get_or_insert(2_000);
        self.synthetic_classes.get_or_insert(10);
        self.loader_threads
            .get_or_insert(if kind.is_of_files() { 2 } else { 1 });
        match &self.resolution {
            Some(resolution) if kind.is_of_files() => {
                if self.image_size.is_some() {
                    return Err(conflict(
                        "--resolution",
                        "--image-size",
                        "both set the height and width of images; give one of them",
                    ));
                }
                for side in resolution.sides() {
                    within("--resolution", side, 8..=MAX_IMAGE_SIDE)?;
                }
                let side = resolution.in_evaluation();
                // 256 for 224, rounded: He et al. 2015 (1512.03385), section 3.4, and torchvision.
                let shorter = *self.eval_resize.get_or_insert((side * 256 + 112) / 224);
                within("--eval-resize", shorter, side..=2 * MAX_IMAGE_SIDE)?;
            }
            _ => _ = self.image_size.get_or_insert(DEFAULT_SIDE),
        }
        match (&self.normalize_mean, &self.normalize_std) {
            (None, None) => {}
            (Some(mean), Some(std)) => {
                let is_mean = |mean| (0.0..=1.0).contains(&mean);
                channels(
                    "--normalize-mean",
                    mean,
                    "three numbers from 0 to 1",
                    is_mean,
                )?;
                let expected =
                    "three numbers above 0 that 32 bits hold in full (1.2e-38 to 3.4e38)";
                let is_std = |std| std > 0.0 && (std as f32).is_normal();
                channels("--normalize-std", std, expected, is_std)?;
            }
            (mean, _) => {
                let (absent, given) = match mean {
                    Some(_) => ("--normalize-std", "--normalize-mean"),
                    None => ("--normalize-mean", "--normalize-std"),
                };
                let because = format!("{given} was given without it");
                return Err(missing(absent, because, "give both or neither"));
            }
        }
        file::section(&self)
    }
}

impl DataSection {
    /// Rejects features that this program was built without.
    pub(super) fn expect_offered(&self) -> Result<(), ConfigError> {
        match &self.dataset {
            DatasetChoice::Cifar10(files) | DatasetChoice::Cifar100(files)
                if files.download && !cfg!(feature = "download") =>
            {
                Err(no_effect(
                    "--download",
                    "in this program",
                    "rebuild with --features download",
                ))
            }
            DatasetChoice::Parquet(_) if !cfg!(feature = "parquet") => Err(no_effect(
                "--dataset parquet",
                "in this program",
                "rebuild with --features parquet, or make tar shards",
            )),
            _ => Ok(()),
        }
    }

    /// Returns the settings of encoded images of any size, if the data set has such images.
    pub fn image_files(&self) -> Option<&ImageFiles> {
        match &self.dataset {
            DatasetChoice::ImageFolder(files)
            | DatasetChoice::Shards(files)
            | DatasetChoice::Parquet(files) => Some(files),
            _ => None,
        }
    }

    /// Returns the folder of the data set.
    pub fn folder(&self) -> Option<&Path> {
        match &self.dataset {
            DatasetChoice::Cifar10(files) | DatasetChoice::Cifar100(files) => Some(&files.data_dir),
            _ => self.image_files().map(|files| files.data_dir.as_path()),
        }
    }

    pub(super) fn folder_mut(&mut self) -> Option<&mut PathBuf> {
        match &mut self.dataset {
            DatasetChoice::Cifar10(files) | DatasetChoice::Cifar100(files) => {
                Some(&mut files.data_dir)
            }
            DatasetChoice::ImageFolder(files)
            | DatasetChoice::Shards(files)
            | DatasetChoice::Parquet(files) => Some(&mut files.data_dir),
            _ => None,
        }
    }

    /// Returns the sizes of `--resolution`.
    pub fn resolution(&self) -> Option<&Resolution> {
        match &self.image_files()?.size {
            ImageSize::Cropped { resolution, .. } => Some(resolution),
            ImageSize::Square { .. } => None,
        }
    }

    /// Returns the name of the split that replaces val or test.
    pub fn eval_split(&self) -> Option<&str> {
        self.image_files()?.eval_split.as_deref()
    }

    /// Returns the height and width of images with a fixed size, pixels.
    pub(super) fn image_size(&self) -> usize {
        match (&self.dataset, self.image_files()) {
            (DatasetChoice::Synthetic { image_size, .. }, _) => *image_size,
            (
                _,
                Some(ImageFiles {
                    size: ImageSize::Square { image_size },
                    ..
                }),
            ) => *image_size,
            _ => DEFAULT_SIDE,
        }
    }
}

impl TrainSplitArgs {
    /// Applies the defaults for a data set and rejects contradictions.
    pub(super) fn decide(mut self, data: &DataSection) -> Result<TrainSplitSection, ConfigError> {
        let kind = data.dataset.kind();
        let resolution = data.resolution();
        // Shapes already have a random pose, and random pixels have no pose.
        let crops =
            kind.is_cifar() || (kind.is_of_files() && data.image_size() <= MAX_AUGMENTED_SIZE);
        let augment = self.augment.get_or_insert(match resolution {
            Some(_) => AugmentKind::ResizedCrop,
            None if crops => AugmentKind::CropFlip,
            None => AugmentKind::None,
        });
        let is_resized = *augment == AugmentKind::ResizedCrop;
        if !is_resized && resolution.is_some_and(Resolution::varies) {
            return Err(conflict(
                "--augment",
                "--resolution with several sizes",
                "only --augment resized-crop, its default, makes images of any size",
            ));
        }
        if let (Some(_), Some(name)) = (self.val_fraction, data.eval_split()) {
            let remedy = format!("{name} is the val split; remove one of them");
            return Err(conflict("--val-fraction", "--eval-split", remedy));
        }
        let made = |of, images: Option<usize>| (kind == of).then(|| images.unwrap_or(10_000));
        self.shapes_train = made(DatasetKind::Shapes, self.shapes_train);
        self.synthetic_train = made(DatasetKind::Synthetic, self.synthetic_train);
        self.sampler = self
            .sampler
            .filter(|sampler| *sampler != SamplerKind::Shuffle);
        self.crop_scale = is_resized.then_some(self.crop_scale.unwrap_or_default());
        if !is_resized {
            self.rand_augment = None;
        }
        if let Some(jitter) = &self.color_jitter {
            let is_share = |(at, share): (usize, &f64)| {
                (0.0..=if at == 3 { 0.5 } else { f64::MAX }).contains(share)
            };
            let has_length = matches!(jitter.len(), 3 | 4);
            if !has_length || !jitter.iter().enumerate().all(is_share) {
                let expected = "brightness, contrast, saturation, each 0 or more, and optionally hue, 0 to 0.5";
                let got: Vec<String> = jitter.iter().map(f64::to_string).collect();
                return Err(invalid("--color-jitter", expected, got.join(",")));
            }
        }
        self.drop_last.get_or_insert(false);
        file::section(&self)
    }
}

impl TrainSplitSection {
    /// Returns the number of training images generated in memory; 0 for a data set of files.
    pub fn num_made(&self) -> usize {
        self.shapes_train.or(self.synthetic_train).unwrap_or(0)
    }
}

fn channels(
    option: &'static str,
    values: &[f64],
    expected: &str,
    accepts: impl Fn(f64) -> bool,
) -> Result<(), ConfigError> {
    if values.len() == 3
        && values
            .iter()
            .all(|value| value.is_finite() && accepts(*value))
    {
        return Ok(());
    }
    let values: Vec<String> = values.iter().map(f64::to_string).collect();
    Err(invalid(
        option,
        format!("{expected}, one a channel, separated by commas"),
        values.join(","),
    ))
}
