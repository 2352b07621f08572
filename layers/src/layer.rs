//! Convolution, normalisation, residual and ReLU: one fused operation if possible, otherwise burn's
//! convolution.
//!
//! In: `[N, H, W, C_in]`.
//! Out: `[N, H_out, W_out, C_out]`; training updates the running statistics.
//! Invariant: Lockstep's kernels compute a fused layer; every other layer is burn's operation.

use std::sync::Arc;

use burn::module::{Param, ParamId};
use burn::nn::BatchNorm;
use burn::nn::conv::Conv2d;
use burn::tensor::{FloatDType, Tensor};

use crate::choices::{Computation, Kernels};
use crate::context::PassContext;
use crate::features::{Features, Values, format, in_f32};
use crate::ops::single::{Operation, computes, single};
use crate::ops::{
    ConvolutionOptions, HookedParameters, LayerOptions, NormLink, ResidualKind,
    count_multiply_adds, gated, layer_inference, layer_train, stock,
};
use crate::rewrite::{convolve, rewrite, symmetric_padding};
use crate::{fallback, norm};
use kernels::batch_norm::Rectifier;
use kernels::conv2d::Conv2dShape;

/// Values added before the ReLU.
pub(crate) enum Skip {
    None,
    Identity(Values),
    /// Shortcut A of these values.
    ShortcutA(Values),
}

impl Skip {
    fn into_parts(self) -> (ResidualKind, Option<Values>) {
        match self {
            Self::None => (ResidualKind::None, None),
            Self::Identity(values) => (ResidualKind::Identity, Some(values)),
            Self::ShortcutA(values) => (ResidualKind::ShortcutA, Some(values)),
        }
    }
}

/// A convolution whose reader is not known yet.
pub(crate) struct Convolved {
    context: PassContext,
    conv: Conv2d,
    input: Features,
}

impl Convolved {
    /// Returns the convolution with the context of the current pass.
    pub(crate) fn new(conv: &Conv2d, input: Features) -> Self {
        Self {
            context: PassContext::current(),
            conv: conv.clone(),
            input,
        }
    }

    /// Returns true if the convolution and a normalisation can be one operation.
    pub(crate) fn can_be_fused(&self) -> bool {
        let is_plain = self.conv.bias.is_none() && kernels_padding(&self.conv).is_some();
        self.context.computation.kernels == Kernels::Fused && is_plain
    }

    /// Returns the convolution with the normalisation that reads it.
    ///
    /// # Panics
    /// If the two cannot be fused.
    pub(crate) fn normalised(self, norm: &BatchNorm) -> Normalised {
        let Self {
            context,
            conv,
            input,
        } = self;
        let input = input
            .into_values_for(norm, &context.computation)
            .in_format(context.computation.activations);
        let padding = kernels_padding(&conv).expect("a convolution that can be fused");
        expect_channels(&conv, &input.tensor);
        norm::expect_values(norm, &input.tensor);
        let [channels, ..] = conv.weight.dims();
        let layer = Normalised {
            context,
            convolution: Some((conv, padding)),
            norm: norm.clone(),
            input,
            skip: Skip::None,
            rectifier: Rectifier::None,
        };
        norm::expect_channels(&layer.norm, channels, || layer.out_dims());
        if let Some((conv, _)) = &layer.convolution {
            count(conv.weight.shape().num_elements(), layer.out_dims());
        }
        layer
    }

    pub(crate) fn evaluate(self) -> Tensor<4> {
        let num_weights = self.conv.weight.shape().num_elements();
        let output = self.compute();
        count(num_weights, output.dims());
        output
    }

