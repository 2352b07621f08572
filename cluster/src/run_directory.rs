//! The directory of a run: script, output and checkpoints of a run that can be started again.
//!
//! In: the trainer's words, perhaps a name. Out: `PlacedCommand`.
//! Invariant: `train` always gets its directory and `--resume`, so that a second start continues
//! the first. Other commands of the trainer get their words unchanged.

use std::fmt;
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::slice;

use records::file;

use crate::failure::{Outcome, at, failed, usage};
use crate::options;
use crate::process;
use crate::slurm::TASK;

/// A command of the trainer with its directory.
#[derive(Debug, PartialEq)]
pub(crate) struct PlacedCommand {
    /// `train`, `bench`, …
    pub(crate) command: String,
    /// Words after the command, without `--output-dir` and `--resume` for `train`.
    pub(crate) words: Vec<String>,
    pub(crate) name: String,
    /// Absolute.
    pub(crate) directory: PathBuf,
}

impl PlacedCommand {
    /// Reads the trainer's words; the default name is the command and the time.
    pub(crate) fn read(words: &[String], name: Option<&str>) -> Outcome<Self> {
        let Some((command, rest)) = words
            .split_first()
            .filter(|(command, _)| !command.starts_with('-'))
        else {
            return Err(usage!(
                "nothing to start: the trainer's command comes first after `--`, as in `-- train --epochs 10`"
            ));
        };
        let name = match name {
            Some(name) => checked_name(name)?.to_owned(),
            None => format!("{command}-{}", now()?),
        };
        let mut chosen = None;
        let mut words = rest.to_owned();
        if command == "train" {
            (chosen, words) = without_directory(rest)?;
            chosen = chosen.map_or_else(|| directory_of_config(&words), |named| Ok(Some(named)))?;
        }
        let directory = chosen.map_or_else(|| Path::new("runs").join(&name), PathBuf::from);
        let directory = std::path::absolute(&directory).map_err(at(&directory))?;
        Ok(PlacedCommand {
            command: command.clone(),
            words,
            name,
            directory,
        })
    }

    pub(crate) fn trains(&self) -> bool {
        self.command == "train"
    }

    /// Returns the whole command for a check. A run that has begun resumes with its options.
    pub(crate) fn to_check(&self) -> Vec<String> {
        let mut words = [slice::from_ref(&self.command), &self.words].concat();
        if self.trains() && self.directory.join("run.toml").exists() {
            let directory = self.directory.display().to_string();
            words.extend(["--resume".to_owned(), "--output-dir".to_owned(), directory]);
        }
        words
    }

    /// Refuses a flag that has an effect on training only.
    pub(crate) fn check_only_for_training(&self, flag: &str, is_given: bool) -> Outcome {
        if is_given && !self.trains() {
            return Err(usage!(
                "{flag} is for `train`, which resumes from its checkpoint; `{}` has none. Remove {flag}.",
                self.command
            ));
        }
        Ok(())
    }
}

/// Replaces a file of a run as a whole, and creates its directory. A reader sees the old or the
/// new file.
pub fn write(path: &Path, text: &str) -> Outcome {
    let folder = path.parent().unwrap_or(Path::new("/"));
    file::create_folder(folder)
        .and_then(|()| file::replace_unsynced(path, text.as_bytes()))
        .map_err(|error| failed!("{error}"))
}

/// Makes an empty directory.
pub fn fresh(directory: &Path) -> Outcome {
    if directory.exists() {
        fs::remove_dir_all(directory).map_err(at(directory))?;
    }
    fs::create_dir_all(directory).map_err(at(directory))
}

/// Splits `--output-dir` and `--resume` from the words of `train`.
fn without_directory(words: &[String]) -> Outcome<(Option<String>, Vec<String>)> {
    let mut named = Vec::new();
    let mut others = Vec::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.split_once('=') {
            Some(("--output-dir", value)) => named.push(value.to_owned()),
            _ if word == "--output-dir" => named.push(words.next().cloned().unwrap_or_default()),
            _ if word == "--resume" => {}
            _ => others.push(word.clone()),
        }
    }
    let first = named.first().cloned();
    if named.len() > 1 || first.as_deref() == Some("") {
        return Err(usage!(
            "--output-dir: expected one directory, got `{}`",
            named.join(" ")
        ));
    }
    Ok((first, others))
}

