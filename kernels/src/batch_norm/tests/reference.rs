//! Batch normalisation as plain loops in f64.

use super::{Rectifier, ShortcutA};

/// Mean and biased variance of every channel.
pub(super) fn moments(x: &[f64], channels: usize) -> (Vec<f64>, Vec<f64>) {
    let rows = (x.len() / channels) as f64;
    let mut mean = vec![0.0; channels];
    for (i, x) in x.iter().enumerate() {
        mean[i % channels] += x / rows;
    }
    let mut variance = vec![0.0; channels];
    for (i, x) in x.iter().enumerate() {
        variance[i % channels] += (x - mean[i % channels]).powi(2) / rows;
    }
    (mean, variance)
}

/// gamma · (x - mean) / sqrt(variance + epsilon) + beta + residual, then the rectifier, with the
/// statistics of `x`.
pub(super) fn forward(
    x: &[f64],
    gamma: &[f64],
    beta: &[f64],
    residual: &[f64],
    rectifier: Rectifier,
    epsilon: f64,
) -> Vec<f64> {
    let channels = gamma.len();
    let (mean, variance) = moments(x, channels);
    let value = |i: usize| {
        let c = i % channels;
        let y =
            gamma[c] * (x[i] - mean[c]) / (variance[c] + epsilon).sqrt() + beta[c] + residual[i];
        match rectifier {
            Rectifier::None => y,
            Rectifier::Relu => y.max(0.0),
            Rectifier::Relu6 => y.clamp(0.0, 6.0),
        }
    };
    (0..x.len()).map(value).collect()
}

/// The option A shortcut of a block's input, stored.
pub(super) fn shortcut(shape: ShortcutA, input: &[f64]) -> Vec<f64> {
    let ShortcutA {
        num_images,
        height,
        width,
        channels_in,
        channels,
    } = shape;
    let offset = (channels - channels_in) / 2;
    let mut output = Vec::new();
    for image in 0..num_images {
        for row in (0..height).step_by(2) {
            for column in (0..width).step_by(2) {
                for channel in 0..channels {
                    let pixel = ((image * height + row) * width + column) * channels_in;
                    let inside = (offset..offset + channels_in).contains(&channel);
                    output.push(if inside {
                        input[pixel + channel - offset]
                    } else {
                        0.0
                    });
                }
            }
        }
    }
    output
}
