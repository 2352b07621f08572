//! Gradient of the weights: for each kernel row a product of runs of x with vectors of dy, summed
//! over pixels.
//!
//! In: x and dy.
//! Out: dw, from sums `[panel][kernel row][tap][channel][16]` of one task at a time. A task is a
//! piece of the pixels and a block of C_in x C_out. One unit of pixels of x and dy stays in L2, and
//! in most cases the sums. A unit has enough pixels that adding its products to the sums costs
//! little.
//! Invariant: pieces and the order of sums in a piece depend only on the shape.

use half::bf16;

use super::factor::Factor;
use super::padded::{Band, copy_band};
use super::unit::{self, Blocks, Cut, Layout, Next, UnitPixels, lines_of};
use super::weight_kernel::{WeightBlocks, max_run, select};
use crate::Element;
use crate::conv2d::Conv2dShape;
use crate::conv2d::gradient_pieces::{Method, Pieces, Task, Unit, Units, WeightPlan};
use crate::conv2d::plan::PixelRows;
use crate::pieces::whole_lines;
use crate::scratch::LINE_FLOATS;
use crate::simd::{PANEL, Simd};

/// Input elements of a unit that stay in L1 while all blocks of sums pass over them.
const UNIT_ELEMENTS: usize = 6 * 1024;
/// A unit has at least about so many pixels, as far as its input stays in L2: of single pixels, and
/// of larger kernels.
const UNIT_PIXELS: [usize; 2] = [128, 192];
const MAX_UNIT_ELEMENTS: usize = 64 * 1024;
/// Most values of a kernel row's run, and most output channels, of a task: of single pixels, and of
/// larger kernels. The sums of the largest task are 1 MB, beyond the L2 of some processors. But a
/// unit reads them once, and larger tasks pack x and dy less often.
const TASK_RUN: [usize; 2] = [512, 256];
const TASK_CHANNELS: [usize; 2] = [512, 128];
/// Vectors of output channels of most blocks, for which x is packed.
const PACKED_VECTORS: usize = 2;
/// A piece has at least so many pixels: below, adding the pieces' gradients would cost too much.
const PIECE_PIXELS: usize = 1024;

/// Cut of the pixels: a unit is a band of rows of one image, or several small images; a piece is a
/// run of units.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DirectWeightPlan {
    units: Units,
    pieces: Pieces,
    /// Channels of a task on either side.
    in_block: usize,
    out_block: usize,
    padded_w: usize,
    padded_rows: usize,
    /// True if x is read in place, if it is f32.
    borrows_input: bool,
    /// True if pairs of pixels are multiplied by dot products of bf16.
    dots: bool,
}

/// Returns the size of a block that cuts `channels` into equal ones of whole panels and about
/// `most`.
pub(crate) fn block_of(channels: usize, most: usize) -> usize {
    channels
        .div_ceil(channels.div_ceil(most))
        .next_multiple_of(PANEL)
        .min(channels)
}

impl DirectWeightPlan {
    /// Returns the plan; with `dots`, by dot products of bf16 where they exist.
    pub(crate) fn new(s: &Conv2dShape, dots: bool) -> Self {
        let all = PixelRows::of(s);
        let s = &all.shape;
        let out_h = s.out_height();
        let out_w = s.out_width();
        let [unit_pixels, task_run, task_channels] =
            [UNIT_PIXELS, TASK_RUN, TASK_CHANNELS].map(|of| of[usize::from(s.taps() > 1)]);
        let block = s.block().0;
        let [kernel_h, kernel_w] = s.kernel;
        let in_block = block_of(block.in_channels, (task_run / kernel_w).max(PANEL));
        let borrows_input = s.padding == [0, 0] && (s.taps() == 1 || in_block == s.in_channels);
        let padded_w = (out_w - 1) * s.stride + kernel_w;
        // Of single pixels, those between the strides are not read.
        let (row_pixels, step) = match s.taps() {
            1 => (out_w, 1),
            _ => (padded_w, s.stride),
        };
        let row_len = row_pixels * in_block;
        let fitting = |elements: usize| (elements / row_len).saturating_sub(kernel_h) / step + 1;
        let rows =
            fitting(UNIT_ELEMENTS).max(unit_pixels.div_ceil(out_w).min(fitting(MAX_UNIT_ELEMENTS)));
        let padded_rows = |band_rows: usize| (band_rows - 1) * s.stride + kernel_h;
        let units = Units::new(all, rows, |band_rows| {
            let image = ((band_rows - 1) * step + kernel_h) * row_len;
            (UNIT_ELEMENTS / image)
                .max((unit_pixels / (out_h * out_w)).min(MAX_UNIT_ELEMENTS / image))
        });
        Self {
            units,
            pieces: Pieces::new(s.weight_len(), units.len(), all.pixels / PIECE_PIXELS),
            in_block,
            out_block: block_of(block.out_channels, task_channels),
            padded_w,
            padded_rows: padded_rows(units.band_rows),
            borrows_input,
            dots: dots && (borrows_input || s.taps() > 1),
        }
    }

