//! Rule about the routes in ARCHITECTURE.md: each function stands where the table says.
//!
//! In: the page, and the sources. Out: rows whose function is not on their line, routes that are
//! too long.

use super::source::{Source, words};
use super::{File, Finding};

const PAGE: &str = "ARCHITECTURE.md";
const HEADING: &str = "A step, function by function";
const MOST_ROWS: usize = 12;

/// Checks rows `| N | file:line | function |` below the heading; a route is a table.
pub(super) fn leads_to_functions(page: &File, sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    if page.path != PAGE {
        return findings;
    }
    let mut is_section = false;
    let mut num_rows = 0;
    for (index, line) in page.text.lines().enumerate() {
        if line.starts_with('#') {
            let is_deeper = is_section && line.starts_with("###");
            is_section = is_deeper || line.trim_start_matches('#').trim() == HEADING;
        }
        let cells: Vec<&str> = line
            .split('|')
            .map(|cell| cell.trim().trim_matches('`'))
            .collect();
        let ["", number, place, function, ..] = cells[..] else {
            num_rows = 0;
            continue;
        };
        if !is_section || number.parse::<usize>().is_err() {
            continue;
        }
        num_rows += 1;
        let mut add = |message| {
            findings.push(Finding {
                line: index + 1,
                message,
            })
        };
        if num_rows == MOST_ROWS + 1 {
            add(format!("a route of more than {MOST_ROWS} functions"));
        }
        if let Some(message) = wrong_place(place, function, sources) {
            add(message);
        }
    }
    findings
}

fn wrong_place(place: &str, function: &str, sources: &[Source]) -> Option<String> {
    let name = function.rsplit("::").next().unwrap_or_default();
    let name = name.trim_end_matches("()");
    let (path, line) = place.split_once(':').unwrap_or((place, ""));
    let Some(source) = sources.iter().find(|source| source.path == path) else {
        return Some(format!("`{place}`: no such file (expected file:line)"));
    };
    let declares = |code: &String| {
        let names: Vec<&str> = words(code).map(|(_, word, _)| word).collect();
        names.windows(2).any(|pair| pair == ["fn", name])
    };
    let mut lines = source.code.iter().enumerate();
    let found: Vec<String> = lines
        .by_ref()
        .filter(|(_, code)| declares(code))
        .map(|(index, _)| (index + 1).to_string())
        .collect();
    if found.iter().any(|found| found == line) {
        return None;
    }
    Some(match found[..] {
        [] => format!("`{path}`: no `fn {name}` in this file"),
        _ => format!(
            "`{place}`: no `fn {name}` on this line, it is on line {}",
            found.join(", ")
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(rows: &str) -> Vec<usize> {
        let page = File {
            path: PAGE.to_owned(),
            text: format!("# A\n\n## {HEADING}\n\n| # | Place | Function |\n|---|---|---|\n{rows}"),
        };
        let source = Source::new("a/src/b.rs", "//! x\nfn c() {}\nfn d() {}\n");
        let findings = leads_to_functions(&page, &[source]);
        findings.iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn rows_lead_to_the_lines_of_their_functions() {
        let right = "| 1 | a/src/b.rs:2 | `c` |\n| 2 | `a/src/b.rs:3` | `B::d()` |\n";
        assert_eq!(lines(right), [0; 0]);
        let wrong = "| 1 | a/src/b.rs:3 | c |\n| 2 | a/src/b.rs | c |\n| 3 | a/src/e.rs:1 | c |\n\n## F\n\n| 1 | x:1 | y |\n";
        assert_eq!(lines(wrong), [7, 8, 9]);
    }

    #[test]
    fn a_route_is_short() {
        let row = "| 1 | a/src/b.rs:2 | c |\n";
        assert_eq!(lines(&row.repeat(MOST_ROWS)), [0; 0]);
        assert_eq!(lines(&row.repeat(MOST_ROWS + 2)), [7 + MOST_ROWS]);
        let two = row.repeat(MOST_ROWS);
        assert_eq!(lines(&format!("{two}\n### G\n\n{two}")), [0; 0]);
    }
}
