//! Single operations on Flex by Lockstep's kernels.
//!
//! In and out: contiguous activations of f32 or bf16, parameters of f32; other layouts are copied
//! once, f16 is computed in f32.
//! Invariant: bit-equal for any number of threads.

use burn::backend::flex::FlexTensor;
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::Shape;
use kernels::arena::Buffer;
use kernels::attention::{Attention, Mask};
use kernels::conv2d::{self, Addend, Algorithm, Conv2d, Conv2dShape, Epilogue};
use kernels::dropout::dropout;
use kernels::group_norm::{self, GroupNorm};
use kernels::loss::Loss;
use kernels::pool::{self, Axis, MaxPoolShape};
use kernels::simd::Isa;
use kernels::softmax::Softmax;
use kernels::{Storage, activation, copies, layer_norm};

use super::{
    MaskKind, Operation, SingleGradients, SingleOptions, SingleOutput, SingleSaved, Wanted,
};
use crate::ops::fused::flex::{convolution_shape, output_shape};
use crate::ops::memory::{
    ARENA, Activation, activation as tensor_of, contiguous, converted, floats, only_shape, tensor,
    with_scratch,
};

// tidy: long function because it has one arm for each operation
pub(in crate::ops) fn forward<E: Activation>(
    input: FlexTensor,
    weight: FlexTensor,
    bias: FlexTensor,
    &SingleOptions {
        operation,
        isa,
        has,
        ..
    }: &SingleOptions,
) -> SingleOutput<Flex> {
    let x = E::activations(input.clone());
    match operation {
        Operation::Cat => return joined::<E>(&x, &E::activations(weight)),
        Operation::Add => return sum::<E>(&x, &E::activations(weight), isa),
        _ => {}
    }
    let mut saved = SingleSaved::<Flex> {
        // A copy in memory order serves the backward pass, too.
        input: if x.dtype() == input.dtype() {
            x.clone()
        } else {
            input
        },
        weight: weight.clone(),
    };
    let [weight, bias] = [weight, bias].map(contiguous);
    let values = E::values(&x);
    let weights = floats(&weight);
    let bias = has[1].then(|| floats(&bias));
    let output = match operation {
        Operation::Convolution(convolution) => {
            let shape = convolution_shape(&x, &weight, convolution);
            let mut y = ARENA.take::<E>(shape.output_len());
            // An empty batch has no plan.
            if !values.is_empty() {
                let algorithm = convolution.algorithm.of_kernels();
                let conv = Conv2d::new(shape, algorithm, isa, Storage::of::<E>());
                Way::Convolution.run(&conv, values, weights, bias, &mut y);
            }
            tensor_of(y, output_shape(&shape))
        }
        Operation::Linear => {
            let shape = product(&x, &weight);
            let mut y = ARENA.take::<E>(shape.input_len());
            if !values.is_empty() {
                let conv = Conv2d::new(shape, Algorithm::Auto, isa, Storage::of::<E>());
                Way::Transposed.run(&conv, values, weights, bias, &mut y);
            }
            tensor_of(y, with_last(x.shape(), shape.in_channels))
        }
        Operation::LayerNorm { epsilon } => {
            let mut y = ARENA.take::<E>(values.len());
            layer_norm::forward(
                isa,
                epsilon,
                values,
                weights,
                bias.unwrap_or_default(),
                &mut y,
            );
            tensor_of(y, x.shape())
        }
        Operation::Activation(function) => {
            let mut y = ARENA.take::<E>(values.len());
            activation::forward(isa, function, values, &mut y);
            let y = tensor_of(y, x.shape());
            if function.keeps_output() {
                saved.input = y.clone();
            }
            y
        }
        Operation::GroupNorm { groups, epsilon } => {
            let norm = group_norm_shape(&x, groups, epsilon);
            let mut y = ARENA.take::<E>(values.len());
            if !values.is_empty() {
                let parameters = [weights, bias.unwrap_or_default()];
                let [images, ..] = x.shape().dims::<4>();
                with_workspace(norm.workspace_len(images), |workspace| {
                    norm.forward(isa, values, parameters, &mut y, workspace);
                });
            }
            tensor_of(y, x.shape())
        }
        Operation::Softmax { is_log } => {
            let softmax = softmax_shape(&x, is_log);
            let mut y = ARENA.take::<E>(values.len());
            with_workspace(softmax.workspace_len(), |workspace| {
                softmax.forward(isa, values, &mut y, workspace);
            });
            let y = tensor_of(y, x.shape());
            saved.input = y.clone();
            y
        }
        Operation::Attention { heads, mask } => {
            let attention = attention_shape(&x, heads);
            let mut y = ARENA.take::<E>(values.len() / 3);
            with_workspace(attention.workspace_len(), |workspace| {
                attention.forward(isa, values, mask_of(mask, weights), &mut y, workspace)
            });
            let [images, tokens, channels] = x.shape().dims();
            tensor_of(y, [images, tokens, channels / 3])
        }
        Operation::Cat | Operation::Add => unreachable!("returned above"),
        Operation::MaxPool { window } => return maxima::<E>(&x, window, isa),
        Operation::AveragePool => {
            let large @ [images, height, width, channels] = x.shape().dims();
            let shape = [images, height / 2, width / 2, channels];
            let mut y = ARENA.take::<E>(shape.iter().product());
            pool::halve(isa, large, 0.25, values, &mut y);
            saved.input = only_shape(&x);
            tensor_of(y, shape)
        }
        Operation::Upsample => {
            let [images, height, width, channels] = x.shape().dims();
            let large = [images, 2 * height, 2 * width, channels];
            let mut y = ARENA.take::<E>(large.iter().product());
            pool::double(isa, large, 1.0, values, &mut y);
            saved.input = only_shape(&x);
            tensor_of(y, large)
        }
        Operation::Interpolate { size, .. } => {
            let [images, height, width, channels] = x.shape().dims();
            let axes = axes(operation, [height, width]);
            let large = [images, size[0], size[1], channels];
            let mut y = ARENA.take::<E>(large.iter().product());
            resample::<E>(isa, &axes, [images, channels], values, &mut y);
            saved.input = only_shape(&x);
            tensor_of(y, large)
        }
        Operation::Dropout { probability, seed } => {
            let mut y = ARENA.take::<E>(values.len());
            dropout(isa, probability, seed, values, &mut y);
            saved.input = saved.weight.clone();
            tensor_of(y, x.shape())
        }
        Operation::Repeat { times } => {
            let mut y = ARENA.take::<E>(times * values.len());
            copies::repeat(times, values, &mut y);
            saved.input = saved.weight.clone();
            tensor_of(y, with_last(x.shape(), times * width(&x)))
        }
        Operation::SwapAxes => {
            let extents @ [a, b, c, run] = x.shape().dims();
            let mut y = ARENA.take::<E>(values.len());
            copies::swap_axes(extents, values, &mut y);
            saved.input = only_shape(&x);
            tensor_of(y, [a, c, b, run])
        }
        Operation::GlobalAverage { shape, .. } => {
            let [images, height, width, channels] = shape;
            let mut means = vec![0.0; images * channels];
            pool::global_average(isa, values, height * width, channels, &mut means);
            return SingleOutput {
                output: tensor(means, [images, channels]),
                input: saved.weight.clone(),
                weight: saved.weight,
            };
        }
        Operation::Scale => {
            let mut y = ARENA.take::<E>(values.len());
            if !values.is_empty() {
                pool::scale(isa, pixels_channels(&x), values, weights, &mut y);
            }
            tensor_of(y, x.shape())
        }
        Operation::Loss(loss) => {
            let logits = f32::activations(x);
            let sum = loss.sum(floats(&logits), weights, num_classes(&logits));
            tensor(vec![sum], [1, 1])
        }
    };
    SingleOutput {
        output,
        input: saved.input,
        weight: saved.weight,
    }
}

