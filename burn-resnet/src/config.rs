//! What a network looks like: depth, classes, shortcut.
//!
//! In: user data. Out: a configuration that is valid by construction. Invariant: there is a network of that depth for such images.
//! Source: He et al. 2015, arXiv 1512.03385, section 4.2, and table 1.

use burn::tensor::Device;
use layers::{Activations, Computation, Kernels};
use std::fmt;

use crate::{ModelError, ResNet, init::Rule, init::WeightInit};

/// How a block's input reaches its output where the shape changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "cli",
    derive(clap::ValueEnum, serde::Serialize, serde::Deserialize),
    serde(rename_all = "kebab-case")
)]
pub enum Shortcut {
    /// Every second pixel, and channels of zeros half in front and half behind; no parameters.
    #[default]
    A,
    /// A 1x1 convolution with stride 2 and a batch normalisation.
    B,
}

impl fmt::Display for Shortcut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::A => "a",
            Self::B => "b",
        })
    }
}

/// Depths of table 1: the networks for ImageNet.
const IMAGENET_DEPTHS: [usize; 5] = [18, 34, 50, 101, 152];

/// Those of table 1 that small images have, too, beside 6n + 2.
const WIDE_DEPTHS: [usize; 2] = [18, 34];

/// Before the name of a network for small images whose depth is one for ImageNet, too.
const SMALL: &str = "cifar-";

/// Which images a network is for: its stem, stages and first weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Images {
    /// Such as CIFAR's.
    Small,
    /// Such as ImageNet's.
    Large,
}

/// A stage of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stage {
    /// Of the 3x3 convolutions; what the stage gives has [`Stage::out_channels`].
    pub(crate) channels: usize,
    pub(crate) num_blocks: usize,
    /// Whether a block is 1x1, 3x3, 1x1 with four times the channels at its end, instead of 3x3, 3x3.
    pub(crate) has_bottlenecks: bool,
}

impl Stage {
    pub(crate) fn out_channels(self) -> usize {
        if self.has_bottlenecks {
            4 * self.channels
        } else {
            self.channels
        }
    }
}

/// A ResNet. For small images: three stages of `n` basic blocks with 16, 32 and 64 channels (`6n + 2` layers), or the four stages of
/// ResNet-18 and -34 with 64, 128, 256 and 512, after a 3x3 convolution that keeps the size and no pooling, as everybody trains them on
/// CIFAR. For ImageNet: the networks of table 1 as torchvision has them, with the stride of a bottleneck in its 3x3 convolution ("v1.5").
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ResNetConfig {
    images: Images,
    depth: usize,
    num_classes: usize,
    in_channels: usize,
    shortcut: Shortcut,
    zero_gamma: bool,
    computation: Computation,
}

impl ResNetConfig {
    /// The network of `depth` layers for small images (20, 32, 44, 56, 110, 1202, …; 18, 34) with 10 classes, RGB images
    /// and the shortcut that its paper has: B for 18 and 34 layers, else A.
    ///
    /// # Errors
    /// [`ModelError::Depth`] unless `depth` is `6n + 2` with `n` at least 1, 18 or 34.
    pub fn cifar(depth: usize) -> Result<Self, ModelError> {
        Self::small(
            depth,
            "6n + 2 (20, 32, 44, 56, 110, 1202, ...), 18 or 34",
            &WIDE_DEPTHS,
        )
    }

    /// `expected` and `others`, those that are not 6n + 2, are the depths that the error tells.
    fn small(depth: usize, expected: &'static str, others: &[usize]) -> Result<Self, ModelError> {
        let is_wide = WIDE_DEPTHS.contains(&depth);
        if !is_wide && (depth < 8 || !(depth - 2).is_multiple_of(6)) {
            let lower = (depth.saturating_sub(2) / 6 * 6 + 2).max(8);
            let others = others.iter().copied();
            return Err(ModelError::Depth {
                expected,
                depth,
                lower: others
                    .clone()
                    .filter(|&other| other < depth)
                    .fold(lower, usize::max),
                upper: others
                    .filter(|&other| other > depth)
                    .fold(lower + 6, usize::min),
            });
        }
        let shortcut = if is_wide { Shortcut::B } else { Shortcut::A };
        Ok(Self {
            images: Images::Small,
            depth,
            num_classes: 10,
            shortcut,
            ..Self::of_large_images(depth)
        })
    }

    /// The network of `depth` layers for ImageNet with 1000 classes, RGB images and shortcut B, which torchvision's all have: 11,689,512
    /// parameters (18 layers), 21,797,672 (34), 25,557,032 (50), 44,549,160 (101) or 60,192,808 (152).
    ///
    /// # Errors
    /// [`ModelError::Depth`] for another depth.
    pub fn imagenet(depth: usize) -> Result<Self, ModelError> {
        if IMAGENET_DEPTHS.contains(&depth) {
            return Ok(Self::of_large_images(depth));
        }
        let depths = IMAGENET_DEPTHS.into_iter();
        Err(ModelError::Depth {
            expected: "18, 34, 50, 101 or 152",
            depth,
            lower: depths
                .clone()
                .filter(|other| *other < depth)
                .max()
                .unwrap_or(18),
            upper: depths.filter(|other| *other > depth).min().unwrap_or(152),
        })
    }

