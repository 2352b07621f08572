//! Claims about predicted training speed.

use distributed::gradients::{CompressionKind, Consistency, ReductionKind};
use records::{BucketRecord, ParameterRecord};
use simulate::{
    Link, NetworkModel, Prediction, Predictor, ServerPlacement, StepProfile, Synchronisation,
    predict, reduction_seconds,
};

const RING: ReductionKind = ReductionKind::Ring;

/// A step of 100 ms with 32 images and 25 MiB of gradients in five buckets.
pub(super) fn profile() -> StepProfile {
    let bucket = |index: u32| BucketRecord {
        ready_s: 0.01 * f64::from(index),
        bytes: 5 << 20,
    };
    StepProfile {
        forward_s: 0.03,
        backward_s: 0.05,
        buckets: (1..=5).map(bucket).collect(),
        optimizer_s: 0.01,
        other_s: 0.01,
        batch_size_per_rank: 32,
        straggler_spread_s: 0.0,
        parameters: Vec::new(),
    }
}

pub(super) fn network(text: &str) -> NetworkModel {
    text.parse().unwrap()
}

fn predicted(network: &NetworkModel, ranks: usize, overlap: bool) -> Prediction {
    predict(&profile(), RING, network, ranks, overlap).unwrap()
}

pub(super) fn servers(
    servers: usize,
    placement: ServerPlacement,
    consistency: Consistency,
) -> Synchronisation {
    Synchronisation::ParameterServer {
        servers,
        placement,
        consistency,
    }
}

/// Returns the time of exchanging headers of 34 bytes in log2(ranks) rounds.
fn header_s(network: &NetworkModel, ranks: f64) -> f64 {
    ranks.log2() * network.link.alpha + (ranks - 1.0) * 34.0 * network.link.beta
}

pub(super) const ASYNCHRONOUS: Consistency = Consistency::Asynchronous { bound: None };

#[track_caller]
pub(super) fn assert_close(got: f64, expected: f64) {
    assert!(
        (got - expected).abs() <= 1e-12 * expected.abs(),
        "expected {expected}, got {got}"
    );
}

#[test]
fn one_rank_is_as_fast_as_its_profile() {
    for synchronisation in [
        Synchronisation::from(RING),
        servers(2, ServerPlacement::Own, Consistency::Synchronous),
        servers(1, ServerPlacement::Beside, ASYNCHRONOUS),
        Synchronisation::LocalSgd { every: 4 },
        Synchronisation::Compressed {
            kind: CompressionKind::Bf16,
            encoding_s_per_byte: 1.0,
        },
    ] {
        for overlap in [false, true] {
            let prediction =
                predict(&profile(), synchronisation, &network("1gbe"), 1, overlap).unwrap();
            assert_close(prediction.step_s, 0.1);
            assert_close(prediction.images_per_second, 320.0);
            assert_eq!(
                (prediction.communication_s, prediction.exposed_s),
                (0.0, 0.0)
            );
            assert_eq!((prediction.speedup, prediction.efficiency), (1.0, 1.0));
        }
    }
}

#[test]
fn without_overlap_all_communication_is_exposed() {
    let network = network("10gbe");
    let bucket = reduction_seconds(RING, &network, 4, 5 << 20).unwrap();
    let prediction = predicted(&network, 4, false);
    let travel = header_s(&network, 4.0) + 5.0 * bucket;
    assert_close(prediction.communication_s, travel);
    assert_close(prediction.exposed_s, travel);
    assert_close(prediction.step_s, 0.1 + travel);
    assert_close(prediction.images_per_second, 128.0 / prediction.step_s);
    assert_close(prediction.speedup, 0.4 / prediction.step_s);
}

#[test]
fn overlap_hides_all_but_the_last_bucket_if_each_fits_between_two() {
    let network = network("10gbe");
    let bucket = reduction_seconds(RING, &network, 4, 5 << 20).unwrap();
    assert!(bucket < 0.01, "the test's premise");
    assert_close(predicted(&network, 4, true).exposed_s, bucket);
    // Nothing is exposed if the last bucket is full early enough.
    let mut early = profile();
    early.backward_s = 0.06;
    let prediction = predict(&early, RING, &network, 4, true).unwrap();
    assert_eq!((prediction.exposed_s, prediction.efficiency), (0.0, 1.0));
}

#[test]
fn overlap_on_a_slow_network_ends_after_all_buckets_in_sequence() {
    let network = network("1gbe");
    let bucket = reduction_seconds(RING, &network, 4, 5 << 20).unwrap();
    assert!(bucket > 0.01, "the test's premise");
    assert_close(
        predicted(&network, 4, true).exposed_s,
        0.01 + 5.0 * bucket - 0.05,
    );
}

