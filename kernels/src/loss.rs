//! Losses of logits against target shares, summed over all samples, and their gradients.
//!
//! In: logits and targets `[N, K]`.
//! Out: a sum, or gradients `[N, K]`.
//! Invariant: operations are f64, in index order, with the functions of `libm`. So the bits do not
//! depend on CPU, instruction set or C library.

/// A loss of one row of logits z and targets t.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// `-Σ t ln softmax(z)`.
    SoftmaxCrossEntropy,
    /// `Σ softplus(z) - t z`: a sigmoid for each class.
    SigmoidCrossEntropy,
}

impl Loss {
    /// Returns the sum of the losses of all rows. If a logit is not finite, the sum is not finite.
    ///
    /// # Panics
    /// If the lengths differ, or are not a multiple of the number of classes.
    #[must_use]
    pub fn sum(self, logits: &[f32], targets: &[f32], num_classes: usize) -> f32 {
        rows(logits, targets, num_classes)
            .map(|(z, t)| self.of_row(z, t))
            .sum::<f64>() as f32
    }

    /// Computes the gradient of `scale` times [`Loss::sum`] with respect to the logits.
    ///
    /// # Panics
    /// If the lengths differ, or are not a multiple of the number of classes.
    pub fn gradient(
        self,
        scale: f32,
        logits: &[f32],
        targets: &[f32],
        num_classes: usize,
        gradient: &mut [f32],
    ) {
        assert_eq!(
            gradient.len(),
            logits.len(),
            "loss: expected a gradient for each logit"
        );
        let scale = f64::from(scale);
        for ((z, t), gradient) in
            rows(logits, targets, num_classes).zip(gradient.chunks_exact_mut(num_classes))
        {
            let (log_total, weight) = match self {
                Self::SoftmaxCrossEntropy => {
                    (log_sum_exp(z), t.iter().copied().map(f64::from).sum())
                }
                Self::SigmoidCrossEntropy => (0.0, 1.0),
            };
            for ((z, t), gradient) in z.iter().zip(t).zip(gradient) {
                let z = f64::from(*z);
                let probability = match self {
                    Self::SoftmaxCrossEntropy => libm::exp(z - log_total),
                    Self::SigmoidCrossEntropy => 1.0 / (1.0 + libm::exp(-z)),
                };
                *gradient = (scale * (probability * weight - f64::from(*t))) as f32;
            }
        }
    }

    fn of_row(self, z: &[f32], t: &[f32]) -> f64 {
        let terms = z.iter().zip(t).map(|(z, t)| (f64::from(*z), f64::from(*t)));
        match self {
            Self::SoftmaxCrossEntropy => {
                let log_total = log_sum_exp(z);
                terms.map(|(z, t)| t * (log_total - z)).sum()
            }
            Self::SigmoidCrossEntropy => terms
                .map(|(z, t)| z.max(0.0) + libm::log1p(libm::exp(-z.abs())) - t * z)
                .sum(),
        }
    }
}

fn rows<'a>(
    logits: &'a [f32],
    targets: &'a [f32],
    num_classes: usize,
) -> impl Iterator<Item = (&'a [f32], &'a [f32])> {
    let num_logits = logits.len();
    let num_targets = targets.len();
    assert!(
        num_logits == num_targets && num_logits.is_multiple_of(num_classes),
        "loss: expected as many targets as logits in rows of {num_classes}, got {num_targets} and {num_logits}"
    );
    logits
        .chunks_exact(num_classes)
        .zip(targets.chunks_exact(num_classes))
}

fn log_sum_exp(row: &[f32]) -> f64 {
    let largest = f64::from(row.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    largest + libm::log(row.iter().map(|z| libm::exp(f64::from(*z) - largest)).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOSSES: [Loss; 2] = [Loss::SoftmaxCrossEntropy, Loss::SigmoidCrossEntropy];
    const LOGITS: [f32; 6] = [2.0, 0.5, -1.0, 30.0, -40.0, 0.0];
    const TARGETS: [f32; 6] = [0.1, 0.8, 0.1, 0.0, 0.25, 0.75];

    #[test]
    fn sums_are_those_of_the_formulas() {
        // Computed by Python's math module.
        let expected = [41.741_31, 43.607_414];
        for (loss, expected) in LOSSES.into_iter().zip(expected) {
            let got = loss.sum(&LOGITS, &TARGETS, 3);
            assert!(
                (got - expected).abs() < 1e-5,
                "{loss:?}: {got} against {expected}"
            );
        }
    }

    #[test]
    fn gradients_are_the_central_differences() {
        for loss in LOSSES {
            let mut gradient = [0.0; 6];
            loss.gradient(0.5, &LOGITS, &TARGETS, 3, &mut gradient);
            for (index, got) in gradient.into_iter().enumerate() {
                let beside = |step: f32| {
                    let mut logits = LOGITS;
                    logits[index] += step;
                    let of_row = |(z, t): (&[f32], &[f32])| loss.of_row(z, t);
                    rows(&logits, &TARGETS, 3).map(of_row).sum::<f64>()
                };
                let expected = 0.5 * (beside(0.0625) - beside(-0.0625)) / 0.125;
                assert!(
                    (f64::from(got) - expected).abs() < 1e-3,
                    "{loss:?}, {index}: {got} against {expected}"
                );
            }
        }
    }

    #[test]
    fn a_logit_that_is_not_finite_gives_a_sum_that_is_not() {
        for loss in LOSSES {
            for logit in [f32::NAN, f32::INFINITY] {
                assert!(
                    !loss.sum(&[1.0, logit], &[0.5, 0.5], 2).is_finite(),
                    "{loss:?}, {logit}"
                );
            }
        }
    }
}
