//! Rules about a file as a whole: its header, its length and that of its functions, its names.

use super::Finding;
use super::source::{Source, words};

const MOST_LINES: usize = 800;
/// The reason must stand where a reader sees it before the length.
const REASON_WITHIN_LINES: usize = 40;
const REASON: &str = "// tidy: long file because ";

const MOST_FUNCTION_LINES: usize = 120;
/// Stands in the comment before a function, or inside it.
const FUNCTION_REASON: &str = "// tidy: long function because ";

/// Words that could stand for anything.
const EMPTY_WORDS: [&str; 9] = [
    "utils", "helper", "manager", "handler", "base", "common", "misc", "data2", "tmp",
];
const DECLARING: [&str; 6] = ["fn", "struct", "enum", "trait", "type", "mod"];

/// Every file says first what it is.
pub(super) fn starts_with_a_header(source: &Source) -> Vec<Finding> {
    let first = source.lines.first().map_or("", String::as_str);
    if first.starts_with("//! ") && first.len() > "//! ".len() {
        return Vec::new();
    }
    let message = "the file starts without `//!`: say on line 1 what it is".to_owned();
    vec![Finding { line: 1, message }]
}

/// A long file has a reason.
pub(super) fn is_short_or_says_why(source: &Source) -> Vec<Finding> {
    let num_lines = source.lines.len();
    if num_lines <= MOST_LINES || reason_for_length(source).is_some() {
        return Vec::new();
    }
    let message = format!(
        "{num_lines} lines, expected at most {MOST_LINES}: split it, or write `{REASON}…` near its top"
    );
    vec![Finding { line: 1, message }]
}

/// The reason that a long file gives.
pub(super) fn reason_for_length(source: &Source) -> Option<&str> {
    source
        .lines
        .iter()
        .take(REASON_WITHIN_LINES)
        .find_map(|line| line.trim().strip_prefix(REASON))
}

/// A long function has a reason, too.
pub(super) fn functions_are_short_or_say_why(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (start, code) in source.code.iter().enumerate() {
        // A function's type, as in `fn(u8) -> u8`, has no name.
        let is_function =
            |(_, word, after): &(&str, &str, &str)| *word == "fn" && after.starts_with(' ');
        let Some((_, _, after)) = words(code).find(is_function) else {
            continue;
        };
        let name = words(after).next().map_or("", |(_, word, _)| word);
        let num_lines = end_of_function(source, start) + 1 - start;
        if num_lines > MOST_FUNCTION_LINES && !has_reason_for_length(source, start, num_lines) {
            let message = format!(
                "`{name}`: {num_lines} lines, expected at most {MOST_FUNCTION_LINES}: split it, or write `{FUNCTION_REASON}…` before it"
            );
            findings.push(Finding {
                line: start + 1,
                message,
            });
        }
    }
    findings
}

/// The line on which the function of this line ends: rustfmt puts its last brace below its first word.
fn end_of_function(source: &Source, start: usize) -> usize {
    let depth = |line: &str| line.len() - line.trim_start().len();
    let own = depth(&source.code[start]);
    let is_end = |line: &&String| {
        depth(line) == own && (line.trim() == "}" || line.trim_end().ends_with([';', '}']))
    };
    source.code[start..]
        .iter()
        .position(|line| is_end(&line))
        .map_or(start, |length| start + length)
}

fn has_reason_for_length(source: &Source, start: usize, num_lines: usize) -> bool {
    let above = source.lines[..start].iter().rev().map(|line| line.trim());
    let mut before = above.take_while(|line| line.starts_with("//") || line.starts_with("#["));
    let mut inside = source.lines[start..start + num_lines]
        .iter()
        .map(|line| line.trim());
    before.any(|line| line.starts_with(FUNCTION_REASON))
        || inside.any(|line| line.starts_with(FUNCTION_REASON))
}

/// Names of files, folders, functions, types and modules say something.
pub(super) fn names_say_something(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    for part in source.path.split('/') {
        if let Some(word) = empty_word(part.trim_end_matches(".rs")) {
            let message = format!("`{part}`: `{word}` says nothing, name what is in it");
            findings.push(Finding { line: 1, message });
        }
    }
    for (index, code) in source.code.iter().enumerate() {
        let names: Vec<&str> = words(code).map(|(_, word, _)| word).collect();
        for pair in names.windows(2) {
            if DECLARING.contains(&pair[0])
                && let Some(word) = empty_word(pair[1])
            {
                let message = format!("`{}`: `{word}` says nothing, name what it is for", pair[1]);
                findings.push(Finding {
                    line: index + 1,
                    message,
                });
            }
        }
    }
    findings
}

