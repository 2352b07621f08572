//! Rule about the routes in ARCHITECTURE.md: each function stands where the table says.
//!
//! In: the page, and the sources. Out: rows whose function is not on their line, routes that are
//! too long.

use super::Finding;
use super::text::{File, words};

const PAGE: &str = "ARCHITECTURE.md";
const HEADING: &str = "A step, function by function";
const MOST_ROWS: usize = 12;

/// Checks rows `| N | file:line | function |` below the heading; a route is a table.
pub(super) fn leads_to_functions(page: &File, files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    if page.path != PAGE {
        return findings;
    }
    let mut is_section = false;
    let mut num_rows = 0;
    for (index, line) in page.lines.iter().enumerate() {
        if line.starts_with('#') {
            let is_deeper = is_section && line.starts_with("###");
            is_section = is_deeper || line.trim_start_matches('#').trim() == HEADING;
        }
        let cells = line.split('|');
        let cells: Vec<&str> = cells.map(|cell| cell.trim().trim_matches('`')).collect();
        let ["", number, place, function, ..] = cells[..] else {
            num_rows = 0;
            continue;
        };
        if !is_section || number.parse::<usize>().is_err() {
            continue;
        }
        num_rows += 1;
        if num_rows == MOST_ROWS + 1 {
            let message = format!("a route of more than {MOST_ROWS} functions");
            findings.push(Finding::at(index, message));
        }
        let wrong = wrong_place(place, function, files);
        findings.extend(wrong.map(|message| Finding::at(index, message)));
    }
    findings
}

fn wrong_place(place: &str, function: &str, files: &[File]) -> Option<String> {
    let name = function.rsplit("::").next().unwrap_or_default();
    let name = name.trim_end_matches("()");
    let (path, line) = place.split_once(':').unwrap_or((place, ""));
    let Some(file) = files.iter().find(|file| file.path == path) else {
        return Some(format!("`{place}`: no such file (expected file:line)"));
    };
    let declares = |code: &String| {
        let names: Vec<&str> = words(code).map(|(_, word, _)| word).collect();
        names.windows(2).any(|pair| pair == ["fn", name])
    };
    let lines = (1..).zip(&file.code);
    let found = lines.filter(|(_, code)| declares(code));
    let found: Vec<String> = found
        .map(|(line, _): (usize, _)| line.to_string())
        .collect();
    if found.is_empty() {
        return Some(format!("`{path}`: no `fn {name}` in this file"));
    }
    let found_on = found.join(", ");
    (!found.iter().any(|found| found == line))
        .then(|| format!("`{place}`: no `fn {name}` on this line, it is on line {found_on}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(rows: &str) -> Vec<usize> {
        let text =
            format!("# A\n\n## {HEADING}\n\n| # | Place | Function |\n|---|---|---|\n{rows}");
        let source = File::new("a/src/b.rs", "//! x\nfn c() {}\nfn d() {}\n");
        let findings = leads_to_functions(&File::new(PAGE, &text), &[source]);
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
