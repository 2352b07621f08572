//! ConvNeXt-T: a residual network with design choices of vision transformers.
//!
//! In: `[N, H, W, C]` images. Out: `[N, num_classes]` logits. The layers are those of the published
//! code. The stem's windows are 2x2 instead of 4x4, for small images.
//! Source: Liu et al. 2022, arXiv 2201.03545, figure 4 and table 9.

use burn::module::{Initializer, Module, Param};
use burn::nn;
use burn::nn::PaddingConfig2d::{Explicit, Valid};
use burn::nn::conv::Conv2dConfig;
use burn::tensor::{Device, Tensor};
use layers::{Conv2d, LayerNorm, Linear, gelu, global_avg_pool, stochastic_depth};

use crate::ImageSizeError;
use crate::parts::{WEIGHTS, drop_rates, input, layer_norm, linear};

const STAGES: [(usize, usize); 4] = [(96, 3), (192, 3), (384, 9), (768, 3)];
/// Smallest height and width: four layers halve them.
const MIN_SIZE: usize = 16;

fn conv2d(config: Conv2dConfig, device: &Device) -> Conv2d {
    let bias = Some(Initializer::Zeros.init([config.channels[1]], device));
    nn::conv::Conv2d {
        bias,
        ..config
            .with_bias(false)
            .with_initializer(WEIGHTS)
            .init(device)
    }
    .into()
}

/// A 7x7 depthwise convolution, then two linear layers per pixel and a layer scale.
#[derive(Module, Debug)]
struct Block {
    dwconv: Conv2d,
    norm: LayerNorm,
    pwconv1: Linear,
    pwconv2: Linear,
    gamma: Param<Tensor<1>>,
    drop: f64,
}

impl Block {
    fn new(channels: usize, drop: f64, device: &Device) -> Self {
        let dwconv = Conv2dConfig::new([channels, channels], [7, 7]).with_groups(channels);
        Self {
            dwconv: conv2d(dwconv.with_padding(Explicit(3, 3, 3, 3)), device),
            norm: layer_norm(channels, device),
            pwconv1: linear(channels, 4 * channels, device),
            pwconv2: linear(4 * channels, channels, device),
            gamma: Initializer::Constant { value: 1e-6 }.init([channels], device),
            drop,
        }
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let hidden = self
            .norm
            .forward(Tensor::from(self.dwconv.forward(x.clone())));
        let branch = self
            .pwconv2
            .forward_scaled(gelu(self.pwconv1.forward(hidden)), &self.gamma);
        x + stochastic_depth(branch, self.drop)
    }
}

/// A layer that halves the height and width and adds channels.
#[derive(Module, Debug)]
struct Downsampling {
    norm: LayerNorm,
    conv: Conv2d,
}

fn halving(channels: [usize; 2], device: &Device) -> Conv2d {
    let conv = Conv2dConfig::new(channels, [2, 2]).with_stride([2, 2]);
    conv2d(conv.with_padding(Valid), device)
}

/// The ConvNeXt-T network.
#[derive(Module, Debug)]
pub struct ConvNeXt {
    stem: (Conv2d, LayerNorm),
    downsamplings: Vec<Downsampling>,
    stages: Vec<Vec<Block>>,
    norm: LayerNorm,
    head: Linear,
}

impl ConvNeXt {
    /// Returns the network with the publication's initial weights, but from an untruncated normal
    /// distribution. The last block is skipped with probability `drop`, earlier blocks with less.
    ///
    /// # Panics
    /// Unless `drop` is 0 up to but not 1.
    pub fn new(in_channels: usize, num_classes: usize, drop: f64, device: &Device) -> Self {
        let mut drops = drop_rates(drop, STAGES.iter().map(|(_, count)| count).sum());
        let mut blocks = |c, count| {
            drops
                .by_ref()
                .take(count)
                .map(|drop| Block::new(c, drop, device))
                .collect()
        };
        let between = STAGES.windows(2).map(|pair| Downsampling {
            norm: layer_norm(pair[0].0, device),
            conv: halving([pair[0].0, pair[1].0], device),
        });
        Self {
            stem: (
                halving([in_channels, STAGES[0].0], device),
                layer_norm(STAGES[0].0, device),
            ),
            downsamplings: between.collect(),
            stages: STAGES.iter().map(|&(c, count)| blocks(c, count)).collect(),
            norm: layer_norm(STAGES[3].0, device),
            head: linear(STAGES[3].0, num_classes, device),
        }
    }

    /// Rejects images that the layers would shrink to nothing.
    ///
    /// # Errors
    /// If the height or the width is less than 16 pixels.
    pub fn expect_image_size([height, width]: [usize; 2]) -> Result<(), ImageSizeError> {
        if height.min(width) >= MIN_SIZE {
            return Ok(());
        }
        Err(ImageSizeError {
            network: "ConvNeXt-T",
            expected: "at least 16 x 16 pixels",
            height,
            width,
        })
    }

    /// Returns true if the network has stochastic depth, so a forward pass draws random numbers.
    pub fn draws(&self) -> bool {
        self.stages.iter().flatten().any(|block| block.drop > 0.0)
    }

    /// Returns the logits.
    ///
    /// # Panics
    /// If [`expect_image_size`](Self::expect_image_size) rejects the images.
    pub fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let images = input(images);
        let (conv, norm) = &self.stem;
        let mut x = norm.forward(Tensor::from(conv.forward(images)));
        for (index, blocks) in self.stages.iter().enumerate() {
            if let Some(down) = index
                .checked_sub(1)
                .map(|before| &self.downsamplings[before])
            {
                x = down.conv.forward(down.norm.forward(x)).into();
            }
            x = blocks.iter().fold(x, |x, block| block.forward(x));
        }
        self.head.forward(self.norm.forward(global_avg_pool(x)))
    }
}
