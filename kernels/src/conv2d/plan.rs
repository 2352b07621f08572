//! A convolution or its data gradient as a list of correlations over padded bands of rows.
//!
//! In: [`Conv2dShape`].
//! Out: [`DirectPlan`]: every stride and offset of the direct algorithm, in elements. The data
//! gradient is a correlation of dy with mirrored taps. With stride s it consists of s x s parity
//! classes, one for each remainder of the pixel's coordinates. Each class is a dense correlation
//! with every s-th tap. Groups are computed block by block ([`Conv2dShape::block`]), each like a
//! convolution in one group of some channels of every pixel.
//! Invariant: bands and images are the pieces of work; their number depends only on the shape.

use super::shape::MAX_STRIDE;
use super::{Conv2dShape, blocks};
use crate::simd::PANEL;

/// One correlation: `out[a, b] = sum over (i, j) of in[a * step + i - pad_top, b * step + j -
/// pad_left] * w[i, j]`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Class {
    pub(super) taps_h: usize,
    pub(super) taps_w: usize,
    /// The original kernel's tap that the first one here is, if mirrored.
    pub(super) last_tap_h: usize,
    pub(super) last_tap_w: usize,
    pub(super) out_h: usize,
    pub(super) out_w: usize,
    /// Offset of this class's first pixel in the output image.
    pub(super) out_offset: usize,
    /// Offset of its window in the padded band.
    pub(super) in_offset: usize,
    /// Offset of its weights among the packed weights.
    pub(super) packed_offset: usize,
}

/// Plan of the direct algorithm for each image and band of rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct DirectPlan {
    pub(super) images: usize,
    pub(super) in_h: usize,
    pub(super) in_w: usize,
    /// Channels of a block of groups, and the number of blocks.
    pub(super) in_c: usize,
    pub(super) out_c: usize,
    pub(super) blocks: usize,
    /// True if taps run backwards from `last_tap`, stride by stride: the data gradient.
    pub(super) mirrored: bool,
    /// Input pixels from one output pixel of a class to the next, in a band.
    pub(super) step: usize,
    /// Distance of the rows and columns of pixels that are copied into a band. It is the stride of
    /// a 1x1 convolution, which reads no other pixels. The copied pixels of a part follow each
    /// other, so they do not compete for a set of L1.
    pub(super) sampling: usize,
    classes: [Class; MAX_STRIDE * MAX_STRIDE],
    num_classes: usize,
    /// Elements between rows and between pixels of one class's output.
    pub(super) out_row_stride: usize,
    pub(super) out_pixel_stride: usize,
    pub(super) in_image_len: usize,
    pub(super) out_image_len: usize,
    /// True if a band of rows is one run of pixels, as long as what there is of its output.
    pub(super) is_flat: bool,
    /// Rows of a class in one band.
    pub(super) band_rows: usize,
    pub(super) num_bands: usize,
    /// Bands that are computed together, a part of the work: some of an image, or all of some
    /// images. No result depends on it.
    pub(super) bands_of_part: usize,
    pub(super) images_of_part: usize,
    /// Zeros above and left of the padded band, and its extents.
    pub(super) pad_top: usize,
    pub(super) pad_left: usize,
    pub(super) padded_w: usize,
    pub(super) padded_rows: usize,
    /// True if the window never leaves the input, so that its rows are read in place.
    pub(super) borrows_input: bool,
    /// Elements of the packed weights of a block, and of the room after all blocks in which the
    /// weights of merged groups become those of a block.
    pub(super) packed_len: usize,
    merged_len: usize,
}

/// Input elements of a band: with its share of weights and output it stays in L2, and a few of its
/// rows in L1.
const BAND_ELEMENTS: usize = 24 * 1024;
/// Weights beyond so many elements come from beyond L2 for every part of the work: then a part has
/// about so many pixels of a class, if need be of several images, as long as enough parts are left
/// for each of several threads.
const LARGE_WEIGHTS: usize = 256 * 1024;
const LARGE_WEIGHTS_PIXELS: usize = 192;
const PARTS_OF_THREAD: usize = 4;
/// Fewest channels of a pixel whose copy saves more time than it takes.
const SAMPLED_CHANNELS: usize = 64;

impl DirectPlan {
    pub(super) fn classes(&self) -> &[Class] {
        &self.classes[..self.num_classes]
    }

    /// Returns the number of scratch elements of one worker: the padded band. Borrowed rows use it
    /// where they have to be widened.
    pub(super) fn slot_len(&self) -> usize {
        self.images_of_part * self.band_len()
    }

