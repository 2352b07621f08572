//! Rules about language: what a program can see of "Language" in CONTRIBUTING.md.
//!
//! In: the prose of a file, or subjects of commits. Out: findings.
//! Invariant: code, code spans, and links are not judged.

use super::Finding;
use super::text::{File, Kind, Passage};

/// Inputs of tests, the list of retired words itself, and files with the flag value `beside`.
const NO_PROSE: [&str; 4] = [
    "trainer/fuzz/corpus/",
    "trainer/src/config/scaling_method.rs",
    "trainer/tests/it/cli.rs",
    "xtask/src/tidy/language.rs",
];

/// Retired words, and what to write instead: `|` separates forms of a word, `*` is any word, and a
/// final `.` is the end of a sentence.
const RETIRED: [(&str, &str); 17] = [
    ("became|becomes|become of", "the outcome of"),
    (
        "tell|tells|told|telling",
        "report, return, log, print, reject or warn",
    ),
    ("whoever|nobody|nobody's|anybody", "the noun"),
    ("anew", "again"),
    ("aloud", "the message and where it is printed"),
    ("heed|heeds|heeded|heeding", "support, use or respect"),
    ("befall|befalls|befell|befallen", "affect or hit"),
    ("mend|mends|mended|mending", "fix"),
    ("which|that is none", "is not a NOUN"),
    ("is|are no * that", "no NOUN is, or is not a NOUN"),
    ("of its|their own", "custom, or its own NOUN"),
    ("go|goes|went|gone on", "resume or continue"),
    ("run|runs|ran apart", "run independently"),
    ("beside", "compared with, next to or besides"),
    ("alone.", "only, before the noun"),
    ("else.", "other, before the noun"),
    ("as it was", "unchanged, or its former state"),
];

/// Retired in what users read.
const RETIRED_IN_PAGES: [(&str, &str); 3] = [
    ("by us", "Lockstep"),
    ("ours", "Lockstep's NOUN"),
    ("the processors you have", "CPUs"),
];

const FRAGMENTS: [&str; 10] = [
    "Of", "That of", "Those of", "Who", "Whose", "What", "How", "Where", "Whether", "Which",
];

const MOST_COLUMNS: usize = 100;
const MOST_HELP: usize = 100;
const MOST_CELL: usize = 200;
const MOST_SUBJECT: usize = 72;

/// Checks the prose of a file.
pub(super) fn is_plain(file: &File) -> Vec<Finding> {
    if NO_PROSE.iter().any(|place| file.path.starts_with(place)) {
        return Vec::new();
    }
    let is_for_users = file.path == "README.md" || file.path.starts_with("docs/");
    let mut findings = Vec::new();
    for passage in &file.passages {
        findings.extend(retired_words(passage, &RETIRED));
        if is_for_users {
            findings.extend(retired_words(passage, &RETIRED_IN_PAGES));
        }
        findings.extend(fragment(passage));
        findings.extend(long_lines(passage, file));
        findings.extend(long_help(passage, file));
    }
    findings
}

/// Checks that the subjects of commits, newest first, are short.
pub(super) fn long_subjects(log: &str) -> Vec<String> {
    let is_long = |line: &&str| {
        let subject = line.split_once(' ').map_or("", |(_, subject)| subject);
        subject.chars().count() > MOST_SUBJECT
    };
    log.lines()
        .filter(is_long)
        .map(|line| {
            format!("commit {line}: expected a subject of at most {MOST_SUBJECT} characters")
        })
        .collect()
}

/// A word of a passage.
struct Word {
    line: usize,
    text: String,
    /// Whether only blanks separate it from the word before.
    follows: bool,
    ends_sentence: bool,
}

