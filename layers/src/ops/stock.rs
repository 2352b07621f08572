//! burn's own operations on channels-last tensors.
//!
//! In and out: logical `[N, H, W, C]`. Invariant: every function works on the permuted view `[N, C,
//! H, W]` and permutes its result back. Flex and NdArray convolve planes, and Flex's elementwise
//! operations are fast only on contiguous tensors. So tensors stay planes in memory from the first
//! convolution to the average, and the permutations cost nothing. (With channels-last memory, Flex
//! would copy twice for each convolution, forward and backward.)

use std::sync::Arc;

use burn::module::Param;
use burn::nn::conv::Conv2d;
use burn::tensor::module::linear as multiply_add;
use burn::tensor::{FloatDType, Slice, Tensor};

use super::{GradientHook, gated};

/// Runs any convolution of burn's.
pub(crate) fn conv(
    conv: &Conv2d,
    input: Tensor<4>,
    hook: Option<&Arc<dyn GradientHook>>,
) -> Tensor<4> {
    let dtype = FloatDType::from(input.dtype());
    let weight = Param::initialized(
        conv.weight.id,
        gated(&conv.weight, &input, hook).cast(dtype),
    );
    let bias = conv
        .bias
        .as_ref()
        .map(|bias| Param::initialized(bias.id, gated(bias, &input, hook).cast(dtype)));
    to_channels_last(
        Conv2d {
            weight,
            bias,
            ..conv.clone()
        }
        .forward(to_planes(input)),
    )
}

/// Runs a linear layer, `[.., C]` to `[.., K]`, in the number format of x.
pub(crate) fn linear<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
) -> Tensor<D> {
    let dtype = FloatDType::from(x.dtype());
    multiply_add(x, weight.cast(dtype), bias.map(|bias| bias.cast(dtype)))
}

/// Returns an operation on the planes.
pub(crate) fn in_planes(
    input: Tensor<4>,
    operation: impl FnOnce(Tensor<4>) -> Tensor<4>,
) -> Tensor<4> {
    to_channels_last(operation(to_planes(input)))
}

/// Returns an operation of two sides on their planes.
pub(crate) fn binary(
    left: Tensor<4>,
    right: Tensor<4>,
    operation: impl FnOnce(Tensor<4>, Tensor<4>) -> Tensor<4>,
) -> Tensor<4> {
    to_channels_last(operation(to_planes(left), to_planes(right)))
}

/// Returns tensors one after the other along the channels.
pub(crate) fn cat(tensors: Vec<Tensor<4>>) -> Tensor<4> {
    let planes = tensors.into_iter().map(to_planes).collect();
    to_channels_last(Tensor::cat(planes, 1))
}

/// Returns `input * scale + shift`, per channel.
pub(crate) fn scale_shift(input: Tensor<4>, scale: Tensor<1>, shift: Tensor<1>) -> Tensor<4> {
    let [channels] = scale.dims();
    let per_channel = |values: Tensor<1>| values.reshape([1, channels, 1, 1]);
    to_channels_last(to_planes(input) * per_channel(scale) + per_channel(shift))
}

/// Returns shortcut A: every second row and column, `zero_channels` channels of zeros on either
/// side, as the published code's `F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, planes // 4, planes //
/// 4))`.
pub(crate) fn subsample_and_pad(input: Tensor<4>, zero_channels: usize) -> Tensor<4> {
    let every_second = Slice::new(0, None, 2);
    let kept = to_planes(input).slice([Slice::full(), Slice::full(), every_second, every_second]);
    let [n, _, h, w] = kept.dims();
    let zeros = Tensor::zeros([n, zero_channels, h, w], (&kept.device(), kept.dtype()));
    to_channels_last(Tensor::cat(vec![zeros.clone(), kept, zeros], 1))
}

/// Returns the mean over all pixels: `[N, H, W, C]` to `[N, C]`.
pub(crate) fn global_average(input: Tensor<4>) -> Tensor<2> {
    let [n, h, w, channels] = input.dims();
    to_planes(input)
        .reshape([n, channels, h * w])
        .mean_dim(2)
        .squeeze_dim(2)
}

fn to_planes(channels_last: Tensor<4>) -> Tensor<4> {
    channels_last.permute([0, 3, 1, 2])
}

fn to_channels_last(planes: Tensor<4>) -> Tensor<4> {
    planes.permute([0, 2, 3, 1])
}
