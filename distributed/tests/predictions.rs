//! Claims about predicted training speed.

#![allow(clippy::unwrap_used, reason = "test code")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use distributed::simulate::{
    BucketProfile, Link, NetworkModel, Prediction, StepProfile, Synchronisation, best_bucket_bytes, predict,
    reduction_seconds, run_virtual_ranks,
};
use distributed::{AllReducer, Communicator, ReductionKind};

const RING: ReductionKind = ReductionKind::Ring;

/// A step of 100 ms with 32 images and 25 MiB of gradients in five buckets.
fn profile() -> StepProfile {
    let bucket = |index: u32| BucketProfile { ready_s: 0.01 * f64::from(index), bytes: 5 << 20 };
    StepProfile {
        forward_s: 0.03,
        backward_s: 0.05,
        buckets: (1..=5).map(bucket).collect(),
        optimizer_s: 0.01,
        other_s: 0.01,
        batch_size_per_rank: 32,
        straggler_spread_s: 0.0,
    }
}

fn network(text: &str) -> NetworkModel {
    text.parse().unwrap()
}

fn predicted(network: &NetworkModel, ranks: usize, overlap: bool) -> Prediction {
    predict(&profile(), RING, network, ranks, overlap).unwrap()
}

#[track_caller]
fn assert_close(got: f64, expected: f64) {
    assert!((got - expected).abs() <= 1e-12 * expected.abs(), "expected {expected}, got {got}");
}

#[test]
fn one_rank_is_as_fast_as_its_profile() {
    for synchronisation in [Synchronisation::from(RING), Synchronisation::ParameterServer { servers: 2 }] {
        for overlap in [false, true] {
            let prediction = predict(&profile(), synchronisation, &network("1gbe"), 1, overlap).unwrap();
            assert_close(prediction.step_s, 0.1);
            assert_close(prediction.images_per_second, 320.0);
            assert_eq!((prediction.communication_s, prediction.exposed_s), (0.0, 0.0));
            assert_eq!((prediction.speedup, prediction.efficiency), (1.0, 1.0));
        }
    }
}

#[test]
fn without_overlap_all_communication_is_exposed() {
    let network = network("10gbe");
    let bucket = reduction_seconds(RING, &network, 4, 5 << 20).unwrap();
    let prediction = predicted(&network, 4, false);
    assert_close(prediction.communication_s, 5.0 * bucket);
    assert_close(prediction.exposed_s, 5.0 * bucket);
    assert_close(prediction.step_s, 0.1 + 5.0 * bucket);
    assert_close(prediction.images_per_second, 128.0 / prediction.step_s);
    assert_close(prediction.speedup, 0.4 / prediction.step_s);
}

#[test]
fn overlap_hides_all_but_the_last_bucket_where_each_fits_between_two() {
    let network = network("10gbe");
    let bucket = reduction_seconds(RING, &network, 4, 5 << 20).unwrap();
    assert!(bucket < 0.01, "the test's premise");
    assert_close(predicted(&network, 4, true).exposed_s, bucket);
    // With the last bucket full before the end of the backward pass nothing is left to see.
    let mut early = profile();
    early.backward_s = 0.06;
    let prediction = predict(&early, RING, &network, 4, true).unwrap();
    assert_eq!((prediction.exposed_s, prediction.efficiency), (0.0, 1.0));
}

#[test]
fn overlap_on_a_slow_network_ends_when_all_buckets_have_gone_one_after_the_other() {
    let network = network("1gbe");
    let bucket = reduction_seconds(RING, &network, 4, 5 << 20).unwrap();
    assert!(bucket > 0.01, "the test's premise");
    assert_close(predicted(&network, 4, true).exposed_s, 0.01 + 5.0 * bucket - 0.05);
}

