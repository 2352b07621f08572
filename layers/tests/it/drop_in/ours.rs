//! The network with our layers.

use layers::{
    AdaptiveAvgPool2d, AdaptiveAvgPool2dConfig, AvgPool2d, AvgPool2dConfig, BatchNorm,
    BatchNormConfig, Conv2d, Conv2dConfig, Features, LayerNorm, LayerNormConfig, Linear,
    LinearConfig, MaxPool2d, MaxPool2dConfig, gelu, relu,
};

#[allow(clippy::duplicate_mod, reason = "the point of the test")]
#[path = "network.rs"]
mod network;

pub(super) use network::Network;
