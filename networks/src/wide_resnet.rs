//! WideResNet-28-10: pre-activation blocks with ten times the channels of a ResNet.
//!
//! In: `[N, H, W, C]` images. Out: `[N, num_classes]` logits. The layers are those of the published
//! code, without dropout.
//! Source: Zagoruyko and Komodakis 2016, arXiv 1605.07146, table 1.

use burn::module::Module;
use burn::nn::PaddingConfig2d::Explicit;
use burn::tensor::{Device, Tensor};
use layers::{
    BatchNorm, BatchNormConfig, Conv2d, Conv2dConfig, Features, Linear, LinearConfig,
    global_avg_pool, relu,
};

use crate::parts::input;

fn conv(channels: [usize; 2], kernel: usize, stride: usize, device: &Device) -> Conv2d {
    let pad = kernel / 2;
    let conv = Conv2dConfig::new(channels, [kernel; 2])
        .with_stride([stride; 2])
        .with_bias(false);
    conv.with_padding(Explicit(pad, pad, pad, pad)).init(device)
}

/// Two convolutions, each after a normalisation and a ReLU, plus the input or its projection.
#[derive(Module, Debug)]
struct Block {
    norm1: BatchNorm,
    conv1: Conv2d,
    norm2: BatchNorm,
    conv2: Conv2d,
    shortcut: Option<Conv2d>,
}

impl Block {
    fn new([c_in, c_out]: [usize; 2], stride: usize, device: &Device) -> Self {
        Self {
            norm1: BatchNormConfig::new(c_in).init(device),
            conv1: conv([c_in, c_out], 3, stride, device),
            norm2: BatchNormConfig::new(c_out).init(device),
            conv2: conv([c_out, c_out], 3, 1, device),
            shortcut: (c_in != c_out).then(|| conv([c_in, c_out], 1, stride, device)),
        }
    }

    fn forward(&self, x: Features) -> Features {
        let open = relu(self.norm1.forward(x.clone()));
        let shortcut = self
            .shortcut
            .as_ref()
            .map_or(x, |conv| conv.forward(open.clone()));
        self.conv2
            .forward(relu(self.norm2.forward(self.conv1.forward(open))))
            + shortcut
    }
}

/// The WideResNet network.
#[derive(Module, Debug)]
pub struct WideResNet {
    conv: Conv2d,
    blocks: Vec<Block>,
    norm: BatchNorm,
    linear: Linear,
}

impl WideResNet {
    /// Returns the network with `depth` = 6n + 4 layers, `width` times the channels of a ResNet,
    /// and burn's initial weights.
    ///
    /// # Panics
    /// Unless `depth` is 6n + 4 with `n` at least 1, and `width` is at least 1.
    pub fn new(
        depth: usize,
        width: usize,
        in_channels: usize,
        num_classes: usize,
        device: &Device,
    ) -> Self {
        assert!(
            depth >= 10 && depth % 6 == 4,
            "depth: expected 6n + 4 (10, 16, 22, 28, ...), got {depth}"
        );
        assert!(width > 0, "width: expected at least 1, got 0");
        let mut c_in = 16;
        let mut blocks = Vec::new();
        for (channels, stride) in [(16 * width, 1), (32 * width, 2), (64 * width, 2)] {
            for index in 0..(depth - 4) / 6 {
                blocks.push(Block::new(
                    [c_in, channels],
                    if index == 0 { stride } else { 1 },
                    device,
                ));
                c_in = channels;
            }
        }
        Self {
            conv: conv([in_channels, 16], 3, 1, device),
            blocks,
            norm: BatchNormConfig::new(c_in).init(device),
            linear: LinearConfig::new(c_in, num_classes).init(device),
        }
    }

    /// Returns the logits.
    pub fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let images = input(images);
        let x = self
            .blocks
            .iter()
            .fold(self.conv.forward(images), |x, block| block.forward(x));
        self.linear
            .forward(global_avg_pool(relu(self.norm.forward(x))))
    }
}
