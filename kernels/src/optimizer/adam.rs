//! Adam's moments of the gradient, and AdamW's step with decoupled weight decay, in one pass.
//!
//! In: four flat slices: parameters, first and second moments, gradients.
//! Out: updated parameters and moments.
//! Source: Kingma and Ba 2015 (1412.6980) for the moments and their correction; Loshchilov and
//! Hutter 2019 (1711.05101) for the decay; the order of operations of PyTorch's
//! `torch.optim.AdamW`.

use rayon::prelude::*;

use super::{PIECE_VALUES, check_lengths};
use crate::simd::{Isa, Task, vectorized};

/// Update of the moments, and the resulting direction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamDirection {
    pub(super) first_share: f32,
    pub(super) second_decay: f32,
    pub(super) second_share: f32,
    pub(super) first_correction: f32,
    pub(super) root_correction: f32,
    pub(super) epsilon: f32,
}

impl AdamDirection {
    /// Returns the direction of update `num_updates` (counted from 1); `betas` are the decays of
    /// the moments.
    pub fn new(betas: [f64; 2], epsilon: f64, num_updates: u64) -> Self {
        let [first_correction, root_correction] = corrections(betas, num_updates);
        Self {
            first_share: (1.0 - betas[0]) as f32,
            second_decay: betas[1] as f32,
            second_share: (1.0 - betas[1]) as f32,
            first_correction: first_correction as f32,
            root_correction: root_correction as f32,
            epsilon: epsilon as f32,
        }
    }

    /// Updates the moments of one value and returns m̂ / (√v̂ + epsilon).
    #[inline(always)]
    pub(super) fn of(&self, first: &mut f32, second: &mut f32, gradient: f32) -> f32 {
        *first += self.first_share * (gradient - *first);
        *second = self.second_decay * *second + self.second_share * (gradient * gradient);
        self.first_correction * *first / (self.root_correction * second.sqrt() + self.epsilon)
    }
}

/// Returns the bias corrections of update `num_updates` (counted from 1): factors on the first
/// moment and on the root of the second moment. Both moments start at zero.
pub fn corrections(betas: [f64; 2], num_updates: u64) -> [f64; 2] {
    let power = i32::try_from(num_updates).unwrap_or(i32::MAX);
    let [first, second] = betas.map(|beta| 1.0 - beta.powi(power));
    [first.recip(), second.sqrt().recip()]
}

/// Numbers of one update, equal for all values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamWUpdate {
    /// Step along the direction.
    pub learning_rate: f32,
    /// Factor of a parameter before the step: 1 − learning rate · weight decay, or 1 for parameters
    /// without decay.
    pub kept: f32,
    /// Direction of the step.
    pub direction: AdamDirection,
}

/// Applies one update: m and v average the gradient and its square; w = kept · w − learning_rate ·
/// m̂ / (√v̂ + epsilon).
///
/// # Shapes
/// Four slices of one length.
///
/// # Panics
/// If the lengths differ, or the processor lacks `isa`.
///
/// # Differs from PyTorch
/// Only by rounding: corrections are multiplied instead of divided.
pub fn step(
    isa: Isa,
    update: &AdamWUpdate,
    parameters: &mut [f32],
    [first, second]: [&mut [f32]; 2],
    gradients: &[f32],
) {
    let lens = [
        ("first moments", first.len()),
        ("second moments", second.len()),
        ("gradients", gradients.len()),
    ];
    check_lengths("adamw", parameters.len(), lens);
    let pieces = parameters
        .par_chunks_mut(PIECE_VALUES)
        .zip(first.par_chunks_mut(PIECE_VALUES))
        .zip(second.par_chunks_mut(PIECE_VALUES))
        .zip(gradients.par_chunks(PIECE_VALUES));
    pieces.for_each(|(((parameters, first), second), gradients)| {
        vectorized(
            isa,
            Piece {
                update: *update,
                parameters,
                first,
                second,
                gradients,
            },
        );
    });
}

struct Piece<'a> {
    update: AdamWUpdate,
    parameters: &'a mut [f32],
    first: &'a mut [f32],
    second: &'a mut [f32],
    gradients: &'a [f32],
}

impl Task for Piece<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let AdamWUpdate {
            learning_rate,
            kept,
            direction,
        } = self.update;
        let values = self
            .parameters
            .iter_mut()
            .zip(self.first)
            .zip(self.second)
            .zip(self.gradients);
        for (((parameter, first), second), &gradient) in values {
            *parameter = kept * *parameter - learning_rate * direction.of(first, second, gradient);
        }
    }
}
