//! Tables as CSV and LaTeX.
//!
//! In: a [`Table`]. Out: text. Invariant: CSV holds every digit, LaTeX those that are shown; both hold every row.
//! Source: RFC 4180 for CSV; the LaTeX package booktabs for the rules.

use super::document::Table;

/// The table as CSV: a heading, then a line a row; an empty field where there is nothing.
///
/// Ours, since the crate csv would turn on a default feature of serde's core, with which burn is compiled anew.
pub(super) fn csv(table: &Table) -> String {
    let line = |fields: Vec<String>| fields.join(",") + "\n";
    let heading = line(table.columns.iter().map(|name| field(name)).collect());
    let rows = table
        .rows
        .iter()
        .map(|row| line(row.iter().map(|cell| field(&cell.raw())).collect()));
    std::iter::once(heading).chain(rows).collect()
}

/// A field, in quotes where it has something that would end it.
fn field(text: &str) -> String {
    let needs_quotes =
        text.contains(['"', ',', '\n', '\r']) || text.starts_with(' ') || text.ends_with(' ');
    if needs_quotes {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

/// The table as a LaTeX `table` with the rules of booktabs.
pub(super) fn latex(table: &Table) -> String {
    let columns: String = (0..table.columns.len())
        .map(|column| if table.is_numeric(column) { 'r' } else { 'l' })
        .collect();
    let line = |cells: Vec<String>| format!("    {} \\\\\n", cells.join(" & "));
    let mut text = String::from(
        "% Needs \\usepackage{booktabs}; wide ones fit with \\usepackage{graphicx} and \\resizebox.\n",
    );
    text.push_str("\\begin{table}\n  \\centering\n");
    text.push_str(&format!(
        "  \\caption{{{}}}\n  \\label{{tab:{}}}\n",
        escaped(&table.title),
        table.id
    ));
    text.push_str(&format!(
        "  \\begin{{tabular}}{{{columns}}}\n    \\toprule\n"
    ));
    text.push_str(&line(
        table.columns.iter().map(|name| escaped(name)).collect(),
    ));
    text.push_str("    \\midrule\n");
    for row in &table.rows {
        text.push_str(&line(
            row.iter().map(|cell| escaped(&cell.shown())).collect(),
        ));
    }
    text.push_str("    \\bottomrule\n  \\end{tabular}\n\\end{table}\n");
    text
}

/// Text in which LaTeX sees no commands.
pub(super) fn escaped(text: &str) -> String {
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
            '−' => escaped.push_str("$-$"),
            '±' => escaped.push_str("$\\pm$"),
            '×' => escaped.push_str("$\\times$"),
            '·' => escaped.push_str("$\\cdot$"),
            '–' => escaped.push_str("--"),
            '…' => escaped.push_str("\\dots{}"),
            '\u{202f}' => escaped.push_str("\\,"),
            '\n' | '\r' | '\t' => escaped.push(' '),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::Cell;

    fn table() -> Table {
        let mut table = Table::new("t", "A & B", &["name", "images/s"]);
        table.push(vec![Cell::text("a,\"b\"\nc"), Cell::number(1234.5678, 1)]);
        table.push(vec![Cell::text("x_1 100 %"), Cell::Missing]);
        table
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
        assert!(text.contains("1\\,234.6"), "{text}");
        assert_eq!(
            escaped("\\a{b}^~#$<>|\""),
            "\\textbackslash{}a\\{b\\}\\textasciicircum{}\\textasciitilde{}\\#\\$\\textless{}\\textgreater{}\\textbar{}\\textquotedbl{}"
        );
    }
}
