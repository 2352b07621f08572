//! The data set of a run, opened as configured.
//!
//! In: the resolved data section. Out: the splits with their normalisation, or one of them.
//! Invariant: files are downloaded only on request, and only by root while the other ranks wait.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
#[cfg(feature = "parquet")]
use datasets::parquet_files;
use datasets::{
    Augment, Cifar, DatasetError, DatasetSplits, Distortion, ImageDataset, ImageShape,
    Normalization, RandAugment, ReadConfig, ResizedCrop, Samples, ShapesDataset, ShardConfig,
    ShardPlan, Sizing, Split, Splits, Subset, SyntheticConfig, cifar, class_sizes, image_folder,
    synthetic, tar_shards,
};
use distributed::Communicator;
use distributed::communicator::Topology;
use records::grouped;

use crate::config::choices::Resolution;
use crate::config::cli::environment;
use crate::config::{
    AugmentKind, CifarFiles, DataSection, DatasetChoice, EvalConfig, ImageFiles, ImageSize,
    LossChoice, NormalizationChoice, TrainConfig, TrainSplitSection,
};
use crate::measure::report::{Reporter, printable};
use crate::world::ranks;

/// Black pixels around an image before a random crop, as in He et al. 2015 (1512.03385), section
/// 4.2.
const CROP_PAD: usize = 4;

/// Returns the number of steps in an epoch.
///
/// # Errors
/// If the batches of an epoch form no step.
pub fn steps_per_epoch(config: &TrainConfig, train: &impl Samples) -> Result<u64> {
    let plan = ShardPlan::new(ShardConfig {
        seed: config.run.seed,
        drop_last: config.train_split.drop_last,
        ..ShardConfig::new(train.len(), config.batch.global_batch_size)
    })?;
    Ok(plan.num_steps() as u64)
}

/// Returns the heights and widths of all images of a run, those of evaluations first.
pub fn image_sizes(config: Option<&DataSection>, shape: ImageShape) -> Vec<[usize; 2]> {
    let resolution = config.and_then(DataSection::resolution);
    let sides = resolution.into_iter().flat_map(Resolution::sides);
    let own = [[shape.height, shape.width]].into_iter();
    own.chain(sides.map(|side| [side, side])).collect()
}

