//! Runs numbered pieces of work on the current rayon pool; each worker has a slot of the workspace.
//!
//! In: a number of pieces that depends only on shapes.
//! Out: `work(piece, slot)`, called once for each piece.
//! Invariant: any worker may take a piece, but the result of a piece depends only on its number. A
//! piece writes only its own elements and uses the slot as scratch. If the workspace starts on a
//! cache line, so does each slot.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::scratch::LINE_FLOATS;

/// Most elements of a slice, for elements of eight bytes.
const MAX_ELEMENTS: usize = isize::MAX as usize / size_of::<f64>();

/// Returns the product of these extents, which is the number of elements. A wrapped product would
/// give a slice that is too short.
///
/// # Panics
/// If `len` exceeds the largest slice.
pub(crate) fn elements(what: &str, extents: &[usize]) -> usize {
    let product = extents
        .iter()
        .try_fold(1, |product: usize, extent| product.checked_mul(*extent));
    let Some(product) = product.filter(|product| *product <= MAX_ELEMENTS) else {
        panic!("{what}: expected at most {MAX_ELEMENTS} elements, got the extents {extents:?}");
    };
    product
}

/// Rounds a length up to whole cache lines, in elements.
pub(crate) const fn whole_lines(len: usize) -> usize {
    len.next_multiple_of(LINE_FLOATS)
}

/// Returns the elements of one slot of `slot_len` per worker.
pub(crate) const fn slots_len(num_workers: usize, slot_len: usize) -> usize {
    num_workers * whole_lines(slot_len)
}

/// Calls `work` once for each piece. The number of workers is the least of the pool's threads, the
/// slots of `slot_len` in the workspace ([`slots_len`]), and the pieces.
///
/// # Panics
/// If the workspace has no slot.
pub(crate) fn for_each_piece(
    num_pieces: usize,
    workspace: &mut [f32],
    slot_len: usize,
    work: &(dyn Fn(usize, &mut [f32]) + Sync),
) {
    assert!(
        workspace.len() >= slot_len,
        "workspace: expected at least {slot_len} elements, got {}",
        workspace.len()
    );
    let num_slots = workspace
        .len()
        .checked_div(whole_lines(slot_len))
        .unwrap_or(usize::MAX);
    let num_workers = num_slots.min(rayon::current_num_threads()).min(num_pieces);
    if num_workers <= 1 {
        let slot = &mut workspace[..slot_len];
        (0..num_pieces).for_each(|piece| work(piece, slot));
        return;
    }
    let next = AtomicUsize::new(0);
    let next = &next;
    rayon::scope(|scope| {
        let mut rest = workspace;
        for _ in 0..num_workers {
            let (slot, tail) = rest.split_at_mut(whole_lines(slot_len));
            let slot = &mut slot[..slot_len];
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
        Self {
            start: slice.as_mut_ptr(),
            len: slice.len(),
        }
    }

    /// Returns the address of the elements from `offset` on, of which `len` must exist.
    ///
    /// # Safety
    /// No other piece touches what is accessed through it, and the slice outlives the access.
    pub(crate) unsafe fn at(self, offset: usize, len: usize) -> *mut T {
        assert!(
            offset <= self.len && len <= self.len - offset,
            "range {offset}+{len} of {}",
            self.len
        );
        // SAFETY: inside the slice, as just asserted.
        unsafe { self.start.add(offset) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    #[should_panic(expected = "range 18446744073709551615+2 of 4")]
    #[cfg(target_pointer_width = "64")]
    fn a_range_whose_end_wraps_is_refused() {
        // SAFETY: nothing is accessed.
        unsafe { SharedMut::new(&mut [0.0; 4]).at(usize::MAX, 2) };
    }

    #[test]
    fn every_worker_s_slot_starts_on_a_cache_line_whatever_its_length() {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(3)
            .build()
            .expect("threads can be started");
        let mut scratch = Scratch::new();
        for slot_len in [1, 15, 16, 17, 1003] {
            pool.install(|| {
                // Each worker waits in its slot for the others, so that all slots are seen.
                let barrier = std::sync::Barrier::new(3);
                for_each_piece(
                    3,
                    scratch.floats(slots_len(3, slot_len)),
                    slot_len,
                    &|_, slot| {
                        barrier.wait();
                        assert_eq!((slot.len(), slot.as_ptr().addr() % 64), (slot_len, 0));
                    },
                );
            });
        }
    }
}
