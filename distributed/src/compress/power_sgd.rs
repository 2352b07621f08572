//! Sums of matrices as products of two narrow factors, by one step of power iteration.
//!
//! In: matrices M_r of the ranks, plus the residuals of earlier steps. Out: M̂ = P Qᵀ, the
//! projection of Σ M_r on P. P is an orthonormal basis of Σ M_r Q, and then Q = Σ M_rᵀ P.
//! Invariant: each rank keeps e_r = M_r − P Pᵀ M_r, so Σ e_r + M̂ = Σ M_r. Both factors have the
//! same bits on every rank.
//! Source: Vogels et al. 2019, PowerSGD (1905.13727), algorithms 1 and 2, for sums in place of
//! means.
//!
//! One message holds the uncompressed elements and all P of a bucket. A second message holds all Q.
//!
//! The treatment of zero differs from the paper:
//! - A column of P that depends on other columns up to rounding becomes zero. The paper adds 1e-8,
//!   which depends on the scale of the gradients.
//! - A zero column of Q is drawn again, so that the factors keep their rank.
//! - Q is orthonormal at the start of a step, so that P has the scale of the gradients.
//!
//! The residual differs, too. The paper keeps M_r − M̂ / N. The sum of the residuals is the same,
//! but the difference between two ranks' residuals grows without bound if their gradients differ
//! permanently. Here each rank subtracts its own projection P Pᵀ M_r, which avoids this growth.

use std::ops::Range;

use super::matrix::{
    add_product, norm_squared, orthogonalise, times_factor, transposed_times_factor,
};
use super::random::Random;
use super::{PowerSgdLimits, TensorSpan, reduce_bytes_sent};
use crate::reduction::Traffic;
use crate::{CollectiveError, Communicator};

/// A matrix of the bucket, and the positions of its factors in the messages.
#[derive(Debug)]
struct Factored {
    /// Position in the bucket.
    range: Range<usize>,
    columns: usize,
    /// Position of P, transposed, in the first message.
    p: Range<usize>,
    rows: usize,
    /// Position of Q, transposed, in the second message.
    q: Range<usize>,
}

/// State for one bucket.
#[derive(Debug)]
pub(super) struct PowerSgd {
    factored: Vec<Factored>,
    /// Elements that are sent uncompressed.
    plain: Vec<Range<usize>>,
    /// First message: the plain elements, then P of every matrix.
    first: Vec<f32>,
    /// Second message: Q of every matrix. Between steps, the orthonormal Q of the last step.
    second: Vec<f32>,
    seed: u64,
    /// Number of columns drawn so far, so that all columns differ.
    drawn: u64,
    /// Values of `second` and `drawn` before the last sum.
    previous: (Vec<f32>, u64),
}

impl PowerSgd {
    /// Returns the state for a bucket that consists of `spans`.
    ///
    /// # Panics
    /// Panics if `rank` is 0.
    pub(super) fn new(
        rank: usize,
        spans: &[TensorSpan],
        limits: PowerSgdLimits,
        seed: u64,
    ) -> Self {
        assert!(rank > 0, "powersgd: expected a rank of at least 1, got 0");
        let (factored, plain): (Vec<_>, Vec<_>) =
            spans.iter().partition(|span| limits.compress(rank, span));
        let plain: Vec<_> = plain.into_iter().map(|span| span.range.clone()).collect();
        let mut first = plain.iter().map(Range::len).sum();
        let mut second = 0;
        let place = |end: &mut usize, length: usize| {
            *end += length;
            *end - length..*end
        };
        let factored = factored
            .into_iter()
            .map(|span| {
                let rank = rank.min(span.rows).min(span.columns);
                Factored {
                    range: span.range.clone(),
                    columns: span.columns,
                    p: place(&mut first, rank * span.rows),
                    rows: span.rows,
                    q: place(&mut second, rank * span.columns),
                }
            })
            .collect();
        let first = vec![0.0; first];
        let second = vec![0.0; second];
        let mut state = Self {
            factored,
            plain,
            first,
            second,
            seed,
            drawn: 0,
            previous: (Vec::new(), 0),
        };
        state.prepare_factors();
        state.previous = (state.second.clone(), state.drawn);
        state
    }

    /// Returns Q of every matrix, and the number of columns drawn so far.
    pub(super) fn factors(&self) -> (&[f32], u64) {
        (&self.second, self.drawn)
    }

    /// Restores the factors from before the last sum.
    pub(super) fn roll_back(&mut self) {
        self.second.copy_from_slice(&self.previous.0);
        self.drawn = self.previous.1;
    }

    /// Restores the [`factors`](Self::factors) of a state with the same plan.
    ///
    /// # Panics
    /// Panics if the number of factors differs.
    pub(super) fn restore(&mut self, factors: &[f32], drawn: u64) {
        self.second.copy_from_slice(factors);
        self.drawn = drawn;
        self.previous = (self.second.clone(), drawn);
    }

