//! Batch normalisation in training on Flex, of activations that lie channels-last, by our own kernels.
//!
//! In: contiguous `[N, H, W, C]` of f32 or bf16. Out: the same. Invariant: bit-equal for any number of threads.

use burn::backend::flex::FlexTensor;
use burn::backend::{Flex, TensorMetadata};
use kernels::batch_norm::{self, Affine, Gate, Residual, ResidualGradient, Saved};

use super::clock::{Kernel, time};
use super::flex::{inverse_stds, to_f32};
use super::fused::{LinkedNorm, Statistics};
use super::memory::{ARENA, Activation, activation, contiguous, floats, tensor, with_scratch};
use super::statistics::{GradientSums, Moments};
use super::{BatchNormGradients, BatchNormOptions, BatchNormOutput, BatchNormSaved};

pub(super) fn forward<E: Activation>(
    input: FlexTensor,
    gamma: FlexTensor,
    beta: FlexTensor,
    options: &BatchNormOptions,
) -> BatchNormOutput<Flex> {
    let (isa, shape) = (options.isa, input.shape());
    let (input, gamma, beta) = (E::activations(input), contiguous(gamma), contiguous(beta));
    let (x, channels) = (E::values(&input), floats(&gamma).len());
    let rows = x.len() / channels;
    let mut moments = vec![0.0; 2 * channels];
    with_scratch(|scratch| {
        let workspace = scratch
            .workspace
            .floats(batch_norm::moments_workspace_len(rows, channels));
        time(Kernel::NormStatistics, None, || {
            batch_norm::moments(isa, x, &mut moments, workspace)
        });
    });
    let moments = Moments::of_sums(rows as f64, moments).reduce(options.reducer.as_deref());
    let (mean, variance) = (to_f32(&moments.mean), to_f32(&moments.variance()));
    let invstd = inverse_stds(&variance, options.epsilon);
    let statistics = Statistics {
        mean: mean.clone(),
        invstd,
        gamma,
        beta,
    };
    let is_raw = options.output.as_ref().is_some_and(|link| link.may_be_raw);
    let normalised = (!is_raw).then(|| {
        let mut output = ARENA.take::<E>(x.len());
        time(Kernel::Normalisation, None, || {
            batch_norm::normalize(
                isa,
                &statistics.affine(),
                x,
                Residual::None,
                options.rectifier,
                &mut output,
            );
        });
        activation(output, shape)
    });
    if let Some(link) = &options.output {
        // Made for this one pass.
        let _ = link.norm.set(LinkedNorm::held(
            input.clone(),
            statistics,
            options.rectifier,
        ));
    }
    BatchNormOutput {
        output: normalised.unwrap_or(input),
        mean: tensor(mean, [channels]),
        variance: tensor(variance, [channels]),
        num_values: moments.count,
    }
}

pub(super) fn backward<E: Activation>(
    saved: BatchNormSaved<Flex>,
    output_gradient: FlexTensor,
    options: &BatchNormOptions,
) -> BatchNormGradients<Flex> {
    let (isa, shape) = (options.isa, saved.input.shape());
    let [input, dy] = [saved.input, output_gradient].map(E::activations);
    let [gamma, beta, mean, variance] =
        [saved.gamma, saved.beta, saved.mean, saved.variance].map(contiguous);
    let (x, gradient) = (E::values(&input), &dy);
    let dy = E::values(gradient);
    let channels = floats(&gamma).len();
    let invstd = inverse_stds(floats(&variance), options.epsilon);
    let affine = Affine {
        mean: floats(&mean),
        invstd: &invstd,
        gamma: floats(&gamma),
        beta: floats(&beta),
    };
    let norm = Saved {
        affine,
        x,
        gate: Gate::of(options.rectifier, false, x),
    };
    let left = options
        .output
        .as_deref()
        .and_then(|link| link.take_sums(gradient));
    let local = left.unwrap_or_else(|| {
        let mut sums = vec![0.0; 2 * channels];
        with_scratch(|scratch| {
            let workspace = scratch
                .workspace
                .doubles(batch_norm::workspace_len(x.len() / channels, channels));
            time(Kernel::NormSums, None, || {
                batch_norm::backward_sums(isa, &norm, dy, &mut sums, workspace)
            });
        });
        GradientSums::of(sums)
    });
    let all = local.reduce(options.reducer.as_deref());
    let sums = [all.plain.as_slice(), &all.with_normalised].concat();
    let mut d_input = ARENA.take::<E>(x.len());
    time(Kernel::NormGradient, None, || {
        batch_norm::backward(
            isa,
            &norm,
            &sums,
            saved.num_values,
            dy,
            &mut d_input,
            ResidualGradient::None,
        );
    });
    BatchNormGradients {
        input: activation(d_input, shape),
        gamma: tensor(to_f32(&local.with_normalised), [channels]),
        beta: tensor(to_f32(&local.plain), [channels]),
    }
}
