//! Common parts of the weight gradients: pieces of the pixels, tasks of channels in a piece, and
//! the sum over pieces.
//!
//! In: a [`Method`]; its numbers of pieces and tasks depend only on the shape.
//! Out: dw in PyTorch's order, or sums to which more images are added.
//! Invariant: a piece's gradient is complete before the pieces are added, in order.

use super::direct::finish::Finish;
use super::pass::{WeightOperands, WeightTarget};
use super::plan::PixelRows;
use super::{Conv2dShape, blocks};
use crate::pieces::{SharedMut, for_each_piece, slots_len, whole_lines};
use crate::simd::{GenericWork, Kernel, PANEL, Simd};

/// Gradients of all pieces: 4 MB.
const PARTIAL_ELEMENTS: usize = 1024 * 1024;
const MAX_PIECES: usize = 64;
/// Elements that one worker adds at a time.
const REDUCE_ELEMENTS: usize = 4096;

/// `task(piece, task, slot, gradient)` of `Pieces::run`.
type RunTask<'a> = &'a (dyn Fn(usize, usize, &mut [f32], *mut f32) + Sync);

/// Cut of the work on one gradient.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pieces {
    weight_len: usize,
    num_units: usize,
    units_of_piece: usize,
    num_pieces: usize,
}

impl Pieces {
    /// Returns `num_units` units in at most `most` pieces.
    pub(super) fn new(weight_len: usize, num_units: usize, most: usize) -> Self {
        let most = most.min(PARTIAL_ELEMENTS / weight_len).clamp(1, MAX_PIECES);
        let units_of_piece = num_units.div_ceil(most);
        Self {
            weight_len,
            num_units,
            units_of_piece,
            num_pieces: num_units.div_ceil(units_of_piece),
        }
    }

    fn units(&self, piece: usize) -> core::ops::Range<usize> {
        let first = piece * self.units_of_piece;
        first..(first + self.units_of_piece).min(self.num_units)
    }

    /// Returns the elements of the pieces' gradients, if there is more than one piece, in whole
    /// cache lines.
    fn partials_len(&self) -> usize {
        if self.num_pieces > 1 {
            whole_lines(self.num_pieces * self.weight_len)
        } else {
            0
        }
    }

    /// Calls `task(piece, task, slot, gradient)` for each task of each piece, which writes its own
    /// elements of the piece's gradient, and adds the gradients up in `dw`.
    fn run<S: Simd>(
        &self,
        dw: &mut [f32],
        workspace: &mut [f32],
        (num_tasks, slot_len): (usize, usize),
        task: RunTask<'_>,
    ) {
        let pieces = self.num_pieces;
        let weight_len = self.weight_len;
        assert_eq!(dw.len(), weight_len, "weight gradient: length of dw");
        let (partials, slots) = workspace.split_at_mut(self.partials_len());
        let target = SharedMut::new(if pieces > 1 { &mut *partials } else { &mut *dw });
        for_each_piece(pieces * num_tasks, slots, slot_len, &|index, slot| {
            let piece = index / num_tasks;
            let index = index % num_tasks;
            // SAFETY: piece and task own their part of `target`, which outlives the pass.
            let gradient = unsafe { target.at(piece * weight_len, weight_len) };
            task(piece, index, slot, gradient);
        });
        if pieces > 1 {
            AddPieces {
                parts: &partials[..pieces * weight_len],
                dw,
            }
            .run::<S>();
        }
    }
}

/// `dw` = the sum of the gradients in `parts`, one behind the other, in their order.
pub(super) struct AddPieces<'a> {
    pub(super) parts: &'a [f32],
    pub(super) dw: &'a mut [f32],
}

impl GenericWork for AddPieces<'_> {
    type Output = ();

    fn run<S: Simd>(self) {
        let weight_len = self.dw.len();
        assert!(
            self.parts.len().is_multiple_of(weight_len),
            "weight gradient: length of the pieces' gradients"
        );
        let dw = SharedMut::new(self.dw);
        for_each_piece(
            weight_len.div_ceil(REDUCE_ELEMENTS),
            &mut [],
            0,
            &|index, _| {
                let first = index * REDUCE_ELEMENTS;
                let len = REDUCE_ELEMENTS.min(weight_len - first);
                // SAFETY: each index has its own elements of `dw`; features asserted by `Isa::run`.
                unsafe {
                    S::vectorize(AddPart {
                        parts: &self.parts[first..],
                        weight_len,
                        dw: dw.at(first, len),
                        len,
                    })
                };
            },
        );
    }
}

/// Units of the pixels: each is a band of rows of one image, or several small images.
#[derive(Clone, Copy, Debug)]
pub(super) struct Units {
    pub(super) rows: PixelRows,
    pub(super) images: usize,
    pub(super) band_rows: usize,
    pub(super) num_bands: usize,
}

/// One unit: `runs` runs of `width` pixels in each of its images.
pub(super) struct Unit {
    pub(super) image: usize,
    pub(super) images: usize,
    pub(super) row: usize,
    pub(super) rows: usize,
    pub(super) runs: usize,
    pub(super) width: usize,
}

