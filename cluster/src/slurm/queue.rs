//! Jobs in Slurm's queue, and the job that a word names: by its id, or by its run's directory.
//!
//! In: a job, or none for all jobs of the user. Out: one [`QueuedJob`] for each job or task of an
//! array; [`NamedJob`].
//! Invariant: read-only. An unknown job has no row; other failures are errors. A directory names
//! the last job of its run.

use std::path::{Path, PathBuf};
use std::process::Command as Process;

use super::request::of_task;
use super::{require, script};
use crate::failure::{Failure, Outcome, at, failed, usage};
use crate::process;

/// File with the ids of a run's jobs, one on each line, in the run's directory.
pub(super) const JOBS: &str = "job-id";

/// The separator is in none of the names; the path, which may contain it, comes last.
const FORMAT: &str = "%i|%T|%r|%M|%l|%D|%N|%j|%o";
const NUM_FIELDS: usize = 9;

/// Final states.
const ENDED: [&str; 10] = [
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "REVOKED",
    "TIMEOUT",
];

/// A job in squeue's output.
#[derive(Debug, PartialEq)]
pub struct QueuedJob {
    /// `12`, or `12_3` for a task of an array.
    pub(super) job: String,
    pub(super) state: String,
    /// Slurm's reason for the state, `None` without a reason.
    pub reason: String,
    /// Name, state, reason, time and place.
    pub(super) line: String,
    /// Run's directory, for jobs of `trainer slurm submit`.
    pub(super) directory: Option<PathBuf>,
}

/// Returns the user's jobs in the queue.
pub(super) fn of_user() -> Outcome<Vec<QueuedJob>> {
    rows(&["--me"])
}

/// Returns the rows of a job, also of one that has ended while Slurm remembers it.
pub(super) fn of_job(job: &str) -> Outcome<Vec<QueuedJob>> {
    rows(&["--states=all", &format!("--jobs={job}")])
}

/// Returns the row of a job; `None` if Slurm has forgotten it, or it was never submitted.
pub fn job(job: &str) -> Outcome<Option<QueuedJob>> {
    Ok(of_job(job)?.into_iter().next())
}

fn rows(which: &[&str]) -> Outcome<Vec<QueuedJob>> {
    let mut command = Process::new("squeue");
    command
        .args(["--noheader", "--array", &format!("--format={FORMAT}")])
        .args(which);
    match process::ask_for(&mut command) {
        Ok(text) => {
            let lines = text.lines().filter(|line| !line.trim().is_empty());
            lines.map(row).collect()
        }
        Err(failure) if failure.to_string().contains("Invalid job id") => Ok(Vec::new()),
        Err(failure) => Err(failed!(
            "{failure}. If Slurm's controller does not answer: try again later, or on a submit host of the cluster"
        )),
    }
}

fn row(line: &str) -> Outcome<QueuedJob> {
    let fields: Vec<&str> = line.splitn(NUM_FIELDS, '|').map(str::trim).collect();
    let [
        job,
        state,
        reason,
        elapsed,
        limit,
        num_nodes,
        nodes,
        name,
        script,
    ] = fields[..]
    else {
        return Err(failed!(
            "squeue: expected {NUM_FIELDS} fields separated by `|`, got `{line}`"
        ));
    };
    let file = Path::new(script);
    let folder = file
        .parent()
        .filter(|_| file.file_name().is_some_and(|name| name == script::FILE));
    let mut row = QueuedJob {
        job: job.to_owned(),
        state: state.to_owned(),
        reason: reason.to_owned(),
        line: String::new(),
        directory: folder.map(|folder| match job.split_once('_') {
            Some((_, task)) => of_task(folder, task),
            None => folder.to_owned(),
        }),
    };
    let plural = if num_nodes == "1" { "" } else { "s" };
    let place = if nodes.is_empty() { "" } else { ": " };
    row.line = format!(
        "job {job} {name}: {}, {elapsed} of {limit}, {num_nodes} node{plural}{place}{nodes}",
        row.explained_state()
    );
    Ok(row)
}

impl QueuedJob {
    /// Returns whether the job has not ended.
    pub fn is_in_queue(&self) -> bool {
        !ENDED.contains(&self.state.as_str())
    }

    /// Returns whether the job is on its nodes.
    pub fn is_running(&self) -> bool {
        self.state == "RUNNING"
    }

