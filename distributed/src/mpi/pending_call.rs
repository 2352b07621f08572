//! MPI calls that have started and not yet completed.
//!
//! In: a call that fills an `MPI_Request`. Out: the call's result, after polling with the
//! communicator's wait policy.
//! Invariant: a buffer stays borrowed until MPI has finished with it. If a call cannot be waited
//! for, the job ends.
//! Source: MPI standard 3.1, sections 3.7 (`MPI_Test`) and 5.12 (non-blocking collectives).

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::raw::c_int;

use ::mpi::ffi;

use super::end::{check, end_job, write_line};
use super::wait_policy::SharedWaitPolicy;
use crate::CollectiveError;

/// A pending call on buffers of lifetime `'buffers`.
pub(super) struct PendingCall<'buffers> {
    call: &'static str,
    rank: usize,
    /// The request, or `None` after MPI has finished.
    raw: Option<ffi::MPI_Request>,
    buffers: PhantomData<&'buffers mut [u8]>,
}

impl<'buffers> PendingCall<'buffers> {
    /// Starts `call`. `rank` is this rank, for errors.
    ///
    /// # Safety
    /// `start` makes one MPI call that writes the request. All buffers that MPI then uses live and
    /// are not otherwise accessed for `'buffers`.
    pub(super) unsafe fn start(
        call: &'static str,
        rank: usize,
        start: impl FnOnce(*mut ffi::MPI_Request) -> c_int,
    ) -> Result<Self, CollectiveError> {
        // SAFETY: the mpi crate's C shim initializes this constant before `main`; it is not written
        // later.
        let mut raw = unsafe { ffi::RSMPI_REQUEST_NULL };
        check(call, rank, start(&mut raw))?;
        Ok(Self {
            call,
            rank,
            raw: Some(raw),
            buffers: PhantomData,
        })
    }

    /// Waits until MPI has finished with the call and its buffers.
    pub(super) fn wait(mut self, wait_policy: &SharedWaitPolicy) -> Result<(), CollectiveError> {
        let Some(mut raw) = self.raw else {
            return Ok(());
        };
        let code = wait_policy.wait(|| {
            let mut done: c_int = 0;
            let mut status = Status::empty();
            // SAFETY: `raw` is a request under way; all three outlive the call.
            let code = unsafe { ffi::MPI_Test(&mut raw, &mut done, &mut status.0) };
            (done != 0 || code != ffi::MPI_SUCCESS as c_int).then_some(code)
        });
        // MPI reports the failure of a request after it has finished with it.
        self.raw = None;
        check(self.call, self.rank, code)
    }
}

impl Drop for PendingCall<'_> {
    fn drop(&mut self) {
        if self.raw.is_some() {
            write_line(&format!(
                "error (rank {}): {} was begun and cannot be finished\n",
                self.rank, self.call
            ));
            end_job(1);
        }
    }
}

/// The status of a message.
pub(super) struct Status(pub(super) ffi::MPI_Status);

impl Status {
    /// Returns an empty status for MPI to fill.
    pub(super) fn empty() -> Self {
        // SAFETY: `MPI_Status` is a C struct of integers in every library, so all zeros are a valid
        // value.
        Self(unsafe { MaybeUninit::zeroed().assume_init() })
    }

    pub(super) fn source(&self) -> usize {
        usize::try_from(self.0.MPI_SOURCE)
            .expect("a message that has come has a rank as its source")
    }

    /// Returns the number of bytes of the message.
    pub(super) fn bytes(&self, rank: usize) -> Result<usize, CollectiveError> {
        let mut bytes: c_int = 0;
        // SAFETY: MPI filled the status; both outlive the call.
        let code = unsafe { ffi::MPI_Get_count(&self.0, ffi::RSMPI_UINT8_T, &mut bytes) };
        check("MPI_Get_count", rank, code)?;
        Ok(usize::try_from(bytes).unwrap_or(0))
    }
}
