//! A data set of images in Parquet files, as Hugging Face publishes it.
//!
//! In: `DIR/train-*.parquet` and the same of other splits, or as [`Split`] says, with a column of images (`image` or `img`: bytes, or a struct with
//! `bytes`) and one of labels (`label`, `labels` or `fine_label`, else the only one that the file calls classes). Out: [`DatasetSplits`].
//! Invariant: files are sorted by name and samples stand as in their file, so that indices are the same on every machine; any sample is
//! read by its file, row group and row. What damaged bytes do to the library that reads them is an error of their file. No row is left out
//! without a note that names it.

mod columns;
mod shared_file;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::file::reader::{FileReader, Length, SerializedFileReader};

use crate::classes::map_labels;
use crate::dataset::{DatasetSplits, ImageDataset, Normalization, if_labelled};
use crate::decode::Sizing;
use crate::encoded::{Contents, EncodedDataset, OnBadImage, Reading, Source};
use crate::error::{DatasetError, list};
use crate::progress;
use crate::split::{FoundFiles, Split, SplitFiles};
use columns::{Label, bytes, class_names, column, features, labels, leaves};
use shared_file::SharedFile;

/// What names of files end with.
const ENDING: &str = ".parquet";

/// How Parquet files are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParquetConfig {
    /// How all images are brought to one height and width.
    pub sizing: Sizing,
    /// What happens with an image that does not decode.
    pub on_bad_image: OnBadImage,
    /// The number of threads that decode with [`OnBadImage::Skip`] when files are opened.
    pub num_threads: usize,
}

/// Opens the splits of a folder of Parquet files; their footers and labels are read now, an image when it is wanted.
///
/// The names of the classes are those in the files' metadata, else the labels where these are text, sorted, else numbers. A split none of
/// whose rows has a label is not opened; a note says so.
///
/// # Errors
/// If there are no files of the training split, one cannot be read or has other columns, a label has no name, another split has classes
/// that the training split has not or, with [`OnBadImage::Fail`], a row has no label.
pub fn open(dir: impl AsRef<Path>, config: &ParquetConfig) -> Result<DatasetSplits, DatasetError> {
    let dir = dir.as_ref();
    config.sizing.check()?;
    let files = SplitFiles::list(dir, ENDING)?;
    let mut notes = files.unused();
    let train = ParquetSource::named(dir, &files, Split::Train.names()[0], config)?;
    let mut others = [None, None];
    for (other, split) in others.iter_mut().zip([Split::Val, Split::Test]) {
        if let Some(found) = files.of(split.names()[0])? {
            *other = if_labelled(ParquetSource::open(dir, found, config), &mut notes)?;
        }
    }
    let all = || std::iter::once(&train).chain(others.iter().flatten());
    let class_names = match all().find_map(|source| source.class_names.clone()) {
        Some(names) => names,
        None => numbers(all().map(ParquetSource::num_labels).max().unwrap_or(0)),
    };
    let [val, test] = others.map(|other| {
        other
            .map(|other| other.into_dataset(&class_names, config))
            .transpose()
    });
    let train = train.into_dataset(&class_names, config)?;
    Ok(DatasetSplits {
        train,
        val: val?,
        test: test?,
        normalization: Normalization::imagenet(),
        notes,
    })
}

/// Opens one split as [`open`] does: `train`, `val` or `test` by any of its names, or other files by a word of their names. Files of
/// other splits need not be there.
///
/// Labels are mapped by name to positions in `classes`; where the files name no classes, nor those of the training split, they are these
/// positions. Without `classes`, the classes are those that [`open`] finds in this split and the training split, if that is there.
///
/// # Errors
/// As [`open`], and if the split is not there or has no labels.
pub fn open_split(
    dir: impl AsRef<Path>,
    name: &str,
    classes: Option<&[String]>,
    config: &ParquetConfig,
) -> Result<Arc<dyn ImageDataset>, DatasetError> {
    let dir = dir.as_ref();
    config.sizing.check()?;
    let files = SplitFiles::list(dir, ENDING)?;
    let mut split = ParquetSource::named(dir, &files, name, config)?;
    let mut num_labels = split.num_labels();
    if split.class_names.is_none()
        && let Ok(train) = ParquetSource::named(dir, &files, Split::Train.names()[0], config)
    {
        num_labels = num_labels.max(train.num_labels());
        split.class_names = train.class_names;
        split.expect_names()?;
    }
    let own = split
        .class_names
        .clone()
        .unwrap_or_else(|| numbers(num_labels));
    split.into_dataset(classes.unwrap_or(&own), config)
}

/// The names of classes that have none, of so many labels.
fn numbers(num_labels: usize) -> Vec<String> {
    (0..num_labels.max(2))
        .map(|label| label.to_string())
        .collect()
}

