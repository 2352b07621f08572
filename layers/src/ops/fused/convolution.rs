//! Convolutions and their gradients in the activations' number format: on burn's GPU backend some by kernels of ours, else by burn's
//! operations.
//!
//! In and out: `[N, H, W, C]`. Invariant: operands and result are of the activations' type, weights rounded to it; products are
//! summed in f32. burn convolves planes, so tensors pass through permuted views.
//! Source: Micikevicius et al. 2018, arXiv 1710.03740, section 3.3, which is what tensor cores do.

use burn::backend::Backend;
use burn::backend::ops::ConvOptions;
use burn::backend::tensor::FloatTensor;
use burn::backend::{DTypeUsage, TensorMetadata};
use burn::tensor::FloatDType;

use super::FusedOptions;
use crate::ops::LayerOps;
use crate::ops::composed::{round, widen};

/// How a layer's convolution is computed.
#[derive(Clone, Debug)]
pub(super) struct Convolution {
    /// The type of the activations.
    pub(super) stored: FloatDType,
    /// The type that burn is given, after rounding to `stored`.
    pub(super) computed: FloatDType,
    pub(super) options: ConvOptions<2>,
}

impl Convolution {
    /// Computes in the type of `input` where the device has tensor cores for it. Elsewhere in f32, with operands and results
    /// rounded: Flex's own convolution in f16 would sum in f16, and its own in bf16 does just this.
    /// In as many groups as a weight's second axis says.
    pub(super) fn of<B: Backend>(
        input: &FloatTensor<B>,
        weight: &FloatTensor<B>,
        options: &FusedOptions,
    ) -> Self {
        let is_accelerated =
            B::dtype_usage(&input.device(), input.dtype()).contains(DTypeUsage::Accelerated);
        let stored = FloatDType::from(input.dtype());
        let is_half = matches!(stored, FloatDType::F16 | FloatDType::BF16);
        let computed = if is_half && !is_accelerated {
            FloatDType::F32
        } else {
            stored
        };
        let ([.., channels], [_, of_group, ..]) =
            (input.shape().dims::<4>(), weight.shape().dims::<4>());
        let (stride, padding) = ([options.stride; 2], [options.padding; 2]);
        Self {
            stored,
            computed,
            options: ConvOptions::new(stride, padding, [1, 1], channels / of_group),
        }
    }

    /// Of the stored type.
    pub(super) fn forward<B: LayerOps>(
        &self,
        input: FloatTensor<B>,
        weight: FloatTensor<B>,
    ) -> FloatTensor<B> {
        let [input, weight] = [input, weight].map(|tensor| self.operand::<B>(tensor));
        round::<B>(
            B::convolution(input, weight, self.options.clone()),
            self.stored,
        )
    }

    /// The gradients of the input, if it is needed, in the computed type, and of the weight in f32.
    pub(super) fn gradients<B: LayerOps>(
        &self,
        input: FloatTensor<B>,
        weight: FloatTensor<B>,
        output_gradient: FloatTensor<B>,
        needs_input: bool,
    ) -> (Option<FloatTensor<B>>, FloatTensor<B>) {
        let [input, weight, dy] =
            [input, weight, output_gradient].map(|tensor| self.operand::<B>(tensor));
        let d_weight = B::weight_gradient(
            input.clone(),
            weight.clone(),
            dy.clone(),
            self.options.clone(),
        );
        let d_input =
            needs_input.then(|| B::input_gradient(input, weight, dy, self.options.clone()));
        (d_input, d_weight)
    }

    fn operand<B: Backend>(&self, tensor: FloatTensor<B>) -> FloatTensor<B> {
        round::<B>(round::<B>(tensor, self.stored), self.computed)
    }
}

/// [`LayerOps::convolution`] by burn's operations.
pub(in crate::ops) fn convolution_by_burn<B: Backend>(
    input: FloatTensor<B>,
    weight: FloatTensor<B>,
    options: ConvOptions<2>,
) -> FloatTensor<B> {
    from_planes::<B>(B::conv2d(to_planes::<B>(input), weight, None, options))
}

/// [`LayerOps::input_gradient`] by burn's operations.
pub(in crate::ops) fn input_gradient_by_burn<B: Backend>(
    input: FloatTensor<B>,
    weight: FloatTensor<B>,
    dy: FloatTensor<B>,
    options: ConvOptions<2>,
) -> FloatTensor<B> {
    from_planes::<B>(B::conv2d_x_backward(
        to_planes::<B>(input),
        weight,
        to_planes::<B>(dy),
        options,
    ))
}

/// [`LayerOps::weight_gradient`] by burn's operations.
pub(in crate::ops) fn weight_gradient_by_burn<B: Backend>(
    input: FloatTensor<B>,
    weight: FloatTensor<B>,
    dy: FloatTensor<B>,
    options: ConvOptions<2>,
) -> FloatTensor<B> {
    widen::<B>(B::conv2d_weight_backward(
        to_planes::<B>(input),
        weight,
        to_planes::<B>(dy),
        options,
    ))
}

fn to_planes<B: Backend>(channels_last: FloatTensor<B>) -> FloatTensor<B> {
    B::float_permute(channels_last, &[0, 3, 1, 2])
}

fn from_planes<B: Backend>(planes: FloatTensor<B>) -> FloatTensor<B> {
    B::float_permute(planes, &[0, 2, 3, 1])
}
