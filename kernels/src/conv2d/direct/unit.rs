//! Memory order of the pixels of a unit for the weight gradient: in place, or packed by blocks.
//!
//! In: activations, channels-last.
//! Out: the first value of a block of channels, and the strides between pixels.
//!
//! Reason for packing: pixels with many channels share few sets of L1 and need a page each, and
//! every block reads all of them. With AVX2, whose blocks are small, packing is faster even with
//! fewer channels.

use core::ops::Range;

use crate::Element;
use crate::conv2d::Conv2dShape;
use crate::scratch::LINE_FLOATS;
use crate::simd::{Kernel, PANEL, Simd};

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
    /// Returns the first value of these blocks, `offset` further on where nothing is packed, its
    /// strides, and the stride from block to block.
    pub(super) fn blocks(
        &self,
        offset: usize,
        Blocks { first, num, width }: Blocks,
    ) -> (*const f32, [usize; 3], usize) {
        let [images, rows, pixels] = self.extents;
        let (start, strides, stride) = match self.layout {
            Layout::Strided(strides) => (offset + first, strides, width),
            Layout::Blocks => (
                images * rows * pixels * first,
                [rows * pixels * width, pixels * width, width],
                images * rows * pixels * width,
            ),
        };
        let last = start
            + (num - 1) * stride
            + (0..3)
                .map(|axis| (self.extents[axis] - 1) * strides[axis])
                .sum::<usize>();
        assert!(
            last + width <= self.values.len(),
            "weight gradient: pixels of a unit"
        );
        (self.values[start..].as_ptr(), strides, stride)
    }
}

/// Channels cut into blocks: some of one width, then some of another.
#[derive(Clone, Copy)]
pub(crate) struct Cut([[usize; 2]; 2]);

/// Blocks of one width.
#[derive(Clone, Copy)]
pub(crate) struct Blocks {
    /// The first block's first channel.
    pub(crate) first: usize,
    pub(crate) num: usize,
    pub(crate) width: usize,
}

impl Cut {
    /// Returns the fewest blocks of at most `most`, whose widths differ by one at most, the narrow
    /// ones first.
    pub(crate) fn evenly(len: usize, most: usize) -> Self {
        let num = len.div_ceil(most);
        let width = len / num;
        let wide = len % num;
        Self([[num - wide, width], [wide, width + 1]])
    }

    /// Blocks of this width, and a rest.
    pub(super) fn wholly(len: usize, width: usize) -> Self {
        Self([
            [len / width, width],
            [usize::from(!len.is_multiple_of(width)), len % width],
        ])
    }

    /// Returns the blocks of each width.
    pub(crate) fn widths(self) -> impl Iterator<Item = Blocks> {
        let [narrow, wide] = self.0;
        [(0, narrow), (narrow[0] * narrow[1], wide)]
            .into_iter()
            .map(|(first, [num, width])| Blocks { first, num, width })
            .filter(|blocks| blocks.num > 0)
    }

    /// Returns the channels of each block.
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

/// Returns cache lines of so many values.
pub(super) const fn lines_of<E>(values: usize) -> usize {
    (values * size_of::<E>()).div_ceil(LINE_FLOATS * size_of::<f32>())
}

/// Cache lines of one pixel after the other, which are prefetched a few at a time; they need not
/// exist.
#[derive(Clone, Copy)]
pub(crate) struct Next {
    pub(super) line: *const f32,
    /// One or two lines: a loop over them would cost more than a second prefetch of the same one.
    pub(super) lines: usize,
    /// Bytes from one pixel to the next.
    pub(super) stride: usize,
    pub(super) pixels_of_block: usize,
}

impl Next {
    /// Prefetches the lines of the next few pixels.
    #[inline(always)]
    pub(super) fn ask<S: Simd>(&mut self) {
        let last = (self.lines - 1) * LINE_FLOATS;
        for _ in 0..self.pixels_of_block {
            // SAFETY: what does not exist may be asked for.
            unsafe {
                S::prefetch(self.line);
                S::prefetch(self.line.wrapping_add(last));
            }
            self.line = self.line.wrapping_byte_add(self.stride);
        }
    }
}

/// Returns whether x is packed, block by block. As measured with vectors of 8 and of 16 lanes (the
/// portable ones take the rule of 8): below, packing costs more than it gains.
pub(super) fn packs_x<S: Simd>(s: &Conv2dShape) -> bool {
    let c_in = s.in_channels;
    let c_out = s.out_channels;
    let is_far = if S::LANES < PANEL {
        c_in >= 512 && c_out >= 128 || c_in >= 256 && (c_out >= 1024 || s.stride > 1)
    } else {
        c_in >= 512 && c_out >= 256 || c_in >= 1024
    };
    s.taps() == 1 && is_far
}

/// Returns whether dy is packed, over which `num_blocks` blocks of runs pass.
pub(super) fn packs_dy<S: Simd>(s: &Conv2dShape, num_blocks: usize) -> bool {
    let [channels, blocks] = if S::LANES < PANEL { [64, 16] } else { [512, 8] };
    s.out_channels >= channels && num_blocks >= blocks
}

/// Writes the pixels of `from`, which starts with the first one's first channel, as
/// `[block][pixel][channel]`; with `pairs` of bf16, two of a row in a value's place, a single last
/// one next to zero.
pub(super) fn pack<S: Simd, E: Element>(
    from: &[E],
    (strides, extents): ([usize; 3], [usize; 3]),
    cut: Cut,
    pairs: bool,
    to: &mut [f32],
) {
    let last = (0..3)
        .map(|axis| (extents[axis] - 1) * strides[axis])
        .sum::<usize>();
    assert!(
        last + cut.len() <= from.len(),
        "weight gradient: pixels of a unit"
    );
    let [images, rows, pixels] = extents;
    let values = images * rows * pixels.div_ceil(if pairs { 2 } else { 1 });
    assert!(
        values * cut.len() <= to.len(),
        "weight gradient: packed pixels of a unit"
    );
    let to = to.as_mut_ptr();
    // SAFETY: `S` was reached through `Isa::run` or `Isa::run_bf16`, which asserted the features;
    // all pixels lie in the slices, as just asserted.
    unsafe {
        if pairs {
            S::vectorize(Pack::<E, 2> {
                from,
                strides,
                extents,
                cut,
                to,
            });
        } else {
            S::vectorize(Pack::<E, 1> {
                from,
                strides,
                extents,
                cut,
                to,
            });
        }
    }
}

/// Values of a channel of which all blocks are written before the next ones are read: their cache
/// lines, which blocks share, stay in L1.
const PACKED_VALUES: usize = 8;

/// `PIXELS` in a value: 1, or 2 of bf16.
struct Pack<'a, E, const PIXELS: usize> {
    from: &'a [E],
    strides: [usize; 3],
    extents: [usize; 3],
    cut: Cut,
    to: *mut f32,
}

