//! Joining and leaving the job around a program's work.
//!
//! In: the work. Out: an exit code.
//! Invariant: an error on one rank is printed and then ends the job on all ranks.

use std::fmt::Display;
use std::io::Write;
use std::process::{ExitCode, Termination};
use std::sync::Arc;
use std::time::Duration;

use crate::panic;
#[cfg(feature = "mpi")]
use crate::topology::needs_mpi;
use crate::topology::{Launcher, check_place, check_world_size};
use crate::{CollectiveError, Communicator, ROOT};

const FAILURE: u8 = 1;

/// Delay of the error of a rank other than root. If root fails in the same way, only root's message
/// is printed.
const ROOT_SPEAKS_FIRST: Duration = Duration::from_secs(3);

/// Joins the world that `mpirun` or `srun` started, runs `work` on this rank, and leaves the world
/// together with the other ranks.
///
/// An error is printed as `error (rank R): …` and ends the job on all ranks, so that no rank waits
/// for this rank. The exit code is 1. Without the cargo feature `mpi`, and without a launcher, the
/// world is this process, and MPI is not initialised. Call `launch` once, in `main`:
///
/// ```no_run
/// use distributed::{CollectiveError, launch};
///
/// fn main() -> std::process::ExitCode {
///     launch(|communicator| {
///         let mut values = [communicator.rank() as f32];
///         communicator.all_reduce_sum(&mut values)?;
///         Ok::<(), CollectiveError>(())
///     })
/// }
/// ```
///
/// # Collective
/// Must be called by all processes of the job.
pub fn launch<T, E>(work: impl FnOnce(&Arc<dyn Communicator>) -> Result<T, E>) -> ExitCode
where
    T: Termination,
    E: Display + From<CollectiveError>,
{
    let report = |rank: Option<usize>, error: &E| {
        let who = rank.map_or(String::new(), |rank| format!(" (rank {rank})"));
        // A closed stderr must not keep the other ranks waiting.
        let _ = writeln!(std::io::stderr(), "error{who}: {error:#}");
        FAILURE
    };
    match join() {
        Ok(communicator) => {
            let checked = check_world(&*communicator).map_err(E::from);
            let done = checked.and_then(|()| work(&communicator));
            leave(Some(&*communicator), done, report)
        }
        Err(error) => leave::<T, E>(None, Err(error.into()), report),
    }
}

/// Leaves the world after work with the result `done`, together with the other ranks. An error ends
/// the job on all ranks. Without a `communicator` this process has not joined the other ranks.
/// `report` prints the error, with the rank if there are several ranks, and returns the exit code.
///
/// # Collective
/// Must be called by all ranks.
pub fn leave<T, E>(
    communicator: Option<&dyn Communicator>,
    done: Result<T, E>,
    report: impl FnOnce(Option<usize>, &E) -> u8,
) -> ExitCode
where
    T: Termination,
    E: Display + From<CollectiveError>,
{
    let finished = done.and_then(|done| {
        communicator.map_or(Ok(()), Communicator::finish)?;
        Ok(done)
    });
    let error = match finished {
        Ok(done) => return done.report(),
        Err(error) => error,
    };
    let joined = communicator.filter(|communicator| communicator.world_size() > 1);
    let rank = joined.map(Communicator::rank);
    // A process that has not joined the others also waits. Its failure could end the job before
    // root's message is printed.
    let launched_as = || {
        Launcher::detect_from_environment()
            .ok()
            .flatten()
            .and_then(|launcher| launcher.rank)
    };
    if rank.or_else(launched_as).is_some_and(|rank| rank != ROOT) {
        std::thread::sleep(ROOT_SPEAKS_FIRST);
    }
    let code = report(rank, &error);
    if let Some(communicator) = joined {
        communicator.abort(&format!("{error:#}"), i32::from(code));
    }
    ExitCode::from(code)
}

/// Returns the world that this process was started in, without a check against the launcher.
///
/// MPI is initialised only if a launcher left the address of other ranks. Otherwise the world is
/// this process. In both cases a panic on any thread prints `error (rank R): panicked …` and ends
/// the job with exit code 101.
///
/// # Errors
/// Returns an error if the initialisation of MPI fails.
///
/// # Collective
/// Must be called by all processes of the job.
pub fn join() -> Result<Arc<dyn Communicator>, CollectiveError> {
    #[cfg(feature = "mpi")]
    if needs_mpi(&crate::communicator::MpiCommunicator::library_name()) {
        return Ok(Arc::new(crate::communicator::MpiCommunicator::init()?));
    }
    panic::end_process_on_panic();
    Ok(Arc::new(crate::communicator::SingleCommunicator::new()))
}

/// Returns the name and version of this program's MPI library, even if MPI is not initialised.
/// Returns `none` without the feature `mpi`.
pub fn mpi_library() -> String {
    #[cfg(feature = "mpi")]
    return crate::communicator::MpiCommunicator::library_name();
    #[cfg(not(feature = "mpi"))]
    "none".to_owned()
}

/// Rejects a world that the launcher did not start.
///
/// # Errors
/// Returns an error if the communicator and the launcher differ in the number of ranks or in this
/// rank's place.
pub fn check_world(communicator: &dyn Communicator) -> Result<(), CollectiveError> {
    let launcher = Launcher::detect_from_environment()?;
    check_world_size(
        launcher.as_ref(),
        communicator.world_size(),
        cfg!(feature = "mpi"),
    )?;
    check_place(launcher.as_ref(), communicator.topology())
}