/// When the last of threads that really reduce bucket by bucket is done with the step.
fn step_on_threads(profile: &StepProfile, kind: ReductionKind, network: &NetworkModel, ranks: usize) -> f64 {
    let ends = run_virtual_ranks(ranks, network, |communicator| {
        let communicator = Arc::new(communicator);
        let mut reducer = AllReducer::new(kind, Arc::clone(&communicator) as Arc<dyn Communicator>).unwrap();
        for bucket in &profile.buckets {
            communicator.advance_to(profile.forward_s + bucket.ready_s);
            reducer.sum(&mut vec![1.0; bucket.bytes as usize / 4]).unwrap();
        }
        communicator.advance_to(profile.forward_s + profile.backward_s);
        communicator.advance(profile.optimizer_s + profile.other_s);
        communicator.now()
    });
    ends.into_iter().fold(0.0, f64::max)
}

#[test]
fn a_predicted_step_takes_as_long_as_one_of_threads_in_virtual_time() {
    let mut profile = profile();
    profile.buckets.iter_mut().for_each(|bucket| bucket.bytes /= 8);
    for text in ["10gbe", "1gbe", "50us,10MB/s"] {
        for kind in [RING, ReductionKind::HalvingDoubling] {
            let predicted = predict(&profile, kind, &network(text), 8, true).unwrap().step_s;
            assert_close(step_on_threads(&profile, kind, &network(text), 8), predicted);
        }
        // Ranks beyond a power of two get the sum last, when the others have begun with the next bucket.
        let predicted = predict(&profile, ReductionKind::HalvingDoubling, &network(text), 6, true).unwrap().step_s;
        let got = step_on_threads(&profile, ReductionKind::HalvingDoubling, &network(text), 6);
        assert!(got <= predicted * (1.0 + 1e-12) && got > 0.9 * predicted, "expected {predicted}, got {got}");
    }
}

#[test]
fn efficiency_grows_with_bandwidth_and_falls_with_latency() {
    for overlap in [false, true] {
        let efficiency = |alpha: f64, bandwidth: f64| {
            predicted(&NetworkModel::new(Link::new(alpha, bandwidth)), 32, overlap).efficiency
        };
        let by_bandwidth = [1e7, 1e8, 2e8, 1e9, 4e9, 1e10].map(|bandwidth| efficiency(1e-5, bandwidth));
        assert!(by_bandwidth.is_sorted(), "{by_bandwidth:?}");
        assert!(by_bandwidth[0] < 0.05 && by_bandwidth[5] > 0.8, "{by_bandwidth:?}");
        let by_latency = [1e-2, 1e-3, 1e-4, 1e-5, 0.0].map(|alpha| efficiency(alpha, 1e9));
        assert!(by_latency.is_sorted(), "{by_latency:?}");
    }
    for ranks in [2, 4, 8, 16] {
        let (overlapped, serial) =
            (predicted(&network("1gbe"), ranks, true), predicted(&network("1gbe"), ranks, false));
        assert!(overlapped.efficiency > serial.efficiency);
        assert!(serial.efficiency > predicted(&network("1gbe"), 2 * ranks, false).efficiency);
    }
}

#[test]
fn links_of_parameter_servers_are_shared_by_all_ranks() {
    let link = Link::new(1e-5, 1e9);
    let seconds = |ranks: usize, servers: usize| {
        let synchronisation = Synchronisation::ParameterServer { servers };
        predict(&profile(), synchronisation, &NetworkModel::new(link), ranks, false).unwrap().communication_s
    };
    let bytes = f64::from(5 << 20);
    assert_close(seconds(8, 1), 5.0 * 2.0 * 8.0 * link.seconds(bytes));
    assert_close(seconds(8, 4), 5.0 * 2.0 * 8.0 * link.seconds(bytes / 4.0));
    // With more servers than ranks, the links of the ranks are the narrow ones.
    assert_close(seconds(2, 4), 5.0 * 2.0 * 4.0 * link.seconds(bytes / 4.0));
}

