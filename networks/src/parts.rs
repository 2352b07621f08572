//! Parts that several networks share.

use burn::module::Initializer;
use burn::nn;
use burn::tensor::{Device, Tensor};
use layers::backend::Activations;
use layers::{LayerNorm, LayerNormConfig, Linear, PassContext, in_activations};

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

/// Returns the images in the number format of the pass.
///
/// # Panics
/// For activations of f16, which no test of these networks covers.
pub(crate) fn input(images: Tensor<4>) -> Tensor<4> {
    assert!(
        PassContext::current().computation.activations != Activations::F16,
        "activations: expected f32 or bf16, got f16"
    );
    in_activations(images)
}