// tidy: long function because it has one arm for each operation
pub(in crate::ops) fn backward<E: Activation>(
    saved: SingleSaved<Flex>,
    output_gradient: FlexTensor,
    &SingleOptions {
        operation,
        isa,
        has_addend,
        is_doubled,
        ..
    }: &SingleOptions,
    wanted: Wanted,
) -> SingleGradients<Flex> {
    match operation {
        Operation::MaxPool { window } => {
            return of_maxima::<E>(&saved, E::activations(output_gradient), window, isa);
        }
        Operation::AveragePool | Operation::Upsample => {
            return of_windows::<E>(&saved, E::activations(output_gradient), operation, isa);
        }
        Operation::Interpolate { .. } => {
            let dy = E::activations(output_gradient);
            let shape = saved.input.shape();
            let [images, height, width, channels] = shape.dims();
            let axes = axes(operation, [height, width]).map(|axis| axis.transposed());
            let mut dx = ARENA.take::<E>(shape.num_elements());
            resample::<E>(isa, &axes, [images, channels], E::values(&dy), &mut dx);
            return of_input(dx, shape);
        }
        Operation::Dropout { probability, seed } => {
            let dy = E::activations(output_gradient);
            let mut dx = ARENA.take::<E>(dy.shape().num_elements());
            dropout(isa, probability, seed, E::values(&dy), &mut dx);
            return of_input(dx, dy.shape());
        }
        Operation::Repeat { times } => {
            let dy = E::activations(output_gradient);
            let mut dx = ARENA.take::<E>(dy.shape().num_elements() / times);
            copies::sum_repeated(isa, times, E::values(&dy), &mut dx);
            return of_input(dx, with_last(dy.shape(), width(&dy) / times));
        }
        Operation::SwapAxes => {
            let dy = E::activations(output_gradient);
            let mut dx = ARENA.take::<E>(dy.shape().num_elements());
            copies::swap_axes(dy.shape().dims(), E::values(&dy), &mut dx);
            return of_input(dx, saved.input.shape());
        }
        Operation::Loss(loss) => {
            return of_logits::<E>(
                loss,
                saved.input,
                &contiguous(saved.weight),
                &output_gradient,
            );
        }
        Operation::Add => {
            let output_gradient = if is_doubled {
                let dy = E::activations(output_gradient);
                sum::<E>(&dy, &dy, isa).output
            } else {
                output_gradient
            };
            return SingleGradients {
                input: output_gradient.clone(),
                weight: output_gradient,
                bias: nothing().1,
            };
        }
        Operation::Cat if is_doubled => {
            let dy = E::activations(output_gradient);
            let mut dx = ARENA.take::<E>(saved.input.shape().num_elements());
            copies::sum_parts(isa, width(&saved.input), E::values(&dy), &mut dx);
            return of_input(dx, saved.input.shape());
        }
        Operation::Cat => return of_joined::<E>(&saved, &E::activations(output_gradient)),
        Operation::GlobalAverage { shape, .. } => {
            let addend = has_addend.then(|| E::activations(saved.input));
            return of_means::<E>(&contiguous(output_gradient), shape, addend, isa);
        }
        _ => {}
    }
    let [x, dy] = [saved.input, output_gradient].map(E::activations);
    let weight = contiguous(saved.weight);
    let (values, weights, d_values) = (E::values(&x), floats(&weight), E::values(&dy));
    if values.is_empty() {
        return of_empty(x, dy, &weight);
    }
    let mut dx = ARENA.take::<E>(values.len());
    let (d_weight, d_bias) = match operation {
        Operation::Convolution(convolution) => {
            let shape = convolution_shape(&x, &weight, convolution);
            let algorithm = convolution.algorithm.of_kernels();
            let conv = Conv2d::new(shape, algorithm, isa, Storage::of::<E>());
            let [dw, db] = Way::Convolution.gradients(
                &conv,
                (values, weights, d_values),
                &mut dx,
                wanted,
                isa,
            );
            (
                of_parameter(dw, &weight),
                tensor_of(db, [conv.shape().out_channels]),
            )
        }
        Operation::Linear => {
            let conv = Conv2d::new(
                product(&x, &weight),
                Algorithm::Auto,
                isa,
                Storage::of::<E>(),
            );
            let [dw, db] =
                Way::Transposed.gradients(&conv, (values, weights, d_values), &mut dx, wanted, isa);
            (
                of_parameter(dw, &weight),
                tensor_of(db, [conv.shape().in_channels]),
            )
        }
        Operation::LayerNorm { epsilon } => {
            let channels = weights.len();
            let [mut d_gamma, mut d_beta] = [(); 2].map(|()| ARENA.take::<f32>(channels));
            with_workspace(
                layer_norm::backward_workspace_len(values.len() / channels, channels),
                |workspace| {
                    let wanted = layer_norm::Gradients {
                        dx: &mut dx,
                        d_gamma: &mut d_gamma,
                        d_beta: &mut d_beta,
                    };
                    layer_norm::backward(
                        isa, epsilon, values, weights, d_values, wanted, workspace,
                    );
                },
            );
            (
                tensor_of(d_gamma, [channels]),
                tensor_of(d_beta, [channels]),
            )
        }
        Operation::Activation(function) => {
            activation::backward(isa, function, values, d_values, &mut dx);
            nothing()
        }
        Operation::GroupNorm { groups, epsilon } => {
            let norm = group_norm_shape(&x, groups, epsilon);
            let channels = weights.len();
            let [mut d_gamma, mut d_beta] = [(); 2].map(|()| ARENA.take::<f32>(channels));
            let [images, ..] = x.shape().dims::<4>();
            with_workspace(norm.workspace_len(images), |workspace| {
                let wanted = group_norm::Gradients {
                    dx: &mut dx,
                    d_gamma: &mut d_gamma,
                    d_beta: &mut d_beta,
                };
                norm.backward(isa, values, weights, d_values, wanted, workspace);
            });
            (
                tensor_of(d_gamma, [channels]),
                tensor_of(d_beta, [channels]),
            )
        }
        Operation::Softmax { is_log } => {
            let softmax = softmax_shape(&x, is_log);
            with_workspace(softmax.workspace_len(), |workspace| {
                softmax.backward(isa, values, d_values, &mut dx, workspace);
            });
            nothing()
        }
        Operation::Attention { heads, mask } => {
            let attention = attention_shape(&x, heads);
            with_workspace(attention.workspace_len(), |workspace| {
                let mask = mask_of(mask, weights);
                attention.backward(isa, values, mask, d_values, &mut dx, workspace);
            });
            nothing()
        }
        Operation::Scale => {
            let mut sums = ARENA.take::<f32>(weights.len());
            let sides = [values, d_values];
            pool::scale_backward(isa, pixels_channels(&x), sides, weights, &mut dx, &mut sums);
            (of_parameter(sums, &weight), nothing().1)
        }
        Operation::MaxPool { .. }
        | Operation::AveragePool
        | Operation::Upsample
        | Operation::Interpolate { .. }
        | Operation::Dropout { .. }
        | Operation::Repeat { .. }
        | Operation::SwapAxes
        | Operation::Cat
        | Operation::Add
        | Operation::Loss(_)
        | Operation::GlobalAverage { .. } => unreachable!("returned above"),
    };
    SingleGradients {
        input: tensor_of(dx, x.shape()),
        weight: d_weight,
        bias: d_bias,
    }
}

