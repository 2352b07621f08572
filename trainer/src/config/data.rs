//! Defaults and checks of the flags of data: what each data set needs is there, and what it does not know is refused.
//!
//! In: [`DataArgs`] and [`TrainSplitArgs`]. Out: the same with their gaps filled. Invariant: nothing is opened.

use super::checks::{
    Filled, at_least_one, conflict, in_range, invalid, missing, no_effect, within,
};
use super::error::ConfigError;
use crate::config::choices::{
    AugmentKind, DatasetKind, InputKind, OnBadImageKind, Resolution, SamplerKind,
};
use crate::config::cli::{DataArgs, TrainSplitArgs};
use datasets::rand_augment::MAX_MAGNITUDE;

/// Height and width of images where nobody says, pixels.
const DEFAULT_SIDE: usize = 32;

/// Largest image side that is still augmented by default: a crop of four pixels means nothing to larger ones.
const MAX_AUGMENTED_SIZE: usize = 64;

/// The largest height and width of images, pixels.
pub(crate) const MAX_IMAGE_SIDE: usize = 1 << 12;

/// The most images that are made in memory.
const MOST_MADE_IMAGES: usize = 1 << 24;

/// The most classes.
pub(crate) const MAX_CLASSES: usize = 1 << 16;

/// The most threads that a rank computes with, and that prepare its batches.
pub(super) const MOST_THREADS: usize = 1 << 10;

impl DataArgs {
    /// These flags and those of the train split with their gaps filled, for who does not train.
    pub(super) fn decided(
        mut self,
        mut split: TrainSplitArgs,
    ) -> Result<(Self, TrainSplitArgs), ConfigError> {
        self.fill(&mut split)?;
        self.expect_offered()?;
        Ok((self, split))
    }

    /// Fills the gaps, those of how many images are made to train on, too, and refuses what contradicts itself.
    pub(super) fn fill(&mut self, split: &mut TrainSplitArgs) -> Result<(), ConfigError> {
        let kind = *self.dataset.get_or_insert(DatasetKind::Shapes);
        refuse_foreign_options(self, split, kind)?;
        let made = 1..=MOST_MADE_IMAGES;
        match kind {
            DatasetKind::Shapes => {
                within(
                    "--shapes-train",
                    *split.shapes_train.get_or_insert(10_000),
                    made.clone(),
                )?;
                within(
                    "--shapes-test",
                    *self.shapes_test.get_or_insert(2_000),
                    made,
                )?;
                self.shapes_seed.get_or_insert(0);
            }
            DatasetKind::Own => {}
            DatasetKind::Cifar10 | DatasetKind::Cifar100 => expect_folder(self, kind)?,
            DatasetKind::ImageFolder | DatasetKind::Shards | DatasetKind::Parquet => {
                expect_folder(self, kind)?;
                self.fill_size_of_files()?;
                self.on_bad_image.get_or_insert(OnBadImageKind::Fail);
            }
            DatasetKind::Synthetic => {
                self.fill_image_size()?;
                within(
                    "--synthetic-train",
                    *split.synthetic_train.get_or_insert(10_000),
                    made.clone(),
                )?;
                within(
                    "--synthetic-test",
                    *self.synthetic_test.get_or_insert(2_000),
                    made,
                )?;
                within(
                    "--synthetic-classes",
                    *self.synthetic_classes.get_or_insert(10),
                    2..=MAX_CLASSES,
                )?;
            }
        }
        self.download = kind.is_cifar().then_some(self.download.unwrap_or(false));
        check_normalization(self)?;
        at_least_one("--limit-test", self.limit_test)?;
        let threads = if kind.is_of_files() { 2 } else { 1 };
        within(
            "--loader-threads",
            *self.loader_threads.get_or_insert(threads),
            0..=MOST_THREADS,
        )?;
        Ok(())
    }

    fn fill_image_size(&mut self) -> Result<(), ConfigError> {
        within(
            "--image-size",
            *self.image_size.get_or_insert(DEFAULT_SIDE),
            8..=MAX_IMAGE_SIDE,
        )?;
        Ok(())
    }

