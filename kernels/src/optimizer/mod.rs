//! Updates of the optimizers, each in as few passes over a tensor as its rule allows.
//!
//! In: flat slices of one tensor: parameters, state of the optimizer, gradients. Rules without
//! norms also take several tensors at once.
//! Out: the updated slices.
//! Invariant: equal bits for any instruction set and number of threads. Rules without norms have
//! the bits of the plain loops in `reference`. Norms are f64 sums in a fixed order.

use rayon::prelude::*;

use crate::simd::{Isa, Task, vectorized};

pub mod adam;
pub mod lamb;
pub mod lars;
pub mod sgd;

#[cfg(test)]
mod tests;

/// Values in a piece: three streams of 128 KiB.
const PIECE_VALUES: usize = 1 << 15;
/// Pieces whose sums are kept apart, until they are added in order: no memory need be asked for.
const ROUND_PIECES: usize = 64;
const ROUND_VALUES: usize = ROUND_PIECES * PIECE_VALUES;
/// Sums that a piece keeps: those of its values at equal places of groups of so many.
const LANES: usize = 16;

fn check_lengths<const N: usize>(what: &str, num_parameters: usize, others: [(&str, usize); N]) {
    for (name, len) in others {
        assert!(
            len == num_parameters,
            "{what}: {num_parameters} parameters but {len} {name}"
        );
    }
}

/// Returns the ratio by which a step is scaled, 1 where it has no meaning: where a norm is 0.
fn trust_ratio(of_parameters: f64, of_direction: f64, ratio: impl FnOnce() -> f64) -> f32 {
    if of_parameters > 0.0 && of_direction > 0.0 {
        ratio() as f32
    } else {
        1.0
    }
}

/// Returns the L2 norm of `values`.
fn norm(isa: Isa, values: &[f32]) -> f64 {
    let mut sum = 0.0;
    for round in values.chunks(ROUND_VALUES) {
        let mut sums = [0.0; ROUND_PIECES];
        let pieces = round.par_chunks(PIECE_VALUES).zip(&mut sums);
        pieces.for_each(|(values, sum)| *sum = vectorized(isa, SumOfSquares(values)));
        sum += sums.iter().sum::<f64>();
    }
    sum.sqrt()
}

struct SumOfSquares<'a>(&'a [f32]);

impl Task for SumOfSquares<'_> {
    type Output = f64;

    #[inline(always)]
    fn run(self) -> f64 {
        let mut sums = [0.0; LANES];
        add_squares(&mut sums, self.0);
        sums.iter().sum()
    }
}

/// Adds the squares of `values`, the first of which belongs to the first sum.
#[inline(always)]
fn add_squares(sums: &mut [f64; LANES], values: &[f32]) {
    let (groups, rest) = values.as_chunks::<LANES>();
    for group in groups {
        for (sum, &value) in sums.iter_mut().zip(group) {
            *sum += f64::from(value) * f64::from(value);
        }
    }
    for (sum, &value) in sums.iter_mut().zip(rest) {
        *sum += f64::from(value) * f64::from(value);
    }
}
