//! Convolutions and their gradients in the activations' number format: some by Lockstep's kernels
//! on burn's GPU backend, the others by burn's operations.
//!
//! In and out: `[N, H, W, C]`.
//! Invariant: operands and result are of the activations' type, weights rounded to it; products are
//! summed in f32. burn convolves planes, so tensors pass through permuted views.
//! Source: Micikevicius et al. 2018, arXiv 1710.03740, section 3.3, which is what tensor cores do.

use burn::backend::Backend;
use burn::backend::ops::ConvOptions;
use burn::backend::tensor::FloatTensor;
use burn::backend::{DTypeUsage, TensorMetadata};
use burn::tensor::FloatDType;

use crate::ops::ConvolutionOptions;
use crate::ops::LayerOps;
use crate::ops::composed::{round, widen};

/// Number formats of a layer's convolution by burn.
#[derive(Clone, Debug)]
pub(super) struct BurnConvolution {
    /// Type of the activations.
    pub(super) stored: FloatDType,
    /// Type of burn's operands, after rounding to `stored`.
    pub(super) computed: FloatDType,
    pub(super) options: ConvOptions<2>,
}

impl BurnConvolution {
    /// Returns the type of `input` if the device has tensor cores for that type. Otherwise it
    /// returns f32 with rounded operands and results, because Flex's own convolution sums in 16
    /// bits. The second axis of the weight gives the number of groups.
    pub(super) fn of<B: Backend>(
        input: &FloatTensor<B>,
        weight: &FloatTensor<B>,
        options: ConvolutionOptions,
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
        let [.., channels] = input.shape().dims::<4>();
        let [_, of_group, ..] = weight.shape().dims::<4>();
        let stride = [options.stride; 2];
        Self {
            stored,
            computed,
            options: ConvOptions::new(stride, options.padding, [1, 1], channels / of_group),
        }
    }

    /// Returns the output in the stored type.
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

    /// Returns the gradients of the input, if it is needed, in the computed type, and of the weight
    /// in f32.
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

/// Computes [`LayerOps::convolution`] by burn's operations.
pub(in crate::ops) fn convolution_by_burn<B: Backend>(
    input: FloatTensor<B>,
    weight: FloatTensor<B>,
    options: ConvOptions<2>,
) -> FloatTensor<B> {
    from_planes::<B>(B::conv2d(to_planes::<B>(input), weight, None, options))
}

/// Computes [`LayerOps::input_gradient`] by burn's operations.
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

/// Computes [`LayerOps::weight_gradient`] by burn's operations.
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
