//! JSON documents: reads one key, reads and writes files.
//!
//! In: text, a key; a value, a file. Out: the first string, number or truth; the value, the file.
//! Invariant: a key is searched at any depth, so its name must be unique in the document. A reader
//! of a file sees the old or the new document, never a part.

use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::failure::{Outcome, at};
use crate::run_directory;

/// Replaces a file, and makes its directory.
pub fn write(path: &Path, record: &impl Serialize) -> Outcome {
    let text = serde_json::to_string_pretty(record).map_err(at(path))?;
    run_directory::write(path, &format!("{text}\n"))
}

/// Reads a file.
///
/// # Errors
/// The path is not a regular file; the file is not such a document.
pub fn read<T: DeserializeOwned>(path: &Path) -> Outcome<T> {
    let text = records::file::read(path).map_err(at(path))?;
    serde_json::from_slice(&text).map_err(at(path))
}

/// Returns the JSON value at the begin of a text. A launcher may append standard error to the same
/// line.
pub fn first(text: &str) -> Result<Value, String> {
    let value = serde_json::Deserializer::from_str(text).into_iter().next();
    value
        .unwrap_or_else(|| serde_json::from_str(""))
        .map_err(|error| error.to_string())
}

/// Returns the first string under this key.
pub fn text(document: &str, key: &str) -> Option<String> {
    find(document, key, |value| value.as_str().map(str::to_owned))
}

/// Returns the first number under this key.
pub fn number(document: &str, key: &str) -> Option<f64> {
    find(document, key, Value::as_f64)
}

/// Returns whether a value under this key is `true`.
pub fn is_true(document: &str, key: &str) -> bool {
    find(document, key, |value| {
        value.as_bool().filter(|is_true| *is_true)
    })
    .is_some()
}

fn find<T>(document: &str, key: &str, read: impl Fn(&Value) -> Option<T> + Copy) -> Option<T> {
    fn within<T>(value: &Value, key: &str, read: impl Fn(&Value) -> Option<T> + Copy) -> Option<T> {
        let below: Vec<&Value> = match value {
            Value::Object(entries) => entries.values().collect(),
            Value::Array(elements) => elements.iter().collect(),
            _ => return None,
        };
        let own = value.get(key).and_then(read);
        own.or_else(|| below.into_iter().find_map(|value| within(value, key, read)))
    }
    within(&serde_json::from_str(document).ok()?, key, read)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_found_at_any_depth_and_unescaped() {
        let line =
            r#"{"reason":"executable","built":[{"executable":"/a \"b\"\\c\u0041","fresh":true}]}"#;
        assert_eq!(text(line, "executable").as_deref(), Some(r#"/a "b"\cA"#));
        assert!(is_true(line, "fresh"));
        assert_eq!(
            number(r#"{ "end": {"loss" : -1.5e-3}, "n": 7}"#, "loss"),
            Some(-1.5e-3)
        );
    }

    #[test]
    fn a_value_is_read_whatever_follows_it() {
        assert_eq!(first("{\"a\": [1]}warning: b {").unwrap()["a"][0], 1);
        assert!(first("").unwrap_err().contains("EOF"));
        assert!(first("{\"a\": [1}").is_err());
    }

    #[test]
    fn values_of_another_kind_absent_ones_and_broken_documents_are_none() {
        assert_eq!(text(r#"{"executable":null}"#, "executable"), None);
        assert_eq!(number(r#"{"loss":"high"}"#, "loss"), None);
        assert_eq!(text("{}", "executable"), None);
        assert_eq!(number(r#"{"loss": 1, "#, "loss"), None);
        assert!(!is_true(r#"{"stopped": false}"#, "stopped"));
    }
}
