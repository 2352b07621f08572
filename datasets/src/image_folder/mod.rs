//! A data set of image files in a folder for each class.
//!
//! In: `root/train/<class>/*.jpg` and `root/test/<class>/*.jpg` (or `val`). Out: [`DatasetSplits`] of square RGB images.
//! Invariant: classes and files are sorted by name, so that labels and indices are the same on every machine; train and test
//! have the same classes; no file is dropped without a note that names it.

mod scan;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use crate::dataset::{DatasetSplits, ImageDataset, Normalization};
use crate::decode::{Sizing, read_image_file};
use crate::encoded::{Contents, EncodedDataset, OnBadImage, Reading, Source};
use crate::error::DatasetError;
pub(crate) use scan::ScannedSplit;
use scan::{class_names, scan_split};

/// The name of the folder to train on.
const TRAIN: &str = "train";

/// The names that the folder to test with may have.
const TEST: [&str; 2] = ["test", "val"];

/// How a folder of images is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageFolderConfig {
    /// How all images are brought to one height and width.
    pub sizing: Sizing,
    /// Decoded images are kept if both splits together need no more than this; else each read decodes its file. Of images that
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

/// Opens a folder of images.
///
/// Images are brought to their size as by [`load_image`](crate::load_image) and normalised with ImageNet's statistics. If they
/// fit into memory they are decoded now; else with [`OnBadImage::Skip`] every file is decoded once to find the bad ones, and with
/// [`OnBadImage::Fail`] a bad file is found when it is read. If there is `test` as well as `val`, `test` is used.
///
/// # Errors
/// If a folder is missing, a class has no image, train and test have different classes or only one, a file cannot be read or,
/// with [`OnBadImage::Fail`], decoded, or a setting is 0 or the size above 16,384.
///
/// # Differs from PyTorch
/// torchvision's `ImageFolder` opens one split, descends into subfolders of a class and leaves the resizing to a transform.
pub fn open(dir: impl AsRef<Path>, config: &ImageFolderConfig) -> Result<DatasetSplits, DatasetError> {
    let mut splits = open_all(scan_both(dir.as_ref())?.into(), config)?;
    let [test, train] = [splits.pop(), splits.pop()].map(|split| split.expect("two splits"));
    Ok(DatasetSplits { train, test, normalization: Normalization::imagenet() })
}

/// As [`open`], of the images to test with alone; those to train on need not be there. Where their class folders are, these are the same.
///
/// # Errors
/// As [`open`].
pub fn open_test(dir: impl AsRef<Path>, config: &ImageFolderConfig) -> Result<Arc<dyn ImageDataset>, DatasetError> {
    let test = scan_split(dir.as_ref(), &TEST)?;
    let train = dir.as_ref().join(TRAIN);
    let class_names = if train.is_dir() { class_names(&train)? } else { Vec::new() };
    if !class_names.is_empty() {
        check_classes(dir.as_ref(), &class_names, &test.class_names)?;
    }
    expect_classes(dir.as_ref(), &test)?;
    Ok(open_all(vec![test], config)?.swap_remove(0))
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
    let all = if splits.len() == 1 { "this split" } else { "both splits" };
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
        split.notes.push(format!("{} image files, {how}", split.files.len()));
    }
    let ImageFolderConfig { sizing, on_bad_image, num_threads, .. } = *config;
    let open_split = |split: ScannedSplit| -> Result<Arc<dyn ImageDataset>, DatasetError> {
        let ScannedSplit { dir, class_names, files, labels, notes } = split;
        let name = format!("image-folder {}", dir.file_name().unwrap_or_default().to_string_lossy());
        let contents = Contents { name, class_names, labels, notes };
        let reading = Reading { sizing, keep, on_bad_image, whole: dir.ends_with(TRAIN), num_threads };
        Ok(Arc::new(EncodedDataset::open(FolderSource { dir, files }, contents, reading)?))
    };
    splits.into_iter().map(open_split).collect()
}

/// The files to train on and those to test with; no file is opened.
pub(crate) fn scan_both(dir: &Path) -> Result<[ScannedSplit; 2], DatasetError> {
    let train = scan_split(dir, &[TRAIN])?;
    let test = scan_split(dir, &TEST)?;
    check_classes(dir, &train.class_names, &test.class_names)?;
    expect_classes(dir, &train)?;
    Ok([train, test])
}

fn check_classes(dir: &Path, train: &[String], test: &[String]) -> Result<(), DatasetError> {
    let only = |a: &[String], b: &[String]| -> Vec<String> {
        let missing = a.iter().filter(|name| !b.contains(name));
        missing.cloned().collect()
    };
    let (only_train, only_test) = (only(train, test), only(test, train));
    if !only_train.is_empty() || !only_test.is_empty() {
        return Err(DatasetError::ClassMismatch { path: dir.to_path_buf(), only_train, only_test });
    }
    Ok(())
}

/// Of one class there is nothing to learn.
fn expect_classes(dir: &Path, split: &ScannedSplit) -> Result<(), DatasetError> {
    match &split.class_names[..] {
        [class_name] => Err(DatasetError::OneClass { path: dir.to_path_buf(), class_name: class_name.clone() }),
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
