//! `trainer slurm cancel`: ends a job, with a checkpoint where it can be had.
//!
//! In: a job's id or a run's directory. Out: the job, gone from the queue; each step said.
//! Invariant: requeueing is turned off before anything else, so that the job does not come back.

use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use clap::Args;

use super::queue::Row;
use super::target::{JOBS, Target};
use super::{answer, queue, require, status};
use crate::failure::{Failure, Outcome};
use crate::options;
use crate::output::say;

const DEFAULT_WAIT_S: usize = 120;
/// After plain scancel Slurm waits for its KillWait (by default 30 s) before it kills.
const END_WAIT: Duration = Duration::from_secs(90);
const PAUSE: Duration = Duration::from_secs(1);
/// A job that has only just begun loses what it is told.
const ASK_AGAIN: Duration = Duration::from_secs(3);

/// Flags of `trainer slurm cancel`.
#[derive(Debug, Clone, Args)]
#[command(after_help = DETAILS)]
pub struct CancelArgs {
    /// The job.
    #[arg(value_name = "JOB|DIR")]
    job: String,

    /// Do not ask, cancel [default: off]
    #[arg(long, conflicts_with = "wait")]
    now: bool,

    /// How long to wait for the checkpoint [default: 120]
    #[arg(long, value_name = "SECONDS", value_parser = options::count)]
    wait: Option<usize>,
}

const DETAILS: &str = "\
A running job is asked to stop at its next step, writes a checkpoint and ends; one that has not ended after so many
seconds, one that has not begun, and any with --now is cancelled by plain scancel.";

impl CancelArgs {
    pub(super) fn run(&self) -> Outcome {
        let target = Target::read(&self.job)?;
        require()?;
        let rows = queue::of_job(&target.job)?;
        if rows.is_empty() && target.directory.is_none() {
            return Err(target.unknown());
        }
        let (running, waiting): (Vec<Row>, Vec<Row>) = rows
            .into_iter()
            .filter(Row::is_in_queue)
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

/// Plain scancel.
fn cancel(row: &Row) -> Outcome {
    answer("scancel", &[&row.job])?;
    say!("job {}: cancelled ({} before)", row.job, row.state);
    Ok(())
}

/// A script of ours passes the wish on to its ranks, and does not start them once it knows of it. Another's would end by it: there
/// the ranks are asked themselves.
fn ask_to_stop(row: &Row) {
    let is_ours = row
        .directory
        .as_deref()
        .is_some_and(|directory| directory.join(JOBS).exists());
    let script: &[&str] = if is_ours { &["--batch"] } else { &[] };
    // Who cannot be asked yet is asked again.
    answer("scancel", &[script, &["--signal=USR1", &row.job]].concat()).ok();
}

/// Waits for a job that was asked, and asks it again; past the deadline it is cancelled.
fn await_stop(row: &Row, asked_at: SystemTime, deadline: Instant) -> Outcome {
    let mut asked = Instant::now();
    while Instant::now() < deadline {
        let Ok(rows) = answered(deadline, || queue::of_job(&row.job)) else {
            break;
        };
        match rows.first() {
            // Its script had asked to be queued again just before that was turned off.
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
            .any(Row::is_in_queue)
        {
            say!("job {}: cancelled", row.job);
            return Ok(());
        }
        sleep(PAUSE);
    }
    Err(Failure::Failed(format!(
        "job {} is still in the queue {} s after scancel: expected Slurm to kill it after its KillWait; `scontrol show job {}` \
         tells its state",
        row.job,
        END_WAIT.as_secs(),
        row.job
    )))
}

/// The answer of Slurm, which is asked again until the deadline where it fails: a controller that is busy or starts anew does.
fn answered<T>(deadline: Instant, mut ask: impl FnMut() -> Outcome<T>) -> Outcome<T> {
    loop {
        match ask() {
            Err(_) if Instant::now() < deadline => sleep(PAUSE),
            answer => return answer,
        }
    }
}

/// What the run has written at its end, after that time.
fn summary_since(directory: &Path, time: SystemTime) -> Option<String> {
    let file = directory.join("summary.json");
    let written = fs::metadata(&file)
        .and_then(|found| found.modified())
        .ok()?;
    // A file server's clock may be a little behind ours.
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
