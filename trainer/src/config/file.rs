//! A run's options in a TOML file, overridden by flags.
//!
//! In: TOML text, flags. Out: one [`TrainArgs`].
//! Invariant: a flag overrides the file. If a flag changes a choice, options of the file that only
//! apply to the old choice are dropped.

use super::error::ConfigError;
use super::options::{DEPENDENT, Dependent, get};
use crate::config::DatasetKind;
use crate::config::cli::TrainArgs;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Display;
use std::fs;
use std::path::Path;
use toml::{Table, Value};

/// Options about the files of one data set, which do not apply to another data set of the same
/// kind.
const OF_ONE_PLACE: [&str; 2] = ["data-dir", "on-bad-image"];

/// Reads the options of a file.
pub(super) fn read(path: &Path) -> Result<TrainArgs, ConfigError> {
    let origin = path.display();
    let text = fs::read_to_string(path).map_err(|error| {
        ConfigError(format!(
            "cannot read the configuration file {origin}: {error}"
        ))
    })?;
    if text.trim().is_empty() {
        // A full disk leaves an empty file, which holds no options of a run.
        let problem = "expected options, got an empty file; write one with `trainer config --output-dir DIR > FILE`";
        return Err(syntax(origin, problem));
    }
    parse(&text, origin)
}

/// Reads the options of a text; `origin` names it in errors.
pub(super) fn parse(text: &str, origin: impl Display) -> Result<TrainArgs, ConfigError> {
    toml::from_str(text).map_err(|error| syntax(origin, error))
}

/// Returns the error for a text that is not TOML, or has unknown keys or values.
pub(super) fn syntax(origin: impl Display, problem: impl Display) -> ConfigError {
    let problem = problem.to_string();
    ConfigError(format!(
        "{origin}: {}\n`trainer config` prints every key in its section",
        problem.trim_end()
    ))
}

/// Returns options by section and key. Rejects values that TOML cannot hold: numbers from 2^63 on,
/// since its integers are signed, and paths that are not UTF-8.
pub(super) fn table(flags: &impl Serialize) -> Result<Table, ConfigError> {
    Table::try_from(flags).map_err(|error| {
        let most = i64::MAX;
        let expected = format!("expected paths in UTF-8 and numbers up to {most}: {error}");
        syntax("options", expected)
    })
}

/// Converts filled flags, or options by section and key, to `T`.
pub(super) fn section<T: DeserializeOwned>(flags: &impl Serialize) -> Result<T, ConfigError> {
    let read = table(flags)?.try_into();
    read.map_err(|error: toml::de::Error| syntax("options", error))
}

/// Removes flags from all sections.
pub(super) fn remove(table: &mut Table, names: &[&str]) {
    for (_, keys) in table {
        if let Value::Table(keys) = keys {
            keys.retain(|name, _| !names.contains(&name));
        }
    }
}

/// Returns the options of a file, overridden by the flags.
pub(super) fn merged(file: &TrainArgs, flags: &TrainArgs) -> Result<TrainArgs, ConfigError> {
    let mut args: TrainArgs = laid_over(file, flags)?;
    args.resume = flags.resume;
    args.recipe = flags.recipe;
    Ok(args)
}

/// Returns `below`, overridden by `flags`, as `T`. Both have the same sections.
pub(super) fn laid_over<T: DeserializeOwned>(
    below: &impl Serialize,
    flags: &impl Serialize,
) -> Result<T, ConfigError> {
    let mut below = table(below)?;
    let flags = table(flags)?;
    let kinds = [&below, &flags].map(|table| {
        get(table, "dataset").and_then(|kind| kind.clone().try_into::<DatasetKind>().ok())
    });
    // Data sets of files of any size share their options, in whatever form the files are stored.
    let is_alike = kinds
        .iter()
        .all(|kind| kind.is_some_and(DatasetKind::is_of_files));
    // Only the family knows the dependencies between flags of a custom model.
    let is_custom = get(&below, "family").is_some();
    let changes = |choice: &str| {
        let typed = get(&flags, choice);
        typed.is_some() && typed != get(&below, choice)
    };
    let mut dropped: Vec<&str> = Vec::new();
    for Dependent { names, on, .. } in DEPENDENT {
        for choice in on.iter().filter(|choice| changes(choice)) {
            dropped.extend(names.iter().filter(|name| match *choice {
                "dataset" => !is_alike || OF_ONE_PLACE.contains(name),
                "model" | "depth" => !is_custom,
                _ => true,
            }));
        }
    }
    if get(&flags, "warmup-epochs").and_then(Value::as_float) == Some(0.0) {
        dropped.push("warmup-start-factor");
    }
    remove(&mut below, &dropped);
    for (section, keys) in flags {
        let target = below
            .entry(section)
            .or_insert_with(|| Value::Table(Table::new()));
        if let (Value::Table(target), Value::Table(keys)) = (target, keys) {
            target.extend(keys);
        }
    }
    section(&below)
}