    fn of_large_images(depth: usize) -> Self {
        let (images, shortcut) = (Images::Large, Shortcut::B);
        let (num_classes, in_channels, zero_gamma) = (1000, 3, false);
        Self {
            images,
            depth,
            num_classes,
            in_channels,
            shortcut,
            zero_gamma,
            computation: Computation::default(),
        }
    }

    /// The configuration a name stands for: `resnet18`, `34`, `50`, `101` and `152` are ImageNet's, other depths those for small images,
    /// of which `cifar-` before the name makes one in any case.
    ///
    /// # Errors
    /// [`ModelError::Name`] when the name is not `resnet` and a number, [`ModelError::Depth`] when
    /// the number is no valid depth.
    pub fn from_name(name: &str) -> Result<Self, ModelError> {
        let small = name.strip_prefix(SMALL);
        let depth = small
            .unwrap_or(name)
            .strip_prefix("resnet")
            .and_then(|digits| digits.parse().ok());
        let depth = depth.ok_or_else(|| ModelError::Name {
            name: name.to_owned(),
        })?;
        match small {
            Some(_) => Self::cifar(depth),
            None if IMAGENET_DEPTHS.contains(&depth) => Self::imagenet(depth),
            // 50 and 152 are 6n + 2, too.
            None => Self::small(
                depth,
                "6n + 2 (20, 32, 44, 56, 110, 1202, ...), 18, 34 or 101",
                &[18, 34, 101],
            ),
        }
    }

    /// Sets the number of classes.
    ///
    /// # Panics
    /// When it is zero.
    pub fn with_num_classes(mut self, num_classes: usize) -> Self {
        assert!(num_classes > 0, "num_classes: expected at least 1, got 0");
        self.num_classes = num_classes;
        self
    }

    /// Sets the number of image channels.
    ///
    /// # Panics
    /// When it is zero.
    pub fn with_in_channels(mut self, in_channels: usize) -> Self {
        assert!(in_channels > 0, "in_channels: expected at least 1, got 0");
        self.in_channels = in_channels;
        self
    }

    /// Sets the kind of shortcut where the shape changes.
    pub fn with_shortcut(mut self, shortcut: Shortcut) -> Self {
        self.shortcut = shortcut;
        self
    }

    /// Lets each block start as the identity: the last normalisation's gamma is 0 (Goyal et al.
    /// 2017, arXiv 1706.02677, section 5.1).
    pub fn with_zero_gamma(mut self, zero_gamma: bool) -> Self {
        self.zero_gamma = zero_gamma;
        self
    }

    /// Sets how the layers are computed. Instruction sets and algorithms differ by rounding.
    ///
    /// # Panics
    /// [`ResNetConfig::init`] does for activations of 16 bits with [`Kernels::Stock`], the first layer if the processor lacks the instruction
    /// set.
    pub fn with_computation(mut self, computation: Computation) -> Self {
        self.computation = computation;
        self
    }

    /// The number of weighted layers on the longest path.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// The number of classes.
    pub fn num_classes(&self) -> usize {
        self.num_classes
    }

    /// The number of image channels.
    pub fn in_channels(&self) -> usize {
        self.in_channels
    }

    /// The kind of shortcut where the shape changes.
    pub fn shortcut(&self) -> Shortcut {
        self.shortcut
    }

    /// The name [`ResNetConfig::from_name`] reads.
    pub fn name(&self) -> String {
        let is_other = self.is_small() && IMAGENET_DEPTHS.contains(&self.depth);
        format!("{}resnet{}", if is_other { SMALL } else { "" }, self.depth)
    }

    /// Whether it is one for small images.
    pub fn is_small(&self) -> bool {
        self.images == Images::Small
    }

    /// The number of values in its weights file, parameters and running statistics, without making it; `u64::MAX` for more.
    pub fn num_values(&self) -> u64 {
        // A convolution's weights, and four values a channel of the normalisation after it.
        let layer = |[c_in, c_out]: [u64; 2], kernel: u64| {
            c_out.saturating_mul(c_in.saturating_mul(kernel * kernel).saturating_add(4))
        };
        let block = |c_in: u64, stage: Stage| {
            let (inner, c_out) = (stage.channels as u64, stage.out_channels() as u64);
            let convolutions = match stage.has_bottlenecks {
                true => {
                    layer([c_in, inner], 1) + layer([inner, inner], 3) + layer([inner, c_out], 1)
                }
                false => layer([c_in, c_out], 3) + layer([c_out, c_out], 3),
            };
            let has_projection = self.shortcut == Shortcut::B && c_in != c_out;
            convolutions
                + if has_projection {
                    layer([c_in, c_out], 1)
                } else {
                    0
                }
        };
        let (stem, kernel) = (
            self.stem_channels() as u64,
            if self.is_small() { 3 } else { 7 },
        );
        let (mut num_values, mut c_in) = (layer([self.in_channels as u64, stem], kernel), stem);
        for stage in self.stages() {
            let c_out = stage.out_channels() as u64;
            let others = (stage.num_blocks as u64)
                .saturating_sub(1)
                .saturating_mul(block(c_out, stage));
            num_values = num_values
                .saturating_add(block(c_in, stage))
                .saturating_add(others);
            c_in = c_out;
        }
        num_values.saturating_add((self.num_classes as u64).saturating_mul(c_in + 1))
    }

