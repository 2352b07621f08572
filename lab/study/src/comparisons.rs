//! The same job in other frameworks, as a part of a study: `trainer compare`, once for each launcher.
//!
//! In: the table `[compare]` of a study's file, which has flags of `trainer compare`. Out: `comparisons/LAUNCHER/comparison.json` in
//! the study's directory, which the study's report shows.
//! Invariant: what `trainer compare` refuses is refused before the study's first run; a comparison goes on where it stopped, as long as
//! program, processor and job are the same.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::keys::{shown, word};
use crate::compare::CompareArgs;
use cluster::failure::{Failure, Outcome};
use cluster::output::say;
use cluster::process;

/// Flags that are not the file's to give.
const NOT_HERE: [&str; 4] = ["output", "trainer", "again", "help"];

/// The comparison with one launcher.
#[derive(Clone, Debug)]
pub(super) struct Comparison {
    /// `compare-LAUNCHER`, as `--only` finds it.
    pub(super) id: String,
    /// Of `trainer compare`, each with its value.
    flags: BTreeMap<String, Option<String>>,
    /// Below the study's directory.
    folder: PathBuf,
}

/// What a study tells its comparisons.
#[derive(Clone, Copy, Debug)]
pub(super) struct Around<'a> {
    pub(super) directory: &'a Path,
    pub(super) trainer: &'a Path,
    /// What others may take of the processors, in cores; of no concern where the machine is not watched.
    pub(super) quiet_cores: f64,
    pub(super) attempts: usize,
    pub(super) is_watched: bool,
}

impl Comparison {
    /// All that a file asks for.
    pub(super) fn all(path: &str, table: Option<Table>) -> Outcome<Vec<Self>> {
        let Some(mut table) = table else {
            return Ok(Vec::new());
        };
        let refused = |key: &str, expected: &str, got: &Value| {
            Failure::Usage(format!(
                "{path}: [compare]: {key}: expected {expected}, got {}",
                shown(got)
            ))
        };
        let launchers = table
            .remove("launcher")
            .unwrap_or_else(|| Value::from("plain"));
        let names = list(&launchers).filter(|names| !names.is_empty());
        let names =
            names.ok_or_else(|| refused("launcher", "a text or a list of texts", &launchers))?;
        if (1..names.len()).any(|index| names[..index].contains(&names[index])) {
            return Err(refused("launcher", "each once", &launchers));
        }
        let mut flags = BTreeMap::new();
        for (key, value) in &table {
            let key = key.replace('_', "-");
            if NOT_HERE.contains(&key.as_str())
                || !key.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
            {
                return Err(refused(
                    &key,
                    "a flag of `trainer compare` that is not the study's to give",
                    value,
                ));
            }
            let value = match (value, list(value)) {
                (Value::Boolean(true), _) => None,
                (Value::Boolean(false), _) | (_, None) => {
                    return Err(refused(&key, "a value, a list of them, or true", value));
                }
                (_, Some(values)) => Some(values.join(",")),
            };
            flags.insert(format!("--{key}"), value);
        }
        let one = |launcher: String| {
            let flags = flags
                .clone()
                .into_iter()
                .chain([("--launcher".to_owned(), Some(launcher.clone()))])
                .collect();
            let folder = Path::new("comparisons").join(launcher.replace(':', "-"));
            Self {
                id: format!("compare-{launcher}"),
                flags,
                folder,
            }
        };
        Ok(names.into_iter().map(one).collect())
    }

    fn args(&self, around: Around<'_>) -> Outcome<CompareArgs> {
        let mut flags = self.flags.clone();
        let text = |path: &Path| Some(path.display().to_string());
        flags.insert(
            "--output".to_owned(),
            text(&around.directory.join(&self.folder)),
        );
        flags.insert("--trainer".to_owned(), text(around.trainer));
        flags
            .entry("--attempts".to_owned())
            .or_insert_with(|| Some(around.attempts.to_string()));
        flags
            .entry("--quiet-cores".to_owned())
            .or_insert_with(|| Some(around.quiet_cores.to_string()));
        if !around.is_watched {
            flags.insert("--quiet-cores".to_owned(), Some("1e9".to_owned()));
        }
        CompareArgs::parsed(words(&flags))
    }

    /// Refuses what is no flag of `trainer compare`.
    pub(super) fn check_flags(&self, around: Around<'_>) -> Outcome {
        self.args(around)
            .map(drop)
            .map_err(|failure| self.named(&failure, around))
    }

    /// Refuses what [`Comparison::run`] would refuse.
    pub(super) fn check(&self, around: Around<'_>) -> Outcome {
        self.args(around)
            .and_then(|args| args.check())
            .map_err(|failure| self.named(&failure, around))
    }

    /// Measures what the study's directory has not.
    pub(super) fn run(&self, around: Around<'_>) -> Outcome {
        say!("{}", self.id);
        self.args(around)?
            .run()
            .map_err(|failure| self.named(&failure, around))
    }

