//! How the pixels of a unit lie for the weight gradient: in place, or packed block by block.
//!
//! In: activations, channels-last. Out: for a block of channels, its first value and the strides between pixels.
//! Why packed: pixels many channels apart share a few sets of L1 and need a page each, and every block passes over all of them.

use core::ops::Range;

use crate::Element;
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
    unsafe { S::vectorize(Pack { from: from.as_ptr(), strides, extents, cut, to: to.as_mut_ptr() }) }
}

struct Pack<E> {
    from: *const E,
    strides: [usize; 3],
    extents: [usize; 3],
    cut: Cut,
    to: *mut f32,
}

impl<S: Simd, E: Element> Kernel<S> for Pack<E> {
    #[inline(always)]
    unsafe fn run(self) {
        let Self { from, strides, extents: [images, rows, pixels], cut, to } = self;
        let num_pixels = images * rows * pixels;
        let mut index = 0;
        // SAFETY: masked at each block's width; the caller's contract for the rest.
        unsafe {
            for image in 0..images {
                for row in 0..rows {
                    let from = from.add(image * strides[0] + row * strides[1]);
                    for pixel in 0..pixels {
                        let from = from.add(pixel * strides[2]);
                        for block in cut.blocks() {
                            let to = to.add(num_pixels * block.start + index * block.len());
                            for lane in (0..block.len()).step_by(S::LANES) {
                                let mask = S::mask(block.len() - lane);
                                let values = E::load_masked::<S>(from.wrapping_add(block.start + lane), mask);
                                S::store_masked(to.add(lane), mask, values);
                            }
                        }
                        index += 1;
                    }
                }
            }
        }
    }
}
