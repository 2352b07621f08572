//! The algorithm chosen for a pass, with its plan.

use super::direct::{Blocks, Direct, Products};
use super::dot::Dot;
use super::plan::Plan;
use super::winograd::Winograd;
use super::{weight_gradient, winograd_plan, winograd_weight};
use crate::simd::Isa;
use crate::{Element, Storage};
use core::marker::PhantomData;

/// One pass's algorithm with its plan.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::large_enum_variant)] // A few hundred bytes for each layer, and no allocation.
pub(super) enum Pass {
    Direct(Plan),
    Dot(Dot),
    Winograd(winograd_plan::Plan),
}

impl Pass {
    /// Direct convolution; of activations stored as bf16 by dot products, if there are any.
    pub(super) fn direct(plan: Plan, isa: Isa, storage: Storage) -> Self {
        let dot = if storage == Storage::Bf16 { Dot::new(plan, isa) } else { None };
        dot.map_or(Self::Direct(plan), Self::Dot)
    }

    /// Multiply-adds of a lane in the time of one of f32, roughly.
    pub(super) fn per_instruction(&self) -> usize {
        if let Self::Dot(dot) = self { dot.per_instruction() } else { 1 }
    }

    pub(super) fn packed_len(&self) -> usize {
        match self {
            Self::Direct(plan) => plan.packed_len,
            Self::Dot(dot) => dot.plan().packed_len,
            Self::Winograd(plan) => plan.packed_len(),
        }
    }

    pub(super) fn slot_len(&self) -> usize {
        match self {
            Self::Direct(plan) => Blocks::<f32>::slot_len(plan),
            Self::Dot(dot) => dot.slot_len(),
            Self::Winograd(plan) => plan.slot_len(),
        }
    }

    pub(super) fn num_pieces(&self) -> usize {
        match self {
            Self::Direct(plan) => plan.num_pieces(),
            Self::Dot(dot) => dot.plan().num_pieces(),
            Self::Winograd(plan) => plan.num_pieces(),
        }
    }

    pub(super) fn run<E, F>(&self, isa: Isa, operands: Operands<'_, E>, after_piece: F)
    where
        E: Element,
        F: Fn(usize, usize, &mut [E]) + Sync,
    {
        match self {
            Self::Direct(plan) => {
                E::run(isa, Direct { plan, operands, after_piece, products: PhantomData::<Blocks<f32>> });
            }
            Self::Dot(dot) => dot.run(isa, operands, after_piece),
            Self::Winograd(plan) => E::run(isa, Winograd { plan, operands, after_piece }),
        }
    }
}

/// The same for the weight gradient.
#[derive(Clone, Copy, Debug)]
pub(super) enum WeightPass {
    Direct(weight_gradient::Plan),
    Winograd(winograd_weight::Plan),
}

/// The slices of one pass.
pub(super) struct Operands<'a, E> {
    pub(super) input: &'a [E],
    pub(super) packed: &'a [f32],
    pub(super) output: &'a mut [E],
    pub(super) workspace: &'a mut [f32],
}
