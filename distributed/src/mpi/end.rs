//! The end of a job: MPI's errors, panics, aborts, and ranks that leave.
//!
//! In: MPI's return codes, panics on any thread, dropped communicators. Out: errors with MPI's
//! text, and the end of all processes.
//! Invariant: no rank ends silently while other ranks wait for it.
//! Source: MPI standard 3.1, sections 8.3 (error handlers) and 8.7 (`MPI_Abort`).

use std::io::Write;
use std::os::raw::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ::mpi::environment::{Universe, is_finalized};
use ::mpi::ffi;

use crate::panic::{EXIT_CODE, end_on_panic};
use crate::{CollectiveError, communicator::Topology};

/// Exit code of a job that a rank leaves while other ranks may wait for it.
const LEFT_EXIT_CODE: c_int = 1;

/// Value of `Membership::expected` if no other rank expects this rank.
const NOBODY: usize = usize::MAX;

/// Time for the launcher to read the output of this process. MPICH (4.0.2) drops unread output when
/// a job is aborted.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// Returns the error of an MPI call that did not return `MPI_SUCCESS`.
pub(super) fn check(call: &'static str, rank: usize, code: c_int) -> Result<(), CollectiveError> {
    if code == ffi::MPI_SUCCESS as c_int {
        return Ok(());
    }
    let mut text = vec![0_u8; ffi::MPI_MAX_ERROR_STRING as usize];
    let mut length: c_int = 0;
    // SAFETY: `text` has the length MPI asks for, and both outlive the call.
    unsafe { ffi::MPI_Error_string(code, text.as_mut_ptr().cast(), &mut length) };
    text.truncate(usize::try_from(length).unwrap_or(0));
    Err(CollectiveError::Failed(format!(
        "{call} failed on rank {rank}: {} (code {code})",
        String::from_utf8_lossy(&text)
    )))
}

/// This process's membership in the job. Its drop finalizes MPI if no other rank expects this rank.
/// Otherwise its drop ends the job.
pub(super) struct Membership {
    /// This rank while other ranks expect it. [`NOBODY`] before the start and after the finish.
    expected: AtomicUsize,
    /// Finalizes MPI when it is dropped.
    _universe: Universe,
}

impl Membership {
    pub(super) fn new(universe: Universe) -> Self {
        Self {
            expected: AtomicUsize::new(NOBODY),
            _universe: universe,
        }
    }

    /// Notes that other ranks expect this rank from now on.
    pub(super) fn begin(&self, topology: &Topology) {
        if topology.world_size > 1 {
            self.expected.store(topology.rank, Ordering::SeqCst);
        }
    }

    /// Notes that no rank expects another rank any more.
    pub(super) fn end(&self) {
        self.expected.store(NOBODY, Ordering::SeqCst);
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let rank = *self.expected.get_mut();
        if rank == NOBODY {
            return;
        }
        // `MPI_Finalize` would wait forever for ranks that wait for this rank.
        write_line(&format!(
            "error (rank {rank}): left the job without `Communicator::finish`, expected it on every rank; the job ends, as others \
             may wait for this rank (`distributed::launch` calls it, and prints the error of a rank that fails)\n"
        ));
        end_job(LEFT_EXIT_CODE);
    }
}

/// Replaces the panic hook by one that ends the job. Without it, unwinding would drop the universe,
/// and `MPI_Finalize` would wait forever for ranks that wait for this rank.
pub(super) fn end_job_on_panic(rank: usize) {
    end_on_panic(rank, is_finalized, || end_job(EXIT_CODE));
}

/// Prints a line of an error message.
pub(super) fn write_line(text: &str) {
    // A closed stderr must not keep the other ranks waiting.
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// Ends all processes of the job.
pub(super) fn end_job(exit_code: c_int) -> ! {
    let _ = std::io::stderr().flush();
    std::thread::sleep(LAST_WORDS);
    // SAFETY: MPI is initialized and not finalized: callers hold the communicator or have checked.
    unsafe { ffi::MPI_Abort(ffi::RSMPI_COMM_WORLD, exit_code) };
    std::process::abort()
}
