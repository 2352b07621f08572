//! Bytes and errors that a sum reports, and plans that differ.

use super::{ALL_MATRICES, compressor, noise, norm, spans, sum_on_ranks};
use distributed::gradients::{BucketCompressor, CompressionKind};
use distributed::run_ranks;

#[test]
fn bytes_follow_their_formulas() {
    // 24 x 50 and a vector of 13: 1213 elements on 3 ranks, in segments of 404, 404 and 405.
    let shapes = [(24, 50), (13, 1)];
    let gradients = [(0..3).map(|rank| noise(rank, 1213)).collect::<Vec<_>>()];
    let ring = |length: u64| 2 * 2 * 4 * length / 3;
    let half = |segment: u64| 2 * (1213 - segment) + 2 * 2 * segment;
    for (kind, expected) in [
        ("none", [ring(1213); 3]),
        ("bf16", [half(404), half(404), half(405)]),
        ("f16", [half(404) + 8, half(404) + 8, half(405) + 8]),
        ("powersgd:2", [ring(13 + 2 * 24) + ring(2 * 50); 3]),
        ("topk:1", [2 * 8 * 13; 3]),
    ] {
        let step = &sum_on_ranks(&gradients, || compressor(kind, &shapes))[0];
        for (rank, expected) in step.iter().zip(expected) {
            assert_eq!(rank.report.bytes_sent, expected, "{kind}");
            assert_eq!(rank.report.uncompressed_bytes, ring(1213), "{kind}");
        }
    }
    let alone = [vec![noise(0, 1213)]];
    for kind in super::KINDS {
        assert_eq!(
            sum_on_ranks(&alone, || compressor(kind, &shapes))[0][0]
                .report
                .bytes_sent,
            0,
            "{kind}"
        );
    }
}

#[test]
fn errors_are_what_the_result_misses() {
    let gradients = vec![vec![noise(3, 240)]; 3];
    for kind in super::KINDS {
        for step in sum_on_ranks(&gradients, || compressor(kind, &[(12, 20)])) {
            let Some(rank) = step.first() else {
                unreachable!("one rank")
            };
            let values = |values: &[f32]| norm(values.iter().map(|&value| f64::from(value)));
            let expected = values(&rank.residual) / values(&rank.input);
            let got = rank.report.relative_error();
            assert!(
                (got - expected).abs() < 1e-3 * expected + 1e-9,
                "{kind}: expected {expected}, got {got}"
            );
        }
    }
}

#[test]
fn reports_add_up() {
    let step = &sum_on_ranks(&[vec![noise(0, 60), noise(1, 60)]], || {
        compressor("topk:10", &[(6, 10)])
    })[0];
    let mut total = step[0].report;
    total += step[1].report;
    assert_eq!(total.bytes_sent, 2 * 48);
    assert_eq!(total.uncompressed_bytes, 2 * 240);
    let part = |pick: fn(&super::Step) -> &Vec<f32>| {
        norm(
            step.iter()
                .flat_map(|rank| pick(rank).iter().map(|&value| f64::from(value))),
        )
    };
    assert!(
        (total.relative_error() - part(|rank| &rank.residual) / part(|rank| &rank.input)).abs()
            < 1e-6
    );
    assert_eq!(
        distributed::gradients::Traffic::default().relative_error(),
        0.0
    );
}

#[test]
fn plans_that_differ_are_named_on_every_rank() {
    let outcomes = run_ranks(2, |communicator| {
        let rank = distributed::Communicator::rank(&communicator) + 1;
        let compressor = |kind| {
            BucketCompressor::new(kind, spans(&[(2, 3), (4, 1)]), 7).with_limits(ALL_MATRICES)
        };
        compressor(CompressionKind::Bf16)
            .expect_equal_plans(&communicator)
            .unwrap();
        compressor(CompressionKind::PowerSgd { rank })
            .expect_equal_plans(&communicator)
            .unwrap_err()
            .to_string()
    });
    assert_eq!(outcomes[0], outcomes[1]);
    assert!(
        outcomes[0].starts_with("compression differs: expected powersgd:1 of 2x3 + 4x1 (seed 7,"),
        "{}",
        outcomes[0]
    );
    assert!(
        outcomes[0].contains("got powersgd:2 of 2x3 + 4x1"),
        "{}",
        outcomes[0]
    );
}
