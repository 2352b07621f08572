//! Depthwise convolution, channels-last: every channel by a kernel of its own.
//!
//! In: `[N, H, W, C]`, PyTorch's weights `[C, 1, K, K]`, K = 3, 5 or 7, stride 1 or 2. Out: `[N, H_out, W_out, C]`, and the gradients.
//! An image's block of channels is copied into a buffer with zeros around it, so that no loop knows of borders or of a last block that is
//! not whole. The gradient of the input is the same pass over the gradient of the output, spread by the stride, with the weights mirrored.
//! Invariant: the same bits for any number of threads: an image is one piece, and images' sums are added in order.
//! Source: Howard et al. 2017, arXiv 1704.04861, section 3.1.

mod filter;
mod gradient;
#[cfg(test)]
mod tests;

use crate::Element;
use crate::pieces::slots_len;
use crate::simd::Isa;
use filter::{Pass, filter_images};
use gradient::PIECE_IMAGES;
pub(crate) use gradient::weight_gradient_of;

/// Channels of a block.
const BLOCK: usize = 16;

/// A shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DepthwiseShape {
    /// Images.
    pub batch: usize,
    /// Height of the input.
    pub height: usize,
    /// Width of the input.
    pub width: usize,
    /// Channels of input and output.
    pub channels: usize,
    /// Side of the square kernel.
    pub kernel: usize,
    /// Step of the kernel in both directions.
    pub stride: usize,
    /// Zeros around the image on each side.
    pub padding: usize,
}

impl DepthwiseShape {
    /// Whether this module has kernels of that side.
    #[must_use]
    pub fn has_kernel(side: usize) -> bool {
        matches!(side, 3 | 5 | 7)
    }

    /// Height of the output.
    #[must_use]
    pub fn out_height(&self) -> usize {
        (self.height + 2 * self.padding - self.kernel) / self.stride + 1
    }

    /// Width of the output.
    #[must_use]
    pub fn out_width(&self) -> usize {
        (self.width + 2 * self.padding - self.kernel) / self.stride + 1
    }

    /// Elements of the input.
    #[must_use]
    pub fn input_len(&self) -> usize {
        self.batch * self.height * self.width * self.channels
    }

    /// Elements of the output.
    #[must_use]
    pub fn output_len(&self) -> usize {
        self.batch * self.out_height() * self.out_width() * self.channels
    }

    /// Elements of the weights.
    #[must_use]
    pub fn weight_len(&self) -> usize {
        self.channels * self.kernel * self.kernel
    }

    /// Elements of workspace with which every pass uses every thread of the current rayon pool.
    #[must_use]
    pub fn workspace_len(&self) -> usize {
        let filtering = self.forward_pass().buffer_len().max(self.gradient_pass().buffer_len());
        let correlating = self.forward_pass().buffer_len() + self.output_pass().buffer_len();
        let packed = self.num_blocks() * self.block_len();
        let partials = self.batch.div_ceil(PIECE_IMAGES) * self.sums_len();
        packed.max(partials) + slots_len(rayon::current_num_threads(), filtering.max(correlating))
    }

    fn num_blocks(&self) -> usize {
        self.channels.div_ceil(BLOCK)
    }

    /// Packed weights of a block of channels.
    fn block_len(&self) -> usize {
        self.kernel * self.kernel * BLOCK
    }

    /// Sums of the gradient of weights and bias of a piece, in whole blocks of channels.
    fn sums_len(&self) -> usize {
        self.num_blocks() * (self.block_len() + BLOCK)
    }

    fn forward_pass(&self) -> Pass {
        let (rows, columns) = (self.out_height(), self.out_width());
        let from = [self.height, self.width];
        Pass { kernel: self.kernel, stride: self.stride, spread: 1, border: self.padding, from, to: [rows, columns] }
    }

