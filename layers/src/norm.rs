//! Batch normalisation with PyTorch's running statistics, on stock burn parameters.
//!
//! In: `[N, H, W, C]` and a burn `BatchNorm`. Out: the same shape; in training the running
//! statistics are updated.
//! Invariant: after the call the stored statistics are current on this thread (burn's own layer
//! lags by one step).
//! Source: Ioffe and Szegedy 2015, arXiv 1502.03167.

use std::sync::Arc;

use burn::backend::Dispatch;
use burn::module::RunningState;
use burn::nn::BatchNorm;
use burn::tensor::Tensor;

use crate::features::{in_f32, widened};
use crate::ops::{GradientHook, LayerOutput, gated};

/// Returns whether this is a training pass: on an autodiff device, with the layer's training flag
/// set.
pub(crate) fn takes_batch_statistics(norm: &BatchNorm, input: &Tensor<4>) -> bool {
    input.device().is_autodiff() && norm.training.is_enabled()
}

/// # Panics
/// Unless these are the norm's channels; `got` is the shape of the features.
pub(crate) fn expect_channels(norm: &BatchNorm, channels: usize, got: impl FnOnce() -> [usize; 4]) {
    let [expected] = norm.gamma.dims();
    assert!(
        channels == expected,
        "batch norm: expected [N, H, W, {expected}], got {:?}",
        got()
    );
}

/// # Panics
/// In training without values: the batch's statistics, and then all running ones, would be NaN.
pub(crate) fn expect_values(norm: &BatchNorm, input: &Tensor<4>) {
    let dims = input.dims();
    assert!(
        !dims.contains(&0) || !takes_batch_statistics(norm, input),
        "batch norm in training: expected values to take statistics of, got {dims:?}; leave out a batch without samples"
    );
}

/// Returns running statistics and parameters as one scale and one shift per channel, the parameters
/// gated by the input.
pub(crate) fn folded(
    norm: &BatchNorm,
    input: &Tensor<4>,
    hook: Option<&Arc<dyn GradientHook>>,
) -> (Tensor<1>, Tensor<1>) {
    let [gamma, beta] =
        [&norm.gamma, &norm.beta].map(|parameter| widened(gated(parameter, input, hook)));
    let [mean, variance] =
        [&norm.running_mean, &norm.running_var].map(|running| widened(running.value_sync()));
    let scale = gamma / (variance + norm.epsilon).sqrt();
    let shift = beta - mean * scale.clone();
    (scale, shift)
}

/// Adds the batch's statistics to the running ones and returns the output.
pub(crate) fn update_running(norm: &BatchNorm, batch: LayerOutput<Dispatch>) -> Tensor<4> {
    let unbiased = batch.num_values / (batch.num_values - 1.0).max(1.0);
    let mean = Tensor::from_dispatch(batch.mean);
    update(&norm.running_mean, norm.momentum, mean);
    let variance = Tensor::from_dispatch(batch.variance) * unbiased;
    update(&norm.running_var, norm.momentum, variance);
    Tensor::from_dispatch(batch.output)
}

/// Computes `running = (1 - momentum) * running + momentum * batch`, stored at once: `update` alone
/// leaves the value pending until the next forward pass, where readers and `map` would miss it.
fn update(running: &RunningState<Tensor<1>>, momentum: f64, batch: Tensor<1>) {
    let updated = in_f32(running.value_sync(), |running| {
        running * (1.0 - momentum) + batch * momentum
    });
    running.update(updated.detach());
    running.value_sync();
}
