//! Convolution, normalisation, residual and ReLU, by the fused operation or by burn's own one after the other.
//!
//! In: `[N, H, W, C_in]`. Out: `[N, H_out, W_out, C_out]`; in training the running statistics are updated.
//! Invariant: both ways compute the same function.

use std::sync::Arc;

use burn::nn::conv::Conv2d;
use burn::nn::{BatchNorm, Linear, PaddingConfig2d};
use burn::tensor::{FloatDType, Tensor};
use kernels::simd::Isa;

use crate::choices::{Activations, Convolution, Kernels};
use crate::norm::{self, batch_norm};
use crate::ops::{
    FusedOptions, GradientHook, HookedParameters, NormLink, Residual, StatisticsReducer, fused_inference, fused_train,
    global_average, stock,
};

/// What is added before the ReLU.
#[derive(Debug)]
pub enum Skip {
    /// Nothing.
    None,
    /// Features of the output's shape.
    Identity(Features),
    /// Shortcut A of these: every second row and column, channels of zeros half in front and half behind.
    ShortcutA(Features),
}

impl Skip {
    fn into_parts(self) -> (Residual, Option<Features>) {
        match self {
            Self::None => (Residual::None, None),
            Self::Identity(features) => (Residual::Identity, Some(features)),
            Self::ShortcutA(features) => (Residual::ShortcutA, Some(features)),
        }
    }
}

/// What a layer of [`Computation`] gives to the next ones, with what all need to walk over it as seldom as they can.
#[derive(Clone, Debug)]
pub struct Features {
    tensor: Tensor<4>,
    link: Option<Arc<NormLink>>,
}

impl Features {
    /// The values, `[N, H, W, C]`.
    pub fn into_tensor(self) -> Tensor<4> {
        self.tensor
    }
}

impl From<Tensor<4>> for Features {
    fn from(tensor: Tensor<4>) -> Self {
        Self { tensor, link: None }
    }
}

/// What a layer without a residual gives to a layer that is its only reader: on some backends not normalised yet, so it has
/// no values of its own.
#[derive(Debug)]
pub struct Hidden(Features);

/// How a network computes its layers; their parameters are burn's own modules.
#[derive(Clone, Debug, Default)]
pub struct Computation {
    /// Whose kernels.
    pub kernels: Kernels,
    /// How our own kernels convolve.
    pub convolution: Convolution,
    /// Their instruction set; by default the processor's best.
    pub isa: Isa,
    /// The number format between layers.
    pub activations: Activations,
    /// Sums the batch statistics over all who compute a batch together; `None`: each by its own batch.
    pub reducer: Option<Arc<dyn StatisticsReducer>>,
    /// Takes each parameter's gradient as soon as it is final; `None`: gradients stay with the tape.
    pub hook: Option<Arc<dyn GradientHook>>,
}

impl Computation {
    /// Convolution without bias, normalisation, `skip`, and ReLU if `relu`.
    ///
    /// # Shapes
    /// `[N, H, W, C_in]` to `[N, H_out, W_out, C_out]`, in the input's number format.
    ///
    /// # Panics
    /// For a convolution that these layers do not compute: with a bias, in groups, dilated, not square.
    ///
    /// # Collective
    /// With a reducer, in training: one sum in the forward and one in the backward pass.
    pub fn forward(&self, layer: (&Conv2d, &BatchNorm), input: Tensor<4>, skip: Skip, relu: bool) -> Tensor<4> {
        self.features(layer, input.into(), skip, relu).into_tensor()
    }

    /// As [`Computation::forward`], between layers.
    pub fn features(&self, layer: (&Conv2d, &BatchNorm), input: Features, skip: Skip, relu: bool) -> Features {
        self.linked(layer, input, skip, relu, NormLink::new(false))
    }

    /// As [`Computation::features`] with a ReLU and nothing added, for a layer with the norm `next` as the only reader: [`Computation::after`].
    pub fn hidden(&self, layer: (&Conv2d, &BatchNorm), input: Features, next: &BatchNorm) -> Hidden {
        let may_be_raw = self.kernels == Kernels::Fused && norm::takes_batch_statistics(next, &input.tensor);
        Hidden(self.linked(layer, input, Skip::None, true, NormLink::new(may_be_raw)))
    }

    /// As [`Computation::features`], of what a layer gave to this one alone: the norm is the `next` of [`Computation::hidden`].
    pub fn after(&self, layer: (&Conv2d, &BatchNorm), input: Hidden, skip: Skip, relu: bool) -> Features {
        self.features(layer, input.0, skip, relu)
    }

    fn linked(
        &self,
        (conv, norm): (&Conv2d, &BatchNorm),
        input: Features,
        skip: Skip,
        relu: bool,
        output: NormLink,
    ) -> Features {
        match self.kernels {
            Kernels::Stock => self.stock(conv, norm, input.tensor, skip, relu).into(),
            Kernels::Fused => self.fused(conv, norm, input, skip, relu, Arc::new(output)),
        }
    }

    /// Images in the number format of activations.
    pub fn activations(&self, images: Tensor<4>) -> Tensor<4> {
        match self.activations {
            Activations::F32 => images,
            Activations::Bf16 => images.cast(FloatDType::BF16),
            Activations::F16 => images.cast(FloatDType::F16),
        }
    }

    /// The mean over all pixels: `[N, H, W, C]` to `[N, C]` in f32.
    pub fn global_average(&self, features: Tensor<4>) -> Tensor<2> {
        match self.kernels {
            Kernels::Stock => stock::global_average(features),
            Kernels::Fused => global_average(features),
        }
    }

