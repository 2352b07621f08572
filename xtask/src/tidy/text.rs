//! One file as the rules see it.
//!
//! In: path and text. Out: the lines as written; for Rust, the code with comments and strings
//! blanked out; the prose, in passages with the lines as a reader sees them.
//! Invariant: code has as many lines as the file. A word in a string or a comment is not code;
//! code, code spans and fenced code are not prose.

use std::ops::Range;

/// A text file.
#[derive(Default)]
pub(super) struct File {
    /// Relative to the workspace, with `/`.
    pub(super) path: String,
    pub(super) lines: Vec<String>,
    /// For Rust, the lines with blanks for comments, strings and characters.
    pub(super) code: Vec<String>,
    pub(super) passages: Vec<Passage>,
    /// The index of the line where the tests at the file's end begin.
    tests_from: usize,
}

/// Consecutive lines of one kind of prose.
#[derive(Debug, PartialEq)]
pub(super) struct Passage {
    pub(super) kind: Kind,
    /// Line numbers, from 1, and their text without comment markers.
    pub(super) lines: Vec<(usize, String)>,
    /// Comment marker, and whether nothing else stands on its line.
    marker: (String, bool),
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Kind {
    /// A doc comment of Rust.
    Doc,
    Comment,
    /// A string literal.
    Text,
    /// A paragraph or heading of a page.
    Paragraph,
    /// A row of a table on a page.
    Row,
}

impl File {
    pub(super) fn new(path: &str, text: &str) -> Self {
        let mut file = File {
            path: path.to_owned(),
            lines: text.lines().map(str::to_owned).collect(),
            ..File::default()
        };
        let mut characters: Vec<char> = text.chars().collect();
        match path.rsplit('.').next().unwrap_or_default() {
            "rs" => {
                let pieces = pieces(&characters, end_of_rust);
                file.passages = passages(&characters, &pieces);
                for c in pieces.iter().flat_map(Clone::clone) {
                    if characters[c] != '\n' {
                        characters[c] = ' ';
                    }
                }
                let code: String = characters.into_iter().collect();
                file.code = code.lines().map(str::to_owned).collect();
                // Tests stand last in a file, so everything from their attribute on is a test.
                let is_test_file = path.contains("/tests/") || path.ends_with("/tests.rs");
                let is_attribute = |line: &String| line.trim_start().starts_with("#[cfg(test)]");
                let attribute = file.code.iter().position(is_attribute);
                file.tests_from = match is_test_file {
                    true => 0,
                    false => attribute.unwrap_or(usize::MAX),
                };
            }
            "md" => file.passages = of_page(text),
            extension => {
                let is_script =
                    ["sh", "py"].contains(&extension) || text.starts_with("#!/usr/bin/env bash");
                if is_script || ["toml", "yml"].contains(&extension) {
                    let pieces = pieces(&characters, end_of_script);
                    file.passages = passages(&characters, &pieces);
                    // Strings of configurations are values.
                    let passages = &mut file.passages;
                    passages.retain(|passage| is_script || passage.kind != Kind::Text);
                }
            }
        }
        file
    }

    pub(super) fn file_name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }

    pub(super) fn is_test(&self, index: usize) -> bool {
        index >= self.tests_from
    }
}

/// Returns the folder name of the member that a path of the workspace belongs to.
pub(super) fn member(path: &str) -> &str {
    let path = path.strip_prefix("lab/").unwrap_or(path);
    path.split('/').next().unwrap_or_default()
}

/// Returns the identifiers of a line of code with what stands before and after each.
pub(super) fn words(code: &str) -> impl Iterator<Item = (&str, &str, &str)> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let mut position = 0;
    std::iter::from_fn(move || {
        let start = position + code[position..].find(is_part)?;
        let end = code[start..]
            .find(|c| !is_part(c))
            .map_or(code.len(), |length| start + length);
        position = end;
        Some((&code[..start], &code[start..end], &code[end..]))
    })
}

/// Returns where the comments, strings and characters stand. `end` returns the end of the piece
/// that begins at an index, or the index if none does.
fn pieces(text: &[char], end: fn(&[char], usize) -> usize) -> Vec<Range<usize>> {
    let mut pieces = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let end = end(text, at).min(text.len());
        if end > at {
            pieces.push(at..end);
        }
        let is_escaped = text[at] == '\\';
        at = end.max(at + if is_escaped { 2 } else { 1 });
    }
    pieces
}

fn end_of_rust(text: &[char], at: usize) -> usize {
    let is_word = |c: &char| c.is_alphanumeric() || *c == '_';
    match (text[at], text.get(at + 1)) {
        ('/', Some('/')) => find(text, at, '\n'),
        ('/', Some('*')) => end_of_block_comment(text, at),
        ('"', _) => end_of_string(text, at, 1),
        ('r', _) if at == 0 || !is_word(&text[at - 1]) || text[at - 1] == 'b' => {
            end_of_raw_string(text, at)
        }
        ('\'', Some('\\')) => find(text, at + 3, '\'') + 1,
        // A lifetime has no quote after its first letter.
        ('\'', _) if text.get(at + 2) == Some(&'\'') => at + 3,
        _ => at,
    }
}

