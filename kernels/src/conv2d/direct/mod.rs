//! Direct convolution without im2col: a padded band of rows, then register blocks of pixels x
//! channels.
//!
//! In: [`DirectPlan`], images, packed weights. Out: the output; each element is written once.
//! Invariant: a piece is one band of one image. A worker computes one or several pieces and writes
//! only their rows.

pub(super) mod factor;
pub(super) mod finish;
pub(super) mod pack;
mod padded;
pub(super) mod row_kernel;
pub(super) mod unit;
pub(super) mod weight_gradient;
pub(super) mod weight_kernel;

use core::marker::PhantomData;

use super::pass::{AfterPiece, Operands};
use super::plan::{Class, DirectPlan};
use crate::Element;
use crate::pieces::{SharedMut, for_each_piece};
use crate::simd::{GenericWork, PANEL, Simd};
use factor::Factor;
use padded::{Band, copy_band};
use row_kernel::{PixelBlock, max_pixels, select};

/// Bytes after which addresses fall into the same set of an L1 with 64 sets.
const L1_STRIDE: usize = 4096;
/// Lines of a set of an L1 of 32 KiB.
const L1_WAYS: usize = 8;

/// The whole correlation; `after_piece(piece, first element, elements)` is called on each finished
/// band.
pub(super) struct Direct<'a, E, K> {
    pub(super) plan: &'a DirectPlan,
    pub(super) operands: Operands<'a, E>,
    pub(super) after_piece: AfterPiece<'a, E>,
    pub(super) products: PhantomData<K>,
}

/// A way to add up the products of a class.
pub(super) trait Products {
    /// Element of a band.
    type X: Factor;

    /// Returns the number of vectors of weights for a run of a kernel row.
    fn vectors(run: usize) -> usize;

    /// Writes a class's pixels in a band.
    fn run<S: Simd, E: Element>(band: &ClassBand<'_, Self::X>, out: &mut [E]);

    /// Returns the number of elements of a worker's slot.
    fn slot_len(plan: &DirectPlan) -> usize {
        (plan.slot_len() * size_of::<Self::X>()).div_ceil(size_of::<f32>())
    }
}

/// Register blocks.
pub(super) struct Blocks<X>(PhantomData<X>);

/// One class in the bands of a part, of one image or a few.
pub(super) struct ClassBand<'a, X> {
    pub(super) plan: &'a DirectPlan,
    pub(super) class: &'a Class,
    /// The band from the class's first window on.
    pub(super) x: &'a [X],
    /// Images of the part, and elements from one's band to the next one's.
    pub(super) images: usize,
    pub(super) image_stride: usize,
    pub(super) row_stride: usize,
    /// All panels of the class.
    pub(super) weights: &'a [f32],
    pub(super) rows: usize,
}

impl<E: Element, K: Products> GenericWork for Direct<'_, E, K> {
    type Output = ();

    fn run<S: Simd>(self) {
        let Self {
            plan, after_piece, ..
        } = self;
        let Operands {
            input,
            packed,
            output,
            workspace,
        } = self.operands;
        assert!(
            K::X::accepts(E::STORAGE),
            "convolution: planned for another storage than {:?}",
            E::STORAGE
        );
        let output = SharedMut::new(output);
        for_each_piece(
            plan.num_parts(),
            workspace,
            K::slot_len(plan),
            &|part, slot| {
                let image = part / plan.parts_of_image() * plan.images_of_part;
                let band = part % plan.parts_of_image() * plan.bands_of_part;
                let images = plan.images_of_part.min(plan.images - image);
                let bands = plan.bands_of_part.min(plan.num_bands - band);
                let source = &input[image * plan.in_image_len..][..images * plan.in_image_len];
                let band_len = plan.band_rows * plan.out_row_stride;
                let start = band * band_len;
                let len = (images - 1) * plan.out_image_len
                    + (bands * band_len).min(plan.out_image_len - start);
                // SAFETY: bands of images are disjoint, and each is of one part.
                let rows = unsafe {
                    let first = output.at(image * plan.out_image_len + start, len);
                    core::slice::from_raw_parts_mut(first, len)
                };
                let blocks = packed.chunks_exact(plan.packed_len).take(plan.blocks);
                for (block, packed) in blocks.enumerate() {
                    let source = &source[block * plan.in_c..];
                    let rows = &mut rows[block * plan.out_c..];
                    let place = (band * plan.band_rows, bands);
                    run_part::<S, E, K>(plan, (source, images), packed, place, rows, slot);
                }
                for (image, rows) in (image..).zip(rows.chunks_mut(plan.out_image_len)) {
                    for (band, rows) in (band..).zip(rows.chunks_mut(band_len)) {
                        after_piece(
                            image * plan.num_bands + band,
                            image * plan.out_image_len + band * band_len,
                            rows,
                        );
                    }
                }
            },
        );
    }
}

