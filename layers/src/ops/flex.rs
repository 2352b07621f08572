//! Which body computes an operation on Flex; and batch normalisation in training of planes: two passes over memory forward, two backward.
//!
//! In and out: as the trait says. Invariant: sums are added in index order in f64, so the result
//! does not depend on threads (there are none), and equals the composed body within f32 rounding.
//! Activations of f16 are computed in f32, by the same kernels, and what a layer gives is rounded to f16; links between layers, which share
//! what is not rounded, are left out.
//! Layout: Flex's convolution reads and writes planes `[N, C, H, W]`, and the `[N, H, W, C]` tensors between burn's own operations are
//! views of them; so these loops run over planes and return such views, and nothing is copied. What really lies channels-last is our
//! kernels' affair.

use burn::backend::flex::FlexTensor;
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::{DType, FloatDType, TensorData, bf16};
use kernels::batch_norm::Rectifier;

use super::memory::rounded_to_f16;
use super::statistics::{GradientSums, Moments};
use super::{
    BatchNormGradients, BatchNormOptions, BatchNormOutput, BatchNormSaved, FusedGradients,
    FusedOptions, FusedOutput, FusedSaved, LayerOps, average, channels_last, composed, fused,
};

impl LayerOps for Flex {
    fn batch_norm_train(
        input: FlexTensor,
        gamma: FlexTensor,
        beta: FlexTensor,
        options: BatchNormOptions,
    ) -> BatchNormOutput<Self> {
        let is_last = input.is_contiguous() || options.rectifier != Rectifier::None;
        match input.dtype() {
            DType::F32 if is_last => {
                return channels_last::forward::<f32>(input, gamma, beta, &options);
            }
            DType::F32 => {}
            DType::BF16 => return channels_last::forward::<bf16>(input, gamma, beta, &options),
            DType::F16 => {
                let batch = channels_last::forward::<f32>(
                    input,
                    gamma,
                    beta,
                    &BatchNormOptions {
                        output: None,
                        ..options
                    },
                );
                return BatchNormOutput {
                    output: rounded_to_f16(batch.output),
                    ..batch
                };
            }
            _ => return composed::forward::<Self>(input, gamma, beta, &options),
        }
        let input = Planes::of(&input);
        let moments = input.moments().reduce(options.reducer.as_deref());
        let mean = to_f32(&moments.mean);
        let variance = to_f32(&moments.variance());
        let scale = scales(&gamma, &variance, options.epsilon);
        let beta = channel_values(&beta);
        let output = input.map(|channel, plane, out| {
            let (mean, scale, shift) = (mean[channel], scale[channel], beta[channel]);
            out.extend(plane.iter().map(|x| (x - mean) * scale + shift));
        });
        BatchNormOutput {
            output,
            mean: from_channel_values(mean),
            variance: from_channel_values(variance),
            num_values: moments.count,
        }
    }

    fn batch_norm_train_backward(
        saved: BatchNormSaved<Self>,
        output_gradient: FlexTensor,
        options: BatchNormOptions,
    ) -> BatchNormGradients<Self> {
        let is_last = saved.input.is_contiguous() || options.rectifier != Rectifier::None;
        match saved.input.dtype() {
            DType::F32 if is_last => {
                return channels_last::backward::<f32>(saved, output_gradient, &options);
            }
            DType::F32 => {}
            DType::BF16 => {
                return channels_last::backward::<bf16>(saved, output_gradient, &options);
            }
            DType::F16 => {
                let options = BatchNormOptions {
                    output: None,
                    ..options
                };
                let gradients = channels_last::backward::<f32>(saved, output_gradient, &options);
                return BatchNormGradients {
                    input: rounded_to_f16(gradients.input),
                    ..gradients
                };
            }
            _ => return composed::backward::<Self>(saved, output_gradient, &options),
        }
        let BatchNormSaved {
            input,
            gamma,
            mean,
            variance,
            num_values,
            ..
        } = saved;
        let (input, dy) = (Planes::of(&input), Planes::of(&output_gradient));
        let (mean, variance) = (channel_values(&mean), channel_values(&variance));
        let inverse_std = inverse_stds(&variance, options.epsilon);
        let local = input.gradient_sums(&dy, &mean, &inverse_std);
        let all = local.reduce(options.reducer.as_deref());

        let scale = scales(&gamma, &variance, options.epsilon);
        let dy_planes = dy.values();
        let len = dy.plane_len;
        let mut start = 0;
        let dx = input.map(|channel, plane, out| {
            let (mean, scale) = (mean[channel], scale[channel]);
            let offset = (all.plain[channel] / num_values) as f32;
            // xhat * S2 / n, with xhat = (x - mean) * inverse_std.
            let slope = (all.with_normalised[channel] / num_values) as f32 * inverse_std[channel];
            let dy = &dy_planes[start..start + len];
            start += len;
            out.extend(
                plane
                    .iter()
                    .zip(dy)
                    .map(|(x, dy)| scale * (dy - offset - (x - mean) * slope)),
            );
        });
        BatchNormGradients {
            input: dx,
            gamma: from_channel_values(to_f32(&local.with_normalised)),
            beta: from_channel_values(to_f32(&local.plain)),
        }
    }

