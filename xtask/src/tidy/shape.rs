//! Rules about a file: its header, its length, the length of its functions, its names.

use super::Finding;
use super::source::{Source, words};

const MOST_LINES: usize = 800;
/// Lines from the top within which a reader sees the reason.
const REASON_WITHIN_LINES: usize = 40;
const REASON: &str = "// tidy: long file because ";

const MOST_FUNCTION_LINES: usize = 120;
/// Stands in the comment before a function, or inside it.
const FUNCTION_REASON: &str = "// tidy: long function because ";

/// Words without a meaning.
const EMPTY_WORDS: [&str; 9] = [
    "utils", "helper", "manager", "handler", "base", "common", "misc", "data2", "tmp",
];
const DECLARING: [&str; 6] = ["fn", "struct", "enum", "trait", "type", "mod"];

pub(super) fn starts_with_a_header(source: &Source) -> Vec<Finding> {
    let header = source
        .lines
        .first()
        .and_then(|line| line.strip_prefix("//! "));
    if header.is_some_and(|header| !header.is_empty()) {
        return Vec::new();
    }
    let message = "no `//!` in line 1: describe the file";
    vec![Finding::at(0, message.to_owned())]
}

pub(super) fn is_short_or_has_a_reason(source: &Source) -> Vec<Finding> {
    let num_lines = source.lines.len();
    if num_lines <= MOST_LINES || reason_for_length(source).is_some() {
        return Vec::new();
    }
    let message = format!(
        "{num_lines} lines, expected at most {MOST_LINES}: split it, or write `{REASON}…` near its top"
    );
    vec![Finding::at(0, message)]
}

/// Returns the reason for the length of a file.
pub(super) fn reason_for_length(source: &Source) -> Option<&str> {
    let mut lines = source.lines.iter().take(REASON_WITHIN_LINES);
    lines.find_map(|line| line.trim().strip_prefix(REASON))
}

pub(super) fn functions_are_short_or_have_a_reason(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (start, code) in source.code.iter().enumerate() {
        // A type of functions, as in `fn(u8) -> u8`, has no name.
        let mut words =
            words(code).skip_while(|(_, word, after)| *word != "fn" || !after.starts_with(' '));
        words.next();
        let Some((_, name, _)) = words.next() else {
            continue;
        };
        let num_lines = end_of_function(source, start) + 1 - start;
        if num_lines > MOST_FUNCTION_LINES && !has_reason_for_length(source, start, num_lines) {
            let message = format!(
                "`{name}`: {num_lines} lines, expected at most {MOST_FUNCTION_LINES}: split it, or write `{FUNCTION_REASON}…` before it"
            );
            findings.push(Finding::at(start, message));
        }
    }
    findings
}

/// Returns the index of a function's last line: rustfmt aligns its last brace with its first word.
fn end_of_function(source: &Source, start: usize) -> usize {
    let depth = |line: &str| line.len() - line.trim_start().len();
    let own = depth(&source.code[start]);
    let is_end = |line: &String| {
        depth(line) == own && (line.trim() == "}" || line.trim_end().ends_with([';', '}']))
    };
    let length = source.code[start..].iter().position(is_end);
    start + length.unwrap_or(0)
}

fn has_reason_for_length(source: &Source, start: usize, num_lines: usize) -> bool {
    let is_above = |line: &&String| line.trim().starts_with("//") || line.trim().starts_with("#[");
    let above = source.lines[..start].iter().rev().take_while(is_above);
    let mut lines = above.chain(&source.lines[start..start + num_lines]);
    lines.any(|line| line.trim().starts_with(FUNCTION_REASON))
}

/// Finds names of files, folders, functions, types and modules without a meaning.
pub(super) fn names_have_a_meaning(source: &Source) -> Vec<Finding> {
    let path = source
        .path
        .split('/')
        .map(|part| (0, part.trim_end_matches(".rs")));
    let mut names: Vec<(usize, &str)> = path.collect();
    for (index, code) in source.code.iter().enumerate() {
        let words: Vec<&str> = words(code).map(|(_, word, _)| word).collect();
        for pair in words.windows(2) {
            if DECLARING.contains(&pair[0]) {
                names.push((index, pair[1]));
            }
        }
    }
    let finding = |(index, name): (usize, &str)| {
        let word = empty_word(name)?;
        let message = format!("`{name}`: `{word}` has no meaning, name the content");
        Some(Finding::at(index, message))
    };
    names.into_iter().filter_map(finding).collect()
}

/// Returns the first part of a name, in any style, that is in the list, also in the plural.
fn empty_word(name: &str) -> Option<&'static str> {
    let mut separated = String::new();
    for c in name.chars() {
        if c.is_uppercase() || !c.is_alphanumeric() {
            separated.push(' ');
        }
        if c.is_alphanumeric() {
            separated.extend(c.to_lowercase());
        }
    }
    let has = |word: &str| {
        let mut parts = separated.split(' ');
        parts.any(|part| part == word || part.strip_suffix('s') == Some(word))
    };
    EMPTY_WORDS.into_iter().find(|word| has(word))
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
        assert!(
            starts_with_a_header(&Source::new("a/src/b.rs", "//! Bytes on disk.\n")).is_empty()
        );
    }

    #[test]
    fn only_a_long_file_without_a_reason_is_found() {
        let text = "//! Long.\n".to_owned() + &"\n".repeat(MOST_LINES);
        assert_eq!(
            is_short_or_has_a_reason(&Source::new("a/src/b.rs", &text)).len(),
            1
        );
        let excused = text.replacen('\n', "\n// tidy: long file because one table\n", 1);
        let source = Source::new("a/src/b.rs", &excused);
        assert!(is_short_or_has_a_reason(&source).is_empty());
        assert_eq!(reason_for_length(&source), Some("one table"));
        assert!(is_short_or_has_a_reason(&Source::new("a/src/b.rs", "//! Short.\n")).is_empty());
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
            lines_of(&functions_are_short_or_have_a_reason(&Source::new(
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
            lines_of(&names_have_a_meaning(&Source::new("a/src/b.rs", text))),
            [3, 6]
        );
    }

    #[test]
    fn names_of_files_and_folders_are_checked() {
        assert_eq!(
            names_have_a_meaning(&Source::new("a/src/common/mod.rs", "//! x\n")).len(),
            1
        );
        assert_eq!(
            names_have_a_meaning(&Source::new("a/src/file_utils.rs", "//! x\n")).len(),
            1
        );
    }
}
