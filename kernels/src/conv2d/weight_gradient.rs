//! The gradient of the weights: for each kernel row a product of runs of x with vectors of dy, summed over pixels.
//!
//! In: x and dy. Out: dw, through partial sums `[piece][panel][kernel row][run][16]` that are added in piece order.
//! Invariant: pieces and the order of sums inside one depend on the shape only.

use super::Conv2dShape;
use super::padded::{Band, copy_band};
use super::plan::flat_rows;
use super::weight_kernel::{Block, max_run, select};
use crate::Element;
use crate::pieces::{SharedMut, for_each_piece};
use crate::simd::{GenericWork, Kernel, PANEL, Simd};

/// Input elements of a unit: with its share of dy it stays in L1 while all blocks of sums pass over it.
const UNIT_ELEMENTS: usize = 6 * 1024;
/// Partial sums of all pieces: 4 MB.
const PARTIAL_ELEMENTS: usize = 1024 * 1024;
/// A piece has at least so many pixels: below, adding the partial sums would cost too much.
const PIECE_PIXELS: usize = 1024;
const MAX_PIECES: usize = 64;
/// Output channels of a task where there are too few pieces to keep many threads busy.
const TASK_CHANNELS: usize = 64;

/// How the pixels are cut: a unit is a band of rows of one image, or several small images; a piece is a run of units.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    shape: Conv2dShape,
    images_of_unit: usize,
    band_rows: usize,
    num_bands: usize,
    num_units: usize,
    units_of_piece: usize,
    num_pieces: usize,
    task_channels: usize,
    padded_w: usize,
    padded_rows: usize,
    borrows_input: bool,
}

impl Plan {
    pub(super) fn new(s: &Conv2dShape) -> Self {
        let shape = if s.kernel == 1 && s.stride == 1 { flat_rows(s) } else { *s };
        let s = &shape;
        let (out_h, out_w) = (s.out_height(), s.out_width());
        let padded_w = (out_w - 1) * s.stride + s.kernel;
        let row_len = padded_w * s.in_channels;
        let fitting = (UNIT_ELEMENTS / row_len).saturating_sub(s.kernel) / s.stride + 1;
        let num_bands = out_h.div_ceil(fitting);
        let band_rows = out_h.div_ceil(num_bands);
        let num_bands = out_h.div_ceil(band_rows);
        let padded_rows = (band_rows - 1) * s.stride + s.kernel;
        let images_of_unit =
            if num_bands > 1 { 1 } else { (UNIT_ELEMENTS / (padded_rows * row_len)).clamp(1, s.batch) };
        let num_units = s.batch.div_ceil(images_of_unit) * num_bands;
        let partial_len = Self::partial_len_of(s);
        let most = (s.batch * out_h * out_w / PIECE_PIXELS).min(PARTIAL_ELEMENTS / partial_len);
        let units_of_piece = num_units.div_ceil(most.clamp(1, MAX_PIECES));
        let num_pieces = num_units.div_ceil(units_of_piece);
        Self {
            shape,
            images_of_unit,
            band_rows,
            num_bands,
            num_units,
            units_of_piece,
            num_pieces,
            task_channels: if num_pieces >= 16 { s.out_channels } else { TASK_CHANNELS },
            padded_w,
            padded_rows,
            borrows_input: s.padding == 0,
        }
    }

    fn partial_len_of(s: &Conv2dShape) -> usize {
        s.out_channels.next_multiple_of(PANEL) * s.in_channels * s.kernel * s.kernel
    }

    fn slot_len(&self) -> usize {
        self.images_of_unit * (self.padded_rows * self.row_len() + self.dy_rows_len())
    }

    /// Elements of a row of x as the kernel reads it.
    fn row_len(&self) -> usize {
        (if self.borrows_input { self.shape.width } else { self.padded_w }) * self.shape.in_channels
    }

    /// Elements of an image's rows of dy in a unit.
    fn dy_rows_len(&self) -> usize {
        self.band_rows * self.shape.out_width() * self.shape.out_channels.min(self.task_channels)
    }

    pub(super) fn workspace_len(&self, num_threads: usize) -> usize {
        self.num_pieces * Self::partial_len_of(&self.shape) + num_threads * self.slot_len()
    }

    /// Values of x that one pixel of dy meets in one kernel row.
    fn run(&self) -> usize {
        self.shape.kernel * self.shape.in_channels
    }
}

/// The whole weight gradient.
pub(super) struct WeightGradient<'a, E> {
    pub(super) plan: &'a Plan,
    pub(super) x: &'a [E],
    pub(super) dy: &'a [E],
    pub(super) dw: &'a mut [f32],
    pub(super) workspace: &'a mut [f32],
}

