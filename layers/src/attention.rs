//! Scaled dot-product attention.
//!
//! In: queries, keys and values of all heads, the output of one linear layer.
//! Out: the input of the next linear layer.
//! Invariant: no mask, no dropout.
//! Source: Vaswani et al. 2017, arXiv 1706.03762, section 3.2.

use burn::tensor::Tensor;
use burn::tensor::activation::softmax;

use crate::context::PassContext;
use crate::ops::single::{Operation, computes, single};

/// Returns `softmax(q k^T / sqrt(width)) v` of each image and head.
///
/// # Shapes
/// `qkv`: `[N, tokens, 3 * heads * width]`, the last axis is `[3, heads, width]` (queries, keys,
/// values), as in timm's vision transformers. Returns `[N, tokens, heads * width]`.
///
/// # Panics
/// If the length of the last axis is not a multiple of `3 * heads`.
pub fn attention(qkv: Tensor<3>, heads: usize) -> Tensor<3> {
    let [images, tokens, channels] = qkv.dims();
    let fits = heads > 0 && channels > 0 && channels.is_multiple_of(3 * heads);
    assert!(
        fits,
        "attention: expected a multiple of 3 x {heads} heads as the last axis, got {channels}"
    );
    let computation = PassContext::current().computation;
    if computes(&qkv, &computation) {
        return single(
            qkv,
            [None, None],
            Operation::Attention { heads },
            computation.isa,
        );
    }
    let width = channels / (3 * heads);
    let parts = qkv
        .reshape([images, tokens, 3, heads, width])
        .permute([2, 0, 3, 1, 4]);
    let part = |index| {
        parts
            .clone()
            .narrow(0, index, 1)
            .reshape([images, heads, tokens, width])
    };
    let [q, k, v] = [0, 1, 2].map(part);
    let scores = q
        .mul_scalar((width as f64).powf(-0.5))
        .matmul(k.swap_dims(2, 3));
    softmax(scores, 3)
        .matmul(v)
        .swap_dims(1, 2)
        .reshape([images, tokens, heads * width])
}
