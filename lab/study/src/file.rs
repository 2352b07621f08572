//! A study file, not yet multiplied out.
//!
//! In: TOML text, changes from the command line. Out: [`StudyFile`].
//! Invariant: unknown keys are refused; flags of the trainer are not judged here.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use crate::changes;
use cluster::failure::{Outcome, usage};

/// Command of a cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    #[default]
    Bench,
    Train,
    Netbench,
}

/// Batch size that stays the same when ranks are added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Scaling {
    /// The batch of each rank.
    Weak,
    /// The batch of all ranks together.
    Strong,
    #[default]
    None,
}

/// Profile of a step for the predictions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Profile {
    /// On as many cores at once as the predicted runs use, so that shared memory bandwidth counts.
    #[default]
    Together,
    Alone,
}

/// Table `[predict]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct PredictTable {
    pub(crate) profile: Profile,
}

/// Settings with which other frameworks compete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum PeerSettings {
    /// The best of the usual ones, found by a search.
    #[default]
    Best,
    Defaults,
}

/// Table `[peers]`: how other frameworks take part.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct PeersTable {
    pub(crate) settings: PeerSettings,
    /// Folder of the virtual environments.
    pub(crate) folder: Option<PathBuf>,
    /// True if missing environments are made.
    pub(crate) install: bool,
}

impl Default for PeersTable {
    fn default() -> Self {
        PeersTable {
            settings: PeerSettings::Best,
            folder: None,
            install: true,
        }
    }
}

/// An entry of `overrides`: where all keys of `when` hold, those of `set` are set.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Override {
    pub(crate) when: Table,
    pub(crate) set: Table,
}

/// One `[[matrix]]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Matrix {
    /// The file and the place in it, for messages.
    #[serde(skip)]
    pub(crate) place: String,
    pub(crate) kind: Kind,
    pub(crate) scaling: Scaling,
    pub(crate) repetitions: Option<usize>,
    /// Points left out: all keys of one of these tables hold.
    pub(crate) skip: Vec<Table>,
    pub(crate) overrides: Vec<Override>,
    /// Keys with one value or a list of values.
    #[serde(flatten)]
    pub(crate) axes: Table,
}

/// A whole study file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StudyFile {
    /// As the user wrote it on the command line.
    #[serde(skip)]
    pub(crate) path: String,
    #[serde(skip)]
    pub(crate) text: String,
    /// Differences from the text.
    #[serde(skip)]
    pub(crate) changes: Table,
    pub(crate) name: String,
    pub(crate) title: String,
    pub(crate) about: String,
    #[serde(default = "three")]
    pub(crate) repetitions: usize,
    /// Attempts at a repetition that others disturb, or that fails.
    #[serde(default = "three")]
    pub(crate) attempts: usize,
    /// Cores that others may use.
    #[serde(default = "quiet_cores")]
    pub(crate) quiet_cores: f64,
    /// Longest wait for a quiet machine, seconds.
    #[serde(default = "two_minutes")]
    pub(crate) quiet_patience_s: usize,
    /// Longest run, seconds.
    #[serde(default = "one_hour")]
    pub(crate) limit_s: usize,
    pub(crate) target_accuracy: Option<f64>,
    /// Flags of all cells that train or measure training.
    #[serde(default)]
    base: Table,
    #[serde(default)]
    bench: Table,
    #[serde(default)]
    train: Table,
    #[serde(default)]
    netbench: Table,
    /// Flags of `trainer slurm submit`.
    #[serde(default)]
    pub(crate) slurm: Table,
    pub(crate) predict: Option<PredictTable>,
    #[serde(default)]
    pub(crate) peers: PeersTable,
    #[serde(default, rename = "matrix")]
    pub(crate) matrices: Vec<Matrix>,
}

fn three() -> usize {
    3
}

fn quiet_cores() -> f64 {
    0.2
}

fn two_minutes() -> usize {
    120
}

fn one_hour() -> usize {
    3600
}

