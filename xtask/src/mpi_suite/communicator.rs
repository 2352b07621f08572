//! Checks of the MPI communicator through the program `mpi_conformance` of the crate `distributed`.
//!
//! In: the program; with the arguments `fault HOW` its last rank fails so. Out: checks.

use std::path::Path;

use super::Suite;
use crate::suite::launcher::Launcher;
use crate::suite::{Check, check};

pub(super) const CHECKS: [Check<Suite>; 7] = [
    check("every collective is right on 1 to 4 ranks", |suite| {
        (1..=4).try_for_each(|ranks| conforms(suite, ranks))
    }),
    check("a panic on one rank ends the job within 10 s", |suite| {
        ends_soon(suite, "panic", 101)
    }),
    check(
        "a panic in a thread of one rank ends the job within 10 s",
        |suite| ends_soon(suite, "panic-thread", 101),
    ),
    check(
        "a panic on one rank ends the job within 10 s also while others wait in shared memory",
        |suite| ends_soon(suite, "panic-memory", 101),
    ),
    check("an error on one rank ends the job within 10 s", |suite| {
        ends_soon(suite, "error", 3)
    }),
    check(
        "an error that a rank returns from its work ends the job within 10 s",
        |suite| ends_soon(suite, "return", 1),
    ),
    check(
        "a rank that drops its communicator while others wait ends the job within 10 s",
        |suite| ends_soon(suite, "leave", 1),
    ),
];

fn conforms(suite: &Suite, ranks: usize) -> Result<(), String> {
    let command = suite.on_ranks(ranks, program(suite), &[])?;
    suite
        .finish(command, &format!("conformance-{ranks}"), 300)?
        .expect_success()
}

/// On two ranks the last, which fails, is rank 1.
fn ends_soon(suite: &Suite, how: &str, code: i32) -> Result<(), String> {
    let command = suite.on_ranks(2, program(suite), &["fault".to_owned(), how.to_owned()])?;
    let ended = suite.finish(command, how, 60)?;
    let is_soon = ended.finished.elapsed.as_secs() < 10;
    ended.expect(
        is_soon && ended.finished.code == Some(code),
        &format!("exit code {code} within 10 s"),
    )?;
    ended.expect(
        ended.finished.text.contains("error (rank 1)"),
        "a message that begins `error (rank 1)`",
    )
}

fn program(suite: &Suite) -> &Path {
    suite
        .conformance
        .as_deref()
        .expect("built whenever there is an mpirun")
}
