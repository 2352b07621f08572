//! Checks of Slurm's ways to stop a job: a signal, preemption, requeueing, cancelling, the time
//! limit.
//!
//! Out: checks. Invariant: the ranks stop at the same step with one checkpoint, and the run ends
//! with the parameters of the undisturbed run.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use super::job::BatchJob;
use super::{quick, undisturbed};
use crate::at;
use crate::chaos;
use crate::suite::run::Run;
use crate::suite::{Check, Checked, Suite};

pub(super) const CHECKS: [Check; 5] = [
    (
        "scancel --signal=USR1 stops a job with a checkpoint; it queues itself again and ends with the undisturbed parameters",
        |suite| {
            restarts(suite, "usr1", |job| {
                job.command("scancel", &["--signal=USR1"])
            })
        },
    ),
    (
        "a job that is preempted stops with a checkpoint, and ends with the undisturbed parameters when its turn comes",
        preempted,
    ),
    (
        "scontrol requeue stops a job with a checkpoint, and it ends with the undisturbed parameters",
        |suite| {
            restarts(suite, "requeue", |job| {
                job.command("scontrol", &["requeue"])
            })
        },
    ),
    (
        "scancel stops a job with a checkpoint; a new job on 4 ranks instead of 2 ends with the undisturbed parameters",
        cancelled,
    ),
    (
        "#SBATCH --signal=USR1@… before the time limit stops a job with a checkpoint, and a requeued job resumes",
        out_of_time,
    ),
];

/// Starts a job, disturbs it after its first epoch, and waits for its end after a restart.
fn restarts(suite: &Suite, name: &str, disturb: impl Fn(&BatchJob<'_>) -> Checked) -> Checked {
    let run = quick(suite, name);
    let job = BatchJob::submit(&run, &[])?;
    job.wait_for("the end of the first epoch", || Ok(run.has_line()))?;
    disturb(&job)?;
    job.wait_for_restart()?;
    job.ends("COMPLETED")?;
    expect_resumed_once(&run, &job, &undisturbed(suite)?)
}

fn expect_resumed_once(run: &Run<'_>, job: &BatchJob<'_>, hash: &str) -> Checked {
    run.expect_hash(hash)
        .map_err(|stop| job.error(&format!("{stop:?}")))?;
    run.checkpoints()?;
    let log = job.log();
    let num_resumed = log.matches("resumed at epoch").count();
    // Ranks that stopped at different steps would have no whole checkpoint.
    if num_resumed != 1 || log.contains("skipped: ") || run.stopped_early()? {
        return Err(job.error("expected one resume from a whole checkpoint"));
    }
    Ok(())
}

fn preempted(suite: &Suite) -> Checked {
    restarts(suite, "preempted", |job| {
        let options = [
            "--partition=urgent",
            "--nodes=2",
            "--ntasks=4",
            "--exclusive",
        ];
        let script = "--wrap=srun --mpi=none hostname";
        BatchJob::sbatch(suite, "urgent", &options, script)?.ends("COMPLETED")?;
        match job.log().contains("stopped") {
            true => Ok(()),
            false => Err(job.error("expected a stop for the urgent job")),
        }
    })
}

fn cancelled(suite: &Suite) -> Checked {
    let run = quick(suite, "cancelled");
    let job = BatchJob::submit(&run, &[])?;
    job.wait_for("the end of the first epoch", || Ok(run.has_line()))?;
    job.command("scancel", &[])?;
    job.ends("CANCELLED")?;
    suite.cluster()?.wait_until_idle()?;
    run.expect_stopped_with_checkpoint()?;
    let run = run.on(4);
    let job = BatchJob::submit(&run, &[])?;
    job.ends("COMPLETED")?;
    expect_resumed_once(&run, &job, &undisturbed(suite)?)
}

/// Slurm compares times with limits every half minute, and warns up to half a minute early. A job
/// without work shows when Slurm looks; the training starts a few seconds before a later look.
fn out_of_time(suite: &Suite) -> Checked {
    let sign = suite.folder.join("looked-at");
    let wait = format!(
        "--wrap=srun --mpi=none bash -c \"trap 'touch {} && exit 0' USR1; while sleep 0.2; do :; done\"",
        sign.display()
    );
    let options = ["--nodes=1", "--ntasks=1", "--time=1", WARNING];
    let probe = BatchJob::sbatch(suite, "probe", &options, &wait)?;
    // Under mpirun, while the probe waits.
    let expected = chaos::undisturbed(suite)?;
    probe.wait_for("Slurm's look at the time limit", || Ok(sign.exists()))?;
    let modified = fs::metadata(&sign).and_then(|file| file.modified());
    let since = modified.map_err(at(&sign))?.elapsed().unwrap_or_default();
    let mut next = PERIOD;
    while next < since + AHEAD {
        next += PERIOD;
    }
    sleep(next - since - AHEAD);

    let run = suite.run("out-of-time").epochs(chaos::EPOCHS).quick();
    let job = BatchJob::submit(&run, &["--time=1", WARNING])?;
    job.wait_for_restart()?;
    // The restarted job gets no second warning.
    let limit = format!("JobId={}", job.id);
    let words = ["update", "TimeLimit=30", &limit];
    suite.cluster()?.ask("scontrol", &words)?;
    job.ends("COMPLETED")?;
    run.expect_hash(&expected.hash)?;
    run.checkpoints().map(drop)
}

/// Half a minute before the end of one minute, the shortest limit.
const WARNING: &str = "--signal=USR1@30";
/// Time between two looks of Slurm at its limits.
const PERIOD: Duration = Duration::from_secs(30);
/// Time from the submission of the training to a look.
const AHEAD: Duration = Duration::from_secs(6);
