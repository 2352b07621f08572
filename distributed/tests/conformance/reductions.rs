//! Checks of the all-reduce algorithms on every communicator.
//!
//! In: a communicator. Out: a panic at the first claim that does not hold.
//! Invariant: all ranks run the same checks in the same order.

use std::sync::Arc;

use distributed::Communicator;
use distributed::communicator::WaitPolicy;
use distributed::gradients::{AllReducer, ExactReducer, HierarchicalReducer, ReductionKind};

/// Lengths without, with one, with fewer elements than ranks, with a prime number, and over one
/// piece of every algorithm.
const LENGTHS: [usize; 5] = [0, 1, 3, 10_007, (1 << 18) + 3];

/// All algorithms.
pub(crate) const KINDS: [ReductionKind; 5] = [
    ReductionKind::Library,
    ReductionKind::Ring,
    ReductionKind::HalvingDoubling,
    ReductionKind::Hierarchical,
    ReductionKind::Exact,
];

/// Runs all checks; must be called by all ranks.
pub(crate) fn check(communicator: &dyn Communicator) {
    let duplicate = communicator.duplicate().unwrap();
    for kind in KINDS {
        let mut reducer = AllReducer::new(kind, Arc::clone(&duplicate)).unwrap();
        assert_eq!(reducer.kind(), kind);
        for wait_policy in [WaitPolicy::Spin, WaitPolicy::Sleep] {
            duplicate.set_wait_policy(wait_policy);
            for length in LENGTHS {
                let what = format!("{kind:?} of {length}");
                sums_are_right_and_equal(&*duplicate, length, &what, |values| {
                    reducer.sum(values).unwrap()
                });
            }
        }
        duplicate.set_wait_policy(WaitPolicy::Spin);
        numbers_that_are_not_finite_reach_all_ranks(&*duplicate, &mut reducer);
    }
    any_nodes_give_the_sum(&duplicate);
    any_grouping_of_shards_gives_the_same_bits(&duplicate, 1 << 17, 6);
}

fn value(rank: usize, index: usize) -> f32 {
    ((rank * 31 + index * 7) % 1009) as f32 / 64.0 - 5.3
}

fn expect_equal_bits(communicator: &dyn Communicator, values: &[f32], what: &str) {
    let bits: Vec<u8> = values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect();
    let gathered = communicator.all_gather(&bits).unwrap();
    assert!(
        gathered.iter().all(|others| *others == bits),
        "{what}: bits differ between ranks"
    );
}

pub(super) fn sums_are_right_and_equal(
    communicator: &dyn Communicator,
    length: usize,
    what: &str,
    mut sum: impl FnMut(&mut [f32]),
) {
    for shift in 0..2 {
        let mut values: Vec<f32> = (0..length)
            .map(|index| value(communicator.rank(), index + shift))
            .collect();
        sum(&mut values);
        for (index, &sum) in values.iter().enumerate() {
            let ranks = 0..communicator.world_size();
            let expected: f64 = ranks
                .map(|rank| f64::from(value(rank, index + shift)))
                .sum();
            let error = (f64::from(sum) - expected).abs();
            assert!(
                error < 1e-4,
                "{what}: element {index}: expected {expected}, got {sum}"
            );
        }
        expect_equal_bits(communicator, &values, what);
    }
}

fn numbers_that_are_not_finite_reach_all_ranks(
    communicator: &dyn Communicator,
    reducer: &mut AllReducer,
) {
    let last = communicator.rank() + 1 == communicator.world_size();
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut values = vec![1.0; 1000];
        if last {
            values[500] = bad;
        }
        reducer.sum(&mut values).unwrap();
        assert!(!values[500].is_finite(), "{:?} of {bad}", reducer.kind());
        expect_equal_bits(communicator, &values, "not finite");
    }
}

fn any_nodes_give_the_sum(communicator: &Arc<dyn Communicator>) {
    let world_size = communicator.world_size();
    for node_size in 1..=world_size {
        let in_turn: Vec<usize> = (0..world_size).map(|rank| rank / node_size).collect();
        let mixed: Vec<usize> = (0..world_size).map(|rank| rank % node_size).collect();
        for nodes in [in_turn, mixed] {
            let mut reducer =
                HierarchicalReducer::with_nodes(Arc::clone(communicator), &nodes).unwrap();
            for length in LENGTHS {
                let what = format!("nodes {nodes:?}, length {length}");
                sums_are_right_and_equal(&**communicator, length, &what, |values| {
                    reducer.sum(values).unwrap()
                });
            }
        }
    }
}

/// Numbers of very different magnitudes.
fn wild(shard: usize, index: usize) -> f32 {
    let bits = (shard as u64 + 1)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_mul(2 * index as u64 + 1);
    let fraction = (bits >> 40) as f32 / (1 << 24) as f32 - 0.5;
    fraction * 2.0_f32.powi(((bits >> 20) % 60) as i32 - 40)
}

/// Checks that the exact sum of `num_shards` shards is the same for all their distributions over
/// ranks, and right.
pub(crate) fn any_grouping_of_shards_gives_the_same_bits(
    communicator: &Arc<dyn Communicator>,
    length: usize,
    num_shards: usize,
) {
    let rank = communicator.rank();
    let world_size = communicator.world_size();
    let shards: Vec<Vec<f32>> = (0..num_shards)
        .map(|shard| (0..length).map(|index| wild(shard, index)).collect())
        .collect();
    let mut reducer = ExactReducer::new(Arc::clone(communicator)).unwrap();
    let mut sum_of = |owner: &dyn Fn(usize) -> usize| {
        let mine: Vec<&[f32]> = shards
            .iter()
            .enumerate()
            .filter(|&(shard, _)| owner(shard) == rank)
            .map(|(_, shard)| &shard[..])
            .collect();
        let mut sums = vec![1.0; length];
        reducer.sum_shards(&mine, &mut sums).unwrap();
        sums
    };
    let expected = sum_of(&|_| 0);
    for (index, &sum) in expected.iter().enumerate() {
        let exact: f64 = shards.iter().map(|shard| f64::from(shard[index])).sum();
        // All magnitudes are below 2^19, so a unit of the integers is at most 2^-32 of 1.
        let tolerance = exact.abs() * 1e-7 + num_shards as f64 * 2.0_f64.powi(-32);
        assert!(
            (f64::from(sum) - exact).abs() <= tolerance,
            "element {index}: expected {exact}, got {sum}"
        );
    }
    let groupings: [&dyn Fn(usize) -> usize; 4] = [
        &|shard| shard % world_size,
        &|shard| shard * world_size / num_shards,
        &|shard| (shard / 2) % world_size,
        &|_| world_size - 1,
    ];
    for (number, grouping) in groupings.iter().enumerate() {
        let sums = sum_of(grouping);
        let same = sums
            .iter()
            .zip(&expected)
            .all(|(a, b)| a.to_bits() == b.to_bits());
        assert!(
            same,
            "grouping {number} of {num_shards} shards differs in bits"
        );
    }
}
