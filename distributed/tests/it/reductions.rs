//! Properties of the all-reduce algorithms, on threads.

use std::sync::Arc;

use distributed::gradients::{AllReducer, ExactReducer};
use distributed::{Communicator, run_ranks};
use proptest::prelude::*;

use crate::conformance::reductions::{self, KINDS, any_grouping_of_shards_gives_the_same_bits};

#[test]
fn five_ranks_conform() {
    run_ranks(5, |communicator| reductions::check(&communicator));
}

/// Returns a part for every rank, all of one length.
fn parts() -> impl Strategy<Value = Vec<Vec<f32>>> {
    (1..=5_usize, 0..200_usize).prop_flat_map(|(ranks, length)| {
        let number = prop_oneof![-1e3..1e3_f32, -1e-6..1e-6_f32, Just(0.0)];
        prop::collection::vec(prop::collection::vec(number, length), ranks)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn sums_are_those_of_f64_and_equal_on_all_ranks(parts in parts()) {
        for kind in KINDS {
            let sums = run_ranks(parts.len(), |communicator| {
                let mut values = parts[communicator.rank()].clone();
                AllReducer::new(kind, communicator.duplicate().unwrap()).unwrap().sum(&mut values).unwrap();
                values
            });
            for (index, &sum) in sums[0].iter().enumerate() {
                let of = |part: &Vec<f32>| f64::from(part[index]);
                let expected: f64 = parts.iter().map(of).sum();
                let tolerance = parts.iter().map(|part| of(part).abs()).sum::<f64>() * 5e-7 + 1e-11;
                prop_assert!((f64::from(sum) - expected).abs() <= tolerance, "{:?}: {} and {}", kind, expected, sum);
                prop_assert!(sums.iter().all(|others| others[index].to_bits() == sum.to_bits()), "{:?}", kind);
            }
        }
    }

    #[test]
    fn exact_sums_are_the_same_bits_for_every_grouping(
        shards in parts(),
        owners in prop::collection::vec(any::<usize>(), 5),
        world_size in 1..=5_usize,
    ) {
        let exact = |world_size: usize, owner: &(dyn Fn(usize) -> usize + Sync)| {
            run_ranks(world_size, |communicator| {
                let mine = |&(shard, _): &(usize, &Vec<f32>)| owner(shard) == communicator.rank();
                let mine: Vec<&[f32]> =
                    shards.iter().enumerate().filter(mine).map(|(_, shard)| &shard[..]).collect();
                let mut sums = vec![0.0; shards[0].len()];
                let mut reducer = ExactReducer::new(communicator.duplicate().unwrap()).unwrap();
                reducer.sum_shards(&mine, &mut sums).unwrap();
                sums.iter().map(|sum| sum.to_bits()).collect::<Vec<_>>()
            })
        };
        let alone = exact(1, &|_| 0);
        for sums in exact(world_size, &|shard| owners[shard] % world_size) {
            prop_assert_eq!(&sums, &alone[0]);
        }
    }
}

#[test]
fn groupings_of_many_shards_and_of_one_number_have_the_same_bits() {
    for world_size in 1..=5 {
        run_ranks(world_size, |communicator| {
            let communicator: Arc<dyn Communicator> = Arc::new(communicator);
            any_grouping_of_shards_gives_the_same_bits(&communicator, 1, 5000);
            any_grouping_of_shards_gives_the_same_bits(&communicator, 0, 3);
        });
    }
}

#[test]
fn exact_sums_of_extreme_magnitudes_do_not_overflow() {
    let extremes = [f32::MAX / 8.0, f32::MIN_POSITIVE, f32::from_bits(1), 0.0];
    for magnitude in extremes {
        let sums = run_ranks(4, |communicator| {
            let mut values = [magnitude, -magnitude, magnitude];
            ExactReducer::new(communicator.duplicate().unwrap())
                .unwrap()
                .sum(&mut values)
                .unwrap();
            values
        });
        assert_eq!(
            sums,
            [[4.0 * magnitude, -4.0 * magnitude, 4.0 * magnitude]; 4]
        );
    }
}
