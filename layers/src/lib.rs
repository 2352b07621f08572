//! Layers of convolutional networks on this workspace's kernels, for any burn module.
//!
//! In: `[N, H, W, C]` tensors, and modules with burn's names, which hold burn's own. Out: [`Features`], tensors. Invariant: a layer computes the same function on every backend: by our kernels on Flex and,
//! for a normalisation, on GPUs, by burn's operations elsewhere; no communication but through what a [`PassContext`] holds.
//! Source: Ioffe and Szegedy 2015, arXiv 1502.03167; Li et al. 2020, arXiv 2006.15704, section 3.2.3.

mod attention;
mod choices;
mod context;
mod elementwise;
mod features;
mod layer;
mod layer_norm;
mod local_norms;
mod loss;
mod modules;
mod norm;
mod ops;
mod pooling;
mod recorded;
mod stand_in;
mod stochastic_depth;
mod stream;

pub use attention::attention;
pub use choices::{Activations, Computation, Convolution, Kernels, Recompute};
pub use context::PassContext;
pub use elementwise::{Elementwise, gelu, relu6, silu};
pub use features::{Features, in_f32, relu};
pub use kernels::batch_norm::Rectifier;
pub use kernels::loss::Loss;
pub use kernels::simd::Isa;
pub use layer_norm::{LayerNorm, LayerNormConfig};
pub use local_norms::locally_normalised;
pub use loss::loss_sum;
pub use modules::{BatchNorm, BatchNormConfig, Conv2d, Conv2dConfig, Linear, LinearConfig};
pub use ops::{
    BatchNormGradients, BatchNormOptions, BatchNormOutput, BatchNormTrain, FusedGradients,
    FusedOptions, FusedOutput, FusedSaved, Gate, GradientHook, HookedParameters, Joined,
    JoinedGradients, KernelAlone, KernelCalls, KernelTime, LayerOps, NormEnd, NormLink, Residual,
    StatisticsReducer, batch_norm_train, convolve_by_burn, fused_inference, fused_train, gated,
    global_average, gradient_hook, kernel_times, normalise_by_composition, sum_in_one_stage,
};
pub use pooling::{
    AdaptiveAvgPool2d, AdaptiveAvgPool2dConfig, AvgPool2d, AvgPool2dConfig, MaxPool2d,
    MaxPool2dConfig, global_avg_pool,
};
pub use recorded::{Recorded, overwrite, record, records, undisturbed};
pub use stand_in::stand_ins;
pub use stochastic_depth::stochastic_depth;
pub use stream::stream;

/// The example of the crate's page, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
