//! The fused operations on Flex by our own kernels.
//!
//! In and out: contiguous channels-last tensors of f32; others are copied once or take the composed body.
//! Invariant: bit-equal for any number of threads.

use std::cell::RefCell;
use std::sync::LazyLock;

use burn::backend::flex::FlexTensor;
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::{AllocationProperty, Bytes, DType, FloatDType, Shape, TensorData};
use kernels::arena::{Arena, Block};
use kernels::batch_norm::{self, Affine, Gate, Gradients, ResidualGradient, Saved, ShortcutA};
use kernels::conv2d::{Algorithm, Conv2d, Conv2dShape, Epilogue};
use kernels::pool;
use kernels::simd::Isa;

use super::{FusedGradients, FusedOptions, FusedOutput, FusedSaved, Residual, composed};
use crate::config::Convolution;
use crate::ops::average;
use crate::ops::clock::{Kernel, time};
use crate::ops::flex::{inverse_std, to_f32};
use crate::ops::statistics::{GradientSums, Moments};

/// Where the operations' results live: one arena for all ranks of the process, filled by the first step.
static ARENA: LazyLock<Arena> = LazyLock::new(Arena::new);

thread_local! {
    /// Buffers that no operation keeps, used again by the next.
    static SCRATCH: RefCell<Scratch> = const { RefCell::new(Scratch { packed: Vec::new(), floats: Vec::new(), doubles: Vec::new() }) };
}

#[derive(Default)]
struct Scratch {
    packed: Vec<f32>,
    floats: Vec<f32>,
    doubles: Vec<f64>,
}

pub(in crate::ops) fn forward(
    input: FlexTensor,
    weight: FlexTensor,
    gamma: FlexTensor,
    beta: FlexTensor,
    residual: FlexTensor,
    options: FusedOptions,
) -> FusedOutput<Flex> {
    if input.dtype() != DType::F32 {
        return composed::forward::<Flex>(input, weight, gamma, beta, residual, options);
    }
    let conv = plan(&input, &weight, &options);
    let channels = conv.shape().out_channels;
    let (mut sum, mut sum_of_squares) = (vec![0.0; channels], vec![0.0; channels]);
    let epilogue = Epilogue::Statistics { shift: None, sum: &mut sum, sum_of_squares: &mut sum_of_squares };
    let convolved = convolve(&conv, &input, &weight, epilogue);
    let moments = moments((convolved.len() / channels) as f64, &sum, &sum_of_squares);
    let moments = moments.reduce(options.norm.reducer.as_deref());
    let mean = to_f32(&moments.mean);
    let variance = to_f32(&moments.variance());
    let invstd = invstd(&variance, options.norm.epsilon);
    let (gamma, beta) = (contiguous(gamma), contiguous(beta));
    let affine = Affine { mean: &mean, invstd: &invstd, gamma: floats(&gamma), beta: floats(&beta) };
    let mut output = ARENA.take(convolved.len());
    with_residual(&residual, &options, channels, |residual| {
        time(Kernel::Normalisation, || {
            batch_norm::normalize(Isa::chosen(), &affine, &convolved, residual, options.relu, &mut output);
        });
    });
    let shape = output_shape(&conv);
    FusedOutput {
        output: activation(output, shape),
        convolved: activation(convolved, shape),
        mean: tensor(mean, [channels]),
        variance: tensor(variance, [channels]),
        num_values: moments.count,
    }
}

pub(in crate::ops) fn inference(
    input: FlexTensor,
    weight: FlexTensor,
    scale: FlexTensor,
    shift: FlexTensor,
    residual: FlexTensor,
    options: &FusedOptions,
) -> FlexTensor {
    if input.dtype() != DType::F32 {
        return composed::inference::<Flex>(input, weight, scale, shift, residual, options);
    }
    let conv = plan(&input, &weight, options);
    let convolved = convolve(&conv, &input, &weight, Epilogue::None);
    let mut output = ARENA.take(convolved.len());
    let (scale, shift) = (contiguous(scale), contiguous(shift));
    with_residual(&residual, options, conv.shape().out_channels, |residual| {
        let (scale, shift) = (floats(&scale), floats(&shift));
        batch_norm::scale_shift(Isa::chosen(), scale, shift, &convolved, residual, options.relu, &mut output);
    });
    activation(output, output_shape(&conv))
}