    fn named(&self, failure: &Failure, around: Around<'_>) -> Failure {
        match failure {
            Failure::Usage(text) => Failure::Usage(format!("[compare]: {text}")),
            Failure::Failed(text) => Failure::Failed(format!(
                "{}: {text} (without {} it begins anew; --no-compare leaves out other frameworks)",
                self.id,
                around.directory.join(&self.folder).display()
            )),
        }
    }

    /// The lines of a dry run.
    pub(super) fn listed(&self) -> String {
        let words: Vec<String> = words(&self.flags).map(process::quoted).collect();
        format!("{}\n    trainer compare {}\n", self.id, words.join(" "))
    }
}

/// Flags and their values as words of a command line.
fn words(flags: &BTreeMap<String, Option<String>>) -> impl Iterator<Item = &str> {
    flags
        .iter()
        .flat_map(|(flag, value)| std::iter::once(flag.as_str()).chain(value.as_deref()))
}

/// One value, or several.
fn list(value: &Value) -> Option<Vec<String>> {
    match value {
        Value::Array(values) => values.iter().map(word).collect(),
        value => word(value).map(|word| vec![word]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Outcome<Vec<Comparison>> {
        Comparison::all("study.toml", Some(text.parse().unwrap()))
    }

    fn around(directory: &Path, is_watched: bool) -> Around<'_> {
        Around {
            directory,
            trainer: Path::new("/bin/true"),
            quiet_cores: 0.5,
            attempts: 2,
            is_watched,
        }
    }

    #[test]
    fn each_launcher_is_a_comparison_of_its_own() {
        let text = "with = [\"pytorch\", \"horovod\"]\nmodels = \"resnet50\"\nranks = [1, 2]\nno_install = true\n\
                    launcher = [\"hosts:1gbit\", \"hosts:unlimited\"]";
        let comparisons = read(text).unwrap();
        let ids: Vec<&str> = comparisons
            .iter()
            .map(|comparison| comparison.id.as_str())
            .collect();
        assert_eq!(ids, ["compare-hosts:1gbit", "compare-hosts:unlimited"]);
        let expected = "compare --launcher hosts:1gbit --models resnet50 --no-install --ranks 1,2 --with pytorch,horovod\n";
        assert!(
            comparisons[0].listed().ends_with(expected),
            "{}",
            comparisons[0].listed()
        );
        assert_eq!(
            comparisons[1].folder,
            Path::new("comparisons/hosts-unlimited")
        );
        assert!(Comparison::all("study.toml", None).unwrap().is_empty());
    }

    #[test]
    fn a_table_that_is_wrong_is_refused_with_the_file_and_the_key() {
        for (text, part) in [
            ("output = \"here\"", "output: expected a flag"),
            ("again = true", "again: expected a flag"),
            ("\"with=jax\" = true", "expected a flag"),
            (
                "no_install = false",
                "no-install: expected a value, a list of them, or true, got false",
            ),
            ("ranks = [[1]]", "ranks: expected a value"),
            ("launcher = { a = 1 }", "launcher: expected a text"),
            ("launcher = []", "launcher: expected a text"),
            ("launcher = [\"plain\", \"plain\"]", "each once"),
        ] {
            let failure = read(text).unwrap_err();
            assert_eq!(failure.exit_code(), 2);
            let told = failure.to_string();
            assert!(
                told.contains("study.toml: [compare]: ") && told.contains(part),
                "{told}"
            );
        }
    }

    #[test]
    fn what_the_command_would_refuse_is_refused_before_anything_runs() {
        let nowhere = Path::new("/nonexistent");
        for (text, part) in [
            ("with = \"pytorch\"\nmodels = \"resnet21\"", "--models"),
            ("stepz = 3", "unexpected argument '--stepz'"),
            (
                "launcher = \"hosts:1gbit\"\nranks = 1",
                "one number of --ranks above 1",
            ),
        ] {
            let failure = read(text).unwrap()[0]
                .check(around(nowhere, true))
                .unwrap_err();
            let told = failure.to_string();
            assert!(
                failure.exit_code() == 2 && told.contains(part) && !told.contains('\n'),
                "{told}"
            );
        }
        read("").unwrap()[0].check(around(nowhere, true)).unwrap();
    }

    #[test]
    fn the_studys_own_care_counts_where_the_table_says_none() {
        let flags = |text: &str, is_watched| {
            let args = read(text).unwrap()[0]
                .args(around(Path::new("/study"), is_watched))
                .unwrap();
            let told = format!("{args:?}");
            let of = |key: &str| {
                let value = told.split(&format!("{key}: Some(")).nth(1).unwrap();
                value.split(')').next().unwrap().to_owned()
            };
            [of("quiet_cores"), of("attempts"), of("output")]
        };
        assert_eq!(
            flags("", true),
            ["\"0.5\"", "2", "\"/study/comparisons/plain\""]
        );
        assert_eq!(
            flags("quiet_cores = 1\nattempts = 5", true)[..2],
            ["\"1\"", "5"]
        );
        assert_eq!(flags("quiet_cores = 1", false)[0], "\"1e9\"");
    }
}