/// The pass of a convolution that is the operation; the other pass gives the gradient of its input.
#[derive(Clone, Copy)]
enum Way {
    Convolution,
    /// The pass that gives the gradient of the convolution's input.
    Transposed,
}

impl Way {
    fn run<E: Activation>(
        self,
        conv: &Conv2d,
        x: &[E],
        weight: &[f32],
        bias: Option<&[f32]>,
        y: &mut [E],
    ) {
        with_scratch(|scratch| match self {
            Self::Convolution => {
                let packed = scratch.packed.floats(conv.packed_forward_len());
                conv.pack_forward(weight, packed);
                let workspace = scratch.workspace.floats(conv.forward_workspace_len());
                conv.forward(
                    x,
                    packed,
                    y,
                    workspace,
                    bias.map_or(Epilogue::None, Epilogue::Bias),
                );
            }
            Self::Transposed => {
                let packed = scratch.packed.floats(conv.packed_data_gradient_len());
                conv.pack_data_gradient(weight, packed);
                let workspace = scratch.workspace.floats(conv.data_gradient_workspace_len());
                conv.data_gradient(
                    x,
                    packed,
                    bias.map_or(Addend::None, Addend::Bias),
                    y,
                    workspace,
                );
            }
        });
    }

    /// Writes dx, and returns the gradients of weight and bias, each if it is needed.
    fn gradients<E: Activation>(
        self,
        conv: &Conv2d,
        (x, weight, dy): (&[E], &[f32], &[E]),
        dx: &mut [E],
        [wants_dx, wants_dw, wants_db]: Wanted,
        isa: Isa,
    ) -> [Buffer<f32>; 2] {
        let (back, channels, images, gradients) = match self {
            Self::Convolution => (Self::Transposed, conv.shape().out_channels, x, dy),
            Self::Transposed => (Self::Convolution, conv.shape().in_channels, dy, x),
        };
        let [mut dw, mut db] = [weight.len(), channels].map(|len| ARENA.take::<f32>(len));
        if wants_dx {
            back.run(conv, dy, weight, None, dx);
        }
        if wants_dw {
            with_workspace(conv.weight_gradient_workspace_len(), |workspace| {
                conv.weight_gradient(images, gradients, &mut dw, workspace);
            });
        }
        if wants_db {
            with_workspace(
                conv2d::bias_gradient_workspace_len(dy.len() / channels, channels),
                |workspace| {
                    conv2d::bias_gradient(isa, dy, &mut db, workspace);
                },
            );
        }
        [dw, db]
    }
}