impl StudyFile {
    /// Reads the text; `changes` are the keys and values of `--set`.
    pub(crate) fn read(path: &str, text: &str, changes: &Table) -> Outcome<Self> {
        let refused = |error: toml::de::Error| {
            // Several lines of an error show the text again.
            let shown = error.to_string();
            let first = shown.lines().next().unwrap_or_default();
            let message = match first == error.message() {
                true => shown.trim_end().replace('\n', " "),
                false => format!("{first}: {}", error.message()),
            };
            usage!("{path}: {message}")
        };
        let mut file: StudyFile = match changes.is_empty() {
            true => toml::from_str(text).map_err(refused)?,
            false => {
                let mut table: Table = text.parse().map_err(refused)?;
                for (key, value) in changes {
                    changes::apply(&mut table, key, value);
                }
                table.try_into().map_err(refused)?
            }
        };
        path.clone_into(&mut file.path);
        text.clone_into(&mut file.text);
        file.changes = changes.clone();
        for table in [
            &mut file.base,
            &mut file.bench,
            &mut file.train,
            &mut file.netbench,
        ] {
            *table = with_underscores(std::mem::take(table));
        }
        for (index, matrix) in file.matrices.iter_mut().enumerate() {
            matrix.place = format!("{path}: [[matrix]] {}", index + 1);
            matrix.axes = with_underscores(std::mem::take(&mut matrix.axes));
            for table in &mut matrix.skip {
                *table = with_underscores(std::mem::take(table));
            }
            for Override { when, set } in &mut matrix.overrides {
                *when = with_underscores(std::mem::take(when));
                *set = with_underscores(std::mem::take(set));
            }
        }
        file.check()?;
        Ok(file)
    }

    fn check(&self) -> Outcome {
        let refused = |key: &str, text: String| Err(usage!("{}: {key}: {text}", self.path));
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if !self.name.chars().all(is_plain) || self.name.starts_with('.') || self.name.is_empty() {
            let text = format!(
                "expected letters, digits, `-`, `_` and `.`, got `{}`",
                self.name
            );
            return refused("name", text);
        }
        let of_matrices = self.matrices.iter().filter_map(|matrix| matrix.repetitions);
        let of_matrices = of_matrices.map(|count| ("repetitions", count));
        let counts = [
            ("repetitions", self.repetitions),
            ("attempts", self.attempts),
            ("limit_s", self.limit_s),
        ];
        for (key, count) in counts.into_iter().chain(of_matrices) {
            if count == 0 {
                return refused(key, "expected a whole number from 1, got 0".to_owned());
            }
        }
        if self.quiet_cores.is_nan() || self.quiet_cores <= 0.0 {
            let text = format!("expected a number above 0, got {}", self.quiet_cores);
            return refused("quiet_cores", text);
        }
        if let Some(share) = self
            .target_accuracy
            .filter(|share| !(0.0..=1.0).contains(share))
        {
            let text = format!("expected a share, such as 0.8, got {share}");
            return refused("target_accuracy", text);
        }
        let tables = [&self.base, &self.bench, &self.train, &self.netbench];
        for (key, value) in tables.into_iter().flatten() {
            if value.is_array() || value.is_table() {
                let text = format!(
                    "expected one value, got {}. Move the list into a [[matrix]].",
                    shown(value)
                );
                return refused(key, text);
            }
        }
        if self.matrices.is_empty() {
            let text = "expected at least one, got none. Write a table [[matrix]].";
            return refused("matrix", text.to_owned());
        }
        Ok(())
    }

    /// Returns the flags of all cells of a kind.
    pub(crate) fn flags(&self, kind: Kind) -> Table {
        let (mut flags, own) = match kind {
            Kind::Bench => (self.base.clone(), &self.bench),
            Kind::Train => (self.base.clone(), &self.train),
            Kind::Netbench => (Table::new(), &self.netbench),
        };
        flags.extend(own.clone());
        flags
    }
}

/// Flags are written with dashes or underscores.
fn with_underscores(table: Table) -> Table {
    fn renamed(value: Value) -> Value {
        match value {
            Value::Table(table) => Value::Table(with_underscores(table)),
            Value::Array(values) => Value::Array(values.into_iter().map(renamed).collect()),
            value => value,
        }
    }
    let renamed = |(key, value): (String, Value)| (key.replace('-', "_"), renamed(value));
    table.into_iter().map(renamed).collect()
}

/// Returns a value in one line.
pub(crate) fn shown(value: &Value) -> String {
    value.to_string().replace('\n', " ")
}