#[test]
fn efficiency_grows_with_bandwidth_and_falls_with_latency() {
    for overlap in [false, true] {
        let efficiency = |alpha: f64, bandwidth: f64| {
            predicted(&NetworkModel::new(Link::new(alpha, bandwidth)), 32, overlap).efficiency
        };
        let by_bandwidth =
            [1e7, 1e8, 2e8, 1e9, 4e9, 1e10].map(|bandwidth| efficiency(1e-5, bandwidth));
        assert!(by_bandwidth.is_sorted(), "{by_bandwidth:?}");
        assert!(
            by_bandwidth[0] < 0.05 && by_bandwidth[5] > 0.8,
            "{by_bandwidth:?}"
        );
        let by_latency = [1e-2, 1e-3, 1e-4, 1e-5, 0.0].map(|alpha| efficiency(alpha, 1e9));
        assert!(by_latency.is_sorted(), "{by_latency:?}");
    }
    for ranks in [2, 4, 8, 16] {
        let overlapped = predicted(&network("1gbe"), ranks, true);
        let serial = predicted(&network("1gbe"), ranks, false);
        assert!(overlapped.efficiency > serial.efficiency);
        assert!(serial.efficiency > predicted(&network("1gbe"), 2 * ranks, false).efficiency);
    }
}

#[test]
fn local_sgd_after_every_step_is_an_all_reduce_of_parameters_and_velocities() {
    let network = network("1gbe");
    let whole = reduction_seconds(ReductionKind::Library, &network, 8, 25 << 20).unwrap();
    let step = |every| {
        predict(
            &profile(),
            Synchronisation::LocalSgd { every },
            &network,
            8,
            true,
        )
        .unwrap()
        .step_s
    };
    assert_close(step(1), 0.1 + header_s(&network, 8.0) + 2.0 * whole);
    assert_close(step(10) - 0.1, (step(1) - 0.1) / 10.0);
}

#[test]
fn half_of_the_bytes_take_half_of_the_time_and_encoding_is_added() {
    // Without latency, and with a power of two of ranks, the algorithms send the same bytes.
    let network = NetworkModel::new(Link {
        alpha: 0.0,
        beta: 1e-8,
    });
    let seconds = |synchronisation: Synchronisation| {
        let prediction = predict(&profile(), synchronisation, &network, 8, false).unwrap();
        prediction.communication_s - header_s(&network, 8.0)
    };
    let compressed = |encoding_s_per_byte| {
        seconds(Synchronisation::Compressed {
            kind: CompressionKind::Bf16,
            encoding_s_per_byte,
        })
    };
    assert!((compressed(0.0) / seconds(RING.into()) - 0.5).abs() < 1e-6);
    assert!((compressed(1e-9) - compressed(0.0) - 1e-9 * f64::from(25 << 20)).abs() < 1e-9);
}

#[test]
fn a_burst_covers_what_ranks_send_to_other_nodes() {
    // Bytes that a burst saves, in units of the 25 MiB of gradients.
    let saved = |kind, nodes: &str| {
        let exposed = |burst: &str| {
            let network = network(&format!("0us,500MB/s{burst}{nodes}"));
            predict(&profile(), kind, &network, 4, false)
                .unwrap()
                .exposed_s
        };
        (exposed("") - exposed(",1000MB")) * 500e6 / f64::from(25 << 20)
    };
    let near = |got: f64, expected: f64| {
        assert!(
            (got - expected).abs() < 1e-3,
            "expected {expected}, got {got}"
        )
    };
    near(saved(RING, ""), 1.5);
    near(saved(ReductionKind::Exact, ""), 3.0);
    near(saved(ReductionKind::Hierarchical, "@2:shared"), 1.0);
    near(saved(ReductionKind::Exact, "@2:shared"), 2.0);
}

#[test]
fn a_burst_hides_the_end_of_what_a_limited_network_sends() {
    let exposed = |text: &str| {
        predict(&profile(), RING, &network(text), 2, false)
            .unwrap()
            .exposed_s
    };
    let limited = exposed("10us,500MB/s");
    let bursts = exposed("10us,500MB/s,1MB");
    // Buckets of 5 MiB take 10.5 ms each, without a pause, so one burst passes per step.
    assert!(
        (limited - bursts - 1e6 / 500e6).abs() < 1e-9,
        "{limited} and {bursts}"
    );
    let served = |text: &str| {
        predict(
            &profile(),
            servers(1, ServerPlacement::Own, ASYNCHRONOUS),
            &network(text),
            2,
            true,
        )
        .unwrap()
        .step_s
    };
    assert!(served("10us,50MB/s,1MB") < served("10us,50MB/s"));
}

