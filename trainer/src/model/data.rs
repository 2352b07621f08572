//! The data set of a run, opened as its configuration says.
//!
//! In: the resolved data section. Out: the splits with their normalisation, or one of them.
//! Invariant: nothing is downloaded unless asked for, and then by root alone while the others wait.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
#[cfg(feature = "parquet")]
use datasets::parquet_files::{self, ParquetConfig};
use datasets::{
    Augment, Cifar, DatasetError, DatasetSplits, ImageDataset, ImageFolderConfig, ImageShape, Normalization,
    OnBadImage, RandAugment, ResizedCrop, ShapesConfig, ShardConfig, ShardPlan, Sizing, Split, Subset, SyntheticConfig,
    TarShardsConfig, cifar, image_folder, shapes, synthetic, tar_shards,
};
use distributed::{Communicator, Topology};

use crate::config::cli::{DataArgs, TrainSplitArgs, environment};
use crate::config::{AugmentKind, DatasetKind, Filled, OnBadImageKind, TrainConfig};
use crate::measure::report::Reporter;
use crate::world::ranks;

/// Pixels of black around an image before a random crop, as He et al. 2015 (1512.03385), section 4.2.
const CROP_PAD: usize = 4;

/// Steps of an epoch of a run on these data.
///
/// # Errors
/// When its batches leave no step.
pub fn steps_per_epoch(config: &TrainConfig, data: &DatasetSplits) -> Result<u64> {
    let plan = ShardPlan::new(ShardConfig {
        seed: config.run.seed.filled(),
        drop_last: config.train_split.drop_last.filled(),
        ..ShardConfig::new(data.train.len(), config.batch.global_batch_size.filled())
    })?;
    Ok(plan.num_steps() as u64)
}

/// Opens the data set, or with `own` that of the program, its splits limited as configured; at least one besides the training split is there.
/// Collective: all ranks.
///
/// # Errors
/// When files are missing or broken, there is nothing to evaluate on, or a download fails.
pub fn open(
    config: &DataArgs,
    split: &TrainSplitArgs,
    own: impl FnOnce() -> Result<Option<DatasetSplits>>,
    communicator: &dyn Communicator,
    reporter: &Reporter,
) -> Result<DatasetSplits> {
    let mut splits = match config.dataset.filled() {
        DatasetKind::Shapes => shapes::open(&ShapesConfig {
            num_train: split.shapes_train.filled(),
            num_test: config.shapes_test.filled(),
            seed: config.shapes_seed.filled(),
        })?,
        DatasetKind::Cifar10 => open_cifar(Cifar::Ten, config, communicator, reporter)?,
        DatasetKind::Cifar100 => open_cifar(Cifar::Hundred, config, communicator, reporter)?,
        DatasetKind::ImageFolder => {
            let how = folder_of_rank(sizing(config), on_bad_image(config), communicator.topology())?;
            image_folder::open(config.data_dir.filled(), &how)?
        }
        DatasetKind::Shards => {
            let how = shards_of_rank(config, communicator, None)?;
            tar_shards::open(config.data_dir.filled(), &how)?
        }
        DatasetKind::Parquet => open_parquet(config, communicator.topology())?,
        DatasetKind::Own => {
            let splits = own()?.context(
                "--dataset own: expected a program whose model family brings a data set, got none; choose another, such as shapes",
            )?;
            let mut all = [Split::Train, Split::Val, Split::Test].into_iter().filter_map(|split| splits.get(split));
            all.try_for_each(|split| expect_labels(&**split))?;
            splits
        }
        DatasetKind::Synthetic => {
            let side = config.image_size.filled();
            synthetic::open(&SyntheticConfig {
                num_train: split.synthetic_train.filled(),
                num_test: config.synthetic_test.filled(),
                num_classes: config.synthetic_classes.filled(),
                shape: ImageShape { height: side, width: side, channels: 3 },
                seed: 0,
            })?
        }
    };
    splits.notes.iter().for_each(|note| reporter.warn(note));
    tell_notes(&*splits.train, reporter);
    if let Some(limit) = split.limit_train {
        splits.train = Arc::new(Subset::first(splits.train, limit)?);
    }
    evaluated(&splits)?;
    for evaluated in [&mut splits.val, &mut splits.test].into_iter().flatten() {
        *evaluated = limited(Arc::clone(evaluated), config, reporter)?;
    }
    splits.normalization = normalization(splits.normalization, config);
    Ok(splits)
}

