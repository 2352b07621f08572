//! The table of a diagnosis.
//!
//! In: a [`Diagnosis`], the console's width. Out: lines of ASCII but for what the system itself said.

use records::counted;

use super::diagnosis::{Diagnosis, MapLine, Verdict};
use crate::measure::report::ConsoleLook;

/// Lines of the map before the rest is left to `--json`.
const MAP_LINES: usize = 24;

/// Columns of the names and of the verdicts, with the space after them.
const NAME_COLUMNS: usize = 15;
const VERDICT_COLUMNS: usize = 6;

/// Least columns for what was found.
const TEXT_COLUMNS: usize = 30;

/// The lines of the table.
pub fn lines(diagnosis: &Diagnosis, look: ConsoleLook) -> Vec<String> {
    let mut lines = map(&diagnosis.map, look);
    lines.push(String::new());
    let indent = NAME_COLUMNS + VERDICT_COLUMNS;
    let columns = look.width.saturating_sub(indent + 1).max(TEXT_COLUMNS);
    let blank = " ".repeat(indent);
    lines.push(format!(
        "{:NAME_COLUMNS$}{:VERDICT_COLUMNS$}found",
        "check", ""
    ));
    for row in &diagnosis.rows {
        let word = painted(
            &format!("{:VERDICT_COLUMNS$}", row.verdict.word()),
            row.verdict,
            look,
        );
        for (index, text) in wrapped(&row.found, columns).into_iter().enumerate() {
            match index {
                0 => lines.push(format!("{:NAME_COLUMNS$}{word}{text}", row.name)),
                _ => lines.push(format!("{blank}{text}")),
            }
        }
        let remedy = row
            .remedy
            .as_ref()
            .map(|remedy| wrapped(remedy, columns - 3))
            .unwrap_or_default();
        for (index, text) in remedy.into_iter().enumerate() {
            lines.push(format!(
                "{blank}{}{text}",
                if index == 0 { "-> " } else { "   " }
            ));
        }
    }
    lines.push(String::new());
    let conclusion = wrapped(
        &conclusion(diagnosis),
        look.width.saturating_sub(1).max(TEXT_COLUMNS),
    );
    // The word is in the first line.
    let word = diagnosis.verdict.word();
    let paint = |line: &String| line.replacen(word, &painted(word, diagnosis.verdict, look), 1);
    lines.extend(conclusion.first().map(paint));
    lines.extend(conclusion.into_iter().skip(1));
    lines
}

fn conclusion(diagnosis: &Diagnosis) -> String {
    let count = |verdict| {
        diagnosis
            .rows
            .iter()
            .filter(|row| row.verdict == verdict)
            .count()
    };
    let (warnings, failures) = (count(Verdict::Warn), count(Verdict::Fail));
    let meaning = match diagnosis.verdict {
        Verdict::Ok => "a job here would train well",
        Verdict::Warn => "a job here would train; see the remedies",
        Verdict::Fail => "do not train here before the remedies",
    };
    let word = diagnosis.verdict.word();
    format!(
        "doctor: {word}: {} on {}, {}, {warnings} warn, {failures} FAIL: {meaning}",
        counted(diagnosis.ranks, "rank"),
        counted(diagnosis.nodes, "node"),
        counted(diagnosis.rows.len(), "check")
    )
}

fn map(map: &[MapLine], look: ConsoleLook) -> Vec<String> {
    let width = |of: fn(&MapLine) -> &str, heading: &str| {
        map.iter()
            .map(|line| of(line).chars().count())
            .chain([heading.len()])
            .max()
            .unwrap_or(0)
    };
    let most = look.width.saturating_sub(12) / 3;
    let node = width(|line| &line.node, "node").min(most);
    let ranks = width(|line| &line.ranks, "ranks").min(most);
    let line = |first: &str, second: &str, third: &str, fourth: &str| {
        format!(
            "{:node$}  {:ranks$}  {third:>7}  {fourth}",
            shortened(first, node),
            shortened(second, ranks)
        )
    };
    let mut lines = vec![line("node", "ranks", "threads", "cores of each")];
    for entry in map.iter().take(MAP_LINES) {
        let threads = entry
            .threads
            .map_or("-".to_owned(), |threads| threads.to_string());
        let cores = shortened(
            &entry.cores,
            look.width.saturating_sub(node + ranks + 14).max(8),
        );
        lines.push(line(&entry.node, &entry.ranks, &threads, &cores));
    }
    if map.len() > MAP_LINES {
        lines.push(format!(
            "and {} more lines, all of them in --json",
            map.len() - MAP_LINES
        ));
    }
    lines
}