    /// That of the input's gradient: a pass of stride 1 over the spread gradient of the output.
    fn gradient_pass(&self) -> Pass {
        Pass {
            kernel: self.kernel,
            stride: 1,
            spread: self.stride,
            border: self.kernel - 1 - self.padding,
            from: [self.out_height(), self.out_width()],
            to: [self.height, self.width],
        }
    }

    /// One that reads the gradient of the output as it is.
    fn output_pass(&self) -> Pass {
        let out = [self.out_height(), self.out_width()];
        Pass { kernel: 1, stride: 1, spread: 1, border: 0, from: out, to: out }
    }

    fn check(&self, input: usize, output: usize, weight: usize) {
        let Self { kernel, stride, padding, .. } = *self;
        let fits = Self::has_kernel(kernel) && matches!(stride, 1 | 2) && padding < kernel;
        let is_whole = self.batch * self.channels > 0 && self.height.min(self.width) + 2 * padding >= kernel;
        assert!(
            fits && is_whole,
            "depthwise: expected kernel 3, 5 or 7, stride 1 or 2, padding below it, got {self:?}"
        );
        for (what, got, expected) in [
            ("the input", input, self.input_len()),
            ("the output", output, self.output_len()),
            ("the weights", weight, self.weight_len()),
        ] {
            assert!(got == expected, "depthwise: {what}: expected {expected} values, got {got}");
        }
    }
}

/// The output `y` of `x`.
///
/// # Shapes
/// `x`: `[N, H, W, C]`. `weight`: `[C, 1, K, K]`. `bias`: `[C]`. `y`: `[N, H_out, W_out, C]`. `workspace`: [`DepthwiseShape::workspace_len`].
///
/// # Panics
/// If a length differs, the shape is none of this module's, or the processor lacks `isa`.
pub fn forward<E: Element>(
    isa: Isa,
    shape: &DepthwiseShape,
    x: &[E],
    weight: &[f32],
    bias: Option<&[f32]>,
    y: &mut [E],
    workspace: &mut [f32],
) {
    E::depthwise_forward(isa, shape, x, weight, bias, y, workspace);
}

/// The gradient `dx` of the input from `dy`.
///
/// # Shapes
/// As [`forward`].
///
/// # Panics
/// As [`forward`].
pub fn data_gradient<E: Element>(
    isa: Isa,
    shape: &DepthwiseShape,
    dy: &[E],
    weight: &[f32],
    dx: &mut [E],
    workspace: &mut [f32],
) {
    E::depthwise_data_gradient(isa, shape, dy, weight, dx, workspace);
}

/// The gradients `dw` of the weights and `db` of a bias from `x` and `dy`.
///
/// # Shapes
/// As [`forward`].
///
/// # Panics
/// As [`forward`].
pub fn weight_gradient<E: Element>(
    isa: Isa,
    shape: &DepthwiseShape,
    x: &[E],
    dy: &[E],
    dw: &mut [f32],
    db: &mut [f32],
    workspace: &mut [f32],
) {
    E::depthwise_weight_gradient(isa, shape, x, dy, dw, db, workspace);
}

pub(crate) fn forward_of<E: Element>(
    isa: Isa,
    shape: &DepthwiseShape,
    x: &[E],
    weight: &[f32],
    bias: Option<&[f32]>,
    y: &mut [E],
    workspace: &mut [f32],
) {
    shape.check(x.len(), y.len(), weight.len());
    if let Some(bias) = bias {
        assert!(bias.len() == shape.channels, "depthwise: {} channels but a bias of {}", shape.channels, bias.len());
    }
    filter_images(isa, shape, &shape.forward_pass(), x, (weight, false, bias), y, workspace);
}

pub(crate) fn data_gradient_of<E: Element>(
    isa: Isa,
    shape: &DepthwiseShape,
    dy: &[E],
    weight: &[f32],
    dx: &mut [E],
    workspace: &mut [f32],
) {
    shape.check(dx.len(), dy.len(), weight.len());
    filter_images(isa, shape, &shape.gradient_pass(), dy, (weight, true, None), dx, workspace);
}
