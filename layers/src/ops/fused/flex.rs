//! The fused operations on Flex by our own kernels.
//!
//! In and out: contiguous channels-last activations of f32 or bf16, the rest f32; other layouts are copied once.
//! Invariant: bit-equal for any number of threads.

use std::cell::RefCell;
use std::sync::LazyLock;

use burn::backend::flex::FlexTensor;
use burn::backend::ops::FloatTensorOps;
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::{AllocationProperty, Bytes, Shape, TensorData};
use kernels::arena::{Arena, Block};
use kernels::batch_norm::{self, Affine, Gate, ResidualGradient, Saved, ShortcutA};
use kernels::conv2d::{Algorithm, Conv2d, Conv2dShape};
use kernels::pool;
use kernels::scratch::Scratch;
use kernels::simd::Isa;
use kernels::{Element, Storage};

use super::{FusedGradients, FusedOptions, FusedOutput, FusedSaved, Residual};
use crate::choices::Convolution;
use crate::ops::clock::{Kernel, time};
use crate::ops::flex::{inverse_std, to_f32};
use crate::ops::statistics::{GradientSums, Moments};

/// Where the operations' results live: one arena for all ranks of the process, filled by the first step.
static ARENA: LazyLock<Arena> = LazyLock::new(Arena::new);

thread_local! {
    /// Buffers that no operation keeps, used again by the next.
    static SCRATCH: RefCell<Buffers> = const { RefCell::new(Buffers { packed: Scratch::new(), workspace: Scratch::new() }) };
}

struct Buffers {
    packed: Scratch,
    workspace: Scratch,
}

