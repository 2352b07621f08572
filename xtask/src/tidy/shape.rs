//! Rules about a file: its header, its length, the length of its functions, its names.

use super::Finding;
use super::text::{File, words};

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

/// Checks that a source has a header, and is short or has a reason.
pub(super) fn has_a_header_and_a_length(file: &File) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !file.path.ends_with(".rs") {
        return findings;
    }
    let first = file
        .lines
        .first()
        .and_then(|line| line.strip_prefix("//! "));
    if first.is_none_or(str::is_empty) {
        findings.push(Finding::at(0, "no `//!` in line 1: describe the file"));
    }
    let num_lines = file.lines.len();
    if num_lines > MOST_LINES && reason_for_length(file).is_none() {
        let message = format!(
            "{num_lines} lines, expected at most {MOST_LINES}: split it, or write `{REASON}…` near its top"
        );
        findings.push(Finding::at(0, message));
    }
    findings
}

/// Returns the reason for the length of a file.
pub(super) fn reason_for_length(file: &File) -> Option<&str> {
    let mut lines = file.lines.iter().take(REASON_WITHIN_LINES);
    lines.find_map(|line| line.trim().strip_prefix(REASON))
}

pub(super) fn functions_are_short_or_have_a_reason(file: &File) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (start, code) in file.code.iter().enumerate() {
        // A type of functions, as in `fn(u8) -> u8`, has no name.
        let mut words =
            words(code).skip_while(|(_, word, after)| *word != "fn" || !after.starts_with(' '));
        let Some((_, name, _)) = words.nth(1) else {
            continue;
        };
        // rustfmt aligns the last brace of a function with its first word.
        let depth = |line: &str| line.len() - line.trim_start().len();
        let is_end =
            |line: &String| depth(line) == depth(code) && line.trim_end().ends_with([';', '}']);
        let end = start + file.code[start..].iter().position(is_end).unwrap_or(0);
        let num_lines = end + 1 - start;
        let is_above =
            |line: &&String| line.trim().starts_with("//") || line.trim().starts_with("#[");
        let above = file.lines[..start].iter().rev().take_while(is_above);
        let has_reason = above
            .chain(&file.lines[start..=end])
            .any(|line| line.trim().starts_with(FUNCTION_REASON));
        if num_lines > MOST_FUNCTION_LINES && !has_reason {
            let message = format!(
                "`{name}`: {num_lines} lines, expected at most {MOST_FUNCTION_LINES}: split it, or write `{FUNCTION_REASON}…` before it"
            );
            findings.push(Finding::at(start, message));
        }
    }
    findings
}

/// Finds names of files, folders, functions, types and modules without a meaning.
pub(super) fn names_have_a_meaning(file: &File) -> Vec<Finding> {
    if !file.path.ends_with(".rs") {
        return Vec::new();
    }
    let path = file.path.split('/');
    let mut names: Vec<(usize, &str)> =
        path.map(|part| (0, part.trim_end_matches(".rs"))).collect();
    for (index, code) in file.code.iter().enumerate() {
        let words: Vec<&str> = words(code).map(|(_, word, _)| word).collect();
        let declared = words.windows(2).filter(|pair| DECLARING.contains(&pair[0]));
        names.extend(declared.map(|pair| (index, pair[1])));
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
    use super::super::tests::lines;
    use super::*;

    #[test]
    fn a_file_without_a_header_is_found() {
        let lines = |text: &str| lines(has_a_header_and_a_length, "a/src/b.rs", text);
        assert_eq!(lines("use std::fs;\n"), [1]);
        assert_eq!(lines("//! Bytes on disk.\n"), [0; 0]);
    }

    #[test]
    fn only_a_long_file_without_a_reason_is_found() {
        let lines = |text: &str| lines(has_a_header_and_a_length, "a/src/b.rs", text);
        let text = "//! Long.\n".to_owned() + &"\n".repeat(MOST_LINES);
        assert_eq!(lines(&text), [1]);
        let excused = text.replacen('\n', "\n// tidy: long file because one table\n", 1);
        assert_eq!(lines(&excused), [0; 0]);
        let file = File::new("a/src/b.rs", &excused);
        assert_eq!(reason_for_length(&file), Some("one table"));
    }

    #[test]
    fn only_a_long_function_without_a_reason_is_found() {
        let function = |body: usize| {
            let body = "        a();\n".repeat(body);
            format!("impl A {{\n    fn long(\n        a: u8,\n    ) {{\n{body}    }}\n}}\n")
        };
        let lines = |text: &str| lines(functions_are_short_or_have_a_reason, "a/src/b.rs", text);
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
    fn empty_words_are_found_in_every_style_of_name_where_it_is_declared() {
        for (name, word) in [
            ("signal_handler", Some("handler")),
            ("FileManager", Some("manager")),
            ("helpers", Some("helper")),
            ("data2", Some("data2")),
            ("database", None),
            ("baseline", None),
        ] {
            assert_eq!(empty_word(name), word);
        }
        let lines = |path: &str, text: &str| lines(names_have_a_meaning, path, text);
        let text = "//! x\nuse other::utils;\nfn helper_of() {}\nlet base = 1;\n// fn tmp()\nstruct Misc;\n";
        assert_eq!(lines("a/src/b.rs", text), [3, 6]);
        assert_eq!(lines("a/src/common/mod.rs", "//! x\n"), [1]);
        assert_eq!(lines("a/src/file_utils.rs", "//! x\n"), [1]);
    }
}
