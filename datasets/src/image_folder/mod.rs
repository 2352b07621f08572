//! A data set of image files with one folder per class.
//!
//! In: `root/train/<class>/**/*.jpg`, and the same for the other splits ([`Split`]). Out:
//! [`DatasetSplits`] of square RGB images.
//! Invariant: classes and files are sorted by name, so labels and indices are equal on every
//! machine. A label is the position of the class in the training split. A note names every skipped
//! file.

mod scan;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::classes::twins;
use crate::dataset::{DatasetSplits, ImageDataset};
use crate::decode::read_image_file;
use crate::encoded::{FoundSplit, FoundSplits, ReadConfig, Source, add_labelled, open_splits};
use crate::error::{DatasetError, counted, list};
use crate::split::{self, Split};
use scan::{LeftOut, class_names, scan};

/// Opens the splits of a folder of images.
///
/// Images are resized like in [`load_image`](crate::load_image) and normalised with ImageNet's
/// statistics. If they fit into memory they are decoded now. Otherwise `OnBadImage::Skip` decodes
/// every file once to find bad files. With `OnBadImage::Fail` a bad file is found at its first
/// read.
///
/// A split without labels is not opened, and a note says so. Its images are in no class folder, or
/// in folders that are not classes of the training split.
///
/// # Errors
/// - If the folder of the training split is missing, has fewer than two classes, or has a class
///   without images.
/// - If another split has images of other classes.
/// - If a file cannot be read or, with `OnBadImage::Fail`, decoded.
/// - If a setting is 0, or the size is above 16,384.
///
/// # Differs from PyTorch
/// torchvision's `ImageFolder` opens one split, includes hidden files, and has a transform for
/// resizing. The files of a class are the same, in the same order.
pub fn open(dir: impl AsRef<Path>, config: &ReadConfig) -> Result<DatasetSplits, DatasetError> {
    config.check()?;
    let mut notes = Vec::new();
    let mut splits = scan_all(dir.as_ref(), &mut notes)?;
    let num_files = splits.iter().map(|(_, split)| split.labels.len()).sum();
    let scope = if splits.len() == 1 {
        "this split"
    } else {
        "all splits"
    };
    let (keep, note) = keeps(num_files, scope, config);
    for (_, split) in &mut splits {
        note_files(split, &note);
    }
    open_splits(splits, notes, keep, config)
}

/// Opens one split like [`open`]: `train`, `val` or `test` under any of its names, or another
/// folder by its name. Other splits may be missing, and are not decoded.
///
/// Labels are mapped by name to positions in `classes`. Without `classes`, they are mapped to the
/// classes of the training split, if there is one.
///
/// # Errors
/// Returns an error in the cases of [`open`], and if the split is missing or has no labels.
pub fn open_split(
    dir: impl AsRef<Path>,
    name: &str,
    classes: Option<&[String]>,
    config: &ReadConfig,
) -> Result<Arc<dyn ImageDataset>, DatasetError> {
    config.check()?;
    let dir = dir.as_ref();
    let mut found = scan_named(dir, name)?.ok_or_else(|| missing(dir, name))?;
    let of_train = match (classes, split::folder(dir, Split::Train.names()[0])?) {
        (None, Some((train, _))) => class_names(&train)?,
        _ => Vec::new(),
    };
    match classes.unwrap_or(&of_train) {
        [] => expect_classes(dir, &found)?,
        classes => found.with_classes(classes)?,
    }
    let (keep, note) = keeps(found.labels.len(), "this split", config);
    note_files(&mut found, &note);
    let folder = found.source.dir.file_name().unwrap_or_default();
    let split = Split::of_name(&folder.to_string_lossy());
    found.open(split, keep, config)
}

