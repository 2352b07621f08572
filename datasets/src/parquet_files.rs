//! A data set of images in Parquet files, as Hugging Face publishes it.
//!
//! In: `DIR/train-*.parquet` and `DIR/validation-*.parquet` (or `val-*`, `test-*`), also in `DIR/data`, with the columns `image.bytes` and
//! `label`. Out: [`DatasetSplits`].
//! Invariant: files are sorted by name and samples stand as in their file, so that indices are the same on every machine; any sample is
//! read by its file, row group and row. What damaged bytes do to the library that reads them is an error of their file.

use std::cell::Cell;
use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::reader::{ChunkReader, FileReader, Length, SerializedFileReader};
use serde::Deserialize;

use crate::dataset::{DatasetSplits, ImageDataset, Normalization};
use crate::decode::Sizing;
use crate::encoded::{Contents, EncodedDataset, OnBadImage, Reading, Source, empty_classes};
use crate::error::DatasetError;
use crate::progress;

/// The names of the split to train on, and those that the one to test with may have: published test splits often have no labels.
const TRAIN: [&str; 1] = ["train"];
const TEST: [&str; 3] = ["validation", "val", "test"];

/// The key of a file's metadata that holds the names of classes.
const FACTS: &str = "huggingface";

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

/// Opens a folder of Parquet files; their footers and labels are read now, an image when it is wanted.
///
/// # Errors
/// If there are no files of a split, one cannot be read or has other columns, or a label is negative, missing or without a name.
pub fn open(dir: impl AsRef<Path>, config: &ParquetConfig) -> Result<DatasetSplits, DatasetError> {
    let dir = dir.as_ref();
    config.sizing.check()?;
    let [train, test] = [&TRAIN[..], &TEST].map(|names| ParquetSource::open(dir, names));
    let (train, test) = (train?, test?);
    let class_names = train.names_of_classes(train.num_labels().max(test.num_labels()))?;
    let without_images = empty_classes(&train.labels, &class_names);
    let train = train.into_dataset(class_names.clone(), without_images, config)?;
    let test = test.into_dataset(class_names, None, config)?;
    Ok(DatasetSplits { train, test, normalization: Normalization::imagenet() })
}

/// As [`open`], of the files to test with alone; those to train on need not be there.
///
/// Names of classes that these do not tell are those of the files to train on, where these can be read. Where none tells them there are at
/// least `num_classes`; if that is 0, at least those of the files to train on.
///
/// # Errors
/// As [`open`].
pub fn open_test(
    dir: impl AsRef<Path>,
    config: &ParquetConfig,
    num_classes: usize,
) -> Result<Arc<dyn ImageDataset>, DatasetError> {
    let dir = dir.as_ref();
    config.sizing.check()?;
    let mut test = ParquetSource::open(dir, &TEST)?;
    let mut num_others = 0;
    if test.class_names.is_none() {
        let train = ParquetSource::open(dir, &TRAIN).ok();
        num_others = match &train {
            Some(ParquetSource { class_names: Some(_), .. }) => 0,
            Some(train) if num_classes == 0 => train.num_labels(),
            _ => num_classes,
        };
        test.class_names = train.and_then(|train| train.class_names);
    }
    let class_names = test.names_of_classes(test.num_labels().max(num_others))?;
    test.into_dataset(class_names, None, config)
}

/// The files of a split.
struct ParquetSource {
    dir: PathBuf,
    split: String,
    files: Vec<ParquetFile>,
    /// File, row group and row of each image.
    images: Vec<[u32; 3]>,
    /// Of each image, until they are the data set's, as notes are.
    labels: Vec<u16>,
    notes: Vec<String>,
    class_names: Option<Vec<String>>,
}

/// A file that several threads read at once: each says where, and none moves the position of another, as `File` itself would.
struct SharedFile(Arc<File>);

/// What is read of it from a position on.
struct FileFrom {
    file: Arc<File>,
    position: u64,
}

impl Read for FileFrom {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.file.read_at(buffer, self.position)?;
        self.position += len as u64;
        Ok(len)
    }
}

impl Length for SharedFile {
    fn len(&self) -> u64 {
        self.0.metadata().map_or(0, |facts| facts.len())
    }
}

impl ChunkReader for SharedFile {
    type T = BufReader<FileFrom>;

    fn get_read(&self, start: u64) -> ParquetResult<Self::T> {
        Ok(BufReader::new(FileFrom { file: Arc::clone(&self.0), position: start }))
    }

    fn get_bytes(&self, start: u64, length: usize) -> ParquetResult<Bytes> {
        let mut bytes = Vec::new();
        FileFrom { file: Arc::clone(&self.0), position: start }.take(length as u64).read_to_end(&mut bytes)?;
        match bytes.len() {
            len if len == length => Ok(bytes.into()),
            len => Err(ParquetError::EOF(format!("expected {length} bytes from byte {start} on, got {len}"))),
        }
    }
}

