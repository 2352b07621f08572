//! Tables of `docs/results`: CSV in, Markdown out.
//!
//! In: text of a CSV without quotes, a filter. Out: rows, or a table for a page.
//! Invariant: every row has as many cells as the head. Several numbers in a cell are separated by
//! blanks.

use std::fs;
use std::path::Path;

use cluster::failure::{Outcome, failed};

use crate::at;

pub(super) struct Table {
    pub(super) head: Vec<String>,
    pub(super) rows: Vec<Vec<String>>,
}

/// A row with the names of its columns.
pub(super) struct Row<'a> {
    head: &'a [String],
    cells: &'a [String],
}

impl Row<'_> {
    /// Returns a cell; empty if there is no such column.
    pub(super) fn cell(&self, column: &str) -> &str {
        let index = self.head.iter().position(|name| name == column);
        index.map_or("", |index| &self.cells[index])
    }
}

/// Conditions on rows, as in `ranks=1; model=resnet20|resnet44`.
#[derive(Debug, Default)]
pub(super) struct Filter(Vec<(String, Vec<String>)>);

impl Filter {
    pub(super) fn parse(text: &str) -> Outcome<Self> {
        let mut conditions = Vec::new();
        for part in text
            .split(';')
            .map(str::trim)
            .filter(|part| !part.is_empty())
        {
            let Some((column, values)) = part.split_once('=') else {
                return Err(failed!(
                    "filter: `{part}` (expected COLUMN=VALUE|VALUE). Add `=`."
                ));
            };
            let values = values.split('|').map(str::to_owned).collect();
            conditions.push((column.to_owned(), values));
        }
        Ok(Filter(conditions))
    }

    /// Removes a condition with one value and returns the value.
    pub(super) fn take(&mut self, column: &str) -> Option<String> {
        let index = self.0.iter().position(|(name, _)| name == column)?;
        Some(self.0.remove(index).1.join("|"))
    }

    /// Returns true if all rows that pass have the same value in a column.
    pub(super) fn fixes(&self, column: &str) -> bool {
        self.0
            .iter()
            .any(|(name, values)| name == column && values.len() == 1)
    }

    fn passes(&self, row: &Row) -> bool {
        self.0
            .iter()
            .all(|(column, values)| values.iter().any(|value| value == row.cell(column)))
    }
}

impl Table {
    pub(super) fn read(path: &Path) -> Outcome<Self> {
        let text = fs::read_to_string(path).map_err(at(path))?;
        Table::parse(&text, &path.display().to_string())
    }

    pub(super) fn parse(text: &str, name: &str) -> Outcome<Self> {
        let cells = |line: &str| line.split(',').map(str::to_owned).collect::<Vec<_>>();
        let mut lines = text.lines();
        let head = cells(lines.next().unwrap_or_default());
        let rows: Vec<Vec<String>> = lines.map(cells).collect();
        let width = head.len();
        match rows.iter().position(|row| row.len() != width) {
            None => Ok(Table { head, rows }),
            Some(index) => Err(failed!(
                "{name}:{}: {} cells (expected {width}). A cell has no comma.",
                index + 2,
                rows[index].len()
            )),
        }
    }

    /// Returns the rows that pass; an error if none does or a column is missing.
    pub(super) fn rows(&self, filter: &Filter) -> Outcome<Vec<Row<'_>>> {
        let missing = filter
            .0
            .iter()
            .find(|(column, _)| !self.head.contains(column));
        if let Some((column, _)) = missing {
            let head = self.head.join(", ");
            return Err(failed!(
                "filter: no column `{column}` (expected one of {head}). Correct its name."
            ));
        }
        let row = |cells| Row {
            head: &self.head,
            cells,
        };
        let rows: Vec<Row> = self.rows.iter().map(|cells| row(cells)).collect();
        let rows: Vec<Row> = rows.into_iter().filter(|row| filter.passes(row)).collect();
        if rows.is_empty() {
            let text = "filter: no row passes (expected at least one). Correct its values.";
            return Err(failed!("{text}"));
        }
        Ok(rows)
    }

    /// Returns the rows that pass, without the columns that the filter fixes.
    pub(super) fn filtered(&self, filter: &Filter) -> Outcome<Table> {
        let shown = |column: &&String| !filter.fixes(column);
        let head: Vec<String> = self.head.iter().filter(shown).cloned().collect();
        let cells = |row: Row| head.iter().map(|name| row.cell(name).to_owned()).collect();
        let rows = self.rows(filter)?.into_iter().map(cells).collect();
        Ok(Table { head, rows })
    }

    pub(super) fn csv(&self) -> String {
        let lines = std::iter::once(&self.head).chain(&self.rows);
        lines.map(|cells| cells.join(",") + "\n").collect()
    }

    pub(super) fn markdown(&self) -> String {
        let line = |cells: &[String]| format!("| {} |", cells.join(" | "));
        let mut lines = vec![
            line(&self.head),
            format!("|{}", "---|".repeat(self.head.len())),
        ];
        for row in &self.rows {
            lines.push(line(
                &row.iter().map(|cell| shown(cell)).collect::<Vec<_>>(),
            ));
        }
        lines.join("\n")
    }
}

/// Separates several numbers by commas, and the thousands of a number. A number with an exponent
/// stays as it is.
fn shown(cell: &str) -> String {
    let words: Vec<&str> = cell.split(' ').collect();
    let is_number = |word: &&str| word.parse::<f64>().is_ok() && !word.contains(['e', 'E']);
    let are_numbers = words.iter().all(is_number);
    match are_numbers {
        true => words
            .into_iter()
            .map(grouped)
            .collect::<Vec<_>>()
            .join(", "),
        false => cell.to_owned(),
    }
}

/// Writes a number with a comma before each three digits of its whole part.
pub(super) fn grouped(number: &str) -> String {
    let (whole, rest) = number.split_at(number.find('.').unwrap_or(number.len()));
    let mut text = String::new();
    for (index, digit) in whole.chars().enumerate() {
        let behind = whole.len() - index;
        if index > 0 && behind.is_multiple_of(3) && !text.ends_with('-') {
            text.push(',');
        }
        text.push(digit);
    }
    text + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_pass_a_filter_and_its_columns_are_left_out() {
        let table = Table::parse("a,b,c\n1,x,1234 5\n2,y,6\n1,z,-7\n", "t").unwrap();
        let filter = Filter::parse("a=1; b=x|y").unwrap();
        let shown = table.filtered(&filter).unwrap().markdown();
        assert_eq!(shown, "| b | c |\n|---|---|\n| x | 1,234, 5 |");
        assert!(table.rows(&Filter::parse("d=1").unwrap()).is_err());
        assert!(table.rows(&Filter::parse("a=3").unwrap()).is_err());
        assert!(Filter::parse("a").is_err() && Table::parse("a,b\n1\n", "t").is_err());
        assert_eq!(table.csv(), "a,b,c\n1,x,1234 5\n2,y,6\n1,z,-7\n");
    }

    #[test]
    fn exponents_are_not_taken_for_thousands() {
        assert_eq!(
            ["1e-5", "2.5E-3", "1234 5"].map(shown),
            ["1e-5", "2.5E-3", "1,234, 5"]
        );
    }

    #[test]
    fn thousands_are_separated() {
        let texts = ["12", "123", "1234", "1234567.25", "-1234", "-123"].map(grouped);
        assert_eq!(
            texts,
            ["12", "123", "1,234", "1,234,567.25", "-1,234", "-123"]
        );
    }
}