    /// Returns the state with its reason.
    pub(super) fn explained_state(&self) -> String {
        match self.reason.as_str() {
            "None" => self.state.clone(),
            reason => format!("{} ({reason})", self.state),
        }
    }
}

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
            return Err(usage!(
                "`{word}` is neither a job's id, such as 12 or 12_3, nor a directory"
            ));
        }
        let job = recorded_job(directory)?.ok_or_else(|| {
            failed!("{word} has no file `{JOBS}`: expected the directory of a run that Slurm has accepted from `trainer slurm submit`")
        })?;
        Ok(NamedJob {
            job,
            directory: Some(directory.to_owned()),
        })
    }

    pub(super) fn unknown(&self) -> Failure {
        failed!(
            "job {} is unknown to Slurm: expected one that `squeue` shows; a job that ended long ago is named by its run's directory",
            self.job
        )
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
    let mut rows = of_job(word)?.into_iter();
    let directory = rows.find_map(|row| row.directory);
    directory.map_or_else(|| Err(NamedJob::read(word)?.unknown()), Ok)
}

/// Returns the last job of a run.
pub fn recorded_job(directory: &Path) -> Outcome<Option<String>> {
    let file = directory.join(JOBS);
    if !file.exists() {
        return Ok(None);
    }
    let text = records::file::read_to_string(&file).map_err(at(&file))?;
    match text.lines().map(str::trim).rfind(|line| !line.is_empty()) {
        // A crash can leave the file empty.
        None => Ok(None),
        Some(job) if is_job(job) => Ok(Some(job.to_owned())),
        Some(other) => Err(failed!(
            "{}: expected a job's id in its last line, got `{other}`: remove that line if `squeue` shows no job of this run",
            file.display()
        )),
    }
}

fn is_job(word: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_digit());
    word.splitn(2, '_').all(is_number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_row_has_the_directory_of_its_run_and_a_line() {
        for (line, directory, shown) in [
            (
                "12|RUNNING|None|1:02|10:00|2|n[1-2]|night|/d/a b|c/job.sbatch",
                Some("/d/a b|c"),
                "job 12 night: RUNNING, 1:02 of 10:00, 2 nodes: n[1-2]",
            ),
            (
                "12_3|PENDING|Resources|0:00|10:00|2||n|/d/n/job.sbatch",
                Some("/d/n-3"),
                "job 12_3 n: PENDING (Resources), 0:00 of 10:00, 2 nodes",
            ),
            (
                "13|RUNNING|None|0:01|UNLIMITED|1|n1|other|/d/n/other.sh",
                None,
                "job 13 other: RUNNING, 0:01 of UNLIMITED, 1 node: n1",
            ),
        ] {
            let row = row(line).unwrap();
            assert_eq!(row.directory.as_deref(), directory.map(Path::new));
            assert_eq!(row.line, shown);
        }
        let other = row("12 RUNNING").unwrap_err().to_string();
        assert!(other.contains("got `12 RUNNING`"), "{other}");
    }

    #[test]
    fn only_final_states_are_out_of_the_queue() {
        for (states, is_in_queue) in [
            ("PENDING RUNNING COMPLETING REQUEUED SUSPENDED", true),
            ("COMPLETED CANCELLED FAILED TIMEOUT", false),
        ] {
            for state in states.split(' ') {
                let row = row(&format!("1|{state}|r|0:0|0:0|1|n|n|x")).unwrap();
                assert_eq!(row.is_in_queue(), is_in_queue, "{state}");
            }
        }
    }

    #[test]
    fn a_number_is_a_job_and_a_directory_has_its_last_one() {
        assert_eq!(NamedJob::read("12_3").unwrap().job, "12_3");
        for word in ["12_", "no-such-directory", ""] {
            assert_eq!(NamedJob::read(word).unwrap_err().exit_code(), 2, "{word}");
        }
        let directory = tempfile::tempdir().unwrap();
        let word = directory.path().to_str().unwrap();
        let refusal = || NamedJob::read(word).unwrap_err().to_string();
        assert!(refusal().contains("no file `job-id`"));
        let file = directory.path().join(JOBS);
        // A crash leaves it empty.
        fs::write(&file, "").unwrap();
        assert_eq!(recorded_job(directory.path()).unwrap(), None);
        fs::write(&file, "7\n12\n").unwrap();
        let named = NamedJob::read(word).unwrap();
        assert_eq!(named.job, "12");
        assert_eq!(named.directory.as_deref(), Some(directory.path()));
        fs::write(&file, "twelve\n").unwrap();
        assert!(refusal().contains("got `twelve`"));
        fs::remove_file(&file).unwrap();
        let made = Process::new("mkfifo").arg(&file).status().unwrap();
        assert!(made.success());
        assert!(refusal().contains("expected a regular file"));
    }
}
