//! The sections `[data]` and `[train-split]`: which images, and how training changes them.
//!
//! In: [`DataArgs`] and [`TrainSplitArgs`]. Out: [`DataSection`] and [`TrainSplitSection`].
//! Invariant: no file is opened.

use super::checks::{at_least_one, conflict, in_range, invalid, missing, no_effect, within};
use super::error::ConfigError;
use super::options;
use crate::config::choices::{
    AugmentKind, CropScale, DatasetKind, OnBadImage, Resolution, SamplerKind,
};
use crate::config::cli::{DataArgs, TrainSplitArgs};
use datasets::rand_augment::MAX_MAGNITUDE;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Default height and width of images, pixels.
const DEFAULT_SIDE: usize = 32;
/// Largest image side that is augmented by default: on larger images a crop of four pixels has no
/// visible effect.
const MAX_AUGMENTED_SIZE: usize = 64;
/// Largest height and width of images, pixels.
pub(crate) const MAX_IMAGE_SIDE: usize = 1 << 12;
/// Largest number of images made in memory.
const MAX_MADE_IMAGES: usize = 1 << 24;
/// Largest number of classes.
pub(crate) const MAX_CLASSES: usize = 1 << 16;
/// Largest number of threads that compute or prepare batches on a rank.
pub(super) const MAX_THREADS: usize = 1 << 10;
/// End of the remedy for a missing `--data-dir`.
const NO_FILES: &str = "or --dataset shapes, which needs no files";

/// The images of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct DataSection {
    /// The data set with its options.
    #[serde(flatten)]
    pub dataset: DatasetChoice,
    /// Normalisation that replaces that of the data set.
    #[serde(flatten)]
    pub normalization: Option<NormalizationChoice>,
    /// Number of images used of the val split and of the test split.
    pub limit_test: Option<usize>,
    /// Threads of a rank that prepare batches.
    pub loader_threads: usize,
}

/// A data set with the options that it takes.
#[derive(Debug, Clone, PartialEq, Serialize)]
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
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct CifarFiles {
    /// The folder of the binary release.
    pub data_dir: PathBuf,
    /// True if absent files are downloaded.
    pub download: bool,
}

/// Encoded images of any size.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct ImageFiles {
    /// The folder of the data set.
    pub data_dir: PathBuf,
    /// The size that the model takes.
    #[serde(flatten)]
    pub size: ImageSize,
    /// Treatment of images that cannot be decoded.
    pub on_bad_image: OnBadImage,
    /// Name of the split to evaluate instead of val or test.
    pub eval_split: Option<String>,
}

/// The way from image files to the size of the model.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged, rename_all_fields = "kebab-case")]
pub enum ImageSize {
    /// Squeezed to a square.
    Square { image_size: usize },
    /// Read at their own size; cropped.
    Cropped {
        resolution: Resolution,
        eval_resize: usize,
    },
}

/// Mean and standard deviation of each channel.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct NormalizationChoice {
    pub normalize_mean: Vec<f64>,
    pub normalize_std: Vec<f64>,
}

/// Options of training images.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct TrainSplitSection {
    pub shapes_train: Option<usize>,
    pub synthetic_train: Option<usize>,
    pub limit_train: Option<usize>,
    pub val_fraction: Option<f64>,
    /// Absent for the default, a shuffled order.
    pub sampler: Option<SamplerKind>,
    pub augment: AugmentKind,
    /// Present with `--augment resized-crop`.
    pub crop_scale: Option<CropScale>,
    pub rand_augment: Option<f64>,
    pub mixup: Option<f64>,
    pub cutmix: Option<f64>,
    pub drop_last: bool,
}

impl DataArgs {
    /// Decides this section and the train split for a command that does not train.
    pub(super) fn decide_with(
        self,
        split: TrainSplitArgs,
    ) -> Result<(DataSection, TrainSplitSection), ConfigError> {
        let typed = BTreeMap::from([("data", self.clone())]);
        let data = self.decide()?;
        options::expect_effect(&typed, &BTreeMap::from([("data", &data)]))?;
        data.expect_offered()?;
        let split = split.decide(&data)?;
        Ok((data, split))
    }