    /// Replaces `values` by the low-rank sum, and `residual` by this rank's part of the error.
    pub(super) fn sum(
        &mut self,
        values: &mut [f32],
        residual: &mut [f32],
        communicator: &dyn Communicator,
    ) -> Result<Traffic, CollectiveError> {
        self.previous.0.copy_from_slice(&self.second);
        self.previous.1 = self.drawn;
        let Self {
            factored,
            plain,
            first,
            second,
            ..
        } = self;
        let mut end = 0;
        for range in &*plain {
            first[end..end + range.len()].copy_from_slice(&values[range.clone()]);
            end += range.len();
        }
        for tensor in &*factored {
            let matrix = &values[tensor.range.clone()];
            times_factor(
                matrix,
                tensor.columns,
                &second[tensor.q.clone()],
                &mut first[tensor.p.clone()],
            );
        }
        communicator.all_reduce_sum(first)?;

        let mut error_squared = 0.0;
        for tensor in &*factored {
            let matrix = &values[tensor.range.clone()];
            let p = &mut first[tensor.p.clone()];
            let q = &mut second[tensor.q.clone()];
            orthogonalise(p, tensor.rows);
            transposed_times_factor(matrix, tensor.columns, p, q);
            let residual = &mut residual[tensor.range.clone()];
            residual.copy_from_slice(matrix);
            add_product(p, q, tensor.columns, -1.0, residual);
            error_squared += norm_squared(residual);
        }
        if !second.is_empty() {
            communicator.all_reduce_sum(second)?;
        }

        let mut start = 0;
        for range in &*plain {
            values[range.clone()].copy_from_slice(&first[start..start + range.len()]);
            residual[range.clone()].fill(0.0);
            start += range.len();
        }
        for tensor in &*factored {
            let values = &mut values[tensor.range.clone()];
            values.fill(0.0);
            add_product(
                &first[tensor.p.clone()],
                &second[tensor.q.clone()],
                tensor.columns,
                1.0,
                values,
            );
        }
        let bytes_sent = [&*first, &*second]
            .map(|message| reduce_bytes_sent(communicator.world_size(), message.len()));
        self.prepare_factors();
        Ok(Traffic {
            bytes_sent: bytes_sent.iter().sum(),
            error_squared,
            ..Traffic::default()
        })
    }

    /// Makes every Q orthonormal and draws zero columns again.
    fn prepare_factors(&mut self) {
        for tensor in &self.factored {
            let q = &mut self.second[tensor.q.clone()];
            orthogonalise(q, tensor.columns);
            for column in q.chunks_exact_mut(tensor.columns) {
                if column.iter().all(|value| *value == 0.0) {
                    Random::new(self.seed, self.drawn).fill(column);
                    self.drawn += 1;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::communicator::SingleCommunicator;

    fn span(start: usize, rows: usize, columns: usize) -> TensorSpan {
        TensorSpan {
            range: start..start + rows * columns,
            rows,
            columns,
        }
    }

    #[test]
    fn small_tensors_and_vectors_travel_as_they_are() {
        let limits = PowerSgdLimits::default();
        let compressed = |rank, rows, columns| limits.compress(rank, &span(0, rows, columns));
        assert!(
            !compressed(1, 1, 5000) && !compressed(1, 5000, 1),
            "vectors"
        );
        assert!(
            !compressed(1, 10, 99) && compressed(1, 10, 100),
            "1000 elements"
        );
        // 2 R (64 + 576) < 64 * 576 is true up to R = 28.
        assert!(
            compressed(28, 64, 576) && !compressed(29, 64, 576),
            "least saving"
        );
        let state = PowerSgd::new(
            2,
            &[span(0, 1, 64), span(64, 64, 576), span(36928, 8, 8)],
            limits,
            0,
        );
        assert_eq!(
            (state.first.len(), state.second.len()),
            (64 + 64 + 2 * 64, 2 * 576)
        );
    }

    #[test]
    fn a_vanished_column_is_drawn_anew() {
        let limits = PowerSgdLimits {
            min_elements: 0,
            min_rate: 0.0,
        };
        let mut state = PowerSgd::new(2, &[span(0, 3, 4)], limits, 9);
        let communicator = SingleCommunicator::new();
        let mut residual = [0.0; 12];
        state
            .sum(&mut [0.0; 12], &mut residual, &communicator)
            .unwrap();
        assert_eq!(state.drawn, 4);
        let matrix: [f32; 12] =
            std::array::from_fn(|index| if index < 4 { 1.0 } else { (index as f32).sin() });
        let mut values = matrix;
        for _ in 0..30 {
            values = matrix;
            state
                .sum(&mut values, &mut residual, &communicator)
                .unwrap();
        }
        assert_eq!(state.drawn, 4);
        // The best matrix of rank 2 keeps more than the best matrix of rank 1, whose error includes
        // at least one more singular value.
        let mut alone = PowerSgd::new(1, &[span(0, 3, 4)], limits, 9);
        let mut best = matrix;
        for _ in 0..30 {
            best = matrix;
            alone.sum(&mut best, &mut residual, &communicator).unwrap();
        }
        let missed = |sum: &[f32]| {
            sum.iter()
                .zip(matrix)
                .map(|(sum, value)| (sum - value).powi(2))
                .sum::<f32>()
        };
        assert!(
            missed(&values) < 0.5 * missed(&best),
            "{} {}",
            missed(&values),
            missed(&best)
        );
    }
}
