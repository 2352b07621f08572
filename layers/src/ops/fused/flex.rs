//! A layer on Flex by Lockstep's kernels.
//!
//! In and out: contiguous channels-last activations of f32 or bf16, the rest f32; other layouts are
//! copied once.
//! Invariant: bit-equal for any number of threads.

use burn::backend::flex::FlexTensor;
use burn::backend::{Flex, TensorMetadata};
use kernels::Storage;
use kernels::arena::Buffer;
use kernels::batch_norm::{self, Affine, Gate, Residual, ResidualGradient, Saved};
use kernels::conv2d::{Conv2dShape, Epilogue};
use kernels::layer::{Backward, Gradients};

use super::call::{self, Before, LayerCall, shortcut_a};
use super::linked::{
    LinkedNorm, Read, Statistics, before, kept_input, leaves_raw, norm_of, normalised, reads_raw,
};
use super::{LayerGradients, LayerOptions, LayerOutput, LayerSaved, ResidualKind};
use crate::ops::ConvolutionOptions;
use crate::ops::clock::{Kernel, time};
use crate::ops::memory::{
    ARENA, Activation, activation, contiguous, floats, inverse_stds, only_shape, tensor, to_f32,
    with_scratch,
};
use crate::ops::statistics::{GradientSums, Moments};

/// Returns the options of a layer that shares nothing with the layers before and after it.
pub(in crate::ops) fn unlinked(options: LayerOptions) -> LayerOptions {
    LayerOptions {
        input: None,
        residual_from: None,
        output: None,
        ..options
    }
}

/// Returns whether the gate of the rectifier is read from the output.
pub(in crate::ops) fn is_gated_by_output(options: &LayerOptions) -> bool {
    call::is_gated_by_output(options.rectifier, options.residual)
}

pub(in crate::ops) fn forward<E: Activation>(
    input: FlexTensor,
    weight: FlexTensor,
    gamma: FlexTensor,
    beta: FlexTensor,
    residual: FlexTensor,
    options: &LayerOptions,
) -> LayerOutput<Flex> {
    let gamma = contiguous(gamma);
    let channels = floats(&gamma).len();
    let call = call::<E>(&input, &weight, options);
    let weight = contiguous(weight);
    let mut moments = vec![0.0; 2 * channels];
    let convolved = match &call {
        Some(call) => {
            let read = Read::given::<E>(&input, options);
            let convolved = convolve::<E>(call, &read, &weight, &mut moments);
            activation(convolved, output_shape(&call.shape))
        }
        None => E::activations(input.clone()),
    };
    let x = E::values(&convolved);
    let rows = x.len() / channels;
    if call.is_none() {
        with_scratch(|scratch| {
            let len = batch_norm::moments_workspace_len(rows, channels);
            let workspace = scratch.workspace.floats(len);
            time(Kernel::NormStatistics, None, || {
                batch_norm::moments(options.isa, x, &mut moments, workspace)
            });
        });
    }
    let moments = Moments::of_sums(rows as f64, moments).reduce(options.reducer.as_deref());
    let mean = to_f32(&moments.mean);
    let variance = to_f32(&moments.variance());
    let statistics = Statistics {
        mean: mean.clone(),
        invstd: inverse_stds(&variance, options.epsilon),
        gamma,
        beta: contiguous(beta),
    };
    let output = if leaves_raw(options) {
        convolved.clone()
    } else {
        with_residual::<E, _>(&residual, options, channels, |residual| {
            let rectifier = options.rectifier;
            normalised(
                options.isa,
                rectifier,
                call.as_ref(),
                &statistics,
                &convolved,
                residual,
            )
        })
    };
    if let Some(link) = &options.output {
        // The link belongs to this pass and is set once.
        let _ = link.norm.set(LinkedNorm::of_layer(
            call,
            options,
            [&input, &weight, &residual, &convolved],
            statistics,
        ));
    }
    let own = options.output.as_deref().and_then(norm_of);
    let makes_output_again = own.is_some_and(LinkedNorm::makes_output_again);
    let makes_convolved_again = own.is_some_and(LinkedNorm::makes_convolved_again);
    LayerOutput {
        kept_input: kept_input(&input, options),
        kept_output: if is_gated_by_output(options) && !makes_output_again {
            output.clone()
        } else {
            only_shape(&output)
        },
        kept_convolved: if makes_convolved_again {
            only_shape(&convolved)
        } else {
            convolved
        },
        output,
        mean: tensor(mean, [channels]),
        variance: tensor(variance, [channels]),
        num_values: moments.count,
    }
}

