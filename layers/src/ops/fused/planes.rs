//! Batch normalisation in training on Flex, of activations that lie in planes `[N, C, H, W]`.
//!
//! In and out: views `[N, H, W, C]` of contiguous planes of f32.
//! Invariant: sums are added in index order in f64 on one thread, and equal the composed body
//! within f32 rounding.
//! Why: Flex's own convolution reads and writes planes, and the tensors between burn's own
//! operations are views of them. These loops run over planes and return such views, so no
//! operation copies.

use burn::backend::flex::FlexTensor;
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::TensorData;
use kernels::batch_norm::Rectifier;

use super::{LayerGradients, LayerOptions, LayerOutput, LayerSaved};
use crate::ops::memory::{contiguous, floats, inverse_std, inverse_stds, tensor, to_f32};
use crate::ops::statistics::{GradientSums, Moments};

/// Returns whether the normalisation of `input` takes this body.
pub(in crate::ops) fn takes(input: &FlexTensor, options: &LayerOptions) -> bool {
    options.convolution.is_none() && options.rectifier == Rectifier::None && !input.is_contiguous()
}

pub(in crate::ops) fn forward(
    input: FlexTensor,
    gamma: FlexTensor,
    beta: FlexTensor,
    options: &LayerOptions,
) -> LayerOutput<Flex> {
    let planes = Planes::of(&input);
    let moments = planes.moments().reduce(options.reducer.as_deref());
    let mean = to_f32(&moments.mean);
    let variance = to_f32(&moments.variance());
    let scale = scales(&gamma, &variance, options.epsilon);
    let beta = contiguous(beta);
    let shift = floats(&beta);
    let output = planes.map(|channel, plane, out| {
        let mean = mean[channel];
        let scale = scale[channel];
        let shift = shift[channel];
        out.extend(plane.iter().map(|x| (x - mean) * scale + shift));
    });
    let channels = mean.len();
    LayerOutput {
        output,
        kept_output: input.clone(),
        kept_convolved: input.clone(),
        kept_input: input,
        mean: tensor(mean, [channels]),
        variance: tensor(variance, [channels]),
        num_values: moments.count,
    }
}

pub(in crate::ops) fn backward(
    saved: LayerSaved<Flex>,
    output_gradient: FlexTensor,
    options: &LayerOptions,
) -> LayerGradients<Flex> {
    let x = Planes::of(&saved.convolved);
    let dy = Planes::of(&output_gradient);
    let [mean, variance] = [saved.mean, saved.variance].map(contiguous);
    let mean = floats(&mean);
    let inverse_std = inverse_stds(floats(&variance), options.epsilon);
    let local = x.gradient_sums(&dy, mean, &inverse_std);
    let all = local.reduce(options.reducer.as_deref());

    let scale = scales(&saved.gamma, floats(&variance), options.epsilon);
    let dy_planes = dy.values();
    let len = dy.plane_len;
    let mut start = 0;
    let dx = x.map(|channel, plane, out| {
        let mean = mean[channel];
        let scale = scale[channel];
        let offset = (all.plain[channel] / saved.num_values) as f32;
        // xhat * S2 / n, with xhat = (x - mean) * inverse_std.
        let slope = (all.with_normalised[channel] / saved.num_values) as f32 * inverse_std[channel];
        let dy = &dy_planes[start..start + len];
        start += len;
        out.extend(
            plane
                .iter()
                .zip(dy)
                .map(|(x, dy)| scale * (dy - offset - (x - mean) * slope)),
        );
    });
    let channels = mean.len();
    LayerGradients {
        input: dx,
        gamma: tensor(to_f32(&local.with_normalised), [channels]),
        beta: tensor(to_f32(&local.plain), [channels]),
        residual: saved.weight.clone(),
        weight: saved.weight,
    }
}

/// A tensor as contiguous planes `[N, C, H, W]`.
struct Planes {
    tensor: FlexTensor,
    shape: [usize; 4],
    plane_len: usize,
}

impl Planes {
    /// Returns the planes: free for a view of planes, one copy for any other `[N, H, W, C]` tensor.
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
        floats(&self.tensor)
    }

    /// Returns each plane with its channel, in memory order.
    fn iter(&self) -> impl Iterator<Item = (usize, &[f32])> {
        let num_channels = self.shape[1];
        let planes = self.values().chunks_exact(self.plane_len.max(1));
        planes
            .enumerate()
            .map(move |(i, plane)| (i % num_channels, plane))
    }

    /// Returns a tensor `[N, H, W, C]`, a view of planes, of the values that `write` appends for
    /// each plane.
    fn map(&self, mut write: impl FnMut(usize, &[f32], &mut Vec<f32>)) -> FlexTensor {
        let mut out = Vec::with_capacity(self.values().len());
        for (channel, plane) in self.iter() {
            write(channel, plane, &mut out);
        }
        FlexTensor::from_data(TensorData::new(out, self.shape)).permute(&[0, 2, 3, 1])
    }

    /// Returns the moments of each channel.
    ///
    /// The mean and squared deviations of a plane are taken while it is in the first cache, then
    /// merged by Chan's formula: one pass over memory, and no cancellation.
    fn moments(&self) -> Moments {
        let mut all = Moments::empty(self.shape[1]);
        let len = self.plane_len as f64;
        for (i, (channel, plane)) in self.iter().enumerate() {
            let seen = (i / self.shape[1]) as f64 * len;
            let mean = sum_of(plane, |x| f64::from(*x)) / len;
            let squares = sum_of(plane, |x| {
                let deviation = f64::from(*x) - mean;
                deviation * deviation
            });
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
            let mean = f64::from(mean[channel]);
            let inverse_std = f64::from(inverse_std[channel]);
            sums.plain[channel] += sum_of(dy, |dy| f64::from(*dy));
            let deviations = sum_pairs(x, dy, |x, dy| (f64::from(x) - mean) * f64::from(dy));
            sums.with_normalised[channel] += deviations * inverse_std;
        }
        sums
    }
}

/// Eight running sums let the compiler use vector registers; their order is fixed.
const LANES: usize = 8;

fn sum_of(values: &[f32], term: impl Fn(&f32) -> f64) -> f64 {
    let mut lanes = [0.0; LANES];
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane += term(x);
        }
    }
    lanes.iter().sum::<f64>() + rest.iter().map(term).sum::<f64>()
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

fn scales(gamma: &FlexTensor, variance: &[f32], epsilon: f64) -> Vec<f32> {
    let gamma = contiguous(gamma.clone());
    let pairs = floats(&gamma).iter().zip(variance);
    pairs
        .map(|(gamma, &variance)| gamma * inverse_std(variance, epsilon))
        .collect()
}
