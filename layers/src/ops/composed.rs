//! Batch normalisation in training, composed of burn's operations.
//!
//! In and out: as the trait says.
//! Invariant: without a reducer nothing leaves the device; with one the sums of each channel pass
//! through the host in f64. Arithmetic on activations of 16 bits is in f32. Order: views first,
//! then arithmetic, since a view ends burn's fused kernel.

use burn::backend::tensor::{Device, FloatTensor};
use burn::backend::{Backend, Scalar, TensorMetadata, read_sync};
use burn::tensor::{DType, FloatDType, TensorData};

use kernels::batch_norm::Rectifier;

use crate::switches::Switches;

use super::statistics::{GradientSums, Moments};
use super::tables::{Tables, as_row};
use super::{LayerOps, NormEnd, NormTable, StatisticsReducer};

/// Returns whether a table is for a backend's own kernels: they support f32 and narrower formats.
fn has_kernels<B: Backend>(table: &FloatTensor<B>) -> bool {
    !Switches::current().composed_norms
        && matches!(table.dtype(), DType::F32 | DType::BF16 | DType::F16)
}

/// Returns a table `[groups, rows, C]` with its statistics, `[1, 1, C]`.
///
/// # Collective
/// With a reducer: one sum of `1 + 2C` values.
pub(super) fn normalised<B: LayerOps>(
    table: FloatTensor<B>,
    parameters: [FloatTensor<B>; 2],
    reducer: Option<&dyn StatisticsReducer>,
) -> NormTable<B> {
    let device = table.device();
    let num_rows = Tables::viewed(&table.shape()).num_rows() as f64;
    let (mean, variance) = if has_kernels::<B>(&table) {
        B::norm_moments(table.clone())
    } else {
        moments::<B>(table.clone())
    };
    let [gamma, beta] = parameters;
    let local = NormTable {
        input: table,
        gamma,
        beta,
        mean,
        variance,
        num_values: num_rows,
    };
    let Some(reducer) = reducer else {
        return local;
    };
    let moments = Moments {
        count: num_rows,
        mean: to_host::<B>(local.mean),
        squares: to_host::<B>(local.variance)
            .iter()
            .map(|v| v * num_rows)
            .collect(),
    }
    .reduce(Some(reducer));
    NormTable {
        mean: from_host::<B>(&moments.mean, &device),
        variance: from_host::<B>(&moments.variance(), &device),
        num_values: moments.count,
        ..local
    }
}

/// Applies a normalisation by kernels or by burn's operations, as [`Switches`] say.
pub(super) fn ended<B: LayerOps>(
    saved: &NormTable<B>,
    residual: FloatTensor<B>,
    end: NormEnd,
) -> FloatTensor<B> {
    if has_kernels::<B>(&saved.input) {
        B::norm_apply(saved.clone(), residual, end)
    } else {
        apply::<B>(saved, residual, end)
    }
}

/// Computes [`LayerOps::norm_moments`] by burn's operations.
///
/// `table` is widened again for each use, so that no copy in f32 is kept where burn fuses the uses.
pub(super) fn moments<B: Backend>(table: FloatTensor<B>) -> (FloatTensor<B>, FloatTensor<B>) {
    let tables = Tables::viewed(&table.shape());
    let wide = || widen::<B>(table.clone());
    // Deviations are squared, not values: E[x^2] - E[x]^2 in f32 loses the variance of a channel
    // whose mean is large.
    let mean = tables.mean::<B>(wide());
    let centred = B::float_sub(wide(), mean.clone());
    let variance = tables.mean::<B>(B::float_mul(centred.clone(), centred));
    (mean, variance)
}

/// Computes [`LayerOps::norm_apply`] by burn's operations.
pub(super) fn apply<B: Backend>(
    saved: &NormTable<B>,
    residual: FloatTensor<B>,
    end: NormEnd,
) -> FloatTensor<B> {
    let [gamma, beta, mean, variance] = [&saved.gamma, &saved.beta, &saved.mean, &saved.variance]
        .map(|values| as_row::<B>(values.clone()));
    let scale = B::float_mul(gamma, inverse_std::<B>(variance, end.epsilon));
    let centred = B::float_sub(widen::<B>(saved.input.clone()), mean);
    let values = B::float_add(B::float_mul(centred, scale), beta);
    let sum = if end.has_residual {
        B::float_add(values, widen::<B>(residual))
    } else {
        values
    };
    round::<B>(
        rectified::<B>(end.rectifier, sum),
        FloatDType::from(saved.input.dtype()),
    )
}

/// Gradients of a normalisation of a table.
pub(super) struct NormGradients<B: Backend> {
    /// Gradient of the table, in its number format.
    pub(super) input: FloatTensor<B>,
    /// Gradient behind the rectifier.
    pub(super) gated: FloatTensor<B>,
    /// `[1, 1, C]`.
    pub(super) gamma: FloatTensor<B>,
    /// `[1, 1, C]`.
    pub(super) beta: FloatTensor<B>,
}