/// Checks the labels of a data set that a program brings; those of files are checked as they are read.
///
/// # Errors
/// When a label is no position in the class names.
fn expect_labels(split: &dyn ImageDataset) -> Result<()> {
    let num_classes = split.class_names().len();
    let wrong = (0..split.len()).map(|index| (index, split.label(index))).find(|&(_, label)| label >= num_classes);
    wrong.map_or(Ok(()), |(index, label)| {
        Err(anyhow!(
            "{}: sample {index}: expected a label below {num_classes}, the number of class names, got {label}",
            split.name()
        ))
    })
}

/// The split that every epoch is evaluated on: the validation split, else the test split.
///
/// # Errors
/// When the data set has neither.
pub fn evaluated(splits: &DatasetSplits) -> Result<&Arc<dyn ImageDataset>> {
    splits.evaluated().with_context(|| {
        let why = splits.notes.iter().map(|note| format!(" ({note})")).collect::<String>();
        format!(
            "{}: expected a labelled split to evaluate on, val or test, got none{why}; add one to the data",
            splits.train.name()
        )
    })
}

/// One split.
#[derive(Clone, Debug)]
pub struct OpenedSplit {
    /// Its samples.
    pub samples: Arc<dyn ImageDataset>,
    /// How their pixels become numbers.
    pub normalization: Normalization,
}

/// Opens one split: `train`, `val` or `test`, another folder or other files by their name, or without a `name` the one that [`evaluated`] takes.
/// Other splits are not decoded and need not be there.
///
/// Labels of files become positions in `classes`, by the names of the classes, if these are given; else they are those of the data set.
/// Collective: all ranks.
///
/// # Errors
/// As [`open`], and when the split is not there or has no labels.
pub fn open_split(
    config: &DataArgs,
    split: &TrainSplitArgs,
    own: impl FnOnce() -> Result<Option<DatasetSplits>>,
    name: Option<&str>,
    classes: Option<&[String]>,
    communicator: &dyn Communicator,
    reporter: &Reporter,
) -> Result<OpenedSplit> {
    let dir = || config.data_dir.filled();
    let samples = match config.dataset.filled() {
        DatasetKind::ImageFolder => {
            let how = folder_of_rank(sizing(config), on_bad_image(config), communicator.topology())?;
            first_split(name, |name| image_folder::open_split(dir(), name, classes, &how))?
        }
        DatasetKind::Shards => {
            let how = shards_of_rank(config, communicator, Some(name))?;
            first_split(name, |name| tar_shards::open_split(dir(), name, classes, &how))?
        }
        #[cfg(feature = "parquet")]
        DatasetKind::Parquet => {
            let how = parquet_of_rank(config, communicator.topology())?;
            first_split(name, |name| parquet_files::open_split(dir(), name, classes, &how))?
        }
        kind => {
            let splits = open(config, split, own, communicator, reporter)?;
            let samples = match name {
                None => evaluated(&splits)?,
                Some(name) => Split::of_name(name).and_then(|split| splits.get(split)).with_context(|| {
                    format!("split: expected one of the splits of --dataset {kind}, got {name}; it has train and test")
                })?,
            };
            return Ok(OpenedSplit { samples: Arc::clone(samples), normalization: splits.normalization });
        }
    };
    let samples = limited(samples, config, reporter)?;
    Ok(OpenedSplit { samples, normalization: normalization(Normalization::imagenet(), config) })
}

/// The names of the splits to evaluate on, the first that is there and has labels.
const EVALUATED: [Split; 2] = [Split::Val, Split::Test];

/// Opens the split `name`, or the first of those to evaluate on.
fn first_split(
    name: Option<&str>,
    open: impl Fn(&str) -> Result<Arc<dyn ImageDataset>, DatasetError>,
) -> Result<Arc<dyn ImageDataset>> {
    if let Some(name) = name {
        return Ok(open(name)?);
    }
    let mut last = None;
    for split in EVALUATED {
        match (open(split.names()[0]), &last) {
            // What has no labels says more than what is not there.
            (Err(DatasetError::Missing { .. }), Some(DatasetError::Unlabelled { .. })) => {}
            (Err(error @ (DatasetError::Missing { .. } | DatasetError::Unlabelled { .. })), _) => last = Some(error),
            (opened, _) => return Ok(opened?),
        }
    }
    Err(last.map_or_else(|| anyhow::anyhow!("expected a split to evaluate on, got none"), Into::into))
}

