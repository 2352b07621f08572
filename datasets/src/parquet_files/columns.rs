//! Columns of a Parquet file: the columns of images and labels, and their content.
//!
//! In: an open file. Out: labels of a row group, the bytes of one image, names of classes.
//! Invariant: there are as many labels as rows.

use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{ByteArray, ByteArrayType, DataType};
use parquet::file::reader::{FileReader, SerializedFileReader};
use serde_json::Value;

use super::shared_file::SharedFile;

/// Names of columns for images, and for labels. The first existing column is used.
pub(super) const IMAGES: [&str; 4] = ["image.bytes", "img.bytes", "image", "img"];
pub(super) const LABELS: [&str; 3] = ["label", "labels", "fine_label"];

/// Key of a file's metadata with the names of classes.
const FACTS: &str = "huggingface";

/// Label of a row.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Label {
    Number(u16),
    Text(String),
    /// Null, below 0, or without a column.
    None,
}

/// Returns the names of the columns. The name of a list column is replaced.
pub(super) fn leaves(reader: &SerializedFileReader<SharedFile>) -> Vec<String> {
    let columns = reader.metadata().file_metadata().schema_descr().columns();
    let name = |column: &parquet::schema::types::ColumnDescPtr| {
        let path = column.path().string();
        // The column has one value per row.
        if column.max_rep_level() == 0 {
            path
        } else {
            format!("{path} (a list)")
        }
    };
    columns.iter().map(name).collect()
}

/// Returns the first existing column of `names`. Without one, returns the only column that the
/// file's metadata call `kind`.
pub(super) fn column(
    reader: &SerializedFileReader<SharedFile>,
    names: &[&str],
    features: &Value,
    kind: &str,
) -> Option<usize> {
    let leaves = leaves(reader);
    let find = |name: &str| leaves.iter().position(|leaf| leaf == name);
    names.iter().find_map(|name| find(name)).or_else(|| {
        let of_kind = features
            .as_object()?
            .iter()
            .filter(|(_, feature)| feature["_type"] == kind);
        let found: Vec<usize> = of_kind
            .filter_map(|(name, _)| find(&format!("{name}.bytes")).or_else(|| find(name)))
            .collect();
        (found.len() == 1).then(|| found[0])
    })
}

/// Returns all labels of a row group.
pub(super) fn labels(
    reader: &SerializedFileReader<SharedFile>,
    group: usize,
    column: usize,
) -> Result<Vec<Label>, String> {
    let group = reader
        .get_row_group(group)
        .map_err(|error| error.to_string())?;
    let num_rows = group.metadata().num_rows() as usize;
    let float = |value: f64| {
        if value.is_nan() {
            return Ok(Label::None);
        }
        match value.fract() == 0.0 && value.abs() < 1e9 {
            true => number(value as i64),
            false => Err(wrong_label(&value.to_string())),
        }
    };
    match group
        .get_column_reader(column)
        .map_err(|error| error.to_string())?
    {
        ColumnReader::BoolColumnReader(column) => {
            column_labels(column, num_rows, |value| number(i64::from(*value)))
        }
        ColumnReader::Int32ColumnReader(column) => {
            column_labels(column, num_rows, |value| number(i64::from(*value)))
        }
        ColumnReader::Int64ColumnReader(column) => {
            column_labels(column, num_rows, |value| number(*value))
        }
        ColumnReader::FloatColumnReader(column) => {
            column_labels(column, num_rows, |value| float(f64::from(*value)))
        }
        ColumnReader::DoubleColumnReader(column) => {
            column_labels(column, num_rows, |value| float(*value))
        }
        ColumnReader::ByteArrayColumnReader(column) => column_labels(column, num_rows, |value| {
            let text = value
                .as_utf8()
                .map_err(|_| "expected text in the column of labels, got bytes".to_owned())?;
            Ok(if text.is_empty() {
                Label::None
            } else {
                Label::Text(text.to_owned())
            })
        }),
        _ => Err("expected labels that are numbers or text, got another type".to_owned()),
    }
}

fn number(number: i64) -> Result<Label, String> {
    match u16::try_from(number) {
        _ if number < 0 => Ok(Label::None),
        Ok(number) => Ok(Label::Number(number)),
        Err(_) => Err(wrong_label(&number.to_string())),
    }
}

fn wrong_label(got: &str) -> String {
    format!("expected a label from 0 to 65535, got {got}")
}

/// Returns the labels of a column, in which some rows may have none.
fn column_labels<T: DataType>(
    mut column: ColumnReaderImpl<T>,
    num_rows: usize,
    label: impl Fn(&T::T) -> Result<Label, String>,
) -> Result<Vec<Label>, String> {
    let mut present = Vec::new();
    let mut values = Vec::new();
    let (num_read, ..) = column
        .read_records(num_rows, Some(&mut present), None, &mut values)
        .map_err(|error| error.to_string())?;
    if num_read != num_rows {
        return Err(format!("expected {num_rows} labels, got {num_read}"));
    }
    let mut values = values.iter();
    // A column with a value in every row has no levels.
    let most = present.iter().max().copied().unwrap_or(0);
    let is_there = |row: usize| present.get(row).is_none_or(|level| *level == most);
    let next = |row| match is_there(row).then(|| values.next()) {
        Some(Some(value)) => label(value),
        _ => Ok(Label::None),
    };
    (0..num_rows).map(next).collect()
}

/// Returns the bytes of one image.
pub(super) fn bytes(
    reader: &SerializedFileReader<SharedFile>,
    group: usize,
    column: usize,
    row: usize,
) -> Result<ByteArray, String> {
    let group = reader
        .get_row_group(group)
        .map_err(|error| error.to_string())?;
    let ColumnReader::ByteArrayColumnReader(mut column) = group
        .get_column_reader(column)
        .map_err(|error| error.to_string())?
    else {
        return Err("expected bytes in the column of images, got another type".to_owned());
    };
    let column: &mut ColumnReaderImpl<ByteArrayType> = &mut column;
    let mut present = Vec::new();
    let mut values = Vec::new();
    column
        .skip_records(row)
        .map_err(|error| error.to_string())?;
    column
        .read_records(1, Some(&mut present), None, &mut values)
        .map_err(|error| error.to_string())?;
    values.pop().ok_or_else(|| {
        "expected the bytes of an image, got null (files that a column image.path names are not read: embed them)"
            .to_owned()
    })
}

/// Returns the columns' description in a file's metadata.
pub(super) fn features(reader: &SerializedFileReader<SharedFile>) -> Value {
    let metadata = reader.metadata().file_metadata().key_value_metadata();
    let text = metadata.and_then(|metadata| {
        metadata
            .iter()
            .find(|pair| pair.key == FACTS)?
            .value
            .as_deref()
    });
    let facts = text
        .and_then(|text| serde_json::from_str::<Value>(text).ok())
        .unwrap_or_default();
    facts["info"]["features"].clone()
}

/// Returns the names of the classes of a column.
pub(super) fn class_names(features: &Value, column: &str) -> Option<Vec<String>> {
    let names = features[column]["names"].as_array()?;
    names
        .iter()
        .map(|name| name.as_str().map(str::to_owned))
        .collect()
}
