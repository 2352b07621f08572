//! What a network looks like: depth, classes, shortcut.
//!
//! In: user data. Out: a configuration that is valid by construction. Invariant: the depth is `6n + 2`, 18 or 34.
//! Source: He et al. 2015, arXiv 1512.03385, section 4.2, and table 1 for 18 and 34 layers.

use burn::tensor::Device;
use layers::{Activations, Computation, Kernels};

use crate::{ModelError, ResNet, init::WeightInit};

/// How a block's input reaches its output where the shape changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Shortcut {
    /// Every second pixel, and channels of zeros half in front and half behind; no parameters.
    #[default]
    A,
    /// A 1x1 convolution with stride 2 and a batch normalisation.
    B,
}

/// Of table 1, beside `6n + 2`.
const WIDE_DEPTHS: [usize; 2] = [18, 34];

/// A ResNet of basic blocks for small images: three stages of `n` blocks with 16, 32 and 64 channels, or the four stages of ResNet-18
/// and -34 with 64, 128, 256 and 512, after a 3x3 convolution that keeps the size and no pooling, as everybody trains them on CIFAR.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ResNetConfig {
    depth: usize,
    num_classes: usize,
    in_channels: usize,
    shortcut: Shortcut,
    zero_gamma: bool,
    computation: Computation,
}

impl ResNetConfig {
    /// The network of `depth` layers (20, 32, 44, 56, 110, 1202, …; 18, 34) with 10 classes, RGB images
    /// and the shortcut that its paper has: B for 18 and 34 layers, else A.
    ///
    /// # Errors
    /// [`ModelError::Depth`] unless `depth` is `6n + 2` with `n` at least 1, 18 or 34.
    pub fn cifar(depth: usize) -> Result<Self, ModelError> {
        let is_wide = WIDE_DEPTHS.contains(&depth);
        if !is_wide && (depth < 8 || !(depth - 2).is_multiple_of(6)) {
            let lower = (depth.saturating_sub(2) / 6 * 6 + 2).max(8);
            let wide = WIDE_DEPTHS.into_iter();
            return Err(ModelError::Depth {
                depth,
                lower: wide.clone().filter(|&wide| wide < depth).fold(lower, usize::max),
                upper: wide.filter(|&wide| wide > depth).fold(lower + 6, usize::min),
            });
        }
        Ok(Self {
            depth,
            num_classes: 10,
            in_channels: 3,
            shortcut: if is_wide { Shortcut::B } else { Shortcut::A },
            zero_gamma: false,
            computation: Computation::default(),
        })
    }

    /// The configuration a name such as `resnet20` stands for.
    ///
    /// # Errors
    /// [`ModelError::Name`] when the name is not `resnet` and a number, [`ModelError::Depth`] when
    /// the number is no valid depth.
    pub fn from_name(name: &str) -> Result<Self, ModelError> {
        let depth = name
            .strip_prefix("resnet")
            .and_then(|digits| digits.parse().ok())
            .ok_or_else(|| ModelError::Name { name: name.to_owned() })?;
        Self::cifar(depth)
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
        format!("resnet{}", self.depth)
    }

    /// The number of values in its weights file, parameters and running statistics, without making it; `u64::MAX` for more.
    pub fn num_values(&self) -> u64 {
        // A convolution's weights, and four values a channel of the normalisation after it.
        let layer = |[c_in, c_out]: [u64; 2], kernel: u64| {
            c_out.saturating_mul(c_in.saturating_mul(kernel * kernel).saturating_add(4))
        };
        let stage = |c_in: u64, c_out: u64, num_blocks: u64| {
            let has_projection = self.shortcut == Shortcut::B && c_in != c_out;
            let projection = if has_projection { layer([c_in, c_out], 1) } else { 0 };
            let others = num_blocks.saturating_mul(2).saturating_sub(1);
            others.saturating_mul(layer([c_out, c_out], 3)).saturating_add(layer([c_in, c_out], 3) + projection)
        };
        let stages = self.stages().into_iter().map(|(channels, num_blocks)| (channels as u64, num_blocks as u64));
        let stem = self.stages()[0].0 as u64;
        let (num_values, last) = stages
            .fold((layer([self.in_channels as u64, stem], 3), stem), |(sum, c_in), (c_out, n)| {
                (sum.saturating_add(stage(c_in, c_out, n)), c_out)
            });
        num_values.saturating_add((self.num_classes as u64).saturating_mul(last + 1))
    }

    /// Makes the network with the weights that `seed` stands for: the same bits on every backend
    /// and thread. burn's global random numbers are not used.
    ///
    /// # Panics
    /// For 16 bits with [`Kernels::Stock`]: burn's operations would keep parameters and statistics in 16 bits too.
    pub fn init(&self, seed: u64, device: &Device) -> ResNet {
        let Computation { activations, kernels, .. } = self.computation;
        let mixed = activations == Activations::F32 || kernels == Kernels::Fused;
        assert!(mixed, "activations in 16 bits: expected Kernels::Fused, got Kernels::Stock");
        ResNet::new(self, &mut WeightInit::new(seed, device))
    }

    /// Channels and number of blocks of each stage; the stem has the channels of the first one.
    pub(crate) fn stages(&self) -> Vec<(usize, usize)> {
        match self.depth {
            18 => vec![(64, 2), (128, 2), (256, 2), (512, 2)],
            34 => vec![(64, 3), (128, 4), (256, 6), (512, 3)],
            depth => [16, 32, 64].map(|channels| (channels, (depth - 2) / 6)).to_vec(),
        }
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
        for depth in [8, 18, 20, 32, 34, 44, 56, 110, 1202] {
            let config = ResNetConfig::cifar(depth).unwrap();
            assert_eq!(config.depth(), depth);
            assert_eq!(ResNetConfig::from_name(&config.name()).unwrap(), config);
        }
    }

    #[test]
    fn a_wrong_depth_is_refused_with_its_two_neighbours() {
        let text = ResNetConfig::cifar(52).unwrap_err().to_string();
        assert_eq!(
            text,
            "depth: expected 6n + 2 (20, 32, 44, 56, 110, 1202, ...), 18 or 34, got 52; the nearest are 50 and 56"
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
