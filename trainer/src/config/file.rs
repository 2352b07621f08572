//! A run's options in a TOML file, and flags laid over them.
//!
//! In: TOML text, flags. Out: one [`TrainArgs`]. Invariant: a flag wins; where a flag changes a
//! choice, the file's options that only served the old choice go with it, so that the flag can win
//! at all.

use super::error::ConfigError;
use super::options::{OPTIONS, OptionFacts};
use super::resolve::Sections;
use crate::config::DatasetKind;
use crate::config::cli::TrainArgs;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::error::Error;
use std::fs;
use std::path::Path;
use toml::{Table, Value};

/// The option that names the data set.
const DATASET: &str = "data.dataset";

/// Options of files that say nothing of others of the same kind.
const OF_ONE_PLACE: [&str; 2] = ["data.data-dir", "data.on-bad-image"];

/// Reads the options of a file.
pub(super) fn read(path: &Path) -> Result<TrainArgs, ConfigError> {
    let text = fs::read_to_string(path).map_err(|reason| ConfigError::Read {
        path: path.to_owned(),
        reason,
    })?;
    if text.trim().is_empty() {
        // As a full disk leaves it: not the options of any run.
        let problem = "expected options, got an empty file; write one with `trainer config --output-dir DIR > FILE`";
        return Err(ConfigError::Syntax {
            origin: path.display().to_string(),
            problem: problem.to_owned(),
        });
    }
    parse(&text, &path.display().to_string())
}

/// Reads the options of a text; `origin` names it in errors.
pub(super) fn parse(text: &str, origin: &str) -> Result<TrainArgs, ConfigError> {
    toml::from_str(text).map_err(|error| ConfigError::Syntax {
        origin: origin.to_owned(),
        problem: error.to_string(),
    })
}

/// Returns decided sections as flags.
pub(super) fn args(sections: &Sections) -> Result<TrainArgs, ConfigError> {
    table(sections)?
        .try_into()
        .map_err(|error: toml::de::Error| merge_error(&error))
}

fn merge_error(error: &dyn Error) -> ConfigError {
    ConfigError::Syntax {
        origin: "merged options".to_owned(),
        problem: error.to_string(),
    }
}

/// Returns options by section and key. Refuses what TOML cannot hold: numbers from 2^63 on, since
/// its integers are signed, and paths that are not UTF-8.
pub(super) fn table(flags: &impl Serialize) -> Result<Table, ConfigError> {
    Table::try_from(flags).map_err(|error| {
        let problem = format!(
            "expected paths in UTF-8 and numbers up to {}: {error}",
            i64::MAX
        );
        ConfigError::Syntax {
            origin: "options".to_owned(),
            problem,
        }
    })
}

/// The flags laid over the file's options.
pub(super) fn merged(file: &TrainArgs, flags: &TrainArgs) -> Result<TrainArgs, ConfigError> {
    let mut args: TrainArgs = laid_over(file, flags)?;
    args.resume = flags.resume;
    args.recipe = flags.recipe;
    Ok(args)
}

/// `flags` over `below`, both made of the same sections, read as `T`.
pub(super) fn laid_over<T: DeserializeOwned>(
    below: &impl Serialize,
    flags: &impl Serialize,
) -> Result<T, ConfigError> {
    let mut below = table(below)?;
    let flags = table(flags)?;
    // The rows of the model are those of residual networks; what the flags of another family mean
    // to each other only it knows.
    let is_own = get(&below, "model.family").is_some();
    let rows = || {
        OPTIONS
            .iter()
            .filter(|option| !(is_own && option.key.starts_with("model.")))
    };
    let changes: Vec<&str> = OPTIONS
        .iter()
        .map(|option| option.key)
        .filter(|key| get(&flags, key).is_some_and(|typed| get(&below, key) != Some(typed)))
        .collect();
    let kinds = [&below, &flags].map(|table| {
        get(table, DATASET).and_then(|kind| kind.clone().try_into::<DatasetKind>().ok())
    });
    // Files of any size are looked at alike wherever they lie.
    let is_alike = kinds
        .iter()
        .all(|kind| kind.is_some_and(DatasetKind::is_of_files));
    let goes = |option: &&OptionFacts| {
        let mut choices = option
            .belongs_to
            .iter()
            .filter(|choice| changes.contains(choice));
        choices.any(|choice| !is_alike || *choice != DATASET || OF_ONE_PLACE.contains(&option.key))
    };
    for option in rows().filter(goes) {
        remove(&mut below, option.key);
    }
    if get(&flags, "schedule.warmup-epochs").and_then(Value::as_float) == Some(0.0) {
        remove(&mut below, "schedule.warmup-start-factor");
    }
    for (section, keys) in flags {
        let target = below
            .entry(section)
            .or_insert_with(|| Value::Table(Table::new()));
        if let (Value::Table(target), Value::Table(keys)) = (target, keys) {
            target.extend(keys);
        }
    }
    Value::Table(below)
        .try_into()
        .map_err(|error: toml::de::Error| merge_error(&error))
}

pub(super) fn get<'a>(table: &'a Table, path: &str) -> Option<&'a Value> {
    let (section, key) = path.split_once('.')?;
    table.get(section)?.get(key)
}

fn remove(table: &mut Table, path: &str) {
    if let Some((section, key)) = path.split_once('.')
        && let Some(Value::Table(keys)) = table.get_mut(section)
    {
        keys.remove(key);
    }
}