struct ParquetFile {
    path: PathBuf,
    reader: SerializedFileReader<SharedFile>,
    /// The column `image.bytes`.
    bytes: usize,
}

impl ParquetSource {
    /// Opens the files of the first of `splits` that has any.
    fn open(dir: &Path, splits: &[&str]) -> Result<Self, DatasetError> {
        let (split, paths, notes) = find(dir, splits)?;
        let (files, images, labels) = (Vec::new(), Vec::new(), Vec::new());
        let mut source = Self { dir: dir.to_path_buf(), split, files, images, labels, notes, class_names: None };
        for path in paths {
            source.add(&path)?;
        }
        if source.images.is_empty() {
            let problems = format!("{}: expected at least one row, got none", source.split);
            return Err(DatasetError::BadShards { path: dir.to_path_buf(), problems, or_skip: false });
        }
        Ok(source)
    }

    fn num_labels(&self) -> usize {
        self.labels.iter().max().map_or(0, |label| usize::from(*label) + 1)
    }

    /// The names that the files tell, else numbers, of so many labels.
    fn names_of_classes(&self, num_labels: usize) -> Result<Vec<String>, DatasetError> {
        let num_labels = num_labels.max(2);
        match &self.class_names {
            Some(names) if names.len() < num_labels => {
                let path = self.files[0].path.clone();
                Err(DatasetError::ClassNames { path, expected: num_labels, got: names.len() })
            }
            Some(names) => Ok(names.clone()),
            None => Ok((0..num_labels).map(|label| label.to_string()).collect()),
        }
    }

    fn into_dataset(
        mut self,
        class_names: Vec<String>,
        further: Option<String>,
        config: &ParquetConfig,
    ) -> Result<Arc<dyn ImageDataset>, DatasetError> {
        let mut notes = std::mem::take(&mut self.notes);
        notes.push(format!("{} images in {} files, decoded on demand", self.labels.len(), self.files.len()));
        notes.extend(further);
        let name = format!("parquet {}", self.split);
        let contents = Contents { name, class_names, labels: std::mem::take(&mut self.labels), notes };
        let ParquetConfig { sizing, on_bad_image, num_threads } = *config;
        let whole = TRAIN.contains(&&*self.split);
        let reading = Reading { sizing, keep: false, on_bad_image, whole, num_threads };
        Ok(Arc::new(EncodedDataset::open(self, contents, reading)?))
    }

    fn add(&mut self, path: &Path) -> Result<(), DatasetError> {
        let bad = |problems: String| DatasetError::BadShards { path: path.to_path_buf(), problems, or_skip: false };
        let file = SharedFile(Arc::new(File::open(path).map_err(DatasetError::io("read", path))?));
        let most_rows = file.len();
        let reader = guarded(|| SerializedFileReader::new(file).map_err(|error| error.to_string())).map_err(bad)?;
        expect_rows(&reader, most_rows).map_err(bad)?;
        let columns = reader.metadata().file_metadata().schema_descr().columns();
        let find = |name: &str| {
            let found = columns.iter().position(|column| column.path().string() == name);
            // One value a row: a list is another column.
            let found = found.filter(|found| columns[*found].max_rep_level() == 0);
            found.ok_or_else(|| bad(format!("expected the columns image.bytes and label, got no {name}")))
        };
        let (bytes, label) = (find("image.bytes")?, find("label")?);
        for group in 0..reader.num_row_groups() {
            let labels = guarded(|| labels(&reader, group, label))
                .map_err(|reason| bad(format!("row group {group}: {reason}")))?;
            let place = |row| [self.files.len() as u32, group as u32, row];
            self.images.extend((0..labels.len() as u32).map(place));
            self.labels.extend(labels);
            progress::advance(1);
        }
        if self.class_names.is_none() {
            self.class_names = class_names(&reader);
        }
        self.files.push(ParquetFile { path: path.to_path_buf(), reader, bytes });
        Ok(())
    }
}

impl Source for ParquetSource {
    fn read(&self, image: usize) -> Result<Vec<u8>, DatasetError> {
        let [file, group, row] = self.images[image];
        let file = &self.files[file as usize];
        let bytes = guarded(|| bytes(&file.reader, group as usize, file.bytes, row as usize));
        let bytes = bytes.map_err(|reason| DatasetError::BadImage { path: self.path(image), reason })?;
        progress::advance(bytes.len());
        Ok(bytes.data().to_vec())
    }

    fn path(&self, image: usize) -> PathBuf {
        let [file, group, row] = self.images[image];
        self.files[file as usize].path.join(format!("row group {group} row {row}"))
    }

    fn key(&self, image: usize) -> String {
        let [file, group, row] = self.images[image];
        let name = self.files[file as usize].path.file_name().unwrap_or_default();
        format!("{}/{group}/{row}", name.to_string_lossy())
    }