impl Units {
    /// Returns units of at most `most_rows` rows. A unit of whole images has `images(rows)` images.
    pub(super) fn new(
        rows: PixelRows,
        most_rows: usize,
        images: impl FnOnce(usize) -> usize,
    ) -> Self {
        let out_h = rows.shape.out_height();
        let band_rows = out_h.div_ceil(out_h.div_ceil(most_rows));
        let num_bands = out_h.div_ceil(band_rows);
        let images = if num_bands > 1 {
            1
        } else {
            images(band_rows).clamp(1, rows.shape.batch)
        };
        Self {
            rows,
            images,
            band_rows,
            num_bands,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.rows.shape.batch.div_ceil(self.images) * self.num_bands
    }

    pub(super) fn get(&self, index: usize) -> Unit {
        let s = &self.rows.shape;
        let image = index / self.num_bands * self.images;
        let row = index % self.num_bands * self.band_rows;
        let rows = self.band_rows.min(s.out_height() - row);
        let [runs, width] = self.rows.runs(row, rows);
        Unit {
            image,
            images: self.images.min(s.batch - image),
            row,
            rows,
            runs,
            width,
        }
    }
}

/// Plan of the weight gradient of one shape.
pub(super) trait WeightPlan {
    fn rows(&self) -> &PixelRows;

    fn pieces(&self) -> &Pieces;

    /// Returns input and output channels of a task.
    fn blocks(&self) -> [usize; 2];

    /// Returns the number of elements of a task's sums, and of the scratch that a unit needs.
    fn lens(&self) -> [usize; 2];

    /// Returns the number of elements of the sums of all tasks, and of the scratch to add to them:
    /// [`WeightTarget::Sums`].
    fn sums_lens(&self) -> [usize; 2] {
        let [sums, scratch] = self.lens();
        let tasks = num_tasks(&self.rows().shape, self.blocks());
        [tasks * whole_lines(sums), scratch]
    }

    fn workspace_len(&self, num_threads: usize) -> usize {
        let slot_len = self.lens().iter().sum();
        self.pieces().partials_len() + slots_len(num_threads, slot_len)
    }
}

/// One way to compute the gradient.
pub(super) trait Method<E>: Sync {
    type Plan: WeightPlan;

    fn plan(&self) -> &Self::Plan;

    /// Adds the products of one unit to the sums of its task, or sets them.
    fn add_unit<S: Simd>(
        &self,
        task: &Task<'_, E>,
        unit: usize,
        sums: &mut [f32],
        accumulate: bool,
        scratch: &mut [f32],
    );

    /// Writes the gradient from the sums of a task to its filters in `dw`, which holds all filters.
    fn finish<S: Simd>(&self, task: &Task<'_, E>, sums: &[f32], dw: *mut f32);
}

/// The whole weight gradient: all tasks, for the target of the operands.
pub(super) struct WeightGradient<'a, M, E> {
    pub(super) method: &'a M,
    pub(super) operands: WeightOperands<'a, E>,
}

impl<E: Send + Sync, M: Method<E>> GenericWork for WeightGradient<'_, M, E> {
    type Output = ();

    fn run<S: Simd>(self) {
        let Self { method, operands } = self;
        let WeightOperands { x, dy, target } = operands;
        let plan = method.plan();
        let tasks = Tasks::new(plan.rows(), x, dy, plan.blocks());
        let pieces = plan.pieces();
        let [sums_len, scratch_len] = plan.lens();
        match target {
            WeightTarget::Gradient { dw, workspace } => {
                let cut = (tasks.len(), sums_len + scratch_len);
                pieces.run::<S>(dw, workspace, cut, &|piece, task, slot, dw| {
                    let task = tasks.get(task);
                    let (sums, scratch) = slot.split_at_mut(sums_len);
                    let units = pieces.units(piece);
                    for unit in units.clone() {
                        method.add_unit::<S>(&task, unit, sums, unit > units.start, scratch);
                    }
                    method.finish::<S>(&task, sums, dw);
                });
            }
            WeightTarget::Sums {
                sums,
                accumulate,
                scratch,
                mut dw,
            } => {
                assert!(
                    dw.as_ref().is_none_or(|dw| dw.len() == pieces.weight_len),
                    "weight gradient: length of dw"
                );
                assert_eq!(
                    sums.len(),
                    tasks.len() * whole_lines(sums_len),
                    "weight gradient: length of the sums"
                );
                for (index, sums) in sums.chunks_exact_mut(whole_lines(sums_len)).enumerate() {
                    let task = tasks.get(index);
                    let sums = &mut sums[..sums_len];
                    for unit in 0..pieces.num_units {
                        method.add_unit::<S>(&task, unit, sums, accumulate || unit > 0, scratch);
                    }
                    if let Some(dw) = &mut dw {
                        method.finish::<S>(&task, sums, dw.as_mut_ptr());
                    }
                }
            }
        }
    }
}

