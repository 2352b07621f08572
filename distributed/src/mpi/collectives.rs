//! MPI collectives, divided into pieces whose counts fit a C `int`.
//!
//! In: this process's buffers. Out: sums, copies and gathered bytes.
//! Invariant: on one communicator either all collectives block or none does, because MPI does not
//! match the two kinds with each other.
//! Source: MPI standard 3.1, chapter 5 (collectives; 5.12 for non-blocking ones).
//!
//! On the world's communicator, collectives block inside MPI, which is fastest. On duplicates,
//! collectives are non-blocking and polled, so that a rank can sleep between polls.

use std::os::raw::{c_int, c_void};

use ::mpi::ffi;

use super::pending_call::PendingCall;
use super::{COPY_MAX_BYTES, MpiCommunicator, count};
use crate::CollectiveError;

impl MpiCommunicator {
    /// Runs one collective, blocking or non-blocking as this communicator requires.
    ///
    /// # Safety
    /// Both closures use the same buffers, which live and are not otherwise accessed until this
    /// method returns.
    pub(super) unsafe fn collective(
        &self,
        [blocking_name, started_name]: [&'static str; 2],
        blocking: impl FnOnce(ffi::MPI_Comm) -> c_int,
        start: impl FnOnce(ffi::MPI_Comm, *mut ffi::MPI_Request) -> c_int,
    ) -> Result<(), CollectiveError> {
        let communicator = self.raw();
        if self.is_world() {
            return self.check(blocking_name, blocking(communicator));
        }
        // SAFETY: the caller guarantees the buffers, and the request completes before this method
        // returns.
        let request = unsafe {
            PendingCall::start(started_name, self.topology.rank, |request| {
                start(communicator, request)
            })
        }?;
        self.finish(request)
    }

    pub(super) fn broadcast_bytes(
        &self,
        root: usize,
        bytes: &mut [u8],
    ) -> Result<(), CollectiveError> {
        let _turn = self.lock();
        for bytes in bytes.chunks_mut(COPY_MAX_BYTES) {
            let start = bytes.as_mut_ptr().cast::<c_void>();
            let length = count(bytes.len());
            let root = count(root);
            // SAFETY: the buffer holds `length` bytes and outlives the call; `root` is a rank.
            unsafe {
                self.collective(
                    ["MPI_Bcast", "MPI_Ibcast"],
                    |comm| ffi::MPI_Bcast(start, length, ffi::RSMPI_UINT8_T, root, comm),
                    |comm, request| {
                        ffi::MPI_Ibcast(start, length, ffi::RSMPI_UINT8_T, root, comm, request)
                    },
                )
            }?;
        }
        Ok(())
    }

    pub(super) fn gather_bytes(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        let _turn = self.lock();
        let lengths = self.gather_lengths(bytes.len())?;
        let mut gathered: Vec<Vec<u8>> = lengths
            .iter()
            .map(|&length| Vec::with_capacity(length))
            .collect();
        let round_bytes = COPY_MAX_BYTES / lengths.len();
        let longest = lengths.iter().copied().max().unwrap_or(0);
        for start in (0..longest).step_by(round_bytes) {
            let piece = |length: usize| length.min(start + round_bytes) - length.min(start);
            let pieces: Vec<usize> = lengths.iter().map(|&length| piece(length)).collect();
            let from = bytes.len().min(start);
            let round = self.gather_round(&bytes[from..from + piece(bytes.len())], &pieces)?;
            let mut rest = round.as_slice();
            for (rank_bytes, length) in gathered.iter_mut().zip(pieces) {
                let (piece, others) = rest.split_at(length);
                rank_bytes.extend_from_slice(piece);
                rest = others;
            }
        }
        Ok(gathered)
    }

    /// Returns the length of every rank's bytes.
    fn gather_lengths(&self, length: usize) -> Result<Vec<usize>, CollectiveError> {
        let mine = [length as u64];
        let mut lengths = vec![0_u64; self.topology.world_size];
        let from = mine.as_ptr().cast::<c_void>();
        let to = lengths.as_mut_ptr().cast::<c_void>();
        // SAFETY: every rank sends one u64, `lengths` has room for all of them, and both outlive
        // the call.
        unsafe {
            let one = ffi::RSMPI_UINT64_T;
            self.collective(
                ["MPI_Allgather", "MPI_Iallgather"],
                |comm| ffi::MPI_Allgather(from, 1, one, to, 1, one, comm),
                |comm, request| ffi::MPI_Iallgather(from, 1, one, to, 1, one, comm, request),
            )
        }?;
        Ok(lengths.into_iter().map(|length| length as usize).collect())
    }

    /// Runs one round of a gather with `lengths[r]` bytes of rank r; `bytes` is this rank's part.
    /// Returns all bytes in rank order.
    fn gather_round(&self, bytes: &[u8], lengths: &[usize]) -> Result<Vec<u8>, CollectiveError> {
        assert_eq!(
            bytes.len(),
            lengths[self.topology.rank],
            "a rank brings as many bytes as it announced"
        );
        let counts: Vec<c_int> = lengths.iter().map(|&length| count(length)).collect();
        let mut offset = 0;
        let mut offsets: Vec<c_int> = Vec::with_capacity(lengths.len());
        for length in lengths {
            offsets.push(count(offset));
            offset += length;
        }
        let mut gathered = vec![0_u8; offset];
        let from = bytes.as_ptr().cast::<c_void>();
        let length = count(bytes.len());
        let to = gathered.as_mut_ptr().cast::<c_void>();
        let counts = counts.as_ptr();
        let offsets = offsets.as_ptr();
        // SAFETY: `gathered` has room for the sum of all counts at the given offsets, `bytes` for
        // this rank's count (asserted), and all buffers outlive the call.
        unsafe {
            let byte = ffi::RSMPI_UINT8_T;
            self.collective(
                ["MPI_Allgatherv", "MPI_Iallgatherv"],
                |comm| ffi::MPI_Allgatherv(from, length, byte, to, counts, offsets, byte, comm),
                |comm, request| {
                    ffi::MPI_Iallgatherv(
                        from, length, byte, to, counts, offsets, byte, comm, request,
                    )
                },
            )
        }?;
        Ok(gathered)
    }

    pub(super) fn meet(&self) -> Result<(), CollectiveError> {
        let _turn = self.lock();
        // SAFETY: no buffers.
        unsafe {
            self.collective(
                ["MPI_Barrier", "MPI_Ibarrier"],
                |comm| ffi::MPI_Barrier(comm),
                |comm, request| ffi::MPI_Ibarrier(comm, request),
            )
        }
    }
}
