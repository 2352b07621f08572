//! A report before it is written: sections of words, tables and figures.
//!
//! In: what `sections/` finds worth telling. Out: [`Document`], from which every output format is made.
//! Invariant: a table or figure has one id, which is its file's name in every format.

use super::chart::Plot;
use serde_json::Value;

#[derive(Clone, Debug)]
pub(crate) struct Document {
    pub(crate) title: String,
    /// When it was made, UTC, RFC 3339.
    pub(crate) created: String,
    /// What it was made of, as typed.
    pub(crate) inputs: Vec<String>,
    /// In reading order; none is empty.
    pub(crate) sections: Vec<Section>,
}

/// A heading and what stands under it.
#[derive(Clone, Debug)]
pub(crate) struct Section {
    pub(crate) id: &'static str,
    /// Words of the heading.
    pub(crate) heading: &'static str,
    pub(crate) blocks: Vec<Block>,
}

/// One thing under a heading.
#[derive(Clone, Debug)]
pub(crate) enum Block {
    Paragraph(String),
    /// Words that a reader must not overlook.
    Warning(String),
    Figure(Box<Figure>),
    Table(Table),
    /// A table that is folded away under these words.
    FoldedTable(String, Table),
    /// Text as it stands in a file, folded away under these words.
    FoldedText(String, String),
}

/// A plot, what is said under it, and its numbers.
#[derive(Clone, Debug)]
pub(crate) struct Figure {
    /// How to read it: what was measured, how, over what.
    pub(crate) caption: String,
    pub(crate) plot: Plot,
    /// All numbers that are drawn; its id and title are the figure's.
    pub(crate) data: Table,
}

/// Rows under named columns.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Table {
    /// Name of its files.
    pub(crate) id: String,
    pub(crate) title: String,
    /// Names of the columns with their units.
    pub(crate) columns: Vec<String>,
    /// As many cells a row as there are columns.
    pub(crate) rows: Vec<Vec<Cell>>,
}

/// One entry of a table.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Cell {
    Text(String),
    /// A number and the decimals that are shown of it; files for machines hold all of it.
    Number(f64, usize),
    Missing,
}

impl Table {
    /// A table without rows.
    pub(crate) fn new(id: impl Into<String>, title: impl Into<String>, columns: &[&str]) -> Self {
        let columns = columns.iter().map(|name| (*name).to_owned()).collect();
        Self {
            id: id.into(),
            title: title.into(),
            columns,
            rows: Vec::new(),
        }
    }

    /// A table of rows that name their columns, all the same ones.
    pub(crate) fn of<'a>(
        id: impl Into<String>,
        title: impl Into<String>,
        rows: impl IntoIterator<Item = Vec<(&'a str, Cell)>>,
    ) -> Self {
        let mut table = Self::new(id, title, &[]);
        for row in rows {
            let (columns, cells): (Vec<&str>, Vec<Cell>) = row.into_iter().unzip();
            if table.rows.is_empty() {
                table.columns = columns.into_iter().map(str::to_owned).collect();
            }
            table.push(cells);
        }
        table
    }

    /// Adds a row.
    ///
    /// # Panics
    /// When it has not as many cells as the table has columns.
    pub(crate) fn push(&mut self, row: Vec<Cell>) {
        assert_eq!(
            row.len(),
            self.columns.len(),
            "cells of a row of {}",
            self.id
        );
        self.rows.push(row);
    }

    /// Whether every entry of a column that has one is a number.
    pub(crate) fn is_numeric(&self, column: usize) -> bool {
        let cells = || self.rows.iter().map(|row| &row[column]);
        cells().any(|cell| matches!(cell, Cell::Number(..)))
            && cells().all(|cell| !matches!(cell, Cell::Text(_)))
    }

    /// An object a row, under the columns' names.
    pub(crate) fn to_json(&self) -> Value {
        let row = |row: &Vec<Cell>| {
            Value::Object(
                self.columns
                    .iter()
                    .cloned()
                    .zip(row.iter().map(Cell::to_json))
                    .collect(),
            )
        };
        Value::Array(self.rows.iter().map(row).collect())
    }
}

impl Cell {
    pub(crate) fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    /// A number; what is not finite is missing.
    pub(crate) fn number(value: impl Into<Option<f64>>, decimals: usize) -> Self {
        match value.into() {
            Some(value) if value.is_finite() => Self::Number(value, decimals),
            _ => Self::Missing,
        }
    }

    pub(crate) fn count(value: impl Into<Option<u64>>) -> Self {
        value
            .into()
            .map_or(Self::Missing, |value| Self::Number(value as f64, 0))
    }

    /// A size in MiB.
    pub(crate) fn mebibytes(bytes: impl Into<Option<f64>>) -> Self {
        Self::number(bytes.into().map(|bytes| bytes / f64::from(1 << 20)), 1)
    }

    /// As a person reads it.
    pub(crate) fn shown(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Number(value, decimals) => grouped(*value, *decimals),
            Self::Missing => "–".to_owned(),
        }
    }

    /// As a program reads it; empty where there is nothing.
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

/// A number with so many decimals and thin gaps between thousands.
pub(crate) fn grouped(value: f64, decimals: usize) -> String {
    let text = format!("{:.decimals$}", value.abs());
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let mut grouped = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            grouped.push('\u{202f}');
        }
        grouped.push(digit);
    }
    let is_zero = text.chars().all(|c| c == '0' || c == '.');
    let sign = if value < 0.0 && !is_zero { "−" } else { "" };
    let point = if fraction.is_empty() { "" } else { "." };
    format!("{sign}{grouped}{point}{fraction}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_by_thousands_and_keep_their_sign() {
        assert_eq!(grouped(1_234_567.891, 1), "1\u{202f}234\u{202f}567.9");
        assert_eq!(grouped(-12.0, 0), "−12");
        assert_eq!(grouped(-0.001, 1), "0.0");
        assert_eq!(grouped(999.96, 1), "1\u{202f}000.0");
    }

    #[test]
    fn what_is_not_finite_is_missing() {
        assert_eq!(Cell::number(f64::NAN, 1), Cell::Missing);
        assert_eq!(Cell::number(f64::INFINITY, 1).shown(), "–");
        assert_eq!(Cell::number(None, 1).raw(), "");
    }

    #[test]
    fn json_has_all_digits_and_whole_numbers_without_a_point() {
        let mut table = Table::new("t", "T", &["a", "b", "c"]);
        table.push(vec![
            Cell::number(0.123456789, 1),
            Cell::count(7),
            Cell::Missing,
        ]);
        assert_eq!(
            table.to_json().to_string(),
            r#"[{"a":0.123456789,"b":7,"c":null}]"#
        );
        assert!(table.is_numeric(0) && !table.is_numeric(2));
    }
}
