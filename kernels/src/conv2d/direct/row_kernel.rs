//! Micro-kernel of the direct convolution: P pixels of a row times NV vectors of output channels in
//! registers.
//!
//! In channels-last order the taps of one kernel row and their channels are a contiguous run of
//! `taps * channels` values. So one kernel row of an output pixel is the product of this run with a
//! run of weight vectors. For each value of the run the kernel loads NV weight vectors and
//! multiplies them by P broadcast values, or by pairs of values with dot products ([`Factor`]).

use super::factor::Factor;
use crate::Element;
use crate::simd::{Kernel, PANEL, Simd};

/// Operands of one block; addresses in elements.
#[derive(Clone, Copy)]
pub(crate) struct PixelBlock<X, E> {
    /// The first pixel's run in the first kernel row.
    pub(crate) x: *const X,
    pub(crate) x_pixel_stride: usize,
    pub(crate) x_row_stride: usize,
    pub(crate) rows: usize,
    pub(crate) run: usize,
    /// The first vector of weights: for each row one for each factor of the run, [`PANEL`] lanes
    /// each.
    pub(crate) weights: *const f32,
    /// From one panel of weights to the next.
    pub(crate) panel_stride: usize,
    pub(crate) y: *mut E,
    pub(crate) y_pixel_stride: usize,
    /// Output channels to store, at most NV vectors.
    pub(crate) channels: usize,
}

struct Pixels<'a, X, E, const P: usize, const NV: usize, const AHEAD: bool>(&'a PixelBlock<X, E>);

impl<S: Simd, X: Factor, E: Element, const P: usize, const NV: usize, const AHEAD: bool> Kernel<S>
    for Pixels<'_, X, E, P, NV, AHEAD>
{
    #[inline(always)]
    unsafe fn run(self) {
        let b = self.0;
        // SAFETY: the driver's plan keeps every run, weight vector and output pixel inside its
        // slice.
        unsafe {
            let mut sums = [[S::zero(); NV]; P];
            let mut weights = b.weights;
            let mut row = b.x;
            let mut ahead = b.x.wrapping_add(P * b.x_pixel_stride);
            for _ in 0..b.rows {
                let mut x = row;
                for _ in 0..b.run / X::VALUES {
                    accumulate::<S, X, E, P, NV, false>(b, x, weights, &mut sums);
                    if AHEAD {
                        // P elements for each of the run: no line of the next P runs is left out.
                        S::prefetch(ahead.cast());
                        ahead = ahead.wrapping_add(P * X::VALUES);
                    }
                    x = x.add(X::VALUES);
                    weights = weights.add(PANEL);
                }
                if !b.run.is_multiple_of(X::VALUES) {
                    accumulate::<S, X, E, P, NV, true>(b, x, weights, &mut sums);
                    weights = weights.add(PANEL);
                }
                row = row.add(b.x_row_stride);
            }
            for (p, sums) in sums.iter().enumerate() {
                let y = b.y.add(p * b.y_pixel_stride);
                for (v, sum) in sums.iter().enumerate() {
                    let lane = v * S::LANES;
                    if b.channels >= lane + S::LANES {
                        E::store::<S>(y.add(lane), *sum);
                    } else {
                        E::store_masked::<S>(y.add(lane), S::mask(b.channels - lane), *sum);
                    }
                }
            }
        }
    }
}

/// Adds the products of one factor of each pixel and one weight of each channel; the last of a run,
/// if `SINGLE`, is one value.
///
/// # Safety
/// The processor has the features of `S`; the factors and weights exist.
#[inline(always)]
unsafe fn accumulate<
    S: Simd,
    X: Factor,
    E: Element,
    const P: usize,
    const NV: usize,
    const SINGLE: bool,
>(
    b: &PixelBlock<X, E>,
    x: *const X,
    weights: *const f32,
    sums: &mut [[S::V; NV]; P],
) {
    // SAFETY: passed on to the caller.
    unsafe {
        let mut w = [S::zero(); NV];
        for (v, w) in w.iter_mut().enumerate() {
            let lane = v * S::LANES;
            *w = S::load(weights.add(lane / PANEL * b.panel_stride + lane % PANEL));
        }
        for (p, sums) in sums.iter_mut().enumerate() {
            let x = x.add(p * b.x_pixel_stride);
            let factor = if SINGLE {
                X::splat_single::<S>(x)
            } else {
                X::splat::<S>(x)
            };
            for (sum, w) in sums.iter_mut().zip(w) {
                *sum = X::multiply_add::<S>(factor, w, *sum);
            }
        }
    }
}

/// Returns the number of pixels of the largest block with `num_vectors` vectors of channels.
pub(crate) fn max_pixels<S: Simd>(num_vectors: usize) -> usize {
    S::ACCUMULATORS / num_vectors
}

unsafe fn launch<
    S: Simd,
    X: Factor,
    E: Element,
    const P: usize,
    const NV: usize,
    const AHEAD: bool,
>(
    block: &PixelBlock<X, E>,
) {
    if const { P * NV > S::ACCUMULATORS } {
        unreachable!("blocks are cut to fit the registers");
    }
    // SAFETY: passed on to the caller.
    unsafe { S::vectorize(Pixels::<X, E, P, NV, AHEAD>(block)) }
}

/// Returns the kernel for `pixels` pixels and NV vectors. `AHEAD`: it asks for the next P runs on
/// the way, which is right where a run is a whole pixel and seldom in a cache.
pub(crate) fn select<S: Simd, X: Factor, E: Element, const NV: usize, const AHEAD: bool>(
    pixels: usize,
) -> unsafe fn(&PixelBlock<X, E>) {
    macro_rules! among {
        ($($count:literal)*) => {
            match pixels {
                $($count => launch::<S, X, E, $count, NV, AHEAD>,)*
                _ => unreachable!("blocks are cut to fit the registers"),
            }
        };
    }
    among!(1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24)
}
