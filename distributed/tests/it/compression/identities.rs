//! Identities that hold for every bucket, on 1 to 4 ranks.

use proptest::prelude::*;

use super::{ALL_MATRICES, KINDS, Step, compressor, exact_sum, norm, spans, sum_on_ranks};
use distributed::gradients::{BucketCompressor, CompressionKind};

/// Rows and columns of the tensors of a bucket.
type Shapes = Vec<(usize, usize)>;

/// Shapes of a bucket and its gradients, `[step][rank]`; the steps differ in scale.
fn buckets(steps: usize) -> impl Strategy<Value = (Shapes, Vec<Vec<Vec<f32>>>)> {
    let shape = prop_oneof![3 => (1..9_usize, 1..20_usize), 1 => Just((1, 1))];
    (prop::collection::vec(shape, 0..4), 1..5_usize).prop_flat_map(move |(shapes, world_size)| {
        let length = shapes
            .iter()
            .map(|(rows, columns)| rows * columns)
            .sum::<usize>();
        let element = prop_oneof![8 => -1.0..1.0_f32, 1 => Just(0.0), 1 => Just(0.5)];
        let bucket = prop::collection::vec(element, length);
        let step =
            (prop::collection::vec(bucket, world_size), -5..6_i32).prop_map(|(ranks, exponent)| {
                let scale = |bucket: Vec<f32>| {
                    bucket
                        .iter()
                        .map(|value| value * 10_f32.powi(exponent))
                        .collect()
                };
                ranks.into_iter().map(scale).collect::<Vec<Vec<f32>>>()
            });
        (Just(shapes), prop::collection::vec(step, steps))
    })
}

/// Returns the largest magnitude of all ranks' inputs and of the result, times the number of ranks.
fn magnitude(step: &[Step]) -> f64 {
    let values = step
        .iter()
        .flat_map(|rank| rank.input.iter().chain(&rank.result));
    values.fold(0.0_f64, |largest, value| {
        largest.max(f64::from(value.abs()))
    }) * step.len() as f64
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn residuals_and_result_make_up_the_inputs((shapes, gradients) in buckets(4)) {
        for kind in KINDS {
            for step in sum_on_ranks(&gradients, || compressor(kind, &shapes)) {
                let inputs = exact_sum(step.iter().map(|rank| &rank.input));
                let outputs = exact_sum(step.iter().map(|rank| &rank.residual).chain([&step[0].result]));
                let tolerance = 2e-6 * magnitude(&step);
                for (input, output) in inputs.iter().zip(&outputs) {
                    prop_assert!((input - output).abs() <= tolerance, "{kind}: {input} became {output}");
                }
            }
        }
    }

    #[test]
    fn top_k_sends_the_largest_and_keeps_the_rest_bit_for_bit((shapes, gradients) in buckets(3), percent in 1..=100_u8) {
        for step in sum_on_ranks(&gradients, || compressor(&format!("topk:{percent}"), &shapes)) {
            let length = step[0].result.len();
            let count = (length * usize::from(percent)).div_ceil(100);
            let mut total = vec![0.0; length];
            for rank in &step {
                let mut sent = Vec::new();
                let mut kept = Vec::new();
                for ((&input, &residual), total) in rank.input.iter().zip(&rank.residual).zip(&mut total) {
                    if residual.to_bits() == input.to_bits() {
                        kept.push(input.abs());
                    } else {
                        prop_assert_eq!(residual.to_bits(), 0);
                        sent.push(input.abs());
                        *total += input;
                    }
                }
                // An input of 0 looks kept, sent or not.
                prop_assert!(sent.len() == count || sent.len() < count && kept.iter().filter(|kept| **kept > 0.0).count() == 0);
                let least = sent.iter().copied().fold(f32::INFINITY, f32::min);
                prop_assert!(kept.iter().all(|kept| *kept <= least));
            }
            prop_assert_eq!(&total, &step[0].result);
        }
    }

    #[test]
    fn top_k_of_all_elements_is_the_dense_sum((shapes, gradients) in buckets(3)) {
        let sparse = sum_on_ranks(&gradients, || compressor("topk:100", &shapes));
        let dense = sum_on_ranks(&gradients, || compressor("none", &shapes));
        for (sparse, dense) in sparse.iter().zip(&dense) {
            prop_assert_eq!(&sparse[0].result, &dense[0].result);
            prop_assert!(sparse.iter().all(|rank| rank.residual.iter().all(|value| *value == 0.0)));
        }
    }

    #[test]
    fn half_wires_round_each_part_and_the_sum_once((shapes, gradients) in buckets(1), exponent in -30..30_i32) {
        let scale = |bucket: &Vec<f32>| bucket.iter().map(|value| value * 10_f32.powi(exponent)).collect();
        let gradients: Vec<Vec<f32>> = gradients[0].iter().map(scale).collect();
        let exact = exact_sum(&gradients);
        // Half a unit in the last place of 8 and of 11 bits, once for the parts and once for their
        // sum.
        for (kind, precision) in [("bf16", 1.0 / 256.0), ("f16", 1.0 / 2048.0)] {
            let step = sum_on_ranks(std::slice::from_ref(&gradients), || compressor(kind, &shapes)).remove(0);
            for (index, expected) in exact.iter().enumerate() {
                let parts: f64 = gradients.iter().map(|bucket| f64::from(bucket[index].abs())).sum();
                let tolerance = 2.01 * precision * parts + magnitude(&step) * 2e-9;
                let got = f64::from(step[0].result[index]);
                prop_assert!((got - expected).abs() <= tolerance, "{kind}: expected {expected}, got {got}");
            }
        }
    }

    #[test]
    fn power_sgd_on_many_ranks_is_power_sgd_of_their_sum((shapes, gradients) in buckets(1), rank in 1..4_usize) {
        let kind = format!("powersgd:{rank}");
        let many = sum_on_ranks(&gradients, || compressor(&kind, &shapes)).remove(0);
        let total: Vec<f32> = exact_sum(&gradients[0]).into_iter().map(|value| value as f32).collect();
        let one = sum_on_ranks(&[vec![total]], || compressor(&kind, &shapes)).remove(0);
        let tolerance = 2e-3 * magnitude(&many);
        for (many, one) in many[0].result.iter().zip(&one[0].result) {
            prop_assert!(f64::from((many - one).abs()) <= tolerance, "{many} on many ranks, {one} on one");
        }
    }

    #[test]
    fn power_sgd_of_full_rank_reproduces_the_sum((shapes, gradients) in buckets(3)) {
        for step in sum_on_ranks(&gradients, || compressor("powersgd:9", &shapes)) {
            let exact = exact_sum(step.iter().map(|rank| &rank.input));
            let tolerance = 1e-3 * magnitude(&step);
            for (got, expected) in step[0].result.iter().zip(&exact) {
                prop_assert!((f64::from(*got) - expected).abs() <= tolerance, "expected {expected}, got {got}");
            }
        }
    }

    #[test]
    fn power_sgd_of_a_matrix_of_low_rank_is_exact(rows in 2..9_usize, columns in 2..20_usize, scale in -30..10_i32) {
        let scale = 10_f32.powi(scale);
        let row = super::noise(rows, columns);
        let matrix: Vec<f32> =
            super::noise(columns, rows).iter().flat_map(|left| row.iter().map(move |right| left * right * scale)).collect();
        let steps = sum_on_ranks(&vec![vec![matrix.clone(); 2]; 3], || compressor("powersgd:2", &[(rows, columns)]));
        for step in steps {
            let exact = exact_sum(step.iter().map(|rank| &rank.input));
            let missed = norm(step[0].result.iter().zip(&exact).map(|(got, expected)| f64::from(*got) - expected));
            prop_assert!(missed <= 1e-5 * norm(exact.iter().copied()), "{missed}");
        }
    }
}