/// Opens the configured data set with its limits; `own` opens a custom one. The result has at least
/// one split besides train. The val split is the split of `--eval-split`. With `--val-fraction`, it
/// is the part of the training images that `seed` selects.
/// Collective: all ranks.
///
/// # Errors
/// If files are missing or broken, there is no split to evaluate, a second val split is requested,
/// or a download fails.
pub fn open(
    config: &DataSection,
    split: &TrainSplitSection,
    seed: u64,
    own: impl FnOnce() -> Result<Option<DatasetSplits>>,
    communicator: &dyn Communicator,
    reporter: &Reporter,
) -> Result<DatasetSplits> {
    expect_folder(config)?;
    let mut splits = match &config.dataset {
        DatasetChoice::Shapes {
            shapes_test,
            shapes_seed,
        } => ShapesDataset::new(split.num_made(), *shapes_test, *shapes_seed)?,
        DatasetChoice::Cifar10(files) => open_cifar(Cifar::Ten, files, communicator, reporter)?,
        DatasetChoice::Cifar100(files) => {
            open_cifar(Cifar::Hundred, files, communicator, reporter)?
        }
        DatasetChoice::ImageFolder(files) => image_folder::open(
            &files.data_dir,
            &read_config(files, communicator.topology())?,
        )?,
        DatasetChoice::Shards(files) => {
            tar_shards::open(&files.data_dir, &shards_of_rank(files, communicator, None)?)?
        }
        #[cfg(feature = "parquet")]
        DatasetChoice::Parquet(files) => parquet_files::open(
            &files.data_dir,
            &read_config(files, communicator.topology())?,
        )?,
        #[cfg(not(feature = "parquet"))]
        DatasetChoice::Parquet(_) => bail!("--dataset parquet: rebuild with --features parquet"),
        DatasetChoice::Custom => {
            let splits = own()?.context(
                "--dataset custom: expected a program whose model family has a data set, got none; choose another, such as shapes",
            )?;
            for split in Split::ALL.into_iter().filter_map(|split| splits.get(split)) {
                expect_labels(&**split)?;
            }
            splits
        }
        DatasetChoice::Synthetic {
            image_size,
            synthetic_test,
            synthetic_classes,
        } => synthetic::open(&SyntheticConfig {
            num_train: split.num_made(),
            num_test: *synthetic_test,
            num_classes: *synthetic_classes,
            shape: ImageShape {
                height: *image_size,
                width: *image_size,
                channels: 3,
            },
            seed: 0,
        })?,
    };
    splits.notes.iter().for_each(|note| reporter.warn(note));
    tell_notes(&*splits.train, reporter);
    if let Some(files) = config.image_files()
        && let Some(name) = &files.eval_split
    {
        let named = Split::of_name(name);
        if named == Some(Split::Train) {
            reporter.warn(&format!(
                "--eval-split {name}: the best model is chosen by training images, so its figures are too good. Use another split, or --val-fraction"
            ));
        }
        // The test split keeps its name even if it selects the best model.
        splits.val = match named {
            Some(Split::Test) => None,
            _ => {
                let classes = Some(splits.train.class_names());
                Some(open_named(config, files, name, classes, communicator)?)
            }
        };
    }
    if let Some(share) = split.val_fraction {
        if let Some(val) = &splits.val {
            bail!(
                "--val-fraction: the data set has a val split already (expected none, got {} of {} images). Remove --val-fraction to use it, or move that split away",
                val.name(),
                val.len()
            );
        }
        let (train, val) = Subset::train_and_validation(splits.train, share, seed)
            .map_err(|error| error.for_option("--val-fraction"))?;
        splits.train = Arc::new(train);
        splits.val = Some(Arc::new(val));
    }
    if let Some(limit) = split.limit_train {
        splits.train = Arc::new(
            Subset::first(splits.train, limit)
                .map_err(|error| error.for_option("--limit-train"))?,
        );
    }
    evaluated(&splits)?;
    // A val split is often smaller than the limit.
    let of_val = splits
        .val
        .as_ref()
        .and_then(|val| Some(config.limit_test?.min(val.len())));
    for (evaluated, limit) in [
        (&mut splits.val, of_val),
        (&mut splits.test, config.limit_test),
    ] {
        if let Some(samples) = evaluated {
            *samples = limited(Arc::clone(samples), limit, reporter)?;
        }
    }
    splits.normalization = normalization(splits.normalization, config);
    Ok(splits)
}

/// Checks the labels of a custom data set. Labels of files are checked as they are read.
///
/// # Errors
/// If a label is not a position in the class names.
fn expect_labels(split: &dyn ImageDataset) -> Result<()> {
    let num_classes = split.class_names().len();
    let wrong = (0..split.len())
        .map(|index| (index, split.label(index)))
        .find(|&(_, label)| label >= num_classes);
    wrong.map_or(Ok(()), |(index, label)| {
        Err(anyhow!(
            "{}: sample {index}: expected a label below {num_classes}, the number of class names, got {label}",
            split.name()
        ))
    })
}

/// Returns the split that every epoch is evaluated on: val, otherwise test.
///
/// # Errors
/// If the data set has neither.
pub fn evaluated(splits: &DatasetSplits) -> Result<&Arc<dyn ImageDataset>> {
    splits.evaluated().with_context(|| {
        let why = splits.notes.iter().map(|note| format!(" ({note})")).collect::<String>();
        format!(
            "{}: expected a labelled split to evaluate on, val or test, got none{why}; add one to the data, or take a part of the training images by --val-fraction 0.1",
            splits.train.name()
        )
    })
}

