//! A study file as it was written, understood but not yet multiplied out.
//!
//! In: TOML text, changes from the command line. Out: [`StudyFile`].
//! Invariant: unknown keys are refused; what is a flag of the trainer's is not judged here.

use std::collections::BTreeMap;

use toml::{Table, Value};

use super::keys::{Keys, shown};
use crate::failure::{Failure, Outcome};

/// What a cell runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Bench,
    Train,
    Netbench,
}

impl Kind {
    const ALL: [Kind; 3] = [Kind::Bench, Kind::Train, Kind::Netbench];

    /// The command of the trainer.
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Bench => "bench",
            Kind::Train => "train",
            Kind::Netbench => "netbench",
        }
    }
}

/// What stays the same when ranks are added.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Scaling {
    /// The batch of each rank.
    Weak,
    /// The batch of all ranks together.
    Strong,
    None,
}

impl Scaling {
    pub(super) fn name(self) -> &'static str {
        match self {
            Scaling::Weak => "weak",
            Scaling::Strong => "strong",
            Scaling::None => "none",
        }
    }
}

/// How a step's profile is taken for the predictions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Profile {
    /// On as many cores at once as the predicted runs use, so that shared memory bandwidth counts.
    Together,
    Alone,
}

/// One `[[matrix]]`.
#[derive(Clone, Debug)]
pub(super) struct Matrix {
    /// The file and the place in it.
    pub(super) place: String,
    pub(super) kind: Kind,
    pub(super) scaling: Scaling,
    pub(super) repetitions: Option<usize>,
    /// Keys with one value or a list of them.
    pub(super) axes: Table,
    /// Points left out: all keys of one of these tables hold.
    pub(super) skip: Vec<Table>,
    /// Where all keys of the first hold, those of the second are set.
    pub(super) overrides: Vec<(Table, Table)>,
}

/// A whole study file.
#[derive(Clone, Debug)]
pub(super) struct StudyFile {
    /// As the user wrote it on the command line.
    pub(super) path: String,
    pub(super) text: String,
    pub(super) name: String,
    pub(super) title: String,
    pub(super) about: String,
    pub(super) repetitions: usize,
    /// How often a repetition is tried that others disturb, or that fails.
    pub(super) attempts: usize,
    /// What others may take of the processors, in cores.
    pub(super) quiet_cores: f64,
    /// How long a run waits for a quiet machine before it starts all the same, seconds.
    pub(super) quiet_patience_s: usize,
    /// Longest that one run may take, seconds.
    pub(super) limit_s: usize,
    pub(super) target_accuracy: Option<f64>,
    /// Flags of all cells of a kind.
    pub(super) flags: BTreeMap<Kind, Table>,
    /// Flags of `cargo xtask slurm submit`.
    pub(super) slurm: Table,
    pub(super) profile: Option<Profile>,
    pub(super) matrices: Vec<Matrix>,
}

impl StudyFile {
    /// Reads the text; `changes` are the key and value pairs of `--set`.
    pub(super) fn read(path: &str, text: &str, changes: &Table) -> Outcome<Self> {
        let mut table: Table =
            text.parse().map_err(|error| Failure::Usage(format!("{path}: not TOML: {}", in_one_line(&error))))?;
        for (key, value) in changes {
            change(&mut table, key, value);
        }
        let mut keys = Keys::new(path, table);
        let name = keys.required_text("name")?;
        if !name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)) || name.starts_with('.') {
            return Err(keys.refusal("name", &format!("expected letters, digits, `-`, `_` and `.`, got `{name}`")));
        }
        let file = StudyFile {
            path: path.to_owned(),
            text: text.to_owned(),
            title: keys.required_text("title")?,
            about: keys.required_text("about")?,
            repetitions: keys.count("repetitions")?.unwrap_or(3),
            attempts: keys.count("attempts")?.unwrap_or(3),
            quiet_cores: keys.number("quiet_cores")?.unwrap_or(0.2),
            quiet_patience_s: keys.count("quiet_patience_s")?.unwrap_or(120),
            limit_s: keys.count("limit_s")?.unwrap_or(3600),
            target_accuracy: keys.number("target_accuracy")?,
            flags: flags(path, &mut keys)?,
            slurm: keys.table("slurm")?.unwrap_or_default(),
            profile: profile(path, keys.table("predict")?)?,
            matrices: matrices(path, keys.tables("matrix")?)?,
            name,
        };
        if file.matrices.is_empty() {
            return Err(keys.refusal("matrix", "expected at least one, got none: write a table [[matrix]]"));
        }
        keys.end()?;
        Ok(file)
    }
}

/// Where the toml crate shows lines of the text, one line.
fn in_one_line(error: &toml::de::Error) -> String {
    let shown = error.to_string();
    let place = shown.lines().next().unwrap_or_default().to_owned();
    format!("{place}: {}", error.message())
}

/// `[base]` for the two kinds that compute, and each kind's own table over it.
fn flags(path: &str, keys: &mut Keys) -> Outcome<BTreeMap<Kind, Table>> {
    let shared = keys.table("base")?.unwrap_or_default();
    let mut flags = BTreeMap::new();
    for kind in Kind::ALL {
        let mut table = if kind == Kind::Netbench { Table::new() } else { shared.clone() };
        table.extend(keys.table(kind.name())?.unwrap_or_default());
        if let Some((key, value)) = table.iter().find(|(_, value)| value.is_array() || value.is_table()) {
            return Err(Failure::Usage(format!(
                "{path}: {key}: expected one value outside [[matrix]], got {}: move the list into a [[matrix]]",
                shown(value)
            )));
        }
        flags.insert(kind, with_underscores(table));
    }
    Ok(flags)
}

