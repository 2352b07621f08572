//! The directory of a study: its lock, and the check that a study made it.
//!
//! In: a directory. Out: a lock, or a refusal. Invariant: a study changes no other folder.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use cluster::failure::{Outcome, at, failed, usage};
use cluster::json;
use records::STUDY_SCHEMA;
use records::file::{self, Lock};
use serde_json::Value;

/// The document by which a directory is recognised.
pub(crate) const DOCUMENT: &str = "study.json";

/// Wait for a lock: a process that just started holds a copy of its parent's locks until its exec.
const PATIENCE: Duration = Duration::from_secs(1);

/// Other names in the directory of a study.
const OWN: [&str; 7] = [
    "jobs",
    "peers",
    "predictions",
    "profiles",
    "records.jsonl",
    "report",
    "runs",
];

/// Names in the folder of a run or of images.
const OF_RUNS_AND_IMAGES: [&str; 4] = ["run.toml", "train", "test", "val"];

/// Removes the results in the directory of a study, so that all is measured again.
pub(crate) fn clear(directory: &Path) -> Outcome {
    let _lock = lock(directory)?;
    for name in OWN.iter().chain([&DOCUMENT]) {
        let path = directory.join(name);
        let removed = match path.is_dir() {
            true => fs::remove_dir_all(&path),
            false => fs::remove_file(&path),
        };
        match removed {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(at(&path)(error)),
            _ => {}
        }
    }
    Ok(())
}

/// Locks the directory until the file is closed; the system releases the lock with this process.
pub(crate) fn lock(directory: &Path) -> Outcome<File> {
    check(directory)?;
    let failed = |error: std::io::Error| failed!("{error}");
    file::create_folder(directory).map_err(failed)?;
    match file::lock(&directory.join("lock"), PATIENCE).map_err(failed)? {
        Lock::Taken(file) => Ok(file),
        Lock::Busy(_) => Err(failed!(
            "{}: another study or comparison runs there. Wait for its end, or choose another --output.",
            directory.display()
        )),
        Lock::Unsupported(file) => {
            eprintln!(
                "warning: {}: this file system has no file locks, so two studies in one directory are not detected",
                directory.display()
            );
            Ok(file)
        }
    }
}

/// Refuses a directory with files that a study would overwrite, or with a run or images, unless a
/// study made it.
pub(crate) fn check(directory: &Path) -> Outcome {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(at(directory))?,
    };
    let is_in_the_way = |entry: &&fs::DirEntry| {
        let name = entry.file_name();
        let mut own = OWN.iter().chain(&OF_RUNS_AND_IMAGES).chain([&DOCUMENT]);
        // A start that was killed before it wrote the document leaves an empty file of records.
        let is_empty = || {
            entry
                .metadata()
                .is_ok_and(|of| of.is_file() && of.len() == 0)
        };
        own.any(|own| name == **own) && !(name == "records.jsonl" && is_empty())
    };
    let foreign = entries.iter().filter(is_in_the_way);
    match foreign.map(fs::DirEntry::file_name).min() {
        Some(foreign) if !has_document(directory) => Err(usage!(
            "--output {}: contains `{}` and is not a study's (expected {DOCUMENT} with the schema {STUDY_SCHEMA}). \
             Choose another --output.",
            directory.display(),
            foreign.display()
        )),
        _ => Ok(()),
    }
}

/// Returns whether a study of any version made the directory; its reader decides whether it can be
/// resumed.
fn has_document(directory: &Path) -> bool {
    let kind = |schema: &str| schema.split_once('/').map(|(kind, _)| kind.to_owned());
    let document: Value = json::read(&directory.join(DOCUMENT)).unwrap_or_default();
    document["schema"].as_str().and_then(kind) == kind(STUDY_SCHEMA)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::run_directory::write;

    /// Locks a folder of these files; also returns whether the files are unchanged.
    fn locked(files: &[(&str, &str)]) -> (Outcome, bool) {
        let directory = tempfile::tempdir().unwrap();
        let path = |file: &str| directory.path().join(file);
        for (file, text) in files {
            write(&path(file), text).unwrap();
        }
        let outcome = lock(directory.path()).map(drop);
        let is_kept =
            |(file, text): &(&str, &str)| fs::read_to_string(path(file)).unwrap() == *text;
        let num_files = fs::read_dir(directory.path()).unwrap().count();
        let all_kept = files.iter().all(is_kept) && num_files == files.len();
        (outcome, all_kept)
    }

    const STUDY: &str = r#"{"schema":"lockstep.study/1"}"#;

    #[test]
    fn a_folder_without_a_study_is_refused_and_unchanged() {
        for files in [
            &[
                ("lock", "mine"),
                ("records.jsonl", "mine"),
                ("study.json", "{}"),
            ][..],
            &[("lock", ""), ("records.jsonl", "mine")],
            &[("train/a.png", "mine")],
            &[("run.toml", "")],
            &[("lock", ""), ("peers/run.py", "mine")],
            &[("jobs/mine.txt", "mine")],
        ] {
            let (outcome, is_kept) = locked(files);
            let failure = outcome.unwrap_err();
            assert!(failure.exit_code() == 2 && is_kept, "{files:?}: {failure}");
            assert!(
                failure.to_string().contains("Choose another --output"),
                "{failure}"
            );
        }
    }

    #[test]
    fn a_folder_of_an_earlier_start_is_resumed_and_can_be_cleared() {
        for files in [
            &[("lock", ""), ("records.jsonl", "{"), ("study.json", STUDY)][..],
            &[
                ("lock", ""),
                ("records.jsonl", ""),
                ("study.json.unfinished", "{"),
            ],
            &[("lock", "")],
            &[("lock", ""), ("log.txt", "mine")],
            &[("lock", "kept"), ("run.py", "1"), ("study.json", STUDY)],
        ] {
            let (outcome, is_kept) = locked(files);
            assert!(outcome.is_ok() && is_kept, "{files:?}: {outcome:?}");
        }
    }

    #[test]
    fn a_study_has_one_program_and_can_be_cleared() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("study");
        let first = lock(&directory).unwrap();
        let refusal = lock(&directory).unwrap_err().to_string();
        assert!(refusal.contains("another study"), "{refusal}");
        drop(first);
        for file in ["study.json", "runs/a/output.log", "log.txt"] {
            write(&directory.join(file), STUDY).unwrap();
        }
        clear(&directory).unwrap();
        let left = fs::read_dir(&directory).unwrap();
        let mut left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["lock", "log.txt"]);
    }
}