/// A split and its normalisation.
#[derive(Clone, Debug)]
pub struct OpenedSplit {
    /// Samples of the split.
    pub samples: Arc<dyn ImageDataset>,
    /// Normalisation of the pixels.
    pub normalization: Normalization,
}

/// Opens one split: `train`, `val` or `test`, or another folder or files by their name. Other
/// splits are not decoded and need not exist, unless `--val-fraction` divided the training images.
/// Returns `None` if images that are not files have no such split.
///
/// If `classes` is given, labels of files become positions in `classes`, matched by class name.
/// Otherwise the labels are those of the data set.
/// Collective: all ranks.
///
/// # Errors
/// Same as [`open`]; also if files of the split are absent or have no labels.
pub fn open_split(
    eval: &EvalConfig,
    own: impl FnOnce() -> Result<Option<DatasetSplits>>,
    name: &str,
    classes: Option<&[String]>,
    communicator: &dyn Communicator,
    reporter: &Reporter,
) -> Result<Option<OpenedSplit>> {
    let config = &eval.data;
    expect_folder(config)?;
    let split = &eval.train_split;
    let named = Split::of_name(name);
    let is_part = split.val_fraction.is_some() && named.is_some_and(|named| named != Split::Test);
    if let Some(files) = config.image_files()
        && !is_part
    {
        let samples = open_named(config, files, name, classes, communicator)?;
        return Ok(Some(OpenedSplit {
            samples: limited(samples, config.limit_test, reporter)?,
            normalization: normalization(Normalization::imagenet(), config),
        }));
    }
    let mut split = split.clone();
    if !is_part {
        split.val_fraction = None;
    }
    let splits = open(config, &split, eval.seed, own, communicator, reporter)?;
    let samples = named.and_then(|named| splits.get(named)).cloned();
    Ok(samples.map(|samples| OpenedSplit {
        samples,
        normalization: splits.normalization,
    }))
}

/// Opens the split of files with this name.
/// Collective: all ranks.
fn open_named(
    config: &DataSection,
    files: &ImageFiles,
    name: &str,
    classes: Option<&[String]>,
    communicator: &dyn Communicator,
) -> Result<Arc<dyn ImageDataset>> {
    let dir = &files.data_dir;
    Ok(match config.dataset {
        DatasetChoice::Shards(_) => {
            let how = shards_of_rank(files, communicator, Some(name))?;
            tar_shards::open_split(dir, name, classes, &how)?
        }
        #[cfg(feature = "parquet")]
        DatasetChoice::Parquet(_) => {
            let how = read_config(files, communicator.topology())?;
            parquet_files::open_split(dir, name, classes, &how)?
        }
        _ => {
            let how = read_config(files, communicator.topology())?;
            image_folder::open_split(dir, name, classes, &how)?
        }
    })
}

/// Returns a split limited by flags for evaluation, and prints its notes.
fn limited(
    samples: Arc<dyn ImageDataset>,
    limit: Option<usize>,
    reporter: &Reporter,
) -> Result<Arc<dyn ImageDataset>> {
    tell_notes(&*samples, reporter);
    Ok(match limit {
        Some(limit) => Arc::new(Subset::first(samples, limit)?),
        None => samples,
    })
}

/// Returns the normalisation of the flags, otherwise that of the data set.
fn normalization(of_data: Normalization, config: &DataSection) -> Normalization {
    let floats = |values: &[f64]| values.iter().map(|&value| value as f32).collect();
    match &config.normalization {
        Some(NormalizationChoice {
            normalize_mean,
            normalize_std,
        }) => Normalization {
            mean: floats(normalize_mean),
            std: floats(normalize_std),
        },
        None => of_data,
    }
}

/// Returns all notes of a data set: notes on unopened splits, then the notes of each split.
pub fn notes(splits: &Splits<impl Samples>) -> Vec<String> {
    let opened = Split::ALL.into_iter().filter_map(|split| splits.get(split));
    splits
        .notes
        .iter()
        .cloned()
        .chain(opened.flat_map(|split| notes_of(&**split)))
        .collect()
}