    /// Returns whether it takes dot products: its work is to be run by
    /// [`Isa::run_bf16`](crate::simd::Isa::run_bf16).
    pub(crate) fn has_dots(&self) -> bool {
        self.dots
    }

    /// Returns the number of elements of a task's sums, the first part of a slot.
    fn sums_len(&self) -> usize {
        self.out_block.next_multiple_of(PANEL) * self.in_block * self.units.rows.shape.taps()
    }

    /// Returns the room for the unit's x, and a block of its dy, as f32.
    fn scratch_len(&self) -> usize {
        let block = (PACKED_VECTORS * PANEL).min(self.out_block);
        self.x_lens().iter().sum::<usize>()
            + self.units.images * self.units.band_rows * self.units.rows.shape.out_width() * block
    }

    /// Returns whether x is packed as pairs of windows' rows: `[image][row][pair of output
    /// pixels][tap][channel]`.
    fn pairs_windows(&self) -> bool {
        self.dots && self.units.rows.shape.taps() > 1
    }

    /// Returns the number of elements of a row of x as the kernel reads it.
    fn row_len(&self, channels: usize) -> usize {
        let s = &self.units.rows.shape;
        let pixels = if self.pairs_windows() {
            s.out_width().div_ceil(2) * s.kernel[1]
        } else if self.borrows_input {
            s.width
        } else {
            self.padded_w
        };
        pixels * channels
    }

    /// Returns the number of elements of a unit's x, and of a row that windows are cut from, in
    /// whole cache lines, so that its dy starts on one.
    fn x_lens(&self) -> [usize; 2] {
        let x = self.units.images * self.padded_rows * self.row_len(self.in_block);
        let row = if self.pairs_windows() {
            (self.padded_w * self.in_block).div_ceil(2)
        } else {
            0
        };
        [x, row].map(whole_lines)
    }
}

impl WeightPlan for DirectWeightPlan {
    fn rows(&self) -> &PixelRows {
        &self.units.rows
    }

    fn pieces(&self) -> &Pieces {
        &self.pieces
    }

    fn blocks(&self) -> [usize; 2] {
        [self.in_block, self.out_block]
    }

    fn lens(&self) -> [usize; 2] {
        [self.sums_len(), self.scratch_len()]
    }
}

impl<E: Element> Method<E> for DirectWeightPlan {
    type Plan = Self;

    fn plan(&self) -> &Self {
        self
    }

    fn add_unit<S: Simd>(
        &self,
        task: &Task<'_, E>,
        unit: usize,
        sums: &mut [f32],
        accumulate: bool,
        scratch: &mut [f32],
    ) {
        run_unit::<S, E>(self, task, unit, sums, accumulate, scratch);
    }

    fn finish<S: Simd>(&self, task: &Task<'_, E>, sums: &[f32], dw: *mut f32) {
        // SAFETY: `dw` holds all filters; this task's channels of its filters are written by no
        // other.
        unsafe { task.finish::<S>(&self.units.rows.shape, sums, task.in_count, dw) };
    }
}