fn words(passage: &Passage) -> Vec<Word> {
    let mut words: Vec<Word> = Vec::new();
    let mut follows = false;
    for (line, text) in &passage.lines {
        let text = without_code(text);
        for part in text.split_whitespace() {
            let is_word = |c: char| c.is_alphanumeric() || c == '\'' || c == '-' || c == '_';
            let mut rest = part;
            while let Some(start) = rest.find(is_word) {
                let length = rest[start..].find(|c| !is_word(c));
                let end = length.map_or(rest.len(), |length| start + length);
                let after = rest[end..].chars().next();
                words.push(Word {
                    line: *line,
                    text: rest[start..end].to_lowercase(),
                    follows: follows && start == 0,
                    ends_sentence: after.is_some_and(|c| ['.', ';', ':', '!', '?'].contains(&c)),
                });
                follows = after.is_none();
                rest = &rest[end..];
            }
            follows &= rest.is_empty();
        }
    }
    if let Some(last) = words.last_mut() {
        // Nothing stands after the passage's last word, not even code.
        last.ends_sentence |= follows;
    }
    words
}

fn retired_words(passage: &Passage, retired: &[(&str, &str)]) -> Vec<Finding> {
    let words = words(passage);
    let mut findings = Vec::new();
    for (pattern, instead) in retired {
        let forms: Vec<&str> = pattern.trim_end_matches('.').split(' ').collect();
        for window in words.windows(forms.len()) {
            let is_one = |(word, forms): (&Word, &&str)| {
                *forms == "*" || forms.split('|').any(|form| form == word.text)
            };
            let is_joined = window.iter().skip(1).all(|word| word.follows);
            let is_end = window.last().is_some_and(|word| word.ends_sentence);
            if is_joined
                && (is_end || !pattern.ends_with('.'))
                && window.iter().zip(&forms).all(is_one)
            {
                let found: Vec<&str> = window.iter().map(|word| word.text.as_str()).collect();
                let message = format!("`{}`: write {instead}", found.join(" "));
                findings.push(Finding::at(window[0].line - 1, message));
            }
        }
    }
    findings
}

/// Replaces code spans by a dash, which ends no sentence and is no word.
fn without_code(text: &str) -> String {
    let parts: Vec<&str> = text.split('`').collect();
    if parts.len().is_multiple_of(2) {
        return text.to_owned();
    }
    parts
        .into_iter()
        .step_by(2)
        .collect::<Vec<_>>()
        .join("\u{2013}")
}

/// The first line of a doc comment is a sentence or a noun phrase.
fn fragment(passage: &Passage) -> Option<Finding> {
    let (line, text) = passage.lines.first()?;
    let begins = |fragment: &&&str| {
        let rest = text.strip_prefix(**fragment);
        rest.is_some_and(|rest| rest.starts_with([' ', ',', ':']))
    };
    let fragment = FRAGMENTS.iter().find(begins)?;
    let message =
        format!("doc begins with `{fragment}`: begin with a noun phrase or a present-tense verb");
    (passage.kind == Kind::Doc).then(|| Finding::at(line - 1, message))
}

/// Finds long lines of comments and paragraphs, and long cells of tables.
fn long_lines(passage: &Passage, file: &File) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (line, text) in &passage.lines {
        let written = without_links(&without_html_comments(&file.lines[line - 1]));
        let columns = written.chars().count();
        let mut add = |message| findings.push(Finding::at(line - 1, message));
        match passage.kind {
            Kind::Text => {}
            Kind::Row => {
                let cells = written.split('|').map(|cell| cell.trim().chars().count());
                for length in cells.filter(|length| *length > MOST_CELL) {
                    add(format!(
                        "table cell of {length} characters, expected at most {MOST_CELL}"
                    ));
                }
            }
            Kind::Doc | Kind::Comment | Kind::Paragraph => {
                if columns > MOST_COLUMNS && !text.is_empty() && !text.contains("://") {
                    add(format!(
                        "{columns} columns of prose, expected at most {MOST_COLUMNS}"
                    ));
                }
            }
        }
    }
    findings
}

fn without_html_comments(line: &str) -> String {
    let mut parts = line.split("<!--");
    let mut kept = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        kept.push_str(part.split_once("-->").map_or("", |(_, after)| after));
    }
    kept
}

fn without_links(line: &str) -> String {
    let mut parts = line.split("](");
    let mut kept = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        kept.push(']');
        kept.push_str(part.split_once(')').map_or(part, |(_, after)| after));
    }
    kept
}

