//! Options in the name of a run.
//!
//! In: decided flags. Out: a short word for each option that runs are commonly compared by and that
//! is not the default.
//! Invariant: options that may change when a run is resumed, and options of the machine, are no
//! part of a name.

use super::choices::ModelOption;
use super::error::ConfigError;
use super::resolve::Sections;
use super::{file, options};
use toml::Value;

/// The options in the order of the name, and a prefix of their values.
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

/// Returns words for the options that are not what they are by default, the other options being as
/// they are.
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
        // Without the option the others may contradict each other: then they were chosen for it.
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

/// `value` with letters that are plain in the name of a file.
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