/// Returns two tensors side by side in the last axis.
fn joined<E: Activation>(left: &FlexTensor, right: &FlexTensor) -> SingleOutput<Flex> {
    let widths = [left, right].map(width);
    let [left_values, right_values] = [left, right].map(E::values);
    let mut y = ARENA.take::<E>(left_values.len() + right_values.len());
    copies::join(widths, [left_values, right_values], &mut y);
    SingleOutput {
        output: tensor_of(y, with_last(left.shape(), widths[0] + widths[1])),
        input: only_shape(left),
        weight: only_shape(right),
    }
}

fn sum<E: Activation>(left: &FlexTensor, right: &FlexTensor, isa: Isa) -> SingleOutput<Flex> {
    let sides = [left, right].map(E::values);
    let mut y = ARENA.take::<E>(sides[0].len());
    activation::add(isa, sides, &mut y);
    let (unused, _) = nothing();
    SingleOutput {
        output: tensor_of(y, left.shape()),
        input: unused.clone(),
        weight: unused,
    }
}

/// Returns the gradients of two tensors that were put side by side.
fn of_joined<E: Activation>(saved: &SingleSaved<Flex>, dy: &FlexTensor) -> SingleGradients<Flex> {
    let sides = [&saved.input, &saved.weight];
    let [mut left, mut right] = sides.map(|side| ARENA.take::<E>(side.shape().num_elements()));
    copies::part(sides.map(width), E::values(dy), [&mut left, &mut right]);
    SingleGradients {
        input: tensor_of(left, sides[0].shape()),
        weight: tensor_of(right, sides[1].shape()),
        bias: nothing().1,
    }
}

