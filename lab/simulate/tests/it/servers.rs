//! Claims about the predicted speed of workers and their servers.

use distributed::gradients::Consistency;
use simulate::{Link, NetworkModel, ServerPlacement, predict};

use super::predictions::{ASYNCHRONOUS, assert_close, network, profile, servers};

#[test]
fn synchronous_servers_take_one_message_after_the_other_and_share_the_buckets() {
    let network = NetworkModel::new(Link::new(1e-5, 1e8));
    let exposed = |ranks: usize, number: usize| {
        let method = servers(number, ServerPlacement::Own, Consistency::Synchronous);
        predict(&profile(), method, &network, ranks, false)
            .unwrap()
            .exposed_s
    };
    let bytes = f64::from(5 << 20);
    // Pushes and answers of five buckets by eight ranks; passes over the values take less time.
    let messages = 5.0 * 2.0 * 8.0 * network.link.seconds(bytes);
    let one = exposed(8, 1);
    assert!(
        one > messages && one < 1.2 * messages,
        "expected somewhat more than {messages}, got {one}"
    );
    // While one server answers a bucket, the next bucket goes to another server.
    assert!(
        exposed(8, 5) < 0.75 * one,
        "{} against {one}",
        exposed(8, 5)
    );
}

#[test]
fn asynchronous_workers_scale_until_their_server_is_never_idle() {
    let network = NetworkModel::new(Link::new(1e-4, 1e9));
    let mut small = profile();
    small
        .buckets
        .iter_mut()
        .for_each(|bucket| bucket.bytes /= 16);
    small.optimizer_s = 0.0001;
    small.other_s = 0.0199;
    let step = |workers: usize| {
        predict(
            &small,
            servers(1, ServerPlacement::Own, ASYNCHRONOUS),
            &network,
            workers,
            false,
        )
        .unwrap()
    };
    // Two workers rarely meet at a server that is mostly idle.
    let message = network.link.seconds(f64::from(5 << 16));
    let two = step(2);
    let sequential = 0.1 + 5.0 * 2.0 * message;
    assert!(
        two.step_s > sequential && two.step_s < 1.08 * sequential,
        "{} against {sequential}",
        two.step_s
    );
    // A busy server bounds the throughput of any number of workers.
    let many = step(128);
    let more = step(256);
    assert!(
        (more.images_per_second / many.images_per_second - 1.0).abs() < 0.02,
        "{many:?} {more:?}"
    );
    let most = 32.0 / (5.0 * 2.0 * message);
    assert!(
        many.images_per_second < most && many.images_per_second > 0.5 * most,
        "{many:?} against {most}"
    );
}

#[test]
fn a_worker_beside_its_server_does_not_wait_for_messages() {
    let method = servers(1, ServerPlacement::Beside, ASYNCHRONOUS);
    let prediction = predict(&profile(), method, &network("10us,200MB/s"), 2, true).unwrap();
    // The other worker waits for the whole extra time of its step.
    let share = prediction.waiting_s / prediction.exposed_s;
    assert!(
        prediction.exposed_s > 0.1 && (share - 0.5).abs() < 0.05,
        "{share} of {prediction:?}"
    );
}

#[test]
fn messages_to_servers_are_slower_only_during_computation() {
    let step = |text: &str, overlap| {
        let method = servers(1, ServerPlacement::Own, Consistency::Synchronous);
        predict(&profile(), method, &network(text), 2, overlap)
            .unwrap()
            .step_s
    };
    let fast = "10us,1000MB/s";
    let slow = "10us,1000MB/s,0KB,0%,2x";
    assert_close(step(slow, false), step(fast, false));
    // Two messages per rank and bucket; four buckets during the backward pass.
    let message = network(fast).link.seconds(f64::from(5 << 20));
    let longer = step(slow, true) - step(fast, true);
    assert!(
        longer > message && longer < 16.0 * message,
        "{longer} against {message}"
    );
}

#[test]
fn bounded_workers_are_between_asynchronous_and_synchronous_ones() {
    let speed = |consistency| {
        let method = servers(2, ServerPlacement::Beside, consistency);
        predict(&profile(), method, &network("10gbe"), 4, true)
            .unwrap()
            .images_per_second
    };
    let bounded = speed(Consistency::Asynchronous { bound: Some(1) });
    assert!(
        bounded <= speed(ASYNCHRONOUS) * 1.0001,
        "a bound never makes workers faster"
    );
    assert!(bounded > 0.8 * speed(Consistency::Synchronous));
}