/// The files of a split.
struct ParquetSource {
    dir: PathBuf,
    split: String,
    files: Vec<ParquetFile>,
    /// File, row group and row of each image with a label.
    images: Vec<[u32; 3]>,
    /// Of each image, until they are the data set's, as notes are.
    labels: Vec<u16>,
    /// Of rows that have no label.
    problems: Vec<String>,
    notes: Vec<String>,
    class_names: Option<Vec<String>>,
}

struct ParquetFile {
    path: PathBuf,
    reader: SerializedFileReader<SharedFile>,
    /// The column of the encoded images.
    bytes: usize,
}

impl ParquetSource {
    /// Opens the files of the split `name`.
    fn named(
        dir: &Path,
        files: &SplitFiles,
        name: &str,
        config: &ParquetConfig,
    ) -> Result<Self, DatasetError> {
        let found = files.of(name)?;
        let remedy = "give the folder of a data set as it was downloaded";
        Self::open(
            dir,
            found.ok_or_else(|| files.missing(name, remedy))?,
            config,
        )
    }

    /// Opens these files.
    fn open(dir: &Path, found: FoundFiles, config: &ParquetConfig) -> Result<Self, DatasetError> {
        let FoundFiles {
            split,
            names,
            notes,
        } = found;
        let mut source = Self {
            dir: dir.to_path_buf(),
            split,
            files: Vec::new(),
            images: Vec::new(),
            labels: Vec::new(),
            problems: Vec::new(),
            notes,
            class_names: None,
        };
        let mut labels = Vec::new();
        for name in names {
            source.add(&name, &mut labels)?;
        }
        source.take_labels(labels)?;
        source.expect_names()?;
        if !source.problems.is_empty() {
            let (num, problems) = (source.problems.len(), list(source.problems.iter()));
            if source.images.is_empty() {
                let found = format!(
                    "none of {num} rows of the files {} has a label from 0 up",
                    source.split
                );
                return Err(DatasetError::Unlabelled {
                    path: source.dir,
                    found,
                });
            }
            if config.on_bad_image == OnBadImage::Fail {
                return Err(DatasetError::BadShards {
                    path: source.dir,
                    problems,
                    or_skip: true,
                });
            }
            source
                .notes
                .push(format!("{num} rows were skipped: {problems}"));
        }
        if source.images.is_empty() {
            let problems = format!("{}: expected at least one row, got none", source.split);
            return Err(DatasetError::BadShards {
                path: source.dir,
                problems,
                or_skip: false,
            });
        }
        Ok(source)
    }

    fn num_labels(&self) -> usize {
        self.labels
            .iter()
            .max()
            .map_or(0, |label| usize::from(*label) + 1)
    }

    /// Refuses labels beyond the names of the classes.
    fn expect_names(&self) -> Result<(), DatasetError> {
        let (path, expected) = (|| self.files[0].path.clone(), self.num_labels());
        match &self.class_names {
            Some(names) if names.len() < expected || names.len() > 1 << 16 => {
                Err(DatasetError::ClassNames {
                    path: path(),
                    expected,
                    got: names.len(),
                })
            }
            _ => Ok(()),
        }
    }

    /// Keeps the rows with a label, and makes classes of labels that are text.
    fn take_labels(&mut self, labels: Vec<Label>) -> Result<(), DatasetError> {
        let mut texts = BTreeMap::new();
        for label in &labels {
            if let Label::Text(text) = label {
                texts.insert(text.clone(), 0);
            }
        }
        texts
            .values_mut()
            .enumerate()
            .for_each(|(class, number)| *number = class);
        let is_text = |label: &Label| matches!(label, Label::Text(_));
        let is_number = |label: &Label| matches!(label, Label::Number(_));
        if texts.len() > 1 << 16 || (!texts.is_empty() && labels.iter().any(is_number)) {
            let num = labels.iter().filter(|label| is_text(label)).count();
            let problems = format!(
                "expected numbers, or the names of at most 65536 classes, in the column of labels, got {} texts in {num} rows",
                texts.len()
            );
            return Err(DatasetError::BadShards {
                path: self.dir.clone(),
                problems,
                or_skip: false,
            });
        }
        let rows = std::mem::take(&mut self.images);
        for (row, label) in rows.into_iter().zip(labels) {
            let label = match label {
                Label::Number(number) => number,
                Label::Text(text) => texts[&text] as u16,
                Label::None => {
                    self.images.push(row);
                    let path = self.path(self.images.len() - 1);
                    self.images.pop();
                    self.problems.push(format!(
                        "{}: no label",
                        path.strip_prefix(&self.dir).unwrap_or(&path).display()
                    ));
                    continue;
                }
            };
            self.images.push(row);
            self.labels.push(label);
        }
        if !texts.is_empty() {
            self.class_names = Some(texts.into_keys().collect());
        }
        Ok(())
    }

