//! The named choices of how a network is computed.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Whose kernels compute the layers of a ResNet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KernelsKind {
    /// burn's operations one after the other.
    Stock,
    /// One fused operation a layer, by our own kernels on flex.
    Fused,
}

/// How our own kernels convolve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConvolutionKind {
    /// Winograd's algorithm where it is faster, direct elsewhere.
    Auto,
    /// Direct everywhere.
    Direct,
}

/// What the backward pass computes again instead of finding it in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RecomputeKind {
    /// Nothing.
    None,
    /// What ends in a normalisation, its residual and ReLU.
    Norms,
    /// The convolutions' results.
    Convolutions,
}

/// The instruction set of our own kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CpuKind {
    /// The best one that the processor has.
    Auto,
    /// AVX-512 without its bf16 instructions.
    Avx512,
    /// AVX2 with FMA.
    Avx2,
    /// Nothing beyond the target's baseline.
    Portable,
}

/// The number format of activations and their gradients; parameters, norm statistics and the optimizer are always f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Dtype {
    /// 32-bit floating point.
    F32,
    /// bfloat16: half the memory, 8 bits of precision.
    Bf16,
    /// IEEE half precision: 11 bits of precision, a short range.
    F16,
}
