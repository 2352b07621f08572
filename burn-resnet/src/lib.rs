//! Residual networks for small images and for ImageNet, on burn.
//!
//! In: `[N, H, W, C]` images. Out: `[N, num_classes]` logits. Invariant: no communication except
//! through a [`layers::backend::StatisticsReducer`] of the caller; no I/O except in
//! [`load_weights`] and [`save_safetensors`]; no randomness except from the seed of
//! [`ResNetConfig::init`].
//! Source: He, Zhang, Ren, Sun 2015, "Deep Residual Learning for Image Recognition", arXiv
//! 1512.03385, section 4.2 and table 1.

mod block;
mod config;
mod error;
mod init;
mod pretrained;
mod resnet;

pub use block::ResidualBlock;
pub use config::{ResNetConfig, Shortcut};
pub use error::{ModelError, WeightsError};
pub use layers::backend::{Activations, Computation, Convolution, Isa, Kernels};
pub use pretrained::{
    Head, Loaded, load_weights, load_weights_with, safetensors_bytes, save_safetensors,
    shared_modules,
};
pub use resnet::ResNet;

/// The example of the README, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
