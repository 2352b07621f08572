//! A report before it is written: sections of text, tables and figures.
//!
//! In: the numbers of `sections/`. Out: [`Document`], from which every output format is made.
//! Invariant: a table or figure has a unique id, which is the name of its files. A table has rows
//! and no empty column; a figure has points or bars.

use crate::chart::{Axis, Bar, Figure, MOST_BARS, Marks, Series};
use serde_json::Value;
use std::collections::BTreeMap;

/// A whole report.
#[derive(Debug)]
pub(crate) struct Document {
    pub(crate) title: String,
    /// Time of writing, UTC, RFC 3339.
    pub(crate) created: String,
    /// Inputs as typed.
    pub(crate) inputs: Vec<String>,
    /// Sentences with the result.
    pub(crate) results: Vec<String>,
    /// Sections in reading order; none is empty.
    pub(crate) sections: Vec<Section>,
}

/// A heading and its contents.
#[derive(Debug)]
pub(crate) struct Section {
    pub(crate) id: &'static str,
    pub(crate) heading: &'static str,
    pub(crate) contents: Vec<Content>,
}

/// One item of a section.
#[derive(Debug)]
pub(crate) enum Content {
    Paragraph(String),
    Warning(String),
    Figure(Figure),
    Table(Table),
    /// A summary line and the text of a file, folded away.
    FoldedText(String, String),
}

/// Rows under named columns.
#[derive(Debug, Default)]
pub(crate) struct Table {
    /// Name of its files.
    pub(crate) id: String,
    pub(crate) title: String,
    /// Column names with units.
    pub(crate) columns: Vec<String>,
    /// Rows with one cell per column.
    pub(crate) rows: Vec<Vec<Cell>>,
    /// True for a table that is folded away under its title.
    pub(crate) is_folded: bool,
    /// True if the background of a number shows its share of the row.
    pub(crate) is_shaded: bool,
}

/// One entry of a table.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Cell {
    Text(String),
    /// A number and its shown decimals; files for programs have every digit.
    Number(f64, usize),
    Missing,
}

/// A row whose cells name their columns; every row of a table names the same ones.
pub(crate) type NamedRow = Vec<(String, Cell)>;

/// Builds a [`NamedRow`] from anything that a [`Cell`] is made of.
macro_rules! row {
    ($($column:expr => $value:expr),+ $(,)?) => {
        vec![$(($column.to_owned(), $crate::document::Cell::from($value))),+]
    };
}
pub(crate) use row;

impl Section {
    pub(crate) fn new(id: &'static str, heading: &'static str) -> Self {
        Self {
            id,
            heading,
            contents: Vec::new(),
        }
    }

    pub(crate) fn text(&mut self, text: impl Into<String>) {
        self.contents.push(Content::Paragraph(text.into()));
    }

    pub(crate) fn warn(&mut self, text: impl Into<String>) {
        self.contents.push(Content::Warning(text.into()));
    }

    /// Adds a text that is folded away under a line.
    pub(crate) fn fold(&mut self, summary: impl Into<String>, text: String) {
        let folded = Content::FoldedText(summary.into(), text);
        self.contents.push(folded);
    }

    /// Adds a table, if it has rows.
    pub(crate) fn table(
        &mut self,
        id: &str,
        title: impl Into<String>,
        rows: impl IntoIterator<Item = NamedRow>,
    ) {
        self.contents
            .extend(Table::new(id, title, rows).map(Content::Table));
    }

    /// Adds a table that is folded away under its title, if it has rows.
    pub(crate) fn folded_table(
        &mut self,
        id: &str,
        title: impl Into<String>,
        rows: impl IntoIterator<Item = NamedRow>,
    ) {
        let table = Table::new(id, title, rows).map(|table| Table {
            is_folded: true,
            ..table
        });
        self.contents.extend(table.map(Content::Table));
    }

    /// Adds a figure of series over two axes, if a series has points.
    pub(crate) fn lines(
        &mut self,
        [id, title, caption]: [&str; 3],
        x: Axis,
        y: Axis,
        series: Vec<Series>,
    ) {
        if series.iter().any(|one| one.points().next().is_some()) {
            let marks = Marks::Lines(y, series);
            self.figure([id, title, caption], None, x, marks);
        }
    }