    /// Fills how images of any size are brought to that of the model.
    fn fill_size_of_files(&mut self) -> Result<(), ConfigError> {
        let Some(resolution) = &self.resolution else {
            if self.eval_resize.is_some() {
                return Err(no_effect(
                    "--eval-resize",
                    "without --resolution",
                    "give both, or leave this out",
                ));
            }
            return self.fill_image_size();
        };
        if self.image_size.is_some() {
            return Err(conflict(
                "--resolution",
                "--image-size",
                "both say the height and width of images; give one of them",
            ));
        }
        resolution
            .sides()
            .try_for_each(|side| within("--resolution", side, 8..=MAX_IMAGE_SIDE).map(drop))?;
        let side = resolution.in_evaluation();
        // 256 at 224, rounded: He et al. 2015 (1512.03385), section 3.4, and torchvision's evaluation since.
        let shorter_side = *self.eval_resize.get_or_insert((side * 256 + 112) / 224);
        within("--eval-resize", shorter_side, side..=2 * MAX_IMAGE_SIDE)?;
        Ok(())
    }

    /// Refuses to fetch what this program cannot fetch.
    pub(super) fn expect_offered(&self) -> Result<(), ConfigError> {
        if self.download == Some(true) && !cfg!(feature = "download") {
            return Err(no_effect(
                "--download",
                "in this program",
                "rebuild with --features download",
            ));
        }
        if self.dataset == Some(DatasetKind::Parquet) && !cfg!(feature = "parquet") {
            return Err(no_effect(
                "--dataset parquet",
                "in this program",
                "rebuild with --features parquet, or make tar shards",
            ));
        }
        Ok(())
    }

    /// Height and width of the images, pixels.
    pub(super) fn image_size(&self) -> usize {
        self.image_size.unwrap_or(DEFAULT_SIDE)
    }
}

impl TrainSplitArgs {
    /// Fills the gaps that the data set leaves, and refuses what contradicts itself.
    pub(super) fn fill(&mut self, data: &DataArgs) -> Result<(), ConfigError> {
        let kind = data.dataset.filled();
        // Shapes are drawn with random pose already, and random pixels have no pose.
        let crops =
            kind.is_cifar() || (kind.is_of_files() && data.image_size() <= MAX_AUGMENTED_SIZE);
        at_least_one("--limit-train", self.limit_train)?;
        // The default is not written down: it is the order of all runs that do not name one.
        self.sampler
            .take_if(|sampler| *sampler == SamplerKind::Shuffle);
        if let Some(share) = self.val_fraction {
            in_range("--val-fraction", share, "above 0 and below 1", |share| {
                share > 0.0 && share < 1.0
            })?;
            if let Some(name) = &data.eval_split {
                let remedy = format!("{name} is the val split; remove one of them");
                return Err(conflict("--val-fraction", "--eval-split", remedy));
            }
        }
        let augment = *self.augment.get_or_insert(match data.resolution {
            Some(_) => AugmentKind::ResizedCrop,
            None if crops => AugmentKind::CropFlip,
            None => AugmentKind::None,
        });
        if augment != AugmentKind::ResizedCrop
            && data.resolution.as_ref().is_some_and(Resolution::varies)
        {
            return Err(conflict(
                "--augment",
                "--resolution with several sizes",
                "only --augment resized-crop, its default, makes images of any size",
            ));
        }
        if augment == AugmentKind::ResizedCrop {
            self.crop_scale.get_or_insert_default();
        } else if let Some((option, _)) = self
            .of_resized_crop()
            .into_iter()
            .find(|(_, is_given)| *is_given)
        {
            return Err(no_effect(
                option,
                format!("with --augment {augment}"),
                "it is for --augment resized-crop",
            ));
        }
        let magnitude = self.rand_augment.unwrap_or(0.0);
        in_range("--rand-augment", magnitude, "0 to 10", |magnitude| {
            (0.0..=MAX_MAGNITUDE).contains(&magnitude)
        })?;
        self.drop_last.get_or_insert(false);
        for (option, alpha) in self.mixes() {
            in_range(
                option,
                alpha.unwrap_or(1.0),
                "above 0 and at most 100",
                |alpha| alpha > 0.0 && alpha <= 100.0,
            )?;
        }
        Ok(())
    }

    /// Refuses what a device cannot do that makes its images.
    pub(super) fn expect_input(&self, input: InputKind) -> Result<(), ConfigError> {
        let given = self.mixes().into_iter().find(|(_, alpha)| alpha.is_some());
        match given.filter(|_| input == InputKind::Device) {
            None => Ok(()),
            Some((option, _)) => Err(conflict(
                option,
                "--input device, the default of --device cuda",
                "images are mixed in main memory; give --input host",
            )),
        }
    }

