//! Checks of `trainer slurm`, `watch` and `study` as a user would use them on a cluster.
//!
//! Out: checks. Invariant: everything goes through the commands, nothing through their modules.

use std::fs;

use super::job::BatchJob;
use super::{quick, slurm, undisturbed};
use crate::suite::study::TinyStudy;
use crate::suite::{Check, Checked, Ended, Suite};

pub(super) const CHECKS: [Check; 3] = [
    (
        "slurm submit, status, cancel and logs: a cancelled job keeps a checkpoint, and resumes when submitted again",
        submitted_and_cancelled,
    ),
    (
        "watch of a running job, by its id, shows the ranks of both nodes, and with --until-end it ends when the job has finished",
        watched,
    ),
    (
        "study: its jobs run one after the other, and killed and started again it submits none twice",
        study_killed_and_resumed,
    ),
];

/// Submits a job of one rank on each node.
const SUBMIT: [&str; 6] = [
    "submit",
    "--ntasks-per-node",
    "1",
    "--requeue",
    "--restarts",
    "1",
];

/// Runs `trainer slurm`, which must succeed.
fn succeeds(suite: &Suite, words: &[&str], passed_on: &[String]) -> Checked<Ended> {
    let name = format!("slurm-{}", words[0]);
    let ended = suite.succeed(slurm(suite, words, passed_on)?, &name)?;
    Ok(ended)
}

fn watched(suite: &Suite) -> Checked {
    let run = quick(suite, "watched");
    succeeds(suite, &SUBMIT, &run.words)?;
    let job = BatchJob::last_of(&run)?;
    let watch = |flag: &str| -> Checked<Ended> {
        let mut command = suite.cluster()?.command(&suite.trainer);
        command.args(["watch", &job.id, flag]);
        let ended = suite.succeed(command, "watch")?;
        Ok(ended)
    };
    let has_row = |page: &str, row: [&str; 2]| {
        let mut cells = page.split(['│', '\n']);
        cells.any(|cell| cell.split_whitespace().take(2).eq(row))
    };
    job.wait_for("a page with a rank of each node", || {
        let ended = watch("--once")?;
        let page = ended.text();
        let has_ranks = has_row(page, ["0", "n1"]) && has_row(page, ["1", "n2"]);
        Ok(page.contains("running: ") && has_ranks)
    })?;
    watch("--until-end")?.expect_text(&["finished"])?;
    job.ends("COMPLETED")
}

fn submitted_and_cancelled(suite: &Suite) -> Checked {
    let run = quick(suite, "submitted");
    let folder = run.folder.display().to_string();
    succeeds(suite, &SUBMIT, &run.words)?;
    let job = BatchJob::last_of(&run)?;
    job.wait_for("the end of the first epoch", || Ok(run.has_line()))?;
    succeeds(suite, &["status", &folder], &[])?.expect_text(&["RUNNING"])?;
    succeeds(suite, &["cancel", &folder], &[])?;
    job.ends("COMPLETED")?;
    let has_checkpoint = !run.checkpoints()?.is_empty();
    if job.restarts()? > 0 || !run.stopped_early()? || !has_checkpoint {
        return Err(job.error("expected an early stop with a checkpoint, and no restart"));
    }
    succeeds(suite, &SUBMIT, &run.words)?;
    BatchJob::last_of(&run)?.ends("COMPLETED")?;
    run.expect_hash(&undisturbed(suite)?)?;
    succeeds(suite, &["logs", &folder], &[])?.expect_text(&["resumed at epoch"])
}

/// Kills a study while its jobs are in the queue.
fn study_killed_and_resumed(suite: &Suite) -> Checked {
    let study = TinyStudy::write(suite, "study", "slurm", 1)?;
    let cluster = suite.cluster()?;
    let command = || study.command(cluster.command(&suite.trainer));
    let journal = || {
        let job = |ranks: usize| {
            let run = format!("runs/resnet8-f32-b4-r{ranks}-allreduce-slurm/r1a1/job-id");
            fs::read_to_string(study.folder.join(run)).unwrap_or_default()
        };
        [1, 2].map(job)
    };
    let has_both = || journal().iter().all(|job| !job.is_empty());
    suite.signalled(command(), "study", has_both, "KILL")?;
    let before = journal();
    let ended = suite.succeed(command(), "study")?;
    ended.expect(journal() == before, "no further job")?;
    study.expect_each_once("slurm")?;
    Ok(cluster.wait_until_idle()?)
}
