//! The prose of a file: comments, strings, and the text of pages.
//!
//! In: path and text of a file. Out: passages, each with its lines as a reader sees them.
//! Invariant: code, code spans and fenced code are no prose; a passage keeps its line numbers.

use super::source::quiet_ranges;

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

/// Consecutive lines of one kind of prose.
#[derive(Debug, PartialEq)]
pub(super) struct Passage {
    pub(super) kind: Kind,
    /// Line numbers, from 1, and their text without comment markers.
    pub(super) lines: Vec<(usize, String)>,
    /// Comment marker, and whether nothing else stands on its line.
    marker: (String, bool),
}

/// A file with prose in it.
pub(super) struct Prose {
    pub(super) path: String,
    /// The file's lines as written.
    pub(super) lines: Vec<String>,
    pub(super) passages: Vec<Passage>,
}

impl Prose {
    /// Returns the prose of a file; none if the file is of no known language.
    pub(super) fn new(path: &str, text: &str) -> Option<Self> {
        let extension = path.rsplit('.').next().unwrap_or_default();
        let passages = match extension {
            "rs" => of_rust(text),
            "md" => of_page(text),
            "toml" | "yml" => of_script(text, false),
            "sh" | "py" => of_script(text, true),
            _ if text.starts_with("#!/usr/bin/env bash") => of_script(text, true),
            _ => return None,
        };
        Some(Prose {
            path: path.to_owned(),
            lines: text.lines().map(str::to_owned).collect(),
            passages,
        })
    }
}

/// Collects passages; a comment on the line after a comment of the same kind continues it.
#[derive(Default)]
struct Passages {
    passages: Vec<Passage>,
    is_fenced: bool,
}

impl Passages {
    fn push_comment(&mut self, line: usize, comment: &str, is_alone: bool) {
        let marker: String = comment
            .chars()
            .take_while(|c| ['/', '!', '#', '*'].contains(c))
            .collect();
        let text = comment[marker.len()..].trim().trim_end_matches("*/");
        let kind = match marker.as_str() {
            "///" | "//!" => Kind::Doc,
            _ => Kind::Comment,
        };
        let marker = (marker, is_alone);
        let continues = self.passages.last().is_some_and(|last| {
            let end = last.lines.last().map_or(0, |(end, _)| *end);
            last.marker == marker && end + 1 == line && is_alone
        });
        if !continues {
            self.is_fenced = false;
            let lines = Vec::new();
            self.passages.push(Passage {
                kind,
                lines,
                marker,
            });
        }
        let is_fence = text.starts_with("```");
        self.is_fenced ^= is_fence;
        // Fenced code keeps its place, so that the comment continues after it.
        let text = if self.is_fenced || is_fence { "" } else { text };
        if let Some(last) = self.passages.last_mut() {
            last.lines.push((line, text.to_owned()));
        }
    }

    /// Adds a string; one without a space is a name rather than prose.
    fn push_text(&mut self, line: usize, text: &str) {
        if !text.contains(' ') {
            return;
        }
        let lines = text.lines().enumerate().map(|(index, text)| {
            let text = text.trim().trim_end_matches('\\').replace("\\n", " ");
            (line + index, text)
        });
        self.passages.push(Passage {
            kind: Kind::Text,
            lines: lines.collect(),
            marker: (String::new(), false),
        });
    }
}

fn of_rust(text: &str) -> Vec<Passage> {
    let characters: Vec<char> = text.chars().collect();
    let mut passages = Passages::default();
    let mut line = 1;
    let mut counted = 0;
    for range in quiet_ranges(&characters) {
        let before = &characters[counted..range.start];
        line += before.iter().filter(|c| **c == '\n').count();
        counted = range.start;
        let quiet: String = characters[range.clone()].iter().collect();
        if quiet.starts_with("//") {
            let is_alone = is_line_start(&characters, range.start);
            passages.push_comment(line, &quiet, is_alone);
        } else if quiet.starts_with("/*") {
            for (index, comment) in quiet.lines().enumerate() {
                passages.push_comment(line + index, comment, true);
            }
        } else if !quiet.starts_with('\'') {
            let text = quiet.trim_start_matches(['b', 'r', '#', '"']);
            passages.push_text(line, text.trim_end_matches(['#', '"']));
        }
    }
    passages.passages
}

fn is_line_start(text: &[char], at: usize) -> bool {
    let before = text[..at].iter().rev().take_while(|c| **c != '\n');
    before.clone().all(|c| c.is_whitespace())
}

