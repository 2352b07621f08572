//! Direct convolution: no im2col; a padded band of rows, then register blocks of pixels x channels.
//!
//! In: [`Plan`], input image by image, packed weights. Out: the output; every element written once.
//! Invariant: a piece is one band of one image; it writes only its own rows.

use super::padded::{Band, copy_band};
use super::plan::{Class, Plan};
use super::row_kernel::{Block, max_pixels, select};
use crate::Element;
use crate::pieces::{SharedMut, for_each_piece};
use crate::simd::{GenericWork, PANEL, Simd};

/// Elements after which addresses fall into the same set of an L1 with 64 sets.
const L1_STRIDE: usize = 1024;

/// The whole correlation; `after_piece(piece, first element, elements)` is called on each finished band.
pub(super) struct Direct<'a, E, F> {
    pub(super) plan: &'a Plan,
    pub(super) input: &'a [E],
    pub(super) packed: &'a [f32],
    pub(super) output: &'a mut [E],
    pub(super) workspace: &'a mut [f32],
    pub(super) after_piece: F,
}

impl<E: Element, F: Fn(usize, usize, &mut [E]) + Sync> GenericWork for Direct<'_, E, F> {
    type Output = ();

    fn run<S: Simd>(self) {
        let plan = self.plan;
        assert_eq!(self.input.len(), plan.images * plan.in_h * plan.in_w * plan.in_c, "convolution: input length");
        assert_eq!(self.output.len(), plan.images * plan.out_image_len, "convolution: output length");
        assert_eq!(self.packed.len(), plan.packed_len, "convolution: length of the packed weights");
        let output = SharedMut::new(self.output);
        let (input, packed, after_piece) = (self.input, self.packed, &self.after_piece);
        for_each_piece(plan.images * plan.num_bands, self.workspace, plan.slot_len(), |piece, slot| {
            let (image, band) = (piece / plan.num_bands, piece % plan.num_bands);
            let in_image_len = plan.in_h * plan.in_w * plan.in_c;
            let source = &input[image * in_image_len..][..in_image_len];
            let first_row = band * plan.band_rows;
            let start = first_row * plan.out_row_stride;
            let len = (plan.band_rows * plan.out_row_stride).min(plan.out_image_len - start);
            // SAFETY: bands of images are disjoint, and each is one piece.
            let rows = unsafe {
                let first = output.at(image * plan.out_image_len + start, len);
                core::slice::from_raw_parts_mut(first, len)
            };
            run_band::<S, E>(plan, source, packed, first_row, rows, slot);
            after_piece(piece, image * plan.out_image_len + start, rows);
        });
    }
}

/// One band: `out` is the part of the output image that starts with class row `first_row`.
fn run_band<S: Simd, E: Element>(
    plan: &Plan,
    image: &[E],
    packed: &[f32],
    first_row: usize,
    out: &mut [E],
    slot: &mut [f32],
) {
    let top = (first_row * plan.step) as isize - plan.pad_top as isize;
    let row_stride = plan.band_width() * plan.in_c;
    let x = if let Some(image) = E::as_f32(image).filter(|_| plan.borrows_input) {
        &image[top as usize * row_stride..]
    } else {
        let band = Band {
            in_h: plan.in_h,
            in_w: plan.in_w,
            channels: plan.in_c,
            pixel_stride: plan.in_c,
            first_row: top,
            rows: plan.padded_rows,
            pad_left: plan.pad_left,
            padded_w: plan.band_width(),
            step: plan.step,
            taps: plan.max_taps_h(),
        };
        copy_band::<S, E>(image, &band, slot);
        slot
    };
    for class in plan.classes() {
        let rows = plan.band_rows.min(class.out_h.saturating_sub(first_row));
        if rows == 0 || class.out_w == 0 {
            continue;
        }
        // Pixels a multiple of 4 KB apart share one set of L1, which holds fewer of them than a tall block reads; a row of few
        // pixels makes no full block of the other kind.
        let is_wide = (plan.step * plan.in_c).is_multiple_of(L1_STRIDE) && class.out_w >= 4 * max_pixels::<S>(4);
        let mut channel = 0;
        while channel < plan.out_c {
            let rest = plan.out_c - channel;
            let vectors = if is_wide && rest > 3 * S::LANES { 4 } else { 2 };
            let channels = rest.min(vectors * S::LANES);
            let at = (channel, channels);
            match channels.div_ceil(S::LANES) {
                4 => run_channels::<S, E, 4>(plan, class, (x, row_stride), packed, at, rows, out),
                2 => run_channels::<S, E, 2>(plan, class, (x, row_stride), packed, at, rows, out),
                _ => run_channels::<S, E, 1>(plan, class, (x, row_stride), packed, at, rows, out),
            }
            channel += channels;
        }
    }
}

/// All pixels of one class in a band, for NV vectors of output channels; their weights stay in L1 or stream from L2.
fn run_channels<S: Simd, E: Element, const NV: usize>(
    plan: &Plan,
    class: &Class,
    (x, row_stride): (&[f32], usize),
    packed: &[f32],
    (channel, channels): (usize, usize),
    rows: usize,
    out: &mut [E],
) {
    let run = class.taps_w * plan.in_c;
    let panel_stride = class.taps_h * run * PANEL;
    let weights = &packed[class.packed_offset..][..plan.out_c.div_ceil(PANEL) * panel_stride];
    let pixel_stride = plan.step * plan.in_c;
    let x = &x[class.in_offset.min(x.len())..];
    // The farthest elements that the blocks below read and write.
    if class.taps_h * class.taps_w > 0 {
        let last_x = ((rows - 1) * plan.step + class.taps_h - 1) * row_stride + (class.out_w - 1) * pixel_stride + run;
        assert!(last_x <= x.len(), "convolution: band of {} elements, {last_x} needed", x.len());
    }
    let first_y = class.out_offset + channel;
    let last_y = first_y + (rows - 1) * plan.out_row_stride + (class.out_w - 1) * plan.out_pixel_stride + channels;
    assert!(last_y <= out.len(), "convolution: band of {} output elements, {last_y} needed", out.len());
    let num_blocks = class.out_w.div_ceil(max_pixels::<S>(NV));
    let (pixels, longer) = (class.out_w / num_blocks, class.out_w % num_blocks);
    let asks_ahead = channel == 0 && plan.borrows_input && pixel_stride == run;
    let select = if asks_ahead { select::<S, E, NV, true> } else { select::<S, E, NV, false> };
    let kernels = [select(pixels), select(pixels + usize::from(longer > 0))];
    for row in 0..rows {
        let mut pixel = 0;
        for index in 0..num_blocks {
            let is_longer = index < longer;
            // SAFETY: inside `x`, `weights` and `out` as asserted above; features asserted by `Isa::run`.
            unsafe {
                let block = Block {
                    x: x.as_ptr().wrapping_add(row * plan.step * row_stride + pixel * pixel_stride),
                    x_pixel_stride: pixel_stride,
                    x_row_stride: row_stride,
                    rows: class.taps_h,
                    run,
                    weights: weights.as_ptr().wrapping_add(channel / PANEL * panel_stride + channel % PANEL),
                    panel_stride,
                    y: out.as_mut_ptr().add(first_y + row * plan.out_row_stride + pixel * plan.out_pixel_stride),
                    y_pixel_stride: plan.out_pixel_stride,
                    channels,
                };
                kernels[usize::from(is_longer)](&block);
            }
            pixel += pixels + usize::from(is_longer);
        }
    }
}
