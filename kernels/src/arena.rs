//! Buffers that a step returns and the next step reuses, so that only the first step needs new
//! memory.
//!
//! In: a number of elements.
//! Out: a [`Buffer`] of this length, aligned to 64 bytes. Its drop returns the memory to its
//! [`Arena`].
//! Invariant: equal steps get equal buffers. An arena that has seen one step asks the system for no
//! more memory. A reused block holds old values: the caller writes all of it.
//!
//! Blocks lie one after the other in regions, at the first place with enough room. Free neighbours
//! merge, so the memory of a network's small layers serves its large ones. The system provides the
//! pages of a region at the first write, so unused parts cost nothing.
//!
//! Reason: a new page costs 0.1 to 0.25 µs. A step of ResNet-20 with 128 images would need 50,000
//! pages, a third of its time (`docs/benchmarks.md`). An aligned vector load never crosses two
//! cache lines.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
#[cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]
use std::ffi::c_int;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::Element;
use crate::pieces::elements;

/// Cache line, the unit of every buffer.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Line([u8; LINE]);

impl Line {
    /// A line of zeros.
    pub(crate) const ZEROS: Self = Self([0; LINE]);
}

const LINE: usize = 64;

/// Lines of the smallest region, 64 MiB. The system's allocator maps regions of this size instead
/// of clearing them.
const REGION_LINES: usize = 1024 * 1024;

/// Makes the system's allocator keep memory that the main thread frees, in blocks up to 32 MiB.
///
/// Tensors outside an arena (new parameters, burn's operations) then reuse the memory of the step
/// before. Call this function when training begins; otherwise threads that decode images before
/// training keep their memory as well. It overrides the environment's settings of the allocator,
/// and has no effect outside 64-bit glibc.
pub fn keep_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]
    {
        // From <malloc.h>: the size from which a block is mapped apart, of which 32 MiB is the
        // highest, and how much may lie free at the heap's end.
        const M_TRIM_THRESHOLD: c_int = -1;
        const M_MMAP_THRESHOLD: c_int = -3;
        const NEVER: c_int = -1;
        // SAFETY: glibc's function of this signature, which takes any values and its own locks.
        unsafe extern "C" {
            safe fn mallopt(parameter: c_int, value: c_int) -> c_int;
        }
        // A refusal changes nothing: results are right, steps slower.
        if mallopt(M_MMAP_THRESHOLD, 32 << 20) == 1 {
            mallopt(M_TRIM_THRESHOLD, NEVER);
        }
    }
}

/// Memory for blocks. A clone is another handle of the same arena.
#[derive(Clone, Debug, Default)]
pub struct Arena {
    regions: Arc<Mutex<Vec<Region>>>,
}

impl Arena {
    /// Returns an arena without memory.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a block of `len` values with unspecified content: zeros or earlier values.
    ///
    /// # Panics
    /// If `len` exceeds the largest slice.
    #[must_use]
    pub fn take<E: Element>(&self, len: usize) -> Buffer<E> {
        let num_lines = elements("arena", &[len, size_of::<E>()]).div_ceil(LINE);
        let mut regions = self.lock();
        let taken =
            (0..regions.len()).find_map(|index| Some((index, regions[index].take(num_lines)?)));
        let (region, first) = taken.unwrap_or_else(|| {
            let all = regions.iter().map(|region| region.memory.num_lines).sum();
            regions.push(Region::new(num_lines.max(REGION_LINES).max(all)));
            let last = regions.len() - 1;
            (last, regions[last].take(num_lines).unwrap_or_default())
        });
        let values = regions[region].memory.line(first).cast();
        drop(regions);
        Buffer {
            values,
            len,
            region,
            lines: first..first + num_lines,
            arena: self.clone(),
        }
    }

    /// Returns the number of bytes that are in no block.
    #[cfg(test)]
    fn free_bytes(&self) -> usize {
        self.lock()
            .iter()
            .flat_map(|region| &region.free)
            .map(|lines| lines.len() * LINE)
            .sum()
    }

    /// Regions are whole after any panic: nothing panics between their changes.
    fn lock(&self) -> MutexGuard<'_, Vec<Region>> {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Memory of the system, with the lines that are free in it.
#[derive(Debug)]
struct Region {
    memory: Memory,
    /// In order; no two of them touch, none is empty.
    free: Vec<Range<usize>>,
}

impl Region {
    fn new(num_lines: usize) -> Self {
        let mut region = Self {
            memory: Memory::new(num_lines),
            free: Vec::new(),
        };
        region.give_back(0..num_lines);
        region
    }

    /// Returns the first of so many lines, the first that are free.
    fn take(&mut self, num_lines: usize) -> Option<usize> {
        let index = self.free.iter().position(|free| free.len() >= num_lines)?;
        let first = self.free[index].start;
        self.free[index].start += num_lines;
        if self.free[index].is_empty() {
            self.free.remove(index);
        }
        Some(first)
    }

