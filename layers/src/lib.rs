//! Layers of convolutional networks on this workspace's kernels, for any burn module.
//!
//! In: `[N, H, W, C]` tensors and burn's own `Conv2d`, `BatchNorm` and `Linear`, which hold the parameters. Out: the same
//! kind of tensors. Invariant: a layer computes the same function on every backend: by our kernels on Flex, by burn's
//! operations elsewhere; no communication but through a [`StatisticsReducer`] or a [`GradientHook`] that the caller gives.
//! Source: Ioffe and Szegedy 2015, arXiv 1502.03167; Li et al. 2020, arXiv 2006.15704, section 3.2.3.

mod choices;
mod layer;
mod norm;
mod ops;

pub use choices::{Activations, Convolution, Kernels};
pub use kernels::simd::Isa;
pub use layer::{Computation, Features, Hidden, Skip};
pub use ops::{
    BatchNormGradients, BatchNormOptions, BatchNormOutput, BatchNormTrain, FusedGradients, FusedOptions, FusedOutput,
    FusedSaved, Gate, GradientHook, HookedParameters, KernelAlone, KernelCalls, KernelTime, LayerOps, NormLink,
    Residual, StatisticsReducer, batch_norm_train, fused_inference, fused_train, gated, global_average, kernel_times,
};