/// Returns the length of the last axis.
fn width(tensor: &FlexTensor) -> usize {
    tensor
        .shape()
        .as_slice()
        .last()
        .copied()
        .unwrap_or_default()
}

/// Returns the number of pixels of an image, and of channels.
fn pixels_channels(x: &FlexTensor) -> [usize; 2] {
    let [_, height, width, channels] = x.shape().dims();
    [height * width, channels]
}

/// Computes a max pool, and keeps the place of each maximum.
fn maxima<E: Activation>(x: &FlexTensor, window: usize, isa: Isa) -> SingleOutput<Flex> {
    let shape = pool_shape(x, window);
    let mut y = ARENA.take::<E>(shape.output_len());
    let num_floats = shape.output_len().div_ceil(size_of::<f32>());
    let mut taps = ARENA.take::<f32>(num_floats);
    pool::max_pool(
        isa,
        shape,
        E::values(x),
        &mut y,
        &mut bytemuck::cast_slice_mut(&mut taps)[..shape.output_len()],
    );
    SingleOutput {
        output: tensor_of(
            y,
            [
                shape.num_images,
                shape.height_out(),
                shape.width_out(),
                shape.channels,
            ],
        ),
        input: only_shape(x),
        weight: tensor_of(taps, [num_floats]),
    }
}