    fn fused_train(
        input: FlexTensor,
        weight: FlexTensor,
        gamma: FlexTensor,
        beta: FlexTensor,
        residual: FlexTensor,
        options: FusedOptions,
    ) -> FusedOutput<Self> {
        match input.dtype() {
            DType::F32 => {
                fused::flex::forward::<f32>(input, weight, gamma, beta, residual, options)
            }
            DType::BF16 => {
                fused::flex::forward::<bf16>(input, weight, gamma, beta, residual, options)
            }
            DType::F16 => {
                let fused = fused::flex::forward::<f32>(
                    input,
                    weight,
                    gamma,
                    beta,
                    residual,
                    unlinked(options),
                );
                FusedOutput {
                    output: rounded_to_f16(fused.output),
                    ..fused
                }
            }
            _ => fused::composed::forward::<Self>(input, weight, gamma, beta, residual, options),
        }
    }

    fn fused_inference(
        input: FlexTensor,
        weight: FlexTensor,
        scale: FlexTensor,
        shift: FlexTensor,
        residual: FlexTensor,
        options: FusedOptions,
    ) -> FlexTensor {
        match input.dtype() {
            // Our kernels refuse an empty batch.
            _ if input.shape().num_elements() == 0 => {
                fused::composed::inference::<Self>(input, weight, scale, shift, residual, &options)
            }
            DType::F32 => {
                fused::flex::inference::<f32>(input, weight, scale, shift, residual, &options)
            }
            DType::BF16 => {
                fused::flex::inference::<bf16>(input, weight, scale, shift, residual, &options)
            }
            DType::F16 => rounded_to_f16(fused::flex::inference::<f32>(
                input, weight, scale, shift, residual, &options,
            )),
            _ => {
                fused::composed::inference::<Self>(input, weight, scale, shift, residual, &options)
            }
        }
    }

    fn fused_train_kept(saved: FusedSaved<Self>, options: FusedOptions) -> FusedSaved<Self> {
        match saved.input.dtype() {
            DType::F32 | DType::BF16 => fused::flex::kept(saved, &options),
            DType::F16 => fused::flex::kept(saved, &unlinked(options)),
            _ => saved,
        }
    }

    fn fused_train_backward(
        saved: FusedSaved<Self>,
        output_gradient: FlexTensor,
        options: FusedOptions,
    ) -> FusedGradients<Self> {
        match saved.input.dtype() {
            DType::F32 => fused::flex::backward::<f32>(saved, output_gradient, options),
            DType::BF16 => fused::flex::backward::<bf16>(saved, output_gradient, options),
            DType::F16 => {
                let gradients =
                    fused::flex::backward::<f32>(saved, output_gradient, unlinked(options));
                let [input, residual] = [gradients.input, gradients.residual].map(rounded_to_f16);
                FusedGradients {
                    input,
                    residual,
                    ..gradients
                }
            }
            _ => fused::composed::backward::<Self>(saved, output_gradient, options),
        }
    }

    fn global_average(input: FlexTensor) -> FlexTensor {
        match input.dtype() {
            DType::F32 => fused::flex::global_average::<f32>(input),
            DType::BF16 => fused::flex::global_average::<bf16>(input),
            DType::F16 => fused::flex::global_average::<f32>(input),
            _ => average::composed::<Self>(input),
        }
    }

    fn global_average_backward(
        output_gradient: FlexTensor,
        shape: [usize; 4],
        dtype: FloatDType,
    ) -> FlexTensor {
        match (output_gradient.dtype(), dtype) {
            (DType::F32, FloatDType::F32) => {
                fused::flex::global_average_backward::<f32>(output_gradient, shape)
            }
            (DType::F32, FloatDType::BF16) => {
                fused::flex::global_average_backward::<bf16>(output_gradient, shape)
            }
            (DType::F32, FloatDType::F16) => rounded_to_f16(
                fused::flex::global_average_backward::<f32>(output_gradient, shape),
            ),
            _ => average::composed_backward::<Self>(output_gradient, shape, dtype),
        }
    }
}

/// The options of a layer that shares nothing with those before and after it.
fn unlinked(options: FusedOptions) -> FusedOptions {
    FusedOptions {
        input: None,
        residual_from: None,
        output: None,
        ..options
    }
}

/// A tensor as contiguous planes `[N, C, H, W]`.
struct Planes {
    tensor: FlexTensor,
    shape: [usize; 4],
    plane_len: usize,
}

impl Planes {
    /// Free for a view of such planes, one copy for any other `[N, H, W, C]` tensor.
    fn of(channels_last: &FlexTensor) -> Self {
        let tensor = channels_last.permute(&[0, 3, 1, 2]).to_contiguous();
        let shape: [usize; 4] = tensor.shape().dims();
        Self {
            tensor,
            shape,
            plane_len: shape[2] * shape[3],
        }
    }

