//! Checks of Slurm's ways to stop a job: a signal, preemption, requeueing, cancelling, the time limit.
//!
//! Out: checks. Invariant: whatever stopped a job, the ranks stop at the same step with one checkpoint, and the run ends with the
//! parameters of the undisturbed one.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use super::Suite;
use super::job::{Job, Request};
use crate::chaos;
use crate::suite::launcher::Launcher;
use crate::suite::run::Run;
use crate::suite::{Check, check, checkpoints, same};
use cluster::json;

pub(super) const CHECKS: [Check<Suite>; 5] = [
    check(
        "scancel --signal=USR1 stops a job with a checkpoint; it queues itself again and ends with the undisturbed parameters",
        |suite| goes_on(suite, "usr1", |job| job.tell("scancel", &["--signal=USR1"])),
    ),
    check(
        "a job that is preempted stops with a checkpoint, and ends with the undisturbed parameters when its turn comes",
        preempted,
    ),
    check(
        "scontrol requeue stops a job with a checkpoint, and it ends with the undisturbed parameters",
        |suite| goes_on(suite, "requeue", |job| job.tell("scontrol", &["requeue"])),
    ),
    check(
        "scancel stops a job with a checkpoint; a new job on 4 ranks instead of 2 ends with the undisturbed parameters",
        cancelled,
    ),
    check(
        "#SBATCH --signal=USR1@… before the time limit stops a job with a checkpoint, and it goes on when requeued",
        out_of_time,
    ),
];

/// Starts a job, disturbs it after its first epoch, and waits until it has ended by itself in a later life.
fn goes_on(
    suite: &Suite,
    name: &str,
    disturb: impl Fn(&Job<'_>) -> Result<(), String>,
) -> Result<(), String> {
    let run = Run::new(suite, name);
    let job = Job::submit(suite, &run, Request::default())?;
    job.wait_for("the first epoch's end", || Ok(run.has_line()))?;
    disturb(&job)?;
    job.wait_for("a second life", || Ok(job.restarts()? > 0))?;
    job.ends("COMPLETED")?;
    went_on(suite, &run, &job)
}

/// Whether the run was stopped and resumed once, and ended as if it had not been.
fn went_on(suite: &Suite, run: &Run, job: &Job<'_>) -> Result<(), String> {
    same(&run.name, suite.undisturbed()?, &run.parameter_hash()?).map_err(|text| job.but(&text))?;
    checkpoints::whole(&run.folder)?;
    let log = job.log();
    let resumed: Vec<&str> = log
        .lines()
        .filter(|line| line.contains("resumed at epoch"))
        .collect();
    // Where the ranks had stopped at different steps, or without a checkpoint, it would begin elsewhere or not at all.
    if resumed.len() != 1 || log.contains("passed over") || run.has_stopped_early()? {
        return Err(job.but(&format!(
            "expected to be resumed once from a whole checkpoint, got {resumed:?}"
        )));
    }
    Ok(())
}

fn preempted(suite: &Suite) -> Result<(), String> {
    goes_on(suite, "preempted", |job| {
        let urgent = [
            "--partition=urgent",
            "--nodes=2",
            "--ntasks=4",
            "--exclusive",
        ];
        let urgent = Job::submit_script(
            suite,
            "urgent",
            &urgent,
            &["--wrap=srun --mpi=none hostname"],
        )?;
        urgent.ends("COMPLETED")?;
        if job.log().contains("stopped") {
            Ok(())
        } else {
            Err(job.but("expected it to stop for the urgent one"))
        }
    })
}

fn cancelled(suite: &Suite) -> Result<(), String> {
    let run = Run::new(suite, "cancelled");
    let job = Job::submit(suite, &run, Request::default())?;
    job.wait_for("the first epoch's end", || Ok(run.has_line()))?;
    job.tell("scancel", &[])?;
    job.ends("CANCELLED")?;
    suite.cluster.wait_until_idle()?;
    let summary = run.file("summary.json").map_err(|text| job.but(&text))?;
    let (steps, saved) = (
        json::number(&summary, "steps"),
        checkpoints::whole(&run.folder)?,
    );
    if !run.has_stopped_early()? || steps != saved.last().map(|step| *step as f64) {
        return Err(job.but(&format!(
            "expected an early stop with a checkpoint of step {steps:?}, got {saved:?}"
        )));
    }
    let job = Job::submit(
        suite,
        &run,
        Request {
            ranks: 4,
            ..Request::default()
        },
    )?;
    job.ends("COMPLETED")?;
    went_on(suite, &run, &job)
}

/// Slurm looks at its limits every half minute and warns up to as much earlier than told. When it looks, a job without work
/// shows; the next time but one meets the training in its first seconds.
fn out_of_time(suite: &Suite) -> Result<(), String> {
    let sign = suite.folder().join("looked-at");
    let wait = format!(
        "trap 'touch {} && exit 0' USR1; while true; do sleep 0.2; done",
        sign.display()
    );
    let options = ["--nodes=1", "--ntasks=1", "--time=1", WARNING];
    let wrapped = format!("--wrap=srun --mpi=none bash -c \"{wait}\"");
    let probe = Job::submit_script(suite, "probe", &options, &[&wrapped])?;
    // Under mpirun, beside the waiting job.
    let expected = suite.undisturbed_long()?.hash.clone();
    probe.wait_for("Slurm's look at the time limit", || Ok(sign.exists()))?;
    let looked = fs::metadata(&sign).and_then(|file| file.modified());
    let looked = looked.map_err(|error| format!("{}: {error}", sign.display()))?;
    let since = looked.elapsed().unwrap_or_default();
    let mut next = PERIOD;
    while next < since + AHEAD {
        next += PERIOD;
    }
    sleep(next - since - AHEAD);

    let run = Run::new(suite, "out-of-time");
    let request = Request {
        options: &["--time=1", WARNING],
        epochs: chaos::EPOCHS,
        ..Request::default()
    };
    let job = Job::submit(suite, &run, request)?;
    job.wait_for("a second life", || Ok(job.restarts()? > 0))?;
    // That one is not to be warned again.
    job.tell("scontrol", &["update", "TimeLimit=30", "JobId"])?;
    job.ends("COMPLETED")?;
    same(&run.name, &expected, &run.parameter_hash()?).map_err(|text| job.but(&text))?;
    checkpoints::whole(&run.folder).map(drop)
}

/// Half a minute before the end of the one minute that is the shortest limit.
const WARNING: &str = "--signal=USR1@30";
/// Between two looks of Slurm at its limits.
const PERIOD: Duration = Duration::from_secs(30);
/// How long before a look the training is submitted.
const AHEAD: Duration = Duration::from_secs(6);
