//! Checks of signals at awkward moments: in the start-up, in a checkpoint, in an evaluation, in a row, to one rank.
//!
//! In: the program, a tiny training run. Out: checks. Invariant: a run that was told to stop ends with exit code 0, leaves nothing
//! broken, and is resumed to the bits of the undisturbed run.

use std::fs;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, SystemTime};

use super::Suite;
use crate::suite::launcher::Launcher;
use crate::suite::run::{LIMIT_S, QUICK, Run, arguments, disturbed, instead};
use crate::suite::{Check, check, checkpoints, same};
use cluster::json;
use cluster::process;

pub(super) const CHECKS: [Check<Suite>; 7] = [
    check(
        "a signal in the start-up neither hangs nor breaks the run, and starting again reaches the undisturbed parameters",
        in_the_start_up,
    ),
    check(
        "SIGTERM while a checkpoint is being written stops with a whole checkpoint, resumed to the undisturbed parameters",
        |suite| {
            let every_step = ["--checkpoint-every-steps", "1"];
            stops(
                suite,
                "writing",
                &every_step,
                checkpoint_is_being_written,
                &[("TERM", 0)],
            )
        },
    ),
    check(
        "SIGTERM during an evaluation stops with a checkpoint, resumed to the undisturbed parameters",
        in_an_evaluation,
    ),
    check(
        "SIGTERM twice stops like once, resumed to the undisturbed parameters",
        |suite| {
            stops(
                suite,
                "term-term",
                &[],
                Run::has_line,
                &[("TERM", 0), ("TERM", 0)],
            )
        },
    ),
    check(
        "SIGHUP to one rank and SIGTERM to the other stop like one signal, resumed to the undisturbed parameters",
        |suite| {
            stops(
                suite,
                "hup-term",
                &[],
                Run::has_line,
                &[("HUP", 1), ("TERM", 0)],
            )
        },
    ),
    check(
        "SIGUSR1 to mpirun itself reaches the ranks, resumed to the undisturbed parameters",
        |suite| {
            let run = Run::new(suite, "to-mpirun");
            let command = suite.on_ranks(RANKS, suite.trainer(), &words(&run, &[]))?;
            to_the_launcher(suite, &run, command, "USR1")
        },
    ),
    check(
        "`trainer launch` starts ranks by mpirun, and SIGTERM to it reaches them, resumed to the undisturbed parameters",
        |suite| {
            let run = Run::new(suite, "launched");
            let launch = ["launch", "-n", &RANKS.to_string(), "--"].map(str::to_owned);
            let command = suite.alone(suite.trainer(), &[&launch, &words(&run, &[])[..]].concat());
            to_the_launcher(suite, &run, command, "TERM")
        },
    ),
];

const RANKS: usize = 2;
/// Long enough to be met by a signal after the first.
const EPOCHS: usize = 12;

fn words(run: &Run, further: &[&str]) -> Vec<String> {
    instead(
        arguments(&run.folder, EPOCHS),
        &[&QUICK[..], further].concat(),
    )
}

/// Checks what the run left, goes on with it, and compares its end with that of an undisturbed run of its own.
fn resumes(suite: &Suite, run: &Run, further: &[&str]) -> Result<(), String> {
    checkpoints::whole(&run.folder)?;
    run.train(
        suite,
        RANKS,
        EPOCHS,
        &[&QUICK[..], further, &["--resume"]].concat(),
    )?;
    checkpoints::whole(&run.folder)?;
    let undisturbed = Run::new(suite, "undisturbed-exact");
    if undisturbed.parameter_hash().is_err() {
        undisturbed.train(suite, RANKS, EPOCHS, &QUICK)?;
    }
    same(
        &run.name,
        &undisturbed.parameter_hash()?,
        &run.parameter_hash()?,
    )
}

