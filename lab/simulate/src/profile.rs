//! Step of one rank without communication.
//!
//! In: measured times, sizes of gradient buckets, the parameters.
//! Out: checked steps with other buckets or batches.
//! Invariant: buckets are in the order of their reduction.

use distributed::gradients::BucketPlan;
use distributed::replica::ParameterLayout;
use records::{BucketRecord, ParameterRecord};

use crate::SimulationError;

/// Range of the integral in standard deviations; beyond it lies less than 10^-15.
const REACH: f64 = 8.0;

/// Pieces of the integral.
const NUM_PIECES: usize = 4000;

/// Step of one rank; times in seconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepProfile {
    /// Forward pass.
    pub forward_s: f64,
    /// Backward pass.
    pub backward_s: f64,
    /// Buckets in the order of their reduction.
    pub buckets: Vec<BucketRecord>,
    /// Parameters in module order.
    pub parameters: Vec<ParameterRecord>,
    /// Optimizer, after the last reduction.
    pub optimizer_s: f64,
    /// Remainder: waiting for data, copies, bookkeeping.
    pub other_s: f64,
    /// Images of one rank's step.
    pub batch_size_per_rank: usize,
    /// Standard deviation of a rank's time until its gradients are computed.
    pub straggler_spread_s: f64,
}

impl StepProfile {
    /// Returns the seconds of a step on one rank.
    pub fn compute_s(&self) -> f64 {
        self.forward_s + self.backward_s + self.optimizer_s + self.other_s
    }

    /// Returns the bytes of all gradients.
    pub fn num_bytes(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.bytes).sum()
    }

    /// Returns the mean delay in seconds of the slowest of `ranks`, for normally distributed times.
    pub(crate) fn straggler_s(&self, ranks: usize) -> f64 {
        self.straggler_spread_s * expected_largest(ranks)
    }

    /// Returns the layout of the parameters in the flat buffer.
    pub fn layout(&self) -> ParameterLayout {
        let shape = |parameter: &ParameterRecord| (parameter.name.clone(), parameter.shape.clone());
        ParameterLayout::from_shapes(self.parameters.iter().map(shape))
    }

    /// Returns this step with the buckets of a training run with this limit.
    ///
    /// # Panics
    /// When `bytes` is 0.
    pub fn with_bucket_cap(&self, bytes: u64) -> Self {
        assert!(bytes > 0, "buckets hold something");
        let most = usize::try_from(bytes).unwrap_or(usize::MAX);
        let plan = BucketPlan::new(&self.layout(), most);
        let buckets = plan.buckets().iter().map(|bucket| {
            let ready = self.parameters[bucket.parameters.clone()]
                .iter()
                .map(|parameter| parameter.ready_s);
            BucketRecord {
                ready_s: ready.fold(0.0, f64::max),
                bytes: (bucket.elements.len() * size_of::<f32>()) as u64,
            }
        });
        Self {
            buckets: buckets.collect(),
            ..self.clone()
        }
    }

    /// Returns this step with another batch.
    ///
    /// A `second` step of another batch separates the part of forward and backward pass that grows
    /// with the samples from the constant part; without it all of it grows. Other times are
    /// constant.
    pub fn at_batch(&self, second: Option<&Self>, batch_size_per_rank: usize) -> Self {
        let batch = self.batch_size_per_rank as f64;
        let second = second.filter(|second| second.batch_size_per_rank != self.batch_size_per_rank);
        let of = |time: fn(&Self) -> f64| {
            let seconds = time(self);
            let per_sample = match second {
                // Noise in the two times must not make a part negative.
                Some(second) => ((seconds - time(second))
                    / (batch - second.batch_size_per_rank as f64))
                    .clamp(0.0, seconds / batch),
                None => seconds / batch,
            };
            seconds + per_sample * (batch_size_per_rank as f64 - batch)
        };
        let backward_s = of(|step| step.backward_s);
        let mut step = Self {
            forward_s: of(|step| step.forward_s),
            backward_s,
            batch_size_per_rank,
            ..self.clone()
        };
        let ratio = if self.backward_s > 0.0 {
            backward_s / self.backward_s
        } else {
            1.0
        };
        step.parameters
            .iter_mut()
            .for_each(|parameter| parameter.ready_s *= ratio);
        step.buckets
            .iter_mut()
            .for_each(|bucket| bucket.ready_s *= ratio);
        step.straggler_spread_s *= step.compute_s() / self.compute_s();
        step
    }

    pub(crate) fn check(&self) -> Result<(), SimulationError> {
        let times = [
            ("forward_s", self.forward_s),
            ("backward_s", self.backward_s),
            ("optimizer_s", self.optimizer_s),
            ("other_s", self.other_s),
            ("straggler_spread_s", self.straggler_spread_s),
        ];
        let ready = self.buckets.iter().map(|bucket| bucket.ready_s);
        let ready = ready.chain(self.parameters.iter().map(|parameter| parameter.ready_s));
        let times = times.into_iter();
        for (name, got) in times.chain(ready.map(|ready_s| ("ready_s", ready_s))) {
            if !(got.is_finite() && got >= 0.0) {
                return Err(SimulationError(format!(
                    "step profile: expected {name} finite and not negative, got {got}"
                )));
            }
        }
        match self.compute_s() {
            got if got.is_finite() && got > 0.0 => Ok(()),
            got => Err(SimulationError(format!(
                "step profile: expected a finite step longer than 0 s, got {got}"
            ))),
        }
    }
}