    /// Adds as many figures of horizontal bars as their number needs. Stacked bars have `parts`.
    pub(crate) fn bars(&mut self, words: [&str; 3], x: &str, parts: &[&'static str], bars: &[Bar]) {
        for bars in bars.chunks(MOST_BARS) {
            let marks = Marks::Bars(parts.to_vec(), bars.to_vec());
            self.figure(words, None, Axis::from_zero(x), marks);
        }
    }

    pub(crate) fn figure(
        &mut self,
        words: [&str; 3],
        view: Option<(usize, &'static str)>,
        x: Axis,
        marks: Marks,
    ) {
        let [id, title, caption] = words.map(str::to_owned);
        self.contents.push(Content::Figure(Figure {
            id,
            title,
            caption,
            view,
            x,
            marks,
        }));
    }
}

/// Numbers the figures of one id in the order of reading, and likewise the tables.
pub(crate) fn number_ids(sections: &mut [Section]) {
    let mut counts: BTreeMap<(bool, String), (usize, usize)> = BTreeMap::new();
    for is_counting in [true, false] {
        let contents = sections.iter_mut().flat_map(|one| &mut one.contents);
        for content in contents {
            let (is_figure, id) = match content {
                Content::Figure(figure) => (true, &mut figure.id),
                Content::Table(table) => (false, &mut table.id),
                _ => continue,
            };
            let (all, seen) = counts.entry((is_figure, id.clone())).or_default();
            if is_counting {
                *all += 1;
            } else if *all > 1 {
                *seen += 1;
                *id = format!("{id}-{seen}");
            }
        }
    }
}

impl Table {
    /// Returns the table without columns that are empty in every row; `None` without rows.
    pub(crate) fn new(
        id: &str,
        title: impl Into<String>,
        rows: impl IntoIterator<Item = NamedRow>,
    ) -> Option<Self> {
        let mut rows: Vec<NamedRow> = rows.into_iter().collect();
        for column in (0..rows.first()?.len()).rev() {
            if rows.iter().all(|row| row[column].1 == Cell::Missing) {
                for row in &mut rows {
                    row.remove(column);
                }
            }
        }
        let columns = rows[0].iter().map(|(name, _)| name.clone());
        Some(Self {
            id: id.to_owned(),
            title: title.into(),
            columns: columns.collect(),
            rows: rows
                .into_iter()
                .map(|row| row.into_iter().map(|(_, cell)| cell).collect())
                .collect(),
            is_folded: false,
            is_shaded: false,
        })
    }

    /// Returns true if a column has numbers and no text.
    pub(crate) fn is_numeric(&self, column: usize) -> bool {
        let cells = || self.rows.iter().map(|row| &row[column]);
        cells().any(|cell| matches!(cell, Cell::Number(..)))
            && !cells().any(|cell| matches!(cell, Cell::Text(_)))
    }

    /// Returns one object per row, keyed by column.
    pub(crate) fn to_json(&self) -> Value {
        let object = |row: &Vec<Cell>| -> Value {
            let cells = row.iter().map(Cell::to_json);
            self.columns.iter().cloned().zip(cells).collect()
        };
        self.rows.iter().map(object).collect()
    }

    /// Formats the table as CSV (RFC 4180) with every digit: a header, then one line per row.
    ///
    /// Not by the crate csv, which enables a feature of serde that makes cargo compile burn again.
    pub(crate) fn to_csv(&self) -> String {
        let header: Vec<String> = self.columns.clone();
        let rows = self
            .rows
            .iter()
            .map(|row| row.iter().map(Cell::raw).collect());
        let quoted = |text: &String| {
            let is_plain = !text.contains(['"', ',', '\n', '\r']) && text.trim() == text;
            match is_plain {
                true => text.clone(),
                false => format!("\"{}\"", text.replace('"', "\"\"")),
            }
        };
        let line = |cells: Vec<String>| {
            let cells: Vec<String> = cells.iter().map(quoted).collect();
            cells.join(",") + "\n"
        };
        std::iter::once(header).chain(rows).map(line).collect()
    }

    /// Formats the table for LaTeX with the package booktabs. Columns with one value in all rows
    /// are in the caption, and a deviation is in the cell of its mean.
    pub(crate) fn to_latex(&self) -> String {
        let is_deviation = |column: &usize| {
            let name = self.columns.get(*column);
            name.is_some_and(|name| name.starts_with('±'))
        };
        let shown = |row: &[Cell], column: usize| {
            let own = row[column].shown();
            match row.get(column + 1).filter(|_| is_deviation(&(column + 1))) {
                None | Some(Cell::Missing) => for_latex(&own),
                Some(deviation) => for_latex(&format!("{own} ± {}", deviation.shown())),
            }
        };
        let varies = |&column: &usize| {
            let mut cells = self.rows.iter().map(|row| shown(row, column));
            let first = cells.next();
            column == 0 || self.rows.len() == 1 || cells.any(|cell| Some(cell) != first)
        };
        let names: Vec<String> = self.columns.iter().map(|name| for_latex(name)).collect();
        let columns = (0..names.len()).filter(|column| !is_deviation(column));
        let (columns, equal): (Vec<usize>, Vec<usize>) = columns.partition(varies);
        let facts = equal.iter().map(|&column| {
            let value = shown(&self.rows[0], column);
            format!("{}: {value}", names[column])
        });
        let facts: Vec<String> = facts.collect();
        let caption = match facts.is_empty() {
            true => for_latex(&self.title),
            false => format!(
                "{}. All rows: {}.",
                for_latex(&self.title),
                facts.join("; ")
            ),
        };
        let alignment = |&column: &usize| if self.is_numeric(column) { 'r' } else { 'l' };
        let alignments: String = columns.iter().map(alignment).collect();
        let line = |cell: &dyn Fn(usize) -> String| {
            let cells: Vec<String> = columns.iter().map(|&column| cell(column)).collect();
            format!("    {} \\\\\n", cells.join(" & "))
        };
        let header = line(&|column| names[column].clone());
        let rows = self.rows.iter();
        let rows: String = rows.map(|row| line(&|column| shown(row, column))).collect();
        let id = &self.id;
        format!(
            "% Needs \\usepackage{{booktabs}}; wide tables fit with \\usepackage{{graphicx}} and \\resizebox.\n\
             \\begin{{table}}\n  \\centering\n  \\caption{{{caption}}}\n  \\label{{tab:{id}}}\n  \
             \\begin{{tabular}}{{{alignments}}}\n    \\toprule\n{header}    \\midrule\n{rows}    \
             \\bottomrule\n  \\end{{tabular}}\n\\end{{table}}\n"
        )
    }
}

/// Escapes the characters that LaTeX interprets as commands.
fn for_latex(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' | '%' | '$' | '#' | '_' | '{' | '}' => escaped.extend(['\\', c]),
            '~' => escaped.push_str("\\textasciitilde{}"),
            '^' => escaped.push_str("\\textasciicircum{}"),
            '\\' => escaped.push_str("\\textbackslash{}"),
            '<' => escaped.push_str("\\textless{}"),
            '>' => escaped.push_str("\\textgreater{}"),
            '|' => escaped.push_str("\\textbar{}"),
            '"' => escaped.push_str("\\textquotedbl{}"),
            '±' => escaped.push_str("$\\pm$"),
            '×' => escaped.push_str("$\\times$"),
            '·' => escaped.push_str("$\\cdot$"),
            '–' => escaped.push_str("--"),
            '…' => escaped.push_str("\\dots{}"),
            '\n' | '\r' | '\t' => escaped.push(' '),
            c => escaped.push(c),
        }
    }
    escaped
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
            Self::Number(value, _) => value.to_string(),
            Self::Text(text) => text.clone(),
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
    let bytes: Option<u64> = bytes.into();
    number(bytes.map(|bytes| bytes as f64 / f64::from(1 << 20)), 1)
}

