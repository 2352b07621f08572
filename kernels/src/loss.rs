//! Losses of logits against target shares, summed over all samples, and their gradients.
//!
//! In: logits and targets `[N, K]`.
//! Out: a sum, or gradients `[N, K]`.
//! Invariant: the bits do not depend on CPU, instruction set, threads or C library. Operations are
//! f64, in index order, with the functions of `libm`: vectors compute the terms of several rows,
//! and each row's terms are added in order. The softmax of many classes is f32, with a sum for each
//! lane and this workspace's exponential, whose error is far below that of f32 logits.

use rayon::prelude::*;

use crate::simd::{EXP_F64_LIMIT, Isa, Task, exp_f64, vectorized};
use crate::softmax::{folded, share, summed};

/// Rows whose sums are taken side by side, as an addition waits for the one before.
const ROWS: usize = 4;
/// Terms of a row that are computed before they are added.
const BLOCK: usize = 64;
/// A softmax of so many classes is computed in f32.
const MANY_CLASSES: usize = 256;
/// Rows of many classes whose losses are computed in parallel.
const PARALLEL_ROWS: usize = 64;

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
        check(logits, targets, num_classes);
        if self.is_of_many(num_classes) {
            return sum_of_many(logits, targets, num_classes);
        }
        let groups = logits
            .chunks(ROWS * num_classes)
            .zip(targets.chunks(ROWS * num_classes));
        let of_rows = groups.flat_map(|(z, t)| {
            let rows = z.len() / num_classes;
            let losses = match self {
                Self::SoftmaxCrossEntropy => {
                    vectorized(Isa::detect(), SoftmaxLosses { z, t, rows })
                }
                Self::SigmoidCrossEntropy => sums(rows, [z, t], [0.0; ROWS], |_, z, t| {
                    let loss = z.max(0.0) + libm::log1p(libm::exp(-z.abs()));
                    loss - t * z
                }),
            };
            losses.into_iter().take(rows)
        });
        of_rows.sum::<f64>() as f32
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
        check(logits, targets, num_classes);
        if self.is_of_many(num_classes) {
            let rows = logits
                .par_chunks(num_classes)
                .zip(targets.par_chunks(num_classes));
            rows.zip(gradient.par_chunks_mut(num_classes))
                .for_each(|((z, t), gradient)| {
                    let work = GradientOfMany {
                        z,
                        t,
                        scale,
                        gradient,
                    };
                    vectorized(Isa::detect(), work);
                });
            return;
        }
        let scale = f64::from(scale);
        let groups = logits
            .chunks(ROWS * num_classes)
            .zip(targets.chunks(ROWS * num_classes));
        for ((z, t), gradient) in groups.zip(gradient.chunks_mut(ROWS * num_classes)) {
            match self {
                Self::SoftmaxCrossEntropy => {
                    let rows = z.len() / num_classes;
                    let work = SoftmaxGradients {
                        z,
                        t,
                        rows,
                        scale,
                        gradient,
                    };
                    vectorized(Isa::detect(), work);
                }
                Self::SigmoidCrossEntropy => {
                    for ((z, t), gradient) in z.iter().zip(t).zip(gradient) {
                        let probability = 1.0 / (1.0 + libm::exp(-f64::from(*z)));
                        *gradient = (scale * (probability - f64::from(*t))) as f32;
                    }
                }
            }
        }
    }
}

impl Loss {
    fn is_of_many(self, num_classes: usize) -> bool {
        self == Self::SoftmaxCrossEntropy && num_classes >= MANY_CLASSES
    }
}

/// Returns the sum of the softmax losses of rows of many classes.
fn sum_of_many(logits: &[f32], targets: &[f32], num_classes: usize) -> f32 {
    let rows = PARALLEL_ROWS * num_classes;
    let mut total = 0.0;
    for (z, t) in logits.chunks(rows).zip(targets.chunks(rows)) {
        let mut losses = [0.0; PARALLEL_ROWS];
        losses
            .par_iter_mut()
            .zip(z.par_chunks(num_classes).zip(t.par_chunks(num_classes)))
            .for_each(|(loss, (z, t))| {
                *loss = f64::from(vectorized(Isa::detect(), LossOfMany { z, t }));
            });
        total += losses.iter().sum::<f64>();
    }
    total as f32
}

/// The loss of a row of many classes.
struct LossOfMany<'a> {
    z: &'a [f32],
    t: &'a [f32],
}

impl Task for LossOfMany<'_> {
    type Output = f32;

    #[inline(always)]
    fn run(self) -> f32 {
        let Self { z, t } = self;
        let largest = largest(z);
        let total = summed(z, t, |z, _| share(z - largest));
        let log_total = largest + libm::logf(total);
        summed(z, t, |z, t| t * (log_total - z))
    }
}

