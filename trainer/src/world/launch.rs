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
use datasets::DatasetError;
use distributed::communicator::{Launcher, SingleCommunicator, check_world, join, leave};
use distributed::{Communicator, ROOT};

use crate::config::ConfigError;
use crate::measure::report::{self, Reporter};
use crate::world::panics;
use crate::world::ranks::World;
use crate::world::stop::StopFlag;

const FAILURE: u8 = 1;
const USAGE: u8 = 2;

/// The processes that a program may be one of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// The ranks that the launcher started.
    World,
    /// As `World`, also if their number differs from the launcher's: for work that reports such
    /// problems.
    AnyWorld,
    /// One process, for work that needs no other rank. Refuses to be one of several tasks, which
    /// would all do the same work and write the same files.
    Alone,
    /// As `Alone`, but possibly one of several tasks: for work that needs only their number.
    Apart,
}

/// Joins the world, runs `work` on this rank, and prints its error.
///
/// Call it once, at the beginning of `main`: it installs the signal handlers.
pub fn launch<T: Termination>(start: Start, work: impl FnOnce(&World) -> Result<T>) -> ExitCode {
    let stop = match StopFlag::on_signals().context("signals") {
        Ok(stop) => stop,
        Err(error) => return report_failure(None, &error).into(),
    };
    let communicator = match start {
        Start::World | Start::AnyWorld => join().map_err(Into::into),
        Start::Alone => alone(),
        Start::Apart => Ok(Arc::new(SingleCommunicator::new()) as _),
    };
    let communicator = match communicator {
        Ok(communicator) => communicator,
        Err(error) => return leave::<T, _>(None, Err(error), report_failure),
    };
    panics::spare_caught();
    let checked = match start {
        Start::World => check_world(&*communicator).map_err(Into::into),
        _ => Ok(()),
    };
    let reporter = Reporter::new(communicator.rank() == ROOT);
    let done = checked.and_then(|()| {
        work(&World {
            is_only_rank: true,
            ..World::reporting(Arc::clone(&communicator), stop, reporter)
        })
    });
    leave(Some(&*communicator), done, report_failure)
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

/// Prints the error and returns the exit code.
fn report_failure(rank: Option<usize>, error: &anyhow::Error) -> u8 {
    match error.downcast_ref() {
        Some(DatasetError::BadImage { .. }) => {
            let remedy = "Replace the file, or skip bad images by --on-bad-image skip";
            report::failure(rank, &anyhow!("{error:#}. {remedy}"));
        }
        _ => report::failure(rank, error),
    }
    if error.is::<ConfigError>() {
        USAGE
    } else {
        FAILURE
    }
}
