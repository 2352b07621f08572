//! Checks under mpirun: MPI's conformance, failures, launchers, training on 1 to 4 ranks.
//!
//! In: the programs, in the dev profile. Out: one line for each check.

mod evaluation;
mod memory;
mod signals;
mod storage;
mod study;
mod synchronisation;
mod trainer;

use cluster::failure::Outcome;
use cluster::mpirun::Mpirun;

use crate::suite::start::Programs;
use crate::suite::{self, Check, Checked, Ended, Suite, tasks};

/// Runs the checks; those of many steps only if `is_thorough`.
pub(crate) fn run(
    programs: &Programs,
    mpirun: Option<&Mpirun>,
    is_thorough: bool,
    only: Option<&str>,
) -> Outcome {
    let mut suite = Suite::new("mpi-suite", &programs.trainer, mpirun)?;
    suite.conformance.clone_from(&programs.conformance);
    let mut checks = [
        &CONFORMANCE[..],
        &trainer::CHECKS,
        &evaluation::CHECKS,
        &synchronisation::CHECKS,
        &storage::CHECKS,
        &signals::CHECKS,
        &study::CHECKS,
        &tasks::CHECKS,
    ]
    .concat();
    if is_thorough {
        checks.extend(memory::CHECKS);
    }
    suite::run(suite, only, &checks)
}

/// Checks of the communicator; with the arguments `fault KIND` the last rank of the program fails.
#[rustfmt::skip]
const CONFORMANCE: [Check; 7] = [
    ("every collective is right on 1 to 4 ranks", |suite| {
        (1..=4).try_for_each(|ranks| start(suite, ranks, "")?.expect_success())
    }),
    ("a panic on one rank ends the job within 10 s", |suite| ends_soon(suite, "panic", 101)),
    ("a panic in a thread of one rank ends the job within 10 s", |suite| ends_soon(suite, "panic-thread", 101)),
    ("a panic on one rank ends the job within 10 s also while others wait in shared memory",
        |suite| ends_soon(suite, "panic-memory", 101)),
    ("an error on one rank ends the job within 10 s", |suite| ends_soon(suite, "error", 3)),
    ("an error that a rank returns from its work ends the job within 10 s", |suite| ends_soon(suite, "return", 1)),
    ("a rank that drops its communicator while others wait ends the job within 10 s",
        |suite| ends_soon(suite, "leave", 1)),
];

fn start(suite: &Suite, ranks: usize, words: &str) -> Checked<Ended> {
    let name = format!("conformance-{ranks}{}", words.replace(' ', ""));
    let line = format!("exec {} {words}", suite.conformance.display());
    suite.finish(suite.shell(ranks, line)?, &name)
}

fn ends_soon(suite: &Suite, kind: &str, code: i32) -> Checked {
    let ended = start(suite, 2, &format!("fault {kind}"))?;
    ended.expect(ended.elapsed().as_secs() < 10, "an end within 10 s")?;
    ended.expect_code(code)?;
    ended.expect_text(&["error (rank 1)"])
}
