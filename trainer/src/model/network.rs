//! The residual networks as this program's flags name them, and weights for any model.
//!
//! In: model section, class count, seed; a file. Out: a [`ResNet`] on a device; a model that holds the file's weights.

use std::path::Path;

use anyhow::{Result, ensure};
use burn::module::Module;
use burn::tensor::Device;
use burn_resnet::{
    Activations, Convolution, Kernels, ResNet, ResNetConfig, Shortcut, WeightsError, load_weights_and_key,
};

use crate::config::cli::{ComputeArgs, ModelArgs};
use crate::config::{ConvolutionKind, Dtype, Filled, KernelsKind, ShortcutKind, instruction_set};
use crate::measure::report::Reporter;

/// What a model is made for.
#[derive(Clone, Debug)]
pub struct ModelRequest<'a> {
    /// Classes to tell apart.
    pub num_classes: usize,
    /// Channels of the images.
    pub in_channels: usize,
    /// Seed of the weights.
    pub seed: u64,
    /// How the layers are computed.
    pub compute: &'a ComputeArgs,
    /// Where the parameters live: an autodiff device for training.
    pub device: &'a Device,
}

/// The configured network with random weights.
///
/// # Errors
/// When the depth is not `6n + 2` or there are no classes.
pub fn resnet(model: &ModelArgs, zero_gamma: bool, request: &ModelRequest<'_>) -> Result<ResNet> {
    Ok(layers(model, zero_gamma, request)?.init(request.seed, request.device))
}

/// As [`resnet`], to be filled from a weights file of `num_bytes` bytes: a network that such a file cannot hold asks for no memory.
///
/// # Errors
/// As [`resnet`]; when the network has more values than the file has bytes.
pub fn resnet_within(num_bytes: u64, model: &ModelArgs, request: &ModelRequest<'_>) -> Result<ResNet> {
    let layers = layers(model, false, request)?;
    let num_values = layers.num_values();
    ensure!(
        num_values <= num_bytes,
        "{} for {} classes and {} channels: expected at most {num_bytes} values, as many as the weights file has bytes, \
         got {num_values}; check depth, number of classes and shortcut",
        layers.name(),
        request.num_classes,
        request.in_channels
    );
    Ok(layers.init(request.seed, request.device))
}

fn layers(model: &ModelArgs, zero_gamma: bool, request: &ModelRequest<'_>) -> Result<ResNetConfig> {
    ensure!(request.num_classes > 0, "classes: expected at least 1, got 0");
    let shortcut = match model.shortcut.filled() {
        ShortcutKind::A => Shortcut::A,
        ShortcutKind::B => Shortcut::B,
    };
    let convolution = match request.compute.convolution.filled() {
        ConvolutionKind::Auto => Convolution::Auto,
        ConvolutionKind::Direct => Convolution::Direct,
    };
    let activations = match request.compute.dtype() {
        Dtype::F32 => Activations::F32,
        Dtype::Bf16 => Activations::Bf16,
        Dtype::F16 => Activations::F16,
    };
    let kernels = match request.compute.kernels.filled() {
        KernelsKind::Stock => Kernels::Stock,
        KernelsKind::Fused => Kernels::Fused,
    };
    Ok(model
        .network()?
        .with_num_classes(request.num_classes)
        .with_in_channels(request.in_channels)
        .with_shortcut(shortcut)
        .with_zero_gamma(zero_gamma)
        .with_kernels(kernels)
        .with_convolution(convolution)
        .with_instruction_set(instruction_set(request.compute.cpu)?)
        .with_activations(activations))
}

/// Puts the weights of a file into `model`, and says where they stood if that is not where PyTorch's own examples put them.
///
/// # Errors
/// As [`burn_resnet::load_weights`].
pub fn load_weights_aloud<M: Module>(model: M, path: &Path, reporter: &Reporter) -> Result<M, WeightsError> {
    let (model, key) = load_weights_and_key(model, path)?;
    if let Some(key) = key.filter(|key| key != "state_dict") {
        reporter.note(&format!("weights {}: taken from under its key `{key}`", path.display()));
    }
    Ok(model)
}
