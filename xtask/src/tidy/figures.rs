//! A rule about measured figures: pages get them from `docs/results`.
//!
//! In: README.md and the pages of the book. Out: speeds and ratios outside of blocks.
//! Invariant: fenced code, reference pages and decisions are not checked.

use super::Finding;
use super::text::File;
use crate::book::{BEGIN, END};

/// Words after the number of a measurement.
const UNITS: [&str; 3] = [" images/s", " samples/s", " times as fast"];

/// Finds measured figures that are typed into a page.
pub(super) fn come_from_results(page: &File) -> Vec<Finding> {
    let is_in_docs = page.path.strip_prefix("docs/");
    let is_page = is_in_docs.is_some_and(|name| name.ends_with(".md") && !name.contains('/'));
    if !is_page && page.path != "README.md" {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for (number, text) in page.passages.iter().flat_map(|passage| &passage.lines) {
        let earlier: String = page.lines[..number - 1].join("\n");
        let is_in_block = earlier.rfind(BEGIN) > earlier.rfind(END);
        let mut typed = text.clone();
        while let Some((before, rest)) = typed.split_once(BEGIN) {
            let after = rest.split_once(END).map_or("", |(_, after)| after);
            typed = format!("{before}{after}");
        }
        let is_measured = |unit: &str| {
            let mut starts = typed.match_indices(unit).map(|(start, _)| start);
            starts.any(|start| typed[..start].ends_with(|c: char| c.is_ascii_digit()))
        };
        if !is_in_block && UNITS.into_iter().any(is_measured) {
            let message = "measured figure: move it to docs/results, and include it by a block";
            findings.push(Finding::at(number - 1, message));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typed_figures_are_found_and_those_of_blocks_are_not() {
        let text = "It trains 1,200 images/s.\n\nIt is <!-- results: ratio -->2.1<!-- end --> times as \
                    fast.\n\n<!-- results: table a.csv -->\n\n| 3 images/s |\n\n<!-- end -->\n\n\
                    It is 2 times as fast.\n\n```\n5 images/s\n```\nMany images/s.\n";
        let lines = |path: &str| super::super::tests::lines(come_from_results, path, text);
        assert_eq!(lines("docs/a.md"), [1, 11]);
        assert_eq!(lines("docs/decisions/a.md"), [0; 0]);
    }
}
