//! Choices of the computation: kernels, algorithm, number format.
//!
//! In: user data.
//! Out: plain choices.
//! Invariant: each changes speed and rounding, never the function.

#[cfg(feature = "flex")]
use kernels::conv2d::Algorithm;
use kernels::simd::Isa;

/// Computation of the layers of a network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Computation {
    /// Kernel implementation.
    pub kernels: Kernels,
    /// Algorithm of convolutions by our kernels.
    pub convolution: Convolution,
    /// Instruction set of our kernels; default: the processor's best.
    pub isa: Isa,
    /// The number format between layers.
    pub activations: Activations,
    /// Activations computed twice to save memory.
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
    /// burn's operations one after the other.
    Stock,
    /// One fused operation a layer: our own kernels on Flex, composed of burn's operations
    /// elsewhere.
    #[default]
    Fused,
}

/// Algorithm of convolutions by our kernels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "cli",
    derive(clap::ValueEnum, serde::Serialize, serde::Deserialize),
    serde(rename_all = "kebab-case")
)]
pub enum Convolution {
    /// Winograd's F(4x4, 3x3) (Lavin and Gray 2015, arXiv 1509.09308) where it is faster, direct
    /// elsewhere.
    #[default]
    Auto,
    /// Direct everywhere: slower, with a few times less rounding error.
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

/// Activations that the backward pass computes again instead of keeping them, in layers that our
/// kernels fuse on Flex; elsewhere nothing. The bits are the same.
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
    /// Outputs of normalisations with their residual and ReLU: a residual network keeps only the
    /// convolutions' results.
    Norms,
    /// The convolutions' results, by one forward pass more: a residual network keeps what its
    /// blocks gave.
    Convolutions,
}

/// The number format of activations and their gradients; parameters, norm statistics, sums and the
/// optimizer are f32.
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
    /// bfloat16: 8 bits of exponent, 8 of precision. Needs [`Kernels::Fused`].
    Bf16,
    /// IEEE half precision: 5 bits of exponent, 11 of precision; small gradients need a loss that
    /// is scaled up. Needs [`Kernels::Fused`]. For GPUs: on Flex its layers are burn's operations
    /// one after the other, slow.
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
