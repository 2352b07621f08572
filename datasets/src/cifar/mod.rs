//! CIFAR-10 and CIFAR-100 from the original binary release.
//!
//! In: the folder with the release's files. Out: [`DatasetSplits`] in memory, 32x32 RGB.
//! Invariant: a valid file is a whole number of records (label bytes, then 3,072 pixel bytes in
//! planes R, G, B, row-major). Other files are rejected.
//! Source: A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images" (2009);
//! <https://www.cs.toronto.edu/~kriz/cifar.html>.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use md5::{Digest, Md5};

use crate::dataset::{DatasetSplits, ImageDataset, ImageShape, Normalization};
use crate::error::DatasetError;
use crate::file::{read_text, read_whole};
use crate::memory::{MemoryDataset, to_hex};
use crate::split::Split;

mod names;

const SHAPE: ImageShape = ImageShape {
    height: 32,
    width: 32,
    channels: 3,
};
const PLANE: usize = 32 * 32;

/// Maximum size of a file of records. The largest official file has 154 MB.
const MAX_RECORD_FILE_BYTES: u64 = 4 << 30;

/// Maximum size of a file of class names. The larger official file has 1 kB.
const MAX_NAMES_FILE_BYTES: u64 = 1 << 20;

/// One of the two data sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cifar {
    /// CIFAR-10: 10 classes, 50,000 + 10,000 images.
    Ten,
    /// CIFAR-100: 100 (fine) classes, 50,000 + 10,000 images.
    Hundred,
}

impl Cifar {
    /// Returns the name for logs: "cifar-10" or "cifar-100".
    pub fn name(self) -> &'static str {
        match self {
            Self::Ten => "cifar-10",
            Self::Hundred => "cifar-100",
        }
    }

    /// Returns the folder that the release's archive unpacks to.
    pub fn folder(self) -> &'static str {
        match self {
            Self::Ten => "cifar-10-batches-bin",
            Self::Hundred => "cifar-100-binary",
        }
    }

    /// Returns the number of classes.
    pub fn num_classes(self) -> usize {
        match self {
            Self::Ten => 10,
            Self::Hundred => 100,
        }
    }

    /// Returns the training files.
    pub fn train_files(self) -> &'static [&'static str] {
        match self {
            Self::Ten => &[
                "data_batch_1.bin",
                "data_batch_2.bin",
                "data_batch_3.bin",
                "data_batch_4.bin",
                "data_batch_5.bin",
            ],
            Self::Hundred => &["train.bin"],
        }
    }

    /// Returns the test file.
    pub fn test_file(self) -> &'static str {
        match self {
            Self::Ten => "test_batch.bin",
            Self::Hundred => "test.bin",
        }
    }

    /// Returns the file with the names of the classes.
    pub fn names_file(self) -> &'static str {
        match self {
            Self::Ten => "batches.meta.txt",
            Self::Hundred => "fine_label_names.txt",
        }
    }

    /// Returns the commonly published mean and standard deviation of the training pixels.
    pub fn normalization(self) -> Normalization {
        let (mean, std) = match self {
            Self::Ten => ([0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]),
            Self::Hundred => ([0.5071, 0.4865, 0.4409], [0.2673, 0.2564, 0.2762]),
        };
        Normalization {
            mean: mean.to_vec(),
            std: std.to_vec(),
        }
    }

    /// Returns the number of label bytes before the pixels. In CIFAR-100 the superclass precedes
    /// the class.
    fn num_label_bytes(self) -> usize {
        match self {
            Self::Ten => 1,
            Self::Hundred => 2,
        }
    }

    fn official_names(self) -> &'static str {
        match self {
            Self::Ten => names::CIFAR_10,
            Self::Hundred => names::CIFAR_100,
        }
    }

    /// Returns the number of records in an official file.
    fn official_num_records(self, file: &str) -> usize {
        if self == Self::Hundred && file != self.test_file() {
            50_000
        } else {
            10_000
        }
    }

    /// Returns the MD5 digest of an official file.
    ///
    /// The digests come from rai-project/dldataset. Its digest of CIFAR-10's archive equals that of
    /// the official page. Other downloaders also check the digests of CIFAR-10. MD5 detects
    /// different data, but not a forgery.
    fn official_md5(self, file: &str) -> &'static str {
        match file {
            "data_batch_1.bin" => "5dd7e06a14cb22eb9f671a540d1b7c25",
            "data_batch_2.bin" => "5ea93a67294ea407fff1d09f752e9692",
            "data_batch_3.bin" => "942cd6a4bcdd0dd3c604fbe906cb4421",
            "data_batch_4.bin" => "ae636b3ba5c66a11e91e8cb52e771fcb",
            "data_batch_5.bin" => "53f37980c15c3d472c316c40844f3f0d",
            "test_batch.bin" => "803d5f7f4d78ea53de84dbe85f74fb6d",
            "train.bin" => "6172c7755cfe09b2fe270c85cebc1b15",
            "test.bin" => "4499cfba6c016c1be1438163640a0898",
            _ => "",
        }
    }

    /// Returns the folder of the files: `dir` or the release's folder in `dir`.
    pub(crate) fn find(self, dir: &Path) -> Option<PathBuf> {
        [dir.to_path_buf(), dir.join(self.folder())]
            .into_iter()
            .find(|folder| folder.join(self.test_file()).is_file())
    }
}

