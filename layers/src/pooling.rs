//! Pooling: maximum or mean of windows or of the whole image.
//!
//! In: [`Features`] `[N, H, W, C]`, or a tensor. Out: the same kind with fewer pixels.
//! Invariant: the functions of burn and PyTorch. burn's modules compute shapes without a kernel.

use burn::nn::PaddingConfig2d;
use burn::nn::pool;
use burn::tensor::{FloatDType, Tensor};

use crate::choices::Kernels;
use crate::context::PassContext;
use crate::fallback;
use crate::features::Features;
use crate::modules::{around, config_around};
use crate::ops::single::{Operation, computes, global_average, single};
use crate::ops::stock;

around!(
    MaxPool2d,
    pool::MaxPool2d,
    "The largest value of windows of channels-last features."
);
around!(
    AvgPool2d,
    pool::AvgPool2d,
    "The mean of windows of channels-last features."
);
around!(
    AdaptiveAvgPool2d,
    pool::AdaptiveAvgPool2d,
    "The mean of as many windows as the output has pixels."
);

config_around!(MaxPool2dConfig, pool::MaxPool2dConfig, MaxPool2d, [
    with_strides: [usize; 2], with_padding: PaddingConfig2d, with_dilation: [usize; 2], with_ceil_mode: bool
]);
config_around!(AvgPool2dConfig, pool::AvgPool2dConfig, AvgPool2d, [
    with_strides: [usize; 2], with_padding: PaddingConfig2d, with_count_include_pad: bool, with_ceil_mode: bool
]);
config_around!(
    AdaptiveAvgPool2dConfig,
    pool::AdaptiveAvgPool2dConfig,
    AdaptiveAvgPool2d,
    []
);

impl MaxPool2dConfig {
    /// Windows of these sides, which are the strides, too.
    pub fn new(kernel_size: [usize; 2]) -> Self {
        Self(pool::MaxPool2dConfig::new(kernel_size))
    }
}

impl AvgPool2dConfig {
    /// Windows of these sides, which are the strides, too.
    pub fn new(kernel_size: [usize; 2]) -> Self {
        Self(pool::AvgPool2dConfig::new(kernel_size))
    }
}

impl AdaptiveAvgPool2dConfig {
    /// Returns the configuration for an output of height and width `output_size`.
    pub fn new(output_size: [usize; 2]) -> Self {
        Self(pool::AdaptiveAvgPool2dConfig::new(output_size))
    }
}

impl MaxPool2d {
    /// Returns the maxima. Lockstep's kernels compute windows with stride 2: 3x3 with padding 1, as
    /// in ResNets, and 2x2 without padding. burn's operation computes all others.
    ///
    /// # Shapes
    /// `[N, H, W, C]` to `[N, H_out, W_out, C]`.
    pub fn forward(&self, features: impl Into<Features>) -> Features {
        let tensor = Tensor::from(features.into());
        let computation = PassContext::current().computation;
        let window = match self.padding {
            PaddingConfig2d::Explicit(1, 1, 1, 1) => 3,
            _ => 2,
        };
        let is_ours = self.kernel_size == [window; 2]
            && (window == 3 || is_without_padding(&self.padding))
            && self.stride == [2, 2]
            && self.dilation == [1, 1]
            && !self.ceil_mode;
        if is_ours && computes(&tensor, &computation) {
            let operation = Operation::MaxPool { window };
            return single(tensor, [None, None], operation, computation.isa).into();
        }
        let [height, width] = self.kernel_size;
        let stride = self.stride;
        by_burn(
            tensor,
            || format!("max pool {height}x{width}, stride {stride:?}"),
            |planes| self.0.forward(planes),
        )
    }
}

impl AvgPool2d {
    /// Returns the means. Lockstep's kernel computes 2x2 windows with stride 2 without padding;
    /// burn's operation computes all others.
    ///
    /// # Shapes
    /// `[N, H, W, C]` to `[N, H_out, W_out, C]`.
    pub fn forward(&self, features: impl Into<Features>) -> Features {
        let tensor = Tensor::from(features.into());
        let computation = PassContext::current().computation;
        let is_ours = self.kernel_size == [2, 2]
            && self.stride == [2, 2]
            && is_without_padding(&self.padding)
            && !self.ceil_mode;
        if is_ours && computes(&tensor, &computation) {
            let operation = Operation::AveragePool;
            return single(tensor, [None, None], operation, computation.isa).into();
        }
        let [height, width] = self.kernel_size;
        let stride = self.stride;
        let name = || format!("average pool {height}x{width}, stride {stride:?}");
        by_burn(tensor, name, |planes| self.0.forward(planes))
    }
}

impl AdaptiveAvgPool2d {
    /// Returns the means in the number format of the features. For an output of one pixel it uses
    /// the kernel of [`global_avg_pool`].
    ///
    /// # Shapes
    /// `[N, H, W, C]` to `[N, H_out, W_out, C]`.
    pub fn forward(&self, features: impl Into<Features>) -> Features {
        let tensor = Tensor::from(features.into());
        if self.output_size == [1, 1] {
            let [n, .., channels] = tensor.dims();
            let dtype = FloatDType::from(tensor.dtype());
            return global_avg_pool(tensor)
                .reshape([n, 1, 1, channels])
                .cast(dtype)
                .into();
        }
        let [height, width] = self.output_size;
        by_burn(
            tensor,
            || format!("average pool to {height}x{width}"),
            |planes| self.0.forward(planes),
        )
    }
}

fn is_without_padding(padding: &PaddingConfig2d) -> bool {
    matches!(
        padding,
        PaddingConfig2d::Valid | PaddingConfig2d::Explicit(0, 0, 0, 0)
    )
}

/// Runs burn's operation on planes, and notes it as a fallback if Lockstep's kernels compute the
/// rest.
pub(crate) fn by_burn(
    tensor: Tensor<4>,
    name: impl FnOnce() -> String,
    operation: impl FnOnce(Tensor<4>) -> Tensor<4>,
) -> Features {
    if computes(&tensor, &PassContext::current().computation) {
        fallback::note(name());
    }
    stock::in_planes(tensor, operation).into()
}

/// Returns the mean over all pixels: `[N, H, W, C]` to `[N, C]` in f32.
pub fn global_avg_pool(features: impl Into<Features>) -> Tensor<2> {
    let values = features.into().into_values();
    let computation = PassContext::current().computation;
    match computation.kernels {
        Kernels::Stock => stock::global_average(values.tensor),
        Kernels::Fused => global_average(values, computation.isa),
    }
}
