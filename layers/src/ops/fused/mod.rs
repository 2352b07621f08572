//! Convolution, batch normalisation, residual and ReLU as one operation.
//!
//! In: `[N, H, W, C_in]`. Out: `[N, H_out, W_out, C_out]`. Invariant: the same function as the operations one after the
//! other; only the order of roundings may differ between bodies.

pub(super) mod autodiff;
mod call;
pub(super) mod composed;
mod convolution;
#[cfg(feature = "flex")]
pub(super) mod flex;
mod link;
#[cfg(feature = "flex")]
mod linked;

use std::sync::Arc;

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, ExtensionType};
use burn::tensor::{Device, Tensor};

use super::composed::widen;
use super::{BatchNormOptions, BatchNormTrain, HookedParameters, LayerOps};
use kernels::batch_norm::Rectifier;
use kernels::conv2d::Conv2dShape;
use kernels::simd::Isa;

pub(super) use call::{Before, LayerCall, shortcut_a};
pub(super) use convolution::{
    convolution_by_burn, input_gradient_by_burn, weight_gradient_by_burn,
};
pub(crate) use link::NormLink;
#[cfg(feature = "flex")]
pub(super) use linked::{LinkedNorm, Statistics};

use crate::choices::{Convolution, Recompute};

/// What is added after the normalisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Residual {
    /// Nothing.
    None,
    /// A tensor of the output's shape.
    Identity,
    /// Shortcut A of a tensor: every second row and column, channels of zeros half in front and half behind.
    ShortcutA,
}

/// A fused operation beside its tensors.
#[derive(Clone, Debug)]
pub(crate) struct FusedOptions {
    /// Step of the square kernel in both directions: 1 or 2.
    pub stride: usize,
    /// Zeros around the image on each side.
    pub padding: usize,
    /// What is added after the normalisation.
    pub residual: Residual,
    /// What ends the operation; a ReLU6 only without a residual.
    pub rectifier: Rectifier,
    /// How our own kernels convolve; in other bodies burn chooses.
    pub convolution: Convolution,
    /// Their instruction set.
    pub isa: Isa,
    /// What their backward pass computes again.
    pub recompute: Recompute,
    /// The normalisation.
    pub norm: BatchNormOptions,
    /// Where the parameters' gradients go, `None`: to the tape.
    pub hooked: Option<HookedParameters>,
    /// To the layer that made the input.
    pub input: Option<Arc<NormLink>>,
    /// To the layer that made the residual.
    pub residual_from: Option<Arc<NormLink>>,
    /// To the layers that will read the output.
    pub output: Option<Arc<NormLink>>,
}

/// Results of [`LayerOps::fused_train`] on a backend.
#[derive(ExtensionType)]
pub(crate) struct FusedOutput<B: Backend> {
    /// `[N, H_out, W_out, C_out]`; where the link to the next layer says so, the convolution's raw result, of which the gradient is
    /// nevertheless that of what the next layer makes of it.
    pub output: FloatTensor<B>,
    /// The convolution's result in the input's type, which the backward pass needs; not tracked.
    pub convolved: FloatTensor<B>,
    /// `[C_out]`; not tracked.
    pub mean: FloatTensor<B>,
    /// `[C_out]`, biased; not tracked.
    pub variance: FloatTensor<B>,
    /// How many values of each channel the statistics were taken over.
    pub num_values: f64,
}

/// What [`LayerOps::fused_train_backward`] needs of the forward pass, in so far as [`LayerOps::fused_train_kept`] keeps it.
#[derive(ExtensionType, Clone, Debug)]
pub(crate) struct FusedSaved<B: Backend> {
    /// `[N, H, W, C_in]`.
    pub input: FloatTensor<B>,
    /// `[C_out, C_in / groups, K, K]`.
    pub weight: FloatTensor<B>,
    /// `[C_out]`.
    pub gamma: FloatTensor<B>,
    /// `[C_out]`.
    pub beta: FloatTensor<B>,
    /// `[N, H_out, W_out, C_out]`.
    pub output: FloatTensor<B>,
    /// `[N, H_out, W_out, C_out]`.
    pub convolved: FloatTensor<B>,
    /// `[C_out]`.
    pub mean: FloatTensor<B>,
    /// `[C_out]`.
    pub variance: FloatTensor<B>,
    /// Over all who computed the batch together.
    pub num_values: f64,
    /// Of the residual; of no meaning without one.
    pub residual_shape: [usize; 4],
    /// Added to the input's gradient, `[N, H, W, C_in]`; any tensor where `has_addend` is false.
    pub addend: FloatTensor<B>,
    /// Whether there is such a gradient.
    pub has_addend: bool,
    /// Whether anything wants the input's gradient: not that of the images.
    pub needs_input: bool,
}

