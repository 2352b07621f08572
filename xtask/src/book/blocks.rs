//! Blocks of pages that are made from `docs/results` and from constants of tests.
//!
//! A block stands between `<!-- results: SPECIFICATION -->` and `<!-- end -->`: a table on its own
//! lines, or a few words within a sentence. GitHub and mdBook hide the two marks.
//!
//! In: pages, results, sources. Out: pages with current blocks, figures as SVG.
//! Invariant: text outside of blocks stays unchanged.

use std::fs;
use std::path::{Path, PathBuf};

use cluster::failure::{Outcome, failed};

use super::chart;
use super::results::{self, RESULTS};
use super::table::{Filter, Table};
use crate::at;

pub(crate) const BEGIN: &str = "<!-- results: ";
const BEGIN_END: &str = " -->";
pub(crate) const END: &str = "<!-- end -->";

/// Claims about numbers, each with its tolerance and its test.
const TOLERANCES: &str = "docs/tolerances.csv";
/// Tolerances of `trainer verify` by precision.
const PRECISIONS: &str = "trainer/src/tools/verify/precision.rs";

const SPEED_CHART: &str = "docs/figures/speed.svg";
const MEMORY_CHART: &str = "docs/figures/memory.svg";

/// Returns every file that is made from results, with its current text.
pub(super) fn files(root: &Path) -> Outcome<Vec<(PathBuf, String)>> {
    let steps = results::steps(root)?;
    let mut files = vec![
        (root.join(RESULTS).join(results::STEPS), steps.csv()),
        (root.join(SPEED_CHART), chart::speed(&steps)?),
        (root.join(MEMORY_CHART), chart::memory(&steps)?),
    ];
    for page in pages(root)? {
        let text = fs::read_to_string(&page).map_err(at(&page))?;
        let name = page.strip_prefix(root).unwrap_or(&page).display();
        let filled = filled(&text, |specification| block(root, &steps, specification));
        let filled = filled.map_err(|error| failed!("{name}: {error}"))?;
        if text.contains(BEGIN) {
            files.push((page, filled));
        }
    }
    Ok(files)
}

/// Returns README.md and the pages of the book.
fn pages(root: &Path) -> Outcome<Vec<PathBuf>> {
    let mut pages = vec![root.join("README.md")];
    let docs = root.join("docs");
    for entry in fs::read_dir(&docs).map_err(at(&docs))?.flatten() {
        pages.push(entry.path());
    }
    pages.retain(|page| page.extension().is_some_and(|extension| extension == "md"));
    pages.sort();
    Ok(pages)
}

/// Replaces the text of each block.
fn filled(page: &str, fill: impl Fn(&str) -> Outcome<String>) -> Outcome<String> {
    let mut parts = page.split(BEGIN);
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let ends = part
            .split_once(BEGIN_END)
            .and_then(|(specification, rest)| {
                let (old, after) = rest.split_once(END)?;
                Some((specification, old, after))
            });
        let Some((specification, old, after)) = ends else {
            let start = part.lines().next().unwrap_or_default();
            return Err(failed!(
                "`{BEGIN}{start}`: no end (expected `{END}`). Add the end of the block."
            ));
        };
        let is_table = old.contains('\n');
        let before = text.lines().last().filter(|_| !text.ends_with('\n'));
        if !is_table && before.is_none_or(|line| line.trim_matches([' ', '-']).is_empty()) {
            return Err(failed!(
                "`{BEGIN}{specification}`: words at the start of a line, which GitHub takes for \
                 HTML. Move a word before them."
            ));
        }
        let error = |error| failed!("`{specification}`: {error}");
        let new = fill(specification).map_err(error)?;
        let blank = if is_table { "\n\n" } else { "" };
        text.push_str(&format!(
            "{BEGIN}{specification}{BEGIN_END}{blank}{new}{blank}{END}{after}"
        ));
    }
    Ok(text)
}

/// Returns the text of a block.
fn block(root: &Path, steps: &Table, specification: &str) -> Outcome<String> {
    let (kind, rest) = specification.split_once(' ').unwrap_or((specification, ""));
    match kind {
        "speeds" => results::speeds(steps, &Filter::parse(rest)?),
        "ratio" => {
            let mut filter = Filter::parse(rest)?;
            let program = filter.take("to").unwrap_or_default();
            results::range(steps, &filter, &program)
        }
        "table" => {
            let (name, rest) = rest.split_once(';').unwrap_or((rest, ""));
            let table = Table::read(&root.join(RESULTS).join(name))?;
            Ok(table.filtered(&Filter::parse(rest)?)?.markdown())
        }
        "tolerances" => tolerances(root, &Filter::parse(rest)?),
        "precisions" => precisions(root),
        _ => Err(failed!(
            "kind `{kind}` (expected speeds, ratio, table, tolerances or precisions). Correct it."
        )),
    }
}