/// Returns the gradient of a max pool's input.
fn of_maxima<E: Activation>(
    saved: &SingleSaved<Flex>,
    dy: FlexTensor,
    window: usize,
    isa: Isa,
) -> SingleGradients<Flex> {
    let shape = pool_shape(&saved.input, window);
    let taps = &bytemuck::cast_slice(floats(&saved.weight))[..shape.output_len()];
    let mut dx = ARENA.take::<E>(shape.input_len());
    pool::max_pool_backward(isa, shape, E::values(&dy), taps, &mut dx);
    of_input(dx, saved.input.shape())
}

/// Returns the gradient of the input of an average pool or of an upsampling.
fn of_windows<E: Activation>(
    saved: &SingleSaved<Flex>,
    dy: FlexTensor,
    operation: Operation,
    isa: Isa,
) -> SingleGradients<Flex> {
    let shape = saved.input.shape();
    let mut dx = ARENA.take::<E>(shape.num_elements());
    match operation {
        Operation::Upsample => {
            pool::halve(isa, dy.shape().dims(), 1.0, E::values(&dy), &mut dx);
        }
        _ => pool::double(isa, shape.dims(), 0.25, E::values(&dy), &mut dx),
    }
    of_input(dx, shape)
}

/// Returns the axes of an interpolation of an image of these extents.
fn axes(operation: Operation, [height, width]: [usize; 2]) -> [Axis; 2] {
    let Operation::Interpolate {
        way,
        size: [to_height, to_width],
        align_corners,
    } = operation
    else {
        unreachable!("called for interpolations");
    };
    [[height, to_height], [width, to_width]].map(|extents| Axis::new(way, extents, align_corners))
}

fn resample<E: Activation>(
    isa: Isa,
    [rows, columns]: &[Axis; 2],
    images_channels @ [_, channels]: [usize; 2],
    x: &[E],
    y: &mut [E],
) {
    let axes = [rows, columns];
    with_workspace(pool::resample_workspace_len(axes, channels), |workspace| {
        pool::resample(isa, axes, images_channels, x, y, workspace);
    });
}

/// Returns the gradient of a mean's input, in the format `E`, plus the addend.
fn of_means<E: Activation>(
    dy: &FlexTensor,
    shape: [usize; 4],
    addend: Option<FlexTensor>,
    isa: Isa,
) -> SingleGradients<Flex> {
    let [_, height, width, channels] = shape;
    let mut dx = ARENA.take::<E>(shape.iter().product());
    let addend = addend.as_ref().map(E::values);
    pool::global_average_backward(isa, floats(dy), height * width, channels, addend, &mut dx);
    of_input(dx, shape)
}

