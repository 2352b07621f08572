//! Transforms the weights for Winograd: `[C_out, C_in, 3, 3]` to `[position][panel][channel][16]`.
//!
//! 16 output channels at a time, in f32: f64 with one rounding took four times as long and made the output's error 4 % smaller.

use super::winograd_transform::{POSITIONS, TILE, kernel_1d};
use crate::simd::{GenericWork, Kernel, PANEL, Simd};

/// Where a tap stands in the weights: `out * out_stride + in * in_stride + tap`, or `8 - tap` if mirrored.
pub(super) struct PackKernels<'a> {
    pub(super) weights: &'a [f32],
    pub(super) packed: &'a mut [f32],
    pub(super) in_channels: usize,
    pub(super) out_channels: usize,
    pub(super) in_stride: usize,
    pub(super) out_stride: usize,
    pub(super) mirrored: bool,
}

impl GenericWork for PackKernels<'_> {
    type Output = ();
    fn run<S: Simd>(self) {
        // SAFETY: features asserted by `Isa::run`; the kernel indexes slices with checks.
        unsafe { S::vectorize(self) }
    }
}

impl<S: Simd> Kernel<S> for PackKernels<'_> {
    #[inline(always)]
    unsafe fn run(self) {
        let position_len = self.packed.len() / POSITIONS;
        for position in self.packed.chunks_exact_mut(position_len) {
            position[position_len - PANEL..].fill(0.0);
        }
        for first in (0..self.out_channels).step_by(PANEL) {
            let lanes = PANEL.min(self.out_channels - first);
            for channel in 0..self.in_channels {
                let mut taps = [[0.0f32; PANEL]; 9];
                for lane in 0..lanes {
                    let at = (first + lane) * self.out_stride + channel * self.in_stride;
                    let kernel = &self.weights[at..at + 9];
                    for (tap, values) in taps.iter_mut().enumerate() {
                        values[lane] = kernel[if self.mirrored { 8 - tap } else { tap }];
                    }
                }
                let at = (first / PANEL * self.in_channels + channel) * PANEL;
                let out = &mut self.packed[at..][..(POSITIONS - 1) * position_len + PANEL];
                // SAFETY: 36 vectors, `position_len` apart, lie in `out`, whose length was just checked.
                unsafe { transform::<S>(&taps, out.as_mut_ptr(), position_len) };
            }
        }
    }
}

/// `G g G^T` of 16 kernels.
#[inline(always)]
unsafe fn transform<S: Simd>(taps: &[[f32; PANEL]; 9], out: *mut f32, position_len: usize) {
    // SAFETY: passed on.
    unsafe {
        for lane in (0..PANEL).step_by(S::LANES) {
            let mut columns = [[S::zero(); TILE]; 3];
            for (j, column) in columns.iter_mut().enumerate() {
                let at = |i: usize| S::load(taps[3 * i + j].as_ptr().add(lane));
                *column = kernel_1d::<S>([at(0), at(1), at(2)]);
            }
            for i in 0..TILE {
                let c = &columns;
                let row = kernel_1d::<S>([c[0][i], c[1][i], c[2][i]]);
                for (j, value) in row.into_iter().enumerate() {
                    S::store(out.add((i * TILE + j) * position_len + lane), value);
                }
            }
        }
    }
}
