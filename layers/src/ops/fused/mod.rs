//! A layer as one operation: convolution, batch normalisation, residual and rectifier.
//!
//! In: `[N, H, W, C_in]`.
//! Out: `[N, H_out, W_out, C_out]`; without a convolution the shape of the input.
//! Invariant: the same function as the operations one after the other; bodies differ only in the
//! order of roundings.

mod call;
pub(super) mod composed;
mod convolution;
#[cfg(feature = "flex")]
pub(super) mod flex;
mod link;
#[cfg(feature = "flex")]
mod linked;
#[cfg(feature = "flex")]
pub(super) mod planes;

use std::sync::Arc;

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, ExtensionType};
use burn::tensor::Tensor;

use super::composed::widen;
use super::{ConvolutionOptions, HookedParameters, LayerOps, StatisticsReducer};
use kernels::batch_norm::Rectifier;
use kernels::simd::Isa;

pub(super) use call::{Before, LayerCall, shortcut_a};
pub(super) use convolution::{
    convolution_by_burn, input_gradient_by_burn, weight_gradient_by_burn,
};
#[cfg(feature = "flex")]
pub(super) use flex::unlinked;
pub(crate) use link::NormLink;

use crate::choices::Recompute;

/// Tensor added after the normalisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResidualKind {
    None,
    /// A tensor of the output's shape.
    Identity,
    /// Shortcut A of a tensor: every second row and column, channels of zeros half in front and
    /// half behind.
    ShortcutA,
}

/// A layer without its tensors.
#[derive(Clone, Debug)]
pub(crate) struct LayerOptions {
    /// `None`: the layer normalises its input.
    pub convolution: Option<ConvolutionOptions>,
    /// Added to the variance before the square root.
    pub epsilon: f64,
    /// Sums the statistics over all ranks that compute the batch; `None`: only this batch.
    pub reducer: Option<Arc<dyn StatisticsReducer>>,
    pub residual: ResidualKind,
    /// End of the operation; a ReLU6 only without a residual.
    pub rectifier: Rectifier,
    /// Instruction set of Lockstep's kernels.
    pub isa: Isa,
    /// Tensors that the backward pass of Lockstep's kernels computes again.
    pub recompute: Recompute,
    /// Target of the parameters' gradients; `None`: the tape.
    pub hooked: Option<HookedParameters>,
    /// Link to the layer that made the input.
    pub input: Option<Arc<NormLink>>,
    /// Link to the layer that made the residual.
    pub residual_from: Option<Arc<NormLink>>,
    /// Link to the layers that will read the output.
    pub output: Option<Arc<NormLink>>,
}

impl LayerOptions {
    /// Returns a layer without residual, rectifier, hook and links, on the best instruction set.
    pub(crate) fn new(convolution: Option<ConvolutionOptions>, epsilon: f64) -> Self {
        Self {
            convolution,
            epsilon,
            reducer: None,
            residual: ResidualKind::None,
            rectifier: Rectifier::None,
            isa: Isa::detect(),
            recompute: Recompute::None,
            hooked: None,
            input: None,
            residual_from: None,
            output: None,
        }
    }
}

/// Results of [`LayerOps::layer`] on a backend.
#[derive(ExtensionType)]
pub(crate) struct LayerOutput<B: Backend> {
    /// `[N, H_out, W_out, C_out]`.
    ///
    /// The raw result before the normalisation, if the link to the next layer allows it. The
    /// gradient that the next layer passes back is always that of the normalised values.
    pub output: FloatTensor<B>,
    /// Input for the backward pass, or a tensor with only its shape; not tracked, as all that
    /// follow.
    pub kept_input: FloatTensor<B>,
    /// Output for the backward pass, or a tensor with only its shape.
    pub kept_output: FloatTensor<B>,
    /// Input of the normalisation, or a tensor with only its shape.
    pub kept_convolved: FloatTensor<B>,
    /// `[C_out]`.
    pub mean: FloatTensor<B>,
    /// `[C_out]`, biased.
    pub variance: FloatTensor<B>,
    /// Values per channel behind the statistics.
    pub num_values: f64,
}