/// The gradient of a row of many classes.
struct GradientOfMany<'a> {
    z: &'a [f32],
    t: &'a [f32],
    scale: f32,
    gradient: &'a mut [f32],
}

impl Task for GradientOfMany<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self {
            z,
            t,
            scale,
            gradient,
        } = self;
        let largest = largest(z);
        for (power, z) in gradient.iter_mut().zip(z) {
            *power = share(z - largest);
        }
        let add = |a, b| a + b;
        let factor = folded(t, 0.0, add) / folded(gradient, 0.0, add);
        for (gradient, t) in gradient.iter_mut().zip(t) {
            *gradient = scale * (*gradient * factor - t);
        }
    }
}

/// Returns the largest logit; a NaN is passed over.
#[inline(always)]
fn largest(z: &[f32]) -> f32 {
    folded(z, f32::NEG_INFINITY, f32::max)
}

fn check(logits: &[f32], targets: &[f32], num_classes: usize) {
    let num_logits = logits.len();
    let num_targets = targets.len();
    assert!(
        num_classes > 0 && num_logits == num_targets && num_logits.is_multiple_of(num_classes),
        "loss: expected as many targets as logits in rows of {num_classes}, got {num_targets} and {num_logits}"
    );
}

/// The losses of up to [`ROWS`] rows.
struct SoftmaxLosses<'a> {
    z: &'a [f32],
    t: &'a [f32],
    rows: usize,
}

impl Task for SoftmaxLosses<'_> {
    type Output = [f64; ROWS];

    #[inline(always)]
    fn run(self) -> [f64; ROWS] {
        let Self { z, t, rows } = self;
        let log_totals = log_sum_exp(rows, z);
        sums(rows, [z, t], log_totals, |log_total, z, t| {
            t * (log_total - z)
        })
    }
}

/// The gradients of up to [`ROWS`] rows.
struct SoftmaxGradients<'a> {
    z: &'a [f32],
    t: &'a [f32],
    rows: usize,
    scale: f64,
    gradient: &'a mut [f32],
}

impl Task for SoftmaxGradients<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self {
            z,
            t,
            rows,
            scale,
            gradient,
        } = self;
        let log_totals = log_sum_exp(rows, z);
        let weights = sums(rows, [z, t], [0.0; ROWS], |_, _, t| t);
        let classes = z.len() / rows;
        let all = z
            .chunks_exact(classes)
            .zip(t.chunks_exact(classes))
            .zip(gradient.chunks_exact_mut(classes));
        for (((z, t), gradient), (log_total, weight)) in
            all.zip(log_totals.into_iter().zip(weights))
        {
            let blocks = z.chunks(BLOCK).zip(t.chunks(BLOCK));
            for ((z, t), gradient) in blocks.zip(gradient.chunks_mut(BLOCK)) {
                let mut probabilities = [0.0; BLOCK];
                let probabilities = &mut probabilities[..z.len()];
                powers(z, log_total, probabilities);
                for ((t, probability), gradient) in t.iter().zip(probabilities).zip(gradient) {
                    *gradient = (scale * (*probability * weight - f64::from(*t))) as f32;
                }
            }
        }
    }
}

/// Writes e^(z - shift), with the bits of `libm`.
#[inline(always)]
fn powers(z: &[f32], shift: f64, powers: &mut [f64]) {
    let mut is_near = true;
    for (power, z) in powers.iter_mut().zip(z) {
        *power = f64::from(*z) - shift;
        is_near &= power.abs() <= EXP_F64_LIMIT;
    }
    if is_near {
        for power in powers {
            *power = exp_f64(*power);
        }
    } else {
        for power in powers {
            *power = libm::exp(*power);
        }
    }
}

/// Returns the sum of the terms of each row, added in order, where `of` gets the row's value.
#[inline(always)]
fn sums(
    rows: usize,
    [z, t]: [&[f32]; 2],
    of_row: [f64; ROWS],
    of: impl Fn(f64, f64, f64) -> f64,
) -> [f64; ROWS] {
    added(rows, z.len() / rows, |row, columns, terms| {
        let first = row * (z.len() / rows);
        let here = first + columns.start..first + columns.end;
        let values = z[here.clone()].iter().zip(&t[here]);
        for (term, (z, t)) in terms.iter_mut().zip(values) {
            *term = of(of_row[row], f64::from(*z), f64::from(*t));
        }
    })
}

/// Returns the logarithm of each row's sum of exponentials.
#[inline(always)]
fn log_sum_exp(rows: usize, z: &[f32]) -> [f64; ROWS] {
    let classes = z.len() / rows;
    let mut largest = [0.0; ROWS];
    for (largest, z) in largest.iter_mut().zip(z.chunks_exact(classes)) {
        *largest = f64::from(self::largest(z));
    }
    let totals = added(rows, classes, |row, columns, terms| {
        powers(&z[row * classes..][columns], largest[row], terms);
    });
    std::array::from_fn(|row| largest[row] + libm::log(totals[row]))
}

