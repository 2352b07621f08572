//! A check of `trainer study` through Slurm: stopped while its jobs are in the queue, it finds them again.
//!
//! Out: checks. Invariant: everything goes through the command, nothing through its modules.

use std::fs;

use super::Suite;
use crate::suite::launcher::Launcher;
use crate::suite::run::{LIMIT_S, disturbed};
use crate::suite::study::Study;
use crate::suite::{Check, Ended, check};
use cluster::process;

pub(super) const CHECKS: [Check<Suite>; 1] = [check(
    "study: its jobs run one after the other, and killed and started again it submits none twice",
    killed_and_resumed,
)];

fn killed_and_resumed(suite: &Suite) -> Result<(), String> {
    let study = Study::write(suite.folder(), "study", "slurm", 1)?;
    let command = || study.command(suite.cluster.command(suite.trainer()));
    let log = suite.folder().join("study.log");
    let noted = || fs::read_to_string(study.folder.join("slurm-jobs.jsonl")).unwrap_or_default();
    let num_jobs = || noted().lines().filter(|line| !line.is_empty()).count();
    let kill = |process| process::send_signal(process, "KILL");
    let (ended, sent) = disturbed(command(), &log, || num_jobs() == 2, "both jobs", kill)?;
    sent.or_else(|text| ended.expect(false, &text))?;
    let before = noted();
    let ended = Ended::of(command(), &log, LIMIT_S)?;
    ended.expect_success()?;
    ended.expect(noted() == before, "no further job")?;
    study.expect_each_once("slurm")?;
    suite.settle()
}
