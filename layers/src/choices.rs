//! Choices of the computation: kernels, algorithm, number format.
//!
//! Invariant: a choice changes speed and rounding, never the function.

#[cfg(feature = "flex")]
use kernels::conv2d::Algorithm;
use kernels::simd::Isa;

/// Computation of the layers of a network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Computation {
    /// Kernel implementation.
    pub kernels: Kernels,
    /// Algorithm of Lockstep's convolutions.
    pub convolution: Convolution,
    /// Instruction set of Lockstep's kernels; default: the processor's best.
    pub isa: Isa,
    /// The number format between layers.
    pub activations: Activations,
    /// Activations that are computed twice to save memory.
    pub recompute: Recompute,
}

/// Kernel implementation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "cli",
    derive(clap::ValueEnum, serde::Serialize, serde::Deserialize),
    serde(rename_all = "kebab-case")
)]
pub enum Kernels {
    /// burn's operations, one at a time.
    Stock,
    /// One fused operation per layer: Lockstep's kernels on Flex, burn's operations elsewhere.
    #[default]
    Fused,
}

/// Algorithm of Lockstep's convolutions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "cli",
    derive(clap::ValueEnum, serde::Serialize, serde::Deserialize),
    serde(rename_all = "kebab-case")
)]
pub enum Convolution {
    /// Winograd's F(4x4, 3x3) (Lavin and Gray 2015) if it is faster, otherwise direct.
    #[default]
    Auto,
    /// Direct for all shapes: slower, but with a rounding error several times smaller.
    Direct,
}

impl Convolution {
    /// Returns the algorithm of the crate `kernels`.
    #[cfg(feature = "flex")]
    pub(crate) fn of_kernels(self) -> Algorithm {
        match self {
            Self::Auto => Algorithm::Auto,
            Self::Direct => Algorithm::Direct,
        }
    }
}

/// Activations that the backward pass computes again instead of keeping them. The bits are the
/// same.
///
/// Applies only to layers that Lockstep's kernels fuse on Flex.
///
/// Source: Chen et al. 2016, "Training deep nets with sublinear memory cost", arXiv 1604.06174;
/// PyTorch's activation checkpointing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "cli",
    derive(clap::ValueEnum, serde::Serialize, serde::Deserialize),
    serde(rename_all = "kebab-case")
)]
pub enum Recompute {
    /// No activation.
    #[default]
    None,
    /// Outputs of normalisations with residual and ReLU. The forward pass keeps only results of
    /// convolutions.
    Norms,
    /// Results of convolutions as well, with a second forward pass. The forward pass keeps only
    /// outputs of blocks.
    Convolutions,
}

/// Number format of activations and their gradients. Parameters, norm statistics, sums and the
/// optimizer use f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "cli",
    derive(clap::ValueEnum, serde::Serialize, serde::Deserialize),
    serde(rename_all = "kebab-case")
)]
pub enum Activations {
    /// 32 bits.
    #[default]
    F32,
    /// bfloat16: the range of f32, 8 bits of precision. Needs fused kernels.
    Bf16,
    /// IEEE half: up to 65,504, 11 bits of precision. Needs fused kernels and a loss scale. Slow on
    /// Flex.
    F16,
}

/// Implements `Display` in the spelling of clap and serde.
#[cfg(feature = "cli")]
macro_rules! spelled_as_in_clap {
    ($($kind:ty),+) => {$(
        impl std::fmt::Display for $kind {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let value = clap::ValueEnum::to_possible_value(self).expect("no variant is skipped");
                f.pad(value.get_name())
            }
        }
    )+};
}

#[cfg(feature = "cli")]
spelled_as_in_clap!(Kernels, Convolution, Recompute, Activations);
