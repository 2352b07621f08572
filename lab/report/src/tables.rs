//! Tables as CSV and LaTeX.
//!
//! In: a [`Table`]. Out: text. Invariant: CSV holds every digit, LaTeX the shown ones; both hold every row.
//! Source: RFC 4180 for CSV; the LaTeX package booktabs for the rules.

use super::document::{Cell, Table};

/// Formats the table as CSV: a header, then one line per row.
///
/// Written here because the crate csv enables a feature of serde that makes cargo compile burn again.
pub(super) fn csv(table: &Table) -> String {
    let header = table.columns.iter().map(|name| field(name)).collect();
    let rows = table
        .rows
        .iter()
        .map(|row| row.iter().map(|cell| field(&cell.raw())).collect());
    let lines = std::iter::once(header).chain(rows);
    lines
        .map(|fields: Vec<String>| fields.join(",") + "\n")
        .collect()
}

/// Quotes a field where CSV needs it.
fn field(text: &str) -> String {
    let needs_quotes =
        text.contains(['"', ',', '\n', '\r']) || text.starts_with(' ') || text.ends_with(' ');
    if needs_quotes {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

/// Formats the table as a LaTeX `table` with the rules of booktabs.
pub(super) fn latex(table: &Table) -> String {
    let alignment = |column| if table.is_numeric(column) { 'r' } else { 'l' };
    let columns: String = (0..table.columns.len()).map(alignment).collect();
    let line = |cells: Vec<String>| format!("    {} \\\\\n", cells.join(" & "));
    let header = line(table.columns.iter().map(|name| escaped(name)).collect());
    let row = |row: &Vec<Cell>| line(row.iter().map(|cell| escaped(&cell.shown())).collect());
    let rows: String = table.rows.iter().map(row).collect();
    let title = escaped(&table.title);
    let id = &table.id;
    format!(
        "% Needs \\usepackage{{booktabs}}; wide tables fit with \\usepackage{{graphicx}} and \\resizebox.\n\
         \\begin{{table}}\n  \\centering\n  \\caption{{{title}}}\n  \\label{{tab:{id}}}\n  \
         \\begin{{tabular}}{{{columns}}}\n    \\toprule\n{header}    \\midrule\n{rows}    \
         \\bottomrule\n  \\end{{tabular}}\n\\end{{table}}\n"
    )
}

/// Escapes the characters that LaTeX takes for commands.
fn escaped(text: &str) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{number, row};

    fn table() -> Table {
        let rows = [
            row!["name" => "a,\"b\"\nc", "images/s" => number(1234.5678, 1)],
            row!["name" => "x_1 100 %", "images/s" => number(None, 1)],
        ];
        Table::new("t", "A & B", rows)
    }

    #[test]
    fn csv_quotes_what_needs_it_and_keeps_all_digits() {
        assert_eq!(
            csv(&table()),
            "name,images/s\n\"a,\"\"b\"\"\nc\",1234.5678\nx_1 100 %,\n"
        );
    }

    #[test]
    fn latex_escapes_its_special_characters_and_has_every_row() {
        let text = latex(&table());
        assert!(
            text.contains("\\caption{A \\& B}") && text.contains("{lr}"),
            "{text}"
        );
        assert!(text.contains("x\\_1 100 \\% & -- \\\\"), "{text}");
        assert!(text.contains("1,234.6"), "{text}");
        assert_eq!(
            escaped("\\a{b}^~#$<>|\""),
            "\\textbackslash{}a\\{b\\}\\textasciicircum{}\\textasciitilde{}\\#\\$\\textless{}\\textgreater{}\\textbar{}\\textquotedbl{}"
        );
    }
}