/// x and dy cut into tasks: in each block of groups, every pair of a part of the input channels and
/// one of the output channels.
struct Tasks<'a, E> {
    /// Shape of a block of groups.
    block: Conv2dShape,
    len: usize,
    x: &'a [E],
    dy: &'a [E],
    /// Channels of a task, input and output.
    blocks: [usize; 2],
}

/// x and dy, and a block of channels of either.
pub(super) struct Task<'a, E> {
    pub(super) x: &'a [E],
    pub(super) dy: &'a [E],
    pub(super) in_c: usize,
    pub(super) out_c: usize,
    pub(super) in_count: usize,
    pub(super) out_count: usize,
}

impl<'a, E> Tasks<'a, E> {
    /// # Panics
    /// If x or dy has another length than the shape says.
    fn new(rows: &'a PixelRows, x: &'a [E], dy: &'a [E], blocks: [usize; 2]) -> Self {
        assert_eq!(x.len(), rows.input_len(), "weight gradient: length of x");
        assert_eq!(dy.len(), rows.output_len(), "weight gradient: length of dy");
        Self {
            block: rows.shape.block().0,
            len: num_tasks(&rows.shape, blocks),
            x,
            dy,
            blocks,
        }
    }

    fn len(&self) -> usize {
        self.len
    }

    fn get(&self, index: usize) -> Task<'a, E> {
        let s = &self.block;
        let [in_block, out_block] = self.blocks;
        let in_blocks = s.in_channels.div_ceil(in_block);
        let of_block = in_blocks * s.out_channels.div_ceil(out_block);
        let block = index / of_block;
        let index = index % of_block;
        let in_c = index % in_blocks * in_block;
        let out_c = index / in_blocks * out_block;
        let in_count = in_block.min(s.in_channels - in_c);
        let out_count = out_block.min(s.out_channels - out_c);
        Task {
            x: self.x,
            dy: self.dy,
            in_c: block * s.in_channels + in_c,
            out_c: block * s.out_channels + out_c,
            in_count,
            out_count,
        }
    }
}

/// Returns the number of tasks of so many input and output channels at most.
fn num_tasks(shape: &Conv2dShape, [in_block, out_block]: [usize; 2]) -> usize {
    let block = shape.block().0;
    let of_block = block.in_channels.div_ceil(in_block) * block.out_channels.div_ceil(out_block);
    shape.num_blocks() * of_block
}

impl<E> Task<'_, E> {
    /// Writes the task's sums, `[panel][tap][channel][16]` with `in_stride` channels, to its
    /// filters.
    ///
    /// # Safety
    /// The processor has the features of `S`. `dw` holds all filters, and this task's channels of
    /// its filters are written by no other.
    pub(super) unsafe fn finish<S: Simd>(
        &self,
        s: &Conv2dShape,
        sums: &[f32],
        in_stride: usize,
        dw: *mut f32,
    ) {
        let taps = s.taps();
        let (block, merged) = s.block();
        let first = self.in_c % block.in_channels;
        if merged == 1 {
            let finish = Finish {
                sums,
                taps,
                in_count: self.in_count,
                in_stride,
                out_count: self.out_count,
                dw: dw.wrapping_add(self.out_c * s.filter_len() + first * taps),
                filter_len: s.filter_len(),
            };
            // SAFETY: passed on to the caller.
            return unsafe { S::vectorize(finish) };
        }
        let of_group = block.in_channels / merged;
        for filter in 0..self.out_count {
            let at = self.out_c + filter;
            let first_of_group =
                blocks::group_of(&block, merged, at % block.out_channels) * of_group;
            for channel in 0..of_group {
                let Some(of_task) = (first_of_group + channel).checked_sub(first) else {
                    continue;
                };
                if of_task >= self.in_count {
                    continue;
                }
                for tap in 0..taps {
                    let vector = (filter / PANEL * taps + tap) * in_stride + of_task;
                    // SAFETY: a weight of this task, by contract.
                    unsafe {
                        *dw.add(at * s.filter_len() + channel * taps + tap) =
                            sums[vector * PANEL + filter % PANEL];
                    }
                }
            }
        }
    }
}

/// A part of their elements.
struct AddPart<'a> {
    /// From the first gradient's element that `dw` starts with.
    parts: &'a [f32],
    weight_len: usize,
    dw: *mut f32,
    len: usize,
}

impl<S: Simd> Kernel<S> for AddPart<'_> {
    #[inline(always)]
    unsafe fn run(self) {
        // SAFETY: each part has `len` elements, but the last, which may lack what `dw` lacks; `dw`
        // holds `len`.
        unsafe {
            for first in (0..self.len).step_by(S::LANES) {
                let mask = S::mask(self.len - first);
                let mut sum = S::zero();
                for part in self.parts.chunks(self.weight_len) {
                    sum = S::add(sum, S::load_masked(part[first..].as_ptr(), mask));
                }
                S::store_masked(self.dw.add(first), mask, sum);
            }
        }
    }
}
