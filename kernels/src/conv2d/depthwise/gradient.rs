//! Gradient of the weights.
//!
//! In: images and the gradients of the output.
//! Out: sums over all images, `[block][tap][channel]` until they are finished.
//! Invariant: an image is a unit; its products are added row by row.

use super::{BLOCK, DepthwisePlan, Ring, vectorize_sized};
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
        let taps = self.forward.kernel * self.forward.kernel;
        let len = self.forward.channels * taps;
        // SAFETY: the one task has all weights, of which the target has so many.
        let dw = unsafe { core::slice::from_raw_parts_mut(dw, len) };
        for (channel, dw) in dw.chunks_exact_mut(taps).enumerate() {
            let sums =
                &sums[channel / BLOCK * self.forward.block_len()..][..self.forward.block_len()];
            dw.iter_mut()
                .enumerate()
                .for_each(|(tap, dw)| *dw = sums[tap * BLOCK + channel % BLOCK]);
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
struct Correlate<T, const K: usize, const STRIDE: usize>(T);

impl<S: Simd, E: Element, const K: usize, const STRIDE: usize> Kernel<S>
    for Correlate<Image<'_, E>, K, STRIDE>
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
            for (block, sums) in sums.chunks_exact_mut(K * K * BLOCK).enumerate() {
                for (tap_row, under) in under.iter().enumerate() {
                    let Some(under) = under else { continue };
                    let x = &ring.rows()[under + block * block_len..][..block_len];
                    let sums = &mut sums[tap_row * K * BLOCK..][..K * BLOCK];
                    for first in (0..BLOCK.min(plan.channels - block * BLOCK)).step_by(S::LANES) {
                        let row = Row {
                            plan,
                            x: &x[first..],
                            dy: &dy[block * BLOCK + first..],
                            sums: &mut sums[first..],
                        };
                        // SAFETY: features by contract.
                        unsafe { row.correlate::<S, K, STRIDE>() };
                    }
                }
            }
        }
    }
}

/// A row of dy and the row under a row of the kernel, from a channel on.
struct Row<'a, E> {
    plan: &'a DepthwisePlan,
    x: &'a [f32],
    dy: &'a [E],
    sums: &'a mut [f32],
}

impl<E: Element> Row<'_, E> {
    /// # Safety
    /// The processor has the features of `S`.
    #[inline(always)]
    unsafe fn correlate<S: Simd, const K: usize, const STRIDE: usize>(self) {
        let Self { plan, x, dy, sums } = self;
        let width = plan.to[1];
        let channels = plan.channels;
        assert!(x.len() >= (((width - 1) * STRIDE + K - 1) * BLOCK) + S::LANES);
        assert!(dy.len() > (width - 1) * channels && sums.len() >= (K - 1) * BLOCK + S::LANES);
        // The rest of the last pixel are the channels from the first one on.
        // SAFETY: as asserted, vectors of x and sums lie inside; those of dy are masked to what is
        // left of the last pixel's channels.
        unsafe {
            let mask = S::mask(dy.len() - (width - 1) * channels);
            let x = x.as_ptr();
            let dy = dy.as_ptr();
            // Two chains, so that a product need not wait for the one before.
            let mut even = [S::zero(); K];
            let mut odd = [S::zero(); K];
            for pair in 0..width / 2 {
                let gradient = E::load_masked::<S>(dy.add(2 * pair * channels), mask);
                for (tap, sum) in even.iter_mut().enumerate() {
                    *sum = S::fma(
                        gradient,
                        S::load(x.add((2 * pair * STRIDE + tap) * BLOCK)),
                        *sum,
                    );
                }
                let gradient = E::load_masked::<S>(dy.add((2 * pair + 1) * channels), mask);
                for (tap, sum) in odd.iter_mut().enumerate() {
                    *sum = S::fma(
                        gradient,
                        S::load(x.add(((2 * pair + 1) * STRIDE + tap) * BLOCK)),
                        *sum,
                    );
                }
            }
            if width % 2 == 1 {
                let gradient = E::load_masked::<S>(dy.add((width - 1) * channels), mask);
                for (tap, sum) in even.iter_mut().enumerate() {
                    *sum = S::fma(
                        gradient,
                        S::load(x.add(((width - 1) * STRIDE + tap) * BLOCK)),
                        *sum,
                    );
                }
            }
            for (tap, (even, odd)) in even.into_iter().zip(odd).enumerate() {
                let sum = sums.as_mut_ptr().add(tap * BLOCK);
                S::store(sum, S::add(S::load(sum), S::add(even, odd)));
            }
        }
    }
}