    fn values(&self) -> &[f32] {
        self.tensor
            .as_slice()
            .expect("contiguous and f32: checked by the callers")
    }

    /// Each plane with its channel, in memory order.
    fn iter(&self) -> impl Iterator<Item = (usize, &[f32])> {
        let num_channels = self.shape[1];
        let planes = self.values().chunks_exact(self.plane_len.max(1));
        planes
            .enumerate()
            .map(move |(i, plane)| (i % num_channels, plane))
    }

    /// A tensor `[N, H, W, C]` (a view of planes) of what `write` appends for each plane.
    fn map(&self, mut write: impl FnMut(usize, &[f32], &mut Vec<f32>)) -> FlexTensor {
        let mut out = Vec::with_capacity(self.values().len());
        for (channel, plane) in self.iter() {
            write(channel, plane, &mut out);
        }
        FlexTensor::from_data(TensorData::new(out, self.shape)).permute(&[0, 2, 3, 1])
    }

    /// Moments of each channel. A plane's mean and squared deviations are taken while it is in the
    /// first cache, then merged by Chan's formula: one pass over memory, and no cancellation.
    fn moments(&self) -> Moments {
        let mut all = Moments::empty(self.shape[1]);
        let len = self.plane_len as f64;
        for (i, (channel, plane)) in self.iter().enumerate() {
            let seen = (i / self.shape[1]) as f64 * len;
            let mean = sum(plane, f64::from) / len;
            let squares = sum(plane, |x| (f64::from(x) - mean) * (f64::from(x) - mean));
            let delta = mean - all.mean[channel];
            let share = len / (seen + len);
            all.mean[channel] += delta * share;
            all.squares[channel] += squares + delta * delta * seen * share;
        }
        all.count = self.shape[0] as f64 * len;
        all
    }

    fn gradient_sums(&self, dy: &Self, mean: &[f32], inverse_std: &[f32]) -> GradientSums {
        let num_channels = self.shape[1];
        let mut sums = GradientSums {
            plain: vec![0.0; num_channels],
            with_normalised: vec![0.0; num_channels],
        };
        for ((channel, x), (_, dy)) in self.iter().zip(dy.iter()) {
            let (mean, inverse_std) = (f64::from(mean[channel]), f64::from(inverse_std[channel]));
            sums.plain[channel] += sum(dy, f64::from);
            let deviations = sum_pairs(x, dy, |x, dy| (f64::from(x) - mean) * f64::from(dy));
            sums.with_normalised[channel] += deviations * inverse_std;
        }
        sums
    }
}

/// Eight running sums let the compiler use vector registers; their order is fixed.
const LANES: usize = 8;

fn sum(values: &[f32], term: impl Fn(f32) -> f64) -> f64 {
    let mut lanes = [0.0; LANES];
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane += term(x);
        }
    }
    lanes.iter().sum::<f64>() + rest.iter().map(|&x| term(x)).sum::<f64>()
}

fn sum_pairs(left: &[f32], right: &[f32], term: impl Fn(f32, f32) -> f64) -> f64 {
    let mut lanes = [0.0; LANES];
    let (left_chunks, left_rest) = left.as_chunks::<LANES>();
    let (right_chunks, right_rest) = right.as_chunks::<LANES>();
    for (left, right) in left_chunks.iter().zip(right_chunks) {
        for ((lane, &x), &y) in lanes.iter_mut().zip(left).zip(right) {
            *lane += term(x, y);
        }
    }
    let rest = left_rest.iter().zip(right_rest).map(|(&x, &y)| term(x, y));
    lanes.iter().sum::<f64>() + rest.sum::<f64>()
}

fn inverse_std(variance: f32, epsilon: f64) -> f32 {
    (1.0 / (f64::from(variance) + epsilon).sqrt()) as f32
}

pub(super) fn inverse_stds(variances: &[f32], epsilon: f64) -> Vec<f32> {
    variances
        .iter()
        .map(|&variance| inverse_std(variance, epsilon))
        .collect()
}

fn scales(gamma: &FlexTensor, variance: &[f32], epsilon: f64) -> Vec<f32> {
    let gamma = channel_values(gamma);
    gamma
        .iter()
        .zip(variance)
        .map(|(gamma, &v)| gamma * inverse_std(v, epsilon))
        .collect()
}

fn channel_values(tensor: &FlexTensor) -> Vec<f32> {
    tensor
        .to_contiguous()
        .as_slice()
        .expect("gamma, beta and statistics have the input's type, f32")
        .to_vec()
}

fn from_channel_values(values: Vec<f32>) -> FlexTensor {
    let num_channels = values.len();
    FlexTensor::from_data(TensorData::new(values, [num_channels]))
}

pub(super) fn to_f32(values: &[f64]) -> Vec<f32> {
    values.iter().map(|&v| v as f32).collect()
}