/// The first part of a name in any style that stands in the list, also in the plural.
fn empty_word(name: &str) -> Option<&'static str> {
    let mut parts = vec![String::new()];
    for c in name.chars() {
        if c.is_uppercase() || !(c.is_alphanumeric()) {
            parts.push(String::new());
        }
        if c.is_alphanumeric() {
            parts
                .last_mut()
                .expect("one part from the start")
                .extend(c.to_lowercase());
        }
    }
    let matches = |word: &str, part: &str| part == word || part.strip_suffix('s') == Some(word);
    EMPTY_WORDS
        .into_iter()
        .find(|word| parts.iter().any(|part| matches(word, part)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines_of(findings: &[Finding]) -> Vec<usize> {
        findings.iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn a_file_without_a_header_is_found() {
        assert_eq!(
            starts_with_a_header(&Source::new("a/src/b.rs", "use std::fs;\n")).len(),
            1
        );
        assert_eq!(
            starts_with_a_header(&Source::new("a/src/b.rs", "")).len(),
            1
        );
        assert!(
            starts_with_a_header(&Source::new("a/src/b.rs", "//! Bytes on disk.\n")).is_empty()
        );
    }

    #[test]
    fn only_a_long_file_without_a_reason_is_found() {
        let text = "//! Long.\n".to_owned() + &"\n".repeat(MOST_LINES);
        assert_eq!(
            is_short_or_says_why(&Source::new("a/src/b.rs", &text)).len(),
            1
        );
        let excused = text.replacen('\n', "\n// tidy: long file because one table\n", 1);
        let source = Source::new("a/src/b.rs", &excused);
        assert!(is_short_or_says_why(&source).is_empty());
        assert_eq!(reason_for_length(&source), Some("one table"));
        assert!(is_short_or_says_why(&Source::new("a/src/b.rs", "//! Short.\n")).is_empty());
    }

    #[test]
    fn only_a_long_function_without_a_reason_is_found() {
        let function = |body: usize| {
            format!(
                "impl A {{\n    fn long(\n        a: u8,\n    ) {{\n{}    }}\n}}\n",
                "        a();\n".repeat(body)
            )
        };
        let lines = |text: &str| {
            lines_of(&functions_are_short_or_say_why(&Source::new(
                "a/src/b.rs",
                text,
            )))
        };
        assert_eq!(lines(&function(MOST_FUNCTION_LINES - 4)), [0; 0]);
        let long = function(MOST_FUNCTION_LINES - 3);
        assert_eq!(lines(&long), [2]);
        let reason = format!("    {FUNCTION_REASON}one table\n    #[inline]\n    fn long");
        assert_eq!(lines(&long.replacen("    fn long", &reason, 1)), [0; 0]);
        let declared = format!(
            "trait A {{\n    fn one(&self);\n    fn two(&self) -> u8 {{ 1 }}\n{}}}\n",
            "    const A: u8 = 1;\n".repeat(MOST_FUNCTION_LINES)
        );
        assert_eq!(lines(&declared), [0; 0], "a declaration ends where it is");
    }

    #[test]
    fn empty_words_are_found_in_every_style_of_name() {
        assert_eq!(empty_word("signal_handler"), Some("handler"));
        assert_eq!(empty_word("FileManager"), Some("manager"));
        assert_eq!(empty_word("helpers"), Some("helper"));
        assert_eq!(empty_word("data2"), Some("data2"));
        assert_eq!(empty_word("database"), None);
        assert_eq!(empty_word("baseline"), None);
    }

    #[test]
    fn declarations_are_checked_and_mentions_are_not() {
        let text = "//! x\nuse other::utils;\nfn helper_of() {}\nlet base = 1;\n// fn tmp()\nstruct Misc;\n";
        assert_eq!(
            lines_of(&names_say_something(&Source::new("a/src/b.rs", text))),
            [3, 6]
        );
    }

    #[test]
    fn names_of_files_and_folders_are_checked() {
        assert_eq!(
            names_say_something(&Source::new("a/src/common/mod.rs", "//! x\n")).len(),
            1
        );
        assert_eq!(
            names_say_something(&Source::new("a/src/file_utils.rs", "//! x\n")).len(),
            1
        );
    }
}
