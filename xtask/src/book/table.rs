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
pub(super) struct Filter<'a>(Vec<(&'a str, Vec<&'a str>)>);

impl<'a> Filter<'a> {
    pub(super) fn parse(text: &'a str) -> Outcome<Self> {
        let parts = text
            .split(';')
            .map(str::trim)
            .filter(|part| !part.is_empty());
        let condition = |part: &'a str| match part.split_once('=') {
            Some((column, values)) => Ok((column, values.split('|').collect())),
            None => Err(failed!(
                "filter: `{part}` (expected COLUMN=VALUE|VALUE). Add `=`."
            )),
        };
        Ok(Filter(parts.map(condition).collect::<Outcome<_>>()?))
    }

    /// Returns true if all rows that pass have the same value in a column.
    pub(super) fn fixes(&self, column: &str) -> bool {
        let mut conditions = self.0.iter();
        conditions.any(|(name, values)| *name == column && values.len() == 1)
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
        let head = &self.head;
        let mut columns = filter.0.iter().map(|(column, _)| *column);
        if let Some(column) = columns.find(|column| head.iter().all(|name| name != column)) {
            let head = head.join(", ");
            return Err(failed!(
                "filter: no column `{column}` (expected one of {head}). Correct its name."
            ));
        }
        let mut rows: Vec<Row> = self.rows.iter().map(|cells| Row { head, cells }).collect();
        let conditions = &filter.0;
        rows.retain(|row| {
            let mut conditions = conditions.iter();
            conditions.all(|(column, values)| values.contains(&row.cell(column)))
        });
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
        let rule = format!("|{}", "---|".repeat(self.head.len()));
        let rows = self.rows.iter().map(|row| {
            let cells = self
                .head
                .iter()
                .zip(row)
                .map(|(column, cell)| shown(column, cell));
            line(&cells.collect::<Vec<_>>())
        });
        let lines: Vec<String> = [line(&self.head), rule].into_iter().chain(rows).collect();
        lines.join("\n")
    }
}

/// Separates several numbers by commas, and the thousands of a number. A number with an exponent
/// and a commit stay as they are.
fn shown(column: &str, cell: &str) -> String {
    let number = |word: &str| -> Option<String> {
        let value = word.parse().ok().filter(|_| !word.contains(['e', 'E']))?;
        let decimals = word.split_once('.').map_or(0, |(_, digits)| digits.len());
        Some(records::decimal(value, decimals))
    };
    let numbers: Option<Vec<String>> = cell.split(' ').map(number).collect();
    let numbers = numbers.filter(|_| column != "commit");
    numbers.map_or_else(|| cell.to_owned(), |numbers| numbers.join(", "))
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
    fn thousands_are_separated_but_not_in_exponents_and_commits() {
        let texts = ["1e-5", "2.5E-3", "1234 5", "-1234.50", "12"];
        assert_eq!(
            texts.map(|text| shown("a", text)),
            ["1e-5", "2.5E-3", "1,234, 5", "-1,234.50", "12"]
        );
        assert_eq!(shown("commit", "6462194"), "6462194");
    }
}