    /// Applies the defaults and refuses contradictions.
    pub(super) fn decide(self) -> Result<DataSection, ConfigError> {
        let kind = self.dataset.unwrap_or(DatasetKind::Shapes);
        let made = 1..=MAX_MADE_IMAGES;
        let dataset = match kind {
            DatasetKind::Shapes => DatasetChoice::Shapes {
                shapes_test: within("--shapes-test", self.shapes_test.unwrap_or(2_000), made)?,
                shapes_seed: self.shapes_seed.unwrap_or(0),
            },
            DatasetKind::Cifar10 => DatasetChoice::Cifar10(self.cifar_files()?),
            DatasetKind::Cifar100 => DatasetChoice::Cifar100(self.cifar_files()?),
            DatasetKind::ImageFolder => DatasetChoice::ImageFolder(
                self.image_files("give the folder that holds train/<class>/ and val/<class>/")?,
            ),
            DatasetKind::Shards => DatasetChoice::Shards(self.image_files(
                "give the folder that holds train-*.tar and val-*.tar (`trainer shard` makes it of a folder of images)",
            )?),
            DatasetKind::Parquet => DatasetChoice::Parquet(
                self.image_files("give the folder of the downloaded data set")?,
            ),
            DatasetKind::Synthetic => DatasetChoice::Synthetic {
                image_size: self.square()?,
                synthetic_test: within(
                    "--synthetic-test",
                    self.synthetic_test.unwrap_or(2_000),
                    made,
                )?,
                synthetic_classes: within(
                    "--synthetic-classes",
                    self.synthetic_classes.unwrap_or(10),
                    2..=MAX_CLASSES,
                )?,
            },
            DatasetKind::Custom => DatasetChoice::Custom,
        };
        let threads = if kind.is_of_files() { 2 } else { 1 };
        Ok(DataSection {
            dataset,
            normalization: normalization(self.normalize_mean, self.normalize_std)?,
            limit_test: at_least_one("--limit-test", self.limit_test)?,
            loader_threads: within(
                "--loader-threads",
                self.loader_threads.unwrap_or(threads),
                0..=MAX_THREADS,
            )?,
        })
    }

    fn folder(&self, remedy: &str) -> Result<PathBuf, ConfigError> {
        self.data_dir.clone().ok_or_else(|| {
            let kind = self.dataset.unwrap_or(DatasetKind::Shapes);
            missing(
                "--data-dir",
                format!("--dataset {kind} is read from files"),
                format!("{remedy}, {NO_FILES}"),
            )
        })
    }

    fn cifar_files(&self) -> Result<CifarFiles, ConfigError> {
        Ok(CifarFiles {
            data_dir: self.folder(
                "give the folder of the binary release (with --download it is fetched into it)",
            )?,
            download: self.download.unwrap_or(false),
        })
    }

    fn image_files(&self, remedy: &str) -> Result<ImageFiles, ConfigError> {
        Ok(ImageFiles {
            data_dir: self.folder(remedy)?,
            size: self.size()?,
            on_bad_image: self.on_bad_image.unwrap_or(OnBadImage::Fail),
            eval_split: self.eval_split.clone(),
        })
    }

    fn square(&self) -> Result<usize, ConfigError> {
        within(
            "--image-size",
            self.image_size.unwrap_or(DEFAULT_SIDE),
            8..=MAX_IMAGE_SIDE,
        )
    }

    fn size(&self) -> Result<ImageSize, ConfigError> {
        let Some(resolution) = &self.resolution else {
            return Ok(ImageSize::Square {
                image_size: self.square()?,
            });
        };
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
        // 256 at 224, rounded: He et al. 2015 (1512.03385), section 3.4, and torchvision.
        let shorter_side = self.eval_resize.unwrap_or((side * 256 + 112) / 224);
        Ok(ImageSize::Cropped {
            resolution: resolution.clone(),
            eval_resize: within("--eval-resize", shorter_side, side..=2 * MAX_IMAGE_SIDE)?,
        })
    }
}

impl DataSection {
    /// Refuses features that this program was built without.
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

    /// Returns the encoded images of any size, if the data set has such.
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