fn notes_of(split: &impl Samples) -> Vec<String> {
    split
        .notes()
        .iter()
        .map(|note| format!("{}: {note}", split.name()))
        .collect()
}

fn tell_notes(split: &dyn ImageDataset, reporter: &Reporter) {
    for note in split.notes() {
        reporter.note(&format!("{}: {note}", split.name()));
    }
}

/// Returns the settings for reading images, with the rank's share of its node's memory and CPUs.
fn read_config(files: &ImageFiles, topology: &Topology) -> Result<ReadConfig> {
    let of_node = ReadConfig::new(sizing(&files.size));
    Ok(ReadConfig {
        memory_limit_bytes: of_node.memory_limit_bytes / topology.local_size as u64,
        num_threads: ranks::share_of_threads(topology)?,
        on_bad_image: files.on_bad_image,
        ..of_node
    })
}

/// Returns the settings for reading shards on one rank. Root reads the headers first, then the
/// first rank of each machine, since machines may have different disks.
///
/// `only` is the name of the single split to read; `None` means all splits.
fn shards_of_rank(
    files: &ImageFiles,
    communicator: &dyn Communicator,
    only: Option<&str>,
) -> Result<ReadConfig> {
    let topology = communicator.topology();
    let set = |variable| {
        environment(variable)
            .filter(|folder| !folder.is_empty())
            .map(PathBuf::from)
    };
    let cache_dir = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")));
    let how = ReadConfig {
        cache_dir: cache_dir.map(|folder| folder.join("lockstep")),
        ..read_config(files, topology)?
    };
    let dir = &files.data_dir;
    for reads in [
        communicator.rank() == distributed::ROOT,
        topology.local_rank == 0,
    ] {
        if reads {
            // Opening the shards reports any error in the headers.
            let _ = tar_shards::index(dir, &how, only);
        }
        communicator.barrier()?;
    }
    Ok(how)
}

/// Returns how image files become samples, in training without a crop and in evaluation.
pub fn sizing(size: &ImageSize) -> Sizing {
    match size {
        ImageSize::Cropped {
            resolution,
            eval_resize,
        } => Sizing {
            size: resolution.in_evaluation(),
            shorter_side: Some(*eval_resize),
        },
        ImageSize::Square { image_size } => Sizing::square(*image_size),
    }
}

/// Shares checksums from the first rank of each node, so that its other ranks need not read all
/// files.
/// Collective: all ranks.
///
/// `splits` is empty if a rank could not open its data set. A rank reads the files itself if its
/// `folder` differs or it receives no checksum.
///
/// # Errors
/// If a collective fails.
pub fn share_checksums(
    splits: &[&Arc<impl Samples>],
    folder: Option<&Path>,
    communicator: &dyn Communicator,
) -> Result<()> {
    let topology = communicator.topology();
    // The inode of the folder is equal under any name.
    let place = folder
        .and_then(|folder| fs::metadata(folder).ok())
        .map(|place| format!("{}:{}", place.dev(), place.ino()));
    let place = format!("{} {}", topology.node, place.unwrap_or_default());
    let mut own = vec![place.clone()];
    if topology.local_rank == 0 {
        own.extend(splits.iter().map(|split| split.checksum()));
    }
    for message in communicator.all_gather(own.join("\n").as_bytes())? {
        let message = String::from_utf8_lossy(&message);
        let mut lines = message.lines();
        if lines.next() == Some(place.as_str()) {
            let reading = splits
                .iter()
                .zip(lines)
                .filter(|(split, _)| split.checksum_reads_files());
            reading.for_each(|(split, checksum)| split.adopt_checksum(checksum));
        }
    }
    Ok(())
}

