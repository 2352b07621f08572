//! Configuration of a network: depth, classes and shortcut.
//!
//! In: user data. Out: a configuration that is valid by construction. Invariant: a network with the
//! configured depth exists for the configured images.
//! Source: He et al. 2015, arXiv 1512.03385, section 4.2, and table 1.

use burn::tensor::Device;
use layers::backend::{Activations, Computation, Kernels};
use std::fmt;

use crate::{ModelError, ResNet, init::Rule, init::WeightInit};

/// Shortcut of a block that changes the shape.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "cli",
    derive(clap::ValueEnum, serde::Serialize, serde::Deserialize),
    serde(rename_all = "kebab-case")
)]
pub enum Shortcut {
    /// Every second pixel, padded with channels of zeros; no parameters.
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

/// The depths of table 1: the networks for ImageNet.
const IMAGENET_DEPTHS: [usize; 5] = [18, 34, 50, 101, 152];

/// The depths of table 1 that also exist for small images, in addition to 6n + 2.
const WIDE_DEPTHS: [usize; 2] = [18, 34];

/// The prefix of a network for small images whose depth also exists for ImageNet.
const SMALL: &str = "cifar-";

/// Kind of images of a network, which decides its stem, stages and initial weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Images {
    /// Small images, such as CIFAR's.
    Small,
    /// Large images, such as ImageNet's.
    Large,
}

/// A stage of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stage {
    /// Channels of the 3x3 convolutions; the output has [`Stage::out_channels`].
    pub(crate) channels: usize,
    pub(crate) num_blocks: usize,
    /// True if a block is 1x1, 3x3, 1x1 with four times the channels at its end. Otherwise it is
    /// 3x3, 3x3.
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

