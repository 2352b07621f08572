//! Gradient of the weights.
//!
//! In: images and the gradients of the output.
//! Out: sums over all images, packed in the lanes of the input until they are finished.
//! Invariant: an image is a unit; its products are added row by row.

use super::{BLOCK, DepthwisePlan, Ring, TURNS, of_half, vectorize_sized};
use crate::Element;
use crate::conv2d::Conv2dShape;
use crate::conv2d::gradient_pieces::{Method, Pieces, Task, WeightPlan};
use crate::conv2d::plan::PixelRows;
use crate::simd::{Kernel, Simd};

/// A piece has at least so many pixels: below, adding the pieces' gradients would cost too much.
const PIECE_PIXELS: usize = 1024;

/// Cut of the images into pieces.
#[derive(Clone, Copy, Debug)]
pub(in crate::conv2d) struct GradientPlan {
    rows: PixelRows,
    forward: DepthwisePlan,
    pieces: Pieces,
}

impl GradientPlan {
    pub(in crate::conv2d) fn new(s: &Conv2dShape) -> Self {
        let rows = PixelRows::of(s);
        let pieces = Pieces::new(s.weight_len(), s.batch, rows.pixels / PIECE_PIXELS);
        Self {
            rows,
            forward: DepthwisePlan::forward(s),
            pieces,
        }
    }
}

impl WeightPlan for GradientPlan {
    fn rows(&self) -> &PixelRows {
        &self.rows
    }

    fn pieces(&self) -> &Pieces {
        &self.pieces
    }

    /// One task has all channels.
    fn blocks(&self) -> [usize; 2] {
        [self.forward.channels; 2]
    }

    fn lens(&self) -> [usize; 2] {
        [self.forward.packed_len(), self.forward.slot_len()]
    }
}

impl<E: Element> Method<E> for GradientPlan {
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
        if !accumulate {
            sums.fill(0.0);
        }
        let plan = &self.forward;
        let [read, written] =
            [plan.from, plan.to].map(|[height, width]| height * width * plan.channels);
        let x = &task.x[unit * read..][..read];
        let dy = &task.dy[unit * written..][..written];
        let work = Image {
            plan,
            x,
            dy,
            sums,
            slot: scratch,
        };
        // SAFETY: `S` was reached through `Isa::run`, which asserted the features; the kernel stays
        // inside the slices.
        unsafe { vectorize_sized!(plan, S, Correlate, work) }
    }

    fn finish<S: Simd>(&self, _task: &Task<'_, E>, sums: &[f32], dw: *mut f32) {
        let plan = &self.forward;
        let taps = plan.taps();
        let len = plan.channels * plan.of_group * taps;
        // SAFETY: the one task has all weights, of which the target has so many.
        let dw = unsafe { core::slice::from_raw_parts_mut(dw, len) };
        for (filter, dw) in dw.chunks_exact_mut(taps).enumerate() {
            let at = plan.packed_at(filter, true);
            for (tap, dw) in dw.iter_mut().enumerate() {
                *dw = sums[at + tap * plan.tap_len()];
            }
        }
    }
}

struct Image<'a, E> {
    plan: &'a DepthwisePlan,
    x: &'a [E],
    dy: &'a [E],
    sums: &'a mut [f32],
    slot: &'a mut [f32],
}

/// Adds to the sums the products of the pixels under each tap.
struct Correlate<T, const K: usize, const STRIDE: usize, const OF_GROUP: usize>(T);

impl<S: Simd, E: Element, const K: usize, const STRIDE: usize, const OF_GROUP: usize> Kernel<S>
    for Correlate<Image<'_, E>, K, STRIDE, OF_GROUP>
{
    #[inline(always)]
    unsafe fn run(self) {
        let Image {
            plan,
            x,
            dy,
            sums,
            slot,
        } = self.0;
        let block_len = plan.ring_width() * BLOCK;
        let mut ring = Ring::new(plan, x, slot);
        for (row, dy) in dy.chunks_exact(plan.out_row_len()).enumerate() {
            // SAFETY: features by contract.
            let under = unsafe { ring.under::<S, K>(row) };
            for (block, sums) in sums.chunks_exact_mut(plan.block_len()).enumerate() {
                for (tap_row, under) in under.iter().enumerate() {
                    let Some(under) = under else { continue };
                    let x = &ring.rows()[under + block * block_len..][..block_len];
                    let row_len = K * OF_GROUP * BLOCK;
                    let sums = &mut sums[tap_row * row_len..][..row_len];
                    for first in (0..BLOCK.min(plan.channels - block * BLOCK)).step_by(S::LANES) {
                        let row = Row {
                            plan,
                            x: &x[first..],
                            dy: &dy[block * BLOCK..],
                            first,
                        };
                        let sums = &mut sums[first..];
                        // SAFETY: features by contract.
                        unsafe {
                            row.correlate::<S, K, STRIDE, OF_GROUP, 0>(sums);
                            if OF_GROUP > TURNS {
                                row.correlate::<S, K, STRIDE, OF_GROUP, 1>(sums);
                            }
                        }
                    }
                }
            }
        }
    }
}