/// Results of [`LayerOps::fused_train_backward`].
#[derive(ExtensionType)]
pub(crate) struct FusedGradients<B: Backend> {
    /// `[N, H, W, C_in]`, or any tensor if it was not needed.
    pub input: FloatTensor<B>,
    /// `[C_out, C_in / groups, K, K]`.
    pub weight: FloatTensor<B>,
    /// `[C_out]`, summed over this batch only.
    pub gamma: FloatTensor<B>,
    /// `[C_out]`, summed over this batch only.
    pub beta: FloatTensor<B>,
    /// Of the residual's shape, or any tensor without one.
    pub residual: FloatTensor<B>,
}

/// [`LayerOps::fused_train`] on tensors of any device, differentiable on autodiff ones.
///
/// # Shapes
/// `input`: `[N, H, W, C_in]`; `weight`: `[C_out, C_in, K, K]`, depthwise `[C, 1, K, K]`; `gamma`, `beta`: `[C_out]`; `residual`: as
/// [`FusedOptions::residual`] says; `None` without one.
///
/// # Panics
/// When the weight is not of these shapes: other groups are none of this operation's, burn's `Conv2d` computes them.
///
/// # Collective
/// With a reducer: one sum in the forward and one in the backward pass.
pub(crate) fn fused_train(
    input: Tensor<4>,
    weight: Tensor<4>,
    gamma: Tensor<1>,
    beta: Tensor<1>,
    residual: Option<Tensor<4>>,
    options: FusedOptions,
) -> BatchNormTrain {
    expect_groups(&input, &weight);
    let residual = residual_or_nothing(residual, &options, &input.device());
    let fused = <Dispatch as LayerOps>::fused_train(
        input.into_dispatch(),
        widen::<Dispatch>(weight.into_dispatch()),
        widen::<Dispatch>(gamma.into_dispatch()),
        widen::<Dispatch>(beta.into_dispatch()),
        residual.into_dispatch(),
        options,
    );
    BatchNormTrain {
        output: Tensor::from_dispatch(fused.output),
        mean: Tensor::from_dispatch(fused.mean),
        variance: Tensor::from_dispatch(fused.variance),
        num_values: fused.num_values,
    }
}

/// [`LayerOps::fused_inference`] on tensors of any device: `convolution * scale + shift`, residual, ReLU. No gradient.
///
/// # Shapes
/// As [`fused_train`], `scale` and `shift`: `[C_out]`.
///
/// # Panics
/// As [`fused_train`].
pub(crate) fn fused_inference(
    input: Tensor<4>,
    weight: Tensor<4>,
    scale: Tensor<1>,
    shift: Tensor<1>,
    residual: Option<Tensor<4>>,
    options: FusedOptions,
) -> Tensor<4> {
    expect_groups(&input, &weight);
    let residual = residual_or_nothing(residual, &options, &input.device());
    Tensor::from_dispatch(<Dispatch as LayerOps>::fused_inference(
        input.into_dispatch(),
        widen::<Dispatch>(weight.into_dispatch()),
        scale.into_dispatch(),
        shift.into_dispatch(),
        residual.into_dispatch(),
        options,
    ))
}

fn expect_groups(input: &Tensor<4>, weight: &Tensor<4>) {
    let ([.., channels], [c_out, of_group, height, width]) = (input.dims(), weight.dims());
    let groups = channels / of_group.max(1);
    assert!(
        groups * of_group == channels
            && Conv2dShape::has_groups([channels, c_out], height, groups)
            && height == width,
        "fused operation: expected a weight [C_out, {channels}, K, K], or [{channels}, 1, K, K] with K = 3, 5 or 7, for an input of \
         {channels} channels, got {:?}; other groups and kernels that are not square take burn's Conv2d",
        weight.dims()
    );
}

/// The extension's operations take no optional tensors: one element stands for nothing.
fn residual_or_nothing(
    residual: Option<Tensor<4>>,
    options: &FusedOptions,
    device: &Device,
) -> Tensor<4> {
    assert_eq!(
        residual.is_some(),
        options.residual != Residual::None,
        "fused operation: a residual is given exactly where the options say so"
    );
    residual.unwrap_or_else(|| Tensor::zeros([1, 1, 1, 1], device))
}