/// Inputs of [`LayerOps::layer_backward`].
#[derive(ExtensionType, Clone, Debug)]
pub(crate) struct LayerSaved<B: Backend> {
    /// `[N, H, W, C_in]`, as [`LayerOutput::kept_input`].
    pub input: FloatTensor<B>,
    /// `[C_out, C_in / groups, K, K]`, or any tensor without a convolution.
    pub weight: FloatTensor<B>,
    /// `[C_out]`.
    pub gamma: FloatTensor<B>,
    /// `[C_out]`.
    pub beta: FloatTensor<B>,
    /// `[N, H_out, W_out, C_out]`, as [`LayerOutput::kept_output`].
    pub output: FloatTensor<B>,
    /// `[N, H_out, W_out, C_out]`, as [`LayerOutput::kept_convolved`].
    pub convolved: FloatTensor<B>,
    /// `[C_out]`.
    pub mean: FloatTensor<B>,
    /// `[C_out]`.
    pub variance: FloatTensor<B>,
    /// Values per channel, over all ranks that computed the batch.
    pub num_values: f64,
    /// Shape of the residual; without meaning if there is none.
    pub residual_shape: [usize; 4],
    /// Added to the input's gradient, `[N, H, W, C_in]`; any tensor if `has_addend` is false.
    pub addend: FloatTensor<B>,
    pub has_addend: bool,
    /// False if the input needs no gradient, such as images.
    pub needs_input: bool,
}

/// Results of [`LayerOps::layer_backward`].
#[derive(ExtensionType)]
pub(crate) struct LayerGradients<B: Backend> {
    /// `[N, H, W, C_in]`, or any tensor if it was not needed.
    pub input: FloatTensor<B>,
    /// `[C_out, C_in / groups, K, K]`, or any tensor without a convolution.
    pub weight: FloatTensor<B>,
    /// `[C_out]`, summed over this batch only.
    pub gamma: FloatTensor<B>,
    /// `[C_out]`, summed over this batch only.
    pub beta: FloatTensor<B>,
    /// Shape of the residual, or any tensor without one.
    pub residual: FloatTensor<B>,
}

/// Runs [`LayerOps::layer`] on tensors of any device, differentiable on autodiff ones.
///
/// # Shapes
/// `input`: `[N, H, W, C_in]`; `weight`: `[C_out, C_in / groups, K_h, K_w]`; `gamma`,
/// `beta`: `[C_out]`; `residual`: see [`LayerOptions::residual`].
///
/// # Panics
/// If the weight has another shape, or a tensor is not given as the options say.
///
/// # Collective
/// With a reducer: one sum in the forward and one in the backward pass.
pub(crate) fn layer_train(
    input: Tensor<4>,
    weight: Option<Tensor<4>>,
    gamma: Tensor<1>,
    beta: Tensor<1>,
    residual: Option<Tensor<4>>,
    options: LayerOptions,
) -> LayerOutput<Dispatch> {
    expect_tensors(&input, weight.as_ref(), residual.as_ref(), &options);
    let [gamma, beta] = [gamma, beta].map(|tensor| widen::<Dispatch>(tensor.into_dispatch()));
    // The extension takes no optional tensors: gamma stands for an absent one.
    let weight = weight.map_or_else(
        || gamma.clone(),
        |weight| widen::<Dispatch>(weight.into_dispatch()),
    );
    let residual = residual.map_or_else(|| gamma.clone(), Tensor::into_dispatch);
    <Dispatch as LayerOps>::layer(
        input.into_dispatch(),
        weight,
        gamma,
        beta,
        residual,
        options,
    )
}

/// Runs [`LayerOps::layer_inference`] on tensors of any device.
///
/// # Shapes
/// As [`layer_train`]; `scale` and `shift`: `[C_out]`.
///
/// # Panics
/// As [`layer_train`].
pub(crate) fn layer_inference(
    input: Tensor<4>,
    weight: Tensor<4>,
    scale: Tensor<1>,
    shift: Tensor<1>,
    residual: Option<Tensor<4>>,
    options: LayerOptions,
) -> Tensor<4> {
    expect_tensors(&input, Some(&weight), residual.as_ref(), &options);
    let scale = scale.into_dispatch();
    let residual = residual.map_or_else(|| scale.clone(), Tensor::into_dispatch);
    Tensor::from_dispatch(<Dispatch as LayerOps>::layer_inference(
        input.into_dispatch(),
        widen::<Dispatch>(weight.into_dispatch()),
        scale,
        shift.into_dispatch(),
        residual,
        options,
    ))
}

fn expect_tensors(
    input: &Tensor<4>,
    weight: Option<&Tensor<4>>,
    residual: Option<&Tensor<4>>,
    options: &LayerOptions,
) {
    assert_eq!(
        residual.is_some(),
        options.residual != ResidualKind::None,
        "layer: expected a residual exactly if the options have one"
    );
    assert_eq!(
        weight.is_some(),
        options.convolution.is_some(),
        "layer: expected a weight exactly if the options have a convolution"
    );
    let Some(weight) = weight else { return };
    let [.., channels] = input.dims();
    let [c_out, of_group, ..] = weight.dims();
    let groups = channels / of_group.max(1);
    assert!(
        groups > 0 && groups * of_group == channels && c_out.is_multiple_of(groups),
        "layer: expected a weight [C_out, {channels} / groups, K_h, K_w] with groups that divide C_out, got {:?}",
        weight.dims()
    );
}