/// # Panics
/// Without a convolution.
pub(in crate::ops) fn inference<E: Activation>(
    input: FlexTensor,
    weight: FlexTensor,
    scale: FlexTensor,
    shift: FlexTensor,
    residual: FlexTensor,
    options: &LayerOptions,
) -> FlexTensor {
    let call = call::<E>(&input, &weight, options);
    let call = call.expect("a layer outside training has a convolution");
    let layer = call.plan();
    let conv = layer.conv();
    let input = E::activations(input);
    let weight = contiguous(weight);
    let mut convolved = ARENA.take::<E>(conv.shape().output_len());
    with_scratch(|scratch| {
        let packed = scratch.packed.floats(conv.packed_forward_len());
        time(Kernel::PackForward, Some(&call), || {
            conv.pack_forward(floats(&weight), packed)
        });
        let workspace = scratch.workspace.floats(conv.forward_workspace_len());
        time(Kernel::Convolution, Some(&call), || {
            conv.forward(
                E::values(&input),
                packed,
                &mut convolved,
                workspace,
                Epilogue::None,
            );
        });
    });
    let mut output = ARENA.take::<E>(convolved.len());
    let scale = contiguous(scale);
    let shift = contiguous(shift);
    with_residual::<E, _>(&residual, options, conv.shape().out_channels, |residual| {
        batch_norm::scale_shift(
            options.isa,
            floats(&scale),
            floats(&shift),
            &convolved,
            residual,
            options.rectifier,
            &mut output,
        );
    });
    activation(output, output_shape(&call.shape))
}

