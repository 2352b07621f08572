//! The fused operations on Flex by our own kernels.
//!
//! In and out: contiguous channels-last activations of f32 or bf16, the rest f32; other layouts are copied once.
//! Invariant: bit-equal for any number of threads.

use burn::backend::flex::FlexTensor;
use burn::backend::{Flex, TensorMetadata};
use kernels::Storage;
use kernels::arena::Buffer;
use kernels::batch_norm::{self, Affine, Gate, ResidualGradient, Saved};
use kernels::conv2d::{Conv2dShape, Epilogue};
use kernels::layer::{Backward, Gradients};
use kernels::pool;
use kernels::simd::Isa;

use super::call::{Before, LayerCall, is_gated_by_output, shortcut_a};
use super::linked::{
    LinkedNorm, Read, Statistics, before, kept_input, leaves_raw, norm_of, normalised, reads_raw,
};
use super::{FusedGradients, FusedOptions, FusedOutput, FusedSaved, Residual};
use crate::ops::clock::{Kernel, time};
use crate::ops::flex::{inverse_stds, to_f32};
use crate::ops::memory::{
    ARENA, Activation, activation, contiguous, floats, only_shape, tensor, with_scratch,
};
use crate::ops::statistics::{GradientSums, Moments};

pub(in crate::ops) fn forward<E: Activation>(
    input: FlexTensor,
    weight: FlexTensor,
    gamma: FlexTensor,
    beta: FlexTensor,
    residual: FlexTensor,
    options: FusedOptions,
) -> FusedOutput<Flex> {
    let call = call::<E>(&input, &weight, &options);
    let shape = output_shape(&call.shape);
    let [.., channels] = shape;
    let mut moments = vec![0.0; 2 * channels];
    let weight = contiguous(weight);
    let convolved = convolve::<E>(
        &call,
        &Read::given::<E>(&input, &options),
        &weight,
        &mut moments,
    );
    let moments = Moments::of_sums((convolved.len() / channels) as f64, moments);
    let moments = moments.reduce(options.norm.reducer.as_deref());
    let (mean, variance) = (to_f32(&moments.mean), to_f32(&moments.variance()));
    let invstd = inverse_stds(&variance, options.norm.epsilon);
    let statistics = Statistics {
        mean: mean.clone(),
        invstd,
        gamma: contiguous(gamma),
        beta: contiguous(beta),
    };
    let output = (!leaves_raw(&options)).then(|| {
        with_residual::<E, _>(&residual, &options, channels, |residual| {
            normalised(&call, &statistics, &convolved, residual)
        })
    });
    let convolved = activation(convolved, shape);
    if let Some(link) = &options.output {
        // Made for this one pass.
        let _ = link.norm.set(LinkedNorm::of_layer(
            call,
            &options,
            [&input, &weight, &residual, &convolved],
            statistics,
        ));
    }
    FusedOutput {
        output: output.unwrap_or_else(|| convolved.clone()),
        convolved,
        mean: tensor(mean, [channels]),
        variance: tensor(variance, [channels]),
        num_values: moments.count,
    }
}

pub(in crate::ops) fn inference<E: Activation>(
    input: FlexTensor,
    weight: FlexTensor,
    scale: FlexTensor,
    shift: FlexTensor,
    residual: FlexTensor,
    options: &FusedOptions,
) -> FlexTensor {
    let call = call::<E>(&input, &weight, options);
    let layer = call.plan();
    let conv = layer.conv();
    let (input, weight) = (E::activations(input), contiguous(weight));
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
    let (scale, shift) = (contiguous(scale), contiguous(shift));
    with_residual::<E, _>(&residual, options, conv.shape().out_channels, |residual| {
        let (scale, shift) = (floats(&scale), floats(&shift));
        batch_norm::scale_shift(
            options.isa,
            scale,
            shift,
            &convolved,
            residual,
            options.rectifier,
            &mut output,
        );
    });
    activation(output, output_shape(&call.shape))
}

