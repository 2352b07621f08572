//! Layer normalisation of `[rows, C]`: each row has its own mean and variance.
//!
//! In: rows; scale and shift of each channel.
//! Out: rows; gradients of rows, scale and shift.
//! Invariant: pieces have a fixed number of rows, and their sums are added in order, so the bits do
//! not depend on threads or instruction set.
//! Source: Ba et al. 2016, arXiv 1607.06450.
//!
//! The backward pass computes the statistics of a row again, which is cheaper than keeping them.

use rayon::prelude::*;

use crate::Element;
use crate::simd::{Isa, Task, halved, vectorized};

/// Rows of a piece, whose sums for gamma and beta are taken in f32.
const PIECE_ROWS: usize = 128;
/// Independent running sums.
const LANES: usize = 16;

/// Returns the workspace length of [`backward`], in elements.
pub fn backward_workspace_len(rows: usize, channels: usize) -> usize {
    rows.div_ceil(PIECE_ROWS) * 2 * channels
}

/// Outputs of [`backward`]: dx `[rows, C]`, the gradients of gamma and beta `[C]`.
#[derive(Debug)]
pub struct Gradients<'a, E = f32> {
    /// Gradient with respect to `x`.
    pub dx: &'a mut [E],
    /// Gradient with respect to `gamma`.
    pub d_gamma: &'a mut [f32],
    /// Gradient with respect to `beta`.
    pub d_beta: &'a mut [f32],
}

/// Computes y = (x - mean) / sqrt(variance + epsilon) * gamma + beta, with the biased variance.
///
/// # Shapes
/// `x`, `y`: `[rows, C]`. `gamma`, `beta`: `[C]`.
///
/// # Panics
/// If a length differs, C is 0, or the processor lacks `isa`.
#[inline(never)]
pub fn forward<E: Element>(
    isa: Isa,
    epsilon: f32,
    x: &[E],
    gamma: &[f32],
    beta: &[f32],
    y: &mut [E],
) {
    let channels = gamma.len();
    check("x", x.len(), x.len(), channels);
    check("y", y.len(), x.len(), channels);
    check("beta", beta.len(), channels, channels);
    let piece = PIECE_ROWS * channels;
    y.par_chunks_mut(piece)
        .zip(x.par_chunks(piece))
        .for_each(|(y, x)| {
            vectorized(
                isa,
                Normalised {
                    epsilon,
                    x,
                    gamma,
                    beta,
                    y,
                },
            );
        });
}

/// Computes all gradients.
///
/// # Shapes
/// `x`, `dy`: `[rows, C]`. `gamma`: `[C]`. `workspace`: [`backward_workspace_len`] values.
///
/// # Panics
/// If a length differs, C is 0, or the processor lacks `isa`.
#[inline(never)]
pub fn backward<E: Element>(
    isa: Isa,
    epsilon: f32,
    x: &[E],
    gamma: &[f32],
    dy: &[E],
    Gradients {
        dx,
        d_gamma,
        d_beta,
    }: Gradients<'_, E>,
    workspace: &mut [f32],
) {
    let channels = gamma.len();
    check("x", x.len(), x.len(), channels);
    check("dy", dy.len(), x.len(), channels);
    check("dx", dx.len(), x.len(), channels);
    check("the gradient of gamma", d_gamma.len(), channels, channels);
    check("the gradient of beta", d_beta.len(), channels, channels);
    check(
        "workspace",
        workspace.len(),
        backward_workspace_len(x.len() / channels, channels),
        channels,
    );
    let piece = PIECE_ROWS * channels;
    let pieces = dx
        .par_chunks_mut(piece)
        .zip(x.par_chunks(piece))
        .zip(dy.par_chunks(piece));
    pieces
        .zip(workspace.par_chunks_mut(2 * channels))
        .for_each(|(((dx, x), dy), sums)| {
            let (d_gamma, d_beta) = sums.split_at_mut(channels);
            vectorized(
                isa,
                RowGradients {
                    epsilon,
                    x,
                    gamma,
                    dy,
                    dx,
                    d_gamma,
                    d_beta,
                },
            );
        });
    for (channel, (d_gamma, d_beta)) in d_gamma.iter_mut().zip(d_beta).enumerate() {
        let of_pieces = |first: usize| {
            let sums = workspace
                .chunks_exact(2 * channels)
                .map(|sums| f64::from(sums[first + channel]));
            sums.sum::<f64>() as f32
        };
        (*d_gamma, *d_beta) = (of_pieces(0), of_pieces(channels));
    }
}

fn check(what: &str, got: usize, expected: usize, channels: usize) {
    assert!(
        channels > 0 && got.is_multiple_of(channels),
        "layer_norm: {what}: {got} values are no rows of {channels}"
    );
    assert!(
        got == expected,
        "layer_norm: {what}: expected {expected} values, got {got}"
    );
}

