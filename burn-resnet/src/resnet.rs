//! The network: stem, three or four stages, global average, linear layer.
//!
//! In: `[N, H, W, C]` images. Out: `[N, num_classes]` logits. Invariant: module paths are the
//! names of the published PyTorch weights.
//! Source: He et al. 2015, arXiv 1512.03385, section 4.2 and table 1.

use std::mem;

use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::PaddingConfig2d;
use burn::tensor::{Tensor, assert_shape};
use layers::backend::Computation;
use layers::{
    BatchNorm, Conv2d, Linear, MaxPool2d, MaxPool2dConfig, PassContext, global_avg_pool, relu,
};

use crate::ResidualBlock;
use crate::config::ResNetConfig;
use crate::init::WeightInit;

/// A residual network.
///
/// A clone shares the running statistics of its normalisations with the original, because burn
/// keeps them behind an `Arc`. So two training threads need two networks, each from
/// [`ResNetConfig::init`]; `model.valid()` is an independent snapshot.
#[derive(Module, Debug)]
pub struct ResNet {
    conv1: Conv2d,
    bn1: BatchNorm,
    layer1: Vec<ResidualBlock>,
    layer2: Vec<ResidualBlock>,
    layer3: Vec<ResidualBlock>,
    /// Empty in networks of three stages.
    layer4: Vec<ResidualBlock>,
    /// The last layer of networks for small images, named as in their published weights.
    linear: Option<Linear>,
    /// The last layer of networks for ImageNet, named as in torchvision.
    fc: Option<Linear>,
    #[module(skip)]
    computation: Computation,
}

/// Returns a pooling with windows of 3x3 that halves the size.
fn pool() -> MaxPool2d {
    let padding = PaddingConfig2d::Explicit(1, 1, 1, 1);
    MaxPool2dConfig::new([3, 3])
        .with_strides([2, 2])
        .with_padding(padding)
        .init()
}

impl ResNet {
    /// Draws the weights in module order, all at once, so that no later access initialises lazily.
    pub(crate) fn new(config: &ResNetConfig, init: &mut WeightInit) -> Self {
        let stem = config.stem_channels();
        let is_small = config.is_small();
        let (kernel, stride) = if is_small { (3, 1) } else { (7, 2) };
        let conv1 = init.conv([config.in_channels(), stem], kernel, stride);
        let bn1 = init.norm(stem, false);
        let mut c_in = stem;
        let mut layers = config
            .stages()
            .into_iter()
            .enumerate()
            .map(|(index, stage)| {
                let blocks = (0..stage.num_blocks).map(|block| {
                    let stride = if index > 0 && block == 0 { 2 } else { 1 };
                    ResidualBlock::new(
                        config,
                        mem::replace(&mut c_in, stage.out_channels()),
                        stride,
                        stage,
                        init,
                    )
                });
                blocks.collect::<Vec<_>>()
            });
        let [layer1, layer2, layer3, layer4] = [(); 4].map(|()| layers.next().unwrap_or_default());
        drop(layers);
        let linear = init.linear(c_in, config.num_classes());
        let (linear, fc) = if is_small {
            (Some(linear), None)
        } else {
            (None, Some(linear))
        };
        Self {
            conv1,
            bn1,
            layer1,
            layer2,
            layer3,
            layer4,
            linear,
            fc,
            computation: config.computation(),
        }
        .materialize()
    }

    /// Maps images to logits.
    ///
    /// On an autodiff device with training enabled, the normalisations use the statistics of the
    /// batch and update the running ones. Otherwise (`model.valid()`, a frozen layer) they use the
    /// running ones.
    ///
    /// # Shapes
    /// `[N, H, W, C]` to `[N, num_classes]`.
    ///
    /// # Panics
    /// If the last axis of the images is not the number of channels that the network was made for.
    ///
    /// # Collective
    /// In training, with a reducer in the [`PassContext`]: every normalisation makes one sum in the
    /// forward and one in the backward pass. So all ranks must make the same passes.
    pub fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let [_, in_channels, _, _] = self.conv1.weight.shape().dims();
        assert_shape!(images, [_, _, _, in_channels]);
        PassContext {
            computation: self.computation,
            ..PassContext::current()
        }
        .scope(|| {
            let stem = relu(self.bn1.forward(self.conv1.forward(images)));
            let stem = if self.fc.is_some() {
                pool().forward(stem)
            } else {
                stem
            };
            let blocks = [&self.layer1, &self.layer2, &self.layer3, &self.layer4]
                .into_iter()
                .flatten();
            let features = blocks.fold(stem, |hidden, block| block.forward(hidden));
            let last = self
                .linear
                .as_ref()
                .or(self.fc.as_ref())
                .expect("a network has a last layer");
            last.forward(global_avg_pool(features))
        })
    }

    /// Returns the number of trainable parameters. burn's `num_params` counts the running
    /// statistics too.
    pub fn num_trainable(&self) -> usize {
        #[derive(Default)]
        struct Count {
            num_trainable: usize,
            field: String,
        }
        impl ModuleVisitor for Count {
            fn enter_module(&mut self, name: &str, _container_type: &str) {
                self.field = name.to_owned();
            }

            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                // Selects by name, because off an autodiff device no tensor requires a gradient.
                if !self.field.starts_with("running_") {
                    self.num_trainable += param.shape().num_elements();
                }
            }
        }
        let mut count = Count::default();
        self.visit(&mut count);
        count.num_trainable
    }
}
