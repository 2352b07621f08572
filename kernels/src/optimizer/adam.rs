//! Adam's moments of the gradient, and AdamW: its step with decoupled weight decay, in one pass.
//!
//! In: parameters, first and second moments, gradients, four flat slices. Out: the next parameters and moments, beside them.
//! Source: Kingma and Ba 2015 (1412.6980) for the moments and their correction; Loshchilov and Hutter 2019 (1711.05101) for the decay;
//! the order of operations is that of PyTorch's `torch.optim.AdamW`.

use rayon::prelude::*;

use super::{PIECE_VALUES, check_lengths};
use crate::simd::{Isa, Task, vectorized};

/// How one update moves the moments of a gradient, and which direction they give.
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
    /// That of update number `num_updates`, from 1, with the decays `betas` of the moments.
    pub fn new(betas: [f64; 2], epsilon: f64, num_updates: u64) -> Self {
        let power = i32::try_from(num_updates).unwrap_or(i32::MAX);
        let [first, second] = betas.map(|beta| 1.0 - beta.powi(power));
        Self {
            first_share: (1.0 - betas[0]) as f32,
            second_decay: betas[1] as f32,
            second_share: (1.0 - betas[1]) as f32,
            first_correction: first.recip() as f32,
            root_correction: second.sqrt().recip() as f32,
            epsilon: epsilon as f32,
        }
    }

    /// The next moments of one value, and m̂ / (√v̂ + epsilon) of them.
    #[inline(always)]
    pub(super) fn of(&self, [first, second]: [f32; 2], gradient: f32) -> ([f32; 2], f32) {
        let first = first + self.first_share * (gradient - first);
        let second = self.second_decay * second + self.second_share * (gradient * gradient);
        let direction = self.first_correction * first / (self.root_correction * second.sqrt() + self.epsilon);
        ([first, second], direction)
    }
}

/// What one update does; the same for every value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamWUpdate {
    /// The step along the direction.
    pub learning_rate: f32,
    /// What is left of a parameter before the step: 1 − learning rate · weight decay, 1 for parameters that are spared.
    pub kept: f32,
    /// Along which.
    pub direction: AdamDirection,
}

/// One update: m, v = their means with the gradient and its square; w = kept · w − learning_rate · m̂ / (√v̂ + epsilon).
///
/// `present` and `next` are parameters, first and second moments; what `next` held before is not looked at.
///
/// # Shapes
/// Seven slices of one length.
///
/// # Panics
/// If the lengths differ, or the processor lacks `isa`.
///
/// # Differs from PyTorch
/// By roundings: corrections are multiplied, not divided by.
pub fn step(isa: Isa, update: &AdamWUpdate, present: [&[f32]; 3], next: [&mut [f32]; 3], gradients: &[f32]) {
    check_lengths("adamw", &present, &next, gradients);
    let [parameters, first, second] = present.map(|values| values.par_chunks(PIECE_VALUES));
    let next = next.map(|values| values.par_chunks_mut(PIECE_VALUES));
    let [next_parameters, next_first, next_second] = next;
    let present = parameters.zip(first.zip(second));
    let next = next_parameters.zip(next_first.zip(next_second));
    present.zip(next).zip(gradients.par_chunks(PIECE_VALUES)).for_each(|((present, next), gradients)| {
        let ((w, (m, v)), (next_w, (next_m, next_v))) = (present, next);
        vectorized(isa, Piece { update: *update, present: [w, m, v], next: [next_w, next_m, next_v], gradients });
    });
}

struct Piece<'a> {
    update: AdamWUpdate,
    present: [&'a [f32]; 3],
    next: [&'a mut [f32]; 3],
    gradients: &'a [f32],
}

impl Task for Piece<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let AdamWUpdate { learning_rate, kept, direction } = self.update;
        let ([parameters, first, second], [next_parameters, next_first, next_second]) = (self.present, self.next);
        let present = parameters.iter().zip(first.iter().zip(second)).zip(self.gradients);
        let next = next_parameters.iter_mut().zip(next_first.iter_mut().zip(next_second));
        for (((&w, (&m, &v)), &gradient), (next_w, (next_m, next_v))) in present.zip(next) {
            let (moments, direction) = direction.of([m, v], gradient);
            [*next_m, *next_v] = moments;
            *next_w = kept * w - learning_rate * direction;
        }
    }
}