    /// Returns the number of elements of the padded bands of a part in one image.
    pub(super) fn band_len(&self) -> usize {
        self.padded_rows * self.band_width() * self.in_c
    }

    /// Returns the number of elements of the packed weights of all blocks.
    pub(super) fn all_packed_len(&self) -> usize {
        self.blocks * self.packed_len + self.merged_len
    }

    pub(super) fn num_pieces(&self) -> usize {
        self.images * self.num_bands
    }

    /// Returns the number of parts of the work: runs of pieces.
    pub(super) fn num_parts(&self) -> usize {
        self.images.div_ceil(self.images_of_part) * self.parts_of_image()
    }

    /// Returns the number of parts of an image; 1 where a part is some images.
    pub(super) fn parts_of_image(&self) -> usize {
        self.num_bands.div_ceil(self.bands_of_part)
    }

    /// Returns the plan for weights whose runs of a kernel row make `vectors(run)` vectors each.
    pub(super) fn repacked(mut self, vectors: fn(usize) -> usize) -> Self {
        self.packed_len = 0;
        for class in &mut self.classes[..self.num_classes] {
            class.packed_offset = self.packed_len;
            let of_panel = class.taps_h * vectors(class.taps_w * self.in_c) * PANEL;
            self.packed_len += of_panel * self.out_c.div_ceil(PANEL);
        }
        self
    }

    /// Returns the number of kernel rows of the tallest class.
    pub(super) fn max_taps_h(&self) -> usize {
        self.classes()
            .iter()
            .map(|class| class.taps_h)
            .max()
            .unwrap_or(0)
    }

    /// Returns the number of pixels of a row as the kernel reads it.
    pub(super) fn band_width(&self) -> usize {
        if self.borrows_input {
            self.in_w
        } else {
            self.padded_w
        }
    }

    /// Returns the offset of the packed weights of a panel and one of the kernel's taps.
    #[inline(always)]
    pub(super) fn packed_tap(
        &self,
        s: &Conv2dShape,
        panel: usize,
        (kh, kw): (usize, usize),
    ) -> usize {
        let (index, i, j) = if self.mirrored {
            // The pixels that meet a tap have coordinates of one parity, and later taps come first.
            // By bits where possible, since a division would cost more than packing a vector.
            let divided = |value: usize| match s.stride {
                1 | 2 => (value >> (s.stride - 1), value & (s.stride - 1)),
                stride => (value / stride, value % stride),
            };
            let parity =
                |tap: usize, axis: usize| divided(tap + (s.stride - 1) * s.padding[axis]).1;
            let [parity_h, parity_w] = [parity(kh, 0), parity(kw, 1)];
            let index = parity_h * s.stride + parity_w;
            let class = &self.classes[index];
            let [(i, _), (j, _)] = [
                divided(class.last_tap_h - kh),
                divided(class.last_tap_w - kw),
            ];
            (index, i, j)
        } else {
            (0, kh, kw)
        };
        let class = &self.classes[index];
        class.packed_offset + ((panel * class.taps_h + i) * class.taps_w + j) * self.in_c * PANEL
    }

    pub(super) fn forward(s: &Conv2dShape) -> Self {
        let rows = PixelRows::of(s);
        let s = rows.shape;
        let class = Class {
            taps_h: s.kernel[0],
            taps_w: s.kernel[1],
            out_h: s.out_height(),
            out_w: s.out_width(),
            ..Class::default()
        };
        let block = s.block().0;
        let channels = [block.in_channels, block.out_channels];
        let mut plan = Self::empty(&rows, [s.height, s.width], channels, s.stride);
        if s.kernel == [1, 1] && s.stride > 1 && plan.in_c >= SAMPLED_CHANNELS {
            (plan.sampling, plan.step, plan.is_flat) = (s.stride, 1, true);
        }
        [plan.in_image_len, plan.out_image_len] =
            [rows.input_len() / s.batch, rows.output_len() / s.batch];
        plan.out_row_stride = s.out_width() * s.out_channels;
        plan.out_pixel_stride = s.out_channels;
        plan.finish(&[(class, s.padding[0] as isize, s.padding[1] as isize)])
    }