impl<S: Simd, E: Element, const PIXELS: usize> Kernel<S> for Pack<'_, E, PIXELS> {
    #[inline(always)]
    unsafe fn run(self) {
        let Self {
            from,
            strides,
            extents: [images, rows, pixels],
            cut,
            to,
        } = self;
        let num_values = images * rows * pixels.div_ceil(PIXELS);
        let mut index = 0;
        for image in 0..images {
            for row in 0..rows {
                for pixel in (0..pixels).step_by(PACKED_VALUES * PIXELS) {
                    let start = image * strides[0] + row * strides[1] + pixel * strides[2];
                    let pixels = (PACKED_VALUES * PIXELS).min(pixels - pixel);
                    let count = pixels.div_ceil(PIXELS);
                    for block in cut.blocks() {
                        let width = block.len();
                        let at = num_values * block.start + index * width;
                        let group = Group::<E, PIXELS> {
                            from: from.as_ptr().wrapping_add(start + block.start),
                            stride: strides[2],
                            to: to.wrapping_add(at),
                            width,
                            pixels,
                        };
                        // From the last pixel on: what whole vectors write too far are values of
                        // this block that follow.
                        let readable = from.len() - start - (pixels - 1) * strides[2] - block.start;
                        let writable = (num_values - index - (count - 1)) * width;
                        let is_whole = width.next_multiple_of(S::LANES) <= readable.min(writable);
                        // SAFETY: the caller's contract, and whole vectors stay in `from` and in
                        // the block, as just seen.
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
struct Group<E, const PIXELS: usize> {
    from: *const E,
    stride: usize,
    to: *mut f32,
    width: usize,
    pixels: usize,
}

impl<E: Element, const PIXELS: usize> Group<E, PIXELS> {
    /// Packs V vectors per value, the first value first.
    #[inline(always)]
    unsafe fn copy<S: Simd, const V: usize>(self) {
        let mut to = self.to;
        for pixel in (0..self.pixels).step_by(PIXELS) {
            for lane in (0..V * S::LANES).step_by(S::LANES) {
                // SAFETY: passed on to the caller.
                unsafe {
                    S::store(
                        to.wrapping_add(lane),
                        self.value::<S>(pixel, lane, |from| E::load::<S>(from)),
                    )
                };
            }
            to = to.wrapping_add(self.width);
        }
    }

    /// Packs whole vectors as far as possible, then masked ones.
    #[inline(always)]
    unsafe fn copy_masked<S: Simd>(self) {
        let mut to = self.to;
        for pixel in (0..self.pixels).step_by(PIXELS) {
            for lane in (0..self.width).step_by(S::LANES) {
                // SAFETY: passed on to the caller.
                unsafe {
                    if self.width - lane >= S::LANES {
                        S::store(
                            to.wrapping_add(lane),
                            self.value::<S>(pixel, lane, |from| E::load::<S>(from)),
                        );
                    } else {
                        let mask = S::mask(self.width - lane);
                        let value =
                            self.value::<S>(pixel, lane, |from| E::load_masked::<S>(from, mask));
                        S::store_masked(to.wrapping_add(lane), mask, value);
                    }
                }
            }
            to = to.wrapping_add(self.width);
        }
    }

    /// Returns the value of a pixel from its channel `lane` on, or of a pair of pixels, the second
    /// of which may be missing.
    #[inline(always)]
    unsafe fn value<S: Simd>(
        &self,
        pixel: usize,
        lane: usize,
        load: impl Fn(*const E) -> S::V,
    ) -> S::V {
        let from = self.from.wrapping_add(pixel * self.stride + lane);
        let first = load(from);
        if PIXELS == 1 {
            return first;
        }
        // SAFETY: passed on to the caller.
        unsafe {
            let second = if pixel + 1 < self.pixels {
                load(from.wrapping_add(self.stride))
            } else {
                S::zero()
            };
            S::pair_bf16(first, second)
        }
    }
}
