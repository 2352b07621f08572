//! Convolutions of bf16 by products of tiles, in AMX's registers or their emulation.
//!
//! In: bands and pixels as the direct convolution cuts them. Out: its results, sums being f32.
//! Invariant: the emulation gives the same bits.
//! Source: Intel 64 and IA-32 Architectures Software Developer's Manual, TDPBF16PS.

pub(super) mod gradient;
mod grid;
pub(super) mod products;
