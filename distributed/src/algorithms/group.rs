//! Some of the ranks, and what the algorithms do with their numbers.
//!
//! In: ranks in ascending order. Out: this rank's place among them; sums and second buffers.
//! Invariant: every rank of a group builds the same group.

use bytemuck::Pod;

use crate::{
    CollectiveError, Communicator,
    communicator::{Between, NodeMemory},
};

/// Ranks that reduce together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Group {
    /// In ascending order.
    pub(super) ranks: Vec<usize>,
    /// This rank's place in `ranks`.
    pub(super) index: usize,
}

impl Group {
    pub(super) fn world(communicator: &dyn Communicator) -> Self {
        Self {
            ranks: (0..communicator.world_size()).collect(),
            index: communicator.rank(),
        }
    }

    /// The group of `ranks` if `rank` is one of them.
    pub(super) fn of(rank: usize, ranks: Vec<usize>) -> Option<Self> {
        let index = ranks.iter().position(|&member| member == rank)?;
        Some(Self { ranks, index })
    }

    pub(super) fn len(&self) -> usize {
        self.ranks.len()
    }
}

/// A number that the algorithms add up.
pub(crate) trait Number: Pod {
    /// The sum; of integers, modulo 2^64.
    fn plus(self, other: Self) -> Self;

    /// As [`NodeMemory::sum_f32`] and [`NodeMemory::sum_u64`].
    fn sum_on_node(
        memory: &mut dyn NodeMemory,
        values: &mut [Self],
        between: Option<Between<'_, Self>>,
    ) -> Result<(), CollectiveError>;
}

impl Number for f32 {
    fn plus(self, other: Self) -> Self {
        self + other
    }

    fn sum_on_node(
        memory: &mut dyn NodeMemory,
        values: &mut [Self],
        between: Option<Between<'_, Self>>,
    ) -> Result<(), CollectiveError> {
        memory.sum_f32(values, between)
    }
}

impl Number for u64 {
    fn plus(self, other: Self) -> Self {
        self.wrapping_add(other)
    }

    fn sum_on_node(
        memory: &mut dyn NodeMemory,
        values: &mut [Self],
        between: Option<Between<'_, Self>>,
    ) -> Result<(), CollectiveError> {
        memory.sum_u64(values, between)
    }
}

/// Adds `values` to `sums`.
///
/// # Panics
/// When their lengths differ.
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
#[derive(Debug, Default)]
pub(super) struct Scratch {
    words: Vec<u64>,
}

impl Scratch {
    /// A buffer of `length` numbers, which hold anything.
    pub(super) fn take<T: Number>(&mut self, length: usize) -> &mut [T] {
        let words = (length * size_of::<T>()).div_ceil(size_of::<u64>());
        if self.words.len() < words {
            self.words.resize(words, 0);
        }
        &mut bytemuck::cast_slice_mut(&mut self.words[..words])[..length]
    }
}

/// The elements of a buffer that stand for `elements`; rounded up, so that the number of pieces does not grow by their remainders.
pub(super) fn piece(communicator: &dyn Communicator, elements: usize) -> usize {
    (elements as f64 / communicator.magnification()).ceil() as usize
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
