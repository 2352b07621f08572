//! Scaled dot-product attention.
//!
//! In: queries, keys and values of all heads, the output of one linear layer.
//! Out: the input of the next linear layer.
//! Invariant: no dropout. A query that sees no key has the result 0.
//! Source: Vaswani et al. 2017, arXiv 1706.03762, section 3.2.

use burn::tensor::activation::softmax;
use burn::tensor::{Bool, DType, Tensor};

use crate::context::PassContext;
use crate::ops::single::{MaskKind, Operation, computes, single};

/// The keys that a query does not see.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "a pass makes only a few masks")]
pub enum AttentionMask {
    /// Keys of later tokens.
    Causal,
    /// Keys with true in `[N, tokens, tokens]`, a row for each query, as burn's `mask_attn`.
    Hidden(Tensor<3, Bool>),
}

/// Returns `softmax(q k^T / sqrt(width)) v` of each image and head.
///
/// # Shapes
/// `qkv`: `[N, tokens, 3 * heads * width]`, the last axis is `[3, heads, width]` (queries, keys,
/// values), as in timm's vision transformers. Returns `[N, tokens, heads * width]`.
///
/// # Panics
/// If the length of the last axis is not a multiple of `3 * heads`.
pub fn attention(qkv: Tensor<3>, heads: usize) -> Tensor<3> {
    masked(qkv, heads, None)
}

/// Returns [`attention`] in which a query does not see all keys. The kernel does not compute the
/// scores that a causal mask hides.
///
/// A query that sees no key has the result 0, as in PyTorch.
///
/// # Shapes
/// As [`attention`].
///
/// # Panics
/// As [`attention`], or if the mask has another shape.
pub fn masked_attention(qkv: Tensor<3>, heads: usize, mask: AttentionMask) -> Tensor<3> {
    masked(qkv, heads, Some(mask))
}

fn masked(qkv: Tensor<3>, heads: usize, mask: Option<AttentionMask>) -> Tensor<3> {
    let [images, tokens, channels] = qkv.dims();
    if let Some(AttentionMask::Hidden(hidden)) = &mask {
        assert_eq!(
            hidden.dims(),
            [images, tokens, tokens],
            "attention: mask: expected [N, tokens, tokens]"
        );
    }
    let fits = heads > 0 && channels > 0 && channels.is_multiple_of(3 * heads);
    assert!(
        fits,
        "attention: expected a multiple of 3 x {heads} heads as the last axis, got {channels}"
    );
    let computation = PassContext::current().computation;
    if computes(&qkv, &computation) {
        let (mask, scores) = match mask {
            None => (MaskKind::None, None),
            Some(AttentionMask::Causal) => (MaskKind::Causal, None),
            Some(AttentionMask::Hidden(hidden)) => {
                let device = qkv.device().inner();
                let scores = Tensor::<3>::zeros(hidden.dims(), (&device, DType::F32));
                let scores = scores.mask_fill(hidden, f32::NEG_INFINITY);
                (
                    MaskKind::Added,
                    Some(Tensor::from_inner(scores).into_dispatch()),
                )
            }
        };
        return single(
            qkv,
            [scores, None],
            Operation::Attention { heads, mask },
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
    let shares = match mask {
        None => softmax(scores, 3),
        Some(mask) => {
            let hidden = match mask {
                AttentionMask::Causal => {
                    let square = [images, tokens, tokens];
                    let later = Tensor::<2>::ones([tokens, tokens], &scores.device()).triu(1);
                    later.bool().unsqueeze::<3>().expand(square)
                }
                AttentionMask::Hidden(hidden) => hidden,
            };
            let hidden = hidden
                .unsqueeze_dim::<4>(1)
                .expand([images, heads, tokens, tokens]);
            // A finite value, and zeros after it, give a query without keys no NaN.
            let scores = scores.mask_fill(hidden.clone(), -6e4);
            softmax(scores, 3).mask_fill(hidden, 0.0)
        }
    };
    shares
        .matmul(v)
        .swap_dims(1, 2)
        .reshape([images, tokens, heads * width])
}
