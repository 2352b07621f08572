//! Scratch memory of one thread: a growing buffer for workspaces and packed weights.
//!
//! In: a number of elements.
//! Out: this many elements, aligned to 64 bytes, with unspecified content: zeros or earlier values.
//!
//! Reason for the alignment: `malloc` starts a large buffer 16 bytes after a line, so every wide
//! load and store would cross two lines. Alignment makes a training step a quarter faster.

use crate::arena::Line;

/// Floats of a cache line.
pub(crate) const LINE_FLOATS: usize = size_of::<Line>() / size_of::<f32>();
/// Doubles of a cache line.
pub(crate) const LINE_DOUBLES: usize = size_of::<Line>() / size_of::<f64>();

/// Rejects scratch memory or packed weights that do not start on a cache line. They would be
/// correct, but a quarter slower.
pub(crate) fn assert_on_line<const N: usize>(what: &str, memory: [&[f32]; N]) {
    for slice in memory {
        let address = slice.as_ptr().addr();
        assert!(
            slice.is_empty() || address.is_multiple_of(size_of::<Line>()),
            "{what}: expected memory from the start of a cache line, as `Scratch` gives it, got the address {address:#x}"
        );
    }
}

/// Growing buffer.
#[derive(Debug, Default)]
pub struct Scratch {
    lines: Vec<Line>,
}

impl Scratch {
    /// Returns an empty buffer.
    #[must_use]
    pub const fn new() -> Self {
        Self { lines: Vec::new() }
    }

    /// Returns the first `len` floats, 64-byte aligned.
    pub fn floats(&mut self, len: usize) -> &mut [f32] {
        let start = self.grown(len.div_ceil(LINE_FLOATS)).cast();
        // SAFETY: the lines hold `len` floats, aligned and initialised, and any bits are one; they
        // are borrowed mutably.
        unsafe { core::slice::from_raw_parts_mut(start, len) }
    }

    /// Returns the first `len` doubles, 64-byte aligned.
    pub fn doubles(&mut self, len: usize) -> &mut [f64] {
        let start = self.grown(len.div_ceil(LINE_DOUBLES)).cast();
        // SAFETY: as for floats.
        unsafe { core::slice::from_raw_parts_mut(start, len) }
    }

    /// Returns the first of at least `num_lines` lines.
    fn grown(&mut self, num_lines: usize) -> *mut Line {
        if self.lines.len() < num_lines {
            // The old content need not be copied.
            self.lines = Vec::new();
            self.lines = vec![Line::ZEROS; num_lines];
        }
        self.lines.as_mut_ptr()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scratch_of_any_length_starts_on_a_cache_line_before_and_after_it_grew() {
        let mut scratch = Scratch::new();
        for len in [0, 1, 15, 17, 4099, 100_003, 5, 1 << 20] {
            let floats = scratch.floats(len);
            assert_eq!((floats.len(), floats.as_ptr().addr() % 64), (len, 0));
            floats.fill(len as f32);
            let doubles = scratch.doubles(len);
            assert_eq!((doubles.len(), doubles.as_ptr().addr() % 64), (len, 0));
            doubles.fill(len as f64);
        }
    }

    #[test]
    #[should_panic(expected = "workspace: expected memory from the start of a cache line")]
    fn memory_beside_a_cache_line_is_refused() {
        assert_on_line("workspace", [&Scratch::new().floats(17)[4..]]);
    }

    #[test]
    fn a_shorter_request_keeps_the_memory_of_a_longer_one() {
        let mut scratch = Scratch::new();
        let address = scratch.floats(1000).as_ptr().addr();
        assert_eq!(
            [
                scratch.floats(17).as_ptr().addr(),
                scratch.doubles(500).as_ptr().addr()
            ],
            [address; 2]
        );
    }
}