impl From<&str> for Cell {
    /// Returns the text; empty text is missing.
    fn from(text: &str) -> Self {
        match text {
            "" => Self::Missing,
            text => Self::Text(text.to_owned()),
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
    fn json_and_csv_have_all_digits_and_whole_numbers_have_no_point() {
        let rows = [
            row!["a" => number(0.123456789, 1), "b" => 7_usize, "c" => number(f64::NAN, 1), "d" => "x,\"y\"\nz"],
            row!["a" => number(None, 1), "b" => 8_usize, "c" => "", "d" => " "],
        ];
        let table = Table::new("t", "T", rows).unwrap();
        assert_eq!(
            table.columns,
            ["a", "b", "d"],
            "an empty column is left out"
        );
        assert!(table.is_numeric(0) && table.is_numeric(1) && !table.is_numeric(2));
        assert_eq!(
            table.to_json()[0].to_string(),
            r#"{"a":0.123456789,"b":7,"d":"x,\"y\"\nz"}"#
        );
        assert_eq!(
            table.to_csv(),
            "a,b,d\n0.123456789,7,\"x,\"\"y\"\"\nz\"\n,8,\" \"\n"
        );
    }

    #[test]
    fn latex_is_escaped_has_equal_cells_in_the_caption_and_deviations_with_their_means() {
        let rows = [
            row!["name" => "x_1 100 %", "images/s" => number(None, 1), "± images/s" => number(None, 1), "top_1, %" => 7_usize],
            row!["name" => "b", "images/s" => number(1234.5678, 1), "± images/s" => number(2.0, 1), "top_1, %" => 7_usize],
        ];
        let text = Table::new("t", "A & B", rows).unwrap().to_latex();
        for expected in [
            "\\caption{A \\& B. All rows: top\\_1, \\%: 7.}",
            "{lr}",
            "    x\\_1 100 \\% & -- \\\\\n",
            "    b & 1,234.6 $\\pm$ 2.0 \\\\\n",
        ] {
            assert!(text.contains(expected), "{text}");
        }
        assert_eq!(
            for_latex("\\a{b}^~#$<>|\""),
            "\\textbackslash{}a\\{b\\}\\textasciicircum{}\\textasciitilde{}\\#\\$\\textless{}\\textgreater{}\\textbar{}\\textquotedbl{}"
        );
    }

    #[test]
    fn figures_and_tables_of_one_id_are_numbered() {
        let mut section = Section::new("", "");
        let bars = vec![Bar::of("bar", records::Spread::of([1.0])); MOST_BARS + 1];
        section.bars(["same", "", ""], "x", &[], &bars);
        section.table("same", "", [row!["a" => "1"]]);
        section.table("empty", "", []);
        let mut sections = [section];
        number_ids(&mut sections);
        let ids = sections[0].contents.iter().map(|content| match content {
            Content::Figure(figure) => figure.id.as_str(),
            Content::Table(table) => table.id.as_str(),
            other => panic!("{other:?}"),
        });
        assert_eq!(ids.collect::<Vec<_>>(), ["same-1", "same-2", "same"]);
    }
}
