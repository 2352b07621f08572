//! The gradient noise scale: the batch size beyond which larger batches gain little.
//!
//! In: squared norms of the mean gradients of micro-batches and of whole steps. Out:
//! [`GradientNoise`]. Invariant: sums are added up over steps and ranks and divided once at the
//! end: the ratio of means, not the mean of ratios.
//! Source: McCandlish et al. 2018, "An empirical model of large-batch training" (1812.06162),
//! appendix A.1.

use std::ops::AddAssign;

use records::GradientNoise;

/// The two batch sizes whose gradients are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoiseBatches {
    /// Size of a micro-batch.
    pub small: usize,
    /// Size of a step's batch over all ranks.
    pub large: usize,
}

/// Squared norms, added up over steps.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NoiseSums {
    /// Sum over the mean gradients of micro-batches, of this rank or of all ranks.
    pub small: f64,
    /// Number of these gradients.
    pub num_small: f64,
    /// Sum over the mean gradients of whole steps, the same on all ranks.
    pub large: f64,
    /// Number of these gradients.
    pub num_large: u64,
}

impl NoiseSums {
    /// Returns the sums of one step: `parts` is the sum over the squared norms of this rank's
    /// `num_parts` micro-batches, as shares of the step's mean gradient, and `mean` that of the
    /// mean.
    pub(super) fn of_step(parts: f64, mean: f64, num_parts: usize, batches: NoiseBatches) -> Self {
        let share = batches.small as f64 / batches.large as f64;
        Self {
            small: parts / share.powi(2),
            num_small: num_parts as f64,
            large: mean,
            num_large: 1,
        }
    }

    /// Estimates the noise; `None` without a step.
    pub fn estimate(&self, batches: NoiseBatches) -> Option<GradientNoise> {
        if self.num_large == 0 || self.num_small == 0.0 {
            return None;
        }
        let small = batches.small as f64;
        let large = batches.large as f64;
        let of_small = self.small / self.num_small;
        let of_large = self.large / self.num_large as f64;
        let squared_norm = (large * of_large - small * of_small) / (large - small);
        let covariance_trace = (of_small - of_large) / (small.recip() - large.recip());
        // Both are unbiased, so either may be negative after few steps.
        let is_known = squared_norm > 0.0 && covariance_trace > 0.0;
        let batch_size = is_known.then(|| covariance_trace / squared_norm);
        Some(GradientNoise {
            squared_norm,
            covariance_trace,
            batch_size,
            num_steps: self.num_large,
        })
    }
}

impl AddAssign for NoiseSums {
    fn add_assign(&mut self, other: Self) {
        self.small += other.small;
        self.num_small += other.num_small;
        self.large += other.large;
        self.num_large += other.num_large;
    }
}

#[cfg(feature = "flex")]
#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use burn::module::{Module, Param};
    use burn::tensor::{Device, Tensor};
    use distributed::gradients::{GradientReducer, MicroStepConfig, ReducerConfig};
    use distributed::{Communicator, run_ranks};

    use super::*;

    /// A sample's loss is half its squared distance from this point.
    #[derive(Module, Debug)]
    struct Point {
        place: Param<Tensor<1>>,
    }

    const DIMENSIONS: usize = 32;
    /// Distance of the point from the samples' mean, along each axis.
    const DISTANCE: f64 = 0.5;
    /// Variance of the samples, along each axis.
    const VARIANCE: f64 = 4.0;
    /// With so many the suggested batch size has a standard deviation of 1 %.
    const NUM_STEPS: usize = 3200;
    /// Relative difference from the known noise (docs/numerics.md).
    const NOISE_TOLERANCE: f64 = 0.04;
    const BATCHES: NoiseBatches = NoiseBatches {
        small: 4,
        large: 16,
    };

    /// The sum of a micro-batch's samples: each coordinate is normal, by the sum of twelve uniform
    /// numbers.
    fn sum_of_samples(state: &mut u64) -> Vec<f32> {
        let mut uniform = || {
            // SplitMix64: neighbouring streams of a linear generator depend on each other.
            *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
        };
        let mut normal = || (0..12).map(|_| uniform()).sum::<f64>() - 6.0;
        let mut sum = || {
            (0..BATCHES.small)
                .map(|_| VARIANCE.sqrt() * normal())
                .sum::<f64>() as f32
        };
        (0..DIMENSIONS).map(|_| sum()).collect()
    }

    #[test]
    fn the_noise_of_a_quadratic_problem_is_found() {
        let of_ranks = run_ranks(2, |communicator| {
            let device = Device::flex().autodiff();
            let place = Tensor::<1>::full([DIMENSIONS], DISTANCE, &device);
            let point = Point {
                place: Param::from_tensor(place),
            };
            let mut state = (communicator.rank() as u64) << 40;
            let config = ReducerConfig {
                bucket_cap_bytes: Some(64),
                ..ReducerConfig::default()
            };
            let mut reducer =
                GradientReducer::new(&point, Arc::new(communicator), &config).unwrap();
            reducer.measure_parts();
            let mut sums = NoiseSums::default();
            for _ in 0..NUM_STEPS {
                for micro_step in 0..2 {
                    reducer.begin_micro_step(MicroStepConfig {
                        is_last: micro_step == 1,
                        ..MicroStepConfig::default()
                    });
                    let samples =
                        Tensor::<1>::from_floats(sum_of_samples(&mut state).as_slice(), &device);
                    let place = point.place.val();
                    // The samples' own squares change no gradient.
                    let square = place.clone() * place.clone() * (BATCHES.small as f64 / 2.0);
                    let loss = (square - place * samples).sum() / BATCHES.large as f64;
                    reducer.accumulate(&point, loss.backward(), 1.0);
                }
                let sum = reducer.reduce().unwrap().norm().powi(2);
                let parts = reducer.report().squared_norm_of_parts;
                sums += NoiseSums::of_step(parts, sum, 2, BATCHES);
            }
            sums
        });
        assert_eq!(of_ranks[0].large, of_ranks[1].large);
        let [small, num_small] = [
            of_ranks[0].small + of_ranks[1].small,
            of_ranks[0].num_small + of_ranks[1].num_small,
        ];
        let noise = NoiseSums {
            small,
            num_small,
            ..of_ranks[0]
        }
        .estimate(BATCHES)
        .unwrap();
        let near = |got: f64, expected: f64| {
            assert!(
                (got / expected - 1.0).abs() < NOISE_TOLERANCE,
                "{got}, expected {expected}"
            )
        };
        near(noise.squared_norm, DIMENSIONS as f64 * DISTANCE * DISTANCE);
        near(noise.covariance_trace, DIMENSIONS as f64 * VARIANCE);
        near(noise.batch_size.unwrap(), VARIANCE / (DISTANCE * DISTANCE));
    }

    #[test]
    fn gradients_without_noise_or_without_a_step_suggest_no_batch_size() {
        assert_eq!(NoiseSums::default().estimate(BATCHES), None);
        let equal = NoiseSums {
            small: 6.0,
            num_small: 2.0,
            large: 3.0,
            num_large: 1,
        };
        let noise = equal.estimate(BATCHES).unwrap();
        assert_eq!(
            (noise.squared_norm, noise.covariance_trace, noise.batch_size),
            (3.0, 0.0, None)
        );
    }
}
