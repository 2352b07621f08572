//! Claims about predicted training speed.

use distributed::gradients::{CompressionKind, Consistency, ReductionKind};
use records::{BucketRecord, ParameterRecord};
use simulate::{
    Link, NetworkModel, Prediction, Predictor, ServerPlacement, StepProfile, Synchronisation,
    predict, reduction_seconds,
};

const RING: ReductionKind = ReductionKind::Ring;

/// Bytes of a bucket of [`profile`].
const BUCKET: u64 = 5 << 20;

/// A step of 100 ms with 32 images and 25 MiB of gradients in five buckets of one parameter.
pub(super) fn profile() -> StepProfile {
    let bucket = |index: u32| BucketRecord {
        ready_s: 0.01 * f64::from(index),
        bytes: BUCKET,
    };
    StepProfile {
        forward_s: 0.03,
        backward_s: 0.05,
        buckets: (1..=5).map(bucket).collect(),
        optimizer_s: 0.01,
        other_s: 0.01,
        batch_size_per_rank: 32,
        straggler_spread_s: 0.0,
        parameters: parameters(5, &[(BUCKET / 4) as usize]),
    }
}

/// Returns parameters whose gradients come from the last to the first, evenly until 50 ms.
fn parameters(count: usize, shape: &[usize]) -> Vec<ParameterRecord> {
    let parameter = |index: usize| ParameterRecord {
        name: format!("conv{index}"),
        shape: shape.to_vec(),
        ready_s: 0.05 * (count - index) as f64 / count as f64,
    };
    (0..count).map(parameter).collect()
}

pub(super) fn network(text: &str) -> NetworkModel {
    text.parse().unwrap()
}