pub(in crate::ops) fn backward(
    saved: FusedSaved<Flex>,
    output_gradient: FlexTensor,
    options: FusedOptions,
) -> FusedGradients<Flex> {
    if saved.input.dtype() != DType::F32 {
        return composed::backward::<Flex>(saved, output_gradient, options);
    }
    let conv = plan(&saved.input, &saved.weight, &options);
    let channels = conv.shape().out_channels;
    let [mean, variance, gamma, beta, output, convolved, dy, input, weight] = [
        saved.mean,
        saved.variance,
        saved.gamma,
        saved.beta,
        saved.output,
        saved.convolved,
        output_gradient,
        saved.input,
        saved.weight,
    ]
    .map(contiguous);
    let invstd = invstd(floats(&variance), options.norm.epsilon);
    let affine = Affine { mean: floats(&mean), invstd: &invstd, gamma: floats(&gamma), beta: floats(&beta) };
    let gate = match (options.relu, options.residual) {
        (false, _) => Gate::Open,
        (true, Residual::None) => Gate::Recomputed,
        (true, _) => Gate::Output(floats(&output)),
    };
    let norm = Saved { affine, x: floats(&convolved), gate };
    let local = gradient_sums(&norm, floats(&dy), channels);
    let all = local.reduce(options.norm.reducer.as_deref());
    let sums = [all.plain.as_slice(), &all.with_normalised].concat();

    let mut d_convolved = ARENA.take(conv.shape().output_len());
    let mut d_residual =
        ARENA.take(if options.residual == Residual::None { 0 } else { saved.residual_shape.iter().product() });
    let residual_gradient = match options.residual {
        Residual::None => ResidualGradient::None,
        Residual::Identity => ResidualGradient::Write(&mut d_residual),
        Residual::ShortcutA => {
            ResidualGradient::WriteOptionA(shortcut_a(saved.residual_shape, channels), &mut d_residual)
        }
    };
    let gradients = Gradients::Separate { dy: floats(&dy), dx: &mut d_convolved };
    time(Kernel::NormGradient, || {
        batch_norm::backward(Isa::chosen(), &norm, &sums, saved.num_values, gradients, residual_gradient);
    });

    let addend = saved.has_addend.then(|| contiguous(saved.addend));
    let addend = addend.as_ref().map(floats);
    let (d_input, d_weight) = conv_gradients(&conv, &input, &weight, &d_convolved, saved.needs_input, addend);
    let nothing = || tensor(vec![0.0], [1, 1, 1, 1]);
    FusedGradients {
        input: d_input.map_or_else(nothing, |values| activation(values, input.shape().dims())),
        weight: tensor(d_weight, weight.shape().dims::<4>()),
        gamma: tensor(to_f32(&local.with_normalised), [channels]),
        beta: tensor(to_f32(&local.plain), [channels]),
        residual: if d_residual.is_empty() { nothing() } else { activation(d_residual, saved.residual_shape) },
    }
}

pub(in crate::ops) fn global_average(input: FlexTensor) -> FlexTensor {
    if input.dtype() != DType::F32 {
        return average::composed::<Flex>(input);
    }
    let [images, height, width, channels] = input.shape().dims();
    let mut means = vec![0.0; images * channels];
    let input = contiguous(input);
    time(Kernel::Average, || {
        pool::global_average(Isa::chosen(), floats(&input), height * width, channels, &mut means);
    });
    tensor(means, [images, channels])
}

pub(in crate::ops) fn global_average_backward(
    gradient: FlexTensor,
    shape: [usize; 4],
    dtype: FloatDType,
) -> FlexTensor {
    if dtype != FloatDType::F32 || gradient.dtype() != DType::F32 {
        return average::composed_backward::<Flex>(gradient, shape, dtype);
    }
    let [_, height, width, channels] = shape;
    let mut d_input = ARENA.take(shape.iter().product());
    let gradient = contiguous(gradient);
    time(Kernel::Average, || {
        pool::global_average_backward(Isa::chosen(), floats(&gradient), height * width, channels, &mut d_input);
    });
    activation(d_input, shape)
}

fn plan(input: &FlexTensor, weight: &FlexTensor, options: &FusedOptions) -> Conv2d {
    let [batch, height, width, in_channels] = input.shape().dims();
    let [out_channels, _, kernel, _] = weight.shape().dims();
    let (stride, padding) = (options.stride, options.padding);
    let algorithm = match options.convolution {
        Convolution::Auto => Algorithm::Auto,
        Convolution::Direct => Algorithm::Direct,
    };
    let shape = Conv2dShape { batch, height, width, in_channels, out_channels, kernel, stride, padding };
    Conv2d::with(shape, algorithm, Isa::chosen())
}

fn output_shape(conv: &Conv2d) -> [usize; 4] {
    let shape = conv.shape();
    [shape.batch, shape.out_height(), shape.out_width(), shape.out_channels]
}

fn convolve(conv: &Conv2d, input: &FlexTensor, weight: &FlexTensor, epilogue: Epilogue<'_>) -> Block {
    let (input, weight) = (contiguous(input.clone()), contiguous(weight.clone()));
    let mut output = ARENA.take(conv.shape().output_len());
    SCRATCH.with_borrow_mut(|scratch| {
        let packed = part(&mut scratch.packed, conv.packed_forward_len());
        time(Kernel::Pack, || conv.pack_forward(floats(&weight), packed));
        let workspace = part(&mut scratch.floats, conv.forward_workspace_len());
        time(Kernel::Convolution, || conv.forward(floats(&input), packed, &mut output, workspace, epilogue));
    });
    output
}

