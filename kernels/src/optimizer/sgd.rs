//! SGD with momentum, Nesterov momentum and weight decay in one pass.
//!
//! In: three flat slices: parameters, velocities, gradients.
//! Out: updated parameters and velocities.
//! Source: Sutskever et al. 2013, "On the importance of initialization and momentum in deep
//! learning"; the order of operations of PyTorch's `torch.optim.SGD`.

use rayon::prelude::*;

use super::{PIECE_VALUES, check_lengths};
use crate::simd::{Isa, Task, vectorized};

/// Numbers of one update, equal for all values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SgdUpdate {
    /// The step along the direction.
    pub learning_rate: f32,
    /// Decay of the velocity.
    pub momentum: f32,
    /// L2 penalty added to the gradient; 0 for parameters without weight decay.
    pub weight_decay: f32,
    /// True for Nesterov momentum.
    pub nesterov: bool,
}

/// Applies one update: g' = g + weight_decay · w; v = momentum · v + g'; w -= learning_rate · (g' +
/// momentum · v or v).
///
/// # Shapes
/// Three slices of one length.
///
/// # Panics
/// If the lengths differ, or the processor lacks `isa`.
///
/// # Differs from PyTorch
/// There is no `dampening`.
pub fn step(
    isa: Isa,
    update: &SgdUpdate,
    parameters: &mut [f32],
    velocities: &mut [f32],
    gradients: &[f32],
) {
    check_lengths(
        "sgd",
        parameters.len(),
        [
            ("velocities", velocities.len()),
            ("gradients", gradients.len()),
        ],
    );
    descend(isa, update, 1.0, parameters, velocities, gradients);
}

/// Applies one update on all threads, with g' = ratio · (g + weight_decay · w).
pub(super) fn descend(
    isa: Isa,
    update: &SgdUpdate,
    ratio: f32,
    parameters: &mut [f32],
    velocities: &mut [f32],
    gradients: &[f32],
) {
    let pieces = parameters
        .par_chunks_mut(PIECE_VALUES)
        .zip(velocities.par_chunks_mut(PIECE_VALUES))
        .zip(gradients.par_chunks(PIECE_VALUES));
    pieces.for_each(|((parameters, velocities), gradients)| {
        vectorized(
            isa,
            Piece {
                update: *update,
                ratio,
                parameters,
                velocities,
                gradients,
            },
        );
    });
}

/// Applies the update of [`step`] on the calling thread, with the same bits. Use it on a thread
/// outside the pool while the only thread of the pool waits for that thread.
pub fn step_alone(
    isa: Isa,
    update: &SgdUpdate,
    parameters: &mut [f32],
    velocities: &mut [f32],
    gradients: &[f32],
) {
    check_lengths(
        "sgd",
        parameters.len(),
        [
            ("velocities", velocities.len()),
            ("gradients", gradients.len()),
        ],
    );
    vectorized(
        isa,
        Piece {
            update: *update,
            ratio: 1.0,
            parameters,
            velocities,
            gradients,
        },
    );
}

struct Piece<'a> {
    update: SgdUpdate,
    ratio: f32,
    parameters: &'a mut [f32],
    velocities: &'a mut [f32],
    gradients: &'a [f32],
}

impl Task for Piece<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let SgdUpdate {
            learning_rate,
            momentum,
            weight_decay,
            nesterov,
        } = self.update;
        let (of_gradient, of_velocity) = if nesterov {
            (1.0, momentum)
        } else {
            (0.0, 1.0)
        };
        let values = self
            .parameters
            .iter_mut()
            .zip(self.velocities)
            .zip(self.gradients);
        for ((parameter, velocity), &gradient) in values {
            let gradient = self.ratio * (gradient + weight_decay * *parameter);
            *velocity = momentum * *velocity + gradient;
            *parameter -= learning_rate * (of_gradient * gradient + of_velocity * *velocity);
        }
    }
}
