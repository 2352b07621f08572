//! Compressed sums: identities on random buckets, non-finite values, convergence, state and
//! reports.

mod convergence;
mod identities;
mod non_finite;
mod reduction_state;
mod reports;

use distributed::gradients::{
    BucketCompressor, CompressionKind, PowerSgdLimits, TensorSpan, Traffic,
};
use distributed::run_ranks;

/// Every kind but `none`.
const KINDS: [&str; 7] = [
    "bf16",
    "f16",
    "powersgd:1",
    "powersgd:2",
    "topk:0.1",
    "topk:20",
    "topk:100",
];

/// Compresses every matrix, however small.
const ALL_MATRICES: PowerSgdLimits = PowerSgdLimits {
    min_elements: 0,
    min_rate: 0.0,
};

/// Returns the tensors of a bucket, from their rows and columns.
fn spans(shapes: &[(usize, usize)]) -> Vec<TensorSpan> {
    let mut end = 0;
    let span = |&(rows, columns): &(usize, usize)| {
        end += rows * columns;
        TensorSpan {
            range: end - rows * columns..end,
            rows,
            columns,
        }
    };
    shapes.iter().map(span).collect()
}

fn compressor(kind: &str, shapes: &[(usize, usize)]) -> BucketCompressor {
    let kind: CompressionKind = kind.parse().unwrap();
    BucketCompressor::new(kind, spans(shapes), 5).with_limits(ALL_MATRICES)
}

/// One step of one rank.
struct Step {
    /// Gradient plus residual of the steps before.
    input: Vec<f32>,
    result: Vec<f32>,
    residual: Vec<f32>,
    report: Traffic,
}

/// Sums `gradients[step][rank]` and checks that the result is the same on all ranks; the outcome is
/// `[step][rank]`.
fn sum_on_ranks(
    gradients: &[Vec<Vec<f32>>],
    new: impl Fn() -> BucketCompressor + Sync,
) -> Vec<Vec<Step>> {
    let ranks = run_ranks(gradients[0].len(), |communicator| {
        let mut compressor = new();
        let rank = distributed::Communicator::rank(&communicator);
        let step = |gradients: &Vec<Vec<f32>>| {
            let mut result = gradients[rank].clone();
            let mut input = result.clone();
            input
                .iter_mut()
                .zip(compressor.residual())
                .for_each(|(input, residual)| *input += residual);
            let report = compressor.sum(&mut result, &communicator).unwrap();
            Step {
                input,
                result,
                residual: compressor.residual().to_vec(),
                report,
            }
        };
        gradients.iter().map(step).collect::<Vec<_>>()
    });
    let mut ranks: Vec<_> = ranks.into_iter().map(Vec::into_iter).collect();
    let steps: Vec<Vec<Step>> = gradients
        .iter()
        .map(|_| ranks.iter_mut().map(|rank| rank.next().unwrap()).collect())
        .collect();
    for step in &steps {
        for rank in step {
            let equal = rank
                .result
                .iter()
                .zip(&step[0].result)
                .all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(equal, "results differ in bits between ranks");
        }
    }
    steps
}

/// Sum over ranks in double precision, element by element.
fn exact_sum<'a>(parts: impl IntoIterator<Item = &'a Vec<f32>>) -> Vec<f64> {
    let mut parts = parts.into_iter();
    let mut total: Vec<f64> = parts
        .next()
        .unwrap()
        .iter()
        .map(|&value| f64::from(value))
        .collect();
    for part in parts {
        total
            .iter_mut()
            .zip(part)
            .for_each(|(total, &value)| *total += f64::from(value));
    }
    total
}

fn norm(values: impl IntoIterator<Item = f64>) -> f64 {
    values
        .into_iter()
        .map(|value| value * value)
        .sum::<f64>()
        .sqrt()
}

/// Numbers of -1 to 1 that look random.
fn noise(seed: usize, length: usize) -> Vec<f32> {
    (0..length)
        .map(|index| {
            (((seed * 7919 + index * 104_729) as f64 * 0.618_034).sin() * 1e4).fract() as f32
        })
        .collect()
}