    /// `[N, C]` to `[N, K]`, by burn's own operations.
    pub fn linear(&self, linear: &Linear, features: Tensor<2>) -> Tensor<2> {
        stock::linear(linear, features, self.hook.as_ref())
    }

    fn stock(&self, conv: &Conv2d, norm: &BatchNorm, input: Tensor<4>, skip: Skip, relu: bool) -> Tensor<4> {
        let hook = self.hook.as_ref();
        let convolved = stock::conv(conv, padding(conv), input, hook);
        let normalised = batch_norm(norm, convolved, self.reducer.as_ref(), hook);
        let [.., channels] = normalised.dims();
        let sum = match skip {
            Skip::None => normalised,
            Skip::Identity(residual) => stock::add(normalised, residual.tensor),
            Skip::ShortcutA(Features { tensor, .. }) => {
                let zero_channels = (channels - tensor.dims()[3]) / 2;
                stock::add(normalised, stock::subsample_and_pad(tensor, zero_channels))
            }
        };
        if relu { stock::relu(sum) } else { sum }
    }

    fn fused(
        &self,
        conv: &Conv2d,
        norm: &BatchNorm,
        input: Features,
        skip: Skip,
        relu: bool,
        output: Arc<NormLink>,
    ) -> Features {
        let (residual, skipped) = skip.into_parts();
        let (skipped, residual_from) = skipped.map_or((None, None), |features| (Some(features.tensor), features.link));
        let mut options = FusedOptions {
            stride: conv.stride[0],
            padding: padding(conv),
            residual,
            relu,
            convolution: self.convolution,
            isa: self.isa,
            norm: norm::options(norm, self.reducer.as_ref()),
            hooked: self.hook.clone().map(|hook| HookedParameters {
                hook,
                weight: conv.weight.id,
                gamma: norm.gamma.id,
                beta: norm.beta.id,
            }),
            input: None,
            residual_from: None,
            output: None,
        };
        let (weight, input, link) = (conv.weight.val(), input.tensor, input.link);
        if norm::takes_batch_statistics(norm, &input) {
            (options.input, options.residual_from, options.output) = (link, residual_from, Some(Arc::clone(&output)));
            let batch = fused_train(input, weight, norm.gamma.val(), norm.beta.val(), skipped, options);
            return Features { tensor: norm::update_running(norm, batch), link: Some(output) };
        }
        let (scale, shift) = norm::folded(norm);
        fused_inference(input, weight, scale, shift, skipped, options).into()
    }
}

/// The padding of a convolution that these layers compute, the same on all sides.
///
/// # Panics
/// For one that they do not: what they left out would be wrong without a word.
fn padding(conv: &Conv2d) -> usize {
    let [height, width] = conv.kernel_size;
    let padding = match conv.padding {
        PaddingConfig2d::Explicit(top, left, bottom, right) if [left, bottom, right] == [top; 3] => Some(top),
        PaddingConfig2d::Same if conv.stride == [1, 1] && height % 2 == 1 => Some(height / 2),
        PaddingConfig2d::Valid => Some(0),
        _ => None,
    };
    let is_square = height == width && conv.stride[0] == conv.stride[1];
    let is_plain = conv.bias.is_none() && conv.groups == 1 && conv.dilation == [1, 1];
    padding.filter(|_| is_square && is_plain).unwrap_or_else(|| {
        panic!(
            "convolution of a layer: expected no bias, one group, dilation 1, and kernel, stride and padding equal in both \
             directions, got {}, {} groups, dilation {:?}, kernel {:?}, stride {:?}, padding {:?}; use burn's own \
             Conv2d::forward for it",
            if conv.bias.is_some() { "a bias" } else { "no bias" },
            conv.groups,
            conv.dilation,
            conv.kernel_size,
            conv.stride,
            conv.padding
        )
    })
}

#[cfg(test)]
mod tests {
    use burn::nn::BatchNormConfig;
    use burn::nn::conv::Conv2dConfig;
    use burn::tensor::Device;

    use super::*;

    fn why_refused(kernels: Kernels, conv: Conv2dConfig) -> String {
        let device = Device::flex();
        let computation = Computation { kernels, ..Computation::default() };
        let (conv, norm) = (conv.init(&device), BatchNormConfig::new(4).init(&device));
        let layer = || computation.forward((&conv, &norm), Tensor::ones([1, 6, 6, 4], &device), Skip::None, true);
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(layer)).err();
        panic.map_or(String::new(), |panic| *panic.downcast().expect("a text"))
    }

    #[test]
    fn a_layer_refuses_a_convolution_of_which_it_would_leave_something_out() {
        let plain = || Conv2dConfig::new([4, 4], [3, 3]).with_bias(false);
        for kernels in [Kernels::Fused, Kernels::Stock] {
            for (conv, named) in [
                (plain().with_bias(true), "got a bias"),
                (plain().with_groups(2), "2 groups"),
                (plain().with_dilation([2, 2]), "dilation [2, 2]"),
                (plain().with_stride([1, 2]), "stride [1, 2]"),
                (plain().with_padding(PaddingConfig2d::Explicit(1, 0, 1, 0)), "padding Explicit(1, 0, 1, 0)"),
            ] {
                let text = why_refused(kernels, conv);
                assert!(text.starts_with("convolution of a layer: expected ") && text.contains(named), "{text}");
            }
            assert_eq!(why_refused(kernels, plain().with_padding(PaddingConfig2d::Same)), "");
        }
    }

    #[test]
    fn padding_that_keeps_the_size_keeps_it() {
        let conv = Conv2dConfig::new([4, 4], [3, 3]).with_padding(PaddingConfig2d::Same).with_bias(false);
        assert_eq!(padding(&conv.init(&Device::flex())), 1);
    }
}