/// Returns the expected largest of `number` independent standard normal numbers; 0 for none.
///
/// Integrates x d(F(x)^n) by parts, for the distribution function F: 1 - F^n above 0, -F^n below.
pub(crate) fn expected_largest(number: usize) -> f64 {
    if number < 2 {
        return 0.0;
    }
    let power = number as f64;
    let width = 2.0 * REACH / NUM_PIECES as f64;
    let density = |x: f64| (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt();
    let mut below = 0.0;
    let mut sum = 0.0;
    for piece in 0..NUM_PIECES {
        let start = -REACH + width * piece as f64;
        let middle = start + 0.5 * width;
        // Simpson's rule for the distribution, the midpoint for the expectation.
        let half =
            width / 12.0 * (density(start) + 4.0 * density(start + 0.25 * width) + density(middle));
        let at_middle: f64 = below + half;
        let share = at_middle.min(1.0).powf(power);
        sum += width * if middle > 0.0 { 1.0 - share } else { -share };
        below += width / 6.0 * (density(start) + 4.0 * density(middle) + density(start + width));
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 100 ms with 32 samples.
    fn step() -> StepProfile {
        StepProfile {
            forward_s: 0.03,
            backward_s: 0.06,
            buckets: vec![BucketRecord {
                ready_s: 0.05,
                bytes: 135_168,
            }],
            parameters: vec![ParameterRecord {
                name: "fc".to_owned(),
                shape: vec![132, 256],
                ready_s: 0.05,
            }],
            optimizer_s: 0.005,
            other_s: 0.005,
            batch_size_per_rank: 32,
            straggler_spread_s: 0.0,
        }
    }

    #[test]
    fn a_smaller_batch_takes_the_part_that_does_not_depend_on_it() {
        let small = StepProfile {
            batch_size_per_rank: 8,
            forward_s: 0.012,
            backward_s: 0.024,
            ..step()
        };
        // (30 - 12) ms by 24 samples: 0.75 ms a sample, 6 ms for none.
        let both = step().at_batch(Some(&small), 16);
        assert!(
            (both.forward_s - 0.018).abs() < 1e-12 && (both.backward_s - 0.036).abs() < 1e-12,
            "{both:?}"
        );
        assert!((both.parameters[0].ready_s - 0.05 * 0.6).abs() < 1e-12);
        let alone = step().at_batch(None, 16);
        assert!(
            (alone.forward_s - 0.015).abs() < 1e-12 && (alone.optimizer_s - 0.005).abs() < 1e-12
        );
        assert_eq!(step().at_batch(None, 32), step());
    }

    #[test]
    fn the_largest_of_a_few_lies_where_the_tables_say() {
        // 1/sqrt(pi), 3/(2 sqrt(pi)), and Tippett's table.
        for (number, expected) in [
            (1, 0.0),
            (2, 0.564_19),
            (3, 0.846_28),
            (10, 1.538_75),
            (100, 2.507_59),
            (1000, 3.241_4),
        ] {
            let got = expected_largest(number);
            assert!(
                (got - expected).abs() < 1e-4,
                "{number}: expected {expected}, got {got}"
            );
        }
    }
}
