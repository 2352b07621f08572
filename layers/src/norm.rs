//! Batch normalisation with PyTorch's running statistics, on stock burn parameters.
//!
//! In: `[N, H, W, C]` and a burn `BatchNorm`. Out: the same shape; in training the running
//! statistics are updated. Invariant: after the call the stored statistics are current on this
//! thread (burn's own layer lags by one step).
//! Source: Ioffe and Szegedy 2015, arXiv 1502.03167.

use std::sync::Arc;

use burn::module::RunningState;
use burn::nn::BatchNorm;
use burn::tensor::Tensor;

use crate::context::PassContext;
use crate::features::{Values, in_f32, widened};
use crate::ops::{
    BatchNormOptions, BatchNormTrain, GradientHook, NormLink, batch_norm_train, gated, stock,
};
use kernels::batch_norm::Rectifier;

/// Normalises per channel: by the batch's statistics where [`takes_batch_statistics`], else by the running ones.
///
/// # Differs from PyTorch
/// One value per channel is normalised to `beta` where PyTorch raises an error, and enters the
/// running variance as 0.
pub(crate) fn batch_norm(norm: &BatchNorm, input: Tensor<4>, context: &PassContext) -> Tensor<4> {
    let hook = context.hook.as_ref();
    if !takes_batch_statistics(norm, &input) {
        let (scale, shift) = folded(norm, &input, hook);
        return stock::scale_shift(input, scale, shift);
    }
    let (gamma, beta) = (
        gated(&norm.gamma, &input, hook),
        gated(&norm.beta, &input, hook),
    );
    update_running(
        norm,
        batch_norm_train(input, gamma, beta, options(norm, context)),
    )
}

/// A normalisation in training by our kernels, whose reader is not known yet.
pub(crate) struct Alone {
    pub(crate) context: PassContext,
    pub(crate) norm: BatchNorm,
    pub(crate) input: Tensor<4>,
    pub(crate) rectifier: Rectifier,
}

impl Alone {
    /// `output` leads to its readers.
    pub(crate) fn evaluate(self, output: NormLink) -> Values {
        let Self {
            context,
            norm,
            input,
            rectifier,
        } = self;
        let (output, hook) = (Arc::new(output), context.hook.as_ref());
        let options = BatchNormOptions {
            rectifier,
            output: Some(Arc::clone(&output)),
            ..options(&norm, &context)
        };
        let (gamma, beta) = (
            gated(&norm.gamma, &input, hook),
            gated(&norm.beta, &input, hook),
        );
        let batch = batch_norm_train(input, gamma, beta, options);
        Values {
            tensor: update_running(&norm, batch),
            link: Some(output),
        }
    }
}

/// Whether this is a training pass: on an autodiff device, with the layer's training flag set.
pub(crate) fn takes_batch_statistics(norm: &BatchNorm, input: &Tensor<4>) -> bool {
    input.device().is_autodiff() && norm.training.is_enabled()
}

/// # Panics
/// Unless these are the norm's channels, those of features of the shape `got`.
pub(crate) fn expect_channels(norm: &BatchNorm, channels: usize, got: impl FnOnce() -> [usize; 4]) {
    let [expected] = norm.gamma.dims();
    assert!(
        channels == expected,
        "batch norm: expected [N, H, W, {expected}], got {:?}",
        got()
    );
}

/// # Panics
/// In training without values: their statistics would be NaN, and the running ones for ever after.
pub(crate) fn expect_values(norm: &BatchNorm, input: &Tensor<4>) {
    let dims = input.dims();
    assert!(
        !dims.contains(&0) || !takes_batch_statistics(norm, input),
        "batch norm in training: expected values to take statistics of, got {dims:?}; leave out a batch without samples"
    );
}

/// Running statistics and parameters as one scale and one shift per channel, the parameters gated by the input.
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

pub(crate) fn options(norm: &BatchNorm, context: &PassContext) -> BatchNormOptions {
    let PassContext {
        computation,
        reducer,
        ..
    } = context;
    BatchNormOptions {
        reducer: reducer.clone(),
        isa: computation.isa,
        ..BatchNormOptions::new(norm.epsilon)
    }
}

/// Takes the batch's statistics into the running ones and gives the output back.
pub(crate) fn update_running(norm: &BatchNorm, batch: BatchNormTrain) -> Tensor<4> {
    let unbiased = batch.num_values / (batch.num_values - 1.0).max(1.0);
    update(&norm.running_mean, norm.momentum, batch.mean);
    update(&norm.running_var, norm.momentum, batch.variance * unbiased);
    batch.output
}

/// `running = (1 - momentum) * running + momentum * batch`, stored at once: `update` alone leaves
/// the value pending until the next forward pass, where readers and `map` would miss it.
fn update(running: &RunningState<Tensor<1>>, momentum: f64, batch: Tensor<1>) {
    let updated = in_f32(running.value_sync(), |running| {
        running * (1.0 - momentum) + batch * momentum
    });
    running.update(updated.detach());
    running.value_sync();
}
