//! The fused operations composed of burn's own.
//!
//! In and out: as the trait says. Invariant: burn convolves planes, so tensors pass through permuted views. Activations of
//! fewer bits than the weights are widened to compute, and the results rounded back.

use burn::backend::Backend;
use burn::backend::TensorMetadata;
use burn::backend::ops::ConvOptions;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, FloatDType, Shape, Slice};

use super::{FusedGradients, FusedOptions, FusedOutput, FusedSaved, Residual};
use crate::ops::ResNetOps;

pub(in crate::ops) fn forward<B: ResNetOps>(
    input: FloatTensor<B>,
    weight: FloatTensor<B>,
    gamma: FloatTensor<B>,
    beta: FloatTensor<B>,
    residual: FloatTensor<B>,
    options: FusedOptions,
) -> FusedOutput<B> {
    let stored = FloatDType::from(input.dtype());
    let (input, residual) = (widen::<B>(input), widen::<B>(residual));
    let convolved = convolve::<B>(input, weight, &options);
    let batch = <B as ResNetOps>::batch_norm_train(convolved.clone(), gamma, beta, options.norm.clone());
    FusedOutput {
        output: B::float_cast(end::<B>(batch.output, residual, &options), stored),
        convolved,
        mean: batch.mean,
        variance: batch.variance,
        num_values: batch.num_values,
    }
}

pub(in crate::ops) fn inference<B: ResNetOps>(
    input: FloatTensor<B>,
    weight: FloatTensor<B>,
    scale: FloatTensor<B>,
    shift: FloatTensor<B>,
    residual: FloatTensor<B>,
    options: &FusedOptions,
) -> FloatTensor<B> {
    let stored = FloatDType::from(input.dtype());
    let (input, residual) = (widen::<B>(input), widen::<B>(residual));
    let convolved = convolve::<B>(input, weight, options);
    let per_channel = |values: FloatTensor<B>| {
        let channels = values.shape().num_elements();
        B::float_reshape(values, Shape::new([1, 1, 1, channels]))
    };
    let scaled = B::float_add(B::float_mul(convolved, per_channel(scale)), per_channel(shift));
    B::float_cast(end::<B>(scaled, residual, options), stored)
}

pub(in crate::ops) fn backward<B: ResNetOps>(
    saved: FusedSaved<B>,
    output_gradient: FloatTensor<B>,
    options: FusedOptions,
) -> FusedGradients<B> {
    let stored = FloatDType::from(saved.input.dtype());
    let output_gradient = widen::<B>(output_gradient);
    let gated =
        if options.relu { B::relu_backward(widen::<B>(saved.output), output_gradient) } else { output_gradient };
    let residual = match options.residual {
        Residual::None => saved.beta,
        Residual::Identity => gated.clone(),
        Residual::ShortcutA => scatter::<B>(gated.clone(), saved.residual_shape),
    };
    let norm = <B as ResNetOps>::batch_norm_train_backward(
        saved.convolved,
        saved.gamma.clone(),
        saved.mean,
        saved.variance,
        gated,
        saved.num_values,
        options.norm.clone(),
    );
    let (input, dy) = (to_planes::<B>(widen::<B>(saved.input)), to_planes::<B>(norm.input));
    let weight = B::conv2d_weight_backward(input.clone(), saved.weight.clone(), dy.clone(), conv_options(&options));
    let input = if saved.needs_input {
        let gradient = from_planes::<B>(B::conv2d_x_backward(input, saved.weight, dy, conv_options(&options)));
        if saved.has_addend { B::float_add(gradient, widen::<B>(saved.addend)) } else { gradient }
    } else {
        saved.gamma
    };
    let [input, residual] = [input, residual].map(|gradient| B::float_cast(gradient, stored));
    FusedGradients { input, weight, gamma: norm.gamma, beta: norm.beta, residual }
}

fn convolve<B: Backend>(input: FloatTensor<B>, weight: FloatTensor<B>, options: &FusedOptions) -> FloatTensor<B> {
    from_planes::<B>(B::conv2d(to_planes::<B>(input), weight, None, conv_options(options)))
}

/// What is narrower than f32 as f32.
fn widen<B: Backend>(tensor: FloatTensor<B>) -> FloatTensor<B> {
    match tensor.dtype() {
        DType::BF16 | DType::F16 => B::float_cast(tensor, FloatDType::F32),
        _ => tensor,
    }
}

fn conv_options(options: &FusedOptions) -> ConvOptions<2> {
    ConvOptions::new([options.stride; 2], [options.padding; 2], [1, 1], 1)
}

/// Adds the residual and applies the ReLU.
fn end<B: Backend>(normalised: FloatTensor<B>, residual: FloatTensor<B>, options: &FusedOptions) -> FloatTensor<B> {
    let sum = match options.residual {
        Residual::None => normalised,
        Residual::Identity => B::float_add(normalised, residual),
        Residual::ShortcutA => {
            let kept = B::float_slice(residual, &every_second());
            let [.., channels_in] = kept.shape().dims::<4>();
            let slices = own_channels(&normalised.shape().dims(), channels_in);
            let own = B::float_add(B::float_slice(normalised.clone(), &slices), kept);
            B::float_slice_assign(normalised, &slices, own)
        }
    };
    if options.relu { B::relu(sum) } else { sum }
}

/// The gradient of shortcut A: its channels' gradients at every second pixel, zero elsewhere.
fn scatter<B: Backend>(gradient: FloatTensor<B>, shape: [usize; 4]) -> FloatTensor<B> {
    let own = B::float_slice(gradient.clone(), &own_channels(&gradient.shape().dims(), shape[3]));
    let zeros = B::float_zeros(Shape::new(shape), &gradient.device(), gradient.dtype().into());
    B::float_slice_assign(zeros, &every_second(), own)
}

fn every_second() -> [Slice; 4] {
    let step = Slice::new(0, None, 2);
    [Slice::full(), step, step, Slice::full()]
}

fn own_channels(shape: &[usize; 4], channels_in: usize) -> [Slice; 4] {
    let start = ((shape[3] - channels_in) / 2) as isize;
    let own = Slice::new(start, Some(start + channels_in as isize), 1);
    [Slice::full(), Slice::full(), Slice::full(), own]
}

fn to_planes<B: Backend>(channels_last: FloatTensor<B>) -> FloatTensor<B> {
    B::float_permute(channels_last, &[0, 3, 1, 2])
}

fn from_planes<B: Backend>(planes: FloatTensor<B>) -> FloatTensor<B> {
    B::float_permute(planes, &[0, 2, 3, 1])
}