#[test]
fn reductions_slow_the_backward_pass_by_the_networks_share() {
    let fast = network("10gbe");
    let slow = network("10gbe,0KB,25%");
    let bucket = reduction_seconds(RING, &fast, 4, 5 << 20).unwrap();
    // Four buckets are reduced during the backward pass, the last one after it.
    let behind = 0.25 * 4.0 * bucket;
    assert_close(
        predicted(&slow, 4, true).exposed_s,
        predicted(&fast, 4, true).exposed_s + behind,
    );
    assert_eq!(predicted(&slow, 4, false), predicted(&fast, 4, false));
    // Sums that are slower by a fifth slow the backward pass by a fifth more; that is not waiting.
    let slower = predicted(&network("10gbe,0KB,25%,1.2x"), 4, true);
    let quick = predicted(&fast, 4, true);
    assert_close(slower.exposed_s, quick.exposed_s + 1.2 * behind);
    assert_close(
        slower.communication_s,
        quick.communication_s + 4.0 * 0.2 * bucket,
    );
    assert_close(slower.waiting_s, quick.waiting_s);
    let inside = network("10gbe,0KB,25%@4");
    assert_eq!(
        predicted(&inside, 4, true),
        predicted(&network("10gbe@4"), 4, true)
    );
    // Buckets so small that workers compute most of the time.
    let mut small = profile();
    small
        .buckets
        .iter_mut()
        .for_each(|bucket| bucket.bytes /= 16);
    let servers = servers(1, ServerPlacement::Own, Consistency::Synchronous);
    let step = |network| predict(&small, servers, network, 2, true).unwrap().step_s;
    assert!(
        step(&slow) > step(&fast),
        "{} against {}",
        step(&slow),
        step(&fast)
    );
}

/// Matrices of 64 by 576, whose gradients come from the last to the first.
fn with_parameters() -> StepProfile {
    let parameter = |index: u32| ParameterRecord {
        name: format!("conv{index}"),
        shape: vec![64, 64, 3, 3],
        ready_s: 0.05 - 0.005 * f64::from(index),
    };
    StepProfile {
        parameters: (0..8).map(parameter).collect(),
        ..profile()
    }
    .with_bucket_cap(1 << 19)
}

#[test]
fn buckets_of_known_parameters_are_those_of_training() {
    let profile = with_parameters();
    // 147,456 bytes each: one in the first bucket of 256 KiB, three in each of 512 KiB.
    let bytes = profile
        .buckets
        .iter()
        .map(|bucket| bucket.bytes / 147_456)
        .collect::<Vec<_>>();
    assert_eq!(bytes, [1, 3, 3, 1]);
    let ready = profile
        .buckets
        .iter()
        .map(|bucket| bucket.ready_s)
        .collect::<Vec<_>>();
    ready
        .into_iter()
        .zip([0.015, 0.03, 0.045, 0.05])
        .for_each(|(got, expected)| assert_close(got, expected));
}

#[test]
fn factors_and_largest_elements_send_what_their_compressors_send() {
    let network = NetworkModel::new(Link {
        alpha: 0.0,
        beta: 1e-8,
    });
    let seconds = |kind| {
        let method = Synchronisation::Compressed {
            kind,
            encoding_s_per_byte: 0.0,
        };
        let prediction = predict(&with_parameters(), method, &network, 4, false).unwrap();
        prediction.communication_s - header_s(&network, 4.0)
    };
    // An all-reduce sends 2 (N-1)/N of rank (64 + 576) numbers a matrix; the gather 3 times 8
    // bytes for 1 % of the elements.
    let factors = 1.5 * 8.0 * 4.0 * 640.0 * 4.0 * 1e-8;
    assert!((seconds(CompressionKind::PowerSgd { rank: 4 }) / factors - 1.0).abs() < 1e-3);
    let largest = 3.0 * 8.0 * 8.0 * 368.64 * 1e-8;
    assert!((seconds(CompressionKind::TopK { percent: 1.0 }) / largest - 1.0).abs() < 0.01);
}

#[test]
fn interpolated_times_are_close_to_simulated_ones() {
    for kind in [RING, ReductionKind::HalvingDoubling] {
        let seconds = |ranks| reduction_seconds(kind, &network("10gbe"), ranks, 3 << 20).unwrap();
        // Simulated on 63 ranks, interpolated on 65.
        let below = seconds(63);
        let above = seconds(65);
        if kind == RING {
            assert!(below < above && above < 1.06 * below, "{below} and {above}");
        }
        assert!(above < 1.6 * below, "{below} and {above}");
    }
}

