//! The same job in other frameworks, as a part of a study: `trainer compare`, once for each launcher.
//!
//! In: the table `[compare]` of a study's file, which has flags of `trainer compare`. Out: `comparisons/LAUNCHER/comparison.json` in
//! the study's directory, which the study's report shows.
//! Invariant: what `trainer compare` refuses is refused before the study's first run; a comparison goes on where it stopped.

use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::keys::{shown, word};
use crate::compare::CompareArgs;
use crate::failure::{Failure, Outcome};
use crate::output::say;
use crate::process;

/// The comparison with one launcher.
#[derive(Clone, Debug)]
pub(super) struct Comparison {
    /// `compare-LAUNCHER`, as `--only` finds it.
    pub(super) id: String,
    /// Of `trainer compare`, without the place of the results.
    words: Vec<String>,
    /// Below the study's directory.
    folder: PathBuf,
}

impl Comparison {
    /// All that a file asks for.
    pub(super) fn all(path: &str, table: Option<Table>) -> Outcome<Vec<Self>> {
        let Some(mut table) = table else { return Ok(Vec::new()) };
        let refused = |key: &str, expected: &str, got: &Value| {
            Failure::Usage(format!("{path}: [compare]: {key}: expected {expected}, got {}", shown(got)))
        };
        for own in ["output", "trainer"] {
            if let Some(value) = table.get(own) {
                return Err(refused(own, "nothing, as the study says it", value));
            }
        }
        let launchers = match table.remove("launcher") {
            None => vec!["plain".to_owned()],
            Some(value) => list(&value).ok_or_else(|| refused("launcher", "a text or a list of texts", &value))?,
        };
        let mut words = Vec::new();
        for (key, value) in &table {
            let flag = format!("--{}", key.replace('_', "-"));
            match (value, list(value)) {
                (Value::Boolean(false), _) => {}
                (Value::Boolean(true), _) => words.push(flag),
                (_, Some(values)) => words.extend([flag, values.join(",")]),
                (_, None) => return Err(refused(key, "a value or a list of them", value)),
            }
        }
        let comparisons = launchers.iter().map(|launcher| Self {
            id: format!("compare-{launcher}"),
            words: words.iter().cloned().chain(["--launcher".to_owned(), launcher.clone()]).collect(),
            folder: Path::new("comparisons").join(launcher.replace(':', "-")),
        });
        let comparisons: Vec<Self> = comparisons.collect();
        for comparison in &comparisons {
            // Refuses what it would refuse.
            comparison.parsed(&[]).map_err(|failure| Failure::Usage(format!("{path}: [compare]: {failure}")))?;
        }
        Ok(comparisons)
    }

    fn parsed(&self, more: &[&str]) -> Outcome<CompareArgs> {
        CompareArgs::parsed(self.words.iter().map(String::as_str).chain(more.iter().copied()))
    }

    /// Whether its ranks are started on emulated hosts.
    pub(super) fn needs_hosts(&self) -> bool {
        self.id.starts_with("compare-hosts:")
    }

    /// The line of a dry run.
    pub(super) fn listed(&self) -> String {
        let words: Vec<String> = self.words.iter().map(process::quoted).collect();
        format!("{}\n    trainer compare {}\n", self.id, words.join(" "))
    }

    /// Measures what the study's directory has not.
    pub(super) fn run(&self, directory: &Path, trainer: &Path) -> Outcome {
        say!("{}", self.id);
        let (folder, trainer) = (directory.join(&self.folder), trainer.display().to_string());
        self.parsed(&["--output", &folder.display().to_string(), "--trainer", &trainer])?.run()
    }
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

    #[test]
    fn each_launcher_is_a_comparison_of_its_own() {
        let text = "with = [\"pytorch\", \"horovod\"]\nmodels = \"resnet50\"\nranks = [1, 2]\nno_install = true\nall-variants = false\n\
                    launcher = [\"hosts:1gbit\", \"hosts:unlimited\"]";
        let comparisons = read(text).unwrap();
        let ids: Vec<&str> = comparisons.iter().map(|comparison| comparison.id.as_str()).collect();
        assert_eq!(ids, ["compare-hosts:1gbit", "compare-hosts:unlimited"]);
        let line = comparisons[0].listed();
        let expected =
            "compare --models resnet50 --no-install --ranks 1,2 --with pytorch,horovod --launcher hosts:1gbit\n";
        assert!(line.ends_with(expected), "{line}");
        assert_eq!(comparisons[1].folder, Path::new("comparisons/hosts-unlimited"));
        assert!(comparisons[1].needs_hosts() && !read("").unwrap()[0].needs_hosts());
        assert!(Comparison::all("study.toml", None).unwrap().is_empty());
    }

    #[test]
    fn what_the_command_would_refuse_is_refused_with_the_file() {
        for (text, part) in [
            ("with = \"pytorch\"\nmodels = \"resnet21\"", "--models"),
            ("stepz = 3", "--stepz"),
            ("output = \"here\"", "as the study says it"),
            ("launcher = { a = 1 }", "a text or a list"),
            ("ranks = [[1]]", "a value or a list"),
            ("launcher = \"hosts:1gbit\"\nranks = 1", "one number of --ranks above 1"),
        ] {
            let failure = read(text).unwrap_err();
            assert_eq!(failure.exit_code(), 2);
            let told = failure.to_string();
            assert!(told.contains("study.toml: [compare]") && told.contains(part), "{told}");
        }
    }
}