    pub(super) fn data_gradient(s: &Conv2dShape) -> Self {
        let rows = PixelRows::of(s);
        let s = rows.shape;
        let block = s.block().0;
        let channels = [block.out_channels, block.in_channels];
        let mut plan = Self::empty(&rows, [s.out_height(), s.out_width()], channels, 1);
        plan.mirrored = true;
        [plan.in_image_len, plan.out_image_len] =
            [rows.output_len() / s.batch, rows.input_len() / s.batch];
        plan.out_row_stride = s.stride * s.width * s.in_channels;
        plan.out_pixel_stride = s.stride * s.in_channels;
        let mut classes = [(Class::default(), 0, 0); MAX_STRIDE * MAX_STRIDE];
        for (index, slot) in classes.iter_mut().enumerate().take(s.stride * s.stride) {
            let ph = index / s.stride;
            let pw = index % s.stride;
            let h = Parity::new(&s, 0, ph);
            let w = Parity::new(&s, 1, pw);
            let class = Class {
                taps_h: h.taps,
                taps_w: w.taps,
                last_tap_h: h.last_tap,
                last_tap_w: w.last_tap,
                out_h: s.height.saturating_sub(ph).div_ceil(s.stride),
                out_w: s.width.saturating_sub(pw).div_ceil(s.stride),
                out_offset: (ph * s.width + pw) * s.in_channels,
                ..Class::default()
            };
            *slot = (class, h.pad, w.pad);
        }
        plan.finish(&classes[..s.stride * s.stride])
    }

    fn empty(
        rows: &PixelRows,
        in_extent: [usize; 2],
        [in_c, out_c]: [usize; 2],
        step: usize,
    ) -> Self {
        Self {
            images: rows.shape.batch,
            in_h: in_extent[0],
            in_w: in_extent[1],
            in_c,
            out_c,
            blocks: rows.shape.num_blocks(),
            mirrored: false,
            step,
            sampling: 1,
            classes: [Class::default(); MAX_STRIDE * MAX_STRIDE],
            num_classes: 0,
            out_row_stride: 0,
            out_pixel_stride: 0,
            in_image_len: 0,
            out_image_len: 0,
            is_flat: rows.is_flat(),
            band_rows: 0,
            num_bands: 0,
            bands_of_part: 1,
            images_of_part: 1,
            pad_top: 0,
            pad_left: 0,
            padded_w: 0,
            padded_rows: 0,
            borrows_input: false,
            packed_len: 0,
            merged_len: blocks::merged_len(&rows.shape),
        }
    }

    /// Places the classes (each with its padding above and left) in one padded band and sizes the
    /// band.
    fn finish(mut self, classes: &[(Class, isize, isize)]) -> Self {
        let pad_top = classes.iter().map(|c| c.1).max().unwrap_or(0).max(0);
        let pad_left = classes.iter().map(|c| c.2).max().unwrap_or(0).max(0);
        (self.pad_top, self.pad_left) = (pad_top as usize, pad_left as usize);
        let mut rows_of_one = 0;
        let mut max_h = 0;
        let mut max_w = 1;
        let mut reach_h = 0;
        for (class, top, left) in classes {
            let down = (pad_top - top) as usize;
            let right = (pad_left - left) as usize;
            rows_of_one = rows_of_one.max(down + class.taps_h);
            max_h = max_h.max(class.out_h);
            max_w = max_w.max(class.out_w);
            reach_h = reach_h.max((class.out_h.max(1) - 1) * self.step + down + class.taps_h);
            self.padded_w = self
                .padded_w
                .max((class.out_w.max(1) - 1) * self.step + right + class.taps_w);
        }
        self.borrows_input = self.blocks == 1
            && self.sampling == 1
            && pad_top == 0
            && pad_left == 0
            && self.padded_w <= self.in_w
            && reach_h <= self.in_h;
        let row_len = self.padded_w * self.in_c;
        let fitting = (BAND_ELEMENTS / row_len).saturating_sub(rows_of_one) / self.step + 1;
        self.num_bands = max_h.div_ceil(fitting);
        self.band_rows = max_h.div_ceil(self.num_bands);
        self.num_bands = max_h.div_ceil(self.band_rows);
        let weights: usize = classes
            .iter()
            .map(|(class, ..)| class.taps_h * class.taps_w * self.in_c * self.out_c)
            .sum();
        if weights > LARGE_WEIGHTS {
            let parts = match rayon::current_num_threads() {
                1 => 1,
                threads => PARTS_OF_THREAD * threads,
            };
            let most = self.num_pieces() / parts;
            let bands = LARGE_WEIGHTS_PIXELS
                .div_ceil(self.band_rows * max_w)
                .min(most)
                .max(1);
            self.bands_of_part = bands.min(self.num_bands);
            self.images_of_part = (bands / self.num_bands).max(1);
        }
        self.padded_rows = (self.bands_of_part * self.band_rows - 1) * self.step + rows_of_one;
        let width = self.band_width();
        for (slot, (class, top, left)) in self.classes.iter_mut().zip(classes) {
            let down = (pad_top - top) as usize;
            let right = (pad_left - left) as usize;
            *slot = Class {
                in_offset: (down * width + right) * self.in_c,
                packed_offset: self.packed_len,
                ..*class
            };
            self.packed_len +=
                class.taps_h * class.taps_w * self.in_c * self.out_c.next_multiple_of(PANEL);
        }
        self.num_classes = classes.len();
        self
    }
}

