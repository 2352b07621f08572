//! A data set of images in Parquet files in the format of Hugging Face.
//!
//! In: `DIR/train-*.parquet` and files of other splits, with the names in [`Split`]. One column has
//! images (`image` or `img`: bytes, or a struct with `bytes`). Another column has labels (`label`,
//! `labels` or `fine_label`, or the only column that the file calls classes). Out:
//! [`DatasetSplits`].
//! Invariant: files are sorted by name, and samples have the order of their file, so that indices
//! are the same on every machine. A file, a row group and a row identify a sample. A panic of the
//! Parquet library on damaged bytes becomes an error of the file. A note names every skipped row.

mod columns;
mod shared_file;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::file::reader::{FileReader, Length, SerializedFileReader};

use crate::classes::numbers;
use crate::dataset::{DatasetSplits, ImageDataset};
use crate::encoded::{
    FoundSplit, FoundSplits, OnBadImage, ReadConfig, Source, add_labelled, open_splits,
};
use crate::error::{DatasetError, counted, list};
use crate::progress;
use crate::split::{FoundFiles, Split, SplitFiles};
use columns::{Label, bytes, class_names, column, features, labels, leaves};
use shared_file::SharedFile;

/// Suffix of file names.
const ENDING: &str = ".parquet";

/// Opens the splits of a folder of Parquet files. Footers and labels are read now, and images on
/// demand.
///
/// The class names come from the files' metadata. Without them, they are the sorted text labels, or
/// numbers. A split without any label is not opened, and a note says so.
///
/// # Errors
/// Returns an error if there are no files of the training split, or a file cannot be read or has
/// other columns. If a label has no name, or another split has classes that the training split
/// lacks. With [`OnBadImage::Fail`] also if a row has no label.
pub fn open(dir: impl AsRef<Path>, config: &ReadConfig) -> Result<DatasetSplits, DatasetError> {
    config.check()?;
    let dir = dir.as_ref();
    let files = SplitFiles::list(dir, ENDING)?;
    let mut notes = files.unused();
    let mut splits = FoundSplits::new();
    for split in Split::ALL {
        let name = split.names()[0];
        let found = match files.of(name)? {
            Some(found) => find_rows(dir, found, config.on_bad_image),
            None if split == Split::Train => Err(missing(&files, name)),
            None => continue,
        };
        add_labelled(&mut splits, split, found, &mut notes)?;
    }
    let named = splits
        .iter()
        .find_map(|(_, found)| found.class_names.clone());
    let num_labels = splits.iter().map(|(_, found)| found.num_labels()).max();
    let class_names = named.unwrap_or_else(|| numbers(num_labels.unwrap_or(0)));
    for (_, found) in &mut splits {
        found.map_to(&class_names)?;
    }
    open_splits(splits, notes, false, config)
}

/// Opens one split like [`open`]: `train`, `val` or `test` under any of its names, or other files
/// by a word of their names. Files of other splits may be missing.
///
/// Labels are mapped by name to positions in `classes`. If neither these files nor those of the
/// training split name classes, labels are positions in `classes`. Without `classes`, the classes
/// are those that [`open`] finds in this split and in the training split, if it exists.
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
    let files = SplitFiles::list(dir, ENDING)?;
    let found = files.of(name)?.ok_or_else(|| missing(&files, name))?;
    let mut found = find_rows(dir, found, config.on_bad_image)?;
    let mut num_labels = found.num_labels();
    if found.class_names.is_none()
        && let Ok(Some(train)) = files.of(Split::Train.names()[0])
        && let Ok(train) = find_rows(dir, train, config.on_bad_image)
    {
        num_labels = num_labels.max(train.num_labels());
        found.class_names = train.class_names;
        expect_names(&found)?;
    }
    let own = found.class_names.clone();
    let own = own.unwrap_or_else(|| numbers(num_labels));
    found.map_to(classes.unwrap_or(&own))?;
    let split = Split::of_name(&found.source.split);
    found.open(split, false, config)
}

fn missing(files: &SplitFiles, name: &str) -> DatasetError {
    files.missing(name, "Give the folder of a downloaded data set")
}

/// Files of a split.
struct ParquetSource {
    dir: PathBuf,
    split: String,
    files: Vec<ParquetFile>,
    /// File, row group and row of each image with a label.
    images: Vec<[u32; 3]>,
}

struct ParquetFile {
    path: PathBuf,
    reader: SerializedFileReader<SharedFile>,
    /// Index of the column with encoded images.
    bytes: usize,
}

/// Opens the files of a split and reads their labels.
fn find_rows(
    dir: &Path,
    FoundFiles {
        split,
        names,
        notes,
    }: FoundFiles,
    on_bad_image: OnBadImage,
) -> Result<FoundSplit<ParquetSource>, DatasetError> {
    let mut found = FoundSplit {
        name: format!("parquet {split}"),
        source: ParquetSource {
            dir: dir.to_path_buf(),
            split,
            files: Vec::new(),
            images: Vec::new(),
        },
        labels: Vec::new(),
        class_names: None,
        notes,
    };
    let mut labels = Vec::new();
    for name in &names {
        let names = found.source.add(name, &mut labels)?;
        found.class_names = found.class_names.or(names);
    }
    let problems = take_labels(&mut found, labels)?;
    expect_names(&found)?;
    found.note_problems(&problems, problems.len(), on_bad_image)?;
    found.notes.push(format!(
        "{} in {}, decoded on demand",
        counted(found.labels.len(), "image"),
        counted(names.len(), "file")
    ));
    Ok(found)
}

