//! A quadratic problem that the ranks share: with error feedback every compressor finds the minimum
//! of the exact sum.

use super::{compressor, noise, norm};
use distributed::{Communicator, run_ranks};

const SHAPES: [(usize, usize); 2] = [(12, 15), (20, 1)];
const NUM_RANKS: usize = 3;
const NUM_STEPS: usize = 3000;

/// Curvatures and minimum of one rank's part of the loss, `½ Σ a (x − b)²`; the ranks' minima lie
/// far apart.
fn problem(rank: usize) -> (Vec<f32>, Vec<f32>) {
    let curvatures = noise(rank + 10, 200)
        .iter()
        .map(|value| 1.0 + 0.8 * value)
        .collect();
    let minimum = noise(rank + 20, 200)
        .iter()
        .map(|value| 3.0 * value)
        .collect();
    (curvatures, minimum)
}

/// Distance from the minimum after gradient descent with falling steps, in parts of the minimum's
/// norm.
fn distance(kind: &str, error_feedback: bool) -> f64 {
    let mut sum_ab = vec![0.0; 200];
    let mut sum_a = vec![0.0; 200];
    for (a, b) in (0..NUM_RANKS).map(problem) {
        for index in 0..200 {
            sum_ab[index] += f64::from(a[index] * b[index]);
            sum_a[index] += f64::from(a[index]);
        }
    }
    let expected: Vec<f64> = sum_ab.iter().zip(&sum_a).map(|(ab, a)| ab / a).collect();
    let outcomes = run_ranks(NUM_RANKS, |communicator| {
        let mut compressor = compressor(kind, &SHAPES);
        let (a, b) = problem(communicator.rank());
        let mut x = vec![0.0_f32; 200];
        let mut gradients = vec![0.0_f32; 200];
        for step in 0..NUM_STEPS {
            for index in 0..200 {
                gradients[index] = a[index] * (x[index] - b[index]);
            }
            compressor.sum(&mut gradients, &communicator).unwrap();
            if !error_feedback {
                compressor.restore(step as u64 + 1, &[0.0; 200], (&[], 0));
            }
            let learning_rate = 0.1 / (1.0 + step as f32 / 30.0);
            x.iter_mut()
                .zip(&gradients)
                .for_each(|(x, gradient)| *x -= learning_rate * gradient);
        }
        x
    });
    assert!(
        outcomes.iter().all(|x| *x == outcomes[0]),
        "{kind}: the ranks' parameters drifted apart"
    );
    let missed = outcomes[0]
        .iter()
        .zip(&expected)
        .map(|(x, expected)| f64::from(*x) - expected);
    norm(missed) / norm(expected.iter().copied())
}

#[test]
fn every_compressor_converges_to_the_minimum() {
    for (kind, tolerance) in [
        ("none", 1e-4),
        ("bf16", 1e-4),
        ("f16", 1e-4),
        ("powersgd:1", 1e-3),
        ("powersgd:4", 1e-3),
        ("topk:10", 0.01),
    ] {
        let distance = distance(kind, true);
        assert!(distance < tolerance, "{kind}: {distance}");
    }
}

#[test]
fn without_error_feedback_top_k_ends_elsewhere() {
    let distance = distance("topk:10", false);
    assert!(distance > 0.2, "{distance}");
}

#[test]
fn residuals_stay_bounded_where_ranks_differ_for_good() {
    for kind in ["bf16", "f16", "powersgd:2", "topk:10"] {
        let norms = run_ranks(2, |communicator| {
            let mut compressor = compressor(kind, &SHAPES);
            let sign = if communicator.rank() == 0 { 1.0 } else { -1.0 };
            let difference = noise(1, 200);
            let mut norms = Vec::new();
            for step in 0..2000 {
                let own = noise(2 * step + communicator.rank() + 5, 200);
                let mut values: Vec<f32> = difference
                    .iter()
                    .zip(&own)
                    .map(|(a, b)| sign * a + 0.3 * b)
                    .collect();
                compressor.sum(&mut values, &communicator).unwrap();
                norms.push(norm(
                    compressor.residual().iter().map(|&value| f64::from(value)),
                ));
            }
            norms
        });
        let middle = norms[0][999];
        let end = norms[0][1999];
        assert!(end < 1.5 * middle, "{kind}: {middle}, then {end}");
    }
}
