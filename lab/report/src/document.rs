//! A report before it is written: sections of text, tables and figures.
//!
//! In: the findings of `sections/`. Out: [`Document`], from which every output format is made.
//! Invariant: a table or figure has one id, which is the name of its files in every format.

use super::chart::Plot;
use serde_json::Value;

#[derive(Clone, Debug)]
pub(crate) struct Document {
    pub(crate) title: String,
    /// Time of writing, UTC, RFC 3339.
    pub(crate) created: String,
    /// Inputs as typed.
    pub(crate) inputs: Vec<String>,
    /// Sections in reading order; none is empty.
    pub(crate) sections: Vec<Section>,
}

/// A heading and its contents.
#[derive(Clone, Debug)]
pub(crate) struct Section {
    pub(crate) id: &'static str,
    pub(crate) heading: &'static str,
    pub(crate) contents: Vec<Content>,
}

/// One item of a section.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    Paragraph(String),
    Warning(String),
    Figure(Figure),
    Table(Table),
    /// A summary line and the text of a file, folded away.
    FoldedText(String, String),
}

/// A plot and its caption.
#[derive(Clone, Debug)]
pub(crate) struct Figure {
    pub(crate) id: String,
    pub(crate) title: String,
    /// Measured quantity and method.
    pub(crate) caption: String,
    pub(crate) plot: Plot,
}

/// Rows under named columns.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Table {
    /// Name of its files.
    pub(crate) id: String,
    pub(crate) title: String,
    /// Column names with units.
    pub(crate) columns: Vec<String>,
    /// Rows with one cell per column.
    pub(crate) rows: Vec<Vec<Cell>>,
    /// Summary line of a table that is folded away.
    pub(crate) folded: Option<String>,
}

/// One entry of a table.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Cell {
    Text(String),
    /// A number and its shown decimals; files for programs hold every digit.
    Number(f64, usize),
    Missing,
}

/// A row whose cells name their columns; every row of a table names the same ones.
pub(crate) type NamedRow = Vec<(&'static str, Cell)>;

/// Builds a [`NamedRow`] from anything that a [`Cell`] is made of.
macro_rules! row {
    ($($column:literal => $value:expr),+ $(,)?) => {
        vec![$(($column, $crate::document::Cell::from($value))),+]
    };
}
pub(crate) use row;

impl Content {
    /// Returns the table without empty columns; `None` if it has no rows.
    pub(crate) fn table(table: Table) -> Option<Self> {
        (!table.rows.is_empty()).then(|| Self::Table(table.without_empty_columns()))
    }
}

impl Table {
    pub(crate) fn new(
        id: impl Into<String>,
        title: impl Into<String>,
        rows: impl IntoIterator<Item = NamedRow>,
    ) -> Self {
        let mut table = Self::with_columns(id, title, Vec::new());
        for row in rows {
            let (columns, cells): (Vec<&str>, Vec<Cell>) = row.into_iter().unzip();
            if table.rows.is_empty() {
                table.columns = columns.into_iter().map(str::to_owned).collect();
            }
            table.push(cells);
        }
        table
    }

    pub(crate) fn with_columns(
        id: impl Into<String>,
        title: impl Into<String>,
        columns: Vec<String>,
    ) -> Self {
        Self {
            id: id.into(),
            title: title.into(),
            columns,
            ..Self::default()
        }
    }

    /// Folds the table away under a summary line.
    pub(crate) fn folded(self, summary: impl Into<String>) -> Self {
        Self {
            folded: Some(summary.into()),
            ..self
        }
    }

    /// # Panics
    /// When the row does not have one cell per column.
    pub(crate) fn push(&mut self, row: Vec<Cell>) {
        assert_eq!(
            row.len(),
            self.columns.len(),
            "cells per row of {}",
            self.id
        );
        self.rows.push(row);
    }

    /// Removes the columns without any entry.
    pub(crate) fn without_empty_columns(mut self) -> Self {
        for column in (0..self.columns.len()).rev() {
            if self.rows.iter().all(|row| row[column] == Cell::Missing) {
                self.columns.remove(column);
                self.rows
                    .iter_mut()
                    .for_each(|row| drop(row.remove(column)));
            }
        }
        self
    }

    /// Returns true if a column holds numbers and no text.
    pub(crate) fn is_numeric(&self, column: usize) -> bool {
        let mut cells = self.rows.iter().map(|row| &row[column]).peekable();
        cells.peek().is_some()
            && cells.clone().any(|cell| matches!(cell, Cell::Number(..)))
            && cells.all(|cell| !matches!(cell, Cell::Text(_)))
    }

    /// Returns one object per row, keyed by column.
    pub(crate) fn to_json(&self) -> Value {
        let object = |row: &Vec<Cell>| -> Value {
            let cells = row.iter().map(Cell::to_json);
            self.columns.iter().cloned().zip(cells).collect()
        };
        self.rows.iter().map(object).collect()
    }
}

impl Cell {
    /// Returns the cell as a person reads it.
    pub(crate) fn shown(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Number(value, decimals) => records::decimal(*value, *decimals),
            Self::Missing => "–".to_owned(),
        }
    }

    /// Returns the cell as a program reads it.
    pub(crate) fn raw(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Number(value, _) => value.to_string(),
            Self::Missing => String::new(),
        }
    }

    fn to_json(&self) -> Value {
        match self {
            Self::Text(text) => Value::from(text.clone()),
            Self::Number(value, _) if value.fract() == 0.0 && value.abs() < 9e15 => {
                Value::from(*value as i64)
            }
            Self::Number(value, _) => Value::from(*value),
            Self::Missing => Value::Null,
        }
    }
}