/// Rejects labels without a class name.
fn expect_names(found: &FoundSplit<ParquetSource>) -> Result<(), DatasetError> {
    let expected = found.num_labels();
    match &found.class_names {
        Some(names) if names.len() < expected || names.len() > 1 << 16 => {
            let path = &found.source.files[0].path;
            Err(DatasetError::class_names(path, expected, names.len()))
        }
        _ => Ok(()),
    }
}

/// Keeps the rows with a label, converts text labels to classes, and returns the other rows.
fn take_labels(
    found: &mut FoundSplit<ParquetSource>,
    labels: Vec<Label>,
) -> Result<Vec<String>, DatasetError> {
    let mut texts = BTreeMap::new();
    for label in &labels {
        if let Label::Text(text) = label {
            texts.insert(text.clone(), 0);
        }
    }
    for (class, number) in texts.values_mut().enumerate() {
        *number = class;
    }
    let is_number = |label: &Label| matches!(label, Label::Number(_));
    if texts.len() > 1 << 16 || (!texts.is_empty() && labels.iter().any(is_number)) {
        let is_text = |label: &&Label| matches!(label, Label::Text(_));
        let problems = format!(
            "expected numbers, or the names of at most 65536 classes, in the column of labels, got {} texts in {} rows",
            texts.len(),
            labels.iter().filter(is_text).count()
        );
        return Err(DatasetError::bad_files(&found.source.dir, &problems, false));
    }
    let mut problems = Vec::new();
    let rows = std::mem::take(&mut found.source.images);
    for (row, label) in rows.into_iter().zip(labels) {
        let label = match label {
            Label::Number(number) => number,
            Label::Text(text) => texts[&text] as u16,
            Label::None => {
                let path = found.source.path_of(row);
                let path = path.strip_prefix(&found.source.dir).unwrap_or(&path);
                problems.push(format!("{}: no label", path.display()));
                continue;
            }
        };
        found.source.images.push(row);
        found.labels.push(label);
    }
    if !texts.is_empty() {
        found.class_names = Some(texts.into_keys().collect());
    }
    Ok(problems)
}

impl ParquetSource {
    fn path_of(&self, [file, group, row]: [u32; 3]) -> PathBuf {
        let path = &self.files[file as usize].path;
        path.join(format!("row group {group} row {row}"))
    }

    /// Adds the rows of a file, and their labels to `all_labels`. Returns the names of the classes.
    fn add(
        &mut self,
        name: &str,
        all_labels: &mut Vec<Label>,
    ) -> Result<Option<Vec<String>>, DatasetError> {
        let path = &self.dir.join(name);
        let bad = |problems: String| DatasetError::bad_files(path, &problems, false);
        let file = SharedFile(Arc::new(
            File::open(path).map_err(DatasetError::io("read", path))?,
        ));
        let most_rows = file.len();
        let reader = guarded(|| SerializedFileReader::new(file).map_err(|error| error.to_string()))
            .map_err(bad)?;
        expect_rows(&reader, most_rows).map_err(bad)?;
        let features = features(&reader);
        let bytes = column(&reader, &columns::IMAGES, &features, "Image");
        let label = column(&reader, &columns::LABELS, &features, "ClassLabel");
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
        let names = label.and_then(|label| class_names(&features, &leaves(&reader)[label]));
        self.files.push(ParquetFile {
            path: path.to_path_buf(),
            reader,
            bytes,
        });
        Ok(names)
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
        self.path_of(self.images[image])
    }

    fn key(&self, image: usize) -> String {
        let [file, group, row] = self.images[image];
        let name = self.files[file as usize]
            .path
            .file_name()
            .unwrap_or_default();
        format!("{}/{group}/{row}", name.to_string_lossy())
    }

    fn dir(&self) -> PathBuf {
        self.dir.join(&self.split)
    }
}

thread_local! {
    static IS_READING: Cell<bool> = const { Cell::new(false) };
}

/// Returns true if this thread is inside the Parquet library. A panic there is caught and becomes
/// an error of the file. A panic hook that ends the program, as MPI needs, must check this function
/// first.
#[must_use]
pub fn is_reading() -> bool {
    IS_READING.get()
}

/// Runs `read` inside the Parquet library, which may panic on damaged bytes.
fn guarded<T>(read: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    IS_READING.set(true);
    let read = catch_unwind(AssertUnwindSafe(read));
    IS_READING.set(false);
    read.unwrap_or_else(|_| {
        Err("the bytes are damaged: the library that reads them panicked".to_owned())
    })
}

/// Rejects a file that declares more rows than it has bytes.
///
/// A few damaged bytes can declare any number of rows.
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
