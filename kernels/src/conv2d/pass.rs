//! The algorithm of a pass, with its plan.

use super::depthwise::{self, Depthwise};
use super::direct::weight_gradient;
use super::direct::{Blocks, Direct, Products};
use super::dot::Dot;
use super::gradient_pieces::{WeightGradient, WeightPlan};
use super::plan::DirectPlan;
#[cfg(any(test, all(target_arch = "x86_64", target_os = "linux")))]
use super::tiles::gradient::{self as tile_gradient, ByTiles};
use super::winograd::Winograd;
use super::winograd::weight as winograd_weight;
use super::{Conv2dShape, winograd};
use crate::simd::Isa;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use crate::simd::TileRegisters;
#[cfg(any(test, all(target_arch = "x86_64", target_os = "linux")))]
use crate::simd::Tiles;
use crate::{Element, Storage};
use core::marker::PhantomData;

/// One pass's algorithm with its plan.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::large_enum_variant)] // A few hundred bytes for each layer, and no allocation.
pub(super) enum Pass {
    Depthwise(depthwise::DepthwisePlan),
    Direct(DirectPlan),
    Dot(Dot),
    Winograd(winograd::plan::WinogradPlan),
}

impl Pass {
    /// Returns direct convolution, with dot products for activations stored as bf16 if the CPU has
    /// them.
    pub(super) fn direct(plan: DirectPlan, isa: Isa, storage: Storage) -> Self {
        let dot = if storage == Storage::Bf16 {
            Dot::new(plan, isa)
        } else {
            None
        };
        dot.map_or(Self::Direct(plan), Self::Dot)
    }

    /// Returns the number of multiply-adds of a lane in the time of one of f32, roughly.
    pub(super) fn per_instruction(&self) -> usize {
        if let Self::Dot(dot) = self {
            dot.per_instruction()
        } else {
            1
        }
    }

    pub(super) fn packed_len(&self) -> usize {
        match self {
            Self::Depthwise(plan) => plan.packed_len(),
            Self::Direct(plan) => plan.all_packed_len(),
            Self::Dot(dot) => dot.plan().all_packed_len(),
            Self::Winograd(plan) => plan.packed_len(),
        }
    }

    pub(super) fn slot_len(&self) -> usize {
        match self {
            Self::Depthwise(plan) => plan.slot_len(),
            Self::Direct(plan) => Blocks::<f32>::slot_len(plan),
            Self::Dot(dot) => dot.slot_len(),
            Self::Winograd(plan) => plan.slot_len(),
        }
    }

    pub(super) fn num_pieces(&self) -> usize {
        match self {
            Self::Depthwise(plan) => plan.num_pieces(),
            Self::Direct(plan) => plan.num_pieces(),
            Self::Dot(dot) => dot.plan().num_pieces(),
            Self::Winograd(plan) => plan.num_pieces(),
        }
    }

    pub(super) fn run<E: Element>(
        &self,
        isa: Isa,
        operands: Operands<'_, E>,
        after_piece: AfterPiece<'_, E>,
    ) {
        match self {
            Self::Depthwise(plan) => E::run(
                isa,
                Depthwise {
                    plan,
                    operands,
                    after_piece,
                },
            ),
            Self::Direct(plan) => {
                E::run(
                    isa,
                    Direct {
                        plan,
                        operands,
                        after_piece,
                        products: PhantomData::<Blocks<f32>>,
                    },
                );
            }
            Self::Dot(dot) => dot.run(isa, operands, after_piece),
            Self::Winograd(plan) => E::run(
                isa,
                Winograd {
                    plan,
                    operands,
                    after_piece,
                },
            ),
        }
    }
}

/// The same for the weight gradient.
#[derive(Clone, Copy, Debug)]
pub(super) enum WeightPass {
    Depthwise(depthwise::GradientPlan),
    Direct(weight_gradient::DirectWeightPlan),
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    Tiles(tile_gradient::TileWeightPlan),
    #[cfg(test)]
    EmulatedTiles(tile_gradient::TileWeightPlan),
    Winograd(winograd_weight::WinogradWeightPlan),
}

impl WeightPass {
    /// Returns the gradient by tiles if activations are stored as bf16 and `isa` has tiles.
    pub(super) fn tiles(shape: &Conv2dShape, isa: Isa, storage: Storage) -> Option<Self> {
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        if storage == Storage::Bf16 && isa.has_tiles() {
            return Some(Self::Tiles(tile_gradient::TileWeightPlan::new(shape)));
        }
        let _ = (shape, isa, storage);
        None
    }

