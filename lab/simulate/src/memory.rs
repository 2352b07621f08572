//! Memory that the ranks of a node share, in virtual time.
//!
//! In: the buffers of a node's ranks. Out: their sum, or a note of two meetings a piece.
//! Invariant: both kinds of memory cut a buffer into the same pieces and take the same time for each.
//!
//! The ranks of a node meet twice a piece: when all have brought it, each sums a part; when the first rank has added those of other
//! nodes, all copy the sum. With R ranks each meeting takes alpha + beta B (R - 1) / R for a piece of B bytes, as (R - 1) / R of it goes
//! from rank to rank each time.

use std::sync::{Arc, Mutex, PoisonError};

use bytemuck::Pod;
use distributed::{
    CollectiveError, Communicator,
    communicator::{Between, NodeMemory},
};

use crate::clock::Clock;
use crate::network::Link;
use crate::record::{Operation, State};

/// Tag under which ranks of a node bring their pieces: reducers send under it only where there is no shared memory.
const PIECE_TAG: u16 = u16::MAX - 1;

/// Elements of a piece of memory of `bytes`, rounded up as the reducers do.
fn elements<T>(bytes: usize, magnification: f64) -> usize {
    ((bytes / size_of::<T>()) as f64 / magnification).ceil() as usize
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

    fn send<T: Pod>(&self, to: usize, values: &[T]) -> Result<(), CollectiveError> {
        self.threads
            .send(to, PIECE_TAG, &self.now().to_le_bytes())?;
        self.threads
            .send(to, PIECE_TAG, bytemuck::cast_slice(values))
    }

    /// Fills `values`, and tells the sender's time.
    fn receive<T: Pod>(&self, from: usize, values: &mut [T]) -> Result<f64, CollectiveError> {
        let mut time = [0; size_of::<f64>()];
        self.threads.receive(from, PIECE_TAG, &mut time)?;
        self.threads
            .receive(from, PIECE_TAG, bytemuck::cast_slice_mut(values))?;
        Ok(f64::from_le_bytes(time))
    }

    fn sum<T: Pod>(
        &self,
        values: &mut [T],
        plus: impl Fn(T, T) -> T,
        mut between: Option<Between<'_, T>>,
    ) -> Result<(), CollectiveError> {
        let (first, others) = (self.members[0], &self.members[1..]);
        for piece in values.chunks_mut(elements::<T>(self.bytes, self.magnification)) {
            let bytes = size_of_val(piece) as f64 * self.magnification;
            let seconds = meeting(self.link, self.members.len(), bytes);
            if self.threads.rank() != first {
                self.send(first, piece)?;
                // The first rank comes last to the second meeting.
                let latest = self.receive(first, piece)?;
                self.wait(latest, seconds);
                continue;
            }
            let mut latest = self.now();
            let mut brought = piece.to_vec();
            for &rank in others {
                latest = latest.max(self.receive(rank, &mut brought)?);
                piece
                    .iter_mut()
                    .zip(&brought)
                    .for_each(|(sum, &value)| *sum = plus(*sum, value));
            }
            self.wait(latest, seconds);
            between.as_mut().map_or(Ok(()), |between| between(piece))?;
            others.iter().try_for_each(|&rank| self.send(rank, piece))?;
            self.wait(0.0, seconds);
        }
        Ok(())
    }
}

impl NodeMemory for VirtualMemory {
    fn sum_f32(
        &mut self,
        values: &mut [f32],
        between: Option<Between<'_, f32>>,
    ) -> Result<(), CollectiveError> {
        self.sum(values, |a, b| a + b, between)
    }

    fn sum_u64(
        &mut self,
        values: &mut [u64],
        between: Option<Between<'_, u64>>,
    ) -> Result<(), CollectiveError> {
        self.sum(values, u64::wrapping_add, between)
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

impl RecordedMemory {
    fn sum<T: Pod>(
        &self,
        values: &mut [T],
        mut between: Option<Between<'_, T>>,
    ) -> Result<(), CollectiveError> {
        let state = || self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let magnification = state().magnification;
        for piece in values.chunks_mut(elements::<T>(self.bytes, magnification)) {
            let seconds = meeting(
                self.link,
                self.ranks,
                size_of_val(piece) as f64 * magnification,
            );
            state().operations.push(Operation::Meeting { seconds });
            if let Some(between) = between.as_mut().filter(|_| self.leads) {
                between(piece)?;
            }
            state().operations.push(Operation::Meeting { seconds });
        }
        Ok(())
    }
}

impl NodeMemory for RecordedMemory {
    fn sum_f32(
        &mut self,
        values: &mut [f32],
        between: Option<Between<'_, f32>>,
    ) -> Result<(), CollectiveError> {
        self.sum(values, between)
    }

    fn sum_u64(
        &mut self,
        values: &mut [u64],
        between: Option<Between<'_, u64>>,
    ) -> Result<(), CollectiveError> {
        self.sum(values, between)
    }
}
