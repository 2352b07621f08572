//! The fused operations composed of burn's own.
//!
//! In and out: as the trait says. Invariant: activations of 16 bits are convolved as they are ([`Convolution`]); all else is
//! computed in f32, and rounded where it is stored. Order: views of tensors first, then arithmetic without a change of dimensions, so that
//! burn fuses it; a tensor of 16 bits is widened where it is used.

use burn::backend::Backend;
use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{FloatDType, Shape, Slice};

use super::convolution::Convolution;
use super::{FusedGradients, FusedOptions, FusedOutput, FusedSaved, Residual};
use crate::ops::composed::{ended, gradients, normalised, rectified, round, widen};
use crate::ops::tables::{Tables, as_row, as_vector};
use crate::ops::{BatchNormSaved, LayerOps, NormEnd};

pub(in crate::ops) fn forward<B: LayerOps>(
    input: FloatTensor<B>,
    weight: FloatTensor<B>,
    gamma: FloatTensor<B>,
    beta: FloatTensor<B>,
    residual: FloatTensor<B>,
    options: FusedOptions,
) -> FusedOutput<B> {
    let convolution = Convolution::of::<B>(&input, &weight, &options);
    let convolved = convolution.forward::<B>(input, weight);
    let shape = convolved.shape();
    let tables = Tables::of(&shape);
    let residual = residual_table::<B>(tables, residual, &shape, &options);
    let saved = normalised::<B>(
        tables.view::<B>(convolved.clone()),
        [gamma, beta],
        &options.norm,
    );
    let output = ended::<B>(&saved, residual, end(&options));
    FusedOutput {
        output: B::float_reshape(output, shape),
        convolved,
        mean: as_vector::<B>(saved.mean),
        variance: as_vector::<B>(saved.variance),
        num_values: saved.num_values,
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
    let convolution = Convolution::of::<B>(&input, &weight, options);
    let convolved = convolution.forward::<B>(input, weight);
    let shape = convolved.shape();
    let tables = Tables::of(&shape);
    let residual = residual_table::<B>(tables, residual, &shape, options);
    let [scale, shift] = [scale, shift].map(as_row::<B>);
    let table = widen::<B>(tables.view::<B>(convolved));
    let scaled = B::float_add(B::float_mul(table, scale), shift);
    let sum = match options.residual {
        Residual::None => scaled,
        Residual::Identity | Residual::ShortcutA => B::float_add(scaled, widen::<B>(residual)),
    };
    let output = round::<B>(rectified::<B>(options.rectifier, sum), convolution.stored);
    B::float_reshape(output, shape)
}

pub(in crate::ops) fn backward<B: LayerOps>(
    saved: FusedSaved<B>,
    output_gradient: FloatTensor<B>,
    options: FusedOptions,
) -> FusedGradients<B> {
    let convolution = Convolution::of::<B>(&saved.input, &saved.weight, &options);
    let shape = saved.convolved.shape();
    let tables = Tables::of(&shape);
    let [dy, output, table] =
        [output_gradient, saved.output, saved.convolved].map(|tensor| tables.view::<B>(tensor));
    let norm = BatchNormSaved {
        input: table,
        gamma: saved.gamma.clone(),
        beta: saved.beta.clone(),
        mean: saved.mean,
        variance: saved.variance,
        num_values: saved.num_values,
    };
    let (norm, gated) = gradients::<B>(norm, output, dy, end(&options), &options.norm);
    let d_convolved = B::float_reshape(norm.input, shape.clone());
    let (input, weight) =
        convolution.gradients::<B>(saved.input, saved.weight, d_convolved, saved.needs_input);
    let input = match input {
        Some(input) if saved.has_addend => {
            B::float_add(widen::<B>(input), widen::<B>(saved.addend))
        }
        Some(input) => input,
        None => saved.gamma,
    };
    let residual = match options.residual {
        Residual::None => saved.beta,
        Residual::Identity => B::float_reshape(gated, shape),
        Residual::ShortcutA => scatter::<B>(B::float_reshape(gated, shape), saved.residual_shape),
    };
    let [input, residual] =
        [input, residual].map(|gradient| round::<B>(gradient, convolution.stored));
    let [gamma, beta] = [norm.gamma, norm.beta].map(as_vector::<B>);
    FusedGradients {
        input,
        weight,
        gamma,
        beta,
        residual,
    }
}

/// What is added, in its stored type; any tensor where nothing is.
fn residual_table<B: Backend>(
    tables: Tables,
    residual: FloatTensor<B>,
    shape: &Shape,
    options: &FusedOptions,
) -> FloatTensor<B> {
    match options.residual {
        Residual::None => residual,
        Residual::Identity => tables.view::<B>(residual),
        Residual::ShortcutA => {
            let kept = B::float_slice(residual, &every_second());
            let [.., channels_in] = kept.shape().dims::<4>();
            let zeros = B::float_zeros(
                shape.clone(),
                &kept.device(),
                FloatDType::from(kept.dtype()),
            );
            tables.view::<B>(B::float_slice_assign(
                zeros,
                &own_channels(&shape.dims(), channels_in),
                kept,
            ))
        }
    }
}

fn end(options: &FusedOptions) -> NormEnd {
    NormEnd {
        epsilon: options.norm.epsilon,
        has_residual: options.residual != Residual::None,
        rectifier: options.rectifier,
    }
}

/// The gradient of shortcut A: its channels' gradients at every second pixel, zero elsewhere.
fn scatter<B: Backend>(gradient: FloatTensor<B>, shape: [usize; 4]) -> FloatTensor<B> {
    let own = B::float_slice(
        gradient.clone(),
        &own_channels(&gradient.shape().dims(), shape[3]),
    );
    let zeros = B::float_zeros(
        Shape::new(shape),
        &gradient.device(),
        FloatDType::from(gradient.dtype()),
    );
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