/// Returns the directory in the file of `--config`.
fn directory_of_config(words: &[String]) -> Outcome<Option<String>> {
    // Each task of an array has its own file.
    let Some(file) = options::value_of(words, "--config").filter(|file| !file.contains(TASK))
    else {
        return Ok(None);
    };
    let failed = |error: &dyn fmt::Display| {
        usage!(
            "--config {file}: expected a run's options, which may name its directory: {error}; correct it, or name the directory by --output-dir"
        )
    };
    // A pipe can be read once, by the trainer.
    let found = fs::metadata(file).map_err(|error| failed(&error))?;
    if found.file_type().is_fifo() {
        return Ok(None);
    }
    let text = fs::read_to_string(file).map_err(|error| failed(&error))?;
    let table: toml::Table = text
        .parse()
        .map_err(|error: toml::de::Error| failed(&error.message()))?;
    let named = table.get("run").and_then(|run| run.get("output-dir"));
    match named.and_then(|named| named.as_str()) {
        Some("") => Err(failed(&"output-dir is empty")),
        named => Ok(named.map(str::to_owned)),
    }
}

/// Checks a name for file names, scripts and tables.
fn checked_name(name: &str) -> Outcome<&str> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(is_plain) {
        return Ok(name);
    }
    Err(usage!(
        "--name: expected letters, digits, `-`, `_` and `.`, a letter or digit first, got `{name}`"
    ))
}

/// Returns the time as a part of a name.
fn now() -> Outcome<String> {
    let answer = process::answer("date", &["+%Y%m%d-%H%M%S"]).map(|text| text.trim().to_owned());
    answer.filter(|time| !time.is_empty()).ok_or_else(|| {
        failed!("the program `date` does not print the time. Name the run by --name.")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str, name: Option<&str>) -> Outcome<PlacedCommand> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        PlacedCommand::read(&words, name)
    }

    #[test]
    fn a_run_is_in_the_directory_of_its_flag_its_configuration_or_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let file = folder.path().join(name);
            write(&file, text).unwrap();
            file.display().to_string()
        };
        let named = file("named.toml", "[run]\nseed = 1\noutput-dir = \"d/x\"\n");
        let plain = file("plain.toml", "[run]\nseed = 1\n");
        let pipe = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        let here = std::env::current_dir().unwrap();
        for (line, directory) in [
            ("train".to_owned(), "runs/night"),
            ("train --output-dir /d/y --epochs 3".to_owned(), "/d/y"),
            (
                "train --epochs 3 --output-dir=/d/y --resume".to_owned(),
                "/d/y",
            ),
            (format!("train --config {named}"), "d/x"),
            (format!("train --config={named} --epochs 3"), "d/x"),
            (format!("train --config {named} --output-dir /d/y"), "/d/y"),
            (format!("train --config {plain}"), "runs/night"),
            // A pipe is for the trainer to read, and each task of an array has its own file.
            (format!("train --config {}", pipe.display()), "runs/night"),
            ("train --config c{task}.toml".to_owned(), "runs/night"),
        ] {
            let job = read(&line, Some("night")).unwrap();
            assert_eq!(job.directory, here.join(directory), "{line}");
            let is_kept = |word: &String| word.starts_with("--output-dir") || word == "--resume";
            assert!(!job.words.iter().any(is_kept), "{line}");
        }
        let broken = file("broken.toml", "[run\n");
        let nameless = file("nameless.toml", "[run]\noutput-dir = \"\"\n");
        for file in [&broken, &nameless, "none.toml"] {
            let failure = read(&format!("train --config {file}"), Some("night")).unwrap_err();
            assert!(
                failure.exit_code() == 2 && failure.to_string().contains("or name the directory"),
                "{failure}"
            );
        }
    }

    #[test]
    fn a_run_without_a_name_has_the_name_of_its_command_and_the_time() {
        let job = read("bench --resume --output-dir x", None).unwrap();
        let time = job.name.strip_prefix("bench-").unwrap();
        assert!(
            time.len() == 15 && time.chars().all(|c| c.is_ascii_digit() || c == '-'),
            "{time}"
        );
        assert!(job.directory.ends_with(Path::new("runs").join(&job.name)));
        assert_eq!(job.words, ["--resume", "--output-dir", "x"]);
    }

    #[test]
    fn words_without_a_run_are_refused() {
        for (line, name, expected) in [
            ("", None, "nothing to start"),
            ("--epochs 3", None, "comes first"),
            ("train --output-dir", None, "expected one directory"),
            (
                "train --output-dir a --output-dir=b",
                None,
                "expected one directory, got `a b`",
            ),
            ("train", Some("a b"), "got `a b`"),
            ("train", Some("../x"), "got `../x`"),
        ] {
            let failure = read(line, name).unwrap_err();
            assert_eq!(failure.exit_code(), 2);
            assert!(failure.to_string().contains(expected), "{failure}");
        }
    }
}
