//! A layer composed of burn's operations.
//!
//! In and out: as the trait says.
//! Invariant: activations of 16 bits are convolved in 16 bits ([`BurnConvolution`]). All other
//! arithmetic is in f32, and rounded where it is stored.
//! Order: views of tensors first, then arithmetic without a change of dimensions, so that burn
//! fuses it; a tensor of 16 bits is widened where it is used.

use burn::backend::Backend;
use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{FloatDType, Shape, Slice};

use super::convolution::BurnConvolution;
use super::{LayerGradients, LayerOptions, LayerOutput, LayerSaved, ResidualKind};
use crate::ops::composed::{ended, gradients, normalised, rectified, round, widen};
use crate::ops::tables::{Tables, as_row, as_vector};
use crate::ops::{LayerOps, NormEnd, NormTable};
use kernels::batch_norm::Rectifier;

pub(in crate::ops) fn forward<B: LayerOps>(
    input: FloatTensor<B>,
    weight: FloatTensor<B>,
    gamma: FloatTensor<B>,
    beta: FloatTensor<B>,
    residual: FloatTensor<B>,
    options: LayerOptions,
) -> LayerOutput<B> {
    let convolved = match options.convolution {
        Some(convolution) => BurnConvolution::of::<B>(&input, &weight, convolution)
            .forward::<B>(input.clone(), weight),
        None => input.clone(),
    };
    let shape = convolved.shape();
    let tables = Tables::of(&shape);
    let residual = residual_table::<B>(tables, residual, &shape, &options);
    let table = tables.view::<B>(convolved.clone());
    let saved = normalised::<B>(table, [gamma, beta], options.reducer.as_deref());
    let output = ended::<B>(&saved, residual, end(&options));
    let output = B::float_reshape(output, shape);
    LayerOutput {
        // The gradient reads the output only for the gate of a rectifier.
        kept_output: match options.rectifier {
            Rectifier::None => convolved.clone(),
            _ => output.clone(),
        },
        output,
        kept_input: input,
        kept_convolved: convolved,
        mean: as_vector::<B>(saved.mean),
        variance: as_vector::<B>(saved.variance),
        num_values: saved.num_values,
    }
}

/// # Panics
/// Without a convolution.
pub(in crate::ops) fn inference<B: LayerOps>(
    input: FloatTensor<B>,
    weight: FloatTensor<B>,
    scale: FloatTensor<B>,
    shift: FloatTensor<B>,
    residual: FloatTensor<B>,
    options: &LayerOptions,
) -> FloatTensor<B> {
    let convolution = options
        .convolution
        .expect("a layer outside training has a convolution");
    let convolution = BurnConvolution::of::<B>(&input, &weight, convolution);
    let convolved = convolution.forward::<B>(input, weight);
    let shape = convolved.shape();
    let tables = Tables::of(&shape);
    let residual = residual_table::<B>(tables, residual, &shape, options);
    let [scale, shift] = [scale, shift].map(as_row::<B>);
    let table = widen::<B>(tables.view::<B>(convolved));
    let scaled = B::float_add(B::float_mul(table, scale), shift);
    let sum = match options.residual {
        ResidualKind::None => scaled,
        _ => B::float_add(scaled, widen::<B>(residual)),
    };
    let output = round::<B>(rectified::<B>(options.rectifier, sum), convolution.stored);
    B::float_reshape(output, shape)
}

pub(in crate::ops) fn backward<B: LayerOps>(
    saved: LayerSaved<B>,
    output_gradient: FloatTensor<B>,
    options: LayerOptions,
) -> LayerGradients<B> {
    let shape = saved.convolved.shape();
    let stored = FloatDType::from(saved.convolved.dtype());
    let tables = Tables::of(&shape);
    let [dy, output, table] =
        [output_gradient, saved.output, saved.convolved].map(|tensor| tables.view::<B>(tensor));
    let norm = NormTable {
        input: table,
        gamma: saved.gamma.clone(),
        beta: saved.beta.clone(),
        mean: saved.mean,
        variance: saved.variance,
        num_values: saved.num_values,
    };
    let norm = gradients::<B>(norm, output, dy, end(&options), options.reducer.as_deref());
    let d_convolved = B::float_reshape(norm.input, shape.clone());
    let (input, weight) = match options.convolution {
        Some(convolution) => BurnConvolution::of::<B>(&saved.input, &saved.weight, convolution)
            .gradients::<B>(saved.input, saved.weight, d_convolved, saved.needs_input),
        None => (Some(d_convolved), saved.weight),
    };
    let input = match input {
        Some(input) if saved.has_addend => {
            B::float_add(widen::<B>(input), widen::<B>(saved.addend))
        }
        Some(input) => input,
        None => saved.gamma,
    };
    let residual = match options.residual {
        ResidualKind::None => saved.beta,
        ResidualKind::Identity => B::float_reshape(norm.gated, shape),
        ResidualKind::ShortcutA => {
            scatter::<B>(B::float_reshape(norm.gated, shape), saved.residual_shape)
        }
    };
    let [input, residual] = [input, residual].map(|gradient| round::<B>(gradient, stored));
    let [gamma, beta] = [norm.gamma, norm.beta].map(as_vector::<B>);
    LayerGradients {
        input,
        weight,
        gamma,
        beta,
        residual,
    }
}

/// Returns the residual as a table in its stored type; any tensor if there is none.
fn residual_table<B: Backend>(
    tables: Tables,
    residual: FloatTensor<B>,
    shape: &Shape,
    options: &LayerOptions,
) -> FloatTensor<B> {
    match options.residual {
        ResidualKind::None => residual,
        ResidualKind::Identity => tables.view::<B>(residual),
        ResidualKind::ShortcutA => {
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

fn end(options: &LayerOptions) -> NormEnd {
    NormEnd {
        epsilon: options.epsilon,
        has_residual: options.residual != ResidualKind::None,
        rectifier: options.rectifier,
    }
}

/// Returns the gradient of shortcut A: its channels' gradients at every second pixel, else zero.
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
