//! Depthwise convolution: each channel, or each group of 4 or 8 channels, has its own kernel.
//!
//! In: images; their rows are copied into a [`Ring`].
//! Out: rows of the output, or the gradient of the weights. The gradient of the input is the same
//! pass over dy, spread by the stride, with mirrored weights.
//! Invariant: an image is one piece of work for any number of threads. A group reads no other
//! group.
//!
//! A vector has several groups. Output channel o of a group takes input channel o ^ i in turn i,
//! so one exchange of lanes serves all groups of a vector.
//!
//! Source: Howard et al. 2017, arXiv 1704.04861, section 3.1.

mod filter;
mod gradient;
mod ring;
#[cfg(test)]
pub(super) mod tests;

use super::Conv2dShape;
use crate::simd::Simd;
pub(super) use filter::Depthwise;
pub(super) use gradient::GradientPlan;
use ring::Ring;

/// Channels of a block.
const BLOCK: usize = 16;
/// Most output columns whose sums stay in registers.
const COLUMNS: usize = 8;
/// Turns whose weights, or sums, stay in registers.
const TURNS: usize = 4;
/// Elements of a band of rows of the output, which is still in a cache when it is finished.
const BAND_ELEMENTS: usize = 16 * 1024;

/// A pass over images: the output, or the gradient of the input.
#[derive(Clone, Copy, Debug)]
pub(super) struct DepthwisePlan {
    pub(super) images: usize,
    channels: usize,
    /// Channels of a group.
    of_group: usize,
    kernel: usize,
    /// Rows and columns of the spread image from window to window.
    stride: usize,
    /// Rows and columns of the spread image from value to value.
    spread: usize,
    /// Zeros in front.
    border: usize,
    /// Height and width of what is read.
    from: [usize; 2],
    /// Height and width of what is written.
    to: [usize; 2],
    is_mirrored: bool,
}

impl DepthwisePlan {
    pub(super) fn forward(s: &Conv2dShape) -> Self {
        Self {
            images: s.batch,
            channels: s.in_channels,
            of_group: s.in_channels / s.groups,
            kernel: s.kernel[0],
            stride: s.stride,
            spread: 1,
            border: s.padding[0],
            from: [s.height, s.width],
            to: [s.out_height(), s.out_width()],
            is_mirrored: false,
        }
    }

    /// Returns a pass of stride 1 over the spread gradient of the output.
    pub(super) fn data_gradient(s: &Conv2dShape) -> Self {
        let Self { from, to, .. } = Self::forward(s);
        let border = s.kernel[0] - 1 - s.padding[0];
        Self {
            stride: 1,
            spread: s.stride,
            border,
            from: to,
            to: from,
            is_mirrored: true,
            ..Self::forward(s)
        }
    }

    pub(super) fn packed_len(&self) -> usize {
        self.num_blocks() * self.block_len()
    }

    /// Returns the number of elements of the ring.
    pub(super) fn slot_len(&self) -> usize {
        self.kernel * self.row_len()
    }

    /// Returns the number of bands of all images.
    pub(super) fn num_pieces(&self) -> usize {
        self.images * self.num_bands()
    }

    /// Weights as `[block][tap][turn][channel]`, zeros where there is no channel. In a gradient the
    /// channel is that of the input.
    pub(super) fn pack(&self, weights: &[f32], packed: &mut [f32]) {
        let taps = self.taps();
        packed.fill(0.0);
        for (filter, weights) in weights.chunks_exact(taps).enumerate() {
            let at = self.packed_at(filter, self.is_mirrored);
            for (tap, weight) in weights.iter().enumerate() {
                let tap = if self.is_mirrored {
                    taps - 1 - tap
                } else {
                    tap
                };
                packed[at + tap * self.tap_len()] = *weight;
            }
        }
    }

    /// Returns the place of a filter's first weight, in the lane of its input or output channel.
    fn packed_at(&self, filter: usize, in_lane_of_input: bool) -> usize {
        let [out, other] = [filter / self.of_group, filter % self.of_group];
        let own = out % self.of_group;
        let lane = if in_lane_of_input {
            out - own + other
        } else {
            out
        };
        lane / BLOCK * self.block_len() + (own ^ other) * BLOCK + lane % BLOCK
    }