    fn into_dataset(
        mut self,
        class_names: &[String],
        config: &ParquetConfig,
    ) -> Result<Arc<dyn ImageDataset>, DatasetError> {
        let name = format!("parquet {}", self.split);
        let mut notes = std::mem::take(&mut self.notes);
        notes.push(format!(
            "{} images in {} files, decoded on demand",
            self.labels.len(),
            self.files.len()
        ));
        notes.extend(map_labels(
            &name,
            &mut self.labels,
            self.class_names.as_deref(),
            class_names,
        )?);
        let labels = std::mem::take(&mut self.labels);
        let contents = Contents {
            name,
            class_names: class_names.to_vec(),
            labels,
            notes,
        };
        let ParquetConfig {
            sizing,
            on_bad_image,
            num_threads,
        } = *config;
        let whole = Split::of_name(&self.split) == Some(Split::Train);
        let reading = Reading {
            sizing,
            keep: false,
            on_bad_image,
            whole,
            num_threads,
        };
        Ok(Arc::new(EncodedDataset::open(self, contents, reading)?))
    }

    /// Adds the rows of a file, and what each says of its class to `all_labels`.
    fn add(&mut self, name: &str, all_labels: &mut Vec<Label>) -> Result<(), DatasetError> {
        let path = &self.dir.join(name);
        let bad = |problems: String| DatasetError::BadShards {
            path: path.to_path_buf(),
            problems,
            or_skip: false,
        };
        let file = SharedFile(Arc::new(
            File::open(path).map_err(DatasetError::io("read", path))?,
        ));
        let most_rows = file.len();
        let reader = guarded(|| SerializedFileReader::new(file).map_err(|error| error.to_string()))
            .map_err(bad)?;
        expect_rows(&reader, most_rows).map_err(bad)?;
        let features = features(&reader);
        let (bytes, label) = (
            column(&reader, &columns::IMAGES, &features, "Image"),
            column(&reader, &columns::LABELS, &features, "ClassLabel"),
        );
        let bytes = bytes.ok_or_else(|| {
            bad(format!(
                "expected a column of images, image.bytes or image, got {}",
                list(leaves(&reader).iter())
            ))
        })?;
        for group in 0..reader.num_row_groups() {
            let num_rows = reader.metadata().row_group(group).num_rows() as usize;
            let labels = match label {
                Some(label) => guarded(|| labels(&reader, group, label))
                    .map_err(|reason| bad(format!("row group {group}: {reason}")))?,
                None => vec![Label::None; num_rows],
            };
            let place = |row| [self.files.len() as u32, group as u32, row];
            self.images.extend((0..labels.len() as u32).map(place));
            all_labels.extend(labels);
            progress::advance(1);
        }
        if let (None, Some(label)) = (&self.class_names, label) {
            self.class_names = class_names(&features, &leaves(&reader)[label]);
        }
        self.files.push(ParquetFile {
            path: path.to_path_buf(),
            reader,
            bytes,
        });
        Ok(())
    }
}

impl Source for ParquetSource {
    fn read(&self, image: usize) -> Result<Vec<u8>, DatasetError> {
        let [file, group, row] = self.images[image];
        let file = &self.files[file as usize];
        let bytes = guarded(|| bytes(&file.reader, group as usize, file.bytes, row as usize));
        let bytes = bytes.map_err(|reason| DatasetError::BadImage {
            path: self.path(image),
            reason,
        })?;
        progress::advance(bytes.len());
        Ok(bytes.data().to_vec())
    }

    fn path(&self, image: usize) -> PathBuf {
        let [file, group, row] = self.images[image];
        self.files[file as usize]
            .path
            .join(format!("row group {group} row {row}"))
    }

    fn key(&self, image: usize) -> String {
        let [file, group, row] = self.images[image];
        let name = self.files[file as usize]
            .path
            .file_name()
            .unwrap_or_default();
        format!("{}/{group}/{row}", name.to_string_lossy())
    }

    fn class_path(&self, class_name: &str) -> PathBuf {
        self.dir.join(&self.split).join(class_name)
    }
}

thread_local! {
    static IS_READING: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is inside the library that reads the files. A panic there is caught and becomes an error of the file, so a panic
/// hook that ends the program, as MPI needs one, asks this first.
#[must_use]
pub fn is_reading() -> bool {
    IS_READING.get()
}

/// What the library makes of a file's bytes; at damaged ones it may panic.
fn guarded<T>(read: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    IS_READING.set(true);
    let read = catch_unwind(AssertUnwindSafe(read));
    IS_READING.set(false);
    read.unwrap_or_else(|_| {
        Err("the bytes are damaged: the library that reads them panicked".to_owned())
    })
}

/// A few bytes can claim any number of rows, but no more than the file has bytes are images, all row groups together.
fn expect_rows(reader: &SerializedFileReader<SharedFile>, most_rows: u64) -> Result<(), String> {
    let groups = reader.metadata().row_groups().iter();
    let num_rows = groups
        .map(|group| u64::try_from(group.num_rows()).unwrap_or(u64::MAX))
        .fold(0, u64::saturating_add);
    if num_rows > most_rows {
        return Err(format!(
            "expected at most as many rows as the file has bytes, {most_rows}, got {num_rows}"
        ));
    }
    Ok(())
}