// tidy: long function because the values that both kinds of layers borrow live in it
pub(in crate::ops) fn backward<E: Activation>(
    saved: LayerSaved<Flex>,
    output_gradient: FlexTensor,
    options: &LayerOptions,
) -> LayerGradients<Flex> {
    let own = options.output.as_deref().and_then(norm_of);
    let call = call::<E>(&saved.input, &saved.weight, options).map(|call| LayerCall {
        needs_input: saved.needs_input,
        has_addend: saved.has_addend,
        ..call
    });
    let [mean, variance, gamma, beta, weight] = [
        saved.mean,
        saved.variance,
        saved.gamma,
        saved.beta,
        saved.weight,
    ]
    .map(contiguous);
    let channels = floats(&gamma).len();
    let dy = E::activations(output_gradient);
    let convolved = own.map_or_else(
        || E::activations(saved.convolved),
        LinkedNorm::convolved::<E>,
    );
    let output = gate_values::<E>(own, saved.output, options).unwrap_or_else(|| convolved.clone());
    let invstd = inverse_stds(floats(&variance), options.epsilon);
    let affine = Affine {
        mean: floats(&mean),
        invstd: &invstd,
        gamma: floats(&gamma),
        beta: floats(&beta),
    };
    let has_residual = options.residual != ResidualKind::None;
    let norm = Saved {
        affine,
        x: E::values(&convolved),
        gate: Gate::of(options.rectifier, has_residual, E::values(&output)),
    };
    let left = options
        .output
        .as_deref()
        .and_then(|link| link.take_sums(&dy));
    let local = left
        .unwrap_or_else(|| gradient_sums(options, call.as_ref(), channels, &norm, E::values(&dy)));
    let all = local.reduce(options.reducer.as_deref());
    let sums = [all.plain.as_slice(), &all.with_normalised].concat();

    let nothing = || tensor(vec![0.0], [1, 1, 1, 1]);
    let mut gradients = LayerGradients {
        input: nothing(),
        weight: nothing(),
        gamma: tensor(to_f32(&local.with_normalised), [channels]),
        beta: tensor(to_f32(&local.plain), [channels]),
        residual: nothing(),
    };
    let input_shape = saved.input.shape();
    let mut d_input = saved
        .needs_input
        .then(|| ARENA.take::<E>(input_shape.num_elements()));
    let Some(call) = call else {
        if let Some(mut d_input) = d_input {
            time(Kernel::NormGradient, None, || {
                batch_norm::backward(
                    options.isa,
                    &norm,
                    &sums,
                    saved.num_values,
                    E::values(&dy),
                    &mut d_input,
                    ResidualGradient::None,
                );
            });
            gradients.input = activation(d_input, input_shape);
        }
        return gradients;
    };

    let shape = call.shape;
    let residual_len = match options.residual {
        ResidualKind::None => 0,
        _ => saved.residual_shape.iter().product(),
    };
    let mut d_residual = ARENA.take::<E>(residual_len);
    let residual = match options.residual {
        ResidualKind::None => ResidualGradient::None,
        ResidualKind::Identity => ResidualGradient::Write(&mut d_residual),
        ResidualKind::ShortcutA => ResidualGradient::WriteOptionA(
            shortcut_a(saved.residual_shape, channels),
            &mut d_residual,
        ),
    };
    let addend = saved.has_addend.then(|| E::activations(saved.addend));
    let read = Read::again::<E>(&saved.input, options, saved.needs_input);
    let given = Backward {
        input: read.input(),
        norm,
        sums: &sums,
        count: saved.num_values,
        dy: E::values(&dy),
        packed: &[],
        addend: addend.as_ref().map(E::values),
    };
    let mut d_weight = ARENA.take::<f32>(shape.weight_len());
    let mut input_sums = vec![0.0; 2 * shape.in_channels];
    let wanted = Gradients {
        dx: d_input.as_deref_mut(),
        dw: &mut d_weight,
        residual,
        input_sums: &mut input_sums,
    };
    run_backward(&call, floats(&weight), given, wanted);
    if let Some(own) = own {
        own.give_up();
    }
    if let Some(d_input) = d_input {
        gradients.input = activation(d_input, input_shape);
        if let Some(link) = read.link() {
            link.leave_sums(gradients.input.clone(), GradientSums::of(input_sums));
        }
    }
    gradients.weight = activation(d_weight, weight.shape().dims::<4>());
    if has_residual {
        gradients.residual = activation(d_residual, saved.residual_shape);
    }
    gradients
}

/// Returns the output of the layer, if its gate is read from it.
fn gate_values<E: Activation>(
    own: Option<&LinkedNorm>,
    kept: FlexTensor,
    options: &LayerOptions,
) -> Option<FlexTensor> {
    if !is_gated_by_output(options) {
        return None;
    }
    let again = own.and_then(LinkedNorm::output::<E>);
    Some(again.unwrap_or_else(|| E::activations(kept)))
}

/// Runs the backward pass, with the weights packed for it if the input's gradient is wanted.
fn run_backward<E: Activation>(
    call: &LayerCall,
    weight: &[f32],
    given: Backward<'_, E>,
    wanted: Gradients<'_, E>,
) {
    with_scratch(|scratch| {
        let layer = call.plan();
        let conv = layer.conv();
        let packed = scratch.packed.floats(conv.packed_data_gradient_len());
        if wanted.dx.is_some() {
            time(Kernel::PackBackward, Some(call), || {
                conv.pack_data_gradient(weight, packed)
            });
        }
        let workspace = scratch.workspace.floats(layer.backward_workspace_len());
        time(Kernel::Gradients, Some(call), || {
            layer.backward(&Backward { packed, ..given }, wanted, workspace)
        });
    });
}

