//! Layers of neural networks on this workspace's kernels, for any burn module.
//!
//! In: `[N, H, W, C]` tensors, and modules with burn's names, which contain burn's own modules.
//! Out: [`Features`], tensors.
//! Invariant: a layer computes the same function on every backend. It uses Lockstep's kernels on
//! Flex and, for normalisations, on GPUs; elsewhere it uses burn's operations. Layers communicate
//! only through the reducer and the hook of the [`PassContext`].
//! Source: Ioffe and Szegedy 2015, arXiv 1502.03167; Li et al. 2020, arXiv 2006.15704, section
//! 3.2.3.

mod attention;
mod choices;
mod context;
mod conv_transpose;
mod dropout;
mod elementwise;
mod fallback;
mod features;
mod group_norm;
mod interpolate;
mod layer;
mod layer_norm;
mod local_norms;
mod loss;
mod modules;
mod norm;
mod ops;
mod pooling;
mod rewrite;
mod softmax;
mod stochastic_depth;
mod switches;
mod with_gradient_hook;

pub use attention::{AttentionMask, attention, masked_attention};
pub use context::PassContext;
pub use conv_transpose::{ConvTranspose2d, ConvTranspose2dConfig};
pub use dropout::{Dropout, DropoutConfig};
pub use elementwise::{gelu, hard_swish, leaky_relu, relu6, sigmoid, silu, tanh};
pub use fallback::fallback_ops;
pub use features::{Features, in_activations, in_f32, relu};
pub use group_norm::{GroupNorm, GroupNormConfig};
pub use interpolate::{Interpolate2d, Interpolate2dConfig, InterpolateMode};
pub use layer_norm::{LayerNorm, LayerNormConfig};
pub use modules::{BatchNorm, BatchNormConfig, Conv2d, Conv2dConfig, Linear, LinearConfig, linear};
pub use pooling::{
    AdaptiveAvgPool2d, AdaptiveAvgPool2dConfig, AvgPool2d, AvgPool2dConfig, MaxPool2d,
    MaxPool2dConfig, global_avg_pool,
};
pub use softmax::{log_softmax, softmax};
pub use stochastic_depth::stochastic_depth;
pub use with_gradient_hook::with_gradient_hook;

/// Interfaces for a training engine; models do not need them.
pub mod backend {
    pub use crate::choices::{Activations, Computation, Convolution, Kernels, Recompute};
    pub use crate::elementwise::Elementwise;
    pub use crate::local_norms::locally_normalised;
    pub use crate::loss::loss_sum;
    pub use crate::ops::{
        GradientHook, Joined, JoinedGradients, StatisticsReducer, gradient_hook, overwrite,
    };
    pub use crate::switches::Switches;
    pub use kernels::loss::Loss;
    pub use kernels::simd::Isa;
}

/// Time of the CPU kernels of a step.
pub mod timing {
    pub use crate::ops::{KernelAlone, KernelCalls, KernelTime, kernel_times, multiply_adds};
}

/// The example of the crate's page, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
