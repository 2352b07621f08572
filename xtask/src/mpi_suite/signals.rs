//! Checks of signals: in the start-up, in a checkpoint, in an evaluation, repeated, to one rank.
//!
//! In: a tiny training run. Out: checks. Invariant: a stopped run ends with exit code 0 and a whole
//! checkpoint, and resumes to the bits of the undisturbed run.

use std::fs;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, SystemTime};

use crate::suite::run::{LIMIT_S, Run};
use crate::suite::{Check, Checked, Suite, checkpoints};

pub(super) const CHECKS: [Check; 9] = [
    (
        "SIGTERM to one rank stops all, and the resumed run ends with the same parameters",
        |suite| stops(&full(suite, "stopped-term"), has_line, &[("TERM", 1)]),
    ),
    (
        "SIGUSR1 to root stops all, and the resumed run ends with the same parameters",
        |suite| stops(&full(suite, "stopped-usr1"), has_line, &[("USR1", 0)]),
    ),
    (
        "a signal in the start-up neither hangs nor breaks the run, and starting again reaches the undisturbed parameters",
        in_the_start_up,
    ),
    (
        "SIGTERM while a checkpoint is being written stops with a whole checkpoint, resumed to the undisturbed parameters",
        |suite| {
            let run = quick(suite, "writing").with("--checkpoint-every-steps 1");
            stops(&run, is_writing, &[("TERM", 0)])
        },
    ),
    (
        "SIGTERM during an evaluation stops with a checkpoint, resumed to the undisturbed parameters",
        in_an_evaluation,
    ),
    (
        "SIGTERM twice stops like once, resumed to the undisturbed parameters",
        |suite| {
            let signals = [("TERM", 0), ("TERM", 0)];
            stops(&quick(suite, "term-term"), has_line, &signals)
        },
    ),
    (
        "SIGHUP to one rank and SIGTERM to the other stop like one signal, resumed to the undisturbed parameters",
        |suite| {
            let signals = [("HUP", 1), ("TERM", 0)];
            stops(&quick(suite, "hup-term"), has_line, &signals)
        },
    ),
    (
        "SIGUSR1 to mpirun itself reaches the ranks, resumed to the undisturbed parameters",
        |suite| {
            let run = quick(suite, "to-mpirun");
            to_the_launcher(&run, run.command()?, "USR1")
        },
    ),
    (
        "`trainer launch` starts ranks by mpirun, and SIGTERM to it reaches them, resumed to the undisturbed parameters",
        |suite| {
            suite.mpirun()?;
            let run = quick(suite, "launched");
            to_the_launcher(&run, run.launch(), "TERM")
        },
    ),
];

/// Returns a run of few samples and enough epochs for a signal after the first.
fn quick<'a>(suite: &'a Suite, name: &str) -> Run<'a> {
    suite.run(name).epochs(12).quick()
}

/// Returns a run with the default reduction, whose bits depend on the number of ranks.
fn full<'a>(suite: &'a Suite, name: &str) -> Run<'a> {
    suite.run(name).epochs(3)
}

/// Checks the checkpoints, continues the run, and compares its end with that of an undisturbed run.
fn resumes(run: &Run<'_>) -> Checked {
    run.checkpoints()?;
    run.resume()?;
    run.checkpoints()?;
    let is_exact = run.words.iter().any(|word| word == "exact");
    let (name, make): (_, fn(_, &_) -> _) = match is_exact {
        true => ("undisturbed-exact", quick),
        false => ("undisturbed", full),
    };
    let undisturbed = || make(run.suite, name).trained_hash();
    run.expect_hash(&run.suite.undisturbed(name, undisturbed)?)
}

fn stops(run: &Run<'_>, is_time: fn(&Run<'_>) -> bool, signals: &[(&str, usize)]) -> Checked {
    let (ended, _) = run.signalled(|| is_time(run), signals)?;
    ended.expect_success()?;
    run.expect_stopped_with_checkpoint()?;
    resumes(run)
}

fn has_line(run: &Run<'_>) -> bool {
    run.has_line()
}

fn is_writing(run: &Run<'_>) -> bool {
    checkpoints::is_being_written(&run.folder, SystemTime::UNIX_EPOCH)
}

/// Sends a signal as soon as the processes exist, and at several later moments.
fn in_the_start_up(suite: &Suite) -> Checked {
    for (wait_ms, signal, rank) in [
        (0, "TERM", 0),
        (50, "USR1", 0),
        (150, "TERM", 1),
        (400, "USR1", 1),
    ] {
        let run = quick(suite, &format!("start-up-{wait_ms}-{signal}"));
        let is_time = || {
            let exist = [0, 1].map(|rank| run.process_of_rank(rank).is_some()) == [true; 2];
            sleep(Duration::from_millis(if exist { wait_ms } else { 0 }));
            exist
        };
        let (ended, _) = run.signalled(is_time, &[(signal, rank)])?;
        let is_in_time = ended.elapsed().as_secs() < LIMIT_S;
        ended.expect(is_in_time, "an end before the deadline")?;
        // A signal ends the process until the program can catch it; from then on it stops the run.
        if ended.succeeded() {
            ended.expect(run.stopped_early()?, "stopped_early in summary.json")?;
        }
        if wait_ms == 0 || !ended.succeeded() {
            resumes(&run)?;
        }
    }
    Ok(())
}

/// Sends a signal during an evaluation of half a second. The last step of an epoch is printed
/// before its evaluation.
fn in_an_evaluation(suite: &Suite) -> Checked {
    let run = quick(suite, "evaluation").with("--shapes-test 1500");
    let log = run.log();
    let num_done = |text: &str| text.matches(" | train ").count();
    let is_time = || {
        let text = fs::read_to_string(&log).unwrap_or_default();
        run.has_line() && text.matches("step 5/5").count() > num_done(&text)
    };
    let (ended, elapsed) = run.signalled(is_time, &[("TERM", 1)])?;
    ended.expect_success()?;
    ended.expect(run.stopped_early()?, "stopped_early in summary.json")?;
    let seconds = elapsed.as_secs_f64();
    println!("        stopped {seconds:.1} s after the signal");
    ended.expect(
        num_done(ended.text()) == 1,
        "an end within the second evaluation",
    )?;
    resumes(&run)
}

/// Sends a signal to the launcher, which passes it on to its ranks and waits for them.
fn to_the_launcher(run: &Run<'_>, command: Command, signal: &str) -> Checked {
    let has_line = || run.has_line();
    let ended = run.suite.signalled(command, &run.name, has_line, signal)?;
    ended.expect_success()?;
    ended.expect(run.stopped_early()?, "stopped_early in summary.json")?;
    resumes(run)
}