struct Normalised<'a, E> {
    epsilon: f32,
    x: &'a [E],
    gamma: &'a [f32],
    beta: &'a [f32],
    y: &'a mut [E],
}

impl<E: Element> Task for Normalised<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let channels = self.gamma.len();
        for (x, y) in self
            .x
            .chunks_exact(channels)
            .zip(self.y.chunks_exact_mut(channels))
        {
            let (mean, invstd) = statistics(x, self.gamma, self.epsilon);
            for (((x, y), gamma), beta) in x.iter().zip(y).zip(self.gamma).zip(self.beta) {
                *y = E::from_f32((x.to_f32() - mean) * invstd * gamma + beta);
            }
        }
    }
}

struct RowGradients<'a, E> {
    epsilon: f32,
    x: &'a [E],
    gamma: &'a [f32],
    dy: &'a [E],
    dx: &'a mut [E],
    d_gamma: &'a mut [f32],
    d_beta: &'a mut [f32],
}

impl<E: Element> Task for RowGradients<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let channels = self.gamma.len();
        self.d_gamma.fill(0.0);
        self.d_beta.fill(0.0);
        let rows = self
            .x
            .chunks_exact(channels)
            .zip(self.dy.chunks_exact(channels));
        for ((x, dy), dx) in rows.zip(self.dx.chunks_exact_mut(channels)) {
            let (mean, invstd) = statistics(x, self.gamma, self.epsilon);
            let plain = sum(x, dy, self.gamma, |_, dy, gamma| dy * gamma);
            let with_x = sum(x, dy, self.gamma, |x, dy, gamma| {
                dy * gamma * ((x - mean) * invstd)
            });
            let [plain, with_x] = [plain, with_x].map(|sum| sum / channels as f32);
            let parameters = self
                .gamma
                .iter()
                .zip(self.d_gamma.iter_mut())
                .zip(self.d_beta.iter_mut());
            for (((x, dy), dx), ((gamma, d_gamma), d_beta)) in
                x.iter().zip(dy).zip(dx).zip(parameters)
            {
                let normalised = (x.to_f32() - mean) * invstd;
                let dy = dy.to_f32();
                *d_gamma += dy * normalised;
                *d_beta += dy;
                *dx = E::from_f32(invstd * (dy * gamma - plain - normalised * with_x));
            }
        }
    }
}

/// Returns mean and 1 / sqrt(variance + epsilon) of a row, in two passes; `gamma` has its length.
#[inline(always)]
fn statistics<E: Element>(x: &[E], gamma: &[f32], epsilon: f32) -> (f32, f32) {
    let count = x.len() as f32;
    let mean = sum(x, x, gamma, |x, _, _| x) / count;
    let squares = sum(x, x, gamma, |x, _, _| (x - mean) * (x - mean));
    (mean, 1.0 / (squares / count + epsilon).sqrt())
}