/// Returns the end of a piece in a language whose comments begin with `#`.
fn end_of_script(text: &[char], at: usize) -> usize {
    match text[at] {
        '#' if at == 0 || text[at - 1].is_whitespace() => find(text, at, '\n'),
        quote @ ('"' | '\'') if text[at..].starts_with(&[quote; 3]) => end_of_string(text, at, 3),
        '"' | '\'' => end_of_string(text, at, 1),
        _ => at,
    }
}

/// Returns the place of a character, or the end of the text.
fn find(text: &[char], from: usize, wanted: char) -> usize {
    let length = text.iter().skip(from).position(|c| *c == wanted);
    length.map_or(text.len(), |length| from + length)
}

fn end_of_block_comment(text: &[char], start: usize) -> usize {
    let mut depth = 0;
    let mut at = start;
    while at + 1 < text.len() {
        match (text[at], text[at + 1]) {
            ('/', '*') => depth += 1,
            ('*', '/') => depth -= 1,
            _ => {
                at += 1;
                continue;
            }
        }
        at += 2;
        if depth == 0 {
            return at;
        }
    }
    text.len()
}

/// Returns the end of a string between this many quotes.
fn end_of_string(text: &[char], start: usize, num_quotes: usize) -> usize {
    let quotes = &text[start..start + num_quotes];
    let mut at = start + num_quotes;
    while at < text.len() && !text[at..].starts_with(quotes) {
        at += if text[at] == '\\' { 2 } else { 1 };
    }
    at + num_quotes
}

fn end_of_raw_string(text: &[char], start: usize) -> usize {
    let hashes = text[start + 1..].iter().take_while(|c| **c == '#').count();
    let mut at = start + 1 + hashes;
    if text.get(at) != Some(&'"') {
        return start;
    }
    loop {
        at = find(text, at + 1, '"');
        let after = text.iter().skip(at + 1).take(hashes);
        if at == text.len() || after.filter(|c| **c == '#').count() == hashes {
            return at + 1 + hashes;
        }
    }
}

/// Returns the prose of comments and strings. A comment on the line after a comment of the same
/// kind continues it; a string without a space is a name.
fn passages(text: &[char], pieces: &[Range<usize>]) -> Vec<Passage> {
    let mut passages: Vec<Passage> = Vec::new();
    let mut is_fenced = false;
    let mut line = 1;
    let mut counted = 0;
    for piece in pieces {
        let before = &text[counted..piece.start];
        line += before.iter().filter(|c| **c == '\n').count();
        counted = piece.start;
        let quiet: String = text[piece.clone()].iter().collect();
        if !quiet.starts_with(['/', '#']) {
            passages.extend(of_string(line, &quiet));
            continue;
        }
        // The first line of a script names the interpreter.
        if quiet.starts_with("#!") {
            continue;
        }
        let mut indentation = text[..piece.start].iter().rev().take_while(|c| **c != '\n');
        let is_line = quiet.starts_with("/*") || indentation.all(|c| c.is_whitespace());
        for (index, comment) in quiet.lines().enumerate() {
            let line = line + index;
            let content = comment.trim_start_matches(['/', '!', '#', '*']);
            let marker = comment[..comment.len() - content.len()].to_owned();
            let text = content.trim().trim_end_matches("*/");
            let kind = match marker.as_str() {
                "///" | "//!" => Kind::Doc,
                _ => Kind::Comment,
            };
            let marker = (marker, is_line);
            let continued = passages.last_mut().filter(|last| {
                let end = last.lines.last().map_or(0, |(end, _)| *end);
                last.marker == marker && end + 1 == line && is_line
            });
            is_fenced &= continued.is_some();
            let is_fence = text.starts_with("```");
            is_fenced ^= is_fence;
            // Fenced code keeps its place, so that the comment continues after it.
            let text = if is_fenced || is_fence { "" } else { text };
            let line = (line, text.to_owned());
            match continued {
                Some(last) => last.lines.push(line),
                None => passages.push(Passage {
                    kind,
                    lines: vec![line],
                    marker,
                }),
            }
        }
    }
    passages
}

/// Returns the prose of a string: none for a name or a character.
fn of_string(line: usize, quoted: &str) -> Option<Passage> {
    let text = quoted.trim_start_matches(['r', '#']);
    let text = text.trim_matches(['"', '\'', '#']);
    if !text.contains(' ') || text == " " {
        return None;
    }
    let lines = text.lines().enumerate().map(|(index, text)| {
        let text = text.trim().trim_end_matches('\\').replace("\\n", " ");
        (line + index, text)
    });
    Some(Passage {
        kind: Kind::Text,
        lines: lines.collect(),
        marker: (String::new(), false),
    })
}