    fn class_path(&self, class_name: &str) -> PathBuf {
        self.dir.join(&self.split).join(class_name)
    }
}

/// The first of `splits` that has any files, these, sorted, and what is to be noted.
fn find(dir: &Path, splits: &[&str]) -> Result<(String, Vec<PathBuf>, Vec<String>), DatasetError> {
    let data = dir.join("data");
    let dir = if data.is_dir() { &data } else { dir };
    let mut paths = Vec::new();
    for entry in fs::read_dir(dir).map_err(DatasetError::io("read", dir))? {
        paths.push(entry.map_err(DatasetError::io("read", dir))?.path());
    }
    paths.sort();
    let of = |split: &str| -> Vec<PathBuf> {
        let is_of_split = |path: &&PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.ends_with(".parquet") && name.strip_prefix(split).is_some_and(|rest| rest.starts_with(['-', '.']))
        };
        paths.iter().filter(is_of_split).cloned().collect()
    };
    let mut found = splits.iter().map(|split| (*split, of(split))).filter(|(_, paths)| !paths.is_empty());
    if let Some((split, paths)) = found.next() {
        let note = |(other, _)| format!("{split}*.parquet is used, {other}*.parquet is not");
        return Ok((split.to_owned(), paths, found.map(note).collect()));
    }
    Err(DatasetError::Missing {
        what: format!("Parquet files of {}", splits.join(" or ")),
        path: dir.to_path_buf(),
        expected: format!("{}-*.parquet", splits[0]),
        remedy: "give the folder of a data set as it was downloaded",
    })
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
    read.unwrap_or_else(|_| Err("the bytes are damaged: the library that reads them panicked".to_owned()))
}

/// A few bytes can claim any number of rows, but no more than the file has bytes are images, all row groups together.
fn expect_rows(reader: &SerializedFileReader<SharedFile>, most_rows: u64) -> Result<(), String> {
    let groups = reader.metadata().row_groups().iter();
    let num_rows = groups.map(|group| u64::try_from(group.num_rows()).unwrap_or(u64::MAX)).fold(0, u64::saturating_add);
    if num_rows > most_rows {
        return Err(format!("expected at most as many rows as the file has bytes, {most_rows}, got {num_rows}"));
    }
    Ok(())
}

/// All labels of a row group.
fn labels(reader: &SerializedFileReader<SharedFile>, group: usize, column: usize) -> Result<Vec<u16>, String> {
    let group = reader.get_row_group(group).map_err(|error| error.to_string())?;
    let num_rows = group.metadata().num_rows() as usize;
    let ColumnReader::Int64ColumnReader(mut column) =
        group.get_column_reader(column).map_err(|error| error.to_string())?
    else {
        return Err("expected labels of 64 bits, got another type".to_owned());
    };
    let column: &mut ColumnReaderImpl<Int64Type> = &mut column;
    let (mut present, mut values) = (Vec::new(), Vec::new());
    column.read_records(num_rows, Some(&mut present), None, &mut values).map_err(|error| error.to_string())?;
    if values.len() != num_rows {
        return Err(format!("expected {num_rows} labels, got {}", values.len()));
    }
    let label = |label: i64| u16::try_from(label).map_err(|_| format!("expected a label from 0 to 65535, got {label}"));
    values.into_iter().map(label).collect()
}

/// The bytes of one image.
fn bytes(
    reader: &SerializedFileReader<SharedFile>,
    group: usize,
    column: usize,
    row: usize,
) -> Result<ByteArray, String> {
    let group = reader.get_row_group(group).map_err(|error| error.to_string())?;
    let ColumnReader::ByteArrayColumnReader(mut column) =
        group.get_column_reader(column).map_err(|error| error.to_string())?
    else {
        return Err("expected bytes in image.bytes, got another type".to_owned());
    };
    let column: &mut ColumnReaderImpl<ByteArrayType> = &mut column;
    let (mut present, mut values) = (Vec::new(), Vec::new());
    column.skip_records(row).map_err(|error| error.to_string())?;
    column.read_records(1, Some(&mut present), None, &mut values).map_err(|error| error.to_string())?;
    values.pop().ok_or_else(|| "expected an image in image.bytes, got none".to_owned())
}

/// The names of the classes that a file tells.
fn class_names(reader: &SerializedFileReader<SharedFile>) -> Option<Vec<String>> {
    #[derive(Deserialize)]
    struct Facts {
        info: Info,
    }
    #[derive(Deserialize)]
    struct Info {
        features: Features,
    }
    #[derive(Deserialize)]
    struct Features {
        label: Label,
    }
    #[derive(Deserialize)]
    struct Label {
        names: Vec<String>,
    }
    let metadata = reader.metadata().file_metadata().key_value_metadata()?;
    let text = metadata.iter().find(|pair| pair.key == FACTS)?.value.as_deref()?;
    serde_json::from_str::<Facts>(text).ok().map(|facts| facts.info.features.label.names)
}
