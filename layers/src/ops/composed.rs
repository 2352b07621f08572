//! Batch normalisation in training, composed of burn's operations.
//!
//! In and out: as the trait says. Invariant: without a reducer nothing leaves the device; with one
//! the sums of each channel pass through the host in f64. Activations of 16 bits are computed with in f32.

use burn::backend::tensor::{Device, FloatTensor};
use burn::backend::{Backend, Scalar, TensorMetadata, read_sync};
use burn::tensor::{DType, FloatDType, Shape, TensorData};

use kernels::batch_norm::Rectifier;

use super::statistics::{GradientSums, Moments};
use super::{BatchNormGradients, BatchNormOptions, BatchNormOutput, BatchNormSaved};

pub(super) fn forward<B: Backend>(
    input: FloatTensor<B>,
    gamma: FloatTensor<B>,
    beta: FloatTensor<B>,
    options: &BatchNormOptions,
) -> BatchNormOutput<B> {
    let shape = input.shape();
    let device = input.device();
    let [rows, channels] = rows_and_channels(&shape);
    let stored = FloatDType::from(input.dtype());
    let table = B::float_reshape(widen::<B>(input), Shape::new([rows, channels]));

    // Deviations are squared, not values: E[x^2] - E[x]^2 in f32 loses the variance of a channel
    // whose mean is large.
    let mut mean = B::float_mean_dim(table.clone(), 0);
    let centred = B::float_sub(table.clone(), mean.clone());
    let mut variance = B::float_mean_dim(B::float_mul(centred.clone(), centred), 0);
    let mut num_values = rows as f64;
    if let Some(reducer) = options.reducer.as_deref() {
        let moments = Moments {
            count: num_values,
            mean: to_host::<B>(mean),
            squares: to_host::<B>(variance).iter().map(|v| v * num_values).collect(),
        }
        .reduce(Some(reducer));
        mean = from_host::<B>(&moments.mean, &device);
        variance = from_host::<B>(&moments.variance(), &device);
        num_values = moments.count;
    }

    let scale = B::float_mul(as_row::<B>(gamma), inverse_std::<B>(variance.clone(), options));
    let output = B::float_mul(B::float_sub(table, mean.clone()), scale);
    let output = B::float_add(output, as_row::<B>(beta));
    BatchNormOutput {
        output: round::<B>(B::float_reshape(rectified::<B>(options.rectifier, output), shape), stored),
        mean: B::float_reshape(mean, Shape::new([channels])),
        variance: B::float_reshape(variance, Shape::new([channels])),
        num_values,
    }
}

pub(super) fn backward<B: Backend>(
    saved: BatchNormSaved<B>,
    output_gradient: FloatTensor<B>,
    options: &BatchNormOptions,
) -> BatchNormGradients<B> {
    let shape = saved.input.shape();
    let device = saved.input.device();
    let [rows, channels] = rows_and_channels(&shape);
    let stored = FloatDType::from(saved.input.dtype());
    let [dy, table] =
        [output_gradient, saved.input].map(|tensor| B::float_reshape(widen::<B>(tensor), Shape::new([rows, channels])));
    let inverse_std = inverse_std::<B>(as_row::<B>(saved.variance), options);
    let centred = B::float_sub(table, as_row::<B>(saved.mean));
    let normalised = B::float_mul(centred, inverse_std.clone());
    let dy = match options.rectifier {
        Rectifier::None => dy,
        rectifier => {
            let scaled = B::float_mul(normalised.clone(), as_row::<B>(saved.gamma.clone()));
            behind::<B>(rectifier, B::float_add(scaled, as_row::<B>(saved.beta)), dy)
        }
    };

    let beta = B::float_sum_dim(dy.clone(), 0);
    let gamma = B::float_sum_dim(B::float_mul(dy.clone(), normalised.clone()), 0);
    let mut sums = [beta.clone(), gamma.clone()];
    if let Some(reducer) = options.reducer.as_deref() {
        let all = GradientSums { plain: to_host::<B>(beta.clone()), with_normalised: to_host::<B>(gamma.clone()) }
            .reduce(Some(reducer));
        sums = [&all.plain, &all.with_normalised].map(|values| from_host::<B>(values, &device));
    }

    let share = Scalar::Float(1.0 / saved.num_values);
    let [plain, with_normalised] = sums.map(|sum| B::float_mul_scalar(sum, share));
    let projected = B::float_mul(normalised, with_normalised);
    let dx = B::float_sub(B::float_sub(dy, plain), projected);
    let dx = B::float_mul(dx, B::float_mul(as_row::<B>(saved.gamma), inverse_std));
    BatchNormGradients {
        input: round::<B>(B::float_reshape(dx, shape), stored),
        gamma: B::float_reshape(gamma, Shape::new([channels])),
        beta: B::float_reshape(beta, Shape::new([channels])),
    }
}

/// A rectifier's output.
pub(super) fn rectified<B: Backend>(rectifier: Rectifier, values: FloatTensor<B>) -> FloatTensor<B> {
    match rectifier {
        Rectifier::None => values,
        Rectifier::Relu => B::relu(values),
        Rectifier::Relu6 => B::float_clamp(values, Scalar::Float(0.0), Scalar::Float(6.0)),
    }
}

/// The gradient behind a rectifier of which these are the inputs or outputs: `dy` where the derivative is not 0.
pub(super) fn behind<B: Backend>(rectifier: Rectifier, values: FloatTensor<B>, dy: FloatTensor<B>) -> FloatTensor<B> {
    let above = B::relu_backward(values.clone(), dy);
    match rectifier {
        Rectifier::Relu6 => {
            // Above 6 where 6 - x is not above 0.
            let room = B::float_add_scalar(B::float_neg(values), Scalar::Float(6.0));
            B::relu_backward(room, above)
        }
        _ => above,
    }
}

/// What is narrower than f32 as f32.
pub(super) fn widen<B: Backend>(tensor: FloatTensor<B>) -> FloatTensor<B> {
    match tensor.dtype() {
        DType::BF16 | DType::F16 => B::float_cast(tensor, FloatDType::F32),
        _ => tensor,
    }
}

/// In this type, rounded to the nearest.
pub(super) fn round<B: Backend>(tensor: FloatTensor<B>, to: FloatDType) -> FloatTensor<B> {
    if FloatDType::from(tensor.dtype()) == to { tensor } else { B::float_cast(tensor, to) }
}

fn rows_and_channels(shape: &Shape) -> [usize; 2] {
    let [n, h, w, channels] = shape.dims();
    [n * h * w, channels]
}

fn as_row<B: Backend>(values: FloatTensor<B>) -> FloatTensor<B> {
    let channels = values.shape().num_elements();
    B::float_reshape(values, Shape::new([1, channels]))
}

fn inverse_std<B: Backend>(variance: FloatTensor<B>, options: &BatchNormOptions) -> FloatTensor<B> {
    let shifted = B::float_add_scalar(variance, Scalar::Float(options.epsilon));
    B::float_recip(B::float_sqrt(shifted))
}

fn to_host<B: Backend>(row: FloatTensor<B>) -> Vec<f64> {
    read_sync(B::float_into_data(row))
        .expect("reading [C] statistics back fails only if the device has already failed")
        .iter::<f64>()
        .collect()
}

fn from_host<B: Backend>(values: &[f64], device: &Device<B>) -> FloatTensor<B> {
    let values: Vec<f32> = values.iter().map(|&v| v as f32).collect();
    let channels = values.len();
    B::float_from_data(TensorData::new(values, [1, channels]), device)
}