/// Computes a block of groups of some bands of an image, or of all of some: `input` and `out` start
/// with the block's first channel, `out` at class row `first_row` of the first image's output.
fn run_part<S: Simd, E: Element, K: Products>(
    plan: &DirectPlan,
    (input, images): (&[E], usize),
    packed: &[f32],
    (first_row, bands): (usize, usize),
    out: &mut [E],
    slot: &mut [f32],
) {
    let top = (first_row * plan.step) as isize - plan.pad_top as isize;
    let row_stride = plan.band_width() * plan.in_c;
    let (x, image_stride) = if plan.borrows_input
        && let Some(input) = K::X::in_place(input)
    {
        (&input[top as usize * row_stride..], plan.in_image_len)
    } else {
        let slot = K::X::of_slot(slot);
        let images = input.chunks(plan.in_image_len).take(images);
        copy_part::<S, E, K::X>(plan, images, (first_row, bands), slot)
    };
    let images = if plan.is_flat { 1 } else { images };
    for class in plan.classes() {
        let rows = (bands * plan.band_rows).min(class.out_h.saturating_sub(first_row));
        if rows == 0 || class.out_w == 0 {
            continue;
        }
        let (rows, out_w) = if plan.is_flat {
            (1, out.len().div_ceil(plan.out_pixel_stride))
        } else {
            (rows, class.out_w)
        };
        let class = &Class { out_w, ..*class };
        let panel_stride = class.taps_h * K::vectors(class.taps_w * plan.in_c) * PANEL;
        let band = ClassBand {
            plan,
            class,
            x: &x[class.in_offset.min(x.len())..],
            images,
            image_stride,
            row_stride,
            weights: &packed[class.packed_offset..][..plan.out_c.div_ceil(PANEL) * panel_stride],
            rows,
        };
        band.check(out.len());
        K::run::<S, E>(&band, out);
    }
}

/// Copies some bands of images into `slot`. Returns them, and the number of elements from one image
/// to the next.
fn copy_part<'a, S: Simd, E: Element, X: Factor>(
    plan: &DirectPlan,
    images: impl Iterator<Item = &'a [E]>,
    (first_row, bands): (usize, usize),
    slot: &'a mut [X],
) -> (&'a [X], usize) {
    let mut band = Band {
        in_h: plan.in_h,
        in_w: plan.in_w,
        channels: plan.in_c,
        pixel_stride: plan.blocks * plan.in_c,
        first_row: (first_row * plan.step) as isize - plan.pad_top as isize,
        rows: plan.padded_rows,
        pad_left: plan.pad_left,
        padded_w: plan.band_width(),
        step: plan.step,
        taps: plan.max_taps_h(),
    };
    if plan.sampling == 1 {
        for (image, slot) in images.zip(slot.chunks_exact_mut(plan.band_len())) {
            copy_band::<S, E, X>(image, &band, slot);
        }
        return (slot, plan.band_len());
    }
    // Each sampled row is an image of one row, with pixels farther apart.
    let row_len = band.padded_w * plan.in_c;
    let in_rows_len = plan.sampling * plan.in_w * band.pixel_stride;
    band.pixel_stride *= plan.sampling;
    (band.in_w, band.first_row, band.rows) = (band.padded_w, 0, 1);
    let rows = (bands * plan.band_rows).min(plan.classes()[0].out_h - first_row);
    for (image, slot) in images.zip(slot.chunks_exact_mut(rows * row_len)) {
        let in_rows = image.chunks(in_rows_len).skip(first_row);
        for (in_row, slot) in in_rows.zip(slot.chunks_exact_mut(row_len)) {
            copy_band::<S, E, X>(in_row, &band, slot);
        }
    }
    (slot, rows * row_len)
}

