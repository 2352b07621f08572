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

/// Most groups of [`Rewrite::Dense`]: with more, products with zeros take longer than burn's
/// operation.
const MAX_GROUPS: usize = 32;

/// A way to compute a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rewrite {
    /// Groups as blocks of a dense weight, which has zeros elsewhere.
    Dense,
    /// Several results of each channel: a depthwise convolution of repeated channels.
    Repeated,
    /// A dilated convolution: one without dilation for each phase of rows and columns.
    Phases,
    /// Windows that do not overlap: a linear layer of their pixels.
    Patches,
}

/// Returns the way to compute the convolution, if there is one, with the padding of its kernel.
pub(crate) fn rewrite(conv: &Conv2d) -> Option<(Rewrite, usize)> {
    let [out_channels, of_group, ..] = conv.weight.dims();
    let [kernel, width] = conv.kernel_size;
    let [stride, dilation] = [conv.stride[0], conv.dilation[0]];
    let padding = match conv.padding {
        PaddingConfig2d::Valid => 0,
        PaddingConfig2d::Explicit(top, left, bottom, right)
            if [left, bottom, right] == [top; 3] =>
        {
            top
        }
        PaddingConfig2d::Same if stride == 1 && dilation == 1 && kernel % 2 == 1 => kernel / 2,
        _ => return None,
    };
    if conv.groups == 1 && conv.stride == conv.kernel_size && padding == 0 {
        return (conv.dilation == [1, 1]).then_some((Rewrite::Patches, 0));
    }
    let channels = of_group * conv.groups;
    let (way, channels, groups) = if dilation > 1 {
        (Rewrite::Phases, channels, conv.groups)
    } else if of_group == 1 {
        (Rewrite::Repeated, out_channels, out_channels)
    } else {
        (Rewrite::Dense, channels, 1)
    };
    let is_square = kernel == width && conv.stride == [stride; 2] && conv.dilation == [dilation; 2];
    let has_stride = stride <= if dilation > 1 { 1 } else { 2 };
    let is_ours = is_square
        && has_stride
        && padding.is_multiple_of(dilation)
        && padding / dilation < kernel
        && (way != Rewrite::Dense || conv.groups <= MAX_GROUPS)
        && Conv2dShape::has_groups([channels, out_channels], kernel, groups);
    is_ours.then_some((way, padding / dilation))
}

/// Computes a convolution in the way that [`rewrite`] returned.
pub(crate) fn convolve(
    conv: &Conv2d,
    (way, padding): (Rewrite, usize),
    input: Tensor<4>,
    (weight, bias): (Tensor<4>, Option<Tensor<1>>),
    computation: &Computation,
) -> Tensor<4> {
    let weight = widened(weight);
    let [n, height, width, channels] = input.dims();
    let [out_channels, of_group, kernel_rows, kernel_columns] = weight.dims();
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
        Rewrite::Dense => {
            let groups = conv.groups;
            let taps = kernel_rows * kernel_columns;
            let blocks = weight.reshape([groups, out_channels / groups, 1, of_group, taps]);
            let places = Tensor::<2>::eye(groups, &blocks.device());
            let dense = blocks * places.reshape([groups, 1, groups, 1, 1]);
            let shape = [out_channels, channels, kernel_rows, kernel_columns];
            by_kernel(input, dense.reshape(shape), bias)
        }
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