/// Returns a sum over rows of one length, in [`LANES`] lanes. Blocks are arrays, whose indices need
/// no check.
///
/// The loop computes one sum: the compiler vectorises two sums with only two lanes.
#[inline(always)]
fn sum<E: Element>(x: &[E], dy: &[E], gamma: &[f32], term: impl Fn(f32, f32, f32) -> f32) -> f32 {
    let mut lanes = [0.0; LANES];
    let [(x, x_tail), (dy, dy_tail)] = [x, dy].map(<[E]>::as_chunks::<LANES>);
    let (gamma, gamma_tail) = gamma.as_chunks::<LANES>();
    for ((x, dy), gamma) in x.iter().zip(dy).zip(gamma) {
        for lane in 0..LANES {
            lanes[lane] += term(x[lane].to_f32(), dy[lane].to_f32(), gamma[lane]);
        }
    }
    if !x_tail.is_empty() {
        let mut terms = [0.0; LANES];
        let tails = x_tail.iter().zip(dy_tail).zip(gamma_tail);
        for (to, ((x, dy), gamma)) in terms.iter_mut().zip(tails) {
            *to = term(x.to_f32(), dy.to_f32(), *gamma);
        }
        for (lane, term) in lanes.iter_mut().zip(terms) {
            *lane += term;
        }
    }
    halved(lanes, |a, b| a + b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{assert_close, doubles, finite_differences, same_everywhere, values};
    use half::bf16;

    const EPSILON: f64 = 1e-5;

    /// y of f64 loops.
    fn reference(x: &[f64], gamma: &[f64], beta: &[f64]) -> Vec<f64> {
        let rows = x.chunks_exact(gamma.len()).flat_map(|row| {
            let mean = row.iter().sum::<f64>() / row.len() as f64;
            let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / row.len() as f64;
            let invstd = 1.0 / (variance + EPSILON).sqrt();
            let of = row
                .iter()
                .zip(gamma)
                .zip(beta)
                .map(move |((x, gamma), beta)| (x - mean) * invstd * gamma + beta);
            of.collect::<Vec<_>>()
        });
        rows.collect()
    }

    struct Case {
        x: Vec<f32>,
        gamma: Vec<f32>,
        beta: Vec<f32>,
        dy: Vec<f32>,
    }

    impl Case {
        fn new(rows: usize, channels: usize) -> Self {
            // A mean that careless formulas would lose digits by.
            let x = values(rows * channels, 1).iter().map(|x| x + 3.0).collect();
            let gamma = values(channels, 2);
            let beta = values(channels, 3);
            Self {
                x,
                gamma,
                beta,
                dy: values(rows * channels, 4),
            }
        }

        fn gradients(&self, isa: Isa) -> [Vec<f32>; 3] {
            let channels = self.gamma.len();
            let mut dx = vec![f32::NAN; self.x.len()];
            let mut d_gamma = vec![f32::NAN; channels];
            let mut d_beta = vec![f32::NAN; channels];
            let mut workspace =
                vec![f32::NAN; backward_workspace_len(self.x.len() / channels, channels)];
            let wanted = Gradients {
                dx: &mut dx,
                d_gamma: &mut d_gamma,
                d_beta: &mut d_beta,
            };
            backward(
                isa,
                EPSILON as f32,
                &self.x,
                &self.gamma,
                &self.dy,
                wanted,
                &mut workspace,
            );
            [dx, d_gamma, d_beta]
        }
    }

    #[test]
    fn rows_equal_the_reference_and_are_the_same_everywhere() {
        for (rows, channels) in [(1, 1), (3, 7), (5, 16), (300, 40), (130, 97)] {
            let case = Case::new(rows, channels);
            let y = same_everywhere(|isa| {
                let mut y = vec![f32::NAN; case.x.len()];
                forward(
                    isa,
                    EPSILON as f32,
                    &case.x,
                    &case.gamma,
                    &case.beta,
                    &mut y,
                );
                y
            });
            let expected = reference(
                &doubles(&case.x),
                &doubles(&case.gamma),
                &doubles(&case.beta),
            );
            assert_close(&format!("{rows} x {channels}"), &y, &expected, 1e-5);
        }
    }

    #[test]
    fn gradients_are_those_of_finite_differences_and_the_same_everywhere() {
        for (rows, channels) in [(2, 3), (4, 17), (3, 32)] {
            let case = Case::new(rows, channels);
            let [dx, d_gamma, d_beta] = same_everywhere(|isa| case.gradients(isa));
            let x = doubles(&case.x);
            let gamma = doubles(&case.gamma);
            let beta = doubles(&case.beta);
            let loss = |y: Vec<f64>| {
                y.iter()
                    .zip(&case.dy)
                    .map(|(y, dy)| y * f64::from(*dy))
                    .sum::<f64>()
            };
            let what = format!("{rows} x {channels}");
            assert_close(
                &what,
                &dx,
                &finite_differences(&x, |x| loss(reference(x, &gamma, &beta))),
                1e-4,
            );
            assert_close(
                &what,
                &d_gamma,
                &finite_differences(&gamma, |gamma| loss(reference(&x, gamma, &beta))),
                1e-4,
            );
            assert_close(
                &what,
                &d_beta,
                &finite_differences(&beta, |beta| loss(reference(&x, &gamma, beta))),
                1e-4,
            );
        }
    }

    #[test]
    fn sums_over_many_rows_are_the_same_everywhere_and_bf16_is_the_rounded_result() {
        let case = Case::new(1000, 24);
        let [_, d_gamma, _] = same_everywhere(|isa| case.gradients(isa));
        assert!(d_gamma.iter().all(|value| value.is_finite()));
        let x: Vec<bf16> = case.x.iter().map(|x| bf16::from_f32(*x)).collect();
        let wide: Vec<f32> = x.iter().map(|x| x.to_f32()).collect();
        let mut y = vec![bf16::ZERO; x.len()];
        let mut expected = vec![0.0; x.len()];
        forward(Isa::detect(), 1e-5, &x, &case.gamma, &case.beta, &mut y);
        forward(
            Isa::detect(),
            1e-5,
            &wide,
            &case.gamma,
            &case.beta,
            &mut expected,
        );
        assert!(
            y.iter()
                .zip(&expected)
                .all(|(y, expected)| *y == bf16::from_f32(*expected))
        );
    }
}