/// Returns a number; one that is not finite is missing.
pub(crate) fn number(value: impl Into<Option<f64>>, decimals: usize) -> Cell {
    match value.into() {
        Some(value) if value.is_finite() => Cell::Number(value, decimals),
        _ => Cell::Missing,
    }
}

/// Returns a share as a percentage.
pub(crate) fn percent(share: impl Into<Option<f64>>, decimals: usize) -> Cell {
    number(share.into().map(|share| 100.0 * share), decimals)
}

/// Returns a size in MiB.
pub(crate) fn mebibytes(bytes: impl Into<Option<u64>>) -> Cell {
    number(
        bytes.into().map(|bytes| bytes as f64 / f64::from(1 << 20)),
        1,
    )
}

impl From<&str> for Cell {
    /// Returns the text; empty text is missing.
    fn from(text: &str) -> Self {
        if text.is_empty() {
            Self::Missing
        } else {
            Self::Text(text.to_owned())
        }
    }
}

impl From<&String> for Cell {
    fn from(text: &String) -> Self {
        text.as_str().into()
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        text.as_str().into()
    }
}

impl From<u64> for Cell {
    fn from(count: u64) -> Self {
        Self::Number(count as f64, 0)
    }
}

impl From<usize> for Cell {
    fn from(count: usize) -> Self {
        Self::Number(count as f64, 0)
    }
}

impl From<bool> for Cell {
    fn from(truth: bool) -> Self {
        if truth { "yes" } else { "no" }.into()
    }
}

impl<T: Into<Cell>> From<Option<T>> for Cell {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Missing, Into::into)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_has_all_digits_and_whole_numbers_without_a_point() {
        let cells = row!["a" => number(0.123456789, 1), "b" => 7_usize, "c" => number(f64::NAN, 1)];
        let table = Table::new("t", "T", [cells]);
        assert_eq!(
            table.to_json().to_string(),
            r#"[{"a":0.123456789,"b":7,"c":null}]"#
        );
        assert!(table.is_numeric(0) && !table.is_numeric(2));
        assert_eq!(table.without_empty_columns().columns, ["a", "b"]);
    }
}
