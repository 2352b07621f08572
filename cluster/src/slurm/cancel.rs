//! `trainer slurm cancel`: ends a job, with a checkpoint if possible.
//!
//! In: a job's id or a run's directory. Out: the job has left the queue; each step is printed.
//! Invariant: requeueing is turned off first, so that the job does not come back.

use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use clap::Args;

use super::queue::QueuedJob;
use super::target::{JOBS, NamedJob};
use super::{answer, queue, require, status};
use crate::failure::{Failure, Outcome};
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
A running job is asked to stop at its next step, writes a checkpoint and ends; one that has not ended after so many
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
            cancel(row)?;
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
        let deadline =
            Instant::now() + Duration::from_secs(self.wait.unwrap_or(DEFAULT_WAIT_S) as u64);
        for row in &running {
            await_stop(row, asked_at, deadline)?;
        }
        Ok(())
    }
}

/// Cancels by a plain scancel.
fn cancel(row: &QueuedJob) -> Outcome {
    answer("scancel", &[&row.job])?;
    say!("job {}: cancelled ({} before)", row.job, row.state);
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
fn await_stop(row: &QueuedJob, asked_at: SystemTime, deadline: Instant) -> Outcome {
    let mut asked = Instant::now();
    while Instant::now() < deadline {
        let Ok(rows) = answered(deadline, || queue::of_job(&row.job)) else {
            break;
        };
        match rows.first() {
            // Its script asked for a requeue just before that was turned off.
            Some(now) if now.state == "PENDING" => return cancel(now),
            Some(now) if now.is_in_queue() => {
                if now.is_running() && asked.elapsed() > ASK_AGAIN {
                    ask_to_stop(row);
                    asked = Instant::now();
                }
                sleep(PAUSE);
            }
            now => {
                let state = now.map_or("gone", |now| now.state.as_str());
                let summary = row
                    .directory
                    .as_deref()
                    .and_then(|directory| summary_since(directory, asked_at));
                let end = summary.as_deref().map_or("see its output", status::end);
                say!("job {}: {state}, {end}", row.job);
                return Ok(());
            }
        }
    }
    say!(
        "job {}: still there; cancelling it without waiting any longer",
        row.job
    );
    answer("scancel", &[&row.job])?;
    let end = Instant::now() + END_WAIT;
    while Instant::now() < end {
        if !answered(end, || queue::of_job(&row.job))?
            .iter()
            .any(QueuedJob::is_in_queue)
        {
            say!("job {}: cancelled", row.job);
            return Ok(());
        }
        sleep(PAUSE);
    }
    Err(Failure::Failed(format!(
        "job {} is still in the queue {} s after scancel: expected Slurm to kill it after its KillWait. See `scontrol show job {}`",
        row.job,
        END_WAIT.as_secs(),
        row.job
    )))
}

/// Asks Slurm, again until the deadline if it fails: a controller may be busy or restarting.
fn answered<T>(deadline: Instant, mut ask: impl FnMut() -> Outcome<T>) -> Outcome<T> {
    loop {
        match ask() {
            Err(_) if Instant::now() < deadline => sleep(PAUSE),
            answer => return answer,
        }
    }
}

/// Returns the summary that the run has written since that time.
fn summary_since(directory: &Path, time: SystemTime) -> Option<String> {
    let file = directory.join("summary.json");
    let written = fs::metadata(&file)
        .and_then(|found| found.modified())
        .ok()?;
    // The clock of a file server may be slow.
    if written + Duration::from_secs(5) > time {
        records::file::read_to_string(&file).ok()
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slurm_is_asked_again_where_it_fails_until_the_deadline() {
        let mut answers = vec![
            Ok("gone"),
            Err(Failure::Failed("Socket timed out".to_owned())),
        ];
        let later = Instant::now() + Duration::from_secs(60);
        assert_eq!(answered(later, || answers.pop().unwrap()).unwrap(), "gone");
        let never = answered(Instant::now(), || {
            Err::<(), _>(Failure::Failed("Socket timed out".to_owned()))
        });
        assert_eq!(never.unwrap_err().to_string(), "Socket timed out");
    }
}