/// A row of dy and the row under a row of the kernel, for some lanes.
#[derive(Clone, Copy)]
struct Row<'a, E> {
    plan: &'a DepthwisePlan,
    /// From the first lane on.
    x: &'a [f32],
    /// From the block on.
    dy: &'a [E],
    first: usize,
}

impl<E: Element> Row<'_, E> {
    /// Adds to the sums, from the first lane on, the products of half of the turns.
    ///
    /// # Safety
    /// The processor has the features of `S`.
    #[inline(always)]
    unsafe fn correlate<
        S: Simd,
        const K: usize,
        const STRIDE: usize,
        const OF_GROUP: usize,
        const HALF: usize,
    >(
        self,
        sums: &mut [f32],
    ) {
        let width = self.plan.to[1];
        let channels = self.plan.channels;
        assert!(self.x.len() >= (((width - 1) * STRIDE + K - 1) * BLOCK) + S::LANES);
        assert!(self.dy.len() > (width - 1) * channels);
        assert!(sums.len() >= (K * OF_GROUP - 1) * BLOCK + S::LANES);
        // The rest of the last pixel are the channels from the block on.
        let last = self.dy.len() - (width - 1) * channels;
        // SAFETY: as asserted, vectors of x and sums lie inside; those of dy are masked to what is
        // left of the last pixel's channels.
        unsafe {
            // Two chains, so that a product need not wait for the one before. The turns of a group
            // are chains enough.
            let mut even = [[S::zero(); K]; TURNS];
            let mut odd = [[S::zero(); K]; TURNS];
            for pair in 0..width / 2 {
                self.add::<S, K, STRIDE, OF_GROUP, HALF>(&mut even, 2 * pair, last);
                let odd = if OF_GROUP == 1 { &mut odd } else { &mut even };
                self.add::<S, K, STRIDE, OF_GROUP, HALF>(odd, 2 * pair + 1, last);
            }
            if width % 2 == 1 {
                self.add::<S, K, STRIDE, OF_GROUP, HALF>(&mut even, width - 1, last);
            }
            for (turn, (even, odd)) in even.into_iter().zip(odd).enumerate() {
                let turn = HALF * TURNS + turn;
                if turn < OF_GROUP {
                    for (tap, (even, odd)) in even.into_iter().zip(odd).enumerate() {
                        let sum = sums.as_mut_ptr().add((tap * OF_GROUP + turn) * BLOCK);
                        S::store(sum, S::add(S::load(sum), S::add(even, odd)));
                    }
                }
            }
        }
    }

    /// Adds the products of a pixel of dy.
    ///
    /// # Safety
    /// The processor has the features of `S`, and the pixel exists. `last`: channels of the last
    /// pixel.
    #[inline(always)]
    unsafe fn add<
        S: Simd,
        const K: usize,
        const STRIDE: usize,
        const OF_GROUP: usize,
        const HALF: usize,
    >(
        self,
        sums: &mut [[S::V; K]; TURNS],
        pixel: usize,
        last: usize,
    ) {
        let dy = self.dy.as_ptr().wrapping_add(pixel * self.plan.channels);
        let x = self.x.as_ptr().wrapping_add(pixel * STRIDE * BLOCK);
        let load = |lane: usize| {
            // SAFETY: the mask has the channels that exist.
            unsafe {
                let mask = S::mask(last.saturating_sub(lane));
                E::load_masked::<S>(dy.wrapping_add(lane), mask)
            }
        };
        // SAFETY: the caller's contract. Each turn is written out, as an exchange is a constant.
        unsafe {
            let gradient = of_half::<S>(load, self.first, HALF);
            add_taps::<S, K>(&mut sums[0], gradient, x);
            if OF_GROUP > 1 {
                add_taps::<S, K>(&mut sums[1], S::exchange::<1>(gradient), x);
                add_taps::<S, K>(&mut sums[2], S::exchange::<2>(gradient), x);
                add_taps::<S, K>(&mut sums[3], S::exchange::<3>(gradient), x);
            }
        }
    }
}

/// Adds the products of a gradient with the pixels under each tap.
///
/// # Safety
/// The processor has the features of `S`; K pixels lie at the address.
#[inline(always)]
unsafe fn add_taps<S: Simd, const K: usize>(sums: &mut [S::V; K], gradient: S::V, x: *const f32) {
    for (tap, sum) in sums.iter_mut().enumerate() {
        // SAFETY: passed on.
        unsafe { *sum = S::fma(gradient, S::load(x.add(tap * BLOCK)), *sum) };
    }
}
