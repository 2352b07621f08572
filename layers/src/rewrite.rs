//! Convolutions that Lockstep's kernels lack, as a convolution or a product that the kernels have.
//!
//! In: `[N, H, W, C_in]` on Flex, and the weight of burn's module.
//! Out: `[N, H_out, W_out, C_out]`.
//! Invariant: gradients go through burn's views and products back to the weight.

use burn::nn::PaddingConfig2d;
use burn::nn::conv::Conv2d;
use burn::tensor::Tensor;
use kernels::conv2d::Conv2dShape;

use crate::choices::Computation;
use crate::features::widened;
use crate::ops::ConvolutionOptions;
use crate::ops::single::{Operation, single};

/// A way to compute a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rewrite {
    /// Several results of each channel: a depthwise convolution of repeated channels.
    Repeated,
    /// A dilated convolution: one without dilation for each phase of rows and columns.
    Phases,
    /// Windows that do not overlap: a linear layer of their pixels.
    Patches,
}

/// Returns the zeros above and below, and to the left and right, if they are the same on both
/// sides.
pub(crate) fn symmetric_padding(conv: &Conv2d) -> Option<[usize; 2]> {
    let [height, width] = conv.kernel_size;
    let is_odd = height % 2 == 1 && width % 2 == 1;
    match conv.padding {
        PaddingConfig2d::Valid => Some([0, 0]),
        PaddingConfig2d::Explicit(top, left, bottom, right) => {
            ([top, left] == [bottom, right]).then_some([top, left])
        }
        PaddingConfig2d::Same => ([conv.stride, conv.dilation] == [[1, 1]; 2] && is_odd)
            .then_some([height / 2, width / 2]),
    }
}

/// Returns the way to compute the convolution, if there is a better one than the kernel's own, with
/// the padding of its kernel.
pub(crate) fn rewrite(conv: &Conv2d) -> Option<(Rewrite, [usize; 2])> {
    let padding = symmetric_padding(conv)?;
    let [out_channels, of_group, ..] = conv.weight.dims();
    let [stride, dilation] = [conv.stride, conv.dilation].map(|steps| steps[0]);
    let are_even = conv.stride == [stride; 2] && conv.dilation == [dilation; 2];
    if dilation > 1 {
        let of_phase = padding.map(|zeros| zeros / dilation);
        let is_ours = are_even
            && of_phase.map(|zeros| zeros * dilation) == padding
            && stride == 1
            && Conv2dShape::supports(conv.kernel_size, 1, of_phase);
        return is_ours.then_some((Rewrite::Phases, of_phase));
    }
    if conv.groups == 1 && conv.stride == conv.kernel_size && padding == [0, 0] {
        let has_kernel = are_even && Conv2dShape::supports(conv.kernel_size, stride, padding);
        return (!has_kernel).then_some((Rewrite::Patches, [0, 0]));
    }
    let is_repeated = of_group == 1
        && conv.groups > 1
        && out_channels > conv.groups
        && are_even
        && Conv2dShape::is_depthwise_kernel(conv.kernel_size, stride, padding);
    is_repeated.then_some((Rewrite::Repeated, padding))
}

/// Computes a convolution in the way that [`rewrite`] returned.
pub(crate) fn convolve(
    conv: &Conv2d,
    (way, padding): (Rewrite, [usize; 2]),
    input: Tensor<4>,
    (weight, bias): (Tensor<4>, Option<Tensor<1>>),
    computation: &Computation,
) -> Tensor<4> {
    let weight = widened(weight);
    let [n, height, width, channels] = input.dims();
    let [out_channels, _, kernel_rows, kernel_columns] = weight.dims();
    let bias = bias.map(Tensor::into_dispatch);
    let by_kernel = |input, weight: Tensor<4>, bias| {
        let options = ConvolutionOptions {
            stride: conv.stride[0],
            padding,
            algorithm: computation.convolution,
        };
        let parameters = [Some(weight.into_dispatch()), bias];
        single(
            input,
            parameters,
            Operation::Convolution(options),
            computation.isa,
        )
    };
    let swap = |x| swap_axes(x, computation);
    match way {
        Rewrite::Repeated => {
            let times = out_channels / channels;
            let operation = Operation::Repeat { times };
            let repeated = single(input, [None, None], operation, computation.isa);
            by_kernel(repeated, weight, bias)
        }
        Rewrite::Phases => {
            let step = conv.dilation[0];
            let [rows, columns] = [height, width].map(|extent| extent.div_ceil(step));
            let below = rows * step - height;
            let beside = columns * step - width;
            let padded = if below + beside > 0 {
                input.pad([(0, below), (0, beside), (0, 0)], 0.0)
            } else {
                input
            };
            let squares = step * step;
            let phases = swap(padded.reshape([n * rows * step, columns, step, channels]));
            let phases = swap(phases.reshape([1, n * rows, squares, columns * channels]));
            let phases = phases.reshape([squares * n, rows, columns, channels]);
            let result = by_kernel(phases, weight, bias);
            let [_, rows, columns, _] = result.dims();
            let [height, width] =
                [(rows, below), (columns, beside)].map(|(extent, added)| extent * step - added);
            let result = swap(result.reshape([1, squares, n * rows, columns * out_channels]));
            let result = swap(result.reshape([n * rows * step, step, columns, out_channels]));
            let result = result.reshape([n, rows * step, columns * step, out_channels]);
            if below + beside > 0 {
                result.narrow(1, 0, height).narrow(2, 0, width)
            } else {
                result
            }
        }
        Rewrite::Patches => {
            let [rows, columns] = [height / kernel_rows, width / kernel_columns];
            let values = kernel_rows * kernel_columns * channels;
            let [used_rows, used_columns] = [rows * kernel_rows, columns * kernel_columns];
            let used = if [used_rows, used_columns] == [height, width] {
                input
            } else {
                input.narrow(1, 0, used_rows).narrow(2, 0, used_columns)
            };
            let run = kernel_columns * channels;
            let patches = swap(used.reshape([n * rows, kernel_rows, columns, run]));
            let patches = patches.reshape([n, rows, columns, values]);
            let weight = weight.permute([2, 3, 1, 0]).reshape([values, out_channels]);
            let parameters = [Some(weight.into_dispatch()), bias];
            single(patches, parameters, Operation::Linear, computation.isa)
        }
    }
}

/// Exchanges the two middle axes.
pub(crate) fn swap_axes(x: Tensor<4>, computation: &Computation) -> Tensor<4> {
    single(x, [None, None], Operation::SwapAxes, computation.isa)
}