/// What of `saved` is held until the backward pass, in tensors that have nothing but their shape for the rest.
pub(in crate::ops) fn kept(
    mut saved: FusedSaved<Flex>,
    options: &FusedOptions,
) -> FusedSaved<Flex> {
    let own = options.output.as_deref().and_then(norm_of);
    if !is_gated_by_output(options.rectifier, options.residual)
        || own.is_some_and(LinkedNorm::makes_output_again)
    {
        saved.output = only_shape(&saved.output);
    }
    if own.is_some_and(LinkedNorm::makes_convolved_again) {
        saved.convolved = only_shape(&saved.convolved);
    }
    saved.input = kept_input(&saved.input, options);
    saved
}

pub(in crate::ops) fn backward<E: Activation>(
    saved: FusedSaved<Flex>,
    output_gradient: FlexTensor,
    options: FusedOptions,
) -> FusedGradients<Flex> {
    let call = call::<E>(&saved.input, &saved.weight, &options);
    let call = LayerCall {
        needs_input: saved.needs_input,
        has_addend: saved.has_addend,
        ..call
    };
    let (shape, own) = (call.shape, options.output.as_deref().and_then(norm_of));
    let [mean, variance, gamma, beta, weight] = [
        saved.mean,
        saved.variance,
        saved.gamma,
        saved.beta,
        saved.weight,
    ]
    .map(contiguous);
    let dy = E::activations(output_gradient);
    let convolved = own.map_or_else(
        || E::activations(saved.convolved),
        LinkedNorm::convolved::<E>,
    );
    let output = gate_values::<E>(own, saved.output, &options).unwrap_or_else(|| convolved.clone());
    let invstd = inverse_stds(floats(&variance), options.norm.epsilon);
    let affine = Affine {
        mean: floats(&mean),
        invstd: &invstd,
        gamma: floats(&gamma),
        beta: floats(&beta),
    };
    let gate = Gate::of(
        options.rectifier,
        options.residual != Residual::None,
        E::values(&output),
    );
    let norm = Saved {
        affine,
        x: E::values(&convolved),
        gate,
    };
    let left = options
        .output
        .as_deref()
        .and_then(|link| link.take_sums(&dy));
    let local = left.unwrap_or_else(|| gradient_sums(&call, &norm, E::values(&dy)));
    let all = local.reduce(options.norm.reducer.as_deref());
    let sums = [all.plain.as_slice(), &all.with_normalised].concat();

    let has_residual = options.residual != Residual::None;
    let mut d_residual = ARENA.take::<E>(if has_residual {
        saved.residual_shape.iter().product()
    } else {
        0
    });
    let residual = match options.residual {
        Residual::None => ResidualGradient::None,
        Residual::Identity => ResidualGradient::Write(&mut d_residual),
        Residual::ShortcutA => ResidualGradient::WriteOptionA(
            shortcut_a(saved.residual_shape, shape.out_channels),
            &mut d_residual,
        ),
    };
    let addend = saved.has_addend.then(|| E::activations(saved.addend));
    let read = Read::again::<E>(&saved.input, &options, saved.needs_input);
    let given = Backward {
        input: read.input(),
        norm,
        sums: &sums,
        count: saved.num_values,
        dy: E::values(&dy),
        packed: &[],
        addend: addend.as_ref().map(E::values),
    };
    let mut d_input = saved
        .needs_input
        .then(|| ARENA.take::<E>(shape.input_len()));
    let (mut d_weight, mut input_sums) = (
        ARENA.take::<f32>(shape.weight_len()),
        vec![0.0; 2 * shape.in_channels],
    );
    let wanted = Gradients {
        dx: d_input.as_deref_mut(),
        dw: &mut d_weight,
        residual,
        input_sums: &mut input_sums,
    };
    gradients(&call, floats(&weight), given, wanted);
    let d_input = d_input.map(|values| activation(values, saved.input.shape()));
    own.map(LinkedNorm::give_up);
    if let (Some(link), Some(gradient)) = (read.link(), &d_input) {
        link.leave_sums(gradient.clone(), GradientSums::of(input_sums));
    }
    let nothing = || tensor(vec![0.0], [1, 1, 1, 1]);
    FusedGradients {
        input: d_input.unwrap_or_else(nothing),
        weight: activation(d_weight, weight.shape().dims::<4>()),
        gamma: tensor(to_f32(&local.with_normalised), [shape.out_channels]),
        beta: tensor(to_f32(&local.plain), [shape.out_channels]),
        residual: if d_residual.is_empty() {
            nothing()
        } else {
            activation(d_residual, saved.residual_shape)
        },
    }
}

