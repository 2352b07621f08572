//! Checks under mpirun: MPI's conformance, failures, launchers, training on 1 to 4 ranks.
//!
//! In: the programs, in the dev profile. Out: one line for each check.

mod communicator;
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
use crate::suite::{self, Suite};

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
        &communicator::CHECKS[..],
        &trainer::CHECKS,
        &evaluation::CHECKS,
        &synchronisation::CHECKS,
        &storage::CHECKS,
        &signals::CHECKS,
        &study::CHECKS,
    ]
    .concat();
    if is_thorough {
        checks.extend(memory::CHECKS);
    }
    suite::run(suite, only, &checks)
}
