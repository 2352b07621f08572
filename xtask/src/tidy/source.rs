//! One source file as the rules see it.
//!
//! In: path and text. Out: its lines as written, and its code with comments and texts blanked out.
//! Invariant: both have the same number of lines; a word inside a string or a comment is not code.

use std::ops::Range;

/// A source file.
pub(super) struct Source {
    /// Relative to the workspace, with `/`.
    pub(super) path: String,
    pub(super) lines: Vec<String>,
    /// The lines with blanks for comments and for the inside of strings.
    pub(super) code: Vec<String>,
    /// The line, counted from 0, where the tests at the file's end begin.
    tests_from: usize,
}

impl Source {
    pub(super) fn new(path: &str, text: &str) -> Self {
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let mut code: Vec<String> = blanked(text).lines().map(str::to_owned).collect();
        code.resize(lines.len(), String::new());
        // Tests stand last in a file, so everything from their attribute on is a test.
        let is_test_file = path.contains("/tests/") || path.ends_with("/tests.rs");
        let attribute = code
            .iter()
            .position(|line| line.trim_start().starts_with("#[cfg(test)]"));
        let tests_from = if is_test_file {
            0
        } else {
            attribute.unwrap_or(lines.len())
        };
        Source {
            path: path.to_owned(),
            lines,
            code,
            tests_from,
        }
    }

    pub(super) fn file_name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }

    pub(super) fn is_test(&self, line: usize) -> bool {
        line >= self.tests_from
    }
}

/// Returns the folder name of the member that a path of the workspace belongs to.
pub(super) fn member(path: &str) -> &str {
    let path = path.strip_prefix("lab/").unwrap_or(path);
    path.split('/').next().unwrap_or_default()
}

/// The identifiers of a line of code with what stands before and after each.
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

/// Replaces comments, strings and characters by blanks; line ends stay.
fn blanked(text: &str) -> String {
    let mut characters: Vec<char> = text.chars().collect();
    for range in quiet_ranges(&characters) {
        for c in &mut characters[range] {
            if *c != '\n' {
                *c = ' ';
            }
        }
    }
    characters.into_iter().collect()
}

/// Returns where the comments, strings and characters of Rust code stand.
pub(super) fn quiet_ranges(text: &[char]) -> Vec<Range<usize>> {
    let mut ranges = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let end = end_of_quiet(text, at);
        if end > at {
            ranges.push(at..end);
        }
        at = end.max(at + 1);
    }
    ranges
}

/// The end of the comment, string or character that begins here; here itself if none does.
fn end_of_quiet(text: &[char], at: usize) -> usize {
    let is_word = |c: &char| c.is_alphanumeric() || *c == '_';
    match text[at] {
        '/' if text.get(at + 1) == Some(&'/') => position(text, at, |rest| rest[0] == '\n'),
        '/' if text.get(at + 1) == Some(&'*') => end_of_block_comment(text, at),
        '"' => end_of_string(text, at),
        'r' if at == 0 || !is_word(&text[at - 1]) || text[at - 1] == 'b' => {
            end_of_raw_string(text, at)
        }
        '\'' if text.get(at + 1) == Some(&'\\') => {
            position(text, at + 3, |rest| rest[0] == '\'') + 1
        }
        // A lifetime has no quote after its first letter.
        '\'' if text.get(at + 2) == Some(&'\'') => at + 3,
        _ => at,
    }
    .min(text.len())
}

fn position(text: &[char], from: usize, is_end: impl Fn(&[char]) -> bool) -> usize {
    (from..text.len())
        .find(|at| is_end(&text[*at..]))
        .unwrap_or(text.len())
}

fn end_of_block_comment(text: &[char], start: usize) -> usize {
    let mut depth = 0;
    let mut at = start;
    while at + 1 < text.len() {
        match (text[at], text[at + 1]) {
            ('/', '*') => (depth, at) = (depth + 1, at + 2),
            ('*', '/') => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    text.len()
}

fn end_of_string(text: &[char], start: usize) -> usize {
    let mut at = start + 1;
    while at < text.len() && text[at] != '"' {
        at += if text[at] == '\\' { 2 } else { 1 };
    }
    at + 1
}

fn end_of_raw_string(text: &[char], start: usize) -> usize {
    let hashes = text[start + 1..].iter().take_while(|c| **c == '#').count();
    if text.get(start + 1 + hashes) != Some(&'"') {
        return start;
    }
    let is_end = |rest: &[char]| {
        rest[0] == '"' && rest[1..].iter().take(hashes).filter(|c| **c == '#').count() == hashes
    };
    position(text, start + 2 + hashes, is_end) + 1 + hashes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_texts_are_blanked_and_code_stays() {
        let text = "let a = \"unsafe \\\" x\"; // unsafe\nlet b = /* unsafe /* nested */ */ 1;\n";
        let expected = "let a =              ;          \nlet b =                           1;\n";
        assert_eq!(blanked(text), expected);
    }

    #[test]
    fn raw_strings_end_at_their_own_hashes() {
        assert_eq!(
            blanked("x(r#\"a \" b\"#, br\"c\");"),
            "x(          , b    );"
        );
        assert_eq!(blanked("for r in rows {}"), "for r in rows {}");
    }

    #[test]
    fn characters_are_blanked_and_lifetimes_stay() {
        assert_eq!(
            blanked("f('\"', '\\'', '\\n'); fn g<'a>(x: &'a str)"),
            "f(   ,     ,     ); fn g<'a>(x: &'a str)"
        );
    }

    #[test]
    fn words_know_their_surroundings() {
        let found: Vec<_> = words("crate::mpi::init()").collect();
        assert_eq!(found[1], ("crate::", "mpi", "::init()"));
        assert_eq!(found.len(), 3);
    }

    #[test]
    fn tests_begin_at_their_attribute_or_with_their_file() {
        let source = Source::new(
            "datasets/src/shard.rs",
            "//! Shards.\nfn a() {}\n#[cfg(test)]\nmod tests {}\n",
        );
        assert!(!source.is_test(1) && source.is_test(2));
        assert!(Source::new("datasets/tests/shard.rs", "//! x\n").is_test(0));
        assert!(Source::new("datasets/src/shapes/tests.rs", "//! x\n").is_test(0));
    }
}
