//! The directory of a study or a comparison: its lock, and how it is recognised.
//!
//! In: a directory. Out: a lock, or a refusal. Invariant: a study or comparison touches no folder of something else.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use cluster::failure::{Failure, Outcome};
use records::file::{self, Lock};
use records::{COMPARISON_SCHEMA, STUDY_SCHEMA};
use serde_json::Value;

/// A command that keeps a directory, and the document by which it knows that one again.
pub(crate) struct Owner {
    command: &'static str,
    document: &'static str,
    schema: &'static str,
    /// What it writes beside that document, or removes.
    names: &'static [&'static str],
}

pub(crate) const STUDY: Owner = Owner {
    command: "trainer study",
    document: "study.json",
    schema: STUDY_SCHEMA,
    names: &[
        "lock",
        "records.jsonl",
        "runs",
        "profiles",
        "predictions",
        "comparisons",
        "slurm-jobs.jsonl",
        "report",
    ],
};

pub(crate) const COMPARISON: Owner = Owner {
    command: "trainer compare",
    document: "comparison.json",
    schema: COMPARISON_SCHEMA,
    names: &["lock", "jobs", "peers", "runs"],
};

/// By these a folder is a run's or one of images.
const OF_RUNS_AND_IMAGES: [&str; 4] = ["run.toml", "train", "test", "val"];

/// Whether it is what a start leaves that is killed before its document is there.
fn is_left_before_the_document(entry: &fs::DirEntry) -> bool {
    let name = entry.file_name();
    ["lock", "records.jsonl"].iter().any(|own| name == *own)
        && entry
            .metadata()
            .is_ok_and(|of| of.is_file() && of.len() == 0)
}

impl Owner {
    /// Keeps another process of this command out of the directory until the file is closed.
    pub(crate) fn lock(&self, directory: &Path) -> Outcome<File> {
        self.check(directory)?;
        let failed = |error: std::io::Error| Failure::Failed(error.to_string());
        file::create_folder(directory).map_err(failed)?;
        let directory_shown = directory.display();
        let command = self.command;
        match file::lock(&directory.join("lock"), Duration::ZERO).map_err(failed)? {
            Lock::Taken(file) => Ok(file),
            Lock::Busy(_) => Err(Failure::Failed(format!(
                "{directory_shown}: another `{command}` runs there: wait for it, or choose another --output"
            ))),
            Lock::Unsupported(file) => {
                eprintln!(
                    "warning: {directory_shown}: no working file locks, so another `{command}` in this directory is not detected"
                );
                Ok(file)
            }
        }
    }

    /// Refuses a directory that has what this command would write over, or a run or images, and is not of an earlier start of it.
    pub(crate) fn check(&self, directory: &Path) -> Outcome {
        let failed =
            |error: std::io::Error| Failure::Failed(format!("{}: {error}", directory.display()));
        let entries = match fs::read_dir(directory) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            entries => entries
                .and_then(Iterator::collect::<Result<Vec<_>, _>>)
                .map_err(failed)?,
        };
        let is_in_the_way = |entry: &&fs::DirEntry| {
            let name = entry.file_name();
            let own = self
                .names
                .iter()
                .chain(&OF_RUNS_AND_IMAGES)
                .chain([&self.document]);
            own.into_iter().any(|own| name == **own) && !is_left_before_the_document(entry)
        };
        let foreign = entries.iter().filter(is_in_the_way);
        match foreign.map(fs::DirEntry::file_name).min() {
            Some(foreign) if !self.has_document(directory) => Err(Failure::Usage(format!(
                "--output {}: expected a folder without `{}`, or of an earlier `{}`, told by {} with the schema {}: choose another --output",
                directory.display(),
                foreign.display(),
                self.command,
                self.document,
                self.schema
            ))),
            _ => Ok(()),
        }
    }

    /// Of any version: whether it can be gone on with is for its reader to say.
    fn has_document(&self, directory: &Path) -> bool {
        let kind = |schema: &str| schema.split_once('/').map(|(kind, _)| kind.to_owned());
        let text =
            records::file::read_to_string(&directory.join(self.document)).unwrap_or_default();
        let document: Value = serde_json::from_str(&text).unwrap_or_default();
        document["schema"].as_str().and_then(kind) == kind(self.schema)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::run_directory::write;

    #[test]
    fn a_second_program_is_kept_out_of_a_directory() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("study");
        let first = STUDY.lock(&directory).unwrap();
        assert!(
            STUDY
                .lock(&directory)
                .unwrap_err()
                .to_string()
                .contains("another `trainer study`")
        );
        drop(first);
        STUDY.lock(&directory).unwrap();
    }

    /// Locks a folder of these files, with their text; what was said, and whether they are as they were.
    fn locked(owner: &Owner, files: &[(&str, &str)]) -> (Outcome, bool) {
        let directory = tempfile::tempdir().unwrap();
        files
            .iter()
            .for_each(|(file, text)| write(&directory.path().join(file), text).unwrap());
        let outcome = owner.lock(directory.path()).map(drop);
        let is_kept = files
            .iter()
            .all(|(file, text)| fs::read_to_string(directory.path().join(file)).unwrap() == *text);
        let num_files = fs::read_dir(directory.path()).unwrap().count();
        (outcome, is_kept && num_files == files.len())
    }

    #[test]
    fn a_folder_of_something_else_is_refused_and_stays_as_it_is() {
        let study = r#"{"schema":"lockstep.study/1"}"#;
        for (owner, files) in [
            (
                &STUDY,
                &[
                    ("lock", "mine"),
                    ("records.jsonl", "mine"),
                    ("study.json", "{}"),
                ][..],
            ),
            (&STUDY, &[("lock", ""), ("records.jsonl", "mine")]),
            (&STUDY, &[("train/a.png", "mine")]),
            (&STUDY, &[("run.toml", "")]),
            (&COMPARISON, &[("lock", ""), ("peers/run.py", "mine")]),
            (&COMPARISON, &[("jobs/mine.txt", "mine")]),
            (
                &COMPARISON,
                &[("comparison.json", study), ("study.json", study)],
            ),
        ] {
            let (outcome, is_kept) = locked(owner, files);
            let failure = outcome.unwrap_err();
            assert!(failure.exit_code() == 2 && is_kept, "{files:?}: {failure}");
            assert!(
                failure.to_string().contains("choose another --output"),
                "{failure}"
            );
        }
    }

    #[test]
    fn a_folder_of_an_earlier_start_is_gone_on_with_however_early_that_was_killed() {
        let (study, comparison) = (
            r#"{"schema":"lockstep.study/1"}"#,
            r#"{"schema":"lockstep.comparison/1"}"#,
        );
        for (owner, files) in [
            (
                &STUDY,
                &[("lock", ""), ("records.jsonl", "{"), ("study.json", study)][..],
            ),
            (
                &STUDY,
                &[
                    ("lock", ""),
                    ("records.jsonl", ""),
                    ("study.json.unfinished", "{"),
                ],
            ),
            (&STUDY, &[("lock", "")]),
            (&STUDY, &[("lock", ""), ("log.txt", "mine")]),
            (
                &COMPARISON,
                &[("lock", ""), ("comparison.json.unfinished", "{")],
            ),
            (
                &COMPARISON,
                &[
                    ("lock", "kept"),
                    ("run.py", "1"),
                    ("comparison.json", comparison),
                ],
            ),
        ] {
            let (outcome, is_kept) = locked(owner, files);
            assert!(outcome.is_ok() && is_kept, "{files:?}: {outcome:?}");
        }
    }
}
