//! The job that a word names: by its id, or by its run's directory.
//!
//! In: a word. Out: [`NamedJob`].
//! Invariant: a directory names the last job of its run.

use std::path::{Path, PathBuf};

use super::{queue, require};
use crate::failure::{Failure, Outcome};

/// File with the ids of a run's jobs, one on each line, in the run's directory.
pub(super) const JOBS: &str = "job-id";

/// A job, or an array's task.
#[derive(Debug, PartialEq)]
pub(super) struct NamedJob {
    /// `12` or `12_3`.
    pub(super) job: String,
    /// Known if the word was a directory.
    pub(super) directory: Option<PathBuf>,
}

impl NamedJob {
    /// Reads the word.
    pub(super) fn read(word: &str) -> Outcome<Self> {
        if is_job(word) {
            return Ok(NamedJob {
                job: word.to_owned(),
                directory: None,
            });
        }
        let directory = Path::new(word);
        if !directory.is_dir() {
            return Err(Failure::Usage(format!(
                "`{word}` is neither a job's id, such as 12 or 12_3, nor a directory"
            )));
        }
        let job = recorded_job(directory)?.ok_or_else(|| {
            Failure::Failed(format!(
                "{word} has no file `{JOBS}`: expected a directory that `trainer slurm submit` was given or made"
            ))
        })?;
        Ok(NamedJob {
            job,
            directory: Some(directory.to_owned()),
        })
    }

    pub(super) fn unknown(&self) -> Failure {
        let remedy = match self.directory {
            Some(_) => "it has left Slurm's memory",
            None => {
                "expected one that `squeue` shows; a job that ended long ago is named by its run's directory"
            }
        };
        Failure::Failed(format!("job {} is unknown to Slurm: {remedy}", self.job))
    }
}

/// Returns the directory of a run that is named by itself or by its job.
///
/// # Errors
/// Slurm does not know the job; the job was not submitted by `trainer slurm submit`.
pub fn directory_of_run(word: &str) -> Outcome<PathBuf> {
    if !is_job(word) || Path::new(word).is_dir() {
        return Ok(PathBuf::from(word));
    }
    require()?;
    let directory = queue::of_job(word)?
        .into_iter()
        .find_map(|row| row.directory);
    directory.ok_or_else(|| {
        NamedJob {
            job: word.to_owned(),
            directory: None,
        }
        .unknown()
    })
}

/// Returns the last job of a run.
pub fn recorded_job(directory: &Path) -> Outcome<Option<String>> {
    let file = directory.join(JOBS);
    if !file.exists() {
        return Ok(None);
    }
    let text = records::file::read_to_string(&file)
        .map_err(|error| Failure::Failed(format!("cannot read {}: {error}", file.display())))?;
    match text.lines().map(str::trim).rfind(|line| !line.is_empty()) {
        // A crash can leave the file empty.
        None => Ok(None),
        Some(job) if is_job(job) => Ok(Some(job.to_owned())),
        Some(other) => Err(Failure::Failed(format!(
            "{}: expected a job's id in its last line, got `{other}`: remove that line if `squeue` shows no job of this run",
            file.display(),
        ))),
    }
}

fn is_job(word: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_digit());
    match word.split_once('_') {
        Some((job, task)) => is_number(job) && is_number(task),
        None => is_number(word),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_number_is_a_job_and_a_directory_has_its_last_one() {
        assert_eq!(NamedJob::read("12_3").unwrap().job, "12_3");
        let directory = tempfile::tempdir().unwrap();
        let word = directory.path().to_str().unwrap();
        assert!(
            NamedJob::read(word)
                .unwrap_err()
                .to_string()
                .contains("no file `job-id`")
        );
        fs::write(directory.path().join(JOBS), "").unwrap();
        assert_eq!(
            recorded_job(directory.path()).unwrap(),
            None,
            "a crash leaves it empty"
        );
        fs::write(directory.path().join(JOBS), "7\n12\n").unwrap();
        assert_eq!(
            NamedJob::read(word).unwrap(),
            NamedJob {
                job: "12".into(),
                directory: Some(directory.path().to_owned())
            }
        );
        fs::write(directory.path().join(JOBS), "twelve\n").unwrap();
        assert!(
            NamedJob::read(word)
                .unwrap_err()
                .to_string()
                .contains("got `twelve`")
        );
    }

    #[cfg(unix)]
    #[test]
    fn a_named_pipe_among_the_files_is_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        assert!(
            std::process::Command::new("mkfifo")
                .arg(directory.path().join(JOBS))
                .status()
                .unwrap()
                .success()
        );
        let error = recorded_job(directory.path()).unwrap_err().to_string();
        assert!(error.contains("expected a regular file"), "{error}");
    }

    #[test]
    fn a_word_that_is_neither_is_wrong_usage() {
        for word in ["12_", "no-such-directory", ""] {
            assert_eq!(NamedJob::read(word).unwrap_err().exit_code(), 2, "{word}");
        }
    }
}
