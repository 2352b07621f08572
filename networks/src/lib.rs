//! Networks for small images other than residual networks, on burn.
//!
//! In: `[N, H, W, C]` images. Out: `[N, num_classes]` logits. Invariant: no communication except
//! through a [`layers::backend::StatisticsReducer`] of the caller, and no I/O. Initial weights and
//! stochastic depth are the only randomness; both come from burn's random numbers of the device.

mod convnext;
mod error;
mod mobilenet_v2;
mod parts;
mod vit;
mod wide_resnet;

pub use convnext::ConvNeXt;
pub use error::ImageSizeError;
pub use layers::backend::{Activations, Computation};
pub use mobilenet_v2::MobileNetV2;
pub use vit::VisionTransformer;
pub use wide_resnet::WideResNet;

/// The example of the README, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