/// The configuration of a ResNet.
///
/// For small images it starts with a 3x3 convolution that keeps the size, without pooling. Then
/// come three stages of `n` basic blocks with 16, 32 and 64 channels (`6n + 2` layers). ResNet-18
/// and -34 have their usual four stages with 64, 128, 256 and 512 channels instead.
///
/// For ImageNet it is a network of table 1, with the stride of a bottleneck in the 3x3 convolution
/// ("v1.5") as in torchvision.
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
    /// Returns the network of `depth` layers for small images, with 10 classes and RGB images.
    ///
    /// `depth` is 20, 32, 44, 56, 110, 1202, …, or 18 or 34. The default shortcut is that of the
    /// paper: B for 18 and 34 layers, otherwise A.
    ///
    /// # Errors
    /// [`ModelError::Depth`] unless `depth` is 18, 34 or `6n + 2` with `n` at least 1.
    pub fn cifar(depth: usize) -> Result<Self, ModelError> {
        Self::small(
            depth,
            "6n + 2 (20, 32, 44, 56, 110, 1202, ...), 18 or 34",
            &WIDE_DEPTHS,
        )
    }

    /// Returns the network for small images. The error names `expected`, and also suggests
    /// `others`, the depths that are not 6n + 2.
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

    /// Returns the network of `depth` layers for ImageNet, with 1000 classes, RGB images and
    /// shortcut B.
    ///
    /// It has 11,689,512 parameters (18 layers), 21,797,672 (34), 25,557,032 (50), 44,549,160 (101)
    /// or 60,192,808 (152).
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
        let images = Images::Large;
        let shortcut = Shortcut::B;
        let num_classes = 1000;
        let in_channels = 3;
        let zero_gamma = false;
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

    /// Returns the configuration of a name.
    ///
    /// `resnet18`, `34`, `50`, `101` and `152` are networks for ImageNet; other depths are networks
    /// for small images. The prefix `cifar-` selects the network for small images in any case.
    ///
    /// # Errors
    /// [`ModelError::Name`] if the name is not `resnet` and a number, [`ModelError::Depth`] if
    /// there is no network of that depth.
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
            // The depths 50 and 152 are also 6n + 2.
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
    /// If it is zero.
    pub fn with_num_classes(mut self, num_classes: usize) -> Self {
        assert!(num_classes > 0, "num_classes: expected at least 1, got 0");
        self.num_classes = num_classes;
        self
    }

    /// Sets the number of image channels.
    ///
    /// # Panics
    /// If it is zero.
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

    /// Makes each block start as the identity: the gamma of its last normalisation is 0 (Goyal et
    /// al. 2017, arXiv 1706.02677, section 5.1).
    pub fn with_zero_gamma(mut self, zero_gamma: bool) -> Self {
        self.zero_gamma = zero_gamma;
        self
    }

    /// Sets the computation of the layers. Results of instruction sets and algorithms differ by
    /// rounding.
    ///
    /// # Panics
    /// [`ResNetConfig::init`] panics for activations of 16 bits with [`Kernels::Stock`]. The first
    /// layer panics if the processor lacks the instruction set.
    pub fn with_computation(mut self, computation: Computation) -> Self {
        self.computation = computation;
        self
    }

    /// Returns the number of weighted layers on the longest path.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Returns the number of classes.
    pub fn num_classes(&self) -> usize {
        self.num_classes
    }

    /// Returns the number of image channels.
    pub fn in_channels(&self) -> usize {
        self.in_channels
    }

    /// Returns the kind of shortcut where the shape changes.
    pub fn shortcut(&self) -> Shortcut {
        self.shortcut
    }

    /// Returns the name that [`ResNetConfig::from_name`] reads.
    pub fn name(&self) -> String {
        let is_other = self.is_small() && IMAGENET_DEPTHS.contains(&self.depth);
        format!("{}resnet{}", if is_other { SMALL } else { "" }, self.depth)
    }

    /// Returns true if the network is for small images.
    pub fn is_small(&self) -> bool {
        self.images == Images::Small
    }

    /// Returns the number of values in the network's weights file, without making the network.
    ///
    /// These are its parameters and running statistics. The largest result is `u64::MAX`.
    pub fn num_values(&self) -> u64 {
        // The weights of a convolution, and four values for each channel of the normalisation after
        // it.
        let layer = |[c_in, c_out]: [u64; 2], kernel: u64| {
            c_out.saturating_mul(c_in.saturating_mul(kernel * kernel).saturating_add(4))
        };
        let block = |c_in: u64, stage: Stage| {
            let inner = stage.channels as u64;
            let c_out = stage.out_channels() as u64;
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
        let stem = self.stem_channels() as u64;
        let kernel = if self.is_small() { 3 } else { 7 };
        let mut num_values = layer([self.in_channels as u64, stem], kernel);
        let mut c_in = stem;
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

    /// Makes the network with weights drawn from `seed`: the same bits on every backend and thread.
    ///
    /// burn's global random numbers are not used.
    ///
    /// # Panics
    /// For 16 bits with [`Kernels::Stock`]: burn's operations would also keep parameters and
    /// statistics in 16 bits.
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

    /// Returns the channels of the first convolution.
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
            "depth: expected 18, 34, 50, 101 or 152, got 20. The nearest are 18 and 34."
        );
    }

    #[test]
    fn a_wrong_depth_is_refused_with_its_two_neighbours() {
        let text = ResNetConfig::cifar(52).unwrap_err().to_string();
        assert_eq!(
            text,
            "depth: expected 6n + 2 (20, 32, 44, 56, 110, 1202, ...), 18 or 34, got 52. The nearest are 50 and 56."
        );
        let error = |name: &str| ResNetConfig::from_name(name).unwrap_err().to_string();
        let own = error("cifar-resnet101");
        let any = error("resnet100");
        assert!(
            own.ends_with("18 or 34, got 101. The nearest are 98 and 104."),
            "{own}"
        );
        assert!(
            any.ends_with("18, 34 or 101, got 100. The nearest are 98 and 101."),
            "{any}"
        );
        for depth in [0, 1, 2, 7] {
            let text = ResNetConfig::cifar(depth).unwrap_err().to_string();
            assert!(text.ends_with("The nearest are 8 and 14."), "{text}");
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