/// Returns the gradients of a table whose `output` has the gradient `dy`.
///
/// # Collective
/// With a reducer: one sum of `2C` values.
pub(super) fn gradients<B: LayerOps>(
    saved: NormTable<B>,
    output: FloatTensor<B>,
    dy: FloatTensor<B>,
    end: NormEnd,
    reducer: Option<&dyn StatisticsReducer>,
) -> NormGradients<B> {
    let device = dy.device();
    let has_kernels = has_kernels::<B>(&saved.input);
    let (gated, beta, gamma) = if has_kernels {
        B::norm_gradient_sums(saved.clone(), output, dy, end)
    } else {
        gradient_sums::<B>(&saved, output, dy, end)
    };
    let mut sums = [beta.clone(), gamma.clone()];
    if let Some(reducer) = reducer {
        let all = GradientSums {
            plain: to_host::<B>(beta.clone()),
            with_normalised: to_host::<B>(gamma.clone()),
        }
        .reduce(Some(reducer));
        sums = [&all.plain, &all.with_normalised].map(|values| from_host::<B>(values, &device));
    }
    let input = if has_kernels {
        let [plain, with_normalised] = sums;
        B::norm_gradient_input(saved, plain, with_normalised, gated.clone(), end)
    } else {
        gradient_input::<B>(saved, sums, gated.clone(), end)
    };
    NormGradients {
        input,
        gated,
        gamma,
        beta,
    }
}

/// Computes [`LayerOps::norm_gradient_sums`] by burn's operations.
pub(super) fn gradient_sums<B: Backend>(
    saved: &NormTable<B>,
    output: FloatTensor<B>,
    dy: FloatTensor<B>,
    end: NormEnd,
) -> (FloatTensor<B>, FloatTensor<B>, FloatTensor<B>) {
    let tables = Tables::viewed(&saved.input.shape());
    let [mean, variance] = [&saved.mean, &saved.variance].map(|row| as_row::<B>(row.clone()));
    // In the stored type, where a gate loses nothing: it is read by the sums, and may be the
    // residual's gradient.
    let gated = match end.rectifier {
        Rectifier::None => dy,
        rectifier => behind::<B>(rectifier, output, dy),
    };
    // Each sum reads the two tables; what is one value a channel comes after it, or it could not be
    // part of the sum's kernel.
    let plain = tables.sum::<B>(widen::<B>(gated.clone()));
    let centred = B::float_sub(widen::<B>(saved.input.clone()), mean);
    let with_centred = tables.sum::<B>(B::float_mul(widen::<B>(gated.clone()), centred));
    (
        gated,
        plain,
        B::float_mul(with_centred, inverse_std::<B>(variance, end.epsilon)),
    )
}

/// Computes [`LayerOps::norm_gradient_input`] by burn's operations.
pub(super) fn gradient_input<B: Backend>(
    saved: NormTable<B>,
    sums: [FloatTensor<B>; 2],
    dy: FloatTensor<B>,
    end: NormEnd,
) -> FloatTensor<B> {
    let [gamma, mean, variance] = [saved.gamma, saved.mean, saved.variance].map(as_row::<B>);
    let inverse_std = inverse_std::<B>(variance, end.epsilon);
    let share = Scalar::Float(1.0 / saved.num_values);
    let [plain, with_normalised] = sums.map(|sum| B::float_mul_scalar(sum, share));
    let centred = B::float_sub(widen::<B>(saved.input.clone()), mean);
    let projected = B::float_mul(centred, B::float_mul(with_normalised, inverse_std.clone()));
    let dx = B::float_sub(B::float_sub(widen::<B>(dy), plain), projected);
    round::<B>(
        B::float_mul(dx, B::float_mul(gamma, inverse_std)),
        FloatDType::from(saved.input.dtype()),
    )
}

/// Applies a rectifier.
pub(super) fn rectified<B: Backend>(
    rectifier: Rectifier,
    values: FloatTensor<B>,
) -> FloatTensor<B> {
    match rectifier {
        Rectifier::None => values,
        Rectifier::Relu => B::relu(values),
        Rectifier::Relu6 => B::float_clamp(values, Scalar::Float(0.0), Scalar::Float(6.0)),
    }
}

/// Returns the gradient behind a rectifier with these inputs or outputs: `dy` where the
/// derivative is not 0, else 0.
pub(super) fn behind<B: Backend>(
    rectifier: Rectifier,
    values: FloatTensor<B>,
    dy: FloatTensor<B>,
) -> FloatTensor<B> {
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

/// Widens a tensor that is narrower than f32 to f32.
pub(super) fn widen<B: Backend>(tensor: FloatTensor<B>) -> FloatTensor<B> {
    match tensor.dtype() {
        DType::BF16 | DType::F16 => B::float_cast(tensor, FloatDType::F32),
        _ => tensor,
    }
}

/// Converts to this type, rounded to the nearest.
pub(super) fn round<B: Backend>(tensor: FloatTensor<B>, to: FloatDType) -> FloatTensor<B> {
    if FloatDType::from(tensor.dtype()) == to {
        tensor
    } else {
        B::float_cast(tensor, to)
    }
}

fn inverse_std<B: Backend>(variance: FloatTensor<B>, epsilon: f64) -> FloatTensor<B> {
    let shifted = B::float_add_scalar(variance, Scalar::Float(epsilon));
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
