//! Options in the name of a run.
//!
//! In: decided flags. Out: a short word for each changed option that commonly distinguishes runs.
//! Invariant: options that may change on resume, and options of the machine, are not part of a
//! name.

use super::choices::ModelOption;
use super::error::ConfigError;
use super::resolve::Sections;
use super::{file, options};
use toml::Value;

/// Options in the order of the name, each with a prefix of its value.
const NAMED: [(&str, &str); 8] = [
    ("augment", ""),
    ("global-batch-size", "bs"),
    ("sync", ""),
    ("compress", ""),
    ("optimizer", ""),
    ("learning-rate", "lr"),
    ("weight-decay", "wd"),
    ("dtype", ""),
];

/// Returns words for the options that differ from their defaults, where each default depends on the
/// other options.
pub(super) fn changes(
    sections: &Sections,
    supported: &[ModelOption],
    world_size: usize,
) -> Result<Vec<String>, ConfigError> {
    let decided = file::table(sections)?;
    let mut words = Vec::new();
    for (name, prefix) in NAMED {
        let Some(given) = options::get(&decided, name) else {
            continue;
        };
        let mut cleared = decided.clone();
        file::remove(&mut cleared, &[name]);
        // If the other options contradict each other without this option, they were chosen for it.
        let default = file::section(&cleared)
            .and_then(|args| Sections::decide(args, supported, world_size))
            .and_then(|sections| file::table(&sections));
        if default.is_ok_and(|default| options::get(&default, name) == Some(given)) {
            continue;
        }
        let text = match given {
            Value::String(text) => text.clone(),
            Value::Float(number) => number.to_string(),
            other => other.to_string(),
        };
        words.push(format!("{prefix}{}", word(&text)));
    }
    Ok(words)
}

/// Returns `value` with all letters replaced that are special in file names.
fn word(value: &str) -> String {
    let plain = |letter: char| {
        if letter.is_ascii_alphanumeric() || letter == '.' {
            letter
        } else {
            '-'
        }
    };
    value.chars().map(plain).collect()
}