fn shortened(text: &str, columns: usize) -> String {
    if text.chars().count() <= columns {
        return text.to_owned();
    }
    text.chars()
        .take(columns.saturating_sub(2))
        .chain("..".chars())
        .collect()
}

/// Colours by their number in the terminal's palette.
fn painted(text: &str, verdict: Verdict, look: ConsoleLook) -> String {
    let color = match verdict {
        _ if !look.is_colored => return text.to_owned(),
        Verdict::Ok => 32,
        Verdict::Warn => 33,
        Verdict::Fail => 31,
    };
    format!("\x1b[{color}m{text}\x1b[0m")
}

/// The words of `text` in lines of at most `columns`; a longer word has a line of its own.
fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("one line from the start");
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= columns {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::super::diagnosis::Row;
    use super::*;

    fn diagnosis() -> Diagnosis {
        let entry = |node: &str, ranks: &str| MapLine {
            node: node.to_owned(),
            ranks: ranks.to_owned(),
            cores: "0-1".to_owned(),
            threads: Some(2),
        };
        Diagnosis {
            verdict: Verdict::Fail,
            ranks: 4,
            nodes: 2,
            rows: vec![
                Row::ok("program", "0.1.0"),
                Row::warn("bandwidth", "slow ".repeat(20), "buy a network ".repeat(10)),
                Row::fail("data set", "none", "fetch it"),
            ],
            map: vec![entry("n1", "0-1"), entry("n2", "2-3")],
            facts: Vec::new(),
        }
    }

    #[test]
    fn no_line_is_wider_than_the_console_and_remedies_hang_below_their_row() {
        for width in [60, 80, 120] {
            let lines = lines(
                &diagnosis(),
                ConsoleLook {
                    width,
                    is_colored: false,
                },
            );
            let widest = lines.iter().map(|line| line.chars().count()).max().unwrap();
            assert!(widest < width, "{widest} of {width}: {lines:#?}");
            let warning = lines
                .iter()
                .position(|line| line.starts_with("bandwidth      warn  slow"))
                .unwrap();
            let remedy = lines
                .iter()
                .position(|line| line.starts_with("                     -> buy a network"))
                .unwrap();
            assert!(remedy > warning);
            assert!(
                lines[remedy + 1].starts_with("                        "),
                "{lines:#?}"
            );
        }
    }

    #[test]
    fn the_table_is_plain_ascii_without_colour_and_its_words_stay_with_it() {
        let plain = lines(&diagnosis(), ConsoleLook::plain()).join("\n");
        assert!(plain.is_ascii() && !plain.contains('\x1b'), "{plain}");
        assert!(
            plain.contains("\nprogram        ok    0.1.0\n")
                && plain.contains("\ndata set       FAIL  none\n")
        );
        let colored = lines(
            &diagnosis(),
            ConsoleLook {
                width: 80,
                is_colored: true,
            },
        )
        .join("\n");
        assert!(
            colored.contains("data set       \x1b[31mFAIL  \x1b[0mnone"),
            "{colored}"
        );
    }

    #[test]
    fn the_last_line_tells_the_verdict_and_counts() {
        let last = lines(
            &diagnosis(),
            ConsoleLook {
                width: 120,
                is_colored: false,
            },
        )
        .pop()
        .unwrap();
        assert_eq!(
            last,
            "doctor: FAIL: 4 ranks on 2 nodes, 3 checks, 1 warn, 1 FAIL: do not train here before the remedies"
        );
    }

    #[test]
    fn a_long_map_is_cut() {
        let mut diagnosis = diagnosis();
        diagnosis.map = vec![diagnosis.map[0].clone(); 100];
        let lines = lines(&diagnosis, ConsoleLook::plain());
        assert!(
            lines.contains(&"and 76 more lines, all of them in --json".to_owned()),
            "{lines:#?}"
        );
    }
}