/// Checks that the folder of image files exists.
fn expect_folder(config: &DataSection) -> Result<(), DatasetError> {
    match config.image_files() {
        Some(files) if !files.data_dir.exists() => Err(DatasetError::Missing {
            what: "--data-dir: images".to_owned(),
            path: files.data_dir.clone(),
            expected: "an existing folder".to_owned(),
            remedy: "Name the folder of the images",
        }),
        _ => Ok(()),
    }
}

/// Returns a weight for each class, if classes have weights; otherwise none.
///
/// # Errors
/// If the number of weights is not that of the classes.
pub fn class_weights(config: &TrainConfig, train: &dyn ImageDataset) -> Result<Vec<f64>> {
    match &config.optimizer.loss {
        LossChoice::CrossEntropy {
            class_weights: Some(weights),
            ..
        } => weights
            .of(&class_sizes(train))
            .map_err(|problem| anyhow!("{problem}. The classes are {}", class_list(train, &[]))),
        _ => Ok(Vec::new()),
    }
}

/// Returns the number of classes, and their names with the number of training samples and the
/// weight of each; of many classes only the first.
pub fn class_list(train: &dyn ImageDataset, weights: &[f64]) -> String {
    const COLUMNS: usize = 60;
    let sizes = class_sizes(train);
    let mut list = format!("{}: ", sizes.len());
    for (label, (name, size)) in train.class_names().iter().zip(&sizes).enumerate() {
        let name: String = printable(name).chars().take(COLUMNS / 2).collect();
        let mut class = format!("{name} {}", grouped(*size as u64));
        if let Some(weight) = weights.get(label) {
            class.push_str(&format!(" (weight {weight:.4})"));
        }
        if label > 0 && (list.chars().count() + class.chars().count()) > COLUMNS {
            list.push_str(&format!(", … and {} more", sizes.len() - label));
            break;
        }
        let between = if label > 0 { ", " } else { "" };
        list.push_str(&format!("{between}{class}"));
    }
    list
}

/// Returns the configured augmentation for the loader.
pub fn augment(split: &TrainSplitSection) -> Augment {
    match split.augment {
        AugmentKind::None => Augment::None,
        AugmentKind::CropFlip => Augment::CropFlip { pad: CROP_PAD },
        AugmentKind::Trivial => Augment::Trivial { pad: CROP_PAD },
        AugmentKind::ResizedCrop => {
            let scale = split.crop_scale.unwrap_or_default();
            let crop = ResizedCrop {
                min_scale: scale.min,
                max_scale: scale.max,
            };
            match split.rand_augment {
                Some(magnitude) => Augment::Rand(crop, RandAugment { magnitude }),
                None => Augment::ResizedCrop(crop),
            }
        }
    }
}

/// Returns the configured changes of colour, rotation and erasing for the loader.
pub fn distortion(split: &TrainSplitSection) -> Distortion {
    let mut distortion = Distortion {
        rotation: split.rotation.unwrap_or_default() as f32,
        erasing: split.random_erasing.unwrap_or_default() as f32,
        ..Distortion::default()
    };
    let jitter = split.color_jitter.iter().flatten();
    for (share, configured) in distortion.color_jitter.iter_mut().zip(jitter) {
        *share = *configured as f32;
    }
    distortion
}

fn open_cifar(
    which: Cifar,
    files: &CifarFiles,
    communicator: &dyn Communicator,
    #[cfg_attr(
        not(feature = "download"),
        allow(unused_variables, reason = "only a download reports progress")
    )]
    reporter: &Reporter,
) -> Result<DatasetSplits> {
    if files.download {
        // Without the feature the configuration rejects `--download`.
        #[cfg(feature = "download")]
        if communicator.rank() == distributed::ROOT {
            let mut report = |done, total| reporter.download(which.name(), done, total);
            datasets::download::download(which, &files.data_dir, &mut report)?;
        }
        communicator.barrier()?;
    }
    Ok(cifar::open(&files.data_dir, which)?)
}

#[cfg(test)]
mod tests;
