//! Residual networks for small images, on burn.
//!
//! In: `[N, H, W, C]` images. Out: `[N, num_classes]` logits. Invariant: no communication (but
//! through a [`StatisticsReducer`] the caller gives), no I/O but in [`load_weights`] and
//! [`save_safetensors`], no randomness but the seed of [`ResNetConfig::init`].
//! Source: He, Zhang, Ren, Sun 2015, "Deep Residual Learning for Image Recognition",
//! arXiv 1512.03385, section 4.2.

mod block;
mod config;
mod error;
mod init;
mod layer;
mod norm;
mod ops;
mod pretrained;
mod resnet;

pub use block::BasicBlock;
pub use config::{Activations, Convolution, Kernels, ResNetConfig, Shortcut};
pub use error::{ModelError, WeightsError};
pub use kernels::simd::Isa;
pub use ops::{
    BatchNormGradients, BatchNormOptions, BatchNormOutput, BatchNormTrain, Branch, FusedGradients, FusedOptions,
    FusedOutput, FusedSaved, Gate, GradientSink, Handover, KernelTime, ResNetOps, Residual, StatisticsReducer,
    batch_norm_train, fused_inference, fused_train, gated, global_average, kernel_times,
};
pub use pretrained::{load_weights, load_weights_and_key, save_safetensors};
pub use resnet::ResNet;
