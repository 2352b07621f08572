//! Entering and leaving the world: what every program on this library does around its work.
//!
//! In: what to run. Out: an exit code, equal in meaning on all ranks: 0 done, 1 failed, 2 wrong usage.
//! Invariant: an error of one rank ends the job on all ranks.

use std::process::{ExitCode, Termination};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, ensure};
use cluster::failure::Outcome;
use distributed::{
    Communicator,
    communicator::SingleCommunicator,
    launch::{Launcher, check_world, join, launch_with},
};

use crate::config::ConfigError;
use crate::measure::report;
use crate::world::panics;
use crate::world::ranks::World;
use crate::world::stop::StopFlag;

const FAILURE: u8 = 1;
const USAGE: u8 = 2;

/// Joins the world, runs `work` on this rank, and says what failed if it did.
///
/// Call it once, first thing in `main`: signals are caught from here on.
pub fn launch<T: Termination>(work: impl FnOnce(&World) -> Result<T>) -> ExitCode {
    enter(
        || Ok(join()?),
        |world| {
            check_world(&*world.communicator)?;
            work(world)
        },
    )
}

/// As [`launch`], also in a world that is not the launcher's, for work that tells what is wrong with it.
pub fn launch_in_any_world<T: Termination>(work: impl FnOnce(&World) -> Result<T>) -> ExitCode {
    enter(|| Ok(join()?), work)
}

/// As [`launch`], in a world of this process alone: for work that needs no other rank. One of several tasks is refused, as each
/// would do the same work and write the same files.
pub fn launch_alone<T: Termination>(work: impl FnOnce(&World) -> Result<T>) -> ExitCode {
    enter(alone, work)
}

/// As [`launch_alone`], also as one of several tasks: for work that needs their number only.
pub fn launch_apart<T: Termination>(work: impl FnOnce(&World) -> Result<T>) -> ExitCode {
    enter(|| Ok(Arc::new(SingleCommunicator::new())), work)
}

/// Runs work that starts other processes, from a process that is none of them: MPI is left to those, and so are signals, which end
/// this process at once. One of several tasks is refused, as each would start them.
pub fn start_others(work: impl FnOnce() -> Outcome) -> ExitCode {
    if let Err(error) = alone() {
        return tell(None, &error).into();
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
    // A batch script has a number of tasks, too, but its program is none of them and has no rank.
    if let Some(launcher) =
        Launcher::detect_from_environment()?.filter(|launcher| launcher.rank.is_some())
    {
        let Launcher {
            num_tasks,
            variable,
            ..
        } = launcher;
        ensure!(
            num_tasks == 1,
            "start: expected one process, got {num_tasks} ({variable}); start it without a launcher, in a shell of several tasks by \
             `srun -n 1`, or unset {variable} if no launcher set it"
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
        Err(error) => return tell(None, &error).into(),
    };
    let work = |communicator: &Arc<dyn Communicator>| {
        panics::spare_caught();
        work(&World {
            is_only_rank: true,
            ..World::new(Arc::clone(communicator), stop)
        })
    };
    launch_with(join, work, tell)
}

/// Says what failed; the exit code.
fn tell(rank: Option<usize>, error: &anyhow::Error) -> u8 {
    report::failure(rank, error);
    if error.is::<ConfigError>() {
        USAGE
    } else {
        FAILURE
    }
}