impl<X> ClassBand<'_, X> {
    /// Returns the number of values of a window in one kernel row.
    pub(super) fn run(&self) -> usize {
        self.class.taps_w * self.plan.in_c
    }

    /// Returns the number of elements from one pixel's window to the next one's.
    pub(super) fn pixel_stride(&self) -> usize {
        self.plan.step * self.plan.in_c
    }

    pub(super) fn panel_stride(&self) -> usize {
        self.weights.len() / self.plan.out_c.div_ceil(PANEL)
    }

    /// Asserts that the farthest elements that windows read and pixels write are there.
    fn check(&self, out_len: usize) {
        let plan = self.plan;
        let class = self.class;
        let rows = self.rows;
        if class.taps_h * class.taps_w > 0 {
            let last_row = (self.images - 1) * self.image_stride
                + ((rows - 1) * plan.step + class.taps_h - 1) * self.row_stride;
            let last_x = last_row + (class.out_w - 1) * self.pixel_stride() + self.run();
            assert!(
                last_x <= self.x.len(),
                "convolution: band of {} elements, {last_x} needed",
                self.x.len()
            );
        }
        let last_row = (self.images - 1) * plan.out_image_len
            + class.out_offset
            + (rows - 1) * plan.out_row_stride;
        let last_y = last_row + (class.out_w - 1) * plan.out_pixel_stride + plan.out_c;
        assert!(
            last_y <= out_len,
            "convolution: band of {out_len} output elements, {last_y} needed"
        );
    }
}

impl<X: Factor> Products for Blocks<X> {
    type X = X;

    fn vectors(run: usize) -> usize {
        run.div_ceil(X::VALUES)
    }

    fn run<S: Simd, E: Element>(band: &ClassBand<'_, X>, out: &mut [E]) {
        let ClassBand { plan, class, .. } = *band;
        // Pixels a multiple of 4 KiB apart share one set of L1. A block with more of them than the
        // set has lines is exchanged for a lower and wider one, which needs 32 registers: with 16
        // no block is too tall.
        let stride = band.pixel_stride() * size_of::<X>();
        let tallest = class
            .out_w
            .div_ceil(class.out_w.div_ceil(max_pixels::<S>(2)));
        let is_wide = stride.is_multiple_of(L1_STRIDE) && tallest > L1_WAYS;
        let mut channel = 0;
        while channel < plan.out_c {
            let rest = plan.out_c - channel;
            let vectors = if is_wide && rest > 3 * S::LANES { 4 } else { 2 };
            let channels = rest.min(vectors * S::LANES);
            match channels.div_ceil(S::LANES) {
                4 => run_channels::<S, X, E, 4>(band, (channel, channels), out),
                2 => run_channels::<S, X, E, 2>(band, (channel, channels), out),
                _ => run_channels::<S, X, E, 1>(band, (channel, channels), out),
            }
            channel += channels;
        }
    }
}

/// Computes all pixels of one class in a band, for NV vectors of output channels; their weights
/// stay in L1 or stream from L2.
fn run_channels<S: Simd, X: Factor, E: Element, const NV: usize>(
    band: &ClassBand<'_, X>,
    (channel, channels): (usize, usize),
    out: &mut [E],
) {
    let ClassBand { plan, class, .. } = *band;
    let pixel_stride = band.pixel_stride();
    let panel_stride = band.panel_stride();
    let first_y = class.out_offset + channel;
    let num_blocks = class.out_w.div_ceil(max_pixels::<S>(NV));
    let pixels = class.out_w / num_blocks;
    let longer = class.out_w % num_blocks;
    let asks_ahead = channel == 0 && plan.borrows_input && pixel_stride == band.run();
    let select = if asks_ahead {
        select::<S, X, E, NV, true>
    } else {
        select::<S, X, E, NV, false>
    };
    let kernels = [select(pixels), select(pixels + usize::from(longer > 0))];
    for (image, row) in
        (0..band.images).flat_map(|image| (0..band.rows).map(move |row| (image, row)))
    {
        let x = band
            .x
            .as_ptr()
            .wrapping_add(image * band.image_stride + row * plan.step * band.row_stride);
        let first_y = image * plan.out_image_len + first_y + row * plan.out_row_stride;
        let mut pixel = 0;
        for index in 0..num_blocks {
            let is_longer = index < longer;
            // SAFETY: inside `x`, `weights` and `out` as `ClassBand::check` asserted; features
            // asserted by `Isa::run`.
            unsafe {
                let block = PixelBlock {
                    x: x.wrapping_add(pixel * pixel_stride),
                    x_pixel_stride: pixel_stride,
                    x_row_stride: band.row_stride,
                    rows: class.taps_h,
                    run: band.run(),
                    weights: band
                        .weights
                        .as_ptr()
                        .wrapping_add(channel / PANEL * panel_stride + channel % PANEL),
                    panel_stride,
                    y: out
                        .as_mut_ptr()
                        .add(first_y + pixel * plan.out_pixel_stride),
                    y_pixel_stride: plan.out_pixel_stride,
                    channels,
                };
                kernels[usize::from(is_longer)](&block);
            }
            pixel += pixels + usize::from(is_longer);
        }
    }
}
