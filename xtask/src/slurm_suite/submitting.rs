//! A check of `trainer slurm` as a user would use it: submit, status, cancel, submit again, logs.
//!
//! Out: checks. Invariant: everything goes through the commands, nothing through their modules.

use std::fs;

use super::job::Job;
use super::{EPOCHS, Suite};
use crate::suite::launcher::Launcher;
use crate::suite::run::{LIMIT_S, QUICK, Run, arguments, instead};
use crate::suite::{Check, Ended, check, checkpoints, same};

pub(super) const CHECKS: [Check<Suite>; 2] = [
    check(
        "slurm submit, status, cancel and logs: a job that is cancelled keeps a checkpoint, and submitted again it goes on",
        submitted_and_cancelled,
    ),
    check(
        "watch of a running job, by its id, shows the ranks of both nodes, and with --until-end it ends when the job has finished",
        watched,
    ),
];

/// A job of one rank on each node.
const SUBMIT: [&str; 6] = [
    "submit",
    "--ntasks-per-node",
    "1",
    "--requeue",
    "--restarts",
    "1",
];

/// `trainer slurm` with these words, which succeeds.
fn slurm(suite: &Suite, name: &str, words: &[&str], passed_on: &[String]) -> Result<Ended, String> {
    let log = suite.folder().join(format!("slurm-{name}.log"));
    let ended = Ended::of(suite.slurm(words, passed_on), &log, 200)?;
    ended.expect_success()?;
    Ok(ended)
}

fn watched(suite: &Suite) -> Result<(), String> {
    let run = Run::new(suite, "watched");
    slurm(
        suite,
        "watched",
        &SUBMIT,
        &instead(arguments(&run.folder, EPOCHS), &QUICK),
    )?;
    let job = submitted(suite, &run)?;
    let watch = |flag: &str| -> Result<Ended, String> {
        let mut command = suite.cluster.command(suite.trainer());
        command.args(["watch", &job.id, flag]);
        let ended = Ended::of(
            command,
            &suite.folder().join(format!("watch{flag}.log")),
            LIMIT_S,
        )?;
        ended.expect_success()?;
        Ok(ended)
    };
    let has_row = |page: &str, row: [&str; 2]| {
        page.split(['│', '\n'])
            .any(|cell| cell.split_whitespace().take(2).eq(row))
    };
    job.wait_for("the page of a running run with a rank of each node", || {
        let page = watch("--once")?.finished.text;
        Ok(page.contains("running: ")
            && [["0", "n1"], ["1", "n2"]]
                .into_iter()
                .all(|row| has_row(&page, row)))
    })?;
    let page = watch("--until-end")?;
    page.expect(
        page.finished.text.contains("finished"),
        "the page of a finished run",
    )?;
    job.ends("COMPLETED")
}

fn submitted_and_cancelled(suite: &Suite) -> Result<(), String> {
    let run = Run::new(suite, "submitted");
    let folder = run.folder.display().to_string();
    let words = instead(arguments(&run.folder, EPOCHS), &QUICK);
    let command =
        |name: &str, words: &[&str], passed_on: &[String]| slurm(suite, name, words, passed_on);
    command("submit", &SUBMIT, &words)?;
    let job = submitted(suite, &run)?;
    job.wait_for("the first epoch's end", || Ok(run.has_line()))?;
    let status = command("status", &["status", &folder], &[])?;
    status.expect(
        status.finished.text.contains("RUNNING"),
        "RUNNING and the last epoch",
    )?;
    command("cancel", &["cancel", &folder], &[])?;
    job.ends("COMPLETED")?;
    if job.restarts()? > 0
        || !run.has_stopped_early()?
        || checkpoints::whole(&run.folder)?.is_empty()
    {
        return Err(job.but("expected an early stop with a checkpoint, and no further life"));
    }
    command("submit-again", &SUBMIT, &words)?;
    submitted(suite, &run)?.ends("COMPLETED")?;
    same(&run.name, suite.undisturbed()?, &run.parameter_hash()?)?;
    let logs = command("logs", &["logs", &folder], &[])?;
    logs.expect(
        logs.finished.text.contains("resumed at epoch"),
        "the output of the last job",
    )
}

/// The last job that `slurm submit` noted for the run.
fn submitted<'a>(suite: &'a Suite, run: &Run) -> Result<Job<'a>, String> {
    let file = run.folder.join("job-id");
    let text = fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    let id = text
        .split_whitespace()
        .next_back()
        .ok_or_else(|| format!("{}: expected a job", file.display()))?;
    Ok(Job::noted(
        suite,
        id,
        run.folder.join(format!("slurm-{id}.out")),
    ))
}
