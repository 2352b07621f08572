//! A bias for each channel: its addition and its gradient.
//!
//! In: `[rows, C]`. Out: `[rows, C]`, or the gradient `[C]`.
//! Invariant: pieces have a fixed number of rows and are added in order, so the bits do not depend
//! on threads or instruction set.

use rayon::prelude::*;

use crate::Element;
use crate::simd::{Isa, Task, vectorized};

/// Rows of a piece, whose sums are taken in f32.
const PIECE_ROWS: usize = 128;

/// Adds the bias to whole rows.
pub(super) struct AddBias<'a, E> {
    pub(super) bias: &'a [f32],
    pub(super) rows: &'a mut [E],
}

impl<E: Element> Task for AddBias<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for row in self.rows.chunks_exact_mut(self.bias.len()) {
            for (value, bias) in row.iter_mut().zip(self.bias) {
                *value = E::from_f32(value.to_f32() + bias);
            }
        }
    }
}

/// Returns the workspace length of [`bias_gradient`], in elements.
#[must_use]
pub fn bias_gradient_workspace_len(rows: usize, channels: usize) -> usize {
    rows.div_ceil(PIECE_ROWS) * channels
}

/// Computes the gradient of a bias: the sums over all rows.
///
/// # Shapes
/// `dy`: `[rows, C]`. `db`: `[C]`. `workspace`: [`bias_gradient_workspace_len`] values.
///
/// # Panics
/// If a length differs, C is 0, or the processor lacks `isa`.
#[inline(never)]
pub fn bias_gradient<E: Element>(isa: Isa, dy: &[E], db: &mut [f32], workspace: &mut [f32]) {
    let channels = db.len();
    assert!(
        channels > 0 && dy.len().is_multiple_of(channels),
        "bias: {} values are no rows of {channels}",
        dy.len()
    );
    let needed = bias_gradient_workspace_len(dy.len() / channels, channels);
    assert!(
        workspace.len() == needed,
        "bias: workspace: expected {needed} values, got {}",
        workspace.len()
    );
    let pieces = workspace
        .par_chunks_exact_mut(channels)
        .zip(dy.par_chunks(PIECE_ROWS * channels));
    pieces.for_each(|(sums, rows)| vectorized(isa, Sums { rows, sums }));
    for (channel, db) in db.iter_mut().enumerate() {
        *db = workspace
            .iter()
            .skip(channel)
            .step_by(channels)
            .map(|sum| f64::from(*sum))
            .sum::<f64>() as f32;
    }
}

struct Sums<'a, E> {
    rows: &'a [E],
    sums: &'a mut [f32],
}

impl<E: Element> Task for Sums<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        self.sums.fill(0.0);
        for row in self.rows.chunks_exact(self.sums.len()) {
            for (sum, value) in self.sums.iter_mut().zip(row) {
                *sum += value.to_f32();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{assert_close, doubles, same_everywhere, values};

    #[test]
    fn the_gradient_of_a_bias_is_the_sum_over_rows_and_the_same_everywhere() {
        for (rows, channels) in [(0, 3), (1, 1), (127, 3), (128, 16), (1000, 33)] {
            let dy = values(rows * channels, 1);
            let found = same_everywhere(|isa| {
                let mut db = vec![f32::NAN; channels];
                bias_gradient(
                    isa,
                    &dy,
                    &mut db,
                    &mut vec![f32::NAN; bias_gradient_workspace_len(rows, channels)],
                );
                db
            });
            let of = |channel| {
                doubles(&dy)
                    .iter()
                    .skip(channel)
                    .step_by(channels)
                    .sum::<f64>()
            };
            assert_close(
                "sums",
                &found,
                &(0..channels).map(of).collect::<Vec<_>>(),
                5e-5,
            );
        }
    }
}