/// Returns a single value as a word of a command line.
pub(crate) fn word(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Integer(_) | Value::Float(_) | Value::Boolean(_) => Some(value.to_string()),
        Value::Datetime(_) | Value::Array(_) | Value::Table(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = "name = \"a\"\ntitle = \"A\"\nabout = \"a\"\n[base]\nsteps = 5\n[[matrix]]\nranks = [1, 2]\n";

    fn read(text: &str, set: &str) -> StudyFile {
        let changes = changes::read(Some(set).filter(|set| !set.is_empty())).unwrap();
        StudyFile::read("s.toml", text, &changes).unwrap()
    }

    #[test]
    fn an_absent_key_has_its_default() {
        let file = read(SMALL, "");
        assert_eq!(
            (file.repetitions, file.attempts, file.quiet_cores),
            (3, 3, 0.2)
        );
        assert_eq!((file.quiet_patience_s, file.limit_s), (120, 3600));
        let matrix = &file.matrices[0];
        assert_eq!((matrix.kind, matrix.scaling), (Kind::Bench, Scaling::None));
        assert_eq!(file.flags(Kind::Bench)["steps"].as_integer(), Some(5));
        assert!(file.flags(Kind::Netbench).is_empty() && file.predict.is_none());
    }

    #[test]
    fn an_invalid_file_is_refused_with_its_key() {
        let head = "name = \"a\"\ntitle = \"A\"\nabout = \"a\"\n";
        for (text, expected) in [
            ("name = ", "s.toml: TOML parse error at line 1"),
            ("title = \"A\"", "missing field `name`"),
            (
                &SMALL.replace("\"a\"", "\"a/b\""),
                "name: expected letters, digits",
            ),
            (
                &format!("colour = 1\n{SMALL}"),
                "line 1, column 1: unknown field `colour`, expected one of `name`, `title`",
            ),
            (
                &format!("target_accuracy = 80\n{SMALL}"),
                "target_accuracy: expected a share, such as 0.8, got 80",
            ),
            (
                &format!("attempts = 0\n{SMALL}"),
                "attempts: expected a whole number from 1, got 0",
            ),
            (
                &format!("quiet_cores = -1.0\n{SMALL}"),
                "quiet_cores: expected a number above 0",
            ),
            (&format!("repetitions = \"3\"\n{SMALL}"), "expected usize"),
            (
                &SMALL.replace("steps = 5", "steps = [5]"),
                "steps: expected one value, got [5]",
            ),
            (
                &SMALL.replace("ranks = [1, 2]", "kind = \"bake\""),
                "unknown variant `bake`, expected one of `bench`",
            ),
            (
                &SMALL.replace("ranks", "overrides = [{ when = {} }]\nranks"),
                "missing field `set`",
            ),
            (
                &format!("{SMALL}[predict]\nhow = 1\n"),
                "unknown field `how`",
            ),
            (head, "matrix: expected at least one"),
        ] {
            let failure = StudyFile::read("s.toml", text, &Table::new()).unwrap_err();
            assert_eq!(failure.exit_code(), 2);
            let refusal = failure.to_string();
            assert!(refusal.contains(expected), "{refusal}\nfor\n{text}");
        }
    }

    #[test]
    fn a_change_is_made_where_its_key_stands_otherwise_in_the_flags_of_all_cells() {
        let file = read(SMALL, "ranks=4,steps=2,data-dir=/d,repetitions=1");
        assert_eq!(file.matrices[0].axes["ranks"].as_integer(), Some(4));
        assert_eq!(file.flags(Kind::Bench)["steps"].as_integer(), Some(2));
        assert_eq!(file.flags(Kind::Train)["data_dir"].as_str(), Some("/d"));
        assert_eq!(file.repetitions, 1);
        let text = SMALL.replace("ranks", "repetitions = 5\nranks") + "[[matrix]]\nranks = 3\n";
        let file = read(&text, "repetitions=1");
        let of_matrices = file.matrices.iter().map(|matrix| matrix.repetitions);
        let of_matrices: Vec<_> = of_matrices.collect();
        assert_eq!((file.repetitions, of_matrices), (1, vec![Some(1), None]));
    }
}
