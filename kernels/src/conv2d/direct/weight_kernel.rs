//! Micro-kernel of the weight gradient: R values of a run times NV vectors of output channels in
//! registers.
//!
//! For one kernel row, `dw[run, channel] += x[pixel, run] * dy[pixel, channel]` is summed over all
//! pixels of a unit. NV loads of dy and R broadcasts of x serve R * NV multiply-adds. The R values
//! are contiguous. With dot products, a value is a pair of bf16 from two pixels.

use super::unit::Next;
use crate::simd::{Kernel, PANEL, Simd};

/// Operands of blocks of one width, one after the other; strides in elements.
pub(crate) struct WeightBlocks {
    pub(crate) num: usize,
    pub(crate) x: *const f32,
    /// From one image, row, pixel of the unit to the next.
    pub(crate) x_strides: [usize; 3],
    /// From one block to the next.
    pub(crate) x_stride: usize,
    pub(crate) dy: *const f32,
    pub(crate) dy_strides: [usize; 3],
    /// Images, rows and pixels of the unit.
    pub(crate) extents: [usize; 3],
    /// Output channels that exist, at most NV vectors.
    pub(crate) channels: usize,
    /// R vectors, [`PANEL`] apart.
    pub(crate) dw: *mut f32,
    pub(crate) panel_stride: usize,
    /// True if the blocks add to `dw`.
    pub(crate) accumulate: bool,
    /// Prefetched with each block.
    pub(crate) next: [Option<Next>; 2],
}

struct Products<'a, const R: usize, const NV: usize, const FULL: bool, const DOTS: bool>(
    &'a mut WeightBlocks,
);

impl<S: Simd, const R: usize, const NV: usize, const FULL: bool, const DOTS: bool> Kernel<S>
    for Products<'_, R, NV, FULL, DOTS>
{
    #[inline(always)]
    unsafe fn run(self) {
        let b = self.0;
        // SAFETY: the driver's plan keeps every pixel inside its slice; lanes beyond `channels` are
        // masked.
        unsafe {
            let mut masks = [S::mask(0); NV];
            for (v, mask) in masks.iter_mut().enumerate() {
                *mask = S::mask(b.channels.saturating_sub(v * S::LANES));
            }
            let mut first_x = b.x;
            let mut first_dw = b.dw;
            for _ in 0..b.num {
                b.next.iter_mut().flatten().for_each(Next::ask::<S>);
                let mut sums = [[S::zero(); NV]; R];
                for image in 0..b.extents[0] {
                    for row in 0..b.extents[1] {
                        let mut x = first_x.add(image * b.x_strides[0] + row * b.x_strides[1]);
                        let mut dy = b.dy.add(image * b.dy_strides[0] + row * b.dy_strides[1]);
                        for _ in 0..b.extents[2] {
                            let mut d = [S::zero(); NV];
                            for (v, d) in d.iter_mut().enumerate() {
                                let p = dy.wrapping_add(v * S::LANES);
                                *d = if FULL {
                                    S::load(p)
                                } else {
                                    S::load_masked(p, masks[v])
                                };
                            }
                            for (r, sums) in sums.iter_mut().enumerate() {
                                let value = S::splat(*x.add(r));
                                for (sum, d) in sums.iter_mut().zip(d) {
                                    *sum = if DOTS {
                                        S::dot_bf16(value, d, *sum)
                                    } else {
                                        S::fma(value, d, *sum)
                                    };
                                }
                            }
                            x = x.wrapping_add(b.x_strides[2]);
                            dy = dy.wrapping_add(b.dy_strides[2]);
                        }
                    }
                }
                for (r, sums) in sums.iter().enumerate() {
                    for (v, sum) in sums.iter().enumerate() {
                        let lane = v * S::LANES;
                        let dw =
                            first_dw.add(lane / PANEL * b.panel_stride + lane % PANEL + r * PANEL);
                        let before = if b.accumulate { S::load(dw) } else { S::zero() };
                        S::store(dw, S::add(before, *sum));
                    }
                }
                first_x = first_x.wrapping_add(b.x_stride);
                first_dw = first_dw.wrapping_add(R * PANEL);
            }
        }
    }
}

/// Returns the number of values of a run in the largest block with `num_vectors` vectors of
/// channels.
pub(crate) fn max_run<S: Simd>(num_vectors: usize) -> usize {
    S::ACCUMULATORS / num_vectors
}

unsafe fn launch<S: Simd, const R: usize, const NV: usize, const DOTS: bool>(
    blocks: &mut WeightBlocks,
) {
    if const { R * NV > S::ACCUMULATORS } {
        unreachable!("blocks are cut to fit the registers");
    }
    if const { DOTS && !S::HAS_DOTS } {
        unreachable!("planned where there are dot products");
    }
    // SAFETY: passed on to the caller.
    unsafe {
        if blocks.channels == NV * S::LANES {
            S::vectorize(Products::<R, NV, true, DOTS>(blocks));
        } else {
            S::vectorize(Products::<R, NV, false, DOTS>(blocks));
        }
    }
}

/// Returns the kernel for `values` values of a run and NV vectors.
pub(crate) fn select<S: Simd, const NV: usize, const DOTS: bool>(
    values: usize,
) -> unsafe fn(&mut WeightBlocks) {
    macro_rules! among {
        ($($count:literal)*) => {
            match values {
                $($count => launch::<S, $count, NV, DOTS>,)*
                _ => unreachable!("blocks are cut to fit the registers"),
            }
        };
    }
    among!(1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24)
}