/// Adds one unit's products to the sums of its task, or sets them.
// tidy: long function because places and strides of x and dy, packed or not, make one view
fn run_unit<S: Simd, E: Element>(
    plan: &DirectWeightPlan,
    task: &Task<'_, E>,
    unit: usize,
    sums: &mut [f32],
    accumulate: bool,
    slot: &mut [f32],
) {
    let s = &plan.units.rows.shape;
    let Unit {
        image,
        images,
        row,
        rows,
        runs,
        width,
    } = plan.units.get(unit);
    let extents = [images, runs, width];
    let (x_slot, rest) = slot.split_at_mut(plan.x_lens()[0]);
    let (row_slot, dy_slot) = rest.split_at_mut(plan.x_lens()[1]);
    let ahead = |whole: usize, band: usize| {
        if plan.units.num_bands > 1 {
            band
        } else {
            images * whole
        }
    };

    let in_row = s.width * s.in_channels;
    let in_image = s.height * in_row;
    let first_x = image * in_image + row * s.stride * in_row + task.in_c;
    let x_strides = [in_image, s.stride * in_row, s.stride * s.in_channels];
    let x_step = ahead(in_image, rows * s.stride * in_row);
    let is_packed = plan.borrows_input && (plan.dots && s.taps() == 1 || unit::packs_x::<S>(s));
    // With larger strides the pixels are not evenly apart.
    let mut next_x = (s.stride == 1).then(|| task.x.as_ptr().wrapping_add(first_x + x_step));
    let (x, layout, x_row) = if plan.borrows_input
        && !is_packed
        && let Some(x) = E::as_f32(task.x)
    {
        (&x[first_x..], Layout::Strided(x_strides), in_row)
    } else if is_packed {
        let x = &task.x[first_x..];
        let cut = Cut::evenly(task.in_count, max_run::<S>(PACKED_VECTORS));
        unit::pack::<S, E>(x, (x_strides, extents), cut, plan.dots, x_slot);
        (&*x_slot, Layout::Blocks, 0)
    } else {
        next_x = None;
        let row_len = plan.row_len(task.in_count);
        let band = Band {
            in_h: s.height,
            in_w: s.width,
            channels: task.in_count,
            pixel_stride: s.in_channels,
            first_row: (row * s.stride) as isize - s.padding[0] as isize,
            rows: (rows - 1) * s.stride + s.kernel[0],
            pad_left: s.padding[1],
            padded_w: if plan.borrows_input && !plan.dots {
                s.width
            } else {
                plan.padded_w
            },
            step: s.stride,
            taps: s.kernel[0],
        };
        for (index, padded) in x_slot
            .chunks_exact_mut(plan.padded_rows * row_len)
            .take(images)
            .enumerate()
        {
            let x = &task.x[(image + index) * in_image + task.in_c..];
            if plan.dots {
                pair_windows::<S, E>(
                    x,
                    &band,
                    [width, s.kernel[1]],
                    bf16::of_slot(row_slot),
                    padded,
                );
            } else {
                copy_band::<S, E, f32>(x, &band, padded);
            }
        }
        let pixel = if plan.dots { s.kernel[1] } else { s.stride } * task.in_count;
        (
            &*x_slot,
            Layout::Strided([plan.padded_rows * row_len, s.stride * row_len, pixel]),
            row_len,
        )
    };
    // The blocks consist of pixels, or pairs of them.
    let factors = if plan.dots {
        [images, runs, width.div_ceil(2)]
    } else {
        extents
    };
    let x = UnitPixels {
        values: x,
        layout,
        extents: factors,
    };

    let out_row = s.out_width() * s.out_channels;
    let out_image = s.out_height() * out_row;
    let dy_strides = [out_image, out_row, s.out_channels];
    let dy = &task.dy[image * out_image + row * out_row + task.out_c..];
    let dy_step = ahead(out_image, rows * out_row);
    let [taps, row_taps] = s.kernel;
    let run = row_taps * task.in_count;
    let num_blocks = taps * run.div_ceil(max_run::<S>(PACKED_VECTORS));
    let dy_in_place = E::as_f32(dy).filter(|_| !plan.dots && !unit::packs_dy::<S>(s, num_blocks));
    let pixels_of_block = (images * runs * width).div_ceil(num_blocks);
    let block = PACKED_VECTORS * S::LANES;
    // Lines of a pixel of x that are prefetched with each block of dy: at most two.
    let x_lines = lines_of::<E>(task.in_count);
    let lines_of_block = x_lines.div_ceil(task.out_count.div_ceil(block)).min(2);
    for channels in Cut::wholly(task.out_count, block).blocks() {
        let first = channels.start / block * lines_of_block;
        let offset = if channels.end < task.out_count {
            channels.end
        } else {
            dy_step
        };
        let next = [
            Some(Next {
                line: dy.as_ptr().wrapping_add(offset).cast(),
                lines: lines_of::<E>(channels.len()),
                stride: s.out_channels * size_of::<E>(),
                pixels_of_block,
            }),
            next_x.filter(|_| first < x_lines).map(|x| Next {
                line: x.cast::<f32>().wrapping_add(first * LINE_FLOATS),
                lines: lines_of_block,
                stride: s.in_channels * size_of::<E>(),
                pixels_of_block,
            }),
        ];
        let (dy, layout) = if let Some(dy) = dy_in_place {
            (&dy[channels.start..], Layout::Strided(dy_strides))
        } else {
            // Just before all blocks of x pass over it: it stays in L1.
            let cut = Cut::wholly(channels.len(), channels.len());
            unit::pack::<S, E>(
                &dy[channels.start..],
                (dy_strides, extents),
                cut,
                plan.dots,
                dy_slot,
            );
            (&*dy_slot, Layout::Blocks)
        };
        let dy = UnitPixels {
            values: dy,
            layout,
            extents: factors,
        };
        let view = UnitView {
            x,
            x_row,
            taps,
            run,
            dy,
            next,
        };
        let channels = (channels.start, channels.len());
        match (channels.1 > S::LANES, plan.dots) {
            (true, false) => run_channels::<S, 2, false>(&view, channels, sums, accumulate),
            (false, false) => run_channels::<S, 1, false>(&view, channels, sums, accumulate),
            (true, true) => run_channels::<S, 2, true>(&view, channels, sums, accumulate),
            (false, true) => run_channels::<S, 1, true>(&view, channels, sums, accumulate),
        }
    }
}

