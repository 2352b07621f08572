//! The residual networks as this program's flags name them.
//!
//! In: model section, class count, seed. Out: a [`ResNet`] on a device.

use anyhow::{Result, ensure};
use burn::tensor::Device;
use burn_resnet::{Kernels, ResNet, ResNetConfig, Shortcut};

use crate::config::{KernelsKind, ModelConfig, ShortcutKind};

/// What a model is made for.
#[derive(Clone, Debug)]
pub struct ModelRequest<'a> {
    /// Classes to tell apart.
    pub num_classes: usize,
    /// Channels of the images.
    pub in_channels: usize,
    /// Seed of the weights.
    pub seed: u64,
    /// Whose kernels compute the layers.
    pub kernels: KernelsKind,
    /// Where the parameters live: an autodiff device for training.
    pub device: &'a Device,
}

/// The configured network with random weights.
///
/// # Errors
/// When the depth is not `6n + 2` or there are no classes.
pub fn resnet(config: &ModelConfig, zero_gamma: bool, request: &ModelRequest<'_>) -> Result<ResNet> {
    ensure!(request.num_classes > 0, "classes: expected at least 1, got 0");
    let shortcut = match config.shortcut {
        ShortcutKind::A => Shortcut::A,
        ShortcutKind::B => Shortcut::B,
    };
    let kernels = match request.kernels {
        KernelsKind::Stock => Kernels::Stock,
        KernelsKind::Fused => Kernels::Fused,
    };
    Ok(ResNetConfig::cifar(config.depth)?
        .with_num_classes(request.num_classes)
        .with_in_channels(request.in_channels)
        .with_shortcut(shortcut)
        .with_zero_gamma(zero_gamma)
        .with_kernels(kernels)
        .init(request.seed, request.device))
}
