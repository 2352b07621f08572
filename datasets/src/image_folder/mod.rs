//! A data set of image files in a folder for each class.
//!
//! In: `root/train/<class>/**/*.jpg`, and the same in the folders of the other splits ([`Split`]). Out: [`DatasetSplits`] of square RGB
//! images.
//! Invariant: classes and files are sorted by name, so that labels and indices are the same on every machine; a label is the position of the
//! class's name among the training split's; no file is dropped without a note that names it.

mod scan;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use crate::classes::twins;
use crate::dataset::{DatasetSplits, ImageDataset, Normalization, if_labelled};
use crate::decode::{Sizing, read_image_file};
use crate::encoded::{Contents, EncodedDataset, OnBadImage, Reading, Source};
use crate::error::{DatasetError, list};
use crate::split::{self, Split};
pub(crate) use scan::ScannedSplit;
use scan::{class_names, scan};

/// How a folder of images is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageFolderConfig {
    /// How all images are brought to one height and width.
    pub sizing: Sizing,
    /// Decoded images are kept if all splits together need no more than this; else each read decodes its file. Of images that
    /// [keep their own size](Sizing::shorter_side) none is.
    pub memory_limit_bytes: u64,
    /// What happens with a file that cannot be decoded.
    pub on_bad_image: OnBadImage,
    /// The number of threads that decode when the folder is opened; the checksum of a folder too large for memory takes all
    /// processors, since one process finds it out for others.
    pub num_threads: usize,
}

impl ImageFolderConfig {
    /// Images brought to one size, kept in memory up to 4 GiB, failing on bad files, decoded on all processors.
    pub fn new(sizing: Sizing) -> Self {
        Self {
            sizing,
            memory_limit_bytes: 4 << 30,
            on_bad_image: OnBadImage::Fail,
            num_threads: thread::available_parallelism().map_or(1, usize::from),
        }
    }
}

/// Opens the splits of a folder of images.
///
/// Images are brought to their size as by [`load_image`](crate::load_image) and normalised with ImageNet's statistics. If they
/// fit into memory they are decoded now; else with [`OnBadImage::Skip`] every file is decoded once to find the bad ones, and with
/// [`OnBadImage::Fail`] a bad file is found when it is read. A split without labels (images in no class folder, or all in one that is
/// no class of the training) is not opened; a note says so.
///
/// # Errors
/// If the folder of the training split is missing, has fewer than two classes or one without images, if another split has images of
/// other classes, a file cannot be read or, with [`OnBadImage::Fail`], decoded, or a setting is 0 or the size above 16,384.
///
/// # Differs from PyTorch
/// torchvision's `ImageFolder` opens one split, takes hidden files, and leaves the resizing to a transform. The files of a class are the
/// same, in the same order.
pub fn open(
    dir: impl AsRef<Path>,
    config: &ImageFolderConfig,
) -> Result<DatasetSplits, DatasetError> {
    let mut notes = Vec::new();
    let (kinds, scanned): (Vec<Split>, Vec<ScannedSplit>) =
        scan_all(dir.as_ref(), &mut notes)?.into_iter().unzip();
    let mut opened: Vec<_> = kinds.into_iter().zip(open_all(scanned, config)?).collect();
    let mut take = |split| {
        opened
            .extract_if(.., |(kind, _)| *kind == split)
            .next()
            .map(|(_, dataset)| dataset)
    };
    let train = take(Split::Train).expect("a folder without this split is refused");
    let (val, test) = (take(Split::Val), take(Split::Test));
    Ok(DatasetSplits {
        train,
        val,
        test,
        normalization: Normalization::imagenet(),
        notes,
    })
}

/// Opens one split as [`open`] does: `train`, `val` or `test` by any of its names, or another folder by its name. Other splits need not
/// be there, and are not decoded.
///
/// Labels are mapped by name to positions in `classes`; without these to the classes of the training split, if there is one.
///
/// # Errors
/// As [`open`], and if the split is not there or has no labels.
pub fn open_split(
    dir: impl AsRef<Path>,
    name: &str,
    classes: Option<&[String]>,
    config: &ImageFolderConfig,
) -> Result<Arc<dyn ImageDataset>, DatasetError> {
    let dir = dir.as_ref();
    let scanned = scan_named(dir, name)?.ok_or_else(|| missing(dir, name))?;
    let of_train = match (classes, split::folder(dir, Split::Train.names()[0])?) {
        (None, Some((train, _))) => class_names(&train)?,
        _ => Vec::new(),
    };
    let scanned = match classes.unwrap_or(&of_train) {
        [] => {
            expect_classes(dir, &scanned)?;
            scanned
        }
        classes => scanned.with_classes(classes)?,
    };
    Ok(open_all(vec![scanned], config)?.swap_remove(0))
}

