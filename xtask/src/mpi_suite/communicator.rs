//! Checks of the MPI communicator by the program `mpi_conformance` of the crate `distributed`.
//!
//! In: the program; with the arguments `fault KIND` its last rank fails. Out: checks.

use crate::suite::start::Launcher;
use crate::suite::{Check, Checked, Ended, Suite};

pub(super) const CHECKS: [Check; 7] = [
    ("every collective is right on 1 to 4 ranks", |suite| {
        (1..=4).try_for_each(|ranks| start(suite, ranks, &[])?.expect_success())
    }),
    ("a panic on one rank ends the job within 10 s", |suite| {
        ends_soon(suite, "panic", 101)
    }),
    (
        "a panic in a thread of one rank ends the job within 10 s",
        |suite| ends_soon(suite, "panic-thread", 101),
    ),
    (
        "a panic on one rank ends the job within 10 s also while others wait in shared memory",
        |suite| ends_soon(suite, "panic-memory", 101),
    ),
    ("an error on one rank ends the job within 10 s", |suite| {
        ends_soon(suite, "error", 3)
    }),
    (
        "an error that a rank returns from its work ends the job within 10 s",
        |suite| ends_soon(suite, "return", 1),
    ),
    (
        "a rank that drops its communicator while others wait ends the job within 10 s",
        |suite| ends_soon(suite, "leave", 1),
    ),
];

fn start(suite: &Suite, ranks: usize, words: &[&str]) -> Checked<Ended> {
    let name = format!("conformance-{ranks}{}", words.concat());
    let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    let command = suite.on_ranks(Launcher::Mpirun, ranks, &suite.conformance, &words)?;
    suite.finish(command, &name, 300)
}

fn ends_soon(suite: &Suite, kind: &str, code: i32) -> Checked {
    let ended = start(suite, 2, &["fault", kind])?;
    ended.expect(ended.elapsed().as_secs() < 10, "an end within 10 s")?;
    ended.expect_code(code)?;
    ended.expect_text(&["error (rank 1)"])
}
