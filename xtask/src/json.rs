//! Just enough JSON: the value of one key in one line or file that a program of ours wrote.
//!
//! In: text, a key. Out: its first string, number or truth.
//! Invariant: keys are looked up by name at any depth, so this is only for documents where the name is unique.

/// The first string under this key, unescaped.
pub(crate) fn text(document: &str, key: &str) -> Option<String> {
    let mut characters = value(document, key)?.strip_prefix('"')?.chars();
    let mut text = String::new();
    loop {
        match characters.next()? {
            '"' => return Some(text),
            '\\' => match characters.next()? {
                'n' => text.push('\n'),
                't' => text.push('\t'),
                'u' => {
                    let digits: String = characters.by_ref().take(4).collect();
                    text.push(char::from_u32(u32::from_str_radix(&digits, 16).ok()?)?);
                }
                other => text.push(other),
            },
            plain => text.push(plain),
        }
    }
}

/// The first number under this key.
pub(crate) fn number(document: &str, key: &str) -> Option<f64> {
    let value = value(document, key)?;
    let end = value.find(|c: char| !(c.is_ascii_digit() || "+-.eE".contains(c))).unwrap_or(value.len());
    value[..end].parse().ok()
}

/// Whether the first value under this key is `true`.
pub(crate) fn is_true(document: &str, key: &str) -> bool {
    value(document, key).is_some_and(|value| value.starts_with("true"))
}

/// What stands after `"key":`.
fn value<'a>(document: &'a str, key: &str) -> Option<&'a str> {
    let quoted = format!("\"{key}\"");
    let mut rest = document;
    loop {
        rest = &rest[rest.find(&quoted)? + quoted.len()..];
        // The same word may also occur as a value; a key is followed by a colon.
        if let Some(value) = rest.trim_start().strip_prefix(':') {
            return Some(value.trim_start());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_string_is_found_and_unescaped() {
        let line = r#"{"reason":"executable","executable":"/a \"b\"\\c\u0041","fresh":true}"#;
        assert_eq!(text(line, "executable").as_deref(), Some(r#"/a "b"\cA"#));
    }

    #[test]
    fn null_and_absent_values_are_none() {
        assert_eq!(text(r#"{"executable":null}"#, "executable"), None);
        assert_eq!(text("{}", "executable"), None);
        assert_eq!(number(r#"{"loss":"high"}"#, "loss"), None);
    }

    #[test]
    fn only_true_is_true() {
        assert!(is_true("{\"stopped\": true}", "stopped"));
        assert!(!is_true("{\"stopped\": false}", "stopped"));
        assert!(!is_true("{}", "stopped"));
    }

    #[test]
    fn numbers_are_read_in_every_notation() {
        assert_eq!(number(r#"{ "loss" : -1.5e-3, "n": 7}"#, "loss"), Some(-1.5e-3));
        assert_eq!(number(r#"{"n":7}"#, "n"), Some(7.0));
    }
}
