//! A residual network as a user of burn writes it: compiled twice, with the imports of `stock.rs`
//! and with those of `ours.rs`.

use burn::module::Module;
use burn::nn::PaddingConfig2d::Explicit;
use burn::tensor::{Device, Tensor};

use super::*;

#[derive(Module, Debug)]
struct ConvNorm {
    conv: Conv2d,
    norm: BatchNorm,
}

impl ConvNorm {
    fn new(channels: [usize; 2], kernel: usize, stride: usize, device: &Device) -> Self {
        let conv = Conv2dConfig::new(channels, [kernel, kernel])
            .with_stride([stride, stride])
            .with_padding(Explicit(kernel / 2, kernel / 2, kernel / 2, kernel / 2))
            .with_bias(false)
            .init(device);
        Self {
            conv,
            norm: BatchNormConfig::new(channels[1]).init(device),
        }
    }

    fn forward(&self, x: Features) -> Features {
        self.norm.forward(self.conv.forward(x))
    }
}

#[derive(Module, Debug)]
struct Block {
    first: ConvNorm,
    second: ConvNorm,
    projection: Option<ConvNorm>,
}

impl Block {
    fn new(channels: [usize; 2], stride: usize, device: &Device) -> Self {
        Self {
            first: ConvNorm::new(channels, 3, stride, device),
            second: ConvNorm::new([channels[1]; 2], 3, 1, device),
            projection: (channels[0] != channels[1])
                .then(|| ConvNorm::new(channels, 1, stride, device)),
        }
    }

    fn forward(&self, x: Features) -> Features {
        let shortcut = match &self.projection {
            Some(projection) => projection.forward(x.clone()),
            None => x.clone(),
        };
        let y = relu(self.first.forward(x));
        relu(self.second.forward(y) + shortcut)
    }
}

#[derive(Module, Debug)]
pub(in super::super) struct Network {
    stem: ConvNorm,
    max_pool: MaxPool2d,
    blocks: Vec<Block>,
    average: AvgPool2d,
    global: AdaptiveAvgPool2d,
    norm: LayerNorm,
    hidden: Linear,
    head: Linear,
}

impl Network {
    pub(in super::super) fn new(device: &Device) -> Self {
        Self {
            stem: ConvNorm::new([3, 16], 3, 1, device),
            max_pool: MaxPool2dConfig::new([3, 3])
                .with_strides([2, 2])
                .with_padding(Explicit(1, 1, 1, 1))
                .init(),
            blocks: [([16, 16], 1), ([16, 32], 2), ([32, 32], 1)]
                .map(|(channels, stride)| Block::new(channels, stride, device))
                .into(),
            average: AvgPool2dConfig::new([2, 2]).init(),
            global: AdaptiveAvgPool2dConfig::new([1, 1]).init(),
            norm: LayerNormConfig::new(32).with_bias(false).init(device),
            hidden: LinearConfig::new(32, 24).init(device),
            head: LinearConfig::new(24, 10).with_bias(false).init(device),
        }
    }

    /// The logits.
    pub(in super::super) fn forward(&self, images: Features) -> Tensor<2> {
        let x = self.max_pool.forward(relu(self.stem.forward(images)));
        let x = self.blocks.iter().fold(x, |x, block| block.forward(x));
        let x = self.global.forward(self.average.forward(x));
        let x = Tensor::<4>::from(x).flatten::<2>(1, 3);
        self.head
            .forward(gelu(self.hidden.forward(self.norm.forward(x))))
    }
}
