//! Times of the all-reduce algorithms: closed forms.

use distributed::gradients::ReductionKind;
use simulate::{Link, NetworkModel, reduction_seconds};

const KINDS: [ReductionKind; 5] = [
    ReductionKind::Library,
    ReductionKind::Ring,
    ReductionKind::HalvingDoubling,
    ReductionKind::Hierarchical,
    ReductionKind::Exact,
];

/// Powers of two, with which times are exact.
const ALPHA: f64 = 1.0 / 16384.0;
const BETA: f64 = 1.0 / (1 << 30) as f64;

/// One rank a node.
const FLAT: NetworkModel = NetworkModel::new(Link {
    alpha: ALPHA,
    beta: BETA,
});

fn nodes(ranks: usize) -> NetworkModel {
    FLAT.with_nodes(
        ranks,
        Link {
            alpha: ALPHA / 64.0,
            beta: BETA / 4.0,
        },
    )
}

fn shared(ranks: usize) -> NetworkModel {
    nodes(ranks).with_shared_memory()
}

fn seconds(kind: ReductionKind, network: &NetworkModel, ranks: usize, bytes: u64) -> f64 {
    reduction_seconds(kind, network, ranks, bytes).unwrap()
}

#[track_caller]
fn assert_close(got: f64, expected: f64, relative: f64) {
    assert!(
        (got - expected).abs() <= relative * expected,
        "expected {expected}, got {got}"
    );
}

#[test]
fn a_ring_takes_two_messages_a_slice_but_one() {
    for ranks in [2, 3, 4, 7, 16, 64, 1024] {
        let bytes = ranks as u64 * 4096;
        let expected = 2.0 * (ranks - 1) as f64 * (ALPHA + BETA * 4096.0);
        assert_eq!(seconds(ReductionKind::Ring, &FLAT, ranks, bytes), expected);
    }
}

#[test]
fn a_ring_sends_long_slices_in_segments() {
    // 8 MiB a slice, in segments of 256 KiB.
    let expected = |ranks: f64| 2.0 * (ranks - 1.0) * (32.0 * ALPHA + BETA * f64::from(8 << 20));
    assert_eq!(
        seconds(ReductionKind::Ring, &FLAT, 2, 16 << 20),
        expected(2.0)
    );
    // The same where each element represents 32.
    assert_eq!(
        seconds(ReductionKind::Ring, &FLAT, 64, 512 << 20),
        expected(64.0)
    );
}

#[test]
fn halving_and_doubling_takes_two_messages_a_bit() {
    for (ranks, bits) in [(2, 1.0), (4, 2.0), (16, 4.0), (256, 8.0), (1024, 10.0)] {
        let bytes = ranks * 65536;
        let expected = 2.0 * (bits * ALPHA + BETA * ((ranks - 1) * 65536) as f64);
        assert_eq!(
            seconds(ReductionKind::HalvingDoubling, &FLAT, ranks as usize, bytes),
            expected
        );
    }
    // Ranks beyond a power of two bring their values first and get the sum last.
    let extra = 2.0 * (ALPHA + BETA * 65536.0);
    for ranks in [5, 6, 7] {
        let expected = extra + seconds(ReductionKind::HalvingDoubling, &FLAT, 4, 65536);
        assert_eq!(
            seconds(ReductionKind::HalvingDoubling, &FLAT, ranks, 65536),
            expected
        );
    }
}

#[test]
fn nodes_sum_at_their_first_rank_and_these_in_a_ring() {
    for (each, num_nodes) in [(2, 2), (4, 2), (8, 4), (8, 128)] {
        let bytes = num_nodes as u64 * 8192;
        let inside = ALPHA / 64.0 + BETA / 4.0 * bytes as f64;
        let ring = 2.0 * (num_nodes - 1) as f64 * (ALPHA + BETA * 8192.0);
        let expected = 2.0 * (each - 1) as f64 * inside + ring;
        assert_eq!(
            seconds(
                ReductionKind::Hierarchical,
                &nodes(each),
                each * num_nodes,
                bytes
            ),
            expected
        );
    }
    // Without nodes all ranks are first ranks, and on one node all are in one ring.
    let ring = seconds(ReductionKind::Ring, &FLAT, 6, 60_000);
    assert_eq!(seconds(ReductionKind::Hierarchical, &FLAT, 6, 60_000), ring);
    let ring = seconds(ReductionKind::Ring, &nodes(6), 6, 60_000);
    assert_eq!(
        seconds(ReductionKind::Hierarchical, &nodes(6), 6, 60_000),
        ring
    );
}

#[test]
fn nodes_with_shared_memory_meet_twice_a_piece() {
    // Ten pieces of 512 KiB.
    let expected = |each: usize, num_nodes: usize| {
        let piece = f64::from(512 << 10);
        let share = (each - 1) as f64 / each as f64;
        let meeting = if each == 1 {
            0.0
        } else {
            ALPHA / 64.0 + BETA / 4.0 * share * piece
        };
        let ring = 2.0 * (num_nodes - 1) as f64 * (ALPHA + BETA * piece / num_nodes as f64);
        10.0 * (2.0 * meeting + ring)
    };
    let got = |each, num_nodes| {
        seconds(
            ReductionKind::Hierarchical,
            &shared(each),
            each * num_nodes,
            5120 << 10,
        )
    };
    for (each, num_nodes) in [(4, 1), (1, 4), (2, 2)] {
        assert_eq!(got(each, num_nodes), expected(each, num_nodes));
    }
    // Where each element represents ten, pieces differ by some elements.
    assert_close(got(8, 16), expected(8, 16), 1e-3);
}

#[test]
fn a_library_takes_the_better_of_two_algorithms() {
    let expected = 3.0 * (ALPHA + BETA * 64.0);
    assert_eq!(seconds(ReductionKind::Library, &FLAT, 8, 64), expected);
    let expected = 2.0 * (3.0 * ALPHA + 7.0 / 8.0 * BETA * f64::from(1 << 22));
    assert_eq!(seconds(ReductionKind::Library, &FLAT, 8, 1 << 22), expected);
}

#[test]
fn one_rank_and_no_bytes_take_no_time() {
    for kind in KINDS {
        assert_eq!(seconds(kind, &FLAT, 1, 1 << 20), 0.0, "{kind:?}");
    }
    assert_eq!(seconds(ReductionKind::Ring, &FLAT, 8, 0), 0.0);
    let error = reduction_seconds(ReductionKind::Ring, &FLAT, 0, 1).unwrap_err();
    assert_eq!(
        error.to_string(),
        "simulation: expected at least one rank, got none"
    );
}

#[test]
fn a_thousand_ranks_are_simulated_and_take_at_least_what_a_node_must_receive() {
    let bytes = 25 << 20;
    for (kind, network) in KINDS
        .into_iter()
        .flat_map(|kind| [(kind, "ib-edr@8"), (kind, "ib-edr@8:shared")])
    {
        let network: NetworkModel = network.parse().unwrap();
        let predicted = seconds(kind, &network, 1024, bytes);
        // The sum of all other nodes, by the links of its eight ranks.
        let least = network.link.alpha + network.link.beta * bytes as f64 / 8.0;
        assert!(
            predicted >= least && predicted.is_finite(),
            "{kind:?}: {predicted} s, expected at least {least} s"
        );
    }
}