/// Returns true if all images of `scope` are decoded now and kept. Also returns a note on the
/// decision.
fn keeps(num_files: usize, scope: &str, config: &ReadConfig) -> (bool, String) {
    let needed = (num_files as u64).saturating_mul(3 * (config.sizing.size as u64).pow(2));
    let limit = config.memory_limit_bytes;
    let mebibytes = |bytes: u64| format!("{:.1} MiB", bytes as f64 / (1 << 20) as f64);
    if config.sizing.shorter_side.is_some() {
        (false, "decoded on demand, each at its own size".to_owned())
    } else if needed <= limit {
        let note = format!("kept in memory ({} for {scope})", mebibytes(needed));
        (true, note)
    } else {
        let note = format!(
            "decoded on demand ({scope} would need {}, the limit is {})",
            mebibytes(needed),
            mebibytes(limit)
        );
        (false, note)
    }
}

fn note_files(split: &mut FoundSplit<FolderSource>, how: &str) {
    let files = counted(split.labels.len(), "image file");
    let note = format!("{files}, {how}");
    split.notes.push(note);
}

/// Returns the files of all splits with labels, the training split's first, with notes on other
/// splits. Opens no file.
pub(crate) fn scan_all(
    dir: &Path,
    notes: &mut Vec<String>,
) -> Result<FoundSplits<FolderSource>, DatasetError> {
    notes.extend(split::not_folders(dir));
    let [train, val, test] = Split::ALL.map(|split| scan_named(dir, split.names()[0]));
    let mut train = train?.ok_or_else(|| missing(dir, Split::Train.names()[0]))?;
    let class_names = train.class_names.clone().unwrap_or_default();
    train.notes.extend(twins(&class_names));
    if class_names.is_empty() {
        return Err(DatasetError::Missing {
            what: "class folders".into(),
            path: train.source.dir,
            expected: "<class>/<image>".into(),
            remedy: "Put the images of each class into a separate folder",
        });
    }
    expect_classes(dir, &train)?;
    train.expect_images()?;
    let mut splits = vec![(Split::Train, train)];
    for (split, found) in [(Split::Val, val), (Split::Test, test)] {
        if let Some(mut found) = found? {
            let labelled = found.with_classes(&class_names).map(|()| found);
            add_labelled(&mut splits, split, labelled, notes)?;
        }
    }
    Ok(splits)
}

/// Returns the files of the split `name` with the split's own classes. `None` if the split is
/// missing.
fn scan_named(dir: &Path, name: &str) -> Result<Option<FoundSplit<FolderSource>>, DatasetError> {
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
        remedy: "Give the folder that holds the folders of the splits, or name one of these splits",
    }
}

/// Rejects a split with a single class, because there is nothing to learn.
fn expect_classes(dir: &Path, split: &FoundSplit<FolderSource>) -> Result<(), DatasetError> {
    match split.class_names.as_deref() {
        Some([class_name]) => Err(DatasetError::invalid(
            dir,
            format!(
                "expected at least 2 class folders, got 1 ({class_name}): a classifier of one class is \
                 always right. Put the images of each class into a separate folder"
            ),
        )),
        _ => Ok(()),
    }
}

/// The image files of a split.
#[derive(Debug, Default)]
pub(crate) struct FolderSource {
    /// Folder of the split.
    pub(crate) dir: PathBuf,
    /// Image files, sorted by class, then by folder, then by name.
    pub(crate) files: Vec<PathBuf>,
    left_out: BTreeMap<LeftOut, Vec<PathBuf>>,
}

impl Source for FolderSource {
    fn read(&self, image: usize) -> Result<Vec<u8>, DatasetError> {
        read_image_file(&self.files[image])
    }

    fn path(&self, image: usize) -> PathBuf {
        self.files[image].clone()
    }

    /// Returns the path inside the split's folder with slashes, the same on every system.
    fn key(&self, image: usize) -> String {
        let path: &Path = &self.files[image];
        let relative = path.strip_prefix(&self.dir).unwrap_or(path);
        let names: Vec<_> = relative.iter().map(|name| name.to_string_lossy()).collect();
        names.join("/")
    }

    fn dir(&self) -> PathBuf {
        self.dir.clone()
    }
}

#[cfg(test)]
mod tests;
