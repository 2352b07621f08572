//! Checks of `trainer study` and `trainer compare` as a user would use them.
//!
//! Out: checks. Invariant: everything goes through the command, nothing through its modules.

use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use cluster::hosts;
use cluster::mpirun::Mpirun;
use cluster::process;
use serde_json::Value;

use crate::suite::run::disturbed;
use crate::suite::study::Study;
use crate::suite::{Check, Checked, Stop, Suite, read};

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
    let study = Study::write(suite, "study", "machine", 2)?;
    let command = || study.command(Command::new(&suite.trainer));
    let num_ranks = || suite.ranks().len();
    // The first record is that of one rank; the second run has two.
    let is_time = || study.records().lines().count() == 1 && num_ranks() == 2;
    let kill = |process| Ok(process::send_signal(process, "KILL")?);
    let (_, sent) = disturbed(suite, command(), "study", is_time, kill)?;
    sent?;
    let start = Instant::now();
    while num_ranks() > 0 {
        if start.elapsed() > END_LIMIT {
            let text = format!("ranks of a killed study run after {END_LIMIT:?}");
            return Err(text.into());
        }
        sleep(Duration::from_millis(20));
    }
    let before = study.records();
    let ended = suite.finish(command(), "study")?;
    ended.expect_success()?;
    ended.expect(
        study.records().starts_with(&before),
        "unchanged earlier records",
    )?;
    study.expect_each_once("machine")?;
    let again = suite.finish(command(), "study")?;
    again.expect_success()?;
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
    let study = Study::write(suite, "study-hosts", "hosts:1gbit", 1)?;
    let command = || study.command(Command::new(&suite.trainer));
    let end = |process| Ok(process::send_signal(process, "TERM")?);
    let (_, sent) = disturbed(suite, command(), "study-hosts", hosts::are_there, end)?;
    sent?;
    // A study that was killed while it made hosts leaves them to the next.
    let ended = suite.finish(command(), "study-hosts")?;
    ended.expect_success()?;
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
    let ended = suite.finish(command, "compare-hosts")?;
    ended.expect_success()?;
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