/// Writes the rows of a band as pairs of the rows of `pixels` windows of `taps`, which overlap:
/// `[row][pair][tap][channel]`, each by way of `row`.
fn pair_windows<S: Simd, E: Element>(
    image: &[E],
    band: &Band,
    [pixels, taps]: [usize; 2],
    row: &mut [bf16],
    to: &mut [f32],
) {
    let run = taps * band.channels;
    let row = &mut row[..band.padded_w * band.channels];
    for (index, to) in to
        .chunks_exact_mut(pixels.div_ceil(2) * run)
        .take(band.rows)
        .enumerate()
    {
        if index % band.step < band.taps {
            let first_row = band.first_row + index as isize;
            copy_band::<S, E, bf16>(
                image,
                &Band {
                    first_row,
                    rows: 1,
                    ..*band
                },
                row,
            );
            let strides = [0, 0, band.step * band.channels];
            unit::pack::<S, bf16>(
                row,
                (strides, [1, 1, pixels]),
                Cut::wholly(run, run),
                true,
                to,
            );
        }
    }
}

/// A unit's x from the task's first channel on, and its dy from a block's.
struct UnitView<'a> {
    x: UnitPixels<'a>,
    /// From one row of the kernel to the next; x of several is not packed.
    x_row: usize,
    taps: usize,
    /// Values of x that one pixel of dy meets in one kernel row.
    run: usize,
    dy: UnitPixels<'a>,
    /// Parts of dy and of x that are read next.
    next: [Option<Next>; 2],
}

/// Computes all kernel rows and runs for NV vectors of output channels from `channel` on.
fn run_channels<S: Simd, const NV: usize, const DOTS: bool>(
    view: &UnitView<'_>,
    (channel, channels): (usize, usize),
    sums: &mut [f32],
    accumulate: bool,
) {
    let taps = view.taps;
    let run = view.run;
    let panel_stride = taps * run * PANEL;
    assert!(
        (channel + channels).div_ceil(PANEL) * panel_stride <= sums.len(),
        "weight gradient: sums of a task"
    );
    let (dy, dy_strides, _) = view.dy.blocks(
        0,
        Blocks {
            first: 0,
            num: 1,
            width: channels,
        },
    );
    let packed_for = if matches!(view.x.layout, Layout::Blocks) {
        PACKED_VECTORS
    } else {
        NV
    };
    let cut = Cut::evenly(run, max_run::<S>(packed_for));
    let mut next = view.next;
    for tap in 0..taps {
        for blocks in cut.widths() {
            let (x, x_strides, x_stride) = view.x.blocks(tap * view.x_row, blocks);
            let vector = channel / PANEL * panel_stride
                + channel % PANEL
                + (tap * run + blocks.first) * PANEL;
            // SAFETY: inside `x`, `dy` and `sums` as asserted above and by `blocks`; features
            // asserted by `Isa::run`.
            unsafe {
                let mut operands = WeightBlocks {
                    num: blocks.num,
                    x,
                    x_strides,
                    x_stride,
                    dy,
                    dy_strides,
                    extents: view.x.extents,
                    channels,
                    dw: sums.as_mut_ptr().add(vector),
                    panel_stride,
                    accumulate,
                    next,
                };
                select::<S, NV, DOTS>(blocks.width)(&mut operands);
                next = operands.next;
            }
        }
    }
}