fn profile(path: &str, table: Option<Table>) -> Outcome<Option<Profile>> {
    let Some(table) = table else { return Ok(None) };
    let mut keys = Keys::new(format!("{path}: [predict]"), table);
    let word = keys.choice("profile", &["together", "alone"])?;
    keys.end()?;
    Ok(Some(if word.as_deref() == Some("alone") { Profile::Alone } else { Profile::Together }))
}

fn matrices(path: &str, tables: Vec<Table>) -> Outcome<Vec<Matrix>> {
    tables
        .into_iter()
        .enumerate()
        .map(|(index, table)| matrix(format!("{path}: [[matrix]] {}", index + 1), table))
        .collect()
}

fn matrix(place: String, table: Table) -> Outcome<Matrix> {
    let mut keys = Keys::new(&place, table);
    let kinds = Kind::ALL.map(Kind::name);
    let kind = keys.choice("kind", &kinds)?.unwrap_or_else(|| "bench".to_owned());
    let scaling = match keys.choice("scaling", &["weak", "strong", "none"])?.as_deref() {
        Some("weak") => Scaling::Weak,
        Some("strong") => Scaling::Strong,
        _ => Scaling::None,
    };
    let mut overrides = Vec::new();
    for table in keys.tables("overrides")? {
        let mut own = Keys::new(format!("{place}: overrides"), table);
        let (when, set) = (own.table("when")?, own.table("set")?);
        let (Some(when), Some(set)) = (when, set) else {
            return Err(own.refusal("when, set", "expected both tables: write { when = { ranks = 2 }, set = { … } }"));
        };
        own.end()?;
        overrides.push((with_underscores(when), with_underscores(set)));
    }
    Ok(Matrix {
        kind: Kind::ALL.into_iter().find(|known| known.name() == kind).unwrap_or(Kind::Bench),
        scaling,
        repetitions: keys.count("repetitions")?,
        skip: keys.tables("skip")?.into_iter().map(with_underscores).collect(),
        overrides,
        axes: with_underscores(keys.rest()),
        place,
    })
}

/// Flags are written with dashes or underscores.
pub(super) fn with_underscores(table: Table) -> Table {
    let renamed = |value: Value| match value {
        Value::Table(table) => Value::Table(with_underscores(table)),
        Value::Array(values) => Value::Array(
            values
                .into_iter()
                .map(|value| match value {
                    Value::Table(table) => Value::Table(with_underscores(table)),
                    value => value,
                })
                .collect(),
        ),
        value => value,
    };
    table.into_iter().map(|(key, value)| (key.replace('-', "_"), renamed(value))).collect()
}

/// Keys of the file itself, which `--set` changes there.
const OF_THE_FILE: [&str; 9] = [
    "name",
    "title",
    "about",
    "repetitions",
    "attempts",
    "quiet_cores",
    "quiet_patience_s",
    "limit_s",
    "target_accuracy",
];

/// Puts the value wherever the key stands, or among the flags of all cells.
fn change(table: &mut Table, key: &str, value: &Value) {
    let is_key = |candidate: &str| candidate.replace('-', "_") == key.replace('-', "_");
    let place = |table: &mut Table| -> bool {
        let found = table.keys().find(|candidate| is_key(candidate)).cloned();
        found.is_some_and(|found| table.insert(found, value.clone()).is_some())
    };
    if OF_THE_FILE.iter().any(|own| is_key(own)) {
        table.insert(key.replace('-', "_"), value.clone());
        return;
    }
    let mut has_placed = false;
    for (name, below) in table.iter_mut() {
        match below {
            Value::Table(below) if ["base", "bench", "train", "netbench", "slurm"].contains(&name.as_str()) => {
                has_placed |= place(below);
            }
            Value::Array(all) if name == "matrix" => {
                for matrix in all.iter_mut().filter_map(Value::as_table_mut) {
                    has_placed |= place(matrix);
                }
            }
            _ => {}
        }
    }
    if !has_placed && let Value::Table(shared) = table.entry("base").or_insert_with(|| Value::Table(Table::new())) {
        shared.insert(key.to_owned(), value.clone());
    }
}

/// Reads `key=value,key=value`; a value that is no TOML is a text, a comma inside brackets or quotes does not separate.
pub(super) fn changes(text: Option<&str>) -> Outcome<Table> {
    let mut table = Table::new();
    for pair in text.map(separated).unwrap_or_default() {
        let (key, value) = pair.split_once('=').filter(|(key, _)| !key.trim().is_empty()).ok_or_else(|| {
            Failure::Usage(format!("--set: expected KEY=VALUE, several by commas, got `{pair}`: write --set steps=5"))
        })?;
        let read: Option<Value> =
            format!("value = {value}").parse::<Table>().ok().and_then(|mut table| table.remove("value"));
        let value = read.unwrap_or_else(|| Value::String(value.to_owned()));
        if table.insert(key.trim().to_owned(), value).is_some() {
            return Err(Failure::Usage(format!("--set: {key} is given twice: keep one")));
        }
    }
    Ok(table)
}

fn separated(text: &str) -> Vec<String> {
    let (mut parts, mut depth, mut is_quoted) = (vec![String::new()], 0, false);
    for c in text.chars() {
        match c {
            '"' => is_quoted = !is_quoted,
            '[' | '{' if !is_quoted => depth += 1,
            ']' | '}' if !is_quoted => depth -= 1,
            _ => {}
        }
        if c == ',' && depth == 0 && !is_quoted {
            parts.push(String::new());
        } else if let Some(part) = parts.last_mut() {
            part.push(c);
        }
    }
    parts
}

#[cfg(test)]
mod tests;