/// A split to evaluate on as flags want it, with its notes told.
fn limited(
    mut samples: Arc<dyn ImageDataset>,
    config: &DataArgs,
    reporter: &Reporter,
) -> Result<Arc<dyn ImageDataset>> {
    tell_notes(&*samples, reporter);
    if let Some(limit) = config.limit_test {
        samples = Arc::new(Subset::first(samples, limit)?);
    }
    Ok(samples)
}

/// The normalisation of flags, else the data set's.
fn normalization(of_data: Normalization, config: &DataArgs) -> Normalization {
    let floats = |values: &[f64]| values.iter().map(|&value| value as f32).collect();
    match (&config.normalize_mean, &config.normalize_std) {
        (Some(mean), Some(std)) => Normalization { mean: floats(mean), std: floats(std) },
        _ => of_data,
    }
}

/// All notes of a data set: those on splits that are not opened, then those of each split.
pub fn notes(splits: &DatasetSplits) -> Vec<String> {
    let opened = Split::ALL.into_iter().filter_map(|split| splits.get(split));
    splits.notes.iter().cloned().chain(opened.flat_map(|split| notes_of(&**split))).collect()
}

fn notes_of(split: &dyn ImageDataset) -> Vec<String> {
    split.notes().iter().map(|note| format!("{}: {note}", split.name())).collect()
}

fn tell_notes(split: &dyn ImageDataset, reporter: &Reporter) {
    notes_of(split).iter().for_each(|note| reporter.note(note));
}

/// How one rank reads a folder of images: with its share of the memory and the processors that a node's only rank would use.
fn folder_of_rank(sizing: Sizing, on_bad_image: OnBadImage, topology: &Topology) -> Result<ImageFolderConfig> {
    let of_node = ImageFolderConfig::new(sizing);
    Ok(ImageFolderConfig {
        memory_limit_bytes: of_node.memory_limit_bytes / topology.local_size as u64,
        num_threads: ranks::share_of_threads(topology)?,
        on_bad_image,
        ..of_node
    })
}

/// How one rank reads shards, whose headers root has read first, then the first rank of each machine, which may see other disks.
///
/// `only` is the split that is wanted, where not all are: by its name, or the one to evaluate on.
fn shards_of_rank(
    config: &DataArgs,
    communicator: &dyn Communicator,
    only: Option<Option<&str>>,
) -> Result<TarShardsConfig> {
    let topology = communicator.topology();
    let set = |variable| environment(variable).filter(|folder| !folder.is_empty()).map(PathBuf::from);
    let cache_dir = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")));
    let how = TarShardsConfig {
        sizing: sizing(config),
        on_bad_image: on_bad_image(config),
        num_threads: ranks::share_of_threads(topology)?,
        cache_dir: cache_dir.map(|folder| folder.join("lockstep")),
    };
    let dir: PathBuf = config.data_dir.filled();
    for reads in [communicator.rank() == distributed::ROOT, topology.local_rank == 0] {
        if reads {
            // What keeps the headers from being read keeps the shards from being opened, which says so.
            let _ = match only {
                None => tar_shards::index(&dir, &how, None),
                Some(name) => EVALUATED
                    .map(|split| name.unwrap_or(split.names()[0]))
                    .into_iter()
                    .try_for_each(|name| tar_shards::index(&dir, &how, Some(name))),
            };
        }
        communicator.barrier()?;
    }
    Ok(how)
}

#[cfg(feature = "parquet")]
fn open_parquet(config: &DataArgs, topology: &Topology) -> Result<DatasetSplits> {
    Ok(parquet_files::open(config.data_dir.filled(), &parquet_of_rank(config, topology)?)?)
}

