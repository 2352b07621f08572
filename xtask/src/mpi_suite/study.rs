//! Checks of `trainer study` and `trainer compare` as a user would use them.
//!
//! Out: checks. Invariant: everything goes through the command, nothing through its modules.

use std::process::Command;
use std::time::Duration;

use cluster::hosts;
use cluster::mpirun::Mpirun;
use cluster::process;
use serde_json::Value;

use crate::suite::study::TinyStudy;
use crate::suite::{Check, Checked, Stop, Suite, expect, read};

pub(super) const CHECKS: [Check; 2] = [
    (
        "study: killed in the middle it ends its ranks, and started again it runs every repetition once",
        killed_and_resumed,
    ),
    (
        "study, compare: ranks on emulated hosts train, and no host is left, neither after the end nor after a kill",
        on_emulated_hosts,
    ),
];

/// Ranks have 10 s to end before they are killed.
const END_LIMIT: Duration = Duration::from_secs(30);

fn killed_and_resumed(suite: &Suite) -> Checked {
    suite.mpirun()?;
    let study = TinyStudy::write(suite, "study", "machine", 2)?;
    let command = || study.command(Command::new(&suite.trainer));
    let num_ranks = || suite.ranks().len();
    // The first record is that of one rank; the second run has two.
    let is_time = || study.records().lines().count() == 1 && num_ranks() == 2;
    suite.signalled(command(), "study", is_time, "KILL")?;
    let pause = Duration::from_millis(20);
    let have_ended = process::wait_until(END_LIMIT, pause, || num_ranks() == 0);
    let text = format!("ranks of a killed study run after {END_LIMIT:?}");
    expect(have_ended, text)?;
    let before = study.records();
    let ended = suite.succeed(command(), "study")?;
    ended.expect(
        study.records().starts_with(&before),
        "unchanged earlier records",
    )?;
    study.expect_each_once("machine")?;
    let again = suite.succeed(command(), "study")?;
    again.expect_text(&["4 of 4 runs are done already"])?;
    study.expect_each_once("machine")
}

fn on_emulated_hosts(suite: &Suite) -> Checked {
    if !hosts::can_be_made() {
        return Err(Stop::Skipped("emulated hosts need root".to_owned()));
    }
    if !Mpirun::starts_on_emulated_hosts(suite.mpirun()?) {
        let text = "emulated hosts need Open MPI's mpirun";
        return Err(Stop::Skipped(text.to_owned()));
    }
    let study = TinyStudy::write(suite, "study-hosts", "hosts:1gbit", 1)?;
    let command = || study.command(Command::new(&suite.trainer));
    suite.signalled(command(), "study-hosts", hosts::are_there, "TERM")?;
    // A study that was killed while it made hosts leaves them to the next.
    let ended = suite.succeed(command(), "study-hosts")?;
    ended.expect(!hosts::are_there(), "no host left")?;
    study.expect_each_once("1gbit")?;
    compared_on_hosts(suite)
}

/// Compares Lockstep only, as the other frameworks are not installed in tests.
fn compared_on_hosts(suite: &Suite) -> Checked {
    const WORDS: &str = "compare --models resnet8 --ranks 1,2 --batch-size-per-rank 2 --rounds 1 \
        --quiet-cores 100 --launcher hosts:1gbit";
    let folder = suite.folder.join("compare-hosts");
    let mut command = Command::new(&suite.trainer);
    command.args(WORDS.split_whitespace());
    command.args(["--with", "", "--output"]).arg(&folder);
    let ended = suite.succeed(command, "compare-hosts")?;
    ended.expect(!hosts::are_there(), "no host left")?;
    let text = read(&folder.join("study.json"))?;
    let study: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    let cells = study["cells"].as_array().into_iter().flatten();
    let launchers: Vec<(Option<u64>, Option<&str>)> = cells
        .map(|cell| &cell["settings"])
        .map(|settings| (settings["ranks"].as_u64(), settings["launcher"].as_str()))
        .collect();
    ended.expect(
        launchers == [(Some(1), Some("plain")), (Some(2), Some("hosts"))],
        "a cell of one rank and one of two on hosts",
    )
}
