//! Convolution, normalisation, residual and ReLU: one fused operation where it can be, burn's convolution else.
//!
//! In: `[N, H, W, C_in]`. Out: `[N, H_out, W_out, C_out]`; in training the running statistics are updated.
//! Invariant: a layer that is fused is one that our kernels compute; all others are burn's own operation.

use std::sync::Arc;

use burn::module::{Param, ParamId};
use burn::nn::conv::Conv2d;
use burn::nn::{BatchNorm, PaddingConfig2d};
use burn::tensor::Tensor;

use crate::choices::{Computation, Kernels};
use crate::context::PassContext;
use crate::features::{Features, Values, in_f32};
use crate::ops::single::{Operation, computes, single};
use crate::ops::{
    FusedOptions, HookedParameters, NormLink, Residual, fused_inference, fused_train, gated, stock,
};
use crate::{fallback, norm};
use kernels::batch_norm::Rectifier;
use kernels::conv2d::Conv2dShape;

/// What is added before the ReLU.
pub(crate) enum Skip {
    None,
    Identity(Values),
    /// Shortcut A of these.
    ShortcutA(Values),
}

impl Skip {
    fn into_parts(self) -> (Residual, Option<Values>) {
        match self {
            Self::None => (Residual::None, None),
            Self::Identity(values) => (Residual::Identity, Some(values)),
            Self::ShortcutA(values) => (Residual::ShortcutA, Some(values)),
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
    /// By the context of the pass under way.
    pub(crate) fn new(conv: &Conv2d, input: Features) -> Self {
        Self {
            context: PassContext::current(),
            conv: conv.clone(),
            input,
        }
    }

    /// Whether it and a normalisation are one operation.
    pub(crate) fn can_be_fused(&self) -> bool {
        let is_plain = self.conv.bias.is_none() && kernels_padding(&self.conv).is_some();
        self.context.computation.kernels == Kernels::Fused && is_plain
    }

    /// With the normalisation that reads it.
    ///
    /// # Panics
    /// Unless both can be fused.
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
        let (norm, [channels, ..]) = (norm.clone(), conv.weight.dims());
        let layer = Normalised {
            context,
            conv,
            padding,
            norm,
            input,
            skip: Skip::None,
            rectifier: Rectifier::None,
        };
        norm::expect_channels(&layer.norm, channels, || layer.out_dims());
        layer
    }

    pub(crate) fn evaluate(self) -> Tensor<4> {
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
        match operation(&conv, &context.computation).filter(|_| is_ours) {
            Some(operation) => {
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
            None => {
                if is_ours {
                    note_fallback(&conv);
                }
                in_f32(input, |input| stock::conv(&conv, input, hook))
            }
        }
    }
}

/// A fused layer whose reader is not known yet.
pub(crate) struct Normalised {
    context: PassContext,
    conv: Conv2d,
    padding: usize,
    pub(crate) norm: BatchNorm,
    pub(crate) input: Values,
    pub(crate) skip: Skip,
    pub(crate) rectifier: Rectifier,
}

impl Normalised {
    pub(crate) fn can_take_residual(&self) -> bool {
        self.rectifier == Rectifier::None && matches!(self.skip, Skip::None)
    }

    /// Whether this may end it: a ReLU6 is our kernels' alone, without a residual; a frozen norm on a training device is not theirs.
    pub(crate) fn takes(&self, rectifier: Rectifier) -> bool {
        let input = &self.input.tensor;
        let is_ours = computes(input, &self.context.computation)
            && (norm::takes_batch_statistics(&self.norm, input) || !input.device().is_autodiff());
        rectifier != Rectifier::Relu6 || (matches!(self.skip, Skip::None) && is_ours)
    }

    pub(crate) fn computation(&self) -> &Computation {
        &self.context.computation
    }

    /// `[N, H_out, W_out, C_out]`.
    pub(crate) fn out_dims(&self) -> [usize; 4] {
        let [n, height, width, _] = self.input.tensor.dims();
        let [channels, _, kernel, _] = self.conv.weight.dims();
        let out = |len: usize| (len + 2 * self.padding - kernel) / self.conv.stride[0] + 1;
        [n, out(height), out(width), channels]
    }

    /// `output` leads to its readers.
    pub(crate) fn evaluate(self, output: NormLink) -> Values {
        let Self {
            context,
            conv,
            padding,
            norm,
            input,
            skip,
            rectifier,
        } = self;
        let norm_options = norm::options(&norm, &context);
        let PassContext {
            computation, hook, ..
        } = context;
        let is_trained = norm::takes_batch_statistics(&norm, &input.tensor);
        let (residual, skipped) = skip.into_parts();
        let skipped = skipped.map(|values| values.in_format(computation.activations));
        let (skipped, residual_from) =
            skipped.map_or((None, None), |values| (Some(values.tensor), values.link));
        let mut options = FusedOptions {
            stride: conv.stride[0],
            padding,
            residual,
            rectifier,
            convolution: computation.convolution,
            isa: computation.isa,
            recompute: computation.recompute,
            norm: norm_options,
            hooked: hook
                .clone()
                .filter(|_| is_trained)
                .map(|hook| HookedParameters {
                    hook,
                    weight: trained(&conv.weight),
                    gamma: trained(&norm.gamma),
                    beta: trained(&norm.beta),
                }),
            input: None,
            residual_from: None,
            output: None,
        };
        let Values {
            tensor: input,
            link,
        } = input;
        if is_trained {
            let output = Arc::new(output);
            (options.input, options.residual_from, options.output) =
                (link, residual_from, Some(Arc::clone(&output)));
            let batch = fused_train(
                input,
                conv.weight.val(),
                norm.gamma.val(),
                norm.beta.val(),
                skipped,
                options,
            );
            return Values {
                tensor: norm::update_running(&norm, batch),
                link: Some(output),
            };
        }
        let (scale, shift) = norm::folded(&norm, &input, hook.as_ref());
        let weight = gated(&conv.weight, &input, hook.as_ref());
        fused_inference(input, weight, scale, shift, skipped, options).into()
    }
}

/// # Panics
/// Unless the input has the convolution's channels: our kernels would see other groups.
fn expect_channels(conv: &Conv2d, input: &Tensor<4>) {
    let ([_, of_group, ..], dims) = (conv.weight.dims(), input.dims());
    let channels = of_group * conv.groups;
    assert!(
        dims[3] == channels,
        "convolution: expected [N, H, W, {channels}], got {dims:?}"
    );
}

fn note_fallback(conv: &Conv2d) {
    let [out, group, height, width] = conv.weight.dims();
    let (stride, dilation, groups) = (conv.stride, conv.dilation, conv.groups);
    fallback::note(format!(
        "convolution {height}x{width} of {} to {out} channels, groups {groups}, stride {stride:?}, dilation {dilation:?}, padding {:?}",
        group * groups,
        conv.padding
    ));
}

/// The id of a parameter that is a leaf of the tape and not frozen. What a reparameterization makes of a parameter is no leaf.
fn trained<const D: usize>(parameter: &Param<Tensor<D>>) -> Option<ParamId> {
    parameter.val().is_require_grad().then_some(parameter.id)
}

/// The operation of our kernels that the convolution is, if they have it.
fn operation(conv: &Conv2d, computation: &Computation) -> Option<Operation> {
    let (padding, stride) = (kernels_padding(conv)?, conv.stride[0]);
    Some(Operation::Convolution {
        stride,
        padding,
        algorithm: computation.convolution,
    })
}

/// The padding, the same on all sides, of a convolution that our kernels compute: square, stride 1 or 2, no dilation, in one group or
/// depthwise.
fn kernels_padding(conv: &Conv2d) -> Option<usize> {
    let [height, width] = conv.kernel_size;
    let padding = match conv.padding {
        PaddingConfig2d::Explicit(top, left, bottom, right)
            if [left, bottom, right] == [top; 3] =>
        {
            Some(top)
        }
        PaddingConfig2d::Same if conv.stride == [1, 1] && height % 2 == 1 => Some(height / 2),
        PaddingConfig2d::Valid => Some(0),
        _ => None,
    };
    let is_square = height == width && conv.stride[0] == conv.stride[1] && conv.dilation == [1, 1];
    let [out_channels, of_group, ..] = conv.weight.dims();
    let has_groups =
        Conv2dShape::has_groups([of_group * conv.groups, out_channels], height, conv.groups);
    padding.filter(|&padding| is_square && has_groups && conv.stride[0] <= 2 && padding < height)
}
