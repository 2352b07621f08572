//! The single operations that every backend has, composed of burn's: the mean over all pixels.
//!
//! In: `[N, H, W, C]`. Out: `[N, C]`, and the gradient back.
//! Invariant: no copy into planes, unlike burn's own mean.
//! Source: Lin, Chen, Yan 2013, arXiv 1312.4400.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::{FloatDType, Shape};

use super::{Operation, SingleGradients, SingleOptions, SingleOutput, SingleSaved};

/// # Panics
/// For an operation that only Lockstep's kernels on Flex have.
pub(in crate::ops) fn forward<B: Backend>(
    input: FloatTensor<B>,
    weight: FloatTensor<B>,
    options: &SingleOptions,
) -> SingleOutput<B> {
    assert!(
        matches!(options.operation, Operation::GlobalAverage { .. }),
        "{:?}: expected a tensor on Flex, where our kernels compute it",
        options.operation
    );
    let [n, h, w, channels] = input.shape().dims();
    // Reshaped first: a cast in front of a view would write all of it.
    let pixels = B::float_cast(
        B::float_reshape(input, Shape::new([n, h * w, channels])),
        FloatDType::F32,
    );
    let means = B::float_mean_dim(pixels, 1);
    SingleOutput {
        output: B::float_reshape(means, Shape::new([n, channels])),
        input: weight.clone(),
        weight,
    }
}

/// # Panics
/// For an operation that only Lockstep's kernels on Flex have.
pub(in crate::ops) fn backward<B: Backend>(
    saved: SingleSaved<B>,
    output_gradient: FloatTensor<B>,
    options: &SingleOptions,
) -> SingleGradients<B> {
    let Operation::GlobalAverage { shape, dtype } = options.operation else {
        panic!(
            "{:?}: expected a tensor on Flex, where our kernels compute it",
            options.operation
        );
    };
    let [n, h, w, channels] = shape;
    let spread = B::float_cast(
        B::float_div_scalar(output_gradient, ((h * w) as f64).into()),
        dtype,
    );
    let spread = B::float_reshape(spread, Shape::new([n, 1, 1, channels]));
    let spread = B::float_expand(spread, Shape::new(shape));
    SingleGradients {
        input: if options.has_addend {
            B::float_add(saved.input, spread)
        } else {
            spread
        },
        weight: saved.weight.clone(),
        bias: saved.weight,
    }
}