    fn of_resized_crop(&self) -> [(&'static str, bool); 2] {
        [
            ("--crop-scale", self.crop_scale.is_some()),
            ("--rand-augment", self.rand_augment.is_some()),
        ]
    }

    fn mixes(&self) -> [(&'static str, Option<f64>); 2] {
        [("--mixup", self.mixup), ("--cutmix", self.cutmix)]
    }
}

/// Options that only some data sets know.
fn refuse_foreign_options(
    args: &DataArgs,
    split: &TrainSplitArgs,
    kind: DatasetKind,
) -> Result<(), ConfigError> {
    use DatasetKind::{Cifar10, Cifar100, ImageFolder, Parquet, Shapes, Shards, Synthetic};
    let download = args.download == Some(true);
    let known: [(&'static str, bool, &[DatasetKind]); 13] = [
        (
            "--data-dir",
            args.data_dir.is_some(),
            &[Cifar10, Cifar100, ImageFolder, Shards, Parquet],
        ),
        ("--download", download, &[Cifar10, Cifar100]),
        (
            "--image-size",
            args.image_size.is_some(),
            &[ImageFolder, Shards, Parquet, Synthetic],
        ),
        (
            "--resolution",
            args.resolution.is_some(),
            &[ImageFolder, Shards, Parquet],
        ),
        (
            "--eval-resize",
            args.eval_resize.is_some(),
            &[ImageFolder, Shards, Parquet],
        ),
        (
            "--on-bad-image",
            args.on_bad_image.is_some(),
            &[ImageFolder, Shards, Parquet],
        ),
        (
            "--eval-split",
            args.eval_split.is_some(),
            &[ImageFolder, Shards, Parquet],
        ),
        ("--shapes-train", split.shapes_train.is_some(), &[Shapes]),
        ("--shapes-test", args.shapes_test.is_some(), &[Shapes]),
        ("--shapes-seed", args.shapes_seed.is_some(), &[Shapes]),
        (
            "--synthetic-train",
            split.synthetic_train.is_some(),
            &[Synthetic],
        ),
        (
            "--synthetic-test",
            args.synthetic_test.is_some(),
            &[Synthetic],
        ),
        (
            "--synthetic-classes",
            args.synthetic_classes.is_some(),
            &[Synthetic],
        ),
    ];
    for (option, is_given, kinds) in known {
        if is_given && !kinds.contains(&kind) {
            let names: Vec<String> = kinds.iter().map(DatasetKind::to_string).collect();
            let remedy = format!(
                "it is for --dataset {}; leave it out or change the data set",
                names.join(", ")
            );
            return Err(no_effect(option, format!("with --dataset {kind}"), remedy));
        }
    }
    Ok(())
}

fn expect_folder(args: &DataArgs, kind: DatasetKind) -> Result<(), ConfigError> {
    if args.data_dir.is_some() {
        return Ok(());
    }
    Err(missing("--data-dir", format!("--dataset {kind} is read from files"), match kind {
            DatasetKind::Shards => "give the folder that holds train-*.tar and val-*.tar (`trainer shard` makes it of a folder of images), or --dataset shapes, which needs no files".to_owned(),
            DatasetKind::Parquet => "give the folder of the data set as it was downloaded, or --dataset shapes, which needs no files".to_owned(),
            _ if kind.is_cifar() => "give the folder of the binary release (with --download it is fetched into it), or --dataset shapes, which needs no files".to_owned(),
            _ => "give the folder that holds train/<class>/ and val/<class>/, or --dataset shapes, which needs no files".to_owned(),
        }))
}

fn check_normalization(args: &DataArgs) -> Result<(), ConfigError> {
    match (&args.normalize_mean, &args.normalize_std) {
        (None, None) => Ok(()),
        (Some(mean), Some(std)) => {
            channels(
                "--normalize-mean",
                mean,
                "three numbers from 0 to 1",
                |mean| (0.0..=1.0).contains(&mean),
            )?;
            channels(
                "--normalize-std",
                std,
                "three numbers above 0 that 32 bits hold in full (1.2e-38 to 3.4e38)",
                |std| std > 0.0 && (std as f32).is_normal(),
            )
        }
        (Some(_), None) => Err(half_a_normalization("--normalize-std", "--normalize-mean")),
        (None, Some(_)) => Err(half_a_normalization("--normalize-mean", "--normalize-std")),
    }
}

fn half_a_normalization(option: &'static str, given: &str) -> ConfigError {
    missing(
        option,
        format!("{given} was given alone"),
        "give both or neither",
    )
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
    Err(invalid(
        option,
        format!("{expected}, one a channel, separated by commas"),
        values
            .iter()
            .map(f64::to_string)
            .collect::<Vec<_>>()
            .join(","),
    ))
}
