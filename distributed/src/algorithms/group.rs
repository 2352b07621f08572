//! A group of ranks, and arithmetic on its numbers.
//!
//! In: ranks in ascending order. Out: this rank's index in the group, sums and second buffers.
//! Invariant: every rank of a group builds the same group.

use bytemuck::Pod;

use crate::communicator::ReduceBuffer;
use crate::{CollectiveError, Communicator};

/// A group of ranks that reduce together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Group {
    /// Ranks in ascending order.
    pub(super) ranks: Vec<usize>,
    /// Index of this rank in `ranks`.
    pub(super) index: usize,
}

impl Group {
    pub(super) fn world(communicator: &dyn Communicator) -> Self {
        Self {
            ranks: (0..communicator.world_size()).collect(),
            index: communicator.rank(),
        }
    }

    /// Returns the group of `ranks` if `rank` is one of them.
    pub(super) fn of(rank: usize, ranks: Vec<usize>) -> Option<Self> {
        let index = ranks.iter().position(|&member| member == rank)?;
        Some(Self { ranks, index })
    }

    pub(super) fn len(&self) -> usize {
        self.ranks.len()
    }
}

/// A number type that the algorithms sum.
pub(crate) trait Number: Pod {
    /// Returns the sum. Sums of integers are modulo 2^64.
    fn plus(self, other: Self) -> Self;

    /// Returns `values` as the buffer of a sum.
    fn buffer(values: &mut [Self]) -> ReduceBuffer<'_>;
}

impl Number for f32 {
    fn plus(self, other: Self) -> Self {
        self + other
    }

    fn buffer(values: &mut [Self]) -> ReduceBuffer<'_> {
        ReduceBuffer::SumF32(values)
    }
}

impl Number for u64 {
    fn plus(self, other: Self) -> Self {
        self.wrapping_add(other)
    }

    fn buffer(values: &mut [Self]) -> ReduceBuffer<'_> {
        ReduceBuffer::SumU64(values)
    }
}

/// Adds `values` to `sums`.
///
/// # Panics
/// Panics if the lengths differ.
pub(crate) fn add<T: Number>(sums: &mut [T], values: &[T]) {
    assert_eq!(
        sums.len(),
        values.len(),
        "buffers that are added have one length"
    );
    sums.iter_mut()
        .zip(values)
        .for_each(|(sum, &value)| *sum = sum.plus(value));
}

/// A second buffer, kept for the next call.
#[derive(Debug)]
pub(super) struct Scratch {
    words: Vec<u64>,
    /// Number of real elements for each element of the buffer. Above 1 only in a simulation.
    pub(super) magnification: f64,
}

impl Default for Scratch {
    fn default() -> Self {
        Self {
            words: Vec::new(),
            magnification: 1.0,
        }
    }
}

impl Scratch {
    /// Returns a buffer of `length` numbers with unspecified values.
    pub(super) fn take<T: Number>(&mut self, length: usize) -> &mut [T] {
        let words = (length * size_of::<T>()).div_ceil(size_of::<u64>());
        if self.words.len() < words {
            self.words.resize(words, 0);
        }
        &mut bytemuck::cast_slice_mut(&mut self.words[..words])[..length]
    }
}

/// Returns the number of elements that stand for `elements`. The number is rounded up, so that
/// remainders do not add pieces.
pub(super) fn piece(elements: usize, magnification: f64) -> usize {
    (elements as f64 / magnification).ceil() as usize
}

pub(super) fn exchange<T: Number>(
    communicator: &dyn Communicator,
    to: usize,
    outgoing: &[T],
    from: usize,
    incoming: &mut [T],
) -> Result<(), CollectiveError> {
    communicator.exchange(
        to,
        bytemuck::cast_slice(outgoing),
        from,
        bytemuck::cast_slice_mut(incoming),
    )
}
