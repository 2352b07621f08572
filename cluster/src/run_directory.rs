//! The directory of a run: script, output and checkpoints of a run that can be started again.
//!
//! In: the trainer's words, perhaps a name. Out: `PlacedCommand`.
//! Invariant: `train` always gets its directory and `--resume`, so that a second start continues
//! the first. Other commands of the trainer get their words unchanged.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use records::file;

use crate::failure::{Failure, Outcome};
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
            return Err(Failure::Usage(
                "nothing to start: the trainer's command comes first after `--`, as in `-- train --epochs 10`"
                    .to_owned(),
            ));
        };
        let (chosen, words) = if command == "train" {
            without_directory(rest)?
        } else {
            (None, rest.to_owned())
        };
        let name = match name {
            Some(name) => checked_name(name)?.to_owned(),
            None => format!("{command}-{}", now()?),
        };
        let chosen = match chosen {
            None if command == "train" => directory_of_config(&words)?,
            chosen => chosen,
        };
        let directory = chosen.map_or_else(|| Path::new("runs").join(&name), PathBuf::from);
        let directory = std::path::absolute(&directory)
            .map_err(|error| Failure::Failed(format!("{}: {error}", directory.display())))?;
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

    /// Refuses a flag that has an effect on training only.
    pub(crate) fn check_only_for_training(&self, flag: &str, is_given: bool) -> Outcome {
        if is_given && !self.trains() {
            return Err(Failure::Usage(format!(
                "{flag} is for `train`, which resumes from its checkpoint; `{}` has none. Remove {flag}.",
                self.command
            )));
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
        .map_err(|error| Failure::Failed(error.to_string()))
}

/// Makes an empty directory.
pub fn fresh(directory: &Path) -> Outcome {
    let failed =
        |error: std::io::Error| Failure::Failed(format!("{}: {error}", directory.display()));
    if directory.exists() {
        fs::remove_dir_all(directory).map_err(failed)?;
    }
    fs::create_dir_all(directory).map_err(failed)
}

/// Splits `--output-dir` and `--resume` from the words of `train`.
fn without_directory(words: &[String]) -> Outcome<(Option<String>, Vec<String>)> {
    let mut chosen = None;
    let mut others = Vec::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let value = match word.split_once('=') {
            Some(("--output-dir", value)) => Some(value.to_owned()),
            _ if word == "--output-dir" => Some(words.next().cloned().unwrap_or_default()),
            _ => None,
        };
        match value {
            Some(value) if value.is_empty() => {
                return Err(Failure::Usage(
                    "--output-dir names no directory: write --output-dir DIR".to_owned(),
                ));
            }
            Some(value) if chosen.is_none() => chosen = Some(value),
            Some(_) => {
                return Err(Failure::Usage(
                    "--output-dir is given twice: keep one".to_owned(),
                ));
            }
            None if word == "--resume" => {}
            None => others.push(word.clone()),
        }
    }
    Ok((chosen, others))
}

/// Returns the directory in the file of `--config`.
fn directory_of_config(words: &[String]) -> Outcome<Option<String>> {
    // Each task of an array has its own file.
    let Some(file) = options::value_of(words, "--config").filter(|file| !file.contains(TASK))
    else {
        return Ok(None);
    };
    let failed = |error: String| {
        Failure::Usage(format!(
            "--config {file}: expected a run's options, which may name its directory: {error}; correct it, or name the directory by --output-dir"
        ))
    };
    // A pipe can be read once, by the trainer.
    if fs::metadata(file)
        .map_err(|error| failed(error.to_string()))?
        .file_type()
        .is_fifo()
    {
        return Ok(None);
    }
    let text = fs::read_to_string(file).map_err(|error| failed(error.to_string()))?;
    let table: toml::Table = text
        .parse()
        .map_err(|error: toml::de::Error| failed(error.message().to_owned()))?;
    let named = table
        .get("run")
        .and_then(|run| run.get("output-dir"))
        .and_then(|named| named.as_str());
    if named == Some("") {
        return Err(failed(
            "output-dir: expected a path, got an empty one".to_owned(),
        ));
    }
    Ok(named.map(str::to_owned))
}

/// Checks a name for file names, scripts and tables.
fn checked_name(name: &str) -> Outcome<&str> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(is_plain) {
        return Ok(name);
    }
    Err(Failure::Usage(format!(
        "--name: expected letters, digits, `-`, `_` and `.`, a letter or digit first, got `{name}`"
    )))
}

