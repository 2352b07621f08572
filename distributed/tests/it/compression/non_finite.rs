//! A value that is not finite, on any rank, reaches all of them.

use super::{KINDS, compressor, noise, sum_on_ranks};
use distributed::{Communicator, run_ranks};

#[test]
fn a_non_finite_value_of_any_rank_reaches_all() {
    let shapes = [(3, 4), (5, 1), (4, 6)];
    for world_size in 1..=4 {
        for kind in KINDS.into_iter().chain(["none"]) {
            for (place, bad) in [
                (0, f32::NAN),
                (13, f32::INFINITY),
                (25, f32::NEG_INFINITY),
                (40, -f32::NAN),
            ] {
                for bad_rank in 0..world_size {
                    let good: Vec<_> = (0..world_size).map(|rank| noise(rank, 41)).collect();
                    let mut bad_step = good.clone();
                    bad_step[bad_rank][place] = bad;
                    let steps = sum_on_ranks(&[good, bad_step], || compressor(kind, &shapes));
                    assert!(
                        steps[0][0].result.iter().all(|value| value.is_finite()),
                        "{kind}"
                    );
                    assert!(
                        steps[1]
                            .iter()
                            .all(|rank| rank.result.iter().any(|value| !value.is_finite())),
                        "{kind}: {bad} at {place} of rank {bad_rank} of {world_size} is hidden"
                    );
                }
            }
        }
    }
}

#[test]
fn opposite_infinities_do_not_cancel() {
    for kind in KINDS {
        let gradients = [vec![vec![f32::INFINITY; 12], vec![f32::NEG_INFINITY; 12]]];
        let steps = sum_on_ranks(&gradients, || compressor(kind, &[(3, 4)]));
        assert!(
            steps[0]
                .iter()
                .all(|rank| rank.result.iter().any(|value| !value.is_finite())),
            "{kind}"
        );
    }
}

#[test]
fn f16_holds_large_and_small_finite_values() {
    for scale in [1e-35_f32, 1e-9, 65504.0, 1e6, 1e36] {
        let gradients = [(0..4)
            .map(|rank| noise(rank, 50).iter().map(|value| value * scale).collect())
            .collect()];
        let step = &sum_on_ranks(&gradients, || compressor("f16", &[(5, 10)]))[0];
        assert!(
            step[0].result.iter().all(|value| value.is_finite()),
            "{scale}"
        );
        assert!(
            step.iter().all(|rank| rank.report.relative_error() < 1e-3),
            "{scale}"
        );
    }
}

#[test]
fn a_sum_that_is_taken_back_leaves_what_follows_as_if_it_had_not_been() {
    for kind in KINDS {
        for odd in [f32::NAN, f32::INFINITY, 1e3] {
            let sums = |is_taken_back: bool| {
                run_ranks(2, |communicator| {
                    let mut compressor = compressor(kind, &[(3, 4)]);
                    let mut bits = Vec::new();
                    for step in 0..4 {
                        let mut values = noise(2 * step + communicator.rank(), 12);
                        match (step, is_taken_back) {
                            (1, false) => {}
                            (1, true) => {
                                values[5] = odd;
                                compressor.sum(&mut values, &communicator).unwrap();
                                compressor.roll_back();
                            }
                            _ => {
                                compressor.sum(&mut values, &communicator).unwrap();
                                bits.extend(
                                    values
                                        .iter()
                                        .chain(compressor.residual())
                                        .map(|value| value.to_bits()),
                                );
                            }
                        }
                    }
                    bits
                })
            };
            assert_eq!(sums(true), sums(false), "{kind} {odd}");
        }
    }
}