/// Checks the help of a flag: the doc comment before `#[arg` in the files of the command line.
fn long_help(passage: &Passage, file: &File) -> Option<Finding> {
    let places = ["trainer/src/config/cli", "trainer/src/commands"];
    let is_command_line = places.iter().any(|place| file.path.starts_with(place));
    let (last, _) = passage.lines.last()?;
    let is_flag = file.lines.get(*last)?.trim_start().starts_with("#[arg");
    let lines = passage.lines.iter();
    let texts: Vec<&str> = lines.map(|(_, text)| text.as_str()).collect();
    let length = texts.join(" ").chars().count();
    let is_long_help =
        is_command_line && is_flag && passage.kind == Kind::Doc && length > MOST_HELP;
    is_long_help.then(|| {
        let message = format!(
            "help of {length} characters, expected at most {MOST_HELP}: move details to the book"
        );
        Finding::at(passage.lines[0].0 - 1, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        let mut lines = super::super::tests::lines(is_plain, path, text);
        lines.sort_unstable();
        lines
    }

    #[test]
    fn retired_words_are_found_in_prose_and_not_in_code() {
        let text = "//! A.
/// B told
/// c.
fn tells() { f(\"beside\", \"d beside e\"); } // Nobody\n";
        assert_eq!(lines("a/src/b.rs", text), [2, 4, 4]);
        assert_eq!(
            lines(
                "docs/a.md",
                "Ours `tells` A.\n\n```\ntell\n```\nIs tell-tale.\n"
            ),
            [1]
        );
    }

    #[test]
    fn phrases_are_found_across_lines_and_punctuation_ends_them() {
        assert_eq!(lines("a.md", "They go\non.\n"), [1]);
        assert_eq!(lines("a.md", "They go. On that, they go `x` on.\n"), [0; 0]);
        assert_eq!(lines("a.md", "It is no file that opens.\n"), [1]);
    }

    #[test]
    fn some_words_are_retired_at_the_end_of_a_sentence() {
        assert_eq!(lines("a.md", "A alone.\n\nB alone\n"), [1, 3]);
        assert_eq!(lines("a.md", "Alone it is, if alone `x`.\n"), [0; 0]);
    }

    #[test]
    fn docs_that_begin_with_a_fragment_are_found() {
        let text = "//! Of x.\n//! What y.\n\n/// Often.\n/// How.\nfn a() {}\n\n// What.\n";
        assert_eq!(lines("a/src/b.rs", text), [1]);
        let text = "/// Whether it does.\nfn a() {}\n";
        assert_eq!(lines("a/src/b.rs", text), [1]);
    }

    #[test]
    fn long_lines_and_cells_are_found_and_links_and_code_are_not() {
        let long = "x ".repeat(60);
        let text = format!("//! A.\n// {long}\nf(\"{long}\");\n");
        assert_eq!(lines("a/src/b.rs", &text), [2]);
        let link = format!("[a](b{})", "x".repeat(99));
        let text = format!("{long}\n\n{link}\n\n```\n{long}\n```\n");
        assert_eq!(lines("a.md", &text), [1]);
        let text = format!("A <!-- {long} -->b<!-- end --> c.\n");
        assert_eq!(lines("a.md", &text), [0; 0]);
        let text = format!("| {long} |\n| {long}{long} |\n");
        assert_eq!(lines("a.md", &text), [2]);
    }

    #[test]
    fn long_help_is_found() {
        let parts = ["x".repeat(60), "x".repeat(40)];
        let text = format!("/// {}\n/// {}\n#[arg(long)]\na: u8,\n", parts[0], parts[1]);
        assert_eq!(lines("trainer/src/config/cli/a.rs", &text), [1]);
        assert_eq!(lines("trainer/src/config/a.rs", &text), [0; 0]);
    }

    #[test]
    fn a_long_subject_is_found() {
        let log = format!("1a a: b\n2b {}\n", "x".repeat(73));
        assert_eq!(long_subjects(&log).len(), 1);
    }
}