/// Returns the time as a part of a name.
fn now() -> Outcome<String> {
    let answer = process::answer("date", &["+%Y%m%d-%H%M%S"]).map(|text| text.trim().to_owned());
    answer.filter(|time| !time.is_empty()).ok_or_else(|| {
        Failure::Failed(
            "the program `date` does not print the time. Name the run by --name.".to_owned(),
        )
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
    fn the_trainers_own_directory_wins_in_both_notations() {
        for line in [
            "train --output-dir /d/x --epochs 3",
            "train --epochs 3 --output-dir=/d/x --resume",
        ] {
            let job = read(line, Some("night")).unwrap();
            assert_eq!(
                (job.directory.as_path(), job.name.as_str()),
                (Path::new("/d/x"), "night")
            );
            assert_eq!(job.words, ["--epochs", "3"]);
        }
    }

    #[test]
    fn the_directory_of_the_configuration_counts_where_the_command_line_names_none() {
        let folder = tempfile::tempdir().unwrap();
        let [named, plain, broken, nameless, pipe] = [
            "named.toml",
            "plain.toml",
            "broken.toml",
            "nameless.toml",
            "pipe",
        ]
        .map(|name| folder.path().join(name));
        write(&named, "[run]\nseed = 1\noutput-dir = \"d/x\"\n").unwrap();
        write(&plain, "[run]\nseed = 1\n").unwrap();
        write(&broken, "[run\n").unwrap();
        let of = |words: &str| read(words, Some("night")).map(|job| job.directory);
        let here = std::env::current_dir().unwrap();
        for line in [
            format!("train --config {}", named.display()),
            format!("train --config={} --epochs 3", named.display()),
        ] {
            assert_eq!(of(&line).unwrap(), here.join("d/x"), "{line}");
            assert_eq!(
                of(&format!("{line} --output-dir /d/y")).unwrap(),
                Path::new("/d/y"),
                "a flag wins"
            );
        }
        assert_eq!(
            of(&format!("train --config {}", plain.display())).unwrap(),
            here.join("runs/night")
        );
        assert!(
            std::process::Command::new("mkfifo")
                .arg(&pipe)
                .status()
                .unwrap()
                .success()
        );
        let piped = of(&format!("train --config {}", pipe.display())).unwrap();
        assert_eq!(
            piped,
            here.join("runs/night"),
            "a pipe is for the trainer to read"
        );
        assert_eq!(
            of("train --config c{task}.toml").unwrap(),
            here.join("runs/night"),
            "each task has its own"
        );
        write(&nameless, "[run]\noutput-dir = \"\"\n").unwrap();
        for file in [broken, nameless, folder.path().join("none.toml")] {
            let failure = of(&format!("train --config {}", file.display())).unwrap_err();
            assert!(
                failure.exit_code() == 2 && failure.to_string().contains("or name the directory"),
                "{failure}"
            );
        }
    }

    #[test]
    fn a_run_without_a_directory_is_placed_by_its_name() {
        let job = read("train", Some("night")).unwrap();
        assert_eq!(
            job.directory,
            std::env::current_dir().unwrap().join("runs/night")
        );
    }

    #[test]
    fn a_run_without_a_name_is_called_by_its_command_and_the_time() {
        let job = read("bench --steps 3", None).unwrap();
        let time = job.name.strip_prefix("bench-").unwrap();
        assert!(
            time.len() == 15 && time.chars().all(|c| c.is_ascii_digit() || c == '-'),
            "{time}"
        );
        assert!(job.directory.ends_with(Path::new("runs").join(&job.name)));
    }

    #[test]
    fn words_of_other_commands_are_left_alone() {
        let job = read("eval --resume --output-dir x", Some("e")).unwrap();
        assert_eq!(job.words, ["--resume", "--output-dir", "x"]);
        assert!(
            job.check_only_for_training("--restarts", true)
                .unwrap_err()
                .to_string()
                .contains("`eval` has none")
        );
        job.check_only_for_training("--restarts", false).unwrap();
    }

    #[test]
    fn what_names_no_run_is_refused() {
        for (line, name, expected) in [
            ("", None, "nothing to start"),
            ("--epochs 3", None, "comes first"),
            ("train --output-dir", None, "names no directory"),
            ("train --output-dir a --output-dir=b", None, "given twice"),
            ("train", Some("a b"), "got `a b`"),
            ("train", Some("../x"), "got `../x`"),
        ] {
            let failure = read(line, name).unwrap_err();
            assert_eq!(failure.exit_code(), 2);
            assert!(failure.to_string().contains(expected), "{failure}");
        }
    }
}
