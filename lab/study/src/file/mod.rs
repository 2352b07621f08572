//! A study file as it was written, understood but not yet multiplied out.
//!
//! In: TOML text, changes from the command line. Out: [`StudyFile`].
//! Invariant: unknown keys are refused; what is a flag of the trainer's is not judged here.

use std::collections::BTreeMap;

use toml::{Table, Value};

use super::changes;
use super::comparisons::Comparison;
use super::keys::{Keys, shown};
use cluster::failure::{Failure, Outcome};

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
    /// What is otherwise than in the text.
    pub(super) changes: Table,
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
    /// Flags of `trainer slurm submit`.
    pub(super) slurm: Table,
    pub(super) profile: Option<Profile>,
    pub(super) matrices: Vec<Matrix>,
    pub(super) comparisons: Vec<Comparison>,
}

impl StudyFile {
    /// Reads the text; `changes` are the key and value pairs of `--set`.
    pub(super) fn read(path: &str, text: &str, changes: &Table) -> Outcome<Self> {
        let mut table: Table = text.parse().map_err(|error| {
            Failure::Usage(format!("{path}: not TOML: {}", in_one_line(&error)))
        })?;
        for (key, value) in changes {
            changes::apply(&mut table, key, value);
        }
        let mut keys = Keys::new(path, table);
        let name = keys.required_text("name")?;
        if !name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
            || name.starts_with('.')
        {
            return Err(keys.refusal(
                "name",
                &format!("expected letters, digits, `-`, `_` and `.`, got `{name}`"),
            ));
        }
        let file = StudyFile {
            path: path.to_owned(),
            text: text.to_owned(),
            changes: changes.clone(),
            title: keys.required_text("title")?,
            about: keys.required_text("about")?,
            repetitions: keys.count("repetitions")?.unwrap_or(3),
            attempts: keys.count("attempts")?.unwrap_or(3),
            quiet_cores: keys.number("quiet_cores")?.unwrap_or(0.2),
            quiet_patience_s: keys.count("quiet_patience_s")?.unwrap_or(120),
            limit_s: keys.count("limit_s")?.unwrap_or(3600),
            target_accuracy: keys.share("target_accuracy")?,
            flags: flags(path, &mut keys)?,
            slurm: keys.table("slurm")?.unwrap_or_default(),
            profile: profile(path, keys.table("predict")?)?,
            matrices: matrices(path, keys.tables("matrix")?)?,
            comparisons: Comparison::all(path, keys.table("compare")?)?,
            name,
        };
        if file.matrices.is_empty() {
            return Err(keys.refusal(
                "matrix",
                "expected at least one, got none: write a table [[matrix]]",
            ));
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
        let mut table = if kind == Kind::Netbench {
            Table::new()
        } else {
            shared.clone()
        };
        table.extend(keys.table(kind.name())?.unwrap_or_default());
        if let Some((key, value)) = table
            .iter()
            .find(|(_, value)| value.is_array() || value.is_table())
        {
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
    Ok(Some(if word.as_deref() == Some("alone") {
        Profile::Alone
    } else {
        Profile::Together
    }))
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
    let kind = keys
        .choice("kind", &kinds)?
        .unwrap_or_else(|| "bench".to_owned());
    let scaling = match keys
        .choice("scaling", &["weak", "strong", "none"])?
        .as_deref()
    {
        Some("weak") => Scaling::Weak,
        Some("strong") => Scaling::Strong,
        _ => Scaling::None,
    };
    let mut overrides = Vec::new();
    for table in keys.tables("overrides")? {
        let mut own = Keys::new(format!("{place}: overrides"), table);
        let (when, set) = (own.table("when")?, own.table("set")?);
        let (Some(when), Some(set)) = (when, set) else {
            return Err(own.refusal(
                "when, set",
                "expected both tables: write { when = { ranks = 2 }, set = { … } }",
            ));
        };
        own.end()?;
        overrides.push((with_underscores(when), with_underscores(set)));
    }
    Ok(Matrix {
        kind: Kind::ALL
            .into_iter()
            .find(|known| known.name() == kind)
            .unwrap_or(Kind::Bench),
        scaling,
        repetitions: keys.count("repetitions")?,
        skip: keys
            .tables("skip")?
            .into_iter()
            .map(with_underscores)
            .collect(),
        overrides,
        axes: with_underscores(keys.rest()),
        place,
    })
}

/// Flags are written with dashes or underscores.
pub(super) fn with_underscores(table: Table) -> Table {
    fn renamed(value: Value) -> Value {
        match value {
            Value::Table(table) => Value::Table(with_underscores(table)),
            Value::Array(values) => Value::Array(values.into_iter().map(renamed).collect()),
            value => value,
        }
    }
    table
        .into_iter()
        .map(|(key, value)| (key.replace('-', "_"), renamed(value)))
        .collect()
}

#[cfg(test)]
mod tests;