    /// Makes the network with the weights that `seed` stands for: the same bits on every backend
    /// and thread. burn's global random numbers are not used.
    ///
    /// # Panics
    /// For 16 bits with [`Kernels::Stock`]: burn's operations would keep parameters and statistics in 16 bits too.
    pub fn init(&self, seed: u64, device: &Device) -> ResNet {
        let Computation {
            activations,
            kernels,
            ..
        } = self.computation;
        let mixed = activations == Activations::F32 || kernels == Kernels::Fused;
        assert!(
            mixed,
            "activations in 16 bits: expected Kernels::Fused, got Kernels::Stock"
        );
        let rule = if self.is_small() {
            Rule::FanIn
        } else {
            Rule::FanOut
        };
        ResNet::new(self, &mut WeightInit::new(seed, rule, device))
    }

    /// Channels of the first convolution.
    pub(crate) fn stem_channels(&self) -> usize {
        self.stages()[0].channels
    }

    pub(crate) fn stages(&self) -> Vec<Stage> {
        let has_bottlenecks = !self.is_small() && self.depth >= 50;
        let four = |counts: [usize; 4]| {
            [64, 128, 256, 512]
                .into_iter()
                .zip(counts)
                .collect::<Vec<_>>()
        };
        let stages = match (self.images, self.depth) {
            (_, 18) => four([2, 2, 2, 2]),
            (_, 34) | (Images::Large, 50) => four([3, 4, 6, 3]),
            (Images::Large, 101) => four([3, 4, 23, 3]),
            (Images::Large, _) => four([3, 8, 36, 3]),
            (Images::Small, depth) => [16, 32, 64]
                .map(|channels| (channels, (depth - 2) / 6))
                .to_vec(),
        };
        stages
            .into_iter()
            .map(|(channels, num_blocks)| Stage {
                channels,
                num_blocks,
                has_bottlenecks,
            })
            .collect()
    }

    pub(crate) fn computation(&self) -> Computation {
        self.computation
    }

    pub(crate) fn zero_gamma(&self) -> bool {
        self.zero_gamma
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_depths_are_accepted_by_number_and_by_name() {
        for depth in [8, 18, 20, 32, 34, 44, 50, 56, 110, 152, 1202] {
            let config = ResNetConfig::cifar(depth).unwrap();
            assert_eq!((config.depth(), config.is_small()), (depth, true));
            assert_eq!(ResNetConfig::from_name(&config.name()).unwrap(), config);
        }
        for depth in IMAGENET_DEPTHS {
            let config = ResNetConfig::imagenet(depth).unwrap();
            assert_eq!(
                (config.name(), config.is_small()),
                (format!("resnet{depth}"), false)
            );
            assert_eq!(ResNetConfig::from_name(&config.name()).unwrap(), config);
        }
    }

    #[test]
    fn a_name_of_both_kinds_is_imagenets_unless_it_says_cifar() {
        let name = |name: &str| ResNetConfig::from_name(name).unwrap().name();
        assert_eq!(
            (name("cifar-resnet50"), name("cifar-resnet20")),
            ("cifar-resnet50".into(), "resnet20".into())
        );
        let text = ResNetConfig::imagenet(20).unwrap_err().to_string();
        assert_eq!(
            text,
            "depth: expected 18, 34, 50, 101 or 152, got 20; the nearest are 18 and 34"
        );
    }

    #[test]
    fn a_wrong_depth_is_refused_with_its_two_neighbours() {
        let text = ResNetConfig::cifar(52).unwrap_err().to_string();
        assert_eq!(
            text,
            "depth: expected 6n + 2 (20, 32, 44, 56, 110, 1202, ...), 18 or 34, got 52; the nearest are 50 and 56"
        );
        let told = |name: &str| ResNetConfig::from_name(name).unwrap_err().to_string();
        let (own, any) = (told("cifar-resnet101"), told("resnet100"));
        assert!(
            own.ends_with("18 or 34, got 101; the nearest are 98 and 104"),
            "{own}"
        );
        assert!(
            any.ends_with("18, 34 or 101, got 100; the nearest are 98 and 101"),
            "{any}"
        );
        for depth in [0, 1, 2, 7] {
            let text = ResNetConfig::cifar(depth).unwrap_err().to_string();
            assert!(text.ends_with("the nearest are 8 and 14"), "{text}");
        }
    }

    #[test]
    fn a_name_that_is_no_resnet_is_refused() {
        for name in ["vgg16", "resnet", "resnet-20", "resnetx"] {
            let text = ResNetConfig::from_name(name).unwrap_err().to_string();
            assert!(text.contains(name) && text.contains("resnet20"), "{text}");
        }
    }
}