impl<E: Element> GenericWork for WeightGradient<'_, E> {
    type Output = ();

    fn run<S: Simd>(self) {
        let (plan, x, dy) = (self.plan, self.x, self.dy);
        let s = &plan.shape;
        assert_eq!(x.len(), s.input_len(), "weight gradient: length of x");
        assert_eq!(dy.len(), s.output_len(), "weight gradient: length of dy");
        assert_eq!(self.dw.len(), s.weight_len(), "weight gradient: length of dw");
        let partial_len = Plan::partial_len_of(s);
        let (partials, slots) = self.workspace.split_at_mut(plan.num_pieces * partial_len);
        let shared = SharedMut::new(partials);
        let num_tasks = s.out_channels.div_ceil(plan.task_channels);
        let panel_stride = s.kernel * plan.run() * PANEL;
        for_each_piece(plan.num_pieces * num_tasks, slots, plan.slot_len(), |index, slot| {
            let (piece, task) = (index / num_tasks, index % num_tasks);
            let channel = task * plan.task_channels;
            let channels = plan.task_channels.min(s.out_channels - channel);
            let len = channels.div_ceil(PANEL) * panel_stride;
            let start = piece * partial_len + channel / PANEL * panel_stride;
            // SAFETY: piece and channels own this part of the partial sums, which outlives the pass.
            let part = unsafe { core::slice::from_raw_parts_mut(shared.at(start, len), len) };
            let first = piece * plan.units_of_piece;
            for unit in first..(first + plan.units_of_piece).min(plan.num_units) {
                run_unit::<S, E>(plan, x, dy, (channel, channels), unit, part, unit > first, slot);
            }
        });
        let dw = SharedMut::new(self.dw);
        for_each_piece(s.out_channels.div_ceil(PANEL), &mut [], 0, |panel, _| {
            reduce_panel::<S>(plan, shared, panel, dw);
        });
    }
}

/// Adds one unit's products to the partial sums of its piece.
#[allow(clippy::too_many_arguments)] // Private, called once; a struct would only repeat the names.
fn run_unit<S: Simd, E: Element>(
    plan: &Plan,
    x: &[E],
    dy: &[E],
    (channel, channels): (usize, usize),
    unit: usize,
    part: &mut [f32],
    accumulate: bool,
    slot: &mut [f32],
) {
    let s = &plan.shape;
    let (group, band) = (unit / plan.num_bands, unit % plan.num_bands);
    let image = group * plan.images_of_unit;
    let images = plan.images_of_unit.min(s.batch - image);
    let row = band * plan.band_rows;
    let rows = plan.band_rows.min(s.out_height() - row);
    let (in_image, x_row) = (s.height * s.width * s.in_channels, plan.row_len());
    let (x_slot, dy_slot) = slot.split_at_mut(plan.images_of_unit * plan.padded_rows * x_row);
    let (x, x_image) = if let Some(x) = E::as_f32(x).filter(|_| plan.borrows_input) {
        (&x[image * in_image + row * s.stride * x_row..], in_image)
    } else {
        let band = Band {
            in_h: s.height,
            in_w: s.width,
            channels: s.in_channels,
            first_row: (row * s.stride) as isize - s.padding as isize,
            rows: (rows - 1) * s.stride + s.kernel,
            pad_left: s.padding,
            padded_w: x_row / s.in_channels,
            step: s.stride,
            taps: s.kernel,
        };
        for (index, padded) in x_slot.chunks_exact_mut(plan.padded_rows * x_row).take(images).enumerate() {
            copy_band::<S, E>(&x[(image + index) * in_image..][..in_image], &band, padded);
        }
        (&*x_slot, plan.padded_rows * x_row)
    };
    let out_row = s.out_width() * s.out_channels;
    let out_image = s.out_height() * out_row;
    let dy = &dy[image * out_image + row * out_row + channel..];
    let (dy, dy_strides) = if let Some(dy) = E::as_f32(dy) {
        (dy, [out_image, out_row, s.out_channels])
    } else {
        let pixels = rows * s.out_width();
        for (index, widened) in dy_slot.chunks_exact_mut(plan.dy_rows_len()).take(images).enumerate() {
            let dy = &dy[index * out_image..];
            if channels == s.out_channels {
                E::widen::<S>(&dy[..pixels * channels], &mut widened[..pixels * channels]);
                continue;
            }
            for (pixel, widened) in widened.chunks_exact_mut(channels).take(pixels).enumerate() {
                E::widen::<S>(&dy[pixel * s.out_channels..][..channels], widened);
            }
        }
        (&*dy_slot, [plan.dy_rows_len(), s.out_width() * channels, channels])
    };
    let view = UnitView {
        x,
        x_strides: [x_image, s.stride * x_row, s.stride * s.in_channels],
        x_row,
        dy,
        dy_strides,
        extents: [images, rows, s.out_width()],
    };
    let mut done = 0;
    while done < channels {
        let some = (2 * S::LANES).min(channels - done);
        if some > S::LANES {
            run_channels::<S, 2>(plan, &view, (done, some), part, accumulate);
        } else {
            run_channels::<S, 1>(plan, &view, (done, some), part, accumulate);
        }
        done += 2 * S::LANES;
    }
}