/// Predicts steps of [`profile`] over a network with this text.
fn predicted(
    method: impl Into<Synchronisation>,
    text: &str,
    ranks: usize,
    overlap: bool,
) -> Prediction {
    predict(&profile(), method, &network(text), ranks, overlap).unwrap()
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

fn compressed(kind: CompressionKind, encoding_s_per_byte: f64) -> Synchronisation {
    Synchronisation::Compressed {
        kind,
        encoding_s_per_byte,
    }
}

/// Returns the time of exchanging headers of 34 bytes in log2(ranks) rounds.
fn header_s(network: &NetworkModel, ranks: f64) -> f64 {
    ranks.log2() * network.link.alpha + (ranks - 1.0) * 34.0 * network.link.beta
}

pub(super) const ASYNCHRONOUS: Consistency = Consistency::Asynchronous { bound: None };

#[track_caller]
pub(super) fn assert_close(got: f64, expected: f64) {
    assert_within(got, expected, 1e-12 * expected.abs());
}

#[track_caller]
fn assert_within(got: f64, expected: f64, tolerance: f64) {
    assert!(
        (got - expected).abs() <= tolerance,
        "expected {expected}, got {got}"
    );
}

#[test]
fn one_rank_is_as_fast_as_its_profile() {
    for method in [
        RING.into(),
        servers(2, ServerPlacement::Own, Consistency::Synchronous),
        servers(1, ServerPlacement::Beside, ASYNCHRONOUS),
        Synchronisation::LocalSgd { every: 4 },
        compressed(CompressionKind::Bf16, 1.0),
    ] {
        for overlap in [false, true] {
            let prediction = predicted(method, "1gbe", 1, overlap);
            assert_close(prediction.step_s, 0.1);
            assert_close(prediction.images_per_second, 320.0);
            let costs = (prediction.communication_s, prediction.exposed_s);
            assert_eq!(costs, (0.0, 0.0));
            assert_eq!((prediction.speedup, prediction.efficiency), (1.0, 1.0));
        }
    }
}

#[test]
fn communication_is_exposed_after_the_backward_pass_and_where_buckets_overtake_it() {
    let seconds = |text: &str| reduction_seconds(RING, &network(text), 4, BUCKET).unwrap();
    let serial = predicted(RING, "10gbe", 4, false);
    let travel = header_s(&network("10gbe"), 4.0) + 5.0 * seconds("10gbe");
    assert_close(serial.communication_s, travel);
    assert_close(serial.exposed_s, travel);
    assert_close(serial.step_s, 0.1 + travel);
    assert_close(serial.images_per_second, 128.0 / serial.step_s);
    assert_close(serial.speedup, 0.4 / serial.step_s);
    // Each bucket fits between two on the fast network, and none does on the slow one.
    assert!(seconds("10gbe") < 0.01 && seconds("1gbe") > 0.01);
    let fast = predicted(RING, "10gbe", 4, true);
    assert_close(fast.exposed_s, seconds("10gbe"));
    let slow = predicted(RING, "1gbe", 4, true);
    assert_close(slow.exposed_s, 0.01 + 5.0 * seconds("1gbe") - 0.05);
    // Nothing is exposed if the last bucket is full early enough.
    let early = StepProfile {
        backward_s: 0.06,
        ..profile()
    };
    let prediction = predict(&early, RING, &network("10gbe"), 4, true).unwrap();
    assert_eq!((prediction.exposed_s, prediction.efficiency), (0.0, 1.0));
}

#[test]
fn efficiency_grows_with_bandwidth_and_falls_with_latency_and_ranks() {
    for overlap in [false, true] {
        let efficiency = |alpha: f64, bandwidth: f64| {
            let network = NetworkModel::new(Link::new(alpha, bandwidth));
            let prediction = predict(&profile(), RING, &network, 32, overlap);
            prediction.unwrap().efficiency
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
        let of = |ranks, overlap| predicted(RING, "1gbe", ranks, overlap).efficiency;
        assert!(of(ranks, true) > of(ranks, false));
        assert!(of(ranks, false) > of(2 * ranks, false));
    }
    for ranks in (1..=10).map(|bits| 1 << bits) {
        for kind in [RING, ReductionKind::HalvingDoubling] {
            let efficiency = predicted(kind, "ib-edr", ranks, true).efficiency;
            assert!(
                efficiency > 0.0 && efficiency <= 1.0,
                "{ranks}: {efficiency}"
            );
        }
    }
}

#[test]
fn local_sgd_after_every_step_is_an_all_reduce_of_parameters_and_velocities() {
    let network = network("1gbe");
    let whole = reduction_seconds(ReductionKind::Library, &network, 8, 5 * BUCKET).unwrap();
    let step = |every| predicted(Synchronisation::LocalSgd { every }, "1gbe", 8, true).step_s;
    assert_close(step(1), 0.1 + header_s(&network, 8.0) + 2.0 * whole);
    assert_close(step(10) - 0.1, (step(1) - 0.1) / 10.0);
}

/// Without latency, and with a power of two of ranks, the algorithms send the same bytes.
const BANDWIDTH_ONLY: NetworkModel = NetworkModel::new(Link {
    alpha: 0.0,
    beta: 1e-8,
});

/// Returns the time of sums without headers.
fn sum_seconds(profile: &StepProfile, method: Synchronisation, ranks: usize) -> f64 {
    let prediction = predict(profile, method, &BANDWIDTH_ONLY, ranks, false).unwrap();
    prediction.communication_s - header_s(&BANDWIDTH_ONLY, ranks as f64)
}

#[test]
fn compressors_send_their_bytes_and_encoding_is_added() {
    let half = |encoding_s| compressed(CompressionKind::Bf16, encoding_s);
    let [whole, plain, encoded] =
        [RING.into(), half(0.0), half(1e-9)].map(|method| sum_seconds(&profile(), method, 8));
    assert_within(plain / whole, 0.5, 1e-6);
    assert_within(encoded - plain, 1e-9 * (5 * BUCKET) as f64, 1e-9);
    // An all-reduce sends 2 (N-1)/N of rank (64 + 576) numbers a matrix; the gather 3 times 8
    // bytes for 1 % of the elements.
    for (kind, seconds) in [
        (
            CompressionKind::PowerSgd { rank: 4 },
            1.5 * 10.0 * 4.0 * 640.0 * 4.0 * 1e-8,
        ),
        (
            CompressionKind::TopK { percent: 1.0 },
            3.0 * 8.0 * 10.0 * 368.64 * 1e-8,
        ),
    ] {
        let got = sum_seconds(&with_parameters(), compressed(kind, 0.0), 4);
        assert_within(got / seconds, 1.0, 0.01);
    }
}

#[test]
fn a_burst_covers_bytes_to_other_nodes_once_per_step() {
    // Bytes that a burst saves, in units of the 25 MiB of gradients.
    for (kind, nodes, expected) in [
        (RING, "", 1.5),
        (ReductionKind::Exact, "", 3.0),
        (ReductionKind::Hierarchical, "@2:shared", 1.0),
        (ReductionKind::Exact, "@2:shared", 2.0),
    ] {
        let exposed = |burst: &str| {
            predicted(kind, &format!("0us,500MB/s{burst}{nodes}"), 4, false).exposed_s
        };
        let saved = (exposed("") - exposed(",1000MB")) * 500e6 / (5 * BUCKET) as f64;
        assert_within(saved, expected, 1e-3);
    }
    // Buckets of 5 MiB take 10.5 ms each, without a pause, so one burst passes per step.
    let exposed = |text| predicted(RING, text, 2, false).exposed_s;
    let saved = exposed("10us,500MB/s") - exposed("10us,500MB/s,1MB");
    assert_within(saved, 1e6 / 500e6, 1e-9);
    let method = servers(1, ServerPlacement::Own, ASYNCHRONOUS);
    let served = |text| predicted(method, text, 2, true).step_s;
    assert!(served("10us,50MB/s,1MB") < served("10us,50MB/s"));
}

#[test]
fn reductions_slow_the_backward_pass_by_the_share_of_the_network() {
    let fast = predicted(RING, "10gbe", 4, true);
    let bucket = reduction_seconds(RING, &network("10gbe"), 4, BUCKET).unwrap();
    // Four buckets are reduced during the backward pass, the last one after it.
    let behind = 0.25 * 4.0 * bucket;
    let slow = predicted(RING, "10gbe,0KB,25%", 4, true);
    assert_close(slow.exposed_s, fast.exposed_s + behind);
    let serial = |text| predicted(RING, text, 4, false);
    assert_eq!(serial("10gbe,0KB,25%"), serial("10gbe"));
    // Sums that are slower by a fifth slow the backward pass by a fifth more; that is not waiting.
    let slower = predicted(RING, "10gbe,0KB,25%,1.2x", 4, true);
    assert_close(slower.exposed_s, fast.exposed_s + 1.2 * behind);
    let longer = slower.communication_s - fast.communication_s;
    assert_within(longer, 4.0 * 0.2 * bucket, 1e-12);
    assert_close(slower.waiting_s, fast.waiting_s);
    let inside = |text| predicted(RING, text, 4, true);
    assert_eq!(inside("10gbe,0KB,25%@4"), inside("10gbe@4"));
    // Buckets so small that workers compute most of the time.
    let mut small = profile();
    small
        .buckets
        .iter_mut()
        .for_each(|bucket| bucket.bytes /= 16);
    let method = servers(1, ServerPlacement::Own, Consistency::Synchronous);
    let step = |text| {
        predict(&small, method, &network(text), 2, true)
            .unwrap()
            .step_s
    };
    assert!(step("10gbe,0KB,25%") > step("10gbe"));
}

/// Ten matrices of 64 by 576.
fn with_parameters() -> StepProfile {
    StepProfile {
        parameters: parameters(10, &[64, 64, 3, 3]),
        ..profile()
    }
    .with_bucket_cap(1 << 19)
}

#[test]
fn buckets_are_those_of_training() {
    // 147,456 bytes each: one in the first bucket of 256 KiB, three in each of 512 KiB.
    let buckets = with_parameters().buckets;
    let expected = [(1, 0.005), (3, 0.02), (3, 0.035), (3, 0.05)];
    assert_eq!(buckets.len(), expected.len());
    for (bucket, (matrices, ready_s)) in buckets.iter().zip(expected) {
        assert_eq!(bucket.bytes, matrices * 147_456);
        assert_close(bucket.ready_s, ready_s);
    }
}

#[test]
fn interpolated_times_are_close_to_simulated_ones() {
    for (kind, most) in [(RING, 1.06), (ReductionKind::HalvingDoubling, 1.6)] {
        let seconds = |ranks| reduction_seconds(kind, &network("10gbe"), ranks, 3 << 20).unwrap();
        // Simulated on 63 ranks, interpolated on 65.
        let [below, above] = [seconds(63), seconds(65)];
        assert!(above < most * below, "{below} and {above}");
        assert!(kind != RING || below < above, "{below} and {above}");
    }
}

#[test]
fn ranks_wait_for_the_slowest() {
    let uneven = StepProfile {
        straggler_spread_s: 0.01,
        ..profile()
    };
    let network = network("ib-edr");
    let of = |profile: &StepProfile, method: Synchronisation, ranks| {
        predict(profile, method, &network, ranks, true).unwrap()
    };
    // The largest of 64 normal numbers lies 2.344 standard deviations above their mean.
    let [slow, even] = [&uneven, &profile()].map(|profile| of(profile, RING.into(), 64));
    assert_within(slow.step_s - even.step_s, 0.02344, 1e-5);
    assert_eq!(slow.exposed_s, even.exposed_s);
    assert_eq!(of(&uneven, RING.into(), 1).efficiency, 1.0);
    // Asynchronous workers do not wait for the slowest.
    let method = servers(1, ServerPlacement::Own, ASYNCHRONOUS);
    let [slow, even] = [&uneven, &profile()].map(|profile| of(profile, method, 4).step_s);
    assert_eq!(slow, even);
}

#[test]
fn the_best_buckets_are_small_if_latency_is_and_beat_all_others() {
    /// A ring of 8 ranks sends slices in segments of 256 KiB.
    const SEGMENTS: u64 = 8 << 18;
    let fine = StepProfile {
        parameters: parameters(400, &[1 << 14]),
        ..profile()
    };
    let best = |alpha: f64| {
        let network = NetworkModel::new(Link::new(alpha, 1e9));
        let mut predictor = Predictor::new(&fine, RING, &network, 8).unwrap();
        let (bytes, prediction) = predictor.best_bucket_bytes(&fine).unwrap();
        for other in (16..26).map(|bits| 1 << bits) {
            let other = predictor.predict(&fine.with_bucket_cap(other), true);
            assert!(prediction.step_s <= other.unwrap().step_s);
        }
        let segments = predictor.predict(&fine.with_bucket_cap(SEGMENTS), true);
        (bytes, segments.unwrap().step_s / prediction.step_s)
    };
    let by_latency = [0.0, 1e-5, 1e-4].map(|alpha| best(alpha).0);
    assert_eq!(by_latency, [1 << 16, 1 << 20, SEGMENTS]);
    // Longer buckets make no fewer messages, and the first bucket is short in each plan.
    for alpha in [1e-3, 1e-1] {
        let (bytes, ratio) = best(alpha);
        assert!(bytes >= SEGMENTS, "{bytes}");
        assert_within(ratio, 1.0, 1e-12);
    }
}

#[test]
fn impossible_worlds_and_profiles_are_refused() {
    let mut negative = profile();
    negative.buckets[2].ready_s = -0.5;
    for (profile, method, ranks, expected) in [
        (
            profile(),
            RING.into(),
            0,
            "simulation: expected at least one rank, got none",
        ),
        (
            profile(),
            servers(0, ServerPlacement::Own, ASYNCHRONOUS),
            2,
            "simulation: expected at least one server, got none",
        ),
        (
            profile(),
            servers(3, ServerPlacement::Beside, ASYNCHRONOUS),
            2,
            "got 3 servers and 2 ranks",
        ),
        (
            negative,
            RING.into(),
            2,
            "step profile: expected ready_s finite and not negative, got -0.5",
        ),
        (
            StepProfile::default(),
            RING.into(),
            2,
            "step profile: expected a finite step longer than 0 s, got 0",
        ),
    ] {
        let refusal = predict(&profile, method, &network("1gbe"), ranks, true);
        let text = refusal.unwrap_err().to_string();
        assert!(text.contains(expected), "{text}");
    }
}
