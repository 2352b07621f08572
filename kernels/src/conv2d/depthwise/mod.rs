//! Depthwise convolution: each channel has its own kernel.
//!
//! In: images; their rows are copied into a [`Ring`].
//! Out: rows of the output, or the gradient of the weights. The gradient of the input is the same
//! pass over dy, spread by the stride, with mirrored weights.
//! Invariant: an image is one piece of work for any number of threads.
//! Source: Howard et al. 2017, arXiv 1704.04861, section 3.1.

mod filter;
mod gradient;
mod ring;
#[cfg(test)]
pub(super) mod tests;

use super::Conv2dShape;
pub(super) use filter::Depthwise;
pub(super) use gradient::GradientPlan;
use ring::Ring;

/// Channels of a block.
const BLOCK: usize = 16;
/// Output columns whose sums stay in registers.
const COLUMNS: usize = 4;
/// Elements of a band of rows of the output, which is still in a cache when it is finished.
const BAND_ELEMENTS: usize = 16 * 1024;

/// A pass over images: the output, or the gradient of the input.
#[derive(Clone, Copy, Debug)]
pub(super) struct DepthwisePlan {
    pub(super) images: usize,
    channels: usize,
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

    /// Weights as `[block][tap][channel]`, zeros where there is no channel.
    pub(super) fn pack(&self, weights: &[f32], packed: &mut [f32]) {
        let taps = self.kernel * self.kernel;
        packed.fill(0.0);
        for (channel, weights) in weights.chunks_exact(taps).enumerate() {
            let block = &mut packed[channel / BLOCK * self.block_len()..][..self.block_len()];
            for (tap, weight) in weights.iter().enumerate() {
                let tap = if self.is_mirrored {
                    taps - 1 - tap
                } else {
                    tap
                };
                block[tap * BLOCK + channel % BLOCK] = *weight;
            }
        }
    }

    fn num_blocks(&self) -> usize {
        self.channels.div_ceil(BLOCK)
    }

    /// Returns the number of packed weights, or of their gradients, in a block of channels.
    fn block_len(&self) -> usize {
        self.kernel * self.kernel * BLOCK
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

/// Returns whether there are kernels of that side.
pub(super) fn has_kernel(side: usize) -> bool {
    matches!(side, 3 | 5 | 7 | 9)
}

/// Calls a kernel of constant side and stride.
macro_rules! vectorize_sized {
    ($plan:expr, $simd:ident, $kernel:ident, $work:expr) => {
        match ($plan.kernel, $plan.stride) {
            (3, 1) => $simd::vectorize($kernel::<_, 3, 1>($work)),
            (3, _) => $simd::vectorize($kernel::<_, 3, 2>($work)),
            (5, 1) => $simd::vectorize($kernel::<_, 5, 1>($work)),
            (5, _) => $simd::vectorize($kernel::<_, 5, 2>($work)),
            (7, 1) => $simd::vectorize($kernel::<_, 7, 1>($work)),
            (7, _) => $simd::vectorize($kernel::<_, 7, 2>($work)),
            (_, 1) => $simd::vectorize($kernel::<_, 9, 1>($work)),
            _ => $simd::vectorize($kernel::<_, 9, 2>($work)),
        }
    };
}
use vectorize_sized;