/// Reads a data set into memory (180 MB when complete).
///
/// `dir` is the folder with the files or its parent. The function reads any data in the layout of
/// the release, including subsets, conversions and other labels. If a file's number of records
/// differs from the official one, a note has both numbers. If files of a split have the official
/// number but other content, one note says so. CIFAR-100 is read with its 100 fine labels.
///
/// # Errors
/// - If a file is missing, cannot be read, is empty, or is not a whole number of records.
/// - If a label is out of range.
/// - If the file of class names has another number of names than there are classes.
pub fn open(dir: impl AsRef<Path>, cifar: Cifar) -> Result<DatasetSplits, DatasetError> {
    let folder = find(dir.as_ref(), cifar)?;
    let class_names = read_class_names(&folder, cifar)?;
    let train = read_split(&folder, cifar, "train", cifar.train_files(), &class_names)?;
    let test = read_split(&folder, cifar, "test", &[cifar.test_file()], &class_names)?;
    Ok(DatasetSplits::of_two(train, test, cifar.normalization()))
}

/// Reads only one split, `train` or `test`, like [`open`].
///
/// # Errors
/// Returns an error in the cases of [`open`], and if there is no split with this name.
pub fn open_split(
    dir: impl AsRef<Path>,
    cifar: Cifar,
    name: &str,
) -> Result<Arc<dyn ImageDataset>, DatasetError> {
    let test = [cifar.test_file()];
    let (split, files) = match Split::of_name(name) {
        Some(Split::Train) => ("train", cifar.train_files()),
        Some(Split::Test) => ("test", &test[..]),
        _ => {
            return Err(DatasetError::config(
                "split",
                format!("train or test of {}", cifar.name()),
                name,
            ));
        }
    };
    let folder = find(dir.as_ref(), cifar)?;
    read_split(
        &folder,
        cifar,
        split,
        files,
        &read_class_names(&folder, cifar)?,
    )
}

fn find(dir: &Path, cifar: Cifar) -> Result<PathBuf, DatasetError> {
    cifar.find(dir).ok_or_else(|| DatasetError::Missing {
        what: cifar.name().into(),
        path: dir.to_path_buf(),
        expected: format!(
            "{} there or in {}",
            cifar.test_file(),
            dir.join(cifar.folder()).display()
        ),
        remedy: "Unpack the original binary release there, or download it",
    })
}

/// Returns the class names in the data's folder, or the official names if the file is missing.
fn read_class_names(folder: &Path, cifar: Cifar) -> Result<Vec<String>, DatasetError> {
    let path = folder.join(cifar.names_file());
    if !path.is_file() {
        return Ok(cifar
            .official_names()
            .split_whitespace()
            .map(str::to_owned)
            .collect());
    }
    let text = read_text(&path, MAX_NAMES_FILE_BYTES)?;
    let names: Vec<String> = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .map(String::from)
        .collect();
    if names.len() != cifar.num_classes() {
        return Err(DatasetError::class_names(
            path,
            cifar.num_classes(),
            names.len(),
        ));
    }
    Ok(names)
}

fn read_split(
    folder: &Path,
    cifar: Cifar,
    split: &str,
    files: &[&str],
    class_names: &[String],
) -> Result<Arc<dyn ImageDataset>, DatasetError> {
    let mut dataset = MemoryDataset {
        name: format!("{} {split}", cifar.name()),
        shape: SHAPE,
        pixels: Vec::new(),
        labels: Vec::new(),
        class_names: class_names.to_vec(),
        notes: Vec::new(),
        checksum: Default::default(),
    };
    let mut others = Vec::new();
    for file in files {
        let path = folder.join(file);
        let bytes = read_whole(&path, MAX_RECORD_FILE_BYTES)?;
        let num_records = read_records(&bytes, &path, cifar, &mut dataset)?;
        let num_official = cifar.official_num_records(file);
        if num_records != num_official {
            dataset.notes.push(format!(
                "{file}: {num_records} records, the official file has {num_official}"
            ));
        } else if to_hex(&Md5::digest(&bytes)) != cifar.official_md5(file) {
            others.push(*file);
        }
    }
    if !others.is_empty() {
        dataset.notes.push(format!(
            "{}: as many records as the official release, but other content: other data, or damaged. Do not compare with published results.",
            others.join(", ")
        ));
    }
    Ok(Arc::new(dataset))
}

/// Appends the records in a file's bytes and returns their number.
fn read_records(
    bytes: &[u8],
    path: &Path,
    cifar: Cifar,
    dataset: &mut MemoryDataset,
) -> Result<usize, DatasetError> {
    let num_label_bytes = cifar.num_label_bytes();
    let record_bytes = num_label_bytes + SHAPE.num_values();
    if bytes.is_empty() || !bytes.len().is_multiple_of(record_bytes) {
        let len = bytes.len();
        let problem = format!(
            "expected a whole number of records of {record_bytes} bytes, got {len} bytes ({} records and {} bytes); \
             the file is truncated or of another format. Fetch it again",
            len / record_bytes,
            len % record_bytes
        );
        return Err(DatasetError::invalid(path, problem));
    }
    let num_records = bytes.len() / record_bytes;
    dataset.pixels.reserve(num_records * SHAPE.num_values());
    for (record, content) in bytes.chunks_exact(record_bytes).enumerate() {
        let (labels, planes) = content.split_at(num_label_bytes);
        let label = usize::from(labels[num_label_bytes - 1]);
        if label >= cifar.num_classes() {
            let num_classes = cifar.num_classes();
            let problem =
                format!("record {record}: expected a label below {num_classes}, got {label}");
            return Err(DatasetError::invalid(path, problem));
        }
        dataset.labels.push(label as u16);
        for position in 0..PLANE {
            let pixel = [0, 1, 2].map(|channel| planes[channel * PLANE + position]);
            dataset.pixels.extend(pixel);
        }
    }
    Ok(num_records)
}

#[cfg(test)]
mod tests;