/// Returns the claims of a group; the value of the constant of its test replaces `{CONSTANT}`.
fn tolerances(root: &Path, filter: &Filter) -> Outcome<String> {
    let mut table = Table::read(&root.join(TOLERANCES))?.filtered(filter)?;
    let named = |name: &str| table.head.iter().position(|column| column == name);
    let (Some(tolerance), Some(test)) = (named("tolerance"), named("test")) else {
        let text = format!("{TOLERANCES}: expected the columns tolerance and test. Add them.");
        return Err(failed!("{text}"));
    };
    for row in &mut table.rows {
        let source = root.join(&row[test]);
        let text = match source.is_dir() {
            true => String::new(),
            false => fs::read_to_string(&source).map_err(at(&source))?,
        };
        while let Some((before, rest)) = row[tolerance].split_once('{') {
            let (name, after) = rest.split_once('}').unwrap_or((rest, ""));
            let Some(value) = constant(&text, name) else {
                return Err(failed!(
                    "{}: no constant {name} (named in {TOLERANCES}). Correct one of them.",
                    row[test]
                ));
            };
            row[tolerance] = format!("{before}{value}{after}");
        }
        row[test] = format!("`{}`", row[test]);
    }
    Ok(table.markdown())
}

/// Returns the value of `const NAME: TYPE = VALUE;`.
fn constant<'a>(source: &'a str, name: &str) -> Option<&'a str> {
    let (_, after) = source.split_once(&format!("const {name}: "))?;
    let (_, value) = after.split_once(" = ")?;
    value.split_once(';').map(|(value, _)| value)
}

/// Returns the tolerances of `trainer verify`: a row for each field, a column for each precision.
fn precisions(root: &Path) -> Outcome<String> {
    let path = root.join(PRECISIONS);
    let text = fs::read_to_string(&path).map_err(at(&path))?;
    let constants = text.split(": Precision = Precision {").skip(1);
    let constants: Vec<&str> = constants
        .filter_map(|part| part.split_once('}'))
        .map(|(fields, _)| fields)
        .collect();
    let value = |fields: &str, name: &str| -> String {
        let start = format!("{name}: ");
        let mut lines = fields.lines().map(str::trim);
        let line = lines.find_map(|line| line.strip_prefix(&start));
        line.unwrap_or_default().trim_matches([',', '"']).to_owned()
    };
    let mut head = vec!["value".to_owned()];
    head.extend(constants.iter().map(|fields| value(fields, "name")));
    let definition = text.split_once("pub(super) struct Precision {");
    let definition = definition.and_then(|(_, after)| after.split_once("\n}"));
    let mut rows = Vec::new();
    let mut about = String::new();
    for line in definition
        .map_or("", |(fields, _)| fields)
        .lines()
        .map(str::trim)
    {
        if let Some(doc) = line.strip_prefix("/// ") {
            if about.is_empty() {
                about = doc.trim_end_matches('.').to_owned();
            }
        } else if let Some((name, _)) = line.trim_start_matches("pub(super) ").split_once(": ")
            && name != "name"
        {
            let mut row = vec![std::mem::take(&mut about)];
            row.extend(constants.iter().map(|fields| value(fields, name)));
            rows.push(row);
        }
    }
    Ok(Table { head, rows }.markdown())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_replaced_and_other_text_is_not() {
        let fill = |specification: &str| Ok(specification.to_uppercase());
        let page = "A.\n\n<!-- results: table a.csv -->\nold\n<!-- end -->\n\nIt is <!-- results: b -->1<!-- end --> times.\n";
        let expected = "A.\n\n<!-- results: table a.csv -->\n\nTABLE A.CSV\n\n<!-- end -->\n\nIt is <!-- results: b -->B<!-- end --> times.\n";
        assert_eq!(filled(page, fill).unwrap(), expected);
        assert_eq!(filled(expected, fill).unwrap(), expected);
        assert!(filled("<!-- results: a --> b\n", fill).is_err());
        assert!(filled("<!-- results: a -->b<!-- end -->\n", fill).is_err());
        assert!(filled("- <!-- results: a -->b<!-- end -->\n", fill).is_err());
    }

    #[test]
    fn a_constant_is_read_from_a_source() {
        let source = "const A_B: f64 = 1e-5;\nconst B: f64 = 2e-6;\n";
        assert_eq!(constant(source, "B"), Some("2e-6"));
        assert_eq!(constant(source, "C"), None);
    }
}
