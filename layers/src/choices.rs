//! How layers are computed: whose kernels, which algorithm, which number format.
//!
//! In: user data. Out: plain choices. Invariant: each changes speed and rounding, never the function.

#[cfg(feature = "flex")]
use kernels::conv2d::Algorithm;
use kernels::simd::Isa;

/// How the layers of a network are computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Computation {
    /// Whose kernels.
    pub kernels: Kernels,
    /// How our own kernels convolve.
    pub convolution: Convolution,
    /// Their instruction set; by default the processor's best.
    pub isa: Isa,
    /// The number format between layers.
    pub activations: Activations,
    /// What is computed twice to save memory.
    pub recompute: Recompute,
}

/// Whose kernels compute the layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Kernels {
    /// burn's operations one after the other.
    Stock,
    /// One fused operation a layer: our own kernels on Flex, composed of burn's operations elsewhere.
    #[default]
    Fused,
}

/// How our own kernels convolve.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Convolution {
    /// Winograd's F(4x4, 3x3) (Lavin and Gray 2015, arXiv 1509.09308) where it is faster, direct elsewhere.
    #[default]
    Auto,
    /// Direct everywhere: slower, with a few times less rounding error.
    Direct,
}

impl Convolution {
    /// By the kernels' name.
    #[cfg(feature = "flex")]
    pub(crate) fn of_kernels(self) -> Algorithm {
        match self {
            Self::Auto => Algorithm::Auto,
            Self::Direct => Algorithm::Direct,
        }
    }
}

/// What the backward pass computes again instead of finding it in memory, of layers that our own kernels fuse on Flex; elsewhere nothing.
/// The bits are the same.
///
/// Source: Chen et al. 2016, "Training deep nets with sublinear memory cost", arXiv 1604.06174; PyTorch's activation checkpointing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Recompute {
    /// Nothing.
    #[default]
    None,
    /// What ends in a normalisation, its residual and ReLU: a residual network keeps the convolutions' results alone.
    Norms,
    /// The convolutions' results, by one forward pass more: a residual network keeps what its blocks gave.
    Convolutions,
}

/// The number format of activations and their gradients; parameters, norm statistics, sums and the optimizer are f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Activations {
    /// 32 bits.
    #[default]
    F32,
    /// bfloat16: 8 bits of exponent, 8 of precision. Needs [`Kernels::Fused`].
    Bf16,
    /// IEEE half precision: 5 bits of exponent, 11 of precision; small gradients need a loss that is scaled up. Needs
    /// [`Kernels::Fused`]. For GPUs: on Flex its layers are burn's operations one after the other, slow.
    F16,
}
