//! Batch normalisation in training, composed of burn's operations.
//!
//! In and out: as the trait says. Invariant: without a reducer nothing leaves the device; with one
//! the sums of each channel pass through the host in f64. Activations of 16 bits are computed with in f32.
//! Order: views first, then arithmetic, since a view ends burn's fused kernel.

use burn::backend::tensor::{Device, FloatTensor};
use burn::backend::{Backend, Scalar, TensorMetadata, read_sync};
use burn::tensor::{DType, FloatDType, TensorData};

use kernels::batch_norm::Rectifier;

use super::statistics::{GradientSums, Moments};
use super::tables::{Tables, as_row, as_vector};
use super::{BatchNormGradients, BatchNormOptions, BatchNormOutput, BatchNormSaved};

pub(super) fn forward<B: Backend>(
    input: FloatTensor<B>,
    gamma: FloatTensor<B>,
    beta: FloatTensor<B>,
    options: &BatchNormOptions,
) -> BatchNormOutput<B> {
    let (shape, stored) = (input.shape(), FloatDType::from(input.dtype()));
    let tables = Tables::of(&shape);
    let batch = normalise::<B>(tables, tables.view::<B>(input), [gamma, beta], options);
    BatchNormOutput {
        output: B::float_reshape(round::<B>(rectified::<B>(options.rectifier, batch.values), stored), shape),
        mean: as_vector::<B>(batch.mean),
        variance: as_vector::<B>(batch.variance),
        num_values: batch.num_values,
    }
}

/// A normalised table, `[groups, rows, C]`, and its statistics, `[1, 1, C]`, in f32.
pub(super) struct Normalised<B: Backend> {
    pub(super) values: FloatTensor<B>,
    pub(super) mean: FloatTensor<B>,
    pub(super) variance: FloatTensor<B>,
    pub(super) num_values: f64,
}

/// `table` is widened anew for each use, so that no copy of it in f32 is kept where burn fuses the uses.
pub(super) fn normalise<B: Backend>(
    tables: Tables,
    table: FloatTensor<B>,
    parameters: [FloatTensor<B>; 2],
    options: &BatchNormOptions,
) -> Normalised<B> {
    let device = table.device();
    let [gamma, beta] = parameters.map(as_row::<B>);
    let wide = || widen::<B>(table.clone());

    // Deviations are squared, not values: E[x^2] - E[x]^2 in f32 loses the variance of a channel
    // whose mean is large.
    let mut mean = tables.mean::<B>(wide());
    let centred = B::float_sub(wide(), mean.clone());
    let mut variance = tables.mean::<B>(B::float_mul(centred.clone(), centred));
    let mut num_values = tables.num_rows() as f64;
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

    let scale = B::float_mul(gamma, inverse_std::<B>(variance.clone(), options));
    let values = B::float_mul(B::float_sub(widen::<B>(table), mean.clone()), scale);
    Normalised { values: B::float_add(values, beta), mean, variance, num_values }
}

pub(super) fn backward<B: Backend>(
    saved: BatchNormSaved<B>,
    output_gradient: FloatTensor<B>,
    options: &BatchNormOptions,
) -> BatchNormGradients<B> {
    let (shape, stored) = (saved.input.shape(), FloatDType::from(saved.input.dtype()));
    let tables = Tables::of(&shape);
    let dy = tables.view::<B>(output_gradient);
    let saved = BatchNormSaved { input: tables.view::<B>(saved.input), ..saved };
    let dy = match options.rectifier {
        Rectifier::None => dy,
        rectifier => behind::<B>(rectifier, output::<B>(&saved, options), widen::<B>(dy)),
    };
    let gradients = gradients::<B>(tables, saved, dy, options);
    BatchNormGradients {
        input: B::float_reshape(round::<B>(gradients.input, stored), shape),
        gamma: as_vector::<B>(gradients.gamma),
        beta: as_vector::<B>(gradients.beta),
    }
}

/// What [`normalise`] made of a table.
fn output<B: Backend>(saved: &BatchNormSaved<B>, options: &BatchNormOptions) -> FloatTensor<B> {
    let [gamma, beta, mean, variance] =
        [&saved.gamma, &saved.beta, &saved.mean, &saved.variance].map(|values| as_row::<B>(values.clone()));
    let scale = B::float_mul(gamma, inverse_std::<B>(variance, options));
    B::float_add(B::float_mul(B::float_sub(widen::<B>(saved.input.clone()), mean), scale), beta)
}

/// Of [`normalise`], given tables: the gradient of the table in f32, those of the parameters as `[1, 1, C]`.
pub(super) fn gradients<B: Backend>(
    tables: Tables,
    saved: BatchNormSaved<B>,
    dy: FloatTensor<B>,
    options: &BatchNormOptions,
) -> BatchNormGradients<B> {
    let device = dy.device();
    let [parameter, mean, variance] = [saved.gamma, saved.mean, saved.variance].map(as_row::<B>);
    let wide = || widen::<B>(dy.clone());
    let centred = || B::float_sub(widen::<B>(saved.input.clone()), mean.clone());

    // Each sum reads the two tables; what is one value a channel comes after it, or it could not be part of the sum's kernel.
    let beta = tables.sum::<B>(wide());
    let with_centred = tables.sum::<B>(B::float_mul(wide(), centred()));
    let inverse_std = inverse_std::<B>(variance, options);
    let gamma = B::float_mul(with_centred, inverse_std.clone());
    let mut sums = [beta.clone(), gamma.clone()];
    if let Some(reducer) = options.reducer.as_deref() {
        let all = GradientSums { plain: to_host::<B>(beta.clone()), with_normalised: to_host::<B>(gamma.clone()) }
            .reduce(Some(reducer));
        sums = [&all.plain, &all.with_normalised].map(|values| from_host::<B>(values, &device));
    }

    let share = Scalar::Float(1.0 / saved.num_values);
    let [plain, with_normalised] = sums.map(|sum| B::float_mul_scalar(sum, share));
    let projected = B::float_mul(centred(), B::float_mul(with_normalised, inverse_std.clone()));
    let dx = B::float_sub(B::float_sub(wide(), plain), projected);
    let dx = B::float_mul(dx, B::float_mul(parameter, inverse_std));
    BatchNormGradients { input: dx, gamma, beta }
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
    B::float_from_data(TensorData::new(values, [1, 1, channels]), device)
}