    /// Returns the gradient by vectors; for activations stored as bf16 by dot products if `isa` has
    /// them.
    pub(super) fn direct(shape: &Conv2dShape, isa: Isa, storage: Storage) -> Self {
        Self::Direct(weight_gradient::DirectWeightPlan::new(
            shape,
            storage == Storage::Bf16 && isa.has_dot_products(),
        ))
    }

    pub(super) fn plan(&self) -> &dyn WeightPlan {
        match self {
            Self::Depthwise(plan) => plan,
            Self::Direct(plan) => plan,
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Self::Tiles(plan) => plan,
            #[cfg(test)]
            Self::EmulatedTiles(plan) => plan,
            Self::Winograd(plan) => plan,
        }
    }

    pub(super) fn run<E: Element>(&self, isa: Isa, operands: WeightOperands<'_, E>) {
        match self {
            Self::Depthwise(plan) => isa.run(WeightGradient {
                method: plan,
                operands,
            }),
            Self::Direct(plan) if plan.has_dots() => {
                assert!(
                    E::STORAGE == Storage::Bf16,
                    "convolution: planned for another storage than {:?}",
                    E::STORAGE
                );
                isa.run_bf16(WeightGradient {
                    method: plan,
                    operands,
                });
            }
            Self::Direct(plan) => isa.run(WeightGradient {
                method: plan,
                operands,
            }),
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Self::Tiles(plan) => {
                assert!(
                    isa.has_tiles() && isa.is_available(),
                    "instruction set {isa:?}: no tiles"
                );
                run_tiles::<TileRegisters, E>(plan, isa, operands);
            }
            #[cfg(test)]
            Self::EmulatedTiles(plan) => {
                run_tiles::<crate::simd::EmulatedTiles, E>(plan, isa, operands)
            }
            Self::Winograd(plan) => isa.run(WeightGradient {
                method: plan,
                operands,
            }),
        }
    }
}

#[cfg(any(test, all(target_arch = "x86_64", target_os = "linux")))]
fn run_tiles<T: Tiles, E: Element>(
    plan: &tile_gradient::TileWeightPlan,
    isa: Isa,
    operands: WeightOperands<'_, E>,
) {
    let WeightOperands { x, dy, target } = operands;
    let (Some(x), Some(dy)) = (E::as_bf16(x), E::as_bf16(dy)) else {
        panic!(
            "convolution: planned for another storage than {:?}",
            E::STORAGE
        );
    };
    isa.run_bf16(WeightGradient {
        method: &ByTiles::<T> {
            plan,
            tiles: PhantomData,
        },
        operands: WeightOperands { x, dy, target },
    });
}

/// The slices of the weight gradient.
pub(super) struct WeightOperands<'a, E> {
    pub(super) x: &'a [E],
    pub(super) dy: &'a [E],
    pub(super) target: WeightTarget<'a>,
}

/// Target of a gradient of the weights.
pub(super) enum WeightTarget<'a> {
    /// A gradient to overwrite, with a workspace for pieces and threads.
    Gradient {
        dw: &'a mut [f32],
        workspace: &'a mut [f32],
    },
    /// The sums of all tasks (lengths: [`WeightPass::sums_lens`]), which are set or added to; and
    /// the gradient to compute from the sums, if any.
    Sums {
        sums: &'a mut [f32],
        accumulate: bool,
        scratch: &'a mut [f32],
        dw: Option<&'a mut [f32]>,
    },
}

/// Work on each finished piece of the output: its number, its first element, its elements. Called
/// once a piece, so not generic: the loops around it are then compiled once.
pub(super) type AfterPiece<'a, E> = &'a (dyn Fn(usize, usize, &mut [E]) + Sync);

/// The slices of one pass.
pub(super) struct Operands<'a, E> {
    pub(super) input: &'a [E],
    pub(super) packed: &'a [f32],
    pub(super) output: &'a mut [E],
    pub(super) workspace: &'a mut [f32],
}

impl<E> Operands<'_, E> {
    /// # Panics
    /// If input, output or packed weights have other lengths.
    pub(super) fn assert_lens(&self, [input, output, packed]: [usize; 3]) {
        assert_eq!(self.input.len(), input, "convolution: input length");
        assert_eq!(self.output.len(), output, "convolution: output length");
        assert_eq!(
            self.packed.len(),
            packed,
            "convolution: length of the packed weights"
        );
    }
}
