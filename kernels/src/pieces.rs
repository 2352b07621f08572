//! Runs numbered pieces of work on the current rayon pool, each worker with a slot of the caller's workspace.
//!
//! In: a number of pieces that depends on shapes only. Out: `work(piece, slot)` called once for each piece.
//! Invariant: which worker takes a piece is left to chance, what the piece computes is not: it may write only what
//! belongs to its number, and uses its slot as scratch.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Calls `work` once for each piece; as many workers as the current pool has threads, as the workspace has slots of
/// `slot_len`, and as there are pieces.
///
/// # Panics
/// If the workspace has not one slot.
pub(crate) fn for_each_piece<F>(num_pieces: usize, workspace: &mut [f32], slot_len: usize, work: F)
where
    F: Fn(usize, &mut [f32]) + Sync,
{
    assert!(workspace.len() >= slot_len, "workspace: expected at least {slot_len} elements, got {}", workspace.len());
    let num_slots = workspace.len().checked_div(slot_len).unwrap_or(usize::MAX);
    let num_workers = num_slots.min(rayon::current_num_threads()).min(num_pieces);
    if num_workers <= 1 {
        let slot = &mut workspace[..slot_len];
        (0..num_pieces).for_each(|piece| work(piece, slot));
        return;
    }
    let next = AtomicUsize::new(0);
    let (next, work) = (&next, &work);
    rayon::scope(|scope| {
        let mut rest = workspace;
        for _ in 0..num_workers {
            let (slot, tail) = rest.split_at_mut(slot_len);
            rest = tail;
            scope.spawn(move |_| {
                loop {
                    let piece = next.fetch_add(1, Ordering::Relaxed);
                    if piece >= num_pieces {
                        return;
                    }
                    work(piece, slot);
                }
            });
        }
    });
}

/// A mutable slice that several pieces write, each its own elements.
#[derive(Clone, Copy)]
pub(crate) struct SharedMut<T = f32> {
    start: *mut T,
    len: usize,
}

// SAFETY: access goes through `range`, whose contract forbids overlapping use.
unsafe impl<T: Send> Send for SharedMut<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for SharedMut<T> {}

impl<T> SharedMut<T> {
    pub(crate) fn new(slice: &mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len() }
    }

    /// The address of the elements from `offset` on, of which `len` must exist.
    ///
    /// # Safety
    /// No other piece touches what is accessed through it, and the slice outlives the access.
    pub(crate) unsafe fn at(self, offset: usize, len: usize) -> *mut T {
        assert!(offset + len <= self.len, "range {offset}+{len} of {}", self.len);
        // SAFETY: inside the slice, as just asserted.
        unsafe { self.start.add(offset) }
    }
}