    fn give_back(&mut self, lines: Range<usize>) {
        if lines.is_empty() {
            return;
        }
        let index = self.free.partition_point(|free| free.start < lines.start);
        let touches_next = self
            .free
            .get(index)
            .is_some_and(|next| next.start == lines.end);
        let touches_last = index > 0 && self.free[index - 1].end == lines.start;
        match (touches_last, touches_next) {
            (true, true) => self.free[index - 1].end = self.free.remove(index).end,
            (true, false) => self.free[index - 1].end = lines.end,
            (false, true) => self.free[index].start = lines.start,
            (false, false) => self.free.insert(index, lines),
        }
    }
}

/// Lines of zeros from the system.
#[derive(Debug)]
struct Memory {
    start: NonNull<u8>,
    num_lines: usize,
}

// SAFETY: plain memory, which only blocks look into, each at its own lines.
unsafe impl Send for Memory {}

impl Memory {
    fn new(num_lines: usize) -> Self {
        let layout = Self::layout(num_lines);
        // SAFETY: a region is not empty.
        let start = unsafe { alloc_zeroed(layout) };
        Self {
            start: NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout)),
            num_lines,
        }
    }

    /// One line more than asked for, to start on a line: for an alignment beyond its own, the
    /// standard library clears the memory itself, and so touches every page.
    fn layout(num_lines: usize) -> Layout {
        Layout::array::<[u8; LINE]>(num_lines + 1)
            .unwrap_or_else(|_| panic!("arena: {num_lines} lines of memory"))
    }

    fn line(&self, index: usize) -> NonNull<u8> {
        let aligned = self.start.align_offset(LINE);
        // SAFETY: `index` is at most the number of lines, and there is one line more.
        unsafe { self.start.add(aligned + index * LINE) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated by `new` with this layout; blocks hold the arena, so none is left.
        unsafe { dealloc(self.start.as_ptr(), Self::layout(self.num_lines)) }
    }
}

/// A buffer of activations. Its drop returns the memory to the arena.
#[derive(Debug)]
pub struct Buffer<E: Element> {
    values: NonNull<E>,
    len: usize,
    /// Position of the buffer in its region.
    region: usize,
    lines: Range<usize>,
    arena: Arena,
}

// SAFETY: the values belong to the block alone, as a vector's do.
unsafe impl<E: Element> Send for Buffer<E> {}
// SAFETY: as above.
unsafe impl<E: Element> Sync for Buffer<E> {}

impl<E: Element> Buffer<E> {
    /// Returns the values as bytes, in the machine's order.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        // SAFETY: the block's lines hold `len` values, all initialised, and any byte is a u8.
        unsafe {
            core::slice::from_raw_parts(self.values.as_ptr().cast(), self.len * size_of::<E>())
        }
    }
}

impl<E: Element> core::ops::Deref for Buffer<E> {
    type Target = [E];

    fn deref(&self) -> &[E] {
        // SAFETY: the block's lines hold `len` values, aligned to 64 bytes and initialised; any
        // bits are an element, since `Element` is sealed: f32 and bf16.
        unsafe { core::slice::from_raw_parts(self.values.as_ptr(), self.len) }
    }
}

impl<E: Element> core::ops::DerefMut for Buffer<E> {
    fn deref_mut(&mut self) -> &mut [E] {
        // SAFETY: as in `deref`, and `self` is borrowed mutably; no other block has these lines.
        unsafe { core::slice::from_raw_parts_mut(self.values.as_ptr(), self.len) }
    }
}

impl<E: Element> Drop for Buffer<E> {
    fn drop(&mut self) {
        self.arena.lock()[self.region].give_back(self.lines.clone());
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
            blocks.each_ref().map(|block| block.as_ptr() as usize)
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
    fn what_small_blocks_gave_back_in_any_order_serves_a_large_one() {
        let arena = Arena::new();
        let mut small: Vec<_> = (0..8).map(|_| arena.take::<f32>(1 << 12)).collect();
        let first = small[0].as_ptr().addr();
        let bytes = arena.free_bytes();
        for index in [3, 0, 5, 1, 2, 1, 0, 0] {
            drop(small.remove(index));
        }
        let large = arena.take::<f32>(8 << 12);
        assert_eq!((large.as_ptr().addr(), arena.free_bytes()), (first, bytes));
    }

    #[test]
    fn a_block_beyond_the_free_memory_gets_a_region_and_its_lines_are_its_own() {
        let arena = Arena::new();
        let len = 3 * REGION_LINES * LINE / size_of::<f32>() / 4;
        let mut one = arena.take::<f32>(len);
        let mut other = arena.take::<f32>(len);
        assert_eq!(arena.lock().len(), 2);
        (one[0], one[len - 1], other[0], other[len - 1]) = (1.0, 2.0, 3.0, 4.0);
        assert_eq!(
            [one[0], one[len - 1], other[0], other[len - 1]],
            [1.0, 2.0, 3.0, 4.0]
        );
        drop(one);
        let again = arena.take::<f32>(len);
        assert_eq!((arena.lock().len(), again[0]), (2, 1.0));
    }

    #[test]
    #[should_panic(
        expected = "arena: expected at most 1152921504606846975 elements, got the extents [4611686018427387920, 4]"
    )]
    #[cfg(target_pointer_width = "64")]
    fn a_length_whose_bytes_wrap_is_refused() {
        let _ = Arena::new().take::<f32>((1 << 62) + 16);
    }

    #[test]
    fn threads_never_share_a_line() {
        let arena = Arena::new();
        std::thread::scope(|scope| {
            for thread in 0..4u32 {
                let arena = arena.clone();
                scope.spawn(move || {
                    let mut held: Vec<(f32, Buffer<f32>)> = Vec::new();
                    for turn in 0..300u32 {
                        let number = (turn * 7919 + thread * 104_729) % 611;
                        let mut block = arena.take::<f32>(number as usize);
                        block.fill(number as f32);
                        held.push((number as f32, block));
                        if held.len() > 9 {
                            let (number, block) = held.swap_remove(number as usize % 9);
                            assert!(block.iter().all(|&value| value == number));
                        }
                    }
                });
            }
        });
        assert_eq!(
            arena.free_bytes(),
            REGION_LINES * LINE,
            "all came back, and became one"
        );
        assert_eq!(arena.lock()[0].free.len(), 1);
    }
}
