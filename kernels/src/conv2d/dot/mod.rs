//! Direct convolution of bf16 activations by the CPU's dot products of bf16 pairs.
//!
//! In: a direct plan, activations in bf16, weights rounded to bf16.
//! Out: the results of the direct convolution; sums are f32.
//! Invariant: the order of a pixel's sum does not depend on its block. Subnormal values count as
//! zero.
//! Source: Intel, Software Developer's Manual, VDPBF16PS and TDPBF16PS.

pub(super) mod pack;

use core::marker::PhantomData;
use half::bf16;

use super::Conv2dShape;
use super::direct::{Blocks, Direct, Products};
use super::pass::{AfterPiece, Operands};
use super::plan::DirectPlan;
#[cfg(any(test, all(target_arch = "x86_64", target_os = "linux")))]
use super::tiles::products::TileProducts;
use crate::Element;
use crate::simd::{Isa, TILE_VALUES, vectorized};
use pack::{Layout, PAIRS, PackPairs, TILES};

/// A plan with weights in pairs, and what multiplies them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dot {
    plan: DirectPlan,
    unit: Unit,
}

/// Unit that multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Vectors,
    Tiles,
    #[cfg(test)]
    EmulatedTiles,
}

impl Dot {
    /// Returns a plan with tiles if `isa` has tiles and the shape fills them, otherwise a plan with
    /// vectors. Returns `None` if `isa` has no dot products or multiplies f32 faster.
    pub(super) fn new(plan: DirectPlan, isa: Isa) -> Option<Self> {
        if isa.has_tiles() {
            // On a processor with tiles (measured) dot products do half as many multiply-adds as
            // f32's: they win only where a window is one pixel, since nothing has to be widened.
            let is_pixel = plan
                .classes()
                .iter()
                .all(|class| class.taps_h * class.taps_w <= 1);
            let unit = if fills_tiles(&plan) {
                Some(Unit::Tiles)
            } else {
                is_pixel.then_some(Unit::Vectors)
            };
            return unit.map(|unit| Self::with(plan, unit));
        }
        isa.has_dot_products()
            .then(|| Self::with(plan, Unit::Vectors))
    }

    /// Returns a plan with emulated tiles, for any processor; `None` if the shape does not fill
    /// tiles.
    #[cfg(test)]
    pub(super) fn emulated(plan: DirectPlan) -> Option<Self> {
        fills_tiles(&plan).then(|| Self::with(plan, Unit::EmulatedTiles))
    }

    fn with(plan: DirectPlan, unit: Unit) -> Self {
        Self {
            plan: plan.repacked(unit.layout().vectors),
            unit,
        }
    }

    pub(super) fn plan(&self) -> &DirectPlan {
        &self.plan
    }

    /// Returns the number of multiply-adds of a lane in the time of one of f32, roughly.
    pub(super) fn per_instruction(&self) -> usize {
        if self.unit == Unit::Vectors { 2 } else { 16 }
    }

    pub(super) fn slot_len(&self) -> usize {
        Blocks::<bf16>::slot_len(&self.plan)
    }

    pub(super) fn pack(&self, isa: Isa, shape: &Conv2dShape, weights: &[f32], packed: &mut [f32]) {
        vectorized(
            isa,
            PackPairs {
                layout: self.unit.layout(),
                shape,
                plan: &self.plan,
                weights,
                packed,
            },
        );
    }

    pub(super) fn run<E: Element>(
        &self,
        isa: Isa,
        operands: Operands<'_, E>,
        after_piece: AfterPiece<'_, E>,
    ) {
        match self.unit {
            Unit::Vectors => self.run_with::<Blocks<bf16>, E>(isa, operands, after_piece),
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Unit::Tiles => {
                assert!(
                    isa.has_tiles() && isa.is_available(),
                    "instruction set {isa:?}: no tiles"
                );
                self.run_with::<TileProducts<crate::simd::TileRegisters>, E>(
                    isa,
                    operands,
                    after_piece,
                );
            }
            #[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
            Unit::Tiles => unreachable!("planned where there are tiles"),
            #[cfg(test)]
            Unit::EmulatedTiles => {
                self.run_with::<TileProducts<crate::simd::EmulatedTiles>, E>(
                    isa,
                    operands,
                    after_piece,
                );
            }
        }
    }

    fn run_with<K: Products, E: Element>(
        &self,
        isa: Isa,
        operands: Operands<'_, E>,
        after_piece: AfterPiece<'_, E>,
    ) {
        E::run(
            isa,
            Direct {
                plan: &self.plan,
                operands,
                after_piece,
                products: PhantomData::<K>,
            },
        );
    }
}

impl Unit {
    fn layout(self) -> Layout {
        if self == Self::Vectors { PAIRS } else { TILES }
    }
}

/// Returns whether every run of a kernel row fills a tile's row.
fn fills_tiles(plan: &DirectPlan) -> bool {
    let mut classes = plan
        .classes()
        .iter()
        .filter(|class| class.taps_h * class.taps_w > 0);
    classes.all(|class| class.taps_w * plan.in_c >= TILE_VALUES)
}
