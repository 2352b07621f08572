//! The convolutions of the CIFAR ResNets and of ResNet-50, by name; `onednn_layers.py` has the same lists.
//!
//! In: `cifar`, `resnet50`, `all`, or names as `256->512@56k1s2`: channels, extent of the input, kernel, stride;
//! `144->144@32k3s1g144` is depthwise.
//! Out: the shape of each. Source: He et al., arXiv 1512.03385, table 1 and section 4.2; strides of ResNet-50 as PyTorch.

use std::str::FromStr;

use kernels::conv2d::Conv2dShape;

/// Images in a batch of ResNet-50, at most: with 128 a pass would take half a second.
const RESNET50_BATCH: usize = 8;

const CIFAR: [&str; 8] = [
    "3->16@32k3s1",
    "16->16@32k3s1",
    "16->32@32k3s2",
    "32->32@16k3s1",
    "32->64@16k3s2",
    "64->64@8k3s1",
    "16->32@32k1s2",
    "32->64@16k1s2",
];

const RESNET50: [&str; 21] = [
    "64->64@56k1s1",
    "64->256@56k1s1",
    "256->64@56k1s1",
    "256->128@56k1s1",
    "512->128@28k1s1",
    "128->512@28k1s1",
    "1024->256@14k1s1",
    "256->1024@14k1s1",
    "512->2048@7k1s1",
    "2048->512@7k1s1",
    "256->512@56k1s2",
    "512->1024@28k1s2",
    "1024->2048@14k1s2",
    "64->64@56k3s1",
    "128->128@28k3s1",
    "256->256@14k3s1",
    "512->512@7k3s1",
    "128->128@56k3s2",
    "256->256@28k3s2",
    "512->512@14k3s2",
    "3->64@224k7s2",
];

/// Which layers are measured.
#[derive(Clone, Debug)]
pub(crate) enum Layers {
    /// Those of these networks, and what else they do.
    Networks { cifar: bool, resnet50: bool },
    /// These convolutions only.
    Named(Vec<Layer>),
}

/// A convolution without its batch.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    pub(crate) name: String,
    in_channels: usize,
    out_channels: usize,
    extent: usize,
    kernel: usize,
    stride: usize,
    groups: usize,
}

impl Layers {
    pub(crate) const ALL: Self = Self::Networks {
        cifar: true,
        resnet50: true,
    };

    /// The name and the shape of each convolution.
    pub(crate) fn convolutions(&self, batch: usize) -> Vec<(String, Conv2dShape)> {
        let at = |layer: &Layer, batch| (layer.name.clone(), layer.shape(batch));
        match self {
            Self::Named(layers) => layers.iter().map(|layer| at(layer, batch)).collect(),
            Self::Networks { cifar, resnet50 } => {
                let listed = |names: &[&str], batch| {
                    let layer = |name: &&str| name.parse().expect("the lists hold valid names");
                    names
                        .iter()
                        .map(layer)
                        .map(|layer| at(&layer, batch))
                        .collect::<Vec<_>>()
                };
                let mut convolutions = Vec::new();
                if *cifar {
                    convolutions.extend(listed(&CIFAR, batch));
                }
                if *resnet50 {
                    convolutions.extend(listed(&RESNET50, batch.min(RESNET50_BATCH)));
                }
                convolutions
            }
        }
    }
}

impl FromStr for Layers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "cifar" => Ok(Self::Networks {
                cifar: true,
                resnet50: false,
            }),
            "resnet50" => Ok(Self::Networks {
                cifar: false,
                resnet50: true,
            }),
            "all" => Ok(Self::ALL),
            names => names
                .split(',')
                .map(str::parse)
                .collect::<Result<_, _>>()
                .map(Self::Named),
        }
    }
}

impl Layer {
    fn shape(&self, batch: usize) -> Conv2dShape {
        let Self {
            in_channels,
            out_channels,
            extent,
            kernel,
            stride,
            groups,
            ..
        } = *self;
        Conv2dShape {
            batch,
            height: extent,
            width: extent,
            in_channels,
            out_channels,
            kernel,
            stride,
            padding: kernel / 2,
            groups,
        }
    }
}

impl FromStr for Layer {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let numbers = || {
            let (in_channels, rest) = name.split_once("->")?;
            let (out_channels, rest) = rest.split_once('@')?;
            let (extent, rest) = rest.split_once('k')?;
            let (kernel, rest) = rest.split_once('s')?;
            let (stride, groups) = rest.split_once('g').unwrap_or((rest, "1"));
            let number = |text: &str| text.parse::<usize>().ok().filter(|number| *number > 0);
            Some(Self {
                name: name.to_owned(),
                in_channels: number(in_channels)?,
                out_channels: number(out_channels)?,
                extent: number(extent)?,
                kernel: number(kernel)?,
                stride: number(stride).filter(|stride| *stride <= 2)?,
                groups: number(groups)?,
            })
        };
        numbers().ok_or_else(|| {
            format!("expected cifar, resnet50, all, or names as 256->512@56k1s2 with a stride of 1 or 2, or 144->144@32k3s1g144 with groups, got '{name}'")
        })
    }
}
