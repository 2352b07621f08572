//! `trainer slurm cancel`: ends a job, with a checkpoint if possible.
//!
//! In: a job's id or a run's directory. Out: the job has left the queue; each step is printed.
//! Invariant: requeueing is turned off first, so that the job does not come back.

use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use clap::Args;

use super::queue::{JOBS, NamedJob, QueuedJob};
use super::{answer, queue, require, status};
use crate::failure::{Outcome, failed};
use crate::options;
use crate::output::say;

const DEFAULT_WAIT_S: usize = 120;
/// Slurm kills a job KillWait (by default 30 s) after a plain scancel.
const END_WAIT: Duration = Duration::from_secs(90);
const PAUSE: Duration = Duration::from_secs(1);
/// A job that has just begun loses signals.
const ASK_AGAIN: Duration = Duration::from_secs(3);

/// Flags of `trainer slurm cancel`.
#[derive(Debug, Clone, Args)]
#[command(after_help = DETAILS)]
pub struct CancelArgs {
    /// Id of the job, or the run's directory.
    #[arg(value_name = "JOB|DIR")]
    job: String,

    /// Cancel without a checkpoint [default: off]
    #[arg(long, conflicts_with = "wait")]
    now: bool,

    /// Longest wait for the checkpoint, seconds [default: 120]
    #[arg(long, value_name = "SECONDS", value_parser = options::count)]
    wait: Option<usize>,
}

const DETAILS: &str = "\
A running job is asked to stop at its next step, writes a checkpoint and ends; one that has not ended after so many \
seconds, one that has not begun, and any with --now is cancelled by plain scancel.";

impl CancelArgs {
    pub(super) fn run(&self) -> Outcome {
        let target = NamedJob::read(&self.job)?;
        require()?;
        let rows = queue::of_job(&target.job)?;
        if rows.is_empty() && target.directory.is_none() {
            return Err(target.unknown());
        }
        let (running, waiting): (Vec<QueuedJob>, Vec<QueuedJob>) = rows
            .into_iter()
            .filter(QueuedJob::is_in_queue)
            .partition(|row| row.is_running() && !self.now);
        if running.is_empty() && waiting.is_empty() {
            say!("job {} has left the queue: nothing to cancel", target.job);
            return Ok(());
        }
        for row in &waiting {
            cancel(&row.job, &row.state)?;
        }
        let asked_at = SystemTime::now();
        for row in &running {
            answer(
                "scontrol",
                &["update", &format!("JobId={}", row.job), "Requeue=0"],
            )?;
            ask_to_stop(row);
            say!("job {}: asked to stop with a checkpoint", row.job);
        }
        let patience = Duration::from_secs(self.wait.unwrap_or(DEFAULT_WAIT_S) as u64);
        let deadline = Instant::now() + patience;
        for row in &running {
            end(row, asked_at, deadline)?;
        }
        Ok(())
    }
}

/// Cancels by a plain scancel.
fn cancel(job: &str, state: &str) -> Outcome {
    answer("scancel", &[job])?;
    say!("job {job}: cancelled ({state} before)");
    Ok(())
}

/// Sends SIGUSR1 to a script written here, which passes it to its ranks; to the ranks of another
/// script, which would end by the signal.
fn ask_to_stop(row: &QueuedJob) {
    let is_ours = row
        .directory
        .as_deref()
        .is_some_and(|directory| directory.join(JOBS).exists());
    let script: &[&str] = if is_ours { &["--batch"] } else { &[] };
    // A failure is repeated later.
    answer("scancel", &[script, &["--signal=USR1", &row.job]].concat()).ok();
}

/// Waits for the end of a job, and asks it again; past the deadline the job is cancelled.
fn end(row: &QueuedJob, asked_at: SystemTime, deadline: Instant) -> Outcome {
    let job = &row.job;
    let mut asked = Instant::now();
    let state = left_queue(job, deadline, |now| {
        if now.is_running() && asked.elapsed() > ASK_AGAIN {
            ask_to_stop(row);
            asked = Instant::now();
        }
        now.state == "PENDING"
    });
    if let Ok(Some(state)) = state {
        if state == "PENDING" {
            // Its script asked for a requeue just before that was turned off.
            return cancel(job, &state);
        }
        let directory = row.directory.as_deref();
        let summary = directory.and_then(|directory| summary_since(directory, asked_at));
        let end = summary.as_deref().map_or("see its output", status::end);
        say!("job {job}: {state}, {end}");
        return Ok(());
    }
    say!("job {job}: still there; cancelling it without waiting any longer");
    answer("scancel", &[job])?;
    if left_queue(job, Instant::now() + END_WAIT, |_| false)?.is_some() {
        say!("job {job}: cancelled");
        return Ok(());
    }
    Err(failed!(
        "job {job} is still in the queue {} s after scancel: expected Slurm to kill it after its KillWait. See `scontrol show job {job}`",
        END_WAIT.as_secs()
    ))
}

/// Waits until a job has left the queue or `is_over` returns true; returns its state, or `None` at
/// the deadline. A failure of Slurm counts only at the deadline: a controller may be busy or
/// restarting.
fn left_queue(
    job: &str,
    deadline: Instant,
    mut is_over: impl FnMut(&QueuedJob) -> bool,
) -> Outcome<Option<String>> {
    let mut last = Ok(None);
    while Instant::now() < deadline {
        last = queue::of_job(job).map(|rows| match rows.first() {
            Some(row) if row.is_in_queue() && !is_over(row) => None,
            row => Some(row.map_or("gone", |row| row.state.as_str()).to_owned()),
        });
        if let Ok(Some(_)) = last {
            break;
        }
        sleep(PAUSE);
    }
    last
}

/// Returns the summary that the run has written since that time.
fn summary_since(directory: &Path, time: SystemTime) -> Option<String> {
    let file = directory.join("summary.json");
    let written = fs::metadata(&file)
        .and_then(|found| found.modified())
        .ok()?;
    // The clock of a file server may be slow.
    let is_new = written + Duration::from_secs(5) > time;
    records::file::read_to_string(&file).ok().filter(|_| is_new)
}
