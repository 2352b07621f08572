//! LAMB: Adam's direction and the decay, scaled, tensor by tensor, by the ratio of the parameters' norm to theirs.
//!
//! In: parameters, first and second moments, gradients of one tensor, flat slices. Out: the next parameters and moments, beside them.
//! Source: You et al. 2020, "Large Batch Optimization for Deep Learning" (1904.00962), algorithm 2 with φ(x) = x; as in timm's `Lamb`.

use rayon::prelude::*;

use super::adam::AdamDirection;
use super::{LANES, PIECE_VALUES, ROUND_PIECES, ROUND_VALUES, add_squares, check_lengths, norm, trust_ratio};
use crate::simd::{Isa, Task, vectorized};

/// Values whose squares are added while they are in the nearest cache.
const BLOCK_VALUES: usize = 64 * LANES;

/// What one update does; the same for every value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LambUpdate {
    /// The step along the direction.
    pub learning_rate: f32,
    /// Share of a parameter that is added to its direction.
    pub weight_decay: f32,
    /// That of the moments.
    pub direction: AdamDirection,
    /// Whether the step is scaled by the ratio; else by 1.
    pub adapts: bool,
}

/// One update: m, v as [`adam::step`](super::adam::step) has them; u = m̂ / (√v̂ + epsilon) + weight_decay · w; r = ‖w‖ / ‖u‖, 1 where
/// a norm is 0; w −= learning_rate · r · u.
///
/// # Shapes
/// Seven slices of one length, one whole tensor.
///
/// # Panics
/// If the lengths differ, or the processor lacks `isa`.
pub fn step(isa: Isa, update: &LambUpdate, present: [&[f32]; 3], next: [&mut [f32]; 3], gradients: &[f32]) {
    check_lengths("lamb", &present, &next, gradients);
    let (parameters, [next_parameters, next_first, next_second]) = (present[0], next);
    let of_direction = directions(isa, update, present, [next_parameters, next_first, next_second], gradients);
    let of_parameters = if update.adapts { norm(isa, parameters) } else { 0.0 };
    let ratio = trust_ratio(of_parameters, of_direction, || of_parameters / of_direction);
    let rate = update.learning_rate * ratio;
    let pieces = next_parameters.par_chunks_mut(PIECE_VALUES).zip(parameters.par_chunks(PIECE_VALUES));
    pieces.for_each(|(next, parameters)| vectorized(isa, Descent { rate, parameters, next }));
}

/// The next moments, and the direction in the place of the next parameters; its norm.
fn directions(
    isa: Isa,
    update: &LambUpdate,
    [parameters, first, second]: [&[f32]; 3],
    [directions, next_first, next_second]: [&mut [f32]; 3],
    gradients: &[f32],
) -> f64 {
    let round = |values| <[f32]>::chunks(values, ROUND_VALUES);
    let next_round = |values| <[f32]>::chunks_mut(values, ROUND_VALUES);
    let present = round(parameters).zip(round(first).zip(round(second))).zip(round(gradients));
    let next = next_round(directions).zip(next_round(next_first).zip(next_round(next_second)));
    let mut sum = 0.0;
    for (((w, (m, v)), gradients), (directions, (next_m, next_v))) in present.zip(next) {
        let mut sums = [0.0; ROUND_PIECES];
        let [w, m, v, gradients] = [w, m, v, gradients].map(|values| values.par_chunks(PIECE_VALUES));
        let [directions, next_m, next_v] =
            [directions, next_m, next_v].map(|values| values.par_chunks_mut(PIECE_VALUES));
        let pieces = w.zip(m.zip(v)).zip(gradients).zip(directions.zip(next_m.zip(next_v))).zip(&mut sums);
        pieces.for_each(|((((w, (m, v)), gradients), (directions, (next_m, next_v))), sum)| {
            let next = [directions, next_m, next_v];
            *sum = vectorized(isa, Direction { update: *update, present: [w, m, v], next, gradients });
        });
        sum += sums.iter().sum::<f64>();
    }
    sum.sqrt()
}

struct Direction<'a> {
    update: LambUpdate,
    present: [&'a [f32]; 3],
    /// Directions and the next moments.
    next: [&'a mut [f32]; 3],
    gradients: &'a [f32],
}

impl Task for Direction<'_> {
    type Output = f64;

    #[inline(always)]
    fn run(self) -> f64 {
        let LambUpdate { weight_decay, direction, .. } = self.update;
        let block = |values| <[f32]>::chunks(values, BLOCK_VALUES);
        let next_block = |values| <[f32]>::chunks_mut(values, BLOCK_VALUES);
        let [w, m, v] = self.present.map(block);
        let [directions, next_m, next_v] = self.next.map(next_block);
        let mut sums = [0.0; LANES];
        let blocks = w.zip(m.zip(v)).zip(block(self.gradients)).zip(directions.zip(next_m.zip(next_v)));
        for (((w, (m, v)), gradients), (directions, (next_m, next_v))) in blocks {
            let present = w.iter().zip(m.iter().zip(v)).zip(gradients);
            let next = directions.iter_mut().zip(next_m.iter_mut().zip(next_v));
            for (((&w, (&m, &v)), &gradient), (of_value, (next_m, next_v))) in present.zip(next) {
                let (moments, adam) = direction.of([m, v], gradient);
                [*next_m, *next_v] = moments;
                *of_value = adam + weight_decay * w;
            }
            add_squares(&mut sums, directions);
        }
        sums.iter().sum()
    }
}

struct Descent<'a> {
    rate: f32,
    parameters: &'a [f32],
    /// In: directions. Out: parameters.
    next: &'a mut [f32],
}

impl Task for Descent<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (next, &parameter) in self.next.iter_mut().zip(self.parameters) {
            *next = parameter - self.rate * *next;
        }
    }
}
