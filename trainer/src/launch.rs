//! Entering and leaving the world: what every program on this library does around its work.
//!
//! In: what to run. Out: an exit code, equal in meaning on all ranks: 0 done, 1 failed, 2 wrong usage.
//! Invariant: an error of one rank ends the job on all ranks.

use std::process::{ExitCode, Termination};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use distributed::{Communicator, Launcher, ROOT, SingleCommunicator};

use crate::config::ConfigError;
use crate::ranks::{self, World};
use crate::report;
use crate::stop::StopFlag;

const FAILURE: u8 = 1;
const USAGE: u8 = 2;

/// How long a rank other than root keeps an error to itself: when root fails in the same way, its words suffice.
const ROOT_SPEAKS_FIRST: Duration = Duration::from_secs(3);

/// Joins the world, runs `work` on this rank, and says what failed if it did.
///
/// Call it once, first thing in `main`: signals are caught from here on.
pub fn launch<T: Termination>(work: impl FnOnce(&World) -> Result<T>) -> ExitCode {
    enter(ranks::connect, work)
}

/// As [`launch`], also in a world that is not the launcher's, for work that tells what is wrong with it.
pub fn launch_in_any_world<T: Termination>(work: impl FnOnce(&World) -> Result<T>) -> ExitCode {
    enter(ranks::join, work)
}

/// As [`launch`], in a world of this process alone: for work that needs no other rank. One of several tasks is refused, as each
/// would do the same work and write the same files.
pub fn launch_alone<T: Termination>(work: impl FnOnce(&World) -> Result<T>) -> ExitCode {
    enter(alone, work)
}

fn alone() -> Result<Arc<dyn Communicator>> {
    // A batch script has a number of tasks, too, but its program is none of them and has no rank.
    if let Some(launcher) = Launcher::detect_from_environment()?.filter(|launcher| launcher.rank.is_some()) {
        let Launcher { num_tasks, variable, .. } = launcher;
        ensure!(
            num_tasks == 1,
            "start: expected one process, got {num_tasks} ({variable}); start it without a launcher"
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
        Err(error) => return leave(None, &error),
    };
    let communicator = match join() {
        Ok(communicator) => communicator,
        Err(error) => {
            // The failure of one task may end the job before what another one says of the same has come through.
            let launcher = Launcher::detect_from_environment().ok().flatten();
            if launcher.and_then(|launcher| launcher.rank).is_some_and(|rank| rank != ROOT) {
                std::thread::sleep(ROOT_SPEAKS_FIRST);
            }
            return leave(None, &error);
        }
    };
    let world = World { is_only_rank: true, ..World::new(communicator, stop) };
    match work(&world) {
        Ok(done) => done.report(),
        Err(error) => leave(Some(&*world.communicator), &error),
    }
}

fn leave(communicator: Option<&dyn Communicator>, error: &anyhow::Error) -> ExitCode {
    let code = if error.is::<ConfigError>() { USAGE } else { FAILURE };
    match communicator {
        Some(communicator) if communicator.world_size() > 1 => {
            let rank = communicator.rank();
            if rank != ROOT {
                std::thread::sleep(ROOT_SPEAKS_FIRST);
            }
            report::failure(Some(rank), error);
            communicator.abort(&format!("{error:#}"), i32::from(code));
        }
        _ => report::failure(None, error),
    }
    ExitCode::from(code)
}
