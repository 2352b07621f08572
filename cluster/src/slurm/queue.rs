//! Jobs in Slurm's queue.
//!
//! In: a job, or none for all jobs of the user. Out: one [`QueuedJob`] for each job or task of an
//! array.
//! Invariant: read-only. An unknown job has no row; other failures are errors.

use std::path::{Path, PathBuf};
use std::process::Command as Process;

use super::request::of_task;
use super::script;
use crate::failure::{Failure, Outcome};
use crate::process;

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
pub(super) struct QueuedJob {
    /// `12`, or `12_3` for a task of an array.
    pub(super) job: String,
    pub(super) state: String,
    pub(super) reason: String,
    pub(super) elapsed: String,
    pub(super) limit: String,
    pub(super) num_nodes: String,
    pub(super) nodes: String,
    pub(super) name: String,
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

fn rows(which: &[&str]) -> Outcome<Vec<QueuedJob>> {
    let mut command = Process::new("squeue");
    command
        .args(["--noheader", "--array", &format!("--format={FORMAT}")])
        .args(which);
    match process::ask(&mut command)? {
        Ok(text) => text
            .lines()
            .filter(|line| !line.trim().is_empty())
            .map(row)
            .collect(),
        Err(complaint) if complaint.contains("Invalid job id") => Ok(Vec::new()),
        Err(complaint) => Err(Failure::Failed(format!(
            "`{}`: {complaint}",
            process::shown(&command)
        ))),
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
        return Err(Failure::Failed(format!(
            "squeue: expected {NUM_FIELDS} fields separated by `|`, got `{line}`"
        )));
    };
    let own = |text: &str| text.to_owned();
    Ok(QueuedJob {
        job: own(job),
        state: own(state),
        reason: own(reason),
        elapsed: own(elapsed),
        limit: own(limit),
        num_nodes: own(num_nodes),
        nodes: own(nodes),
        name: own(name),
        directory: directory(job, Path::new(script)),
    })
}

fn directory(job: &str, file: &Path) -> Option<PathBuf> {
    let directory = file
        .parent()
        .filter(|_| file.file_name().is_some_and(|name| name == script::FILE))?;
    Some(match job.split_once('_') {
        Some((_, task)) => of_task(directory, task),
        None => directory.to_owned(),
    })
}

impl QueuedJob {
    pub(super) fn is_in_queue(&self) -> bool {
        !ENDED.contains(&self.state.as_str())
    }

    pub(super) fn is_running(&self) -> bool {
        self.state == "RUNNING"
    }

    /// Returns the state with its reason.
    pub(super) fn explained_state(&self) -> String {
        if self.reason == "None" {
            self.state.clone()
        } else {
            format!("{} ({})", self.state, self.reason)
        }
    }

    /// Returns state, reason, time and place in one line.
    pub(super) fn line(&self) -> String {
        let QueuedJob {
            job,
            name,
            elapsed,
            limit,
            num_nodes,
            nodes,
            ..
        } = self;
        let state = self.explained_state();
        let place = if nodes.is_empty() {
            String::new()
        } else {
            format!(": {nodes}")
        };
        let plural = if num_nodes == "1" { "" } else { "s" };
        format!("job {job} {name}: {state}, {elapsed} of {limit}, {num_nodes} node{plural}{place}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_knows_its_runs_directory() {
        let of = |line: &str| row(line).unwrap();
        let job = of("12|RUNNING|None|1:02|10:00|2|n[1-2]|night|/d/a b|c/job.sbatch");
        assert_eq!(job.directory, Some(PathBuf::from("/d/a b|c")));
        assert_eq!(
            job.line(),
            "job 12 night: RUNNING, 1:02 of 10:00, 2 nodes: n[1-2]"
        );
        assert_eq!(
            of("12_3|PENDING|Resources|0:00|10:00|2||n|/d/n/job.sbatch").directory,
            Some("/d/n-3".into())
        );
        assert_eq!(
            of("13|RUNNING|None|0:01|UNLIMITED|1|n1|other|/d/n/other.sh").directory,
            None
        );
    }

    #[test]
    fn only_states_that_last_are_out_of_the_queue() {
        let of = |state: &str| {
            row(&format!("1|{state}|r|0:0|0:0|1|n|n|x"))
                .unwrap()
                .is_in_queue()
        };
        assert!(
            ["PENDING", "RUNNING", "COMPLETING", "REQUEUED", "SUSPENDED"]
                .into_iter()
                .all(of)
        );
        assert!(
            !["COMPLETED", "CANCELLED", "FAILED", "TIMEOUT"]
                .into_iter()
                .any(of)
        );
    }

    #[test]
    fn a_line_in_another_form_is_an_error() {
        assert!(
            row("12 RUNNING")
                .unwrap_err()
                .to_string()
                .contains("got `12 RUNNING`")
        );
    }
}