#[test]
fn ranks_wait_for_the_slowest() {
    let mut uneven = profile();
    uneven.straggler_spread_s = 0.01;
    let prediction = predict(&uneven, RING, &network("ib-edr"), 64, true).unwrap();
    let even = predicted(&network("ib-edr"), 64, true);
    // The largest of 64 normal numbers lies 2.344 standard deviations above their mean.
    assert!(
        (prediction.step_s - even.step_s - 0.02344).abs() < 1e-5,
        "{}",
        prediction.step_s - even.step_s
    );
    let asynchronous = servers(1, ServerPlacement::Own, ASYNCHRONOUS);
    let [waits, apart] = [&profile(), &uneven].map(|profile| {
        predict(profile, asynchronous, &network("ib-edr"), 4, true)
            .unwrap()
            .step_s
    });
    assert_eq!(
        waits, apart,
        "asynchronous workers do not wait for the slowest"
    );
    assert_eq!(prediction.exposed_s, even.exposed_s);
    assert_eq!(
        predict(&uneven, RING, &network("ib-edr"), 1, true)
            .unwrap()
            .efficiency,
        1.0
    );
}

#[test]
fn other_buckets_hold_the_same_gradients_and_are_full_in_between() {
    let profile = profile();
    assert_eq!(profile.with_bucket_bytes(5 << 20).buckets.len(), 5);
    let whole = BucketRecord {
        ready_s: 0.05,
        bytes: 25 << 20,
    };
    assert_eq!(profile.with_bucket_bytes(1 << 30).buckets, [whole]);
    let cut = profile.with_bucket_bytes(10 << 20).buckets;
    assert_eq!(
        cut.iter()
            .map(|bucket| bucket.bytes >> 20)
            .collect::<Vec<_>>(),
        [10, 10, 5]
    );
    let ready = [0.02, 0.04, 0.05];
    cut.iter()
        .zip(ready)
        .for_each(|(bucket, ready_s)| assert_close(bucket.ready_s, ready_s));
    let small = profile.with_bucket_bytes(5 << 18).buckets;
    assert_close(small[1].ready_s, 0.005);
    assert_eq!(StepProfile::default().with_bucket_bytes(1).buckets, []);
}

#[test]
fn the_best_buckets_are_small_if_latency_is_and_beat_all_others() {
    let best = |alpha: f64| {
        let network = NetworkModel::new(Link::new(alpha, 1e9));
        let mut predictor = Predictor::new(&profile(), RING, &network, 8).unwrap();
        let (bytes, prediction) = predictor.best_bucket_bytes(&profile()).unwrap();
        for other in (16..26).map(|bits| 1 << bits) {
            let other =
                predict(&profile().with_bucket_bytes(other), RING, &network, 8, true).unwrap();
            assert!(prediction.step_s <= other.step_s);
        }
        bytes
    };
    let by_latency = [0.0, 1e-5, 1e-4, 1e-3, 1e-1].map(best);
    assert!(by_latency.is_sorted(), "{by_latency:?}");
    // Longer buckets make no fewer messages: a ring sends slices in segments of 256 KiB.
    assert_eq!((by_latency[0], by_latency[4]), (1 << 16, 8 << 18));
}

#[test]
fn impossible_worlds_and_profiles_are_refused() {
    let refused = |profile: &StepProfile, synchronisation: Synchronisation, ranks: usize| {
        predict(profile, synchronisation, &network("1gbe"), ranks, true)
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        refused(&profile(), RING.into(), 0),
        "simulation: expected at least one rank, got none"
    );
    let none = servers(0, ServerPlacement::Own, ASYNCHRONOUS);
    assert_eq!(
        refused(&profile(), none, 2),
        "simulation: expected at least one server, got none"
    );
    let many = servers(3, ServerPlacement::Beside, ASYNCHRONOUS);
    assert!(refused(&profile(), many, 2).contains("got 3 servers and 2 ranks"));
    let mut negative = profile();
    negative.buckets[2].ready_s = -0.5;
    assert_eq!(
        refused(&negative, RING.into(), 2),
        "step profile: expected ready_s finite and not negative, got -0.5"
    );
    let empty = StepProfile::default();
    assert_eq!(
        refused(&empty, RING.into(), 2),
        "step profile: expected a finite step longer than 0 s, got 0"
    );
}

#[test]
fn two_to_a_thousand_ranks_have_an_efficiency_of_at_most_one() {
    for ranks in (1..=10).map(|bits| 1 << bits) {
        let ring = predicted(&network("ib-edr"), ranks, true);
        let halving = predict(
            &profile(),
            ReductionKind::HalvingDoubling,
            &network("ib-edr"),
            ranks,
            true,
        )
        .unwrap();
        for efficiency in [ring.efficiency, halving.efficiency] {
            assert!(
                efficiency > 0.0 && efficiency <= 1.0,
                "{ranks} ranks: {efficiency}"
            );
        }
    }
}
