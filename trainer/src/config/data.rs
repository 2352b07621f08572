//! Decides the data set of a run: what each source needs is there, and what it does not know is refused.
//!
//! In: [`DataArgs`] and [`TrainSplitArgs`]. Out: [`DataConfig`]. Invariant: nothing is opened.

use super::error::ConfigError;
use super::parts::{DataConfig, DataSource, NormalizationConfig};
use super::resolve::{at_least, no_effect};
use crate::choices::{DatasetKind, OnBadImageKind};
use crate::cli::{DataArgs, TrainSplitArgs};
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// The largest height and width of images, pixels.
pub(crate) const MAX_IMAGE_SIDE: usize = 1 << 12;

/// The most classes.
pub(crate) const MAX_CLASSES: usize = 1 << 16;

/// The most threads that prepare batches.
const MOST_THREADS: usize = 1 << 10;

pub(super) fn data(args: &DataArgs, split: &TrainSplitArgs) -> Result<DataConfig, ConfigError> {
    let kind = args.dataset.unwrap_or(DatasetKind::Shapes);
    refuse_foreign_options(args, split, kind)?;
    let default_threads = if kind == DatasetKind::ImageFolder { 2 } else { 1 };
    Ok(DataConfig {
        source: source(args, split, kind)?,
        normalization: normalization(args)?,
        limit_test: args.limit_test.map(|count| at_least("--limit-test", count, 1)).transpose()?,
        loader_threads: within("--loader-threads", args.loader_threads.unwrap_or(default_threads), 0..=MOST_THREADS)?,
    })
}

/// Options that only some data sets know.
fn refuse_foreign_options(args: &DataArgs, split: &TrainSplitArgs, kind: DatasetKind) -> Result<(), ConfigError> {
    use DatasetKind::{Cifar10, Cifar100, ImageFolder, Shapes, Synthetic};
    let download = args.download == Some(true);
    let known: [(&'static str, bool, &[DatasetKind]); 10] = [
        ("--data-dir", args.data_dir.is_some(), &[Cifar10, Cifar100, ImageFolder]),
        ("--download", download, &[Cifar10, Cifar100]),
        ("--image-size", args.image_size.is_some(), &[ImageFolder, Synthetic]),
        ("--on-bad-image", args.on_bad_image.is_some(), &[ImageFolder]),
        ("--shapes-train", split.shapes_train.is_some(), &[Shapes]),
        ("--shapes-test", args.shapes_test.is_some(), &[Shapes]),
        ("--shapes-seed", args.shapes_seed.is_some(), &[Shapes]),
        ("--synthetic-train", split.synthetic_train.is_some(), &[Synthetic]),
        ("--synthetic-test", args.synthetic_test.is_some(), &[Synthetic]),
        ("--synthetic-classes", args.synthetic_classes.is_some(), &[Synthetic]),
    ];
    for (option, is_given, kinds) in known {
        if is_given && !kinds.contains(&kind) {
            let names: Vec<String> = kinds.iter().map(DatasetKind::to_string).collect();
            let remedy = format!("it is for --dataset {}; leave it out or change the data set", names.join(", "));
            return Err(no_effect(option, format!("with --dataset {kind}"), remedy));
        }
    }
    if download && !cfg!(feature = "download") {
        return Err(no_effect("--download", "in this program", "rebuild with --features download"));
    }
    Ok(())
}

fn source(args: &DataArgs, split: &TrainSplitArgs, kind: DatasetKind) -> Result<DataSource, ConfigError> {
    let dir = || data_dir(args, kind);
    let download = args.download.unwrap_or(false);
    let image_size = within("--image-size", args.image_size.unwrap_or(32), 8..=MAX_IMAGE_SIDE)?;
    Ok(match kind {
        DatasetKind::Shapes => DataSource::Shapes {
            num_train: at_least("--shapes-train", split.shapes_train.unwrap_or(10_000), 1)?,
            num_test: at_least("--shapes-test", args.shapes_test.unwrap_or(2_000), 1)?,
            seed: args.shapes_seed.unwrap_or(0),
        },
        DatasetKind::Cifar10 => DataSource::Cifar10 { dir: dir()?, download },
        DatasetKind::Cifar100 => DataSource::Cifar100 { dir: dir()?, download },
        DatasetKind::ImageFolder => DataSource::ImageFolder {
            dir: dir()?,
            image_size,
            on_bad_image: args.on_bad_image.unwrap_or(OnBadImageKind::Fail),
        },
        DatasetKind::Synthetic => DataSource::Synthetic {
            num_train: at_least("--synthetic-train", split.synthetic_train.unwrap_or(10_000), 1)?,
            num_test: at_least("--synthetic-test", args.synthetic_test.unwrap_or(2_000), 1)?,
            num_classes: within("--synthetic-classes", args.synthetic_classes.unwrap_or(10), 2..=MAX_CLASSES)?,
            image_size,
        },
    })
}

fn within(option: &'static str, value: usize, range: RangeInclusive<usize>) -> Result<usize, ConfigError> {
    if !range.contains(&value) {
        let expected = format!("{} to {}", range.start(), range.end());
        return Err(ConfigError::Invalid { option, expected, got: value.to_string() });
    }
    Ok(value)
}

fn data_dir(args: &DataArgs, kind: DatasetKind) -> Result<PathBuf, ConfigError> {
    args.data_dir.clone().ok_or_else(|| ConfigError::Missing {
        option: "--data-dir",
        because: format!("--dataset {kind} is read from files"),
        remedy: match kind.is_cifar() {
            true => "give the folder of the binary release (with --download it is fetched into it), or --dataset shapes, which needs no files".to_owned(),
            false => "give the folder that holds train/<class>/ and test/<class>/, or --dataset shapes, which needs no files".to_owned(),
        },
    })
}

fn normalization(args: &DataArgs) -> Result<Option<NormalizationConfig>, ConfigError> {
    match (&args.normalize_mean, &args.normalize_std) {
        (None, None) => Ok(None),
        (Some(mean), Some(std)) => Ok(Some(NormalizationConfig {
            mean: channels("--normalize-mean", mean, "three numbers from 0 to 1", |mean| (0.0..=1.0).contains(&mean))?,
            std: channels("--normalize-std", std, "three numbers above 0", |std| std > 0.0)?,
        })),
        (Some(_), None) => Err(half_a_normalization("--normalize-std", "--normalize-mean")),
        (None, Some(_)) => Err(half_a_normalization("--normalize-mean", "--normalize-std")),
    }
}

fn half_a_normalization(option: &'static str, given: &str) -> ConfigError {
    ConfigError::Missing {
        option,
        because: format!("{given} was given alone"),
        remedy: "give both or neither".to_owned(),
    }
}

fn channels(
    option: &'static str,
    values: &[f64],
    expected: &str,
    accepts: impl Fn(f64) -> bool,
) -> Result<[f64; 3], ConfigError> {
    match <[f64; 3]>::try_from(values) {
        Ok(channels) if channels.iter().all(|value| value.is_finite() && accepts(*value)) => Ok(channels),
        _ => Err(ConfigError::Invalid {
            option,
            expected: format!("{expected}, one a channel, separated by commas"),
            got: values.iter().map(f64::to_string).collect::<Vec<_>>().join(","),
        }),
    }
}
