//! The CPU kernels of a training step: slices in, slices out; knows no tensor library.
//!
//! In: contiguous slices, activations channels-last `[N, H, W, C]` (or `[rows, C]`), any extents,
//! PyTorch's weights, and a workspace from the caller.
//! Out: the caller's slices; nothing is allocated in a hot path. Activations may start anywhere,
//! though those of an [`arena::Arena`] are fastest; packed weights and workspaces of floats must
//! start on a cache line, as [`scratch::Scratch`] gives them, and are refused elsewhere. A
//! normalisation's workspace of doubles is too small to matter. Activations and their gradients are
//! stored as f32 or bf16 ([`Element`]); all else, and all arithmetic, is f32, but for convolutions
//! planned for bf16, which multiply pairs of bf16 where the processor can
//! ([`conv2d::Conv2d::new`]).
//! Invariant: work is cut into pieces of fixed size and partial sums are added in piece order, so
//! no result depends on the number of threads. Convolutions differ between instruction sets by
//! rounding, everything else does not (but AVX512-BF16 stores what is subnormal in bf16 as zero).
//!
//! One of the few places with `unsafe`: vector instructions and unchecked addresses. Lengths are
//! checked once at each public entry.
#![allow(
    unsafe_code,
    reason = "vector instructions; each block says why it is sound"
)]

pub mod activation;
pub mod arena;
pub mod attention;
pub mod batch_norm;
pub mod conv2d;
pub mod layer;
pub mod layer_norm;
pub mod loss;
pub mod optimizer;
pub mod pool;
pub mod scratch;

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