    fn compute(self) -> Tensor<4> {
        let Self {
            context,
            conv,
            input,
        } = self;
        let input = input
            .into_values()
            .in_format(context.computation.activations)
            .tensor;
        expect_channels(&conv, &input);
        let hook = context.hook.as_ref();
        let is_ours = computes(&input, &context.computation);
        match operation(&conv, &context.computation) {
            Some(operation) if is_ours => {
                let weight = gated(&conv.weight, &input, hook).into_dispatch();
                let bias = conv
                    .bias
                    .as_ref()
                    .map(|bias| gated(bias, &input, hook).into_dispatch());
                single(
                    input,
                    [Some(weight), bias],
                    operation,
                    context.computation.isa,
                )
            }
            _ => {
                if is_ours
                    && input.dims()[0] > 0
                    && let Some(way) = rewrite(&conv)
                {
                    let weight = gated(&conv.weight, &input, hook);
                    let bias = conv.bias.as_ref().map(|bias| gated(bias, &input, hook));
                    let parameters = (weight, bias);
                    return convolve(&conv, way, input, parameters, &context.computation);
                }
                if is_ours {
                    note_fallback(&conv);
                }
                in_f32(input, |input| stock::conv(&conv, input, hook))
            }
        }
    }
}

fn count(num_weights: usize, [n, height, width, _]: [usize; 4]) {
    count_multiply_adds(num_weights, n * height * width);
}

/// A layer that ends in a normalisation, whose reader is not known yet.
pub(crate) struct Normalised {
    context: PassContext,
    /// The convolution with its padding; `None`: the normalisation reads the input.
    convolution: Option<(Conv2d, [usize; 2])>,
    pub(crate) norm: BatchNorm,
    pub(crate) input: Values,
    pub(crate) skip: Skip,
    pub(crate) rectifier: Rectifier,
}

impl Normalised {
    /// Returns a normalisation of `input` without a convolution.
    pub(crate) fn without_convolution(
        context: PassContext,
        norm: &BatchNorm,
        input: Tensor<4>,
    ) -> Self {
        Self {
            context,
            convolution: None,
            norm: norm.clone(),
            input: input.into(),
            skip: Skip::None,
            rectifier: Rectifier::None,
        }
    }

    /// Returns true if a residual can be added in the same operation.
    pub(crate) fn can_take_residual(&self) -> bool {
        self.convolution.is_some()
            && self.rectifier == Rectifier::None
            && matches!(self.skip, Skip::None)
    }

    /// Returns true if the rectifier can end the operation.
    ///
    /// Only Lockstep's kernels have a ReLU6, without a residual; they compute no frozen norm on a
    /// training device.
    pub(crate) fn takes(&self, rectifier: Rectifier) -> bool {
        let input = &self.input.tensor;
        let is_ours = computes(input, &self.context.computation)
            && (norm::takes_batch_statistics(&self.norm, input) || !input.device().is_autodiff());
        rectifier != Rectifier::Relu6 || (matches!(self.skip, Skip::None) && is_ours)
    }

    /// Returns true if `next` may read the raw values before the normalisation.
    pub(crate) fn may_stay_raw(&self, next: &BatchNorm, computation: &Computation) -> bool {
        let tensor = &self.input.tensor;
        self.context.computation == *computation
            && format(tensor, computation.activations) == FloatDType::from(tensor.dtype())
            && norm::takes_batch_statistics(next, tensor)
    }

    /// Returns `[N, H_out, W_out, C_out]`.
    pub(crate) fn out_dims(&self) -> [usize; 4] {
        let dims = self.input.tensor.dims();
        let Some((conv, padding)) = &self.convolution else {
            return dims;
        };
        let [n, height, width, _] = dims;
        let [channels, _, kernel @ ..] = conv.weight.dims();
        let out =
            |axis: usize, len: usize| (len + 2 * padding[axis] - kernel[axis]) / conv.stride[0] + 1;
        [n, out(0, height), out(1, width), channels]
    }

