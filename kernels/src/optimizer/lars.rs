//! LARS: descent with momentum whose step is scaled, tensor by tensor, by the ratio of the
//! parameters' norm to the gradient's.
//!
//! In: parameters, velocities, gradients of one tensor, three flat slices.
//! Out: parameters and velocities, updated.
//! Source: You, Gitman and Ginsburg 2017, "Large Batch Training of Convolutional Networks"
//! (1708.03888); as in timm's `Lars` the learning rate is outside the velocity, like that of
//! PyTorch's `torch.optim.SGD`.

use rayon::prelude::*;

use super::sgd::SgdUpdate;
use super::{PIECE_VALUES, check_lengths, norm, trust_ratio};
use crate::simd::{Isa, Task, vectorized};

/// Applies one update: r = trust_coefficient · ‖w‖ / (‖g‖ + weight_decay · ‖w‖), 1 where a norm is
/// 0; g' = r · (g + weight_decay · w); the rest as [`sgd::step`](super::sgd::step) does with g'.
///
/// # Shapes
/// Three slices of one length, one whole tensor.
///
/// # Panics
/// If the lengths differ, or the processor lacks `isa`.
pub fn step(
    isa: Isa,
    update: &SgdUpdate,
    trust_coefficient: f64,
    parameters: &mut [f32],
    velocities: &mut [f32],
    gradients: &[f32],
) {
    check_lengths(
        "lars",
        parameters.len(),
        [
            ("velocities", velocities.len()),
            ("gradients", gradients.len()),
        ],
    );
    let of_parameters = norm(isa, parameters);
    let of_gradients = norm(isa, gradients);
    let ratio = trust_ratio(of_parameters, of_gradients, || {
        trust_coefficient * of_parameters
            / (of_gradients + f64::from(update.weight_decay) * of_parameters)
    });
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
