//! The algorithm chosen for a pass, with its plan.

use super::direct::Direct;
use super::plan::Plan;
use super::winograd::Winograd;
use super::{weight_gradient, winograd_plan, winograd_weight};
use crate::Element;
use crate::simd::Isa;

/// One pass's algorithm with its plan.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::large_enum_variant)] // A few hundred bytes for each layer, and no allocation.
pub(super) enum Pass {
    Direct(Plan),
    Winograd(winograd_plan::Plan),
}

impl Pass {
    pub(super) fn packed_len(&self) -> usize {
        match self {
            Self::Direct(plan) => plan.packed_len,
            Self::Winograd(plan) => plan.packed_len(),
        }
    }

    pub(super) fn slot_len(&self) -> usize {
        match self {
            Self::Direct(plan) => plan.slot_len(),
            Self::Winograd(plan) => plan.slot_len(),
        }
    }

    pub(super) fn num_pieces(&self) -> usize {
        match self {
            Self::Direct(plan) => plan.images * plan.num_bands,
            Self::Winograd(plan) => plan.num_pieces(),
        }
    }

    pub(super) fn run<E, F>(&self, isa: Isa, operands: Operands<'_, E>, after_piece: F)
    where
        E: Element,
        F: Fn(usize, usize, &mut [E]) + Sync,
    {
        let Operands { input, packed, output, workspace } = operands;
        match self {
            Self::Direct(plan) => E::run(isa, Direct { plan, input, packed, output, workspace, after_piece }),
            Self::Winograd(plan) => E::run(isa, Winograd { plan, input, packed, output, workspace, after_piece }),
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
