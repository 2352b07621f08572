//! How the pixels of a unit lie for the weight gradient: in place, or packed block by block.
//!
//! In: activations, channels-last. Out: for a block of channels, its first value and the strides between pixels.
//! Why packed: pixels many channels apart share a few sets of L1 and need a page each, and every block passes over all of them; with AVX2, whose
//! blocks are small, it pays from fewer channels on.

use core::ops::Range;

use crate::Element;
use crate::scratch::LINE_FLOATS;
use crate::simd::{Kernel, Simd};

/// One operand in a unit: images, rows and pixels of a row.
#[derive(Clone, Copy)]
pub(super) struct UnitPixels<'a> {
    pub(super) values: &'a [f32],
    pub(super) layout: Layout,
    pub(super) extents: [usize; 3],
}

#[derive(Clone, Copy)]
pub(super) enum Layout {
    /// From one image, row, pixel to the next.
    Strided([usize; 3]),
    /// `[block][pixel][channel]`, as [`pack`] writes it.
    Blocks,
}

impl UnitPixels<'_> {
    /// The first value of the channels `first..first + width`, `offset` further on where nothing is packed, and its strides.
    pub(super) fn block(&self, offset: usize, first: usize, width: usize) -> (*const f32, [usize; 3]) {
        let [images, rows, pixels] = self.extents;
        let (start, strides) = match self.layout {
            Layout::Strided(strides) => (offset + first, strides),
            Layout::Blocks => (images * rows * pixels * first, [rows * pixels * width, pixels * width, width]),
        };
        let last = start + (0..3).map(|axis| (self.extents[axis] - 1) * strides[axis]).sum::<usize>();
        assert!(last + width <= self.values.len(), "weight gradient: pixels of a unit");
        (self.values[start..].as_ptr(), strides)
    }
}

/// Channels cut into blocks: some of one width, then some of another.
#[derive(Clone, Copy)]
pub(super) struct Cut([[usize; 2]; 2]);

impl Cut {
    /// As few as can be of at most `most`, whose widths differ by one at most, the narrow ones first.
    pub(super) fn evenly(len: usize, most: usize) -> Self {
        let num = len.div_ceil(most);
        let (width, wide) = (len / num, len % num);
        Self([[num - wide, width], [wide, width + 1]])
    }

    /// Of this width, and a rest.
    pub(super) fn wholly(len: usize, width: usize) -> Self {
        Self([[len / width, width], [usize::from(!len.is_multiple_of(width)), len % width]])
    }

    /// The channels of each block.
    #[inline(always)]
    pub(super) fn blocks(self) -> impl Iterator<Item = Range<usize>> {
        let [[num, width], [num_rest, rest]] = self.0;
        let end = num * width;
        let blocks = (0..num).map(move |index| index * width..(index + 1) * width);
        blocks.chain((0..num_rest).map(move |index| end + index * rest..end + (index + 1) * rest))
    }

    fn len(self) -> usize {
        self.0.iter().map(|[num, width]| num * width).sum()
    }
}

/// Cache lines of so many values.
pub(super) const fn lines_of<E>(values: usize) -> usize {
    (values * size_of::<E>()).div_ceil(LINE_FLOATS * size_of::<f32>())
}

/// Cache lines of one pixel after the other, which are asked for a few at a time; they need not exist.
#[derive(Clone, Copy)]
pub(super) struct Next {
    pub(super) line: *const f32,
    pub(super) lines: usize,
    /// Bytes from one pixel to the next.
    pub(super) stride: usize,
    pub(super) pixels_of_block: usize,
}

impl Next {
    /// Those of the next few pixels.
    #[inline(always)]
    pub(super) fn ask<S: Simd>(&mut self) {
        for _ in 0..self.pixels_of_block {
            for line in 0..self.lines {
                // SAFETY: what does not exist may be asked for.
                unsafe { S::prefetch(self.line.wrapping_add(line * LINE_FLOATS)) };
            }
            self.line = self.line.wrapping_byte_add(self.stride);
        }
    }
}

