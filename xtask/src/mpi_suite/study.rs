//! A check of `trainer study` as a user would use it: started, killed in the middle, started again.
//!
//! Out: checks. Invariant: everything goes through the command, nothing through its modules.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::Suite;
use crate::suite::launcher::Launcher;
use crate::suite::run::{LIMIT_S, disturbed};
use crate::suite::study::Study;
use crate::suite::{Check, Ended, check};
use cluster::hosts;
use cluster::mpirun::Mpirun;
use cluster::process;

pub(super) const CHECKS: [Check<Suite>; 2] = [
    check(
        "study: killed in the middle it ends its ranks, and started again it runs every repetition once",
        killed_and_resumed,
    ),
    check(
        "study, compare: ranks on emulated hosts train, and no host is left, neither after the end nor after a kill",
        on_emulated_hosts,
    ),
];

/// Ranks have 10 s to end before they are killed.
const END_LIMIT: Duration = Duration::from_secs(30);

fn killed_and_resumed(suite: &Suite) -> Result<(), String> {
    let study = Study::write(suite.folder(), "study", "machine", 2)?;
    let command = || study.command(Command::new(suite.trainer()));
    let log = suite.folder().join("study.log");
    // The first record is of one rank: what runs next are two.
    let is_time = || study.records().lines().count() == 1 && num_ranks(suite) == 2;
    let kill = |process| process::send_signal(process, "KILL");
    let (ended, sent) = disturbed(command(), &log, is_time, "the second run", kill)?;
    sent.or_else(|text| ended.expect(false, &text))?;
    let start = Instant::now();
    while num_ranks(suite) > 0 {
        if start.elapsed() > END_LIMIT {
            return Err(format!(
                "{} ranks are left {} s after the study was killed",
                num_ranks(suite),
                END_LIMIT.as_secs()
            ));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let before = study.records();
    let ended = Ended::of(command(), &log, LIMIT_S)?;
    ended.expect_success()?;
    ended.expect(
        study.records().starts_with(&before),
        "earlier records kept as they were",
    )?;
    study.expect_each_once("machine")?;
    let again = Ended::of(command(), &log, LIMIT_S)?;
    again.expect_success()?;
    again.expect(
        again.finished.text.contains("4 of 4 runs are done already"),
        "nothing to be run any more",
    )?;
    study.expect_each_once("machine")
}

fn on_emulated_hosts(suite: &Suite) -> Result<(), String> {
    if !hosts::can_be_made() {
        println!("        skipped: no emulated hosts can be made here, they need root");
        return Ok(());
    }
    if !suite
        .mpirun
        .as_ref()
        .is_some_and(Mpirun::starts_on_emulated_hosts)
    {
        println!("        skipped: emulated hosts need Open MPI's mpirun");
        return Ok(());
    }
    let study = Study::write(suite.folder(), "study-hosts", "hosts:1gbit", 1)?;
    let command = || study.command(Command::new(suite.trainer()));
    let log = suite.folder().join("study-hosts.log");
    let end = |process| process::send_signal(process, "TERM");
    let (ended, sent) = disturbed(command(), &log, hosts::are_there, "the hosts", end)?;
    sent.or_else(|text| ended.expect(false, &text))?;
    // One that was killed while it made them leaves them to the next.
    let ended = Ended::of(command(), &log, LIMIT_S)?;
    ended.expect_success()?;
    ended.expect(!hosts::are_there(), "no host left")?;
    study.expect_each_once("1gbit")?;
    compared_on_hosts(suite)
}

/// Ours alone, as the other frameworks are not installed in tests.
fn compared_on_hosts(suite: &Suite) -> Result<(), String> {
    const WORDS: &str = "compare --models resnet8 --ranks 1,2 --batch-size-per-rank 2 --rounds 1 --quiet-cores 100 --launcher hosts:1gbit";
    let folder = suite.folder().join("compare-hosts");
    let mut command = Command::new(suite.trainer());
    command
        .args(WORDS.split(' '))
        .args(["--with", "", "--output"])
        .arg(&folder);
    let ended = Ended::of(command, &suite.folder().join("compare-hosts.log"), LIMIT_S)?;
    ended.expect_success()?;
    ended.expect(!hosts::are_there(), "no host left")?;
    let text =
        fs::read_to_string(folder.join("comparison.json")).map_err(|error| error.to_string())?;
    let document: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    // Rows stand in the order of the first round, which is chance.
    let of_row = |row: &Value| Some((row["ranks"].as_u64()?, row["launcher"].as_str()?.to_owned()));
    let mut launchers: Vec<_> = document["rows"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(of_row)
        .collect();
    launchers.sort();
    ended.expect(
        launchers == [(1, "plain".to_owned()), (2, "hosts:1gbit".to_owned())],
        "a row of one rank and one of two on hosts",
    )
}

/// How many processes of the trainer, started by mpirun, measure.
fn num_ranks(suite: &Suite) -> usize {
    let read =
        |process: u32, file: &str| fs::read(format!("/proc/{process}/{file}")).unwrap_or_default();
    let variable = suite.rank_variable().as_bytes();
    let is_rank = |process: &u32| {
        read(*process, "cmdline").split(|byte| *byte == 0).next()
            == Some(suite.trainer().as_os_str().as_encoded_bytes())
            && read(*process, "environ")
                .split(|byte| *byte == 0)
                .any(|part| part.starts_with(variable))
    };
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter(is_rank)
        .count()
}