    fn taps(&self) -> usize {
        self.kernel * self.kernel
    }

    /// Returns the number of packed weights of a tap in a block of channels.
    fn tap_len(&self) -> usize {
        self.of_group * BLOCK
    }

    fn num_blocks(&self) -> usize {
        self.channels.div_ceil(BLOCK)
    }

    /// Returns the number of packed weights, or of their gradients, in a block of channels.
    fn block_len(&self) -> usize {
        self.taps() * self.tap_len()
    }

    /// Returns the number of pixels of a row of the ring: all that whole runs of output columns
    /// touch.
    fn ring_width(&self) -> usize {
        let needed = (self.to[1].next_multiple_of(COLUMNS) - 1) * self.stride + self.kernel;
        needed.max(self.border + (self.from[1] - 1) * self.spread + 1)
    }

    /// Returns the number of elements of a row of the ring.
    fn row_len(&self) -> usize {
        self.num_blocks() * self.ring_width() * BLOCK
    }

    /// Returns the number of elements of a row of what is written.
    fn out_row_len(&self) -> usize {
        self.to[1] * self.channels
    }

    fn band_rows(&self) -> usize {
        (BAND_ELEMENTS / self.out_row_len()).clamp(1, self.to[0])
    }

    fn num_bands(&self) -> usize {
        self.to[0].div_ceil(self.band_rows())
    }

    /// Returns the row of what is read that lies under row `tap` of the kernel at output row `row`.
    fn row_under(&self, row: usize, tap: usize) -> Option<usize> {
        let at = (row * self.stride + tap).checked_sub(self.border)?;
        (at.is_multiple_of(self.spread) && at / self.spread < self.from[0])
            .then_some(at / self.spread)
    }
}

/// Returns whether there are kernels of that side for groups of so many channels.
pub(super) fn has_kernel(side: usize, of_group: usize) -> bool {
    match of_group {
        1 => matches!(side, 3 | 5 | 7 | 9),
        4 | 8 => side == 3,
        _ => false,
    }
}

/// Returns lanes from `first` on for the first of [`TURNS`] turns: of a half, the second of which
/// takes the other four channels of a group.
///
/// # Safety
/// The processor has the features of `S`, and `load` may be called for any lane of the block.
#[inline(always)]
unsafe fn of_half<S: Simd>(load: impl Fn(usize) -> S::V, first: usize, half: usize) -> S::V {
    // SAFETY: passed on.
    unsafe {
        match (half, S::LANES) {
            (0, _) => load(first),
            (_, ..=TURNS) => load(first ^ TURNS),
            _ => S::exchange::<TURNS>(load(first)),
        }
    }
}

/// Calls a kernel of constant side, stride and channels of a group.
macro_rules! vectorize_sized {
    ($plan:expr, $simd:ident, $kernel:ident, $work:expr) => {
        match ($plan.kernel, $plan.stride, $plan.of_group) {
            (3, 1, 1) => $simd::vectorize($kernel::<_, 3, 1, 1>($work)),
            (3, 1, 4) => $simd::vectorize($kernel::<_, 3, 1, 4>($work)),
            (3, 1, _) => $simd::vectorize($kernel::<_, 3, 1, 8>($work)),
            (3, _, 1) => $simd::vectorize($kernel::<_, 3, 2, 1>($work)),
            (3, _, 4) => $simd::vectorize($kernel::<_, 3, 2, 4>($work)),
            (3, _, _) => $simd::vectorize($kernel::<_, 3, 2, 8>($work)),
            (5, 1, _) => $simd::vectorize($kernel::<_, 5, 1, 1>($work)),
            (5, _, _) => $simd::vectorize($kernel::<_, 5, 2, 1>($work)),
            (7, 1, _) => $simd::vectorize($kernel::<_, 7, 1, 1>($work)),
            (7, _, _) => $simd::vectorize($kernel::<_, 7, 2, 1>($work)),
            (_, 1, _) => $simd::vectorize($kernel::<_, 9, 1, 1>($work)),
            _ => $simd::vectorize($kernel::<_, 9, 2, 1>($work)),
        }
    };
}
use vectorize_sized;