/// Returns the gradients of a loss: only the logits, which are of the format `E`, have one.
fn of_logits<E: Activation>(
    loss: Loss,
    logits: FlexTensor,
    targets: &FlexTensor,
    scale: &FlexTensor,
) -> SingleGradients<Flex> {
    let logits = f32::activations(logits);
    let values = floats(&logits);
    let mut gradient = ARENA.take::<f32>(values.len());
    let classes = num_classes(&logits);
    let [scale, ..] = floats(scale) else {
        panic!("loss: expected the gradient of a sum");
    };
    loss.gradient(*scale, values, floats(targets), classes, &mut gradient);
    let mut gradients = of_input(gradient, logits.shape());
    if E::STORAGE == Storage::Bf16 {
        gradients.input = converted::<f32, E>(floats(&gradients.input), logits.shape());
    }
    gradients
}

fn num_classes(logits: &FlexTensor) -> usize {
    let [_, classes] = logits.shape().dims();
    classes
}

/// Returns the gradients of an empty batch: zeros.
fn of_empty(x: FlexTensor, dy: FlexTensor, weight: &FlexTensor) -> SingleGradients<Flex> {
    let zeros = |shape: Shape| {
        tensor(vec![0.0; shape.num_elements()], [shape.num_elements()]).reshape(shape)
    };
    let channels = dy.shape().as_slice().last().copied().unwrap_or_default();
    SingleGradients {
        input: x,
        weight: zeros(weight.shape()),
        bias: zeros(Shape::new([channels])),
    }
}

/// Returns the 1x1 convolution of one row of pixels whose input gradient is the linear layer.
///
/// So burn's weight `[C_in, C_out]` is the convolution's weight without a copy.
fn product(x: &FlexTensor, weight: &FlexTensor) -> Conv2dShape {
    let [out_channels, in_channels] = weight.shape().dims();
    let width = x.shape().num_elements() / out_channels;
    Conv2dShape {
        batch: 1,
        height: 1,
        width,
        in_channels,
        out_channels,
        kernel: [1, 1],
        stride: 1,
        padding: [0, 0],
        groups: 1,
    }
}

fn attention_shape(x: &FlexTensor, heads: usize) -> Attention {
    let [images, tokens, channels] = x.shape().dims();
    Attention {
        images,
        tokens,
        heads,
        width: channels / (3 * heads),
    }
}

fn mask_of(mask: MaskKind, scores: &[f32]) -> Mask<'_> {
    match mask {
        MaskKind::None => Mask::None,
        MaskKind::Causal => Mask::Causal,
        MaskKind::Added => Mask::Added(scores),
    }
}

fn group_norm_shape(x: &FlexTensor, groups: usize, epsilon: f32) -> GroupNorm {
    let [_, height, width, channels] = x.shape().dims();
    GroupNorm {
        pixels: height * width,
        channels,
        groups,
        epsilon,
    }
}

fn softmax_shape(x: &FlexTensor, is_log: bool) -> Softmax {
    Softmax {
        channels: width(x),
        is_log,
    }
}

fn pool_shape(x: &FlexTensor, window: usize) -> MaxPoolShape {
    let [num_images, height, width, channels] = x.shape().dims();
    MaxPoolShape {
        num_images,
        height,
        width,
        channels,
        window,
    }
}

fn with_workspace<T>(len: usize, work: impl FnOnce(&mut [f32]) -> T) -> T {
    with_scratch(|scratch| work(scratch.workspace.floats(len)))
}

/// Returns a gradient of a parameter's shape.
fn of_parameter(values: Buffer<f32>, parameter: &FlexTensor) -> FlexTensor {
    tensor_of(values, parameter.shape())
}

/// Returns the shape with another last axis.
fn with_last(mut shape: Shape, last: usize) -> Shape {
    let axis = shape.num_dims() - 1;
    shape[axis] = last;
    shape
}

/// Returns the gradient of an input without parameters.
fn of_input<E: Activation>(dx: Buffer<E>, shape: impl Into<Shape>) -> SingleGradients<Flex> {
    let (weight, bias) = nothing();
    SingleGradients {
        input: tensor_of(dx, shape),
        weight,
        bias,
    }
}

/// Returns tensors for absent parameters.
fn nothing() -> (FlexTensor, FlexTensor) {
    (tensor(vec![0.0], [1]), tensor(vec![0.0], [1]))
}
