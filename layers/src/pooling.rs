//! Pooling: the largest value or the mean of windows, or of the whole image.
//!
//! In: [`Features`] `[N, H, W, C]`, or a tensor. Out: the same with fewer pixels. Invariant: burn's and PyTorch's functions, by burn's modules
//! where our kernels lack the shape.

use burn::nn::PaddingConfig2d;
use burn::nn::pool::{AvgPool2d, MaxPool2d};
use burn::tensor::Tensor;

use crate::choices::Kernels;
use crate::context::PassContext;
use crate::features::Features;
use crate::ops::single::{Operation, computes, single};
use crate::ops::{global_average, stock};

/// The mean over all pixels: `[N, H, W, C]` to `[N, C]` in f32.
pub fn global_avg_pool(features: impl Into<Features>) -> Tensor<2> {
    let tensor = features.into().into_values().tensor;
    match PassContext::current().computation.kernels {
        Kernels::Stock => stock::global_average(tensor),
        Kernels::Fused => global_average(tensor),
    }
}

/// What burn's module gives for planes, of channels-last features. 3x3 windows with stride 2 and padding 1, those of ResNets, are our kernel's.
///
/// # Shapes
/// `[N, H, W, C]` to `[N, H_out, W_out, C]`.
pub fn max_pool(pool: &MaxPool2d, features: impl Into<Features>) -> Features {
    let tensor = Tensor::from(features.into());
    let computation = PassContext::current().computation;
    let is_ours = pool.kernel_size == [3, 3]
        && pool.stride == [2, 2]
        && pool.padding == PaddingConfig2d::Explicit(1, 1, 1, 1)
        && pool.dilation == [1, 1]
        && !pool.ceil_mode;
    if is_ours && computes(&tensor, &computation) {
        return single(tensor, [None, None], Operation::MaxPool, computation.isa).into();
    }
    stock::in_planes(tensor, |planes| pool.forward(planes)).into()
}

/// What burn's module gives for planes, of channels-last features, by burn's operation.
///
/// # Shapes
/// `[N, H, W, C]` to `[N, H_out, W_out, C]`.
pub fn avg_pool(pool: &AvgPool2d, features: impl Into<Features>) -> Features {
    stock::in_planes(features.into().into(), |planes| pool.forward(planes)).into()
}