/// The gradient of the input, if it is needed, and of the weights.
fn conv_gradients(
    conv: &Conv2d,
    input: &FlexTensor,
    weight: &FlexTensor,
    d_output: &[f32],
    needs_input: bool,
    addend: Option<&[f32]>,
) -> (Option<Block>, Vec<f32>) {
    SCRATCH.with_borrow_mut(|scratch| {
        let mut d_weight = vec![0.0; conv.shape().weight_len()];
        let workspace = part(&mut scratch.floats, conv.weight_gradient_workspace_len());
        time(Kernel::WeightGradient, || conv.weight_gradient(floats(input), d_output, &mut d_weight, workspace));
        let d_input = needs_input.then(|| {
            let packed = part(&mut scratch.packed, conv.packed_data_gradient_len());
            time(Kernel::Pack, || conv.pack_data_gradient(floats(weight), packed));
            let workspace = part(&mut scratch.floats, conv.data_gradient_workspace_len());
            let mut d_input = ARENA.take(conv.shape().input_len());
            time(Kernel::DataGradient, || conv.data_gradient(d_output, packed, addend, &mut d_input, workspace));
            d_input
        });
        (d_input, d_weight)
    })
}

fn moments(count: f64, sum: &[f64], sum_of_squares: &[f64]) -> Moments {
    let mut moments = vec![0.0; 2 * sum.len()];
    batch_norm::moments_of_shifted(None, sum, sum_of_squares, count, &mut moments);
    let squares = moments.split_off(sum.len());
    Moments { count, mean: moments.iter().map(|sum| sum / count).collect(), squares }
}

fn gradient_sums(saved: &Saved<'_>, dy: &[f32], channels: usize) -> GradientSums {
    let mut sums = vec![0.0; 2 * channels];
    SCRATCH.with_borrow_mut(|scratch| {
        let workspace = part(&mut scratch.doubles, batch_norm::workspace_len(dy.len() / channels, channels));
        time(Kernel::NormSums, || batch_norm::backward_sums(Isa::chosen(), saved, dy, &mut sums, workspace));
    });
    let with_normalised = sums.split_off(channels);
    GradientSums { plain: sums, with_normalised }
}

fn with_residual<T>(
    residual: &FlexTensor,
    options: &FusedOptions,
    channels: usize,
    work: impl FnOnce(batch_norm::Residual<'_>) -> T,
) -> T {
    let residual = contiguous(residual.clone());
    work(match options.residual {
        Residual::None => batch_norm::Residual::None,
        Residual::Identity => batch_norm::Residual::Identity(floats(&residual)),
        Residual::ShortcutA => {
            let shape = shortcut_a(residual.shape().dims(), channels);
            batch_norm::Residual::OptionA(shape, floats(&residual))
        }
    })
}

fn shortcut_a([num_images, height, width, channels_in]: [usize; 4], channels: usize) -> ShortcutA {
    ShortcutA { num_images, height, width, channels_in, channels }
}

fn invstd(variance: &[f32], epsilon: f64) -> Vec<f32> {
    variance.iter().map(|&variance| inverse_std(variance, epsilon)).collect()
}

/// The first `len` elements of a buffer that only grows.
fn part<T: Copy + Default>(buffer: &mut Vec<T>, len: usize) -> &mut [T] {
    if buffer.len() < len {
        buffer.resize(len, T::default());
    }
    &mut buffer[..len]
}

fn contiguous(tensor: FlexTensor) -> FlexTensor {
    tensor.to_contiguous()
}

fn floats(contiguous: &FlexTensor) -> &[f32] {
    contiguous.as_slice().expect("contiguous and f32: the input's type is checked, the others have the same")
}

fn tensor<const D: usize>(values: Vec<f32>, shape: [usize; D]) -> FlexTensor {
    FlexTensor::from_data(TensorData::new(values, shape))
}

/// A tensor over a block of the arena, which gets it back when the last clone of the tensor is dropped. burn copies such a
/// tensor before it writes in place.
fn activation(block: Block, shape: [usize; 4]) -> FlexTensor {
    struct Owner(Block);
    impl AsRef<[u8]> for Owner {
        fn as_ref(&self) -> &[u8] {
            self.0.as_bytes()
        }
    }
    let bytes = Bytes::from_shared(bytes::Bytes::from_owner(Owner(block)), AllocationProperty::Native);
    FlexTensor::from_data(TensorData::from_bytes(bytes, Shape::new(shape), DType::F32))
}
