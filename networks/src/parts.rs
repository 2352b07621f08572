//! Parts that several networks share.

use burn::module::Initializer;
use burn::nn;
use burn::tensor::{Device, FloatDType, Tensor};
use layers::backend::{Activations, Computation};
use layers::{LayerNorm, LayerNormConfig, Linear, PassContext};

/// Initial weights of ConvNeXt and ViT.
pub(crate) const WEIGHTS: Initializer = Initializer::Normal {
    mean: 0.0,
    std: 0.02,
};

/// Returns a linear layer with initial weights [`WEIGHTS`] and a bias of zero.
pub(crate) fn linear(c_in: usize, c_out: usize, device: &Device) -> Linear {
    let bias = Some(Initializer::Zeros.init([c_out], device));
    nn::Linear {
        bias,
        ..nn::LinearConfig::new(c_in, c_out)
            .with_bias(false)
            .with_initializer(WEIGHTS)
            .init(device)
    }
    .into()
}

pub(crate) fn layer_norm(channels: usize, device: &Device) -> LayerNorm {
    LayerNormConfig::new(channels)
        .with_epsilon(1e-6)
        .init(device)
}

/// Returns the probability of skipping each of `depth` blocks: from 0 for the first block up to
/// `last` for the last block.
///
/// # Panics
/// Unless `last` is 0 up to but not 1.
pub(crate) fn drop_rates(last: f64, depth: usize) -> impl Iterator<Item = f64> {
    assert!(
        (0.0..1.0).contains(&last),
        "drop: expected 0 up to but not 1, got {last}"
    );
    (0..depth).map(move |block| last * block as f64 / (depth - 1) as f64)
}

/// Rejects a computation that no test of these networks covers.
///
/// # Panics
/// For activations of f16.
pub(crate) fn expect_tested(computation: Computation) {
    assert!(
        computation.activations != Activations::F16,
        "activations: expected f32 or bf16, got f16"
    );
}

/// Returns the logits that `pass` computes from the images, with the choices of `computation`.
pub(crate) fn computed(
    computation: Computation,
    images: Tensor<4>,
    pass: impl FnOnce(Tensor<4>) -> Tensor<2>,
) -> Tensor<2> {
    // A layer computes in the number format of its input.
    let images = match computation.activations {
        Activations::Bf16 => images.cast(FloatDType::BF16),
        _ => images,
    };
    PassContext {
        computation,
        ..PassContext::current()
    }
    .scope(|| pass(images))
}
