//! The CPU kernels of a training step: slices in, slices out, without a tensor library.
//!
//! In: contiguous slices, PyTorch's weights, and a workspace from the caller. Activations are
//! channels-last `[N, H, W, C]` or `[rows, C]`, with any extents.
//! Out: the caller's slices. A hot path allocates nothing.
//! Invariant: work is cut into pieces of fixed size, and partial sums are added in the order of the
//! pieces. So no result depends on the number of threads. Convolutions differ between instruction
//! sets by rounding; all other kernels have the same bits, except that AVX512-BF16 stores subnormal
//! bf16 values as zero.
//!
//! - Alignment: activations may start anywhere; those of an [`arena::Arena`] are fastest. Packed
//!   weights and workspaces of floats must start on a cache line, as [`scratch::Scratch`] gives
//!   them, and are rejected elsewhere. A workspace of doubles may start anywhere.
//! - Number formats: activations and their gradients are f32 or bf16 ([`Element`]). All other
//!   values, and all arithmetic, are f32. Convolutions planned for bf16 multiply pairs of bf16 if
//!   the processor can ([`conv2d::Conv2d::new`]).
//! - Safety: `unsafe` code is vector instructions and unchecked addresses. Each public entry checks
//!   all lengths once.
#![allow(
    unsafe_code,
    reason = "vector instructions; each block says why it is sound"
)]

pub mod activation;
pub mod arena;
pub mod attention;
pub mod batch_norm;
pub mod conv2d;
pub mod copies;
pub mod dropout;
pub mod group_norm;
pub mod layer;
pub mod layer_norm;
pub mod loss;
pub mod optimizer;
pub mod pool;
pub mod scratch;
pub mod softmax;

mod element;
mod instances;
mod pieces;
mod tiles;

pub mod simd;

pub use element::{Element, Storage};

/// The example of the crate's page, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

#[cfg(test)]
mod tests;