fn of_page(text: &str) -> Vec<Passage> {
    let mut passages: Vec<Passage> = Vec::new();
    let mut is_code = false;
    let mut is_paragraph = false;
    for (index, line) in text.lines().enumerate() {
        let text = line.trim();
        let is_fence = text.starts_with("```");
        is_code ^= is_fence;
        if is_code || is_fence || text.is_empty() {
            is_paragraph = false;
            continue;
        }
        let is_row = text.starts_with('|');
        let is_item = ["- ", "* ", "#"]
            .iter()
            .any(|start| text.starts_with(start));
        let line = (index + 1, text.to_owned());
        match passages.last_mut() {
            Some(last) if is_paragraph && !is_row && !is_item => last.lines.push(line),
            _ => passages.push(Passage {
                kind: if is_row { Kind::Row } else { Kind::Paragraph },
                lines: vec![line],
                marker: (String::new(), true),
            }),
        }
        is_paragraph = !is_row && !text.starts_with('#');
    }
    passages
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_strings_and_characters_are_blanked_and_code_stays() {
        for (text, expected) in [
            (
                "let a = \"unsafe \\\" x\"; // unsafe\nlet b = /* unsafe /* nested */ */ 1;",
                "let a =              ;          \nlet b =                           1;",
            ),
            // A raw string ends at its own hashes.
            ("x(r#\"a \" b\"#, br\"c\");", "x(          , b    );"),
            ("for r in rows {}", "for r in rows {}"),
            // A lifetime is code.
            (
                "f('\"', '\\'', '\\n'); fn g<'a>(x: &'a str)",
                "f(   ,     ,     ); fn g<'a>(x: &'a str)",
            ),
        ] {
            assert_eq!(File::new("a/src/b.rs", text).code.join("\n"), expected);
        }
    }

    #[test]
    fn words_know_their_surroundings() {
        let found: Vec<_> = words("crate::mpi::init()").collect();
        assert_eq!(found[1], ("crate::", "mpi", "::init()"));
        assert_eq!(found.len(), 3);
    }

    #[test]
    fn tests_begin_at_their_attribute_or_with_their_file() {
        let source = File::new(
            "datasets/src/shard.rs",
            "//! Shards.\nfn a() {}\n#[cfg(test)]\nmod tests {}\n",
        );
        assert!(!source.is_test(1) && source.is_test(2));
        assert!(File::new("datasets/tests/shard.rs", "//! x\n").is_test(0));
        assert!(File::new("datasets/src/shapes/tests.rs", "//! x\n").is_test(0));
    }

    #[test]
    fn prose_is_comments_strings_with_spaces_paragraphs_and_rows() {
        use Kind::{Comment, Doc, Paragraph, Row, Text};
        for (path, text, expected) in [
            (
                "a/src/b.rs",
                "//! A\n//! b.\n\n/// ```\n/// x();\n/// ```\n/// C\nfn f() { g(\"name\", \"r d \\\n   e\"); } // f\n// g\n",
                &[
                    (Doc, &[(1, "A"), (2, "b.")][..]),
                    (Doc, &[(4, ""), (5, ""), (6, ""), (7, "C")]),
                    (Text, &[(8, "r d "), (9, "e")]),
                    (Comment, &[(9, "f")]),
                    (Comment, &[(10, "g")]),
                ][..],
            ),
            (
                "docs/a.md",
                "# A\nb\nc\n- d\n  e\n\n```\nf\n```\n| g | h |\n",
                &[
                    (Paragraph, &[(1, "# A")]),
                    (Paragraph, &[(2, "b"), (3, "c")]),
                    (Paragraph, &[(4, "- d"), (5, "e")]),
                    (Row, &[(10, "| g | h |")]),
                ],
            ),
            (
                ".ci/run",
                "#!/usr/bin/env bash\n# a\nx='b # c' # d\ny=$#\n",
                &[
                    (Comment, &[(2, "a")]),
                    (Text, &[(3, "b # c")]),
                    (Comment, &[(3, "d")]),
                ],
            ),
            (
                "a.py",
                "\"\"\"It's a.\nB\"\"\"\n",
                &[(Text, &[(1, "It's a."), (2, "B")])],
            ),
            ("a.toml", "a = \"b c\" # c\n", &[(Comment, &[(1, "c")])]),
            ("a.svg", "<svg/>", &[]),
        ] {
            let passages = File::new(path, text).passages;
            let found = passages.iter().map(|passage| {
                let lines = passage.lines.iter();
                let lines: Vec<(usize, &str)> =
                    lines.map(|(line, text)| (*line, text.as_str())).collect();
                (passage.kind, lines)
            });
            let found: Vec<_> = found.collect();
            let found: Vec<_> = found
                .iter()
                .map(|(kind, lines)| (*kind, &lines[..]))
                .collect();
            assert_eq!(found, expected, "{path}");
        }
    }
}
