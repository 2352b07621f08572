//! Messages between two ranks.
//!
//! In: this process's bytes. Out: the other process's bytes, divided into pieces whose counts fit a
//! C `int`.
//! Invariant: every message ends with a piece shorter than [`COPY_MAX_BYTES`], so that its receiver
//! need not know the length.
//! Source: MPI standard 3.1, sections 3.7 (non-blocking messages) and 3.8 (matched probes).

use std::mem::MaybeUninit;
use std::os::raw::{c_int, c_void};

use ::mpi::ffi;

use super::pending_call::{PendingCall, Status};
use super::{COPY_MAX_BYTES, MpiCommunicator, count};
use crate::CollectiveError;

/// The tag of exchanges, above the tags of callers.
pub(super) const EXCHANGE_TAG: c_int = 1 << 16;

impl MpiCommunicator {
    pub(super) fn send_bytes(
        &self,
        to: usize,
        tag: c_int,
        bytes: &[u8],
    ) -> Result<(), CollectiveError> {
        let _turn = self.message_turn();
        pieces(bytes.len(), COPY_MAX_BYTES)
            .try_for_each(|piece| self.finish(self.start_send(to, tag, &bytes[piece])?))
    }

    pub(super) fn receive_bytes(
        &self,
        from: usize,
        tag: c_int,
        bytes: &mut [u8],
    ) -> Result<(), CollectiveError> {
        let _turn = self.message_turn();
        let total = bytes.len();
        pieces(total, COPY_MAX_BYTES).try_for_each(|piece| {
            self.receive_piece("receive", from, tag, piece.start, &mut bytes[piece], total)
        })
    }

    pub(super) fn exchange_bytes(
        &self,
        to: usize,
        outgoing: &[u8],
        from: usize,
        incoming: &mut [u8],
    ) -> Result<(), CollectiveError> {
        let _turn = self.message_turn();
        let total = incoming.len();
        let mut sends = pieces(outgoing.len(), COPY_MAX_BYTES);
        let mut receives = pieces(total, COPY_MAX_BYTES);
        loop {
            let send = sends.next();
            let receive = receives.next();
            if send.is_none() && receive.is_none() {
                return Ok(());
            }
            let sending = send
                .map(|piece| self.start_send(to, EXCHANGE_TAG, &outgoing[piece]))
                .transpose()?;
            let received = receive.map_or(Ok(()), |piece| {
                self.receive_piece(
                    "exchange",
                    from,
                    EXCHANGE_TAG,
                    piece.start,
                    &mut incoming[piece],
                    total,
                )
            });
            // The send must complete even if the receive failed, because MPI still reads the send
            // buffer.
            sending
                .map_or(Ok(()), |request| self.finish(request))
                .and(received)?;
        }
    }

    pub(super) fn receive_message(&self, tag: c_int) -> Result<(usize, Vec<u8>), CollectiveError> {
        self.wait_policy
            .wait(|| self.try_receive_message(tag).transpose())
    }

    pub(super) fn try_receive_message(
        &self,
        tag: c_int,
    ) -> Result<Option<(usize, Vec<u8>)>, CollectiveError> {
        let _turn = self.message_turn();
        // SAFETY: the mpi crate's C shim initializes this constant before `main`; it is not written
        // later.
        let any = unsafe { ffi::RSMPI_ANY_SOURCE };
        let Some((from, mut bytes)) = self.try_receive_piece(any, tag)? else {
            return Ok(None);
        };
        let mut last = bytes.len();
        while last == COPY_MAX_BYTES {
            let piece = self
                .wait_policy
                .wait(|| self.try_receive_piece(count(from), tag).transpose());
            let (_, piece) = piece?;
            last = piece.len();
            bytes.extend_from_slice(&piece);
        }
        Ok(Some((from, bytes)))
    }

    /// Returns one piece of a message of unknown length if it has arrived.
    fn try_receive_piece(
        &self,
        from: c_int,
        tag: c_int,
    ) -> Result<Option<(usize, Vec<u8>)>, CollectiveError> {
        let Some(mut found) = self.try_match(from, tag)? else {
            return Ok(None);
        };
        let mut bytes = vec![0_u8; found.bytes];
        self.finish(self.start_matched(&mut found, &mut bytes)?)?;
        Ok(Some((found.from, bytes)))
    }