#[test]
fn warm_up_steps_are_exact_and_leave_no_residual() {
    let gradients: Vec<Vec<Vec<f32>>> = (0..4)
        .map(|step| {
            (0..3)
                .map(|rank| super::noise(step * 3 + rank, 60))
                .collect()
        })
        .collect();
    let dense = sum_on_ranks(&gradients, || compressor("none", &[(6, 10)]));
    for kind in ["bf16", "f16", "powersgd:1", "topk:20"] {
        let steps = sum_on_ranks(&gradients, || {
            compressor(kind, &[(6, 10)]).with_warmup_steps(2)
        });
        let start = sum_on_ranks(&gradients[2..], || compressor(kind, &[(6, 10)]));
        for (index, (step, dense)) in steps.iter().zip(&dense).enumerate() {
            assert_eq!(
                step[0].result == dense[0].result,
                index < 2,
                "{kind} step {index}"
            );
            let exact = step
                .iter()
                .all(|rank| rank.residual.iter().all(|value| *value == 0.0));
            assert_eq!(exact, index < 2, "{kind} step {index}");
            assert_eq!(
                step[0].report.bytes_sent == step[0].report.uncompressed_bytes,
                index < 2,
                "{kind} step {index}"
            );
        }
        assert_eq!(
            steps[2][0].result, start[0][0].result,
            "{kind}: the warm-up changes no other result"
        );
    }
}

#[test]
fn default_limits_leave_small_tensors_exact() {
    let shapes = [(64, 1), (20, 60), (9, 9), (1, 1500)];
    let gradients = vec![vec![super::noise(1, 2845), super::noise(2, 2845)]; 2];
    let new = |kind| BucketCompressor::new(kind, spans(&shapes), 0);
    let dense = sum_on_ranks(&gradients, || new(CompressionKind::None));
    let steps = sum_on_ranks(&gradients, || new(CompressionKind::PowerSgd { rank: 2 }));
    for (step, dense) in steps.iter().zip(&dense) {
        assert_eq!(step[0].result[..64], dense[0].result[..64]);
        assert_eq!(step[0].result[64 + 1200..], dense[0].result[64 + 1200..]);
        assert_ne!(step[0].result[64..1264], dense[0].result[64..1264]);
    }
    let all = sum_on_ranks(&gradients, || {
        new(CompressionKind::PowerSgd { rank: 2 }).with_limits(ALL_MATRICES)
    });
    assert_ne!(all[0][0].result[1264..1345], dense[0][0].result[1264..1345]);
}
