//! MobileNetV2: narrow blocks that a 1x1 convolution widens before a depthwise convolution.
//!
//! In: `[N, H, W, C]` images. Out: `[N, num_classes]` logits. The layers and
//! their order are torchvision's. The stem and the second stage have stride 1, as is usual for
//! small images.
//! Source: Sandler et al. 2018, arXiv 1801.04381, table 2.

use burn::module::Module;
use burn::nn::PaddingConfig2d::Explicit;
use burn::tensor::{Device, Tensor};
use layers::{
    BatchNorm, BatchNormConfig, Conv2d, Conv2dConfig, Features, Linear, LinearConfig,
    global_avg_pool, relu6,
};

use crate::parts::input;

/// Expansion factor, channels, number of blocks and first stride of each stage.
const STAGES: [[usize; 4]; 7] = [
    [1, 16, 1, 1],
    [6, 24, 2, 1],
    [6, 32, 3, 2],
    [6, 64, 4, 2],
    [6, 96, 3, 1],
    [6, 160, 3, 2],
    [6, 320, 1, 1],
];

type ConvNorm = (Conv2d, BatchNorm);

fn conv_norm(
    [c_in, c_out]: [usize; 2],
    kernel: usize,
    stride: usize,
    groups: usize,
    device: &Device,
) -> ConvNorm {
    let pad = kernel / 2;
    let conv = Conv2dConfig::new([c_in, c_out], [kernel; 2])
        .with_stride([stride; 2])
        .with_groups(groups);
    let conv = conv
        .with_padding(Explicit(pad, pad, pad, pad))
        .with_bias(false);
    (conv.init(device), BatchNormConfig::new(c_out).init(device))
}

fn apply((conv, norm): &ConvNorm, x: Features) -> Features {
    norm.forward(conv.forward(x))
}

/// A widening, a depthwise and a projecting convolution, with a shortcut if the shape is unchanged.
#[derive(Module, Debug)]
struct InvertedResidual {
    expand: Option<ConvNorm>,
    filter: ConvNorm,
    project: ConvNorm,
    is_residual: bool,
}

impl InvertedResidual {
    fn new([c_in, c_out]: [usize; 2], widening: usize, stride: usize, device: &Device) -> Self {
        let wide = c_in * widening;
        Self {
            expand: (widening > 1).then(|| conv_norm([c_in, wide], 1, 1, 1, device)),
            filter: conv_norm([wide, wide], 3, stride, wide, device),
            project: conv_norm([wide, c_out], 1, 1, 1, device),
            is_residual: stride == 1 && c_in == c_out,
        }
    }

    fn forward(&self, x: Features) -> Features {
        let wide = self
            .expand
            .as_ref()
            .map_or(x.clone(), |expand| relu6(apply(expand, x.clone())));
        let y = apply(&self.project, relu6(apply(&self.filter, wide)));
        if self.is_residual { y + x } else { y }
    }
}

/// The MobileNetV2 network.
#[derive(Module, Debug)]
pub struct MobileNetV2 {
    stem: ConvNorm,
    blocks: Vec<InvertedResidual>,
    head: ConvNorm,
    classifier: Linear,
}

impl MobileNetV2 {
    /// Returns the network with burn's initial weights.
    pub fn new(in_channels: usize, num_classes: usize, device: &Device) -> Self {
        let mut c_in = 32;
        let mut blocks = Vec::new();
        for [widening, channels, count, stride] in STAGES {
            for index in 0..count {
                let stride = if index == 0 { stride } else { 1 };
                blocks.push(InvertedResidual::new(
                    [c_in, channels],
                    widening,
                    stride,
                    device,
                ));
                c_in = channels;
            }
        }
        Self {
            stem: conv_norm([in_channels, 32], 3, 1, 1, device),
            blocks,
            head: conv_norm([c_in, 1280], 1, 1, 1, device),
            classifier: LinearConfig::new(1280, num_classes).init(device),
        }
    }

    /// Returns the logits.
    pub fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let images = input(images);
        let x = relu6(apply(&self.stem, images.into()));
        let x = self.blocks.iter().fold(x, |x, block| block.forward(x));
        self.classifier
            .forward(global_avg_pool(relu6(apply(&self.head, x))))
    }
}
