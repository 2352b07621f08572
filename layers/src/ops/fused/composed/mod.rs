//! The fused operations composed of burn's own.
//!
//! In and out: as the trait says. Invariant: activations of 16 bits are convolved as they are ([`Convolution`]); all else is
//! computed in f32, and rounded where it is stored.

use burn::backend::Backend;
use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{FloatDType, Shape, Slice};
use kernels::batch_norm::Rectifier;

use super::convolution::Convolution;
use super::{FusedGradients, FusedOptions, FusedOutput, FusedSaved, Residual};
use crate::ops::composed::{behind, rectified, round, widen};
use crate::ops::{BatchNormSaved, LayerOps};

pub(in crate::ops) fn forward<B: LayerOps>(
    input: FloatTensor<B>,
    weight: FloatTensor<B>,
    gamma: FloatTensor<B>,
    beta: FloatTensor<B>,
    residual: FloatTensor<B>,
    options: FusedOptions,
) -> FusedOutput<B> {
    let convolution = Convolution::of::<B>(&input, &options);
    let convolved = convolution.forward::<B>(input, weight);
    let batch = <B as LayerOps>::batch_norm_train(widen::<B>(convolved.clone()), gamma, beta, options.norm.clone());
    let output = end::<B>(batch.output, widen::<B>(residual), &options);
    FusedOutput {
        output: round::<B>(output, convolution.stored),
        convolved,
        mean: batch.mean,
        variance: batch.variance,
        num_values: batch.num_values,
    }
}

pub(in crate::ops) fn inference<B: LayerOps>(
    input: FloatTensor<B>,
    weight: FloatTensor<B>,
    scale: FloatTensor<B>,
    shift: FloatTensor<B>,
    residual: FloatTensor<B>,
    options: &FusedOptions,
) -> FloatTensor<B> {
    let convolution = Convolution::of::<B>(&input, options);
    let convolved = widen::<B>(convolution.forward::<B>(input, weight));
    let per_channel = |values: FloatTensor<B>| {
        let channels = values.shape().num_elements();
        B::float_reshape(values, Shape::new([1, 1, 1, channels]))
    };
    let scaled = B::float_add(B::float_mul(convolved, per_channel(scale)), per_channel(shift));
    round::<B>(end::<B>(scaled, widen::<B>(residual), options), convolution.stored)
}

pub(in crate::ops) fn backward<B: LayerOps>(
    saved: FusedSaved<B>,
    output_gradient: FloatTensor<B>,
    options: FusedOptions,
) -> FusedGradients<B> {
    let convolution = Convolution::of::<B>(&saved.input, &options);
    let dy = widen::<B>(output_gradient);
    let gated = match options.rectifier {
        Rectifier::None => dy,
        rectifier => behind::<B>(rectifier, widen::<B>(saved.output), dy),
    };
    let residual = match options.residual {
        Residual::None => saved.beta.clone(),
        Residual::Identity => gated.clone(),
        Residual::ShortcutA => scatter::<B>(gated.clone(), saved.residual_shape),
    };
    let of_norm = BatchNormSaved {
        input: widen::<B>(saved.convolved),
        gamma: saved.gamma.clone(),
        beta: saved.beta,
        mean: saved.mean,
        variance: saved.variance,
        num_values: saved.num_values,
    };
    let norm = <B as LayerOps>::batch_norm_train_backward(of_norm, gated, options.norm.clone());
    let (input, weight) = convolution.gradients::<B>(saved.input, saved.weight, norm.input, saved.needs_input);
    let input = match input {
        Some(input) if saved.has_addend => B::float_add(widen::<B>(input), widen::<B>(saved.addend)),
        Some(input) => input,
        None => saved.gamma,
    };
    let [input, residual] = [input, residual].map(|gradient| round::<B>(gradient, convolution.stored));
    FusedGradients { input, weight, gamma: norm.gamma, beta: norm.beta, residual }
}

/// Adds the residual and rectifies.
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
    rectified::<B>(options.rectifier, sum)
}

/// The gradient of shortcut A: its channels' gradients at every second pixel, zero elsewhere.
fn scatter<B: Backend>(gradient: FloatTensor<B>, shape: [usize; 4]) -> FloatTensor<B> {
    let own = B::float_slice(gradient.clone(), &own_channels(&gradient.shape().dims(), shape[3]));
    let zeros = B::float_zeros(Shape::new(shape), &gradient.device(), FloatDType::from(gradient.dtype()));
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

#[cfg(all(test, feature = "flex"))]
mod tests;
