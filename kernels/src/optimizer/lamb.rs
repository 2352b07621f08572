//! LAMB: Adam's direction plus weight decay, scaled per tensor by the ratio of norms.
//!
//! In: flat slices of one tensor: parameters, first and second moments, gradients.
//! Out: updated parameters and moments.
//! Source: You et al. 2020, "Large Batch Optimization for Deep Learning" (1904.00962), algorithm 2
//! with φ(x) = x, as in timm's `Lamb`.

use rayon::prelude::*;

use super::adam::AdamDirection;
use super::{
    LANES, PIECE_VALUES, ROUND_PIECES, ROUND_VALUES, add_squares, check_lengths, norm, trust_ratio,
};
use crate::simd::{Isa, Task, vectorized};

/// Values whose squares are added while they are in the nearest cache.
const BLOCK_VALUES: usize = 64 * LANES;

/// Numbers of one update, equal for all values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LambUpdate {
    /// The step along the direction.
    pub learning_rate: f32,
    /// Factor on the parameter that is added to its direction.
    pub weight_decay: f32,
    /// Direction of the moments.
    pub direction: AdamDirection,
    /// True if the step is scaled by the trust ratio.
    pub adapts: bool,
}

/// Applies one update: m and v as in [`adam::step`](super::adam::step); u = m̂ / (√v̂ + epsilon) +
/// weight_decay · w; r = ‖w‖ / ‖u‖, or 1 if a norm is 0; w −= learning_rate · r · u.
///
/// # Shapes
/// Five slices of one length, one whole tensor. `scratch` receives the direction u; its content on
/// entry is ignored.
///
/// # Panics
/// If the lengths differ, or the processor lacks `isa`.
pub fn step(
    isa: Isa,
    update: &LambUpdate,
    parameters: &mut [f32],
    scratch: &mut [f32],
    moments: [&mut [f32]; 2],
    gradients: &[f32],
) {
    let [first, second] = moments.each_ref().map(|moments| moments.len());
    let lens = [
        ("scratch", scratch.len()),
        ("first moments", first),
        ("second moments", second),
        ("gradients", gradients.len()),
    ];
    check_lengths("lamb", parameters.len(), lens);
    let of_direction = directions(isa, update, parameters, scratch, moments, gradients);
    let of_parameters = if update.adapts {
        norm(isa, parameters)
    } else {
        0.0
    };
    let ratio = trust_ratio(of_parameters, of_direction, || of_parameters / of_direction);
    let rate = update.learning_rate * ratio;
    let pieces = parameters
        .par_chunks_mut(PIECE_VALUES)
        .zip(scratch.par_chunks(PIECE_VALUES));
    pieces.for_each(|(parameters, directions)| {
        vectorized(
            isa,
            Descent {
                rate,
                parameters,
                directions,
            },
        )
    });
}

/// Moves the moments and leaves the direction in `directions`; its norm.
fn directions(
    isa: Isa,
    update: &LambUpdate,
    parameters: &[f32],
    directions: &mut [f32],
    [first, second]: [&mut [f32]; 2],
    gradients: &[f32],
) -> f64 {
    let rounds = parameters
        .chunks(ROUND_VALUES)
        .zip(directions.chunks_mut(ROUND_VALUES))
        .zip(
            first
                .chunks_mut(ROUND_VALUES)
                .zip(second.chunks_mut(ROUND_VALUES)),
        )
        .zip(gradients.chunks(ROUND_VALUES));
    let mut sum = 0.0;
    for (((parameters, directions), (first, second)), gradients) in rounds {
        let mut sums = [0.0; ROUND_PIECES];
        let pieces = parameters
            .par_chunks(PIECE_VALUES)
            .zip(directions.par_chunks_mut(PIECE_VALUES))
            .zip(
                first
                    .par_chunks_mut(PIECE_VALUES)
                    .zip(second.par_chunks_mut(PIECE_VALUES)),
            )
            .zip(gradients.par_chunks(PIECE_VALUES))
            .zip(&mut sums);
        pieces.for_each(
            |((((parameters, directions), (first, second)), gradients), sum)| {
                *sum = vectorized(
                    isa,
                    Direction {
                        update: *update,
                        parameters,
                        directions,
                        first,
                        second,
                        gradients,
                    },
                );
            },
        );
        sum += sums.iter().sum::<f64>();
    }
    sum.sqrt()
}

struct Direction<'a> {
    update: LambUpdate,
    parameters: &'a [f32],
    directions: &'a mut [f32],
    first: &'a mut [f32],
    second: &'a mut [f32],
    gradients: &'a [f32],
}

impl Task for Direction<'_> {
    type Output = f64;

    #[inline(always)]
    fn run(self) -> f64 {
        let LambUpdate {
            weight_decay,
            direction,
            ..
        } = self.update;
        let mut sums = [0.0; LANES];
        let blocks = self
            .parameters
            .chunks(BLOCK_VALUES)
            .zip(self.directions.chunks_mut(BLOCK_VALUES))
            .zip(
                self.first
                    .chunks_mut(BLOCK_VALUES)
                    .zip(self.second.chunks_mut(BLOCK_VALUES)),
            )
            .zip(self.gradients.chunks(BLOCK_VALUES));
        for (((parameters, directions), (first, second)), gradients) in blocks {
            let values = parameters
                .iter()
                .zip(directions.iter_mut())
                .zip(first.iter_mut().zip(second))
                .zip(gradients);
            for (((&parameter, value), (first, second)), &gradient) in values {
                *value = direction.of(first, second, gradient) + weight_decay * parameter;
            }
            add_squares(&mut sums, directions);
        }
        sums.iter().sum()
    }
}

struct Descent<'a> {
    rate: f32,
    parameters: &'a mut [f32],
    directions: &'a [f32],
}

impl Task for Descent<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (parameter, &direction) in self.parameters.iter_mut().zip(self.directions) {
            *parameter -= self.rate * direction;
        }
    }
}
