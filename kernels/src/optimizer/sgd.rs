//! Stochastic gradient descent with momentum, Nesterov's form and weight decay in one pass.
//!
//! In: parameters, velocities, gradients, three flat slices. Out: the next parameters and velocities, beside them.
//! Source: Sutskever et al. 2013, "On the importance of initialization and momentum in deep learning"; the order of
//! operations is that of PyTorch's `torch.optim.SGD`.

use rayon::prelude::*;

use super::{PIECE_VALUES, check_lengths};
use crate::simd::{Isa, Task, vectorized};

/// What one update does; the same for every value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SgdUpdate {
    /// The step along the direction.
    pub learning_rate: f32,
    /// Decay of the velocity.
    pub momentum: f32,
    /// L2 penalty added to the gradient; 0 for parameters that are spared.
    pub weight_decay: f32,
    /// Look ahead along the velocity.
    pub nesterov: bool,
}

/// One update: g' = g + weight_decay · w; v = momentum · v + g'; w -= learning_rate · (g' + momentum · v or v).
///
/// `present` and `next` are parameters and velocities; what `next` held before is not looked at.
///
/// # Shapes
/// Five slices of one length.
///
/// # Panics
/// If the lengths differ, or the processor lacks `isa`.
///
/// # Differs from PyTorch
/// Not with `dampening = 0`.
pub fn step(isa: Isa, update: &SgdUpdate, present: [&[f32]; 2], next: [&mut [f32]; 2], gradients: &[f32]) {
    check_lengths("sgd", &present, &next, gradients);
    step_scaled(isa, update, 1.0, present, next, gradients);
}

/// As [`step`], to the same bits, on the calling thread: for a thread beside a pool whose only thread waits for it.
pub fn step_alone(isa: Isa, update: &SgdUpdate, present: [&[f32]; 2], next: [&mut [f32]; 2], gradients: &[f32]) {
    check_lengths("sgd", &present, &next, gradients);
    vectorized(isa, Piece { update: *update, ratio: 1.0, present, next, gradients });
}

/// As [`step`] with ratio · g' in the place of g'.
pub(super) fn step_scaled(
    isa: Isa,
    update: &SgdUpdate,
    ratio: f32,
    present: [&[f32]; 2],
    next: [&mut [f32]; 2],
    gradients: &[f32],
) {
    let present = present.map(|values| values.par_chunks(PIECE_VALUES));
    let next = next.map(|values| values.par_chunks_mut(PIECE_VALUES));
    let ([parameters, velocities], [next_parameters, next_velocities]) = (present, next);
    let pieces = parameters.zip(velocities).zip(next_parameters.zip(next_velocities));
    pieces.zip(gradients.par_chunks(PIECE_VALUES)).for_each(|((present, next), gradients)| {
        vectorized(isa, Piece { update: *update, ratio, present: present.into(), next: next.into(), gradients });
    });
}

struct Piece<'a> {
    update: SgdUpdate,
    ratio: f32,
    present: [&'a [f32]; 2],
    next: [&'a mut [f32]; 2],
    gradients: &'a [f32],
}

impl Task for Piece<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let SgdUpdate { learning_rate, momentum, weight_decay, nesterov } = self.update;
        let (of_gradient, of_velocity) = if nesterov { (1.0, momentum) } else { (0.0, 1.0) };
        let ([parameters, velocities], [next_parameters, next_velocities]) = (self.present, self.next);
        let present = parameters.iter().zip(velocities).zip(self.gradients);
        let next = next_parameters.iter_mut().zip(next_velocities);
        for (((&parameter, &velocity), &gradient), (next_parameter, next_velocity)) in present.zip(next) {
            let gradient = self.ratio * (gradient + weight_decay * parameter);
            let velocity = momentum * velocity + gradient;
            *next_velocity = velocity;
            *next_parameter = parameter - learning_rate * (of_gradient * gradient + of_velocity * velocity);
        }
    }
}
