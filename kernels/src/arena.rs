//! Buffers that are taken and given back, so that after the first step of a training no memory is fresh.
//!
//! In: a number of elements. Out: a [`Block`] of so many, 64-byte aligned, whose drop gives the memory back to its [`Arena`].
//! Invariant: equal steps find equal buffers: an arena that has seen one step asks the system for nothing more. A block that
//! comes again holds what was written last: whoever takes one writes all of it.
//!
//! Why: a fresh page costs the system 0.1 to 0.25 µs, of which a step of ResNet-20 with 128 images would take 50,000: a third
//! of its time (`docs/benchmarks.md`). Aligned, a vector's load never crosses two cache lines.

use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::Element;

/// One cache line, the unit of every buffer.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Line([u8; LINE]);

impl Line {
    /// One without a bit set.
    pub(crate) const ZEROS: Self = Self([0; LINE]);
}

const LINE: usize = 64;

/// A free buffer serves a request of at least a quarter of its size: the short last batch of an epoch reuses the long ones'.
const MAX_OVERSIZE: usize = 4;

/// Free buffers. A clone is another handle of the same arena.
#[derive(Clone, Debug, Default)]
pub struct Arena {
    free: Arc<Mutex<Vec<Vec<Line>>>>,
}

impl Arena {
    /// An arena without buffers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A block of `len` values of unspecified content: zeros or what an earlier holder wrote.
    ///
    /// The smallest free buffer that is long enough and not far too long, else a new one; the largest free buffer that was
    /// too short is then freed in exchange, so that a change of the batch size does not keep both sizes.
    #[must_use]
    pub fn take<E: Element>(&self, len: usize) -> Block<E> {
        let num_lines = (len * size_of::<E>()).div_ceil(LINE);
        let lines = self.reuse(num_lines).unwrap_or_else(|| vec![Line::ZEROS; num_lines]);
        Block { lines, len, arena: self.clone(), element: PhantomData }
    }

    fn reuse(&self, num_lines: usize) -> Option<Vec<Line>> {
        let mut free = self.lock();
        let fitting = |lines: &Vec<Line>| (num_lines..=num_lines.saturating_mul(MAX_OVERSIZE)).contains(&lines.len());
        let best = (0..free.len()).filter(|&i| fitting(&free[i])).min_by_key(|&i| free[i].len());
        if best.is_none() {
            let short = (0..free.len()).filter(|&i| free[i].len() < num_lines).max_by_key(|&i| free[i].len());
            if let Some(short) = short {
                free.swap_remove(short);
            }
        }
        best.map(|index| free.swap_remove(index))
    }

    /// Bytes of the free buffers.
    #[cfg(test)]
    fn free_bytes(&self) -> usize {
        self.lock().iter().map(|lines| lines.len() * LINE).sum()
    }

    /// A list of free buffers is whole after any panic: nothing panics between its changes.
    fn lock(&self) -> MutexGuard<'_, Vec<Vec<Line>>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A buffer of activations that goes back to its arena when dropped.
#[derive(Debug)]
pub struct Block<E: Element> {
    lines: Vec<Line>,
    len: usize,
    arena: Arena,
    element: PhantomData<E>,
}

impl<E: Element> Block<E> {
    /// The values as bytes, in the machine's order.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        // SAFETY: the buffer has at least `len` values, all initialised, and any byte is a u8.
        unsafe { core::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len * size_of::<E>()) }
    }
}

impl<E: Element> core::ops::Deref for Block<E> {
    type Target = [E];

    fn deref(&self) -> &[E] {
        // SAFETY: the buffer has at least `len` values, aligned to 64 bytes and initialised; any bits are an
        // element, since `Element` is sealed: f32 and bf16.
        unsafe { core::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }
}

impl<E: Element> core::ops::DerefMut for Block<E> {
    fn deref_mut(&mut self) -> &mut [E] {
        // SAFETY: as in `deref`, and `self` is borrowed mutably; any elements are a valid line.
        unsafe { core::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }
}

impl<E: Element> Drop for Block<E> {
    fn drop(&mut self) {
        let lines = core::mem::take(&mut self.lines);
        if !lines.is_empty() {
            self.arena.lock().push(lines);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_equal_step_takes_the_buffers_of_the_first() {
        let arena = Arena::new();
        let step = || {
            let blocks = [1000, 17, 1000, 64].map(|len| arena.take::<f32>(len));
            blocks
                .each_ref()
                .map(|block| block.as_ptr() as usize)
                .into_iter()
                .collect::<std::collections::BTreeSet<_>>()
        };
        let first = step();
        let bytes = arena.free_bytes();
        assert_eq!(step(), first);
        assert_eq!(arena.free_bytes(), bytes);
    }

    #[test]
    fn blocks_are_aligned_distinct_and_of_the_length_asked_for() {
        let arena = Arena::new();
        let mut blocks = [0, 1, 15, 16, 17, 4099].map(|len| (len, arena.take::<f32>(len)));
        for (index, (len, block)) in blocks.iter_mut().enumerate() {
            assert_eq!((block.len(), block.as_bytes().len()), (*len, 4 * *len));
            assert!((block.as_ptr() as usize).is_multiple_of(LINE));
            block.fill(index as f32);
        }
        for (index, (_, block)) in blocks.iter().enumerate() {
            assert!(block.iter().all(|&value| value == index as f32));
        }
    }

    #[test]
    fn a_shorter_batch_reuses_and_a_longer_one_replaces() {
        let arena = Arena::new();
        let take = |len| arena.take::<f32>(len);
        drop((take(1 << 12), take(1 << 12)));
        drop((take(3000), take(3000)));
        assert_eq!(arena.free_bytes(), (2 * 4) << 12);
        drop((take(1 << 13), take(1 << 13)));
        assert_eq!(arena.free_bytes(), (2 * 4) << 13);
        drop(take(16));
        assert_eq!(arena.free_bytes(), ((2 * 4) << 13) + 64, "a small block does not occupy a large buffer");
    }
}