/// Returns the plan of a layer's convolution; the fields of the gradients are filled in later.
pub(super) fn call<E: Activation>(
    input: &FlexTensor,
    weight: &FlexTensor,
    options: &LayerOptions,
) -> Option<LayerCall> {
    let convolution = options.convolution?;
    Some(LayerCall {
        shape: convolution_shape(input, weight, convolution),
        algorithm: convolution.algorithm.of_kernels(),
        isa: options.isa,
        storage: Storage::of::<E>(),
        before: match before(options) {
            None => Before::Unknown,
            Some((link, norm)) if reads_raw(link, norm) => Before::Raw,
            Some(_) => Before::Stored,
        },
        residual: options.residual,
        rectifier: options.rectifier,
        needs_input: false,
        has_addend: false,
    })
}

pub(in crate::ops) fn convolution_shape(
    input: &FlexTensor,
    weight: &FlexTensor,
    convolution: ConvolutionOptions,
) -> Conv2dShape {
    let [batch, height, width, in_channels] = input.shape().dims();
    let [out_channels, of_group, kernel @ ..] = weight.shape().dims::<4>();
    Conv2dShape {
        batch,
        height,
        width,
        in_channels,
        out_channels,
        kernel,
        stride: convolution.stride,
        padding: convolution.padding,
        groups: in_channels / of_group,
    }
}

pub(in crate::ops) fn output_shape(shape: &Conv2dShape) -> [usize; 4] {
    [
        shape.batch,
        shape.out_height(),
        shape.out_width(),
        shape.out_channels,
    ]
}

/// Returns the raw result and writes its moments; the weight is contiguous.
pub(super) fn convolve<E: Activation>(
    call: &LayerCall,
    input: &Read<'_>,
    weight: &FlexTensor,
    moments: &mut [f64],
) -> Buffer<E> {
    let layer = call.plan();
    let conv = layer.conv();
    let mut output = ARENA.take(conv.shape().output_len());
    with_scratch(|scratch| {
        let packed = scratch.packed.floats(conv.packed_forward_len());
        time(Kernel::PackForward, Some(call), || {
            conv.pack_forward(floats(weight), packed)
        });
        let workspace = scratch.workspace.floats(layer.forward_workspace_len());
        let input = input.input::<E>();
        time(Kernel::Convolution, Some(call), || {
            layer.forward(input, packed, &mut output, workspace, moments)
        });
    });
    output
}

fn gradient_sums<E: Activation>(
    options: &LayerOptions,
    call: Option<&LayerCall>,
    channels: usize,
    saved: &Saved<'_, E>,
    dy: &[E],
) -> GradientSums {
    let mut sums = vec![0.0; 2 * channels];
    with_scratch(|scratch| {
        let workspace = scratch
            .workspace
            .doubles(batch_norm::workspace_len(dy.len() / channels, channels));
        time(Kernel::NormSums, call, || {
            batch_norm::backward_sums(options.isa, saved, dy, &mut sums, workspace);
        });
    });
    GradientSums::of(sums)
}

fn with_residual<E: Activation, T>(
    residual: &FlexTensor,
    options: &LayerOptions,
    channels: usize,
    work: impl FnOnce(Residual<'_, E>) -> T,
) -> T {
    if options.residual == ResidualKind::None {
        return work(Residual::None);
    }
    let shape = residual.shape().dims();
    let residual = E::activations(residual.clone());
    work(match options.residual {
        ResidualKind::ShortcutA => {
            Residual::OptionA(shortcut_a(shape, channels), E::values(&residual))
        }
        _ => Residual::Identity(E::values(&residual)),
    })
}