#[cfg(feature = "parquet")]
fn parquet_of_rank(config: &DataArgs, topology: &Topology) -> Result<ParquetConfig> {
    let num_threads = ranks::share_of_threads(topology)?;
    Ok(ParquetConfig { sizing: sizing(config), on_bad_image: on_bad_image(config), num_threads })
}

#[cfg(not(feature = "parquet"))]
fn open_parquet(_config: &DataArgs, _topology: &Topology) -> Result<DatasetSplits> {
    anyhow::bail!(
        "dataset parquet: this program was built without it, expected the cargo feature `parquet`; rebuild with --features parquet"
    )
}

fn on_bad_image(config: &DataArgs) -> OnBadImage {
    match config.on_bad_image.filled() {
        OnBadImageKind::Fail => OnBadImage::Fail,
        OnBadImageKind::Skip => OnBadImage::Skip,
    }
}

/// How image files become samples, in training without a crop and in testing.
pub fn sizing(config: &DataArgs) -> Sizing {
    match &config.resolution {
        Some(resolution) => {
            Sizing { size: resolution.in_evaluation(), shorter_side: Some(config.eval_resize.filled()) }
        }
        None => Sizing::square(config.image_size.filled()),
    }
}

/// Lets the ranks of a node take checksums from the first of them where they would have to read all files for these.
/// Collective: all ranks.
///
/// `splits` is empty where a rank could not open its data set. Ranks that read another `folder` than the first rank of their node, or
/// learn nothing here, read for themselves when asked.
///
/// # Errors
/// When a collective fails.
pub fn share_checksums(
    splits: &[&Arc<dyn ImageDataset>],
    folder: Option<&Path>,
    communicator: &dyn Communicator,
) -> Result<()> {
    let topology = communicator.topology();
    // The same folder under any name.
    let place =
        folder.and_then(|folder| fs::metadata(folder).ok()).map(|place| format!("{}:{}", place.dev(), place.ino()));
    let place = format!("{} {}", topology.node, place.unwrap_or_default());
    let mut own = vec![place.clone()];
    if topology.local_rank == 0 {
        own.extend(splits.iter().map(|split| split.checksum()));
    }
    for message in communicator.all_gather(own.join("\n").as_bytes())? {
        let message = String::from_utf8_lossy(&message);
        let mut lines = message.lines();
        if lines.next() == Some(place.as_str()) {
            let reading = splits.iter().zip(lines).filter(|(split, _)| split.checksum_reads_files());
            reading.for_each(|(split, checksum)| split.adopt_checksum(checksum));
        }
    }
    Ok(())
}

/// The loader's form of the configured augmentation.
pub fn augment(split: &TrainSplitArgs) -> Augment {
    match split.augment.filled() {
        AugmentKind::None => Augment::None,
        AugmentKind::CropFlip => Augment::CropFlip { pad: CROP_PAD },
        AugmentKind::Trivial => Augment::Trivial { pad: CROP_PAD },
        AugmentKind::ResizedCrop => {
            let scale = split.crop_scale.filled();
            let crop = ResizedCrop { min_scale: scale.min, max_scale: scale.max };
            match split.rand_augment {
                Some(magnitude) => Augment::Rand(crop, RandAugment { magnitude }),
                None => Augment::ResizedCrop(crop),
            }
        }
    }
}

#[cfg(feature = "download")]
fn open_cifar(
    which: Cifar,
    config: &DataArgs,
    communicator: &dyn Communicator,
    reporter: &Reporter,
) -> Result<DatasetSplits> {
    if config.download.filled() {
        if communicator.rank() == distributed::ROOT {
            let name = which.name();
            datasets::download::download(which, config.data_dir.filled(), &mut |done, total| {
                reporter.download(name, done, total)
            })?;
        }
        communicator.barrier()?;
    }
    Ok(cifar::open(config.data_dir.filled(), which)?)
}

#[cfg(not(feature = "download"))]
fn open_cifar(
    which: Cifar,
    config: &DataArgs,
    _communicator: &dyn Communicator,
    _reporter: &Reporter,
) -> Result<DatasetSplits> {
    anyhow::ensure!(
        !config.download.filled(),
        "download: this program was built without it, expected the cargo feature `download`; rebuild with --features download"
    );
    Ok(cifar::open(config.data_dir.filled(), which)?)
}

#[cfg(test)]
mod tests;