/// Writes the pixels of `from`, which starts with the first one's first channel, as `[block][pixel][channel]`.
pub(super) fn pack<S: Simd, E: Element>(
    from: &[E],
    (strides, extents): ([usize; 3], [usize; 3]),
    cut: Cut,
    to: &mut [f32],
) {
    let last = (0..3).map(|axis| (extents[axis] - 1) * strides[axis]).sum::<usize>();
    assert!(last + cut.len() <= from.len(), "weight gradient: pixels of a unit");
    assert!(extents.iter().product::<usize>() * cut.len() <= to.len(), "weight gradient: packed pixels of a unit");
    // SAFETY: `S` was reached through `Isa::run`, which asserted the features; all pixels lie in the slices, as just asserted.
    unsafe { S::vectorize(Pack { from, strides, extents, cut, to: to.as_mut_ptr() }) }
}

/// Pixels of which all blocks are written before the next ones are read: their cache lines, which blocks share, stay in L1.
const PACKED_PIXELS: usize = 8;

struct Pack<'a, E> {
    from: &'a [E],
    strides: [usize; 3],
    extents: [usize; 3],
    cut: Cut,
    to: *mut f32,
}

impl<S: Simd, E: Element> Kernel<S> for Pack<'_, E> {
    #[inline(always)]
    unsafe fn run(self) {
        let Self { from, strides, extents: [images, rows, pixels], cut, to } = self;
        let num_pixels = images * rows * pixels;
        let mut index = 0;
        for image in 0..images {
            for row in 0..rows {
                for pixel in (0..pixels).step_by(PACKED_PIXELS) {
                    let start = image * strides[0] + row * strides[1] + pixel * strides[2];
                    let count = PACKED_PIXELS.min(pixels - pixel);
                    for block in cut.blocks() {
                        let width = block.len();
                        let at = num_pixels * block.start + index * width;
                        let group = Group {
                            from: from.as_ptr().wrapping_add(start + block.start),
                            stride: strides[2],
                            to: to.wrapping_add(at),
                            width,
                            count,
                        };
                        // From the last pixel on: what whole vectors write too far are pixels of this block that follow.
                        let readable = from.len() - start - (count - 1) * strides[2] - block.start;
                        let writable = (num_pixels - index - (count - 1)) * width;
                        let is_whole = width.next_multiple_of(S::LANES) <= readable.min(writable);
                        // SAFETY: the caller's contract, and whole vectors stay in `from` and in the block, as just seen.
                        unsafe {
                            match width.div_ceil(S::LANES) {
                                1 if is_whole => group.copy::<S, 1>(),
                                2 if is_whole => group.copy::<S, 2>(),
                                _ => group.copy_masked::<S>(),
                            }
                        }
                    }
                    index += count;
                }
            }
        }
    }
}

/// A few pixels of one block.
struct Group<E> {
    from: *const E,
    stride: usize,
    to: *mut f32,
    width: usize,
    count: usize,
}

impl<E: Element> Group<E> {
    /// V vectors a pixel, the first pixel first.
    #[inline(always)]
    unsafe fn copy<S: Simd, const V: usize>(self) {
        let (mut from, mut to) = (self.from, self.to);
        for _ in 0..self.count {
            for lane in (0..V * S::LANES).step_by(S::LANES) {
                // SAFETY: passed on to the caller.
                unsafe { S::store(to.wrapping_add(lane), E::load::<S>(from.wrapping_add(lane))) };
            }
            (from, to) = (from.wrapping_add(self.stride), to.wrapping_add(self.width));
        }
    }

    #[inline(always)]
    unsafe fn copy_masked<S: Simd>(self) {
        for pixel in 0..self.count {
            for lane in (0..self.width).step_by(S::LANES) {
                let from = self.from.wrapping_add(pixel * self.stride + lane);
                let to = self.to.wrapping_add(pixel * self.width + lane);
                // SAFETY: passed on to the caller.
                unsafe {
                    let mask = S::mask(self.width - lane);
                    S::store_masked(to, mask, E::load_masked::<S>(from, mask));
                }
            }
        }
    }
}