/// The taps of the data gradient that meet pixels with coordinate `parity` modulo the stride, in
/// one direction.
struct Parity {
    taps: usize,
    last_tap: usize,
    pad: isize,
}

impl Parity {
    fn new(s: &Conv2dShape, axis: usize, parity: usize) -> Self {
        let [kernel, padding] = [s.kernel[axis], s.padding[axis]];
        let first_tap = (parity + padding) % s.stride;
        let taps = if first_tap < kernel {
            (kernel - first_tap).div_ceil(s.stride)
        } else {
            0
        };
        let shift = (parity + padding - first_tap) / s.stride;
        let last_tap = first_tap + s.stride * taps.saturating_sub(1);
        Self {
            taps,
            last_tap,
            pad: if taps == 0 {
                0
            } else {
                taps as isize - 1 - shift as isize
            },
        }
    }
}

/// Pixels of a row where the convolution does not care for rows.
const FLAT_WIDTH: usize = 64;

/// The rows of pixels that bands are cut from.
///
/// A 1x1 convolution with stride 1 does not care for rows: all pixels are one image with rows of
/// 64, of which the last may be shorter, and a band of them is one run of pixels.
#[derive(Clone, Copy, Debug)]
pub(super) struct PixelRows {
    /// With the rows' extents, as if the last row were whole.
    pub(super) shape: Conv2dShape,
    /// Pixels of all outputs.
    pub(super) pixels: usize,
}

impl PixelRows {
    pub(super) fn of(s: &Conv2dShape) -> Self {
        let pixels = s.batch * s.out_height() * s.out_width();
        let mut rows = Self { shape: *s, pixels };
        if rows.is_flat() {
            let width = FLAT_WIDTH.min(pixels);
            rows.shape = Conv2dShape {
                batch: 1,
                height: pixels.div_ceil(width),
                width,
                ..*s
            };
        }
        rows
    }

    /// Returns whether rows follow each other without anything between or around them.
    pub(super) fn is_flat(&self) -> bool {
        self.shape.is_pointwise()
    }

    /// Returns the number of elements of all inputs.
    pub(super) fn input_len(&self) -> usize {
        if self.is_flat() {
            self.pixels * self.shape.in_channels
        } else {
            self.shape.input_len()
        }
    }

    /// Returns the number of elements of all outputs.
    pub(super) fn output_len(&self) -> usize {
        self.pixels * self.shape.out_channels
    }

    /// Runs of pixels that `rows` output rows from `row` on are, and the pixels of a run.
    pub(super) fn runs(&self, row: usize, rows: usize) -> [usize; 2] {
        let width = self.shape.out_width();
        if self.is_flat() {
            [1, (rows * width).min(self.pixels - row * width)]
        } else {
            [rows, width]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::shape_of;

    #[test]
    fn pixels_of_any_number_are_rows_of_64_and_a_rest() {
        for pixels in (1..300).chain([7 * 7 * 13, 1021, 4096, 4099]) {
            let shape = shape_of([1, pixels, 1, 48], 32, [1, 1, 0]);
            let rows = PixelRows::of(&shape);
            assert_eq!(rows.shape.width, pixels.min(64), "{pixels} pixels");
            let runs = (0..rows.shape.height).map(|row| rows.runs(row, 1));
            assert_eq!(
                runs.map(|[runs, width]| runs * width).sum::<usize>(),
                pixels
            );
            let plan = DirectPlan::forward(&shape);
            let expected = DirectPlan::forward(&Conv2dShape {
                height: pixels.next_multiple_of(64),
                ..shape
            })
            .num_pieces();
            assert_eq!(plan.num_pieces(), expected, "{pixels} pixels");
        }
    }
}
