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

use super::table::{Filter, Table};
use super::{chart, pages, results};
use crate::at;

pub(crate) const BEGIN: &str = "<!-- results: ";
const BEGIN_END: &str = " -->";
pub(crate) const END: &str = "<!-- end -->";

/// Claims about numbers, each with its tolerance and its test.
const TOLERANCES: &str = "docs/tolerances.csv";

/// Returns every file that is made from results, with its current text.
pub(super) fn files(root: &Path) -> Outcome<Vec<(PathBuf, String)>> {
    let steps = results::steps(root)?;
    let mut files = vec![
        (root.join(results::FOLDER).join(results::STEPS), steps.csv()),
        (root.join("docs/figures/speed.svg"), chart::speed(&steps)?),
        (root.join("docs/figures/memory.svg"), chart::memory(&steps)?),
    ];
    for page in pages()? {
        let text = fs::read_to_string(&page).map_err(at(&page))?;
        let filled = filled(&text, |specification| block(root, &steps, specification));
        files.push((page.clone(), filled.map_err(at(&page))?));
    }
    Ok(files)
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
    let (name, filter) = rest.split_once("; ").unwrap_or((rest, ""));
    match kind {
        "speeds" => results::speeds(steps, &Filter::parse(rest)?),
        "ratio" => results::range(steps, &Filter::parse(filter)?, name),
        "table" => {
            let table = Table::read(&root.join(results::FOLDER).join(name))?;
            Ok(table.filtered(&Filter::parse(filter)?)?.markdown())
        }
        "tolerances" => tolerances(root, name),
        _ => Err(failed!(
            "kind `{kind}` (expected speeds, ratio, table or tolerances). Correct it."
        )),
    }
}

/// Returns the claims of a group; the value of the constant of its test replaces `{CONSTANT}`.
fn tolerances(root: &Path, group: &str) -> Outcome<String> {
    let filter = format!("group={group}");
    let mut table = Table::read(&root.join(TOLERANCES))?.filtered(&Filter::parse(&filter)?)?;
    for row in &mut table.rows {
        let [_, tolerance, test] = &mut row[..] else {
            let text = format!("{TOLERANCES}: expected the columns group, claim, tolerance, test.");
            return Err(failed!("{text} Correct them."));
        };
        while let Some((before, rest)) = tolerance.split_once('{') {
            let source = root.join(&*test);
            let text = fs::read_to_string(&source).map_err(at(&source))?;
            let (name, after) = rest.split_once('}').unwrap_or((rest, ""));
            let Some(value) = constant(&text, name) else {
                return Err(failed!(
                    "{test}: no constant {name} (named in {TOLERANCES}). Correct one of them."
                ));
            };
            *tolerance = format!("{before}{value}{after}");
        }
        *test = format!("`{test}`");
    }
    Ok(table.markdown())
}

/// Returns the value of `const NAME: TYPE = VALUE;`, the values of an array without brackets.
fn constant<'a>(source: &'a str, name: &str) -> Option<&'a str> {
    let (_, after) = source.split_once(&format!("const {name}: "))?;
    let (_, value) = after.split_once(" = ")?;
    let (value, _) = value.split_once(';')?;
    Some(value.trim_matches(['[', ']']))
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
        let source = "const A_B: f64 = 1e-5;\nconst B: [f64; 2] = [2e-6, 0.1];\n";
        assert_eq!(constant(source, "B"), Some("2e-6, 0.1"));
        assert_eq!(constant(source, "C"), None);
    }
}