    /// Waits for one piece of a message of `total` bytes. The piece starts at `start` and fills
    /// `bytes`.
    ///
    /// The piece is matched before it is received. Open MPI 4.1.4 hangs in a receive whose buffer
    /// is too short for a large message.
    fn receive_piece(
        &self,
        call: &'static str,
        from: usize,
        tag: c_int,
        start: usize,
        bytes: &mut [u8],
        total: usize,
    ) -> Result<(), CollectiveError> {
        let mut found = self
            .wait_policy
            .wait(|| self.try_match(count(from), tag).transpose())?;
        if found.bytes == bytes.len() {
            return self.finish(self.start_matched(&mut found, bytes)?);
        }
        let got = start + found.bytes;
        let mut refused = vec![0_u8; found.bytes];
        self.finish(self.start_matched(&mut found, &mut refused)?)?;
        Err(CollectiveError::lengths(call, from, total, got))
    }

    /// Removes the next message from MPI's queues if it has arrived. The caller must then receive
    /// it.
    fn try_match(&self, from: c_int, tag: c_int) -> Result<Option<Matched>, CollectiveError> {
        let mut found: c_int = 0;
        let mut message = MaybeUninit::<ffi::MPI_Message>::uninit();
        let mut status = Status::empty();
        // SAFETY: the communicator is live, and all three outlive the call that writes them.
        let code = unsafe {
            ffi::MPI_Improbe(
                from,
                tag,
                self.raw(),
                &mut found,
                message.as_mut_ptr(),
                &mut status.0,
            )
        };
        self.check("MPI_Improbe", code)?;
        if found == 0 {
            return Ok(None);
        }
        // SAFETY: MPI found a message, so MPI has written the handle.
        let message = unsafe { message.assume_init() };
        Ok(Some(Matched {
            message,
            from: status.source(),
            bytes: status.bytes(self.topology.rank)?,
        }))
    }

    fn start_matched<'buffer>(
        &self,
        found: &mut Matched,
        bytes: &'buffer mut [u8],
    ) -> Result<PendingCall<'buffer>, CollectiveError> {
        assert_eq!(
            bytes.len(),
            found.bytes,
            "a matched message is received whole"
        );
        let start = bytes.as_mut_ptr().cast::<c_void>();
        let length = count(bytes.len());
        // SAFETY: the buffer holds the `length` bytes of the message, and only this request borrows
        // it, as long as the request lives.
        unsafe {
            PendingCall::start("MPI_Imrecv", self.topology.rank, |request| {
                ffi::MPI_Imrecv(
                    start,
                    length,
                    ffi::RSMPI_UINT8_T,
                    &mut found.message,
                    request,
                )
            })
        }
    }

    fn start_send<'buffer>(
        &self,
        to: usize,
        tag: c_int,
        bytes: &'buffer [u8],
    ) -> Result<PendingCall<'buffer>, CollectiveError> {
        let start = bytes.as_ptr().cast::<c_void>();
        let length = count(bytes.len());
        // SAFETY: the buffer holds `length` bytes and stays borrowed as long as the request lives.
        unsafe {
            PendingCall::start("MPI_Isend", self.topology.rank, |request| {
                ffi::MPI_Isend(
                    start,
                    length,
                    ffi::RSMPI_UINT8_T,
                    count(to),
                    tag,
                    self.raw(),
                    request,
                )
            })
        }
    }
}

/// A matched message that is not yet received.
struct Matched {
    message: ffi::MPI_Message,
    from: usize,
    bytes: usize,
}

/// Returns the ranges of a message of `length` bytes: full pieces, then a shorter and possibly
/// empty piece.
fn pieces(length: usize, piece: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    (0..=length / piece).map(move |index| index * piece..length.min((index + 1) * piece))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_end_with_a_short_piece() {
        let cut = |length| {
            pieces(length, 4)
                .map(|piece| (piece.start, piece.end))
                .collect::<Vec<_>>()
        };
        assert_eq!(cut(0), [(0, 0)]);
        assert_eq!(cut(3), [(0, 3)]);
        assert_eq!(cut(4), [(0, 4), (4, 4)]);
        assert_eq!(cut(9), [(0, 4), (4, 8), (8, 9)]);
    }
}