/// What the layer gave, where its gate is read from it.
fn gate_values<E: Activation>(
    own: Option<&LinkedNorm>,
    kept: FlexTensor,
    options: &FusedOptions,
) -> Option<FlexTensor> {
    let again = || own.and_then(LinkedNorm::output::<E>);
    is_gated_by_output(options.rectifier, options.residual)
        .then(|| again().unwrap_or_else(|| E::activations(kept)))
}

/// Runs the backward pass, with the weights packed for it if the input's gradient is wanted.
fn gradients<E: Activation>(
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

pub(in crate::ops) fn global_average<E: Activation>(input: FlexTensor) -> FlexTensor {
    let [images, height, width, channels] = input.shape().dims();
    let mut means = vec![0.0; images * channels];
    let input = E::activations(input);
    time(Kernel::Average, None, || {
        pool::global_average(
            Isa::detect(),
            E::values(&input),
            height * width,
            channels,
            &mut means,
        );
    });
    tensor(means, [images, channels])
}

pub(in crate::ops) fn global_average_backward<E: Activation>(
    gradient: FlexTensor,
    shape: [usize; 4],
) -> FlexTensor {
    let [_, height, width, channels] = shape;
    let mut d_input = ARENA.take::<E>(shape.iter().product());
    let gradient = contiguous(gradient);
    time(Kernel::Average, None, || {
        pool::global_average_backward(
            Isa::detect(),
            floats(&gradient),
            height * width,
            channels,
            &mut d_input,
        );
    });
    activation(d_input, shape)
}

/// What the passes of a layer are planned by; the gradients' are filled in later.
pub(super) fn call<E: Activation>(
    input: &FlexTensor,
    weight: &FlexTensor,
    options: &FusedOptions,
) -> LayerCall {
    let [batch, height, width, in_channels] = input.shape().dims();
    let [out_channels, of_group, kernel, _] = weight.shape().dims();
    let groups = in_channels / of_group;
    let (stride, padding) = (options.stride, options.padding);
    LayerCall {
        shape: Conv2dShape {
            batch,
            height,
            width,
            in_channels,
            out_channels,
            kernel,
            stride,
            padding,
            groups,
        },
        algorithm: options.convolution.of_kernels(),
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
    }
}

pub(super) fn output_shape(shape: &Conv2dShape) -> [usize; 4] {
    [
        shape.batch,
        shape.out_height(),
        shape.out_width(),
        shape.out_channels,
    ]
}

/// The raw result and its moments; the weight is contiguous.
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

fn gradient_sums<E: Activation>(call: &LayerCall, saved: &Saved<'_, E>, dy: &[E]) -> GradientSums {
    let channels = call.shape.out_channels;
    let mut sums = vec![0.0; 2 * channels];
    with_scratch(|scratch| {
        let workspace = scratch
            .workspace
            .doubles(batch_norm::workspace_len(dy.len() / channels, channels));
        time(Kernel::NormSums, Some(call), || {
            batch_norm::backward_sums(call.isa, saved, dy, &mut sums, workspace);
        });
    });
    GradientSums::of(sums)
}

fn with_residual<E: Activation, T>(
    residual: &FlexTensor,
    options: &FusedOptions,
    channels: usize,
    work: impl FnOnce(batch_norm::Residual<'_, E>) -> T,
) -> T {
    if options.residual == Residual::None {
        return work(batch_norm::Residual::None);
    }
    let shape = residual.shape().dims();
    let residual = E::activations(residual.clone());
    work(match options.residual {
        Residual::ShortcutA => {
            batch_norm::Residual::OptionA(shortcut_a(shape, channels), E::values(&residual))
        }
        _ => batch_norm::Residual::Identity(E::values(&residual)),
    })
}
