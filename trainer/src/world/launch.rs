//! Entering and leaving the world: what every program on this library does before and after its
//! work.
//!
//! In: the work. Out: an exit code with the same meaning on all ranks: 0 done, 1 failed, 2 wrong
//! usage.
//! Invariant: an error of one rank ends the job on all ranks.

use std::process::{ExitCode, Termination};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, ensure};
use cluster::failure::Outcome;
use distributed::Communicator;
use distributed::communicator::{Launcher, SingleCommunicator, check_world, join, launch_with};

use crate::config::ConfigError;
use crate::measure::report;
use crate::world::panics;
use crate::world::ranks::World;
use crate::world::stop::StopFlag;

const FAILURE: u8 = 1;
const USAGE: u8 = 2;

/// Joins the world, runs `work` on this rank, and prints its error.
///
/// Call it once, at the beginning of `main`: it installs the signal handlers.
pub fn launch<T: Termination>(work: impl FnOnce(&World) -> Result<T>) -> ExitCode {
    enter(
        || Ok(join()?),
        |world| {
            check_world(&*world.communicator)?;
            work(world)
        },
    )
}

/// As [`launch`], also in a world whose size differs from the launcher's: for work that reports
/// such problems.
pub fn launch_in_any_world<T: Termination>(work: impl FnOnce(&World) -> Result<T>) -> ExitCode {
    enter(|| Ok(join()?), work)
}

/// As [`launch`], in a world of one process: for work that needs no other rank. Refuses to be one
/// of several tasks, which would all do the same work and write the same files.
pub fn launch_alone<T: Termination>(work: impl FnOnce(&World) -> Result<T>) -> ExitCode {
    enter(alone, work)
}

/// As [`launch_alone`], but may be one of several tasks: for work that needs only their number.
pub fn launch_apart<T: Termination>(work: impl FnOnce(&World) -> Result<T>) -> ExitCode {
    enter(|| Ok(Arc::new(SingleCommunicator::new())), work)
}

/// Runs work that starts the ranks as other processes. This process does not use MPI, and signals
/// end it at once. Refuses to be one of several tasks, which would all start them.
pub fn start_others(work: impl FnOnce() -> Outcome) -> ExitCode {
    if let Err(error) = alone() {
        return report_failure(None, &error).into();
    }
    match work() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            report::failure(None, &anyhow!("{failure}"));
            failure.exit_code().into()
        }
    }
}

fn alone() -> Result<Arc<dyn Communicator>> {
    // A batch script sees the number of tasks, too, but has no rank.
    if let Some(launcher) =
        Launcher::detect_from_environment()?.filter(|launcher| launcher.rank.is_some())
    {
        let variable = launcher.variable;
        ensure!(
            launcher.num_tasks == 1,
            "start: expected one process, got {} ({variable}). Start it without a launcher, in a shell of several tasks by `srun -n 1`, \
             or unset {variable} if no launcher set it",
            launcher.num_tasks
        );
    }
    Ok(Arc::new(SingleCommunicator::new()))
}

fn enter<T: Termination>(
    join: impl FnOnce() -> Result<Arc<dyn Communicator>>,
    work: impl FnOnce(&World) -> Result<T>,
) -> ExitCode {
    let stop = match StopFlag::on_signals().context("signals") {
        Ok(stop) => stop,
        Err(error) => return report_failure(None, &error).into(),
    };
    let work = |communicator: &Arc<dyn Communicator>| {
        panics::spare_caught();
        work(&World {
            is_only_rank: true,
            ..World::new(Arc::clone(communicator), stop)
        })
    };
    launch_with(join, work, report_failure)
}

/// Prints the error and returns the exit code.
fn report_failure(rank: Option<usize>, error: &anyhow::Error) -> u8 {
    report::failure(rank, error);
    if error.is::<ConfigError>() {
        USAGE
    } else {
        FAILURE
    }
}
