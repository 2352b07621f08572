//! Checks of every communicator, from inside one of its ranks.
//!
//! In: a communicator. Out: a panic at the first claim that does not hold.
//! Invariant: all ranks run the same checks in the same order.
#![allow(clippy::unwrap_used, reason = "test code")]
#![allow(dead_code, reason = "not every test binary runs every check")]

pub(crate) mod messages;
pub(crate) mod reductions;

use distributed::Communicator;

/// Lengths without, with one, with many elements, and over a bucket of 1 MiB of `f32`.
const LENGTHS: [usize; 4] = [0, 1, 10_007, (1 << 18) + 3];

/// Runs all checks; must be called by all ranks.
pub(crate) fn check(communicator: &dyn Communicator) {
    ranks_agree_with_their_topology(communicator);
    collectives(communicator);
    messages::check(communicator);
    reductions::check(communicator);
}

/// Checks collectives.
fn collectives(communicator: &dyn Communicator) {
    for length in LENGTHS {
        sums_are_right_and_equal_on_all_ranks(communicator, length);
        integers_are_summed_exactly(communicator, length);
        every_root_can_broadcast(communicator, length);
        gathered_bytes_come_in_rank_order(communicator, length);
    }
    double_sums_keep_double_precision(communicator);
    integer_sums_wrap(communicator);
    special_values_pass(communicator);
    a_root_outside_the_world_is_refused(communicator);
    barriers_hold_in_a_row(communicator);
}

fn ranks_agree_with_their_topology(communicator: &dyn Communicator) {
    let rank = communicator.rank();
    let world_size = communicator.world_size();
    let topology = communicator.topology();
    assert!(rank < world_size);
    assert_eq!((topology.rank, topology.world_size), (rank, world_size));
    assert!(topology.local_rank < topology.local_size && topology.local_size <= world_size);
    assert!(topology.node_index < topology.num_nodes && topology.num_nodes <= world_size);
    assert!(!topology.node.is_empty() && !communicator.library().is_empty());
    let mine = format!(
        "{} {} {}",
        topology.node_index, topology.node, topology.local_rank
    );
    let mut places = communicator.all_gather(mine.as_bytes()).unwrap();
    assert_eq!(places[rank], mine.as_bytes());
    places.sort();
    places.dedup();
    assert_eq!(places.len(), world_size, "two ranks at one place");
}

fn sums_are_right_and_equal_on_all_ranks(communicator: &dyn Communicator, length: usize) {
    let sum = |values: &mut [f32]| communicator.all_reduce_sum(values).unwrap();
    reductions::sums_are_right_and_equal(
        communicator,
        length,
        &format!("all_reduce_sum of {length}"),
        sum,
    );
}

fn integers_are_summed_exactly(communicator: &dyn Communicator, length: usize) {
    let rank = communicator.rank() as u64;
    let world_size = communicator.world_size() as u64;
    let ranks_sum = world_size * (world_size - 1) / 2;
    let mut values: Vec<u64> = (0..length as u64)
        .map(|index| (1 << 40) + rank * index)
        .collect();
    communicator.all_reduce_sum_u64(&mut values).unwrap();
    for (index, &sum) in values.iter().enumerate() {
        assert_eq!(
            sum,
            world_size * (1 << 40) + ranks_sum * index as u64,
            "element {index} of {length}"
        );
    }
}

fn every_root_can_broadcast(communicator: &dyn Communicator, length: usize) {
    for root in 0..communicator.world_size() {
        let of = |rank: usize| -> Vec<u8> {
            (0..length).map(|index| (rank * 17 + index) as u8).collect()
        };
        let mut bytes = of(communicator.rank());
        communicator.broadcast(root, &mut bytes).unwrap();
        assert_eq!(bytes, of(root), "root {root}, {length} bytes");
    }
}

fn gathered_bytes_come_in_rank_order(communicator: &dyn Communicator, length: usize) {
    // Every rank brings another length, and the last one brings nothing.
    let world_size = communicator.world_size();
    let of = |rank: usize| {
        vec![
            rank as u8 + 1;
            if rank + 1 == world_size {
                0
            } else {
                length + rank
            }
        ]
    };
    let gathered = communicator.all_gather(&of(communicator.rank())).unwrap();
    assert_eq!(gathered, (0..world_size).map(of).collect::<Vec<_>>());
}

fn double_sums_keep_double_precision(communicator: &dyn Communicator) {
    let world_size = communicator.world_size() as f64;
    let mut values = [1.0 + 2.0_f64.powi(-40); 3];
    communicator.all_reduce_sum_f64(&mut values).unwrap();
    assert_eq!(values, [world_size * (1.0 + 2.0_f64.powi(-40)); 3]);
}

fn integer_sums_wrap(communicator: &dyn Communicator) {
    let world_size = communicator.world_size() as u64;
    let mut values = [u64::MAX];
    communicator.all_reduce_sum_u64(&mut values).unwrap();
    assert_eq!(values, [world_size.wrapping_neg()]);
}

fn special_values_pass(communicator: &dyn Communicator) {
    let last = communicator.rank() + 1 == communicator.world_size();
    let mut values = if last {
        [f32::NAN, f32::INFINITY, -0.0]
    } else {
        [1.0, 1.0, -0.0]
    };
    communicator.all_reduce_sum(&mut values).unwrap();
    assert!(values[0].is_nan());
    assert_eq!(values[1], f32::INFINITY);
    assert_eq!(values[2].to_bits(), (-0.0_f32).to_bits());
}

fn a_root_outside_the_world_is_refused(communicator: &dyn Communicator) {
    let world_size = communicator.world_size();
    let error = communicator.broadcast(world_size, &mut [1]).unwrap_err();
    let expected =
        format!("broadcast: expected a root below the world size {world_size}, got {world_size}");
    assert_eq!(error.to_string(), expected);
}

fn barriers_hold_in_a_row(communicator: &dyn Communicator) {
    for _ in 0..20 {
        communicator.barrier().unwrap();
    }
}