    /// Returns height and width of images that have a fixed size, pixels.
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

impl DatasetChoice {
    /// Returns the choice without its options.
    pub fn kind(&self) -> DatasetKind {
        match self {
            Self::Shapes { .. } => DatasetKind::Shapes,
            Self::Cifar10(_) => DatasetKind::Cifar10,
            Self::Cifar100(_) => DatasetKind::Cifar100,
            Self::ImageFolder(_) => DatasetKind::ImageFolder,
            Self::Shards(_) => DatasetKind::Shards,
            Self::Parquet(_) => DatasetKind::Parquet,
            Self::Synthetic { .. } => DatasetKind::Synthetic,
            Self::Custom => DatasetKind::Custom,
        }
    }
}

impl TrainSplitArgs {
    /// Applies the defaults for a data set and refuses contradictions.
    pub(super) fn decide(self, data: &DataSection) -> Result<TrainSplitSection, ConfigError> {
        let kind = data.dataset.kind();
        let resolution = data.resolution();
        // Shapes are drawn with a random pose already, and random pixels have no pose.
        let crops =
            kind.is_cifar() || (kind.is_of_files() && data.image_size() <= MAX_AUGMENTED_SIZE);
        let augment = self.augment.unwrap_or(match resolution {
            Some(_) => AugmentKind::ResizedCrop,
            None if crops => AugmentKind::CropFlip,
            None => AugmentKind::None,
        });
        let is_resized = augment == AugmentKind::ResizedCrop;
        if !is_resized && resolution.is_some_and(Resolution::varies) {
            return Err(conflict(
                "--augment",
                "--resolution with several sizes",
                "only --augment resized-crop, its default, makes images of any size",
            ));
        }
        if let Some(share) = self.val_fraction {
            in_range("--val-fraction", share, "above 0 and below 1", |share| {
                share > 0.0 && share < 1.0
            })?;
            if let Some(name) = data.eval_split() {
                let remedy = format!("{name} is the val split; remove one of them");
                return Err(conflict("--val-fraction", "--eval-split", remedy));
            }
        }
        if let Some(magnitude) = self.rand_augment {
            in_range("--rand-augment", magnitude, "0 to 10", |magnitude| {
                (0.0..=MAX_MAGNITUDE).contains(&magnitude)
            })?;
        }
        for (option, alpha) in [("--mixup", self.mixup), ("--cutmix", self.cutmix)] {
            in_range(
                option,
                alpha.unwrap_or(1.0),
                "above 0 and at most 100",
                |alpha| alpha > 0.0 && alpha <= 100.0,
            )?;
        }
        let made = |option, images: Option<usize>, of| {
            (kind == of)
                .then(|| within(option, images.unwrap_or(10_000), 1..=MAX_MADE_IMAGES))
                .transpose()
        };
        Ok(TrainSplitSection {
            shapes_train: made("--shapes-train", self.shapes_train, DatasetKind::Shapes)?,
            synthetic_train: made(
                "--synthetic-train",
                self.synthetic_train,
                DatasetKind::Synthetic,
            )?,
            limit_train: at_least_one("--limit-train", self.limit_train)?,
            val_fraction: self.val_fraction,
            sampler: self
                .sampler
                .filter(|sampler| *sampler != SamplerKind::Shuffle),
            augment,
            crop_scale: is_resized.then(|| self.crop_scale.unwrap_or_default()),
            rand_augment: self.rand_augment.filter(|_| is_resized),
            mixup: self.mixup,
            cutmix: self.cutmix,
            drop_last: self.drop_last.unwrap_or(false),
        })
    }
}

impl TrainSplitSection {
    /// Returns the number of training images made in memory; 0 for a data set of files.
    pub fn num_made(&self) -> usize {
        self.shapes_train.or(self.synthetic_train).unwrap_or(0)
    }
}

fn normalization(
    mean: Option<Vec<f64>>,
    std: Option<Vec<f64>>,
) -> Result<Option<NormalizationChoice>, ConfigError> {
    let half = |option, given: &str| {
        missing(
            option,
            format!("{given} was given without it"),
            "give both or neither",
        )
    };
    match (mean, std) {
        (None, None) => Ok(None),
        (Some(mean), Some(std)) => {
            channels(
                "--normalize-mean",
                &mean,
                "three numbers from 0 to 1",
                |mean| (0.0..=1.0).contains(&mean),
            )?;
            channels(
                "--normalize-std",
                &std,
                "three numbers above 0 that 32 bits hold in full (1.2e-38 to 3.4e38)",
                |std| std > 0.0 && (std as f32).is_normal(),
            )?;
            Ok(Some(NormalizationChoice {
                normalize_mean: mean,
                normalize_std: std,
            }))
        }
        (Some(_), None) => Err(half("--normalize-std", "--normalize-mean")),
        (None, Some(_)) => Err(half("--normalize-mean", "--normalize-std")),
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
