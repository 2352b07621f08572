//! Convolutions of bf16 by products of tiles, in AMX registers or their emulation.
//!
//! In: bands and pixels of the direct convolution. Out: its results; sums are f32.
//! Invariant: the emulation gives the same bits.
//! Source: Intel 64 and IA-32 Architectures Software Developer's Manual, TDPBF16PS.

pub(super) mod gradient;
mod grid;
pub(super) mod products;