fn open_all(
    mut splits: Vec<ScannedSplit>,
    config: &ImageFolderConfig,
) -> Result<Vec<Arc<dyn ImageDataset>>, DatasetError> {
    config.sizing.check()?;
    if config.num_threads == 0 {
        return Err(DatasetError::config("num_threads", "at least 1", 0));
    }
    let num_files: usize = splits.iter().map(|split| split.files.len()).sum();
    let needed_bytes = (num_files as u64).saturating_mul(3 * (config.sizing.size as u64).pow(2));
    let keep = config.sizing.shorter_side.is_none() && needed_bytes <= config.memory_limit_bytes;
    let all = if splits.len() == 1 {
        "this split"
    } else {
        "all splits"
    };
    let how = match config.sizing.shorter_side {
        Some(_) => "decoded on demand, each at its own size".to_owned(),
        None if keep => format!("kept in memory ({} for {all})", Mebibytes(needed_bytes)),
        None => format!(
            "decoded on demand ({all} would need {}, the limit is {})",
            Mebibytes(needed_bytes),
            Mebibytes(config.memory_limit_bytes)
        ),
    };
    for split in &mut splits {
        split
            .notes
            .push(format!("{} image files, {how}", split.files.len()));
    }
    let ImageFolderConfig {
        sizing,
        on_bad_image,
        num_threads,
        ..
    } = *config;
    let open_split = |split: ScannedSplit| -> Result<Arc<dyn ImageDataset>, DatasetError> {
        let ScannedSplit {
            dir,
            class_names,
            files,
            labels,
            notes,
            ..
        } = split;
        let folder = dir
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let (name, whole) = (
            format!("image-folder {folder}"),
            Split::of_name(&folder) == Some(Split::Train),
        );
        let contents = Contents {
            name,
            class_names,
            labels,
            notes,
        };
        let reading = Reading {
            sizing,
            keep,
            on_bad_image,
            whole,
            num_threads,
        };
        Ok(Arc::new(EncodedDataset::open(
            FolderSource { dir, files },
            contents,
            reading,
        )?))
    };
    splits.into_iter().map(open_split).collect()
}

/// The files of all splits that have labels, the training split's first, with notes on the others; no file is opened.
pub(crate) fn scan_all(
    dir: &Path,
    notes: &mut Vec<String>,
) -> Result<Vec<(Split, ScannedSplit)>, DatasetError> {
    notes.extend(split::not_folders(dir));
    let [train, val, test] = Split::ALL.map(|split| scan_named(dir, split.names()[0]));
    let mut train = train?.ok_or_else(|| missing(dir, Split::Train.names()[0]))?;
    train.notes.extend(twins(&train.class_names));
    if train.class_names.is_empty() {
        return Err(DatasetError::Missing {
            what: "class folders".into(),
            path: train.dir,
            expected: "<class>/<image>".into(),
            remedy: "put the images of each class into a folder of its own",
        });
    }
    expect_classes(dir, &train)?;
    train.expect_images()?;
    let class_names = train.class_names.clone();
    let mut splits = vec![(Split::Train, train)];
    for (split, scanned) in [(Split::Val, val), (Split::Test, test)] {
        if let Some(scanned) = scanned? {
            let labelled = if_labelled(scanned.with_classes(&class_names), notes)?;
            splits.extend(labelled.map(|scanned| (split, scanned)));
        }
    }
    Ok(splits)
}

/// The files of the split `name`, by its own classes, if it is there.
fn scan_named(dir: &Path, name: &str) -> Result<Option<ScannedSplit>, DatasetError> {
    let Some((folder, note)) = split::folder(dir, name)? else {
        return Ok(None);
    };
    let mut scanned = scan(&folder)?;
    scanned.note_left_out();
    scanned.notes.extend(note);
    Ok(Some(scanned))
}

fn missing(dir: &Path, name: &str) -> DatasetError {
    let folders = split::folder_names(dir).unwrap_or_default();
    let found = if folders.is_empty() {
        "no folders".to_owned()
    } else {
        format!("the folders {}", list(folders.iter()))
    };
    DatasetError::Missing {
        what: format!("the folder {name}"),
        path: dir.to_path_buf(),
        expected: format!("{name}/<class>/<image>, got {found}"),
        remedy: "give the folder that holds the folders of the splits",
    }
}

/// Of one class there is nothing to learn.
fn expect_classes(dir: &Path, split: &ScannedSplit) -> Result<(), DatasetError> {
    match &split.class_names[..] {
        [class_name] => Err(DatasetError::OneClass {
            path: dir.to_path_buf(),
            class_name: class_name.clone(),
        }),
        _ => Ok(()),
    }
}

/// A split of a folder of images.
struct FolderSource {
    /// The folder of the split.
    dir: PathBuf,
    files: Vec<PathBuf>,
}

impl Source for FolderSource {
    fn read(&self, image: usize) -> Result<Vec<u8>, DatasetError> {
        read_image_file(&self.files[image])
    }

    fn path(&self, image: usize) -> PathBuf {
        self.files[image].clone()
    }

    /// The path below the split's folder with slashes, the same on every system.
    fn key(&self, image: usize) -> String {
        let path: &Path = &self.files[image];
        let relative = path.strip_prefix(&self.dir).unwrap_or(path);
        let names: Vec<_> = relative.iter().map(|name| name.to_string_lossy()).collect();
        names.join("/")
    }

    fn class_path(&self, class_name: &str) -> PathBuf {
        self.dir.join(class_name)
    }
}

/// A number of bytes as text.
struct Mebibytes(u64);

impl fmt::Display for Mebibytes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:.1} MiB", self.0 as f64 / (1 << 20) as f64)
    }
}

#[cfg(test)]
mod tests;