fn stops(
    suite: &Suite,
    name: &str,
    further: &[&str],
    is_time: fn(&Run) -> bool,
    signals: &[(&str, usize)],
) -> Result<(), String> {
    let run = Run::new(suite, name);
    let ended = run
        .signalled(
            suite,
            RANKS,
            &words(&run, further),
            || is_time(&run),
            signals,
        )?
        .0;
    ended.expect_success()?;
    ended.expect(run.has_stopped_early()?, "stopped_early in summary.json")?;
    let summary = run.file("summary.json")?;
    let (steps, saved) = (
        json::number(&summary, "steps"),
        checkpoints::whole(&run.folder)?,
    );
    ended.expect(
        steps == saved.last().map(|step| *step as f64),
        &format!("a checkpoint of the last step {steps:?}, not {saved:?}"),
    )?;
    resumes(suite, &run, further)
}

fn checkpoint_is_being_written(run: &Run) -> bool {
    checkpoints::is_being_written(&run.folder, SystemTime::UNIX_EPOCH)
}

/// At once, and at several moments after the processes have appeared.
fn in_the_start_up(suite: &Suite) -> Result<(), String> {
    for (number, wait_ms) in [0, 50, 150, 400].into_iter().enumerate() {
        let (signal, rank) = (["TERM", "USR1"][number % 2], number / 2);
        let run = Run::new(suite, &format!("start-up-{wait_ms}-{signal}"));
        let is_time = || {
            let is_there =
                (0..RANKS).all(|rank| suite.process_of_rank(&run.folder, rank).is_some());
            sleep(Duration::from_millis(if is_there { wait_ms } else { 0 }));
            is_there
        };
        let ended = run
            .signalled(suite, RANKS, &words(&run, &[]), is_time, &[(signal, rank)])?
            .0;
        ended.expect(
            ended.finished.elapsed.as_secs() < LIMIT_S,
            "an end before the deadline",
        )?;
        // Before the program can catch a signal the system ends it; from then on the run stops as any other.
        if ended.finished.code == Some(0) {
            ended.expect(run.has_stopped_early()?, "stopped_early in summary.json")?;
        }
        if wait_ms == 0 || ended.finished.code != Some(0) {
            resumes(suite, &run, &[])?;
        }
    }
    Ok(())
}

/// Many test images make an evaluation long; they change no parameter. The last step of an epoch is printed before it.
fn in_an_evaluation(suite: &Suite) -> Result<(), String> {
    // An evaluation of half a second, so that the signal comes before its end.
    let many = ["--shapes-test", "1500"];
    let run = Run::new(suite, "evaluation");
    let log = suite.folder.join("evaluation.log");
    let is_time = || {
        let text = fs::read_to_string(&log).unwrap_or_default();
        run.has_line()
            && text.matches("step 000005/000005").count() > text.matches(" done |").count()
    };
    let (ended, elapsed) =
        run.signalled(suite, RANKS, &words(&run, &many), is_time, &[("TERM", 1)])?;
    ended.expect_success()?;
    ended.expect(run.has_stopped_early()?, "stopped_early in summary.json")?;
    println!(
        "        stopped {:.1} s after the signal",
        elapsed.as_secs_f64()
    );
    let further = ended.finished.text.matches(" done |").count();
    ended.expect(
        further == 1,
        &format!("an end within the second evaluation, not {further} epochs done"),
    )?;
    resumes(suite, &run, &many)
}

/// It passes the signal on to its ranks and gives them time.
fn to_the_launcher(suite: &Suite, run: &Run, command: Command, signal: &str) -> Result<(), String> {
    let log = suite.folder().join(format!("{}.log", run.name));
    let send = |process| process::send_signal(process, signal);
    let (ended, sent) = disturbed(
        command,
        &log,
        || run.has_line(),
        "the first epoch's end",
        send,
    )?;
    sent?;
    ended.expect_success()?;
    ended.expect(run.has_stopped_early()?, "stopped_early in summary.json")?;
    resumes(suite, run, &[])
}