/// A unit's x and dy, in place, or padded and widened; dy from the task's first channel on.
struct UnitView<'a> {
    x: &'a [f32],
    x_strides: [usize; 3],
    x_row: usize,
    dy: &'a [f32],
    dy_strides: [usize; 3],
    extents: [usize; 3],
}

/// All kernel rows and runs for NV vectors of output channels, `done` after the task's first one.
fn run_channels<S: Simd, const NV: usize>(
    plan: &Plan,
    view: &UnitView<'_>,
    (done, channels): (usize, usize),
    part: &mut [f32],
    accumulate: bool,
) {
    let (taps, run) = (plan.shape.kernel, plan.run());
    let panel_stride = taps * run * PANEL;
    let last = |strides: [usize; 3]| (0..3).map(|axis| (view.extents[axis] - 1) * strides[axis]).sum::<usize>();
    assert!(last(view.x_strides) + (taps - 1) * view.x_row + run <= view.x.len(), "weight gradient: x of a unit");
    assert!(last(view.dy_strides) + done + channels <= view.dy.len(), "weight gradient: dy of a unit");
    assert!((done + channels).div_ceil(PANEL) * panel_stride <= part.len(), "weight gradient: partial sums");
    let num_blocks = run.div_ceil(max_run::<S>(NV));
    let (values, longer) = (run / num_blocks, run % num_blocks);
    let kernels = [select::<S, NV>(values), select::<S, NV>(values + usize::from(longer > 0))];
    for tap in 0..taps {
        let mut first = 0;
        for index in 0..num_blocks {
            let is_longer = usize::from(index < longer);
            // SAFETY: inside `x`, `dy` and `part` as asserted above; features asserted by `Isa::run`.
            unsafe {
                let vector = done / PANEL * panel_stride + done % PANEL + (tap * run + first) * PANEL;
                let block = Block {
                    x: view.x.as_ptr().add(tap * view.x_row + first),
                    x_strides: view.x_strides,
                    dy: view.dy.as_ptr().add(done),
                    dy_strides: view.dy_strides,
                    extents: view.extents,
                    channels,
                    dw: part.as_mut_ptr().add(vector),
                    panel_stride,
                    accumulate,
                };
                kernels[is_longer](&block);
            }
            first += values + is_longer;
        }
    }
}

/// Adds one panel's partial sums in piece order and scatters them to PyTorch's order.
fn reduce_panel<S: Simd>(plan: &Plan, partials: SharedMut, panel: usize, dw: SharedMut) {
    let s = &plan.shape;
    let (taps, len) = (s.kernel, s.kernel * plan.run() * PANEL);
    let partial_len = Plan::partial_len_of(s);
    // SAFETY: panels are disjoint in the partial sums and in `dw`; each is one piece.
    unsafe {
        let total = partials.at(panel * len, len);
        for piece in 1..plan.num_pieces {
            let part = partials.at(piece * partial_len + panel * len, len);
            S::vectorize(AddTo { total, part, len });
        }
        let total = core::slice::from_raw_parts(total, len);
        let channels = PANEL.min(s.out_channels - panel * PANEL);
        let filter_len = s.in_channels * taps * taps;
        let dw = dw.at(panel * PANEL * filter_len, channels * filter_len);
        let dw = core::slice::from_raw_parts_mut(dw, channels * filter_len);
        for (lane, filter) in dw.chunks_exact_mut(filter_len).enumerate() {
            for (ci, taps_of_channel) in filter.chunks_exact_mut(taps * taps).enumerate() {
                for (tap, value) in taps_of_channel.iter_mut().enumerate() {
                    *value = total[(tap * s.in_channels + ci) * PANEL + lane];
                }
            }
        }
    }
}

/// `total += part`; `len` is a multiple of [`PANEL`].
struct AddTo {
    total: *mut f32,
    part: *const f32,
    len: usize,
}

impl<S: Simd> Kernel<S> for AddTo {
    #[inline(always)]
    unsafe fn run(self) {
        // SAFETY: `len` elements from both addresses are the caller's contract.
        unsafe {
            for first in (0..self.len).step_by(S::LANES) {
                let sum = S::add(S::load(self.total.add(first)), S::load(self.part.add(first)));
                S::store(self.total.add(first), sum);
            }
        }
    }
}
