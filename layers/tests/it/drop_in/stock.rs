//! The network with burn's layers.

use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::pool::{
    AdaptiveAvgPool2d, AdaptiveAvgPool2dConfig, AvgPool2d, AvgPool2dConfig, MaxPool2d,
    MaxPool2dConfig,
};
use burn::nn::{BatchNorm, BatchNormConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::activation::{gelu, relu};
type Features = burn::tensor::Tensor<4>;

#[allow(
    clippy::useless_conversion,
    clippy::duplicate_mod,
    reason = "features are tensors here; the point of the test"
)]
#[path = "network.rs"]
mod network;

pub(super) use network::Network;