/// Returns the sums of rows, given a function that writes terms of columns of a row.
#[inline(always)]
fn added(
    rows: usize,
    classes: usize,
    mut terms: impl FnMut(usize, std::ops::Range<usize>, &mut [f64]),
) -> [f64; ROWS] {
    // As a sum of the standard library begins.
    let mut sums = [-0.0; ROWS];
    for first in (0..classes).step_by(BLOCK) {
        let count = BLOCK.min(classes - first);
        let mut blocks = [[0.0; BLOCK]; ROWS];
        for (row, block) in blocks.iter_mut().enumerate().take(rows) {
            terms(row, first..first + count, &mut block[..count]);
        }
        for column in 0..count {
            for (sum, block) in sums.iter_mut().zip(&blocks) {
                *sum += block[column];
            }
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{assert_close, doubles, same_everywhere, values};

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
                    f64::from(loss.sum(&logits, &TARGETS, 3))
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
    fn bits_are_those_of_plain_loops_over_rows() {
        let log_sum_exp = |row: &[f32]| {
            let largest = f64::from(row.iter().copied().fold(f32::NEG_INFINITY, f32::max));
            largest + libm::log(row.iter().map(|z| libm::exp(f64::from(*z) - largest)).sum())
        };
        for (rows, classes, factor) in [(1, 1, 1.0), (6, 10, 9.0), (9, 201, 5.0), (5, 70, 900.0)] {
            let z: Vec<f32> = values(rows * classes, 1)
                .iter()
                .map(|z| factor * z)
                .collect();
            let t: Vec<f32> = values(rows * classes, 2).iter().map(|t| t.abs()).collect();
            let mut gradient = vec![f32::NAN; z.len()];
            let loss = Loss::SoftmaxCrossEntropy;
            loss.gradient(0.25, &z, &t, classes, &mut gradient);
            let mut total = 0.0;
            let pairs = z.chunks_exact(classes).zip(t.chunks_exact(classes));
            for ((z, t), gradient) in pairs.zip(gradient.chunks_exact(classes)) {
                let log_total = log_sum_exp(z);
                let terms = z
                    .iter()
                    .zip(t)
                    .map(|(z, t)| f64::from(*t) * (log_total - f64::from(*z)));
                total += terms.sum::<f64>();
                let weight: f64 = t.iter().copied().map(f64::from).sum();
                for ((z, t), gradient) in z.iter().zip(t).zip(gradient) {
                    let probability = libm::exp(f64::from(*z) - log_total);
                    let expected = 0.25 * (probability * weight - f64::from(*t));
                    assert_eq!(gradient.to_bits(), (expected as f32).to_bits());
                }
            }
            assert_eq!(
                loss.sum(&z, &t, classes).to_bits(),
                (total as f32).to_bits()
            );
        }
    }

    #[test]
    fn many_classes_equal_the_formulas_in_f64_and_are_the_same_for_any_threads() {
        let loss = Loss::SoftmaxCrossEntropy;
        for (rows, classes, factor) in [(1, 256, 1.0), (150, 1000, 9.0), (3, 50_257, 30.0)] {
            let z: Vec<f32> = values(rows * classes, 1)
                .iter()
                .map(|z| factor * z)
                .collect();
            let t: Vec<f32> = values(rows * classes, 2)
                .iter()
                .map(|t| t.max(0.0))
                .collect();
            let (got, gradient) = same_everywhere(|_| {
                let mut gradient = vec![f32::NAN; z.len()];
                loss.gradient(0.25, &z, &t, classes, &mut gradient);
                (loss.sum(&z, &t, classes).to_bits(), gradient)
            });
            let mut total = 0.0;
            let mut expected = Vec::new();
            for (z, t) in z.chunks_exact(classes).zip(t.chunks_exact(classes)) {
                let [z, t] = [z, t].map(doubles);
                let log_total = z.iter().map(|z| z.exp()).sum::<f64>().ln();
                total += z
                    .iter()
                    .zip(&t)
                    .map(|(z, t)| t * (log_total - z))
                    .sum::<f64>();
                let weight: f64 = t.iter().sum();
                let of_class = |(z, t): (&f64, &f64)| 0.25 * ((z - log_total).exp() * weight - t);
                expected.extend(z.iter().zip(&t).map(of_class));
            }
            assert_close("loss", &[f32::from_bits(got)], &[total], 1e-5);
            assert_close("gradient", &gradient, &expected, 1e-5);
        }
        for logit in [f32::NAN, f32::INFINITY] {
            let mut z = vec![1.0; 300];
            z[7] = logit;
            assert!(!loss.sum(&z, &[0.5; 300], 300).is_finite(), "{logit}");
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