#[test]
fn ranks_wait_for_the_slowest() {
    let mut uneven = profile();
    uneven.straggler_spread_s = 0.01;
    let prediction = predict(&uneven, RING, &network("ib-edr"), 64, true).unwrap();
    let even = predicted(&network("ib-edr"), 64, true);
    assert_close(prediction.step_s, even.step_s + 0.01 * (2.0 * 64.0_f64.ln()).sqrt());
    assert_eq!(prediction.exposed_s, even.exposed_s);
    assert_eq!(predict(&uneven, RING, &network("ib-edr"), 1, true).unwrap().efficiency, 1.0);
}

#[test]
fn other_buckets_hold_the_same_gradients_and_are_full_in_between() {
    let profile = profile();
    assert_eq!(profile.with_bucket_bytes(5 << 20).buckets.len(), 5);
    let whole = BucketProfile { ready_s: 0.05, bytes: 25 << 20 };
    assert_eq!(profile.with_bucket_bytes(1 << 30).buckets, [whole]);
    let cut = profile.with_bucket_bytes(10 << 20).buckets;
    assert_eq!(cut.iter().map(|bucket| bucket.bytes >> 20).collect::<Vec<_>>(), [10, 10, 5]);
    let ready = [0.02, 0.04, 0.05];
    cut.iter().zip(ready).for_each(|(bucket, ready_s)| assert_close(bucket.ready_s, ready_s));
    let small = profile.with_bucket_bytes(5 << 18).buckets;
    assert_close(small[1].ready_s, 0.005);
    assert_eq!(StepProfile::default().with_bucket_bytes(1).buckets, []);
}

#[test]
fn the_best_buckets_are_small_where_latency_is_and_beat_all_others() {
    let best = |alpha: f64| {
        let network = NetworkModel::new(Link::new(alpha, 1e9));
        let (bytes, prediction) = best_bucket_bytes(&profile(), RING, &network, 8).unwrap();
        for other in (16..26).map(|bits| 1 << bits) {
            let other = predict(&profile().with_bucket_bytes(other), RING, &network, 8, true).unwrap();
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
        predict(profile, synchronisation, &network("1gbe"), ranks, true).unwrap_err().to_string()
    };
    assert_eq!(refused(&profile(), RING.into(), 0), "simulation: expected at least one rank, got none");
    let nobody = Synchronisation::ParameterServer { servers: 0 };
    assert_eq!(refused(&profile(), nobody, 2), "simulation: expected at least one server, got none");
    let mut negative = profile();
    negative.buckets[2].ready_s = -0.5;
    assert_eq!(refused(&negative, RING.into(), 2), "step profile: expected ready_s finite and not negative, got -0.5");
    let backwards = NetworkModel::new(Link { alpha: -1e-6, beta: 1e-9 });
    let error = predict(&profile(), RING, &backwards, 2, true).unwrap_err().to_string();
    assert_eq!(
        error,
        "network: expected alpha and beta of each link finite and not negative, got -0.000001 and 0.000000001"
    );
    let empty = StepProfile::default();
    assert_eq!(refused(&empty, RING.into(), 2), "step profile: expected a finite step longer than 0 s, got 0");
}

#[test]
fn two_to_a_thousand_ranks_are_predicted_in_seconds() {
    let start = Instant::now();
    for ranks in (1..=10).map(|bits| 1 << bits) {
        let ring = predicted(&network("ib-edr"), ranks, true);
        let halving = predict(&profile(), ReductionKind::HalvingDoubling, &network("ib-edr"), ranks, true).unwrap();
        println!("{ranks}: ring {:.3}, halving and doubling {:.3}", ring.efficiency, halving.efficiency);
        assert!(ring.efficiency <= 1.0 && halving.efficiency <= 1.0);
    }
    let elapsed = start.elapsed();
    println!("{elapsed:?}");
    assert!(elapsed < Duration::from_secs(40), "{elapsed:?}");
}
