//! Transforms the weights for Winograd: `[C_out, C_in, 3, 3]` to `[position][panel][channel][16]`.
//!
//! One vector of output channels at a time, in f32. f64 with one rounding took four times as long
//! and made the output's error 4 % smaller.

use super::transform::{POSITIONS, TILE, kernel_1d};
use crate::conv2d::transpose::Weights;
use crate::simd::{GenericWork, Kernel, PANEL, Simd};

const TAPS: usize = 9;

/// Packs weights, the taps of which may be mirrored.
pub(crate) struct PackKernels<'a> {
    pub(crate) weights: Weights<'a>,
    pub(crate) packed: &'a mut [f32],
    pub(crate) mirrored: bool,
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
        let in_channels = self.weights.in_channels;
        let position_len = self.packed.len() / POSITIONS;
        for position in self.packed.chunks_exact_mut(position_len) {
            position[position_len - PANEL..].fill(0.0);
        }
        // SAFETY: passed on. 36 vectors, `position_len` apart, lie in `out`, whose length is
        // checked; the kernels have room for vectors from each lane on.
        unsafe {
            self.weights.each_block::<S>(|block| {
                let kernels = block.vectors.as_chunks::<TAPS>().0;
                for (channel, taps) in (block.channel..).zip(kernels) {
                    let at = (block.panel * in_channels + channel) * PANEL;
                    let out = &mut self.packed[at..][..(POSITIONS - 1) * position_len + PANEL];
                    for lane in (0..PANEL).step_by(S::LANES) {
                        let out = out.as_mut_ptr().add(lane);
                        transform::<S>(taps, lane, self.mirrored, out, position_len);
                    }
                }
            });
        }
    }
}

/// Computes `G g G^T` of as many kernels as a vector has lanes, from `lane` on, each of which may
/// be mirrored.
#[inline(always)]
unsafe fn transform<S: Simd>(
    taps: &[[f32; PANEL]; TAPS],
    lane: usize,
    mirrored: bool,
    out: *mut f32,
    position_len: usize,
) {
    // SAFETY: passed on.
    unsafe {
        let mut columns = [[S::zero(); TILE]; 3];
        for (j, column) in columns.iter_mut().enumerate() {
            let at = |i: usize| {
                let tap = if mirrored { 8 - 3 * i - j } else { 3 * i + j };
                S::load(taps[tap].as_ptr().add(lane))
            };
            *column = kernel_1d::<S>([at(0), at(1), at(2)]);
        }
        for i in 0..TILE {
            let c = &columns;
            let row = kernel_1d::<S>([c[0][i], c[1][i], c[2][i]]);
            for (j, value) in row.into_iter().enumerate() {
                S::store(out.add((i * TILE + j) * position_len), value);
            }
        }
    }
}
