//! Memory that the ranks of a node share, in virtual time.
//!
//! In: the buffers of a node's ranks. Out: their sum, or a note of two meetings a piece.
//! Invariant: both kinds of memory cut a buffer into the same pieces and take the same time for each.
//!
//! The ranks of a node meet twice a piece: when all have brought it, each sums a part; when the first rank has added those of other
//! nodes, all copy the sum. With R ranks each meeting takes alpha + beta B (R - 1) / R for a piece of B bytes, as (R - 1) / R of it goes
//! from rank to rank each time.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use distributed::{
    CollectiveError, Communicator,
    communicator::{BetweenNodes, NodeMemory, ReduceBuffer},
};

use crate::clock::Clock;
use crate::network::Link;
use crate::record::{Operation, State};

/// Tag under which ranks of a node bring their pieces: reducers send under it only where there is no shared memory.
const PIECE_TAG: u16 = u16::MAX - 1;

/// Returns the ranges of a buffer that go through memory of `bytes`, rounded up as the reducers do.
fn pieces(
    buffer: &ReduceBuffer<'_>,
    bytes: usize,
    magnification: f64,
) -> impl Iterator<Item = Range<usize>> + use<> {
    let length = buffer.len();
    let elements = ((bytes / buffer.element_bytes()) as f64 / magnification).ceil() as usize;
    (0..length)
        .step_by(elements)
        .map(move |start| start..length.min(start + elements))
}

/// How long each meeting of `ranks` ranks takes for `bytes`.
fn meeting(link: Link, ranks: usize, bytes: f64) -> f64 {
    if ranks == 1 {
        0.0
    } else {
        link.seconds(bytes * (ranks - 1) as f64 / ranks as f64)
    }
}

/// Memory of ranks that are threads.
#[derive(Debug)]
pub(crate) struct VirtualMemory {
    pub(crate) threads: Arc<dyn Communicator>,
    pub(crate) clock: Arc<Mutex<Clock>>,
    pub(crate) link: Link,
    pub(crate) members: Vec<usize>,
    pub(crate) bytes: usize,
    pub(crate) magnification: f64,
}

impl VirtualMemory {
    /// Waits until `latest` and then for `seconds`.
    fn wait(&self, latest: f64, seconds: f64) {
        self.clock
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .collective(latest, seconds);
    }

    fn now(&self) -> f64 {
        self.clock
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .now
    }

    fn send(&self, to: usize, bytes: &[u8]) -> Result<(), CollectiveError> {
        self.threads
            .send(to, PIECE_TAG, &self.now().to_le_bytes())?;
        self.threads.send(to, PIECE_TAG, bytes)
    }

    /// Fills `bytes`, and returns the sender's time.
    fn receive(&self, from: usize, bytes: &mut [u8]) -> Result<f64, CollectiveError> {
        let mut time = [0; size_of::<f64>()];
        self.threads.receive(from, PIECE_TAG, &mut time)?;
        self.threads.receive(from, PIECE_TAG, bytes)?;
        Ok(f64::from_le_bytes(time))
    }
}

impl NodeMemory for VirtualMemory {
    fn sum(
        &mut self,
        mut buffer: ReduceBuffer<'_>,
        mut between: Option<BetweenNodes<'_>>,
    ) -> Result<(), CollectiveError> {
        let first = self.members[0];
        let others = &self.members[1..];
        for range in pieces(&buffer, self.bytes, self.magnification) {
            let mut piece = buffer.slice(range.clone());
            let bytes = piece.bytes().len() as f64 * self.magnification;
            let seconds = meeting(self.link, self.members.len(), bytes);
            if self.threads.rank() != first {
                self.send(first, piece.bytes())?;
                // The first rank comes last to the second meeting.
                let latest = self.receive(first, piece.bytes())?;
                self.wait(latest, seconds);
                continue;
            }
            let mut latest = self.now();
            let mut received = piece.bytes().to_vec();
            for &rank in others {
                latest = latest.max(self.receive(rank, &mut received)?);
                piece.reduce(&received);
            }
            self.wait(latest, seconds);
            if let Some(between) = &mut between {
                between(piece)?;
            }
            for &rank in others {
                self.send(rank, buffer.slice(range.clone()).bytes())?;
            }
            self.wait(0.0, seconds);
        }
        Ok(())
    }
}

/// Memory of a rank that runs alone.
#[derive(Debug)]
pub(crate) struct RecordedMemory {
    pub(crate) state: Arc<Mutex<State>>,
    /// Whether this rank is the first of its node.
    pub(crate) leads: bool,
    pub(crate) link: Link,
    pub(crate) ranks: usize,
    pub(crate) bytes: usize,
}

impl NodeMemory for RecordedMemory {
    fn sum(
        &mut self,
        mut buffer: ReduceBuffer<'_>,
        mut between: Option<BetweenNodes<'_>>,
    ) -> Result<(), CollectiveError> {
        let state = || self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let magnification = state().magnification;
        for range in pieces(&buffer, self.bytes, magnification) {
            let mut piece = buffer.slice(range);
            let bytes = piece.bytes().len() as f64 * magnification;
            let seconds = meeting(self.link, self.ranks, bytes);
            state().operations.push(Operation::Meeting { seconds });
            if let Some(between) = &mut between
                && self.leads
            {
                between(piece)?;
            }
            state().operations.push(Operation::Meeting { seconds });
        }
        Ok(())
    }
}
