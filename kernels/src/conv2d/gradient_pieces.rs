//! What the weight gradients share: pieces of the pixels, tasks of channels within a piece, and the sum over pieces.
//!
//! In: a number of pieces and of tasks that depend on the shape only. Out: dw in PyTorch's order.
//! Invariant: a piece's gradient is complete before pieces are added, in their order.

use super::Conv2dShape;
use super::plan::PixelRows;
use crate::pieces::{SharedMut, for_each_piece, slots_len, whole_lines};
use crate::simd::{Kernel, Simd};

/// Gradients of all pieces: 4 MB.
const PARTIAL_ELEMENTS: usize = 1024 * 1024;
const MAX_PIECES: usize = 64;
/// Elements that one worker adds at a time.
const REDUCE_ELEMENTS: usize = 4096;

/// `task(piece, task, slot, gradient)` of [`Pieces::run`].
type RunTask<'a> = &'a (dyn Fn(usize, usize, &mut [f32], *mut f32) + Sync);

/// How the work on one gradient is cut.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pieces {
    weight_len: usize,
    num_units: usize,
    units_of_piece: usize,
    num_pieces: usize,
}

impl Pieces {
    /// `num_units` units in at most `most` pieces.
    pub(super) fn new(weight_len: usize, num_units: usize, most: usize) -> Self {
        let most = most.min(PARTIAL_ELEMENTS / weight_len).clamp(1, MAX_PIECES);
        let units_of_piece = num_units.div_ceil(most);
        Self { weight_len, num_units, units_of_piece, num_pieces: num_units.div_ceil(units_of_piece) }
    }

    /// The units of a piece.
    pub(super) fn units(&self, piece: usize) -> core::ops::Range<usize> {
        let first = piece * self.units_of_piece;
        first..(first + self.units_of_piece).min(self.num_units)
    }

    pub(super) fn workspace_len(&self, num_threads: usize, slot_len: usize) -> usize {
        self.partials_len() + slots_len(num_threads, slot_len)
    }

    /// Gradients of pieces, if there is more than one, in whole cache lines.
    fn partials_len(&self) -> usize {
        if self.num_pieces > 1 { whole_lines(self.num_pieces * self.weight_len) } else { 0 }
    }

    /// Calls `task(piece, task, slot, gradient)` for each task of each piece, which writes its own elements of the piece's
    /// gradient, and adds the gradients up in `dw`.
    pub(super) fn run<S: Simd>(
        &self,
        dw: &mut [f32],
        workspace: &mut [f32],
        (num_tasks, slot_len): (usize, usize),
        task: RunTask<'_>,
    ) {
        let (pieces, weight_len) = (self.num_pieces, self.weight_len);
        assert_eq!(dw.len(), weight_len, "weight gradient: length of dw");
        let (partials, slots) = workspace.split_at_mut(self.partials_len());
        let target = SharedMut::new(if pieces > 1 { partials } else { &mut *dw });
        for_each_piece(pieces * num_tasks, slots, slot_len, &|index, slot| {
            let (piece, index) = (index / num_tasks, index % num_tasks);
            // SAFETY: piece and task own their part of `target`, which outlives the pass.
            let gradient = unsafe { target.at(piece * weight_len, weight_len) };
            task(piece, index, slot, gradient);
        });
        if pieces > 1 {
            let dw = SharedMut::new(dw);
            for_each_piece(weight_len.div_ceil(REDUCE_ELEMENTS), &mut [], 0, &|index, _| {
                let first = index * REDUCE_ELEMENTS;
                let len = REDUCE_ELEMENTS.min(weight_len - first);
                // SAFETY: each index has its own elements; `pieces` gradients lie `weight_len` apart.
                unsafe {
                    let parts = target.at(first, (pieces - 1) * weight_len + len);
                    S::vectorize(AddPieces { parts, pieces, weight_len, dw: dw.at(first, len), len });
                }
            });
        }
    }
}

/// x and dy cut into tasks: every pair of a block of input channels and one of output channels.
pub(super) struct Tasks<'a, E> {
    shape: &'a Conv2dShape,
    x: &'a [E],
    dy: &'a [E],
    /// Channels of a block, input and output.
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
    pub(super) fn new(rows: &'a PixelRows, x: &'a [E], dy: &'a [E], blocks: [usize; 2]) -> Self {
        assert_eq!(x.len(), rows.input_len(), "weight gradient: length of x");
        assert_eq!(dy.len(), rows.output_len(), "weight gradient: length of dy");
        Self { shape: &rows.shape, x, dy, blocks }
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        let [in_block, out_block] = self.blocks;
        self.shape.in_channels.div_ceil(in_block) * self.shape.out_channels.div_ceil(out_block)
    }

    pub(super) fn get(&self, index: usize) -> Task<'a, E> {
        let (s, [in_block, out_block]) = (self.shape, self.blocks);
        let in_blocks = s.in_channels.div_ceil(in_block);
        let (in_c, out_c) = (index % in_blocks * in_block, index / in_blocks * out_block);
        let (in_count, out_count) = (in_block.min(s.in_channels - in_c), out_block.min(s.out_channels - out_c));
        Task { x: self.x, dy: self.dy, in_c, out_c, in_count, out_count }
    }
}

impl<E> Task<'_, E> {
    /// The elements before the task's first one in filters of `taps` weights a channel.
    pub(super) fn first_weight(&self, s: &Conv2dShape, taps: usize) -> usize {
        (self.out_c * s.in_channels + self.in_c) * taps
    }
}

/// `dw = the sum of the pieces' gradients`, in their order.
struct AddPieces {
    parts: *const f32,
    pieces: usize,
    weight_len: usize,
    dw: *mut f32,
    len: usize,
}

impl<S: Simd> Kernel<S> for AddPieces {
    #[inline(always)]
    unsafe fn run(self) {
        // SAFETY: the caller's addresses hold `len` elements of each piece and of `dw`.
        unsafe {
            for first in (0..self.len).step_by(S::LANES) {
                let mask = S::mask(self.len - first);
                let mut sum = S::zero();
                for piece in 0..self.pieces {
                    sum = S::add(sum, S::load_masked(self.parts.add(piece * self.weight_len + first), mask));
                }
                S::store_masked(self.dw.add(first), mask, sum);
            }
        }
    }
}