/// Comments of a language in which they begin with `#`, and its strings if wanted.
fn of_script(text: &str, with_strings: bool) -> Vec<Passage> {
    let characters: Vec<char> = text.chars().collect();
    let mut passages = Passages::default();
    let mut line = 1;
    let mut at = 0;
    while at < characters.len() {
        let rest = &characters[at..];
        let is_after_space = at == 0 || characters[at - 1].is_whitespace();
        let end = match rest[0] {
            '#' if is_after_space => {
                let length = rest.iter().position(|c| *c == '\n').unwrap_or(rest.len());
                let comment: String = rest[..length].iter().collect();
                // The first line names the interpreter.
                if !comment.starts_with("#!") {
                    passages.push_comment(line, &comment, is_line_start(&characters, at));
                }
                at + length
            }
            '\\' => at + 2,
            '"' | '\'' => {
                let end = end_of_script_string(&characters, at);
                if with_strings {
                    let text: String = characters[at..end].iter().collect();
                    passages.push_text(line, text.trim_matches(['"', '\'']));
                }
                end
            }
            _ => at + 1,
        }
        .min(characters.len());
        line += characters[at..end].iter().filter(|c| **c == '\n').count();
        at = end;
    }
    passages.passages
}

fn end_of_script_string(text: &[char], start: usize) -> usize {
    let quote = text[start];
    let is_triple = text[start..]
        .iter()
        .take(3)
        .filter(|c| **c == quote)
        .count()
        == 3;
    let length = if is_triple { 3 } else { 1 };
    let mut at = start + length;
    while at < text.len() {
        let quotes = text[at..].iter().take(length).take_while(|c| **c == quote);
        if quotes.count() == length {
            return at + length;
        }
        at += if text[at] == '\\' { 2 } else { 1 };
    }
    text.len()
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
        let kind = if is_row { Kind::Row } else { Kind::Paragraph };
        let line = (index + 1, text.to_owned());
        match passages.last_mut() {
            Some(last) if is_paragraph && !is_row && !is_item => last.lines.push(line),
            _ => passages.push(Passage {
                kind,
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

    fn passages(path: &str, text: &str) -> Vec<(Kind, Vec<(usize, String)>)> {
        let prose = Prose::new(path, text).unwrap();
        let parts = prose.passages.into_iter();
        parts.map(|part| (part.kind, part.lines)).collect()
    }

    fn lines(kind: Kind, lines: &[(usize, &str)]) -> (Kind, Vec<(usize, String)>) {
        let lines = lines.iter().map(|(line, text)| (*line, (*text).to_owned()));
        (kind, lines.collect())
    }

    #[test]
    fn the_prose_of_rust_is_comments_and_strings_with_spaces() {
        let text = "//! A\n//! b.\n\n/// ```\n/// x();\n/// ```\n/// C\nfn f() { g(\"name\", \"d \\\n   e\"); } // f\n// g\n";
        let expected = [
            lines(Kind::Doc, &[(1, "A"), (2, "b.")]),
            lines(Kind::Doc, &[(4, ""), (5, ""), (6, ""), (7, "C")]),
            lines(Kind::Text, &[(8, "d "), (9, "e")]),
            lines(Kind::Comment, &[(9, "f")]),
            lines(Kind::Comment, &[(10, "g")]),
        ];
        assert_eq!(passages("a/src/b.rs", text), expected);
    }

    #[test]
    fn the_prose_of_a_page_is_paragraphs_items_and_rows() {
        let text = "# A\nb\nc\n- d\n  e\n\n```\nf\n```\n| g | h |\n";
        let expected = [
            lines(Kind::Paragraph, &[(1, "# A")]),
            lines(Kind::Paragraph, &[(2, "b"), (3, "c")]),
            lines(Kind::Paragraph, &[(4, "- d"), (5, "e")]),
            lines(Kind::Row, &[(10, "| g | h |")]),
        ];
        assert_eq!(passages("docs/a.md", text), expected);
    }

    #[test]
    fn the_prose_of_scripts_is_comments_and_strings_and_that_of_toml_comments() {
        let text = "#!/usr/bin/env bash\n# a\nx='b # c' # d\ny=$#\n";
        let expected = [
            lines(Kind::Comment, &[(2, "a")]),
            lines(Kind::Text, &[(3, "b # c")]),
            lines(Kind::Comment, &[(3, "d")]),
        ];
        assert_eq!(passages(".ci/run", text), expected);
        let doc = lines(Kind::Text, &[(1, "It's a."), (2, "B")]);
        assert_eq!(passages("a.py", "\"\"\"It's a.\nB\"\"\"\n"), [doc]);
        let comment = lines(Kind::Comment, &[(1, "c")]);
        assert_eq!(passages("a.toml", "a = \"b c\" # c\n"), [comment]);
        assert!(Prose::new("a.svg", "<svg/>").is_none());
    }
}