    /// Computes the layer; `output` leads to its readers.
    pub(crate) fn evaluate(self, output: NormLink) -> Values {
        let Self {
            context,
            convolution,
            norm,
            input,
            skip,
            rectifier,
        } = self;
        let PassContext {
            computation,
            reducer,
            hook,
        } = context;
        let is_trained = norm::takes_batch_statistics(&norm, &input.tensor);
        let (residual, skipped) = skip.into_parts();
        let skipped = skipped.map(|values| values.in_format(computation.activations));
        let convolution_options = convolution
            .as_ref()
            .map(|(conv, padding)| ConvolutionOptions {
                stride: conv.stride[0],
                padding: *padding,
                algorithm: computation.convolution,
            });
        let mut options = LayerOptions {
            reducer,
            residual,
            rectifier,
            isa: computation.isa,
            recompute: computation.recompute,
            ..LayerOptions::new(convolution_options, norm.epsilon)
        };
        if is_trained {
            let output = Arc::new(output);
            options.hooked = hook.map(|hook| HookedParameters {
                hook,
                weight: convolution
                    .as_ref()
                    .and_then(|(conv, _)| trained(&conv.weight)),
                gamma: trained(&norm.gamma),
                beta: trained(&norm.beta),
            });
            options.input = input.link;
            options.residual_from = skipped.as_ref().and_then(|values| values.link.clone());
            options.output = Some(Arc::clone(&output));
            let batch = layer_train(
                input.tensor,
                convolution.map(|(conv, _)| conv.weight.val()),
                norm.gamma.val(),
                norm.beta.val(),
                skipped.map(|values| values.tensor),
                options,
            );
            return Values {
                tensor: norm::update_running(&norm, batch),
                link: Some(output),
            };
        }
        let (conv, _) = convolution.expect("only a normalisation in training has no convolution");
        let (scale, shift) = norm::folded(&norm, &input.tensor, hook.as_ref());
        let weight = gated(&conv.weight, &input.tensor, hook.as_ref());
        let skipped = skipped.map(|values| values.tensor);
        layer_inference(input.tensor, weight, scale, shift, skipped, options).into()
    }
}

/// # Panics
/// Unless the input has the convolution's channels: Lockstep's kernels would see other groups.
fn expect_channels(conv: &Conv2d, input: &Tensor<4>) {
    let [_, of_group, ..] = conv.weight.dims();
    let dims = input.dims();
    let channels = of_group * conv.groups;
    assert!(
        dims[3] == channels,
        "convolution: expected [N, H, W, {channels}], got {dims:?}"
    );
}

fn note_fallback(conv: &Conv2d) {
    let [out, group, height, width] = conv.weight.dims();
    fallback::note(format!(
        "convolution {height}x{width} of {} to {out} channels, groups {}, stride {:?}, dilation {:?}, padding {:?}",
        group * conv.groups,
        conv.groups,
        conv.stride,
        conv.dilation,
        conv.padding
    ));
}

/// Returns the id of a parameter that is a leaf of the tape and not frozen.
///
/// The result of a reparameterization is not a leaf.
fn trained<const D: usize>(parameter: &Param<Tensor<D>>) -> Option<ParamId> {
    parameter.val().is_require_grad().then_some(parameter.id)
}

/// Returns the operation of Lockstep's kernels for the convolution, if there is one.
fn operation(conv: &Conv2d, computation: &Computation) -> Option<Operation> {
    Some(Operation::Convolution(ConvolutionOptions {
        stride: conv.stride[0],
        padding: kernels_padding(conv)?,
        algorithm: computation.convolution,
    }))
}

/// Returns the padding of a convolution that Lockstep's kernels compute: without dilation, and not
/// faster as another operation.
fn kernels_padding(conv: &Conv2d) -> Option<[usize; 2]> {
    let [stride, other] = conv.stride;
    symmetric_padding(conv).filter(|padding| {
        stride == other
            && conv.dilation == [1, 1]
            && Conv2dShape::supports(conv.kernel_size, stride, *padding)
            && rewrite(conv).is_none()
    })
}
