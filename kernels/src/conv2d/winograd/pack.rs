//! Transforms the weights for Winograd: `[C_out, C_in, 3, 3]` to `[position][panel][channel][16]`.
//!
//! One vector of output channels at a time, in f32. f64 with one rounding took four times as long
//! and made the output's error 4 % smaller.

use super::transform::{POSITIONS, TILE, kernel_1d};
use crate::conv2d::transpose::Rows;
use crate::simd::{GenericWork, Kernel, PANEL, Simd};

const TAPS: usize = 9;
/// Channels whose taps are gathered at once: their lines are read while they are in L1.
const RUN_CHANNELS: usize = 16;

/// Packs taps from their place in the weights: `out * out_stride + in * in_stride + tap`, or `8 -
/// tap` if mirrored.
pub(crate) struct PackKernels<'a> {
    pub(crate) weights: &'a [f32],
    pub(crate) packed: &'a mut [f32],
    pub(crate) in_channels: usize,
    pub(crate) out_channels: usize,
    pub(crate) in_stride: usize,
    pub(crate) out_stride: usize,
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
        let position_len = self.packed.len() / POSITIONS;
        for position in self.packed.chunks_exact_mut(position_len) {
            position[position_len - PANEL..].fill(0.0);
        }
        // Filters of neighbouring channels are one run of memory where they belong to the same
        // output channel.
        let channels_of_run = if self.in_stride == TAPS {
            RUN_CHANNELS
        } else {
            1
        };
        let mut taps = [[0.0; PANEL]; RUN_CHANNELS * TAPS];
        for first in (0..self.out_channels.next_multiple_of(PANEL)).step_by(S::LANES) {
            let rows = S::LANES.min(self.out_channels.saturating_sub(first));
            for channel in (0..self.in_channels).step_by(channels_of_run) {
                let channels = channels_of_run.min(self.in_channels - channel);
                let at = first * self.out_stride + channel * self.in_stride;
                let stride = self.out_stride;
                let columns = channels * TAPS;
                let last = if rows > 0 {
                    at + (rows - 1) * stride + columns
                } else {
                    0
                };
                assert!(
                    last <= self.weights.len(),
                    "winograd: length of the weights"
                );
                let kernels = Rows {
                    first: self.weights.as_ptr().cast_mut().wrapping_add(at),
                    stride,
                    rows,
                    columns,
                };
                // SAFETY: the kernels lie in the weights as just asserted; their columns fit into
                // `taps`.
                unsafe {
                    kernels.each_column::<S>(|column, vector| {
                        S::store(taps[column].as_mut_ptr(), vector)
                    })
                };
                for (index, taps) in taps.chunks_exact(TAPS).enumerate().take(channels) {
                    let at = (first / PANEL * self.in_channels + channel + index) * PANEL
                        + first % PANEL;
                    let out = &mut self.packed[at..][..(POSITIONS - 1) * position_len + S::LANES];
                    // SAFETY: 36 vectors, `position_len` apart, lie in `out`, whose length was just
                    // checked.
                    unsafe { transform::<S>(taps, self.mirrored, out.as_mut_ptr(), position_len) };
                }
            }
        }
    }
}

/// Computes `G g G^T` of as many kernels as a vector has lanes, each of which may be mirrored.
#[inline(always)]
unsafe fn transform<S: Simd>(
    taps: &[[f32; PANEL]],
    mirrored: bool,
    out: *mut f32,
    position_len: usize,
) {
    // SAFETY: passed on.
    unsafe {
        let mut columns = [[S::zero(); TILE]; 3];
        for (j, column) in columns.iter_mut().enumerate() {
            let at =
                |i: usize| S::load(taps[if mirrored { 8 - 3 * i - j } else { 3 * i + j }].as_ptr());
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
