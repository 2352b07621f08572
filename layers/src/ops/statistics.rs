//! Statistics of a batch over all processes that compute it.
//!
//! In: the sums per channel of one process. Out: the sums of all. Invariant: the number of values
//! is part of the sum, so a rank that contributes zeros does not count.
//! Source: Chan, Golub, LeVeque 1983, "Algorithms for Computing the Sample Variance"; the merged
//! form here is equal in exact arithmetic, and f64 suffices for f32 data.

use std::fmt::Debug;

/// Sums statistics over all processes that compute a batch together.
pub trait StatisticsReducer: Debug + Send + Sync {
    /// Replaces `values` by the sums over all ranks.
    ///
    /// A rank without samples computes a placeholder batch only to take part in the sums. It
    /// contributes zeros, and it must drop the parameter gradients of that batch. They are
    /// meaningless, because the backward pass assumes that the batch is part of the statistics.
    ///
    /// # Panics
    /// If the communication fails, because a forward pass cannot return an error.
    ///
    /// # Collective
    /// All ranks must make the same calls, with equal lengths.
    fn all_reduce_sum(&self, values: &mut [f64]);
}

/// Count, mean and sum of squared deviations of each channel.
#[derive(Debug, Clone)]
pub(super) struct Moments {
    pub(super) count: f64,
    pub(super) mean: Vec<f64>,
    pub(super) squares: Vec<f64>,
}

impl Moments {
    #[cfg(feature = "flex")]
    pub(super) fn empty(num_channels: usize) -> Self {
        Self {
            count: 0.0,
            mean: vec![0.0; num_channels],
            squares: vec![0.0; num_channels],
        }
    }

    /// Returns the moments from sums and centred sums of squares, `[2, C]`, over `count` values of
    /// each channel.
    #[cfg(feature = "flex")]
    pub(super) fn of_sums(count: f64, mut sums: Vec<f64>) -> Self {
        let squares = sums.split_off(sums.len() / 2);
        Self {
            count,
            mean: sums.iter().map(|sum| sum / count).collect(),
            squares,
        }
    }

    /// Returns the moments of the union of all ranks' values.
    ///
    /// # Panics
    /// When no rank counts.
    pub(super) fn reduce(self, reducer: Option<&dyn StatisticsReducer>) -> Self {
        let Some(reducer) = reducer else { return self };
        let num_channels = self.mean.len();
        let squares = self.squares.iter().zip(&self.mean);
        let mut sums = vec![self.count];
        sums.extend(self.mean.iter().map(|mean| self.count * mean));
        sums.extend(squares.map(|(squares, mean)| squares + self.count * mean * mean));
        reducer.all_reduce_sum(&mut sums);
        let count = sums[0];
        assert!(
            count > 0.0,
            "batch statistics: expected at least one value over all ranks, got none"
        );
        let (totals, squares) = sums[1..].split_at(num_channels);
        let mean: Vec<f64> = totals.iter().map(|total| total / count).collect();
        let squares = squares
            .iter()
            .zip(&mean)
            .map(|(squares, mean)| (squares - count * mean * mean).max(0.0))
            .collect();
        Self {
            count,
            mean,
            squares,
        }
    }

    /// Returns the biased variance.
    pub(super) fn variance(&self) -> Vec<f64> {
        self.squares
            .iter()
            .map(|squares| squares / self.count)
            .collect()
    }
}

/// Sums of `dy` and of `dy * xhat` of each channel.
#[derive(Debug, Clone)]
pub(super) struct GradientSums {
    pub(super) plain: Vec<f64>,
    pub(super) with_normalised: Vec<f64>,
}

impl GradientSums {
    /// Returns the sums from the kernels' `[2, C]`.
    #[cfg(feature = "flex")]
    pub(super) fn of(mut sums: Vec<f64>) -> Self {
        let with_normalised = sums.split_off(sums.len() / 2);
        Self {
            plain: sums,
            with_normalised,
        }
    }

    pub(super) fn reduce(&self, reducer: Option<&dyn StatisticsReducer>) -> Self {
        let Some(reducer) = reducer else {
            return self.clone();
        };
        let mut sums = [self.plain.as_slice(), &self.with_normalised].concat();
        reducer.all_reduce_sum(&mut sums);
        let with_normalised = sums.split_off(self.plain.len());
        Self {
            plain: sums,
            with_normalised,
        }
    }
}