pub(in crate::ops) fn forward<E: Activation>(
    input: FlexTensor,
    weight: FlexTensor,
    gamma: FlexTensor,
    beta: FlexTensor,
    residual: FlexTensor,
    options: FusedOptions,
) -> FusedOutput<Flex> {
    let conv = plan::<E>(&input, &weight, &options);
    let channels = conv.shape().out_channels;
    let mut moments = vec![0.0; 2 * channels];
    let convolved = convolve::<E>(&conv, &input, &weight, Some(&mut moments));
    let moments = Moments::of_sums((convolved.len() / channels) as f64, moments);
    let moments = moments.reduce(options.norm.reducer.as_deref());
    let mean = to_f32(&moments.mean);
    let variance = to_f32(&moments.variance());
    let invstd = invstd(&variance, options.norm.epsilon);
    let (gamma, beta) = (contiguous(gamma), contiguous(beta));
    let affine = Affine { mean: &mean, invstd: &invstd, gamma: floats(&gamma), beta: floats(&beta) };
    let mut output = ARENA.take::<E>(convolved.len());
    with_residual::<E, _>(&residual, &options, channels, |residual| {
        time(Kernel::Normalisation, || {
            batch_norm::normalize(options.isa, &affine, &convolved, residual, options.relu, &mut output);
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

pub(in crate::ops) fn inference<E: Activation>(
    input: FlexTensor,
    weight: FlexTensor,
    scale: FlexTensor,
    shift: FlexTensor,
    residual: FlexTensor,
    options: &FusedOptions,
) -> FlexTensor {
    let conv = plan::<E>(&input, &weight, options);
    let convolved = convolve::<E>(&conv, &input, &weight, None);
    let mut output = ARENA.take::<E>(convolved.len());
    let (scale, shift) = (contiguous(scale), contiguous(shift));
    with_residual::<E, _>(&residual, options, conv.shape().out_channels, |residual| {
        let (scale, shift) = (floats(&scale), floats(&shift));
        batch_norm::scale_shift(options.isa, scale, shift, &convolved, residual, options.relu, &mut output);
    });
    activation(output, output_shape(&conv))
}

pub(in crate::ops) fn backward<E: Activation>(
    saved: FusedSaved<Flex>,
    output_gradient: FlexTensor,
    options: FusedOptions,
) -> FusedGradients<Flex> {
    let conv = plan::<E>(&saved.input, &saved.weight, &options);
    let channels = conv.shape().out_channels;
    let [mean, variance, gamma, beta, weight] =
        [saved.mean, saved.variance, saved.gamma, saved.beta, saved.weight].map(contiguous);
    let [output, convolved, dy, input] =
        [saved.output, saved.convolved, output_gradient, saved.input].map(E::activations);
    let invstd = invstd(floats(&variance), options.norm.epsilon);
    let affine = Affine { mean: floats(&mean), invstd: &invstd, gamma: floats(&gamma), beta: floats(&beta) };
    let gate = match (options.relu, options.residual) {
        (false, _) => Gate::Open,
        (true, Residual::None) => Gate::Recomputed,
        (true, _) => Gate::Output(E::values(&output)),
    };
    let norm = Saved { affine, x: E::values(&convolved), gate };
    let local = gradient_sums(options.isa, &norm, E::values(&dy), channels);
    let all = local.reduce(options.norm.reducer.as_deref());
    let sums = [all.plain.as_slice(), &all.with_normalised].concat();

    let mut d_convolved = ARENA.take::<E>(conv.shape().output_len());
    let mut d_residual =
        ARENA.take::<E>(if options.residual == Residual::None { 0 } else { saved.residual_shape.iter().product() });
    let residual_gradient = match options.residual {
        Residual::None => ResidualGradient::None,
        Residual::Identity => ResidualGradient::Write(&mut d_residual),
        Residual::ShortcutA => {
            ResidualGradient::WriteOptionA(shortcut_a(saved.residual_shape, channels), &mut d_residual)
        }
    };
    time(Kernel::NormGradient, || {
        let (dy, dx) = (E::values(&dy), &mut d_convolved);
        batch_norm::backward(options.isa, &norm, &sums, saved.num_values, dy, dx, residual_gradient);
    });

    let addend = saved.has_addend.then(|| E::activations(saved.addend));
    let addend = addend.as_ref().map(E::values);
    let (d_input, d_weight) =
        conv_gradients(&conv, E::values(&input), &weight, &d_convolved, saved.needs_input, addend);
    let nothing = || tensor(vec![0.0], [1, 1, 1, 1]);
    FusedGradients {
        input: d_input.map_or_else(nothing, |values| activation(values, input.shape().dims())),
        weight: tensor(d_weight, weight.shape().dims::<4>()),
        gamma: tensor(to_f32(&local.with_normalised), [channels]),
        beta: tensor(to_f32(&local.plain), [channels]),
        residual: if d_residual.is_empty() { nothing() } else { activation(d_residual, saved.residual_shape) },
    }
}

pub(in crate::ops) fn global_average<E: Activation>(input: FlexTensor) -> FlexTensor {
    let [images, height, width, channels] = input.shape().dims();
    let mut means = vec![0.0; images * channels];
    let input = E::activations(input);
    time(Kernel::Average, || {
        pool::global_average(Isa::detect(), E::values(&input), height * width, channels, &mut means);
    });
    tensor(means, [images, channels])
}

pub(in crate::ops) fn global_average_backward<E: Activation>(gradient: FlexTensor, shape: [usize; 4]) -> FlexTensor {
    let [_, height, width, channels] = shape;
    let mut d_input = ARENA.take::<E>(shape.iter().product());
    let gradient = contiguous(gradient);
    time(Kernel::Average, || {
        pool::global_average_backward(Isa::detect(), floats(&gradient), height * width, channels, &mut d_input);
    });
    activation(d_input, shape)
}

fn plan<E: Activation>(input: &FlexTensor, weight: &FlexTensor, options: &FusedOptions) -> Conv2d {
    let [batch, height, width, in_channels] = input.shape().dims();
    let [out_channels, _, kernel, _] = weight.shape().dims();
    let (stride, padding) = (options.stride, options.padding);
    let algorithm = match options.convolution {
        Convolution::Auto => Algorithm::Auto,
        Convolution::Direct => Algorithm::Direct,
    };
    let shape = Conv2dShape { batch, height, width, in_channels, out_channels, kernel, stride, padding };
    Conv2d::new(shape, algorithm, options.isa, Storage::of::<E>())
}

fn output_shape(conv: &Conv2d) -> [usize; 4] {
    let shape = conv.shape();
    [shape.batch, shape.out_height(), shape.out_width(), shape.out_channels]
}

fn convolve<E: Activation>(
    conv: &Conv2d,
    input: &FlexTensor,
    weight: &FlexTensor,
    moments: Option<&mut [f64]>,
) -> Block<E> {
    let (input, weight) = (E::activations(input.clone()), contiguous(weight.clone()));
    let mut output = ARENA.take(conv.shape().output_len());
    SCRATCH.with_borrow_mut(|scratch| {
        let packed = scratch.packed.floats(conv.packed_forward_len());
        time(Kernel::Pack, || conv.pack_forward(floats(&weight), packed));
        let workspace = scratch.workspace.floats(conv.forward_workspace_len());
        time(Kernel::Convolution, || conv.forward(E::values(&input), packed, &mut output, workspace, moments));
    });
    output
}

/// The gradient of the input, if it is needed, and of the weights.
fn conv_gradients<E: Activation>(
    conv: &Conv2d,
    input: &[E],
    weight: &FlexTensor,
    d_output: &[E],
    needs_input: bool,
    addend: Option<&[E]>,
) -> (Option<Block<E>>, Vec<f32>) {
    SCRATCH.with_borrow_mut(|scratch| {
        let mut d_weight = vec![0.0; conv.shape().weight_len()];
        let workspace = scratch.workspace.floats(conv.weight_gradient_workspace_len());
        time(Kernel::WeightGradient, || conv.weight_gradient(input, d_output, &mut d_weight, workspace));
        let d_input = needs_input.then(|| {
            let packed = scratch.packed.floats(conv.packed_data_gradient_len());
            time(Kernel::Pack, || conv.pack_data_gradient(floats(weight), packed));
            let workspace = scratch.workspace.floats(conv.data_gradient_workspace_len());
            let mut d_input = ARENA.take(conv.shape().input_len());
            time(Kernel::DataGradient, || conv.data_gradient(d_output, packed, addend, &mut d_input, workspace));
            d_input
        });
        (d_input, d_weight)
    })
}

fn gradient_sums<E: Activation>(isa: Isa, saved: &Saved<'_, E>, dy: &[E], channels: usize) -> GradientSums {
    let mut sums = vec![0.0; 2 * channels];
    SCRATCH.with_borrow_mut(|scratch| {
        let workspace = scratch.workspace.doubles(batch_norm::workspace_len(dy.len() / channels, channels));
        time(Kernel::NormSums, || batch_norm::backward_sums(isa, saved, dy, &mut sums, workspace));
    });
    let with_normalised = sums.split_off(channels);
    GradientSums { plain: sums, with_normalised }
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
        Residual::ShortcutA => batch_norm::Residual::OptionA(shortcut_a(shape, channels), E::values(&residual)),
        _ => batch_norm::Residual::Identity(E::values(&residual)),
    })
}

fn shortcut_a([num_images, height, width, channels_in]: [usize; 4], channels: usize) -> ShortcutA {
    ShortcutA { num_images, height, width, channels_in, channels }
}

fn invstd(variance: &[f32], epsilon: f64) -> Vec<f32> {
    variance.iter().map(|&variance| inverse_std(variance, epsilon)).collect()
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

/// A type that our kernels store activations in.
pub(in crate::ops) trait Activation: Element + burn::tensor::Element + bytemuck::Pod {
    /// The tensor contiguous and of this type.
    fn activations(tensor: FlexTensor) -> FlexTensor {
        let dtype = <Self as burn::tensor::Element>::dtype();
        let tensor = if tensor.dtype() == dtype { tensor } else { Flex::float_cast(tensor, dtype.into()) };
        tensor.to_contiguous()
    }

    /// The values of what [`Activation::activations`] returned.
    fn values(activations: &FlexTensor) -> &[Self] {
        activations.as_slice().expect("contiguous and of this type")
    }
}

impl<E: Element + burn::tensor::Element + bytemuck::Pod> Activation for E {}

/// A tensor over a block of the arena, which gets it back when the last clone of the tensor is dropped. burn copies such a
/// tensor before it writes in place.
fn activation<E: Activation>(block: Block<E>, shape: [usize; 4]) -> FlexTensor {
    struct Owner<E: Element>(Block<E>);
    impl<E: Element> AsRef<[u8]> for Owner<E> {
        fn as_ref(&self) -> &[u8] {
            self.0.as_bytes()
        }
    }
    let bytes = Bytes::from_shared(bytes::Bytes::from_owner(Owner(block)), AllocationProperty::Native);
    FlexTensor::from_data(TensorData::from_bytes(bytes, Shape::new(shape), <E as burn::tensor::Element>::dtype()))
}
