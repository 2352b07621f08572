//! Checks of messages, duplicates and wait policy on every communicator.
//!
//! In: a communicator. Out: a panic at the first claim that does not hold.
//! Invariant: all ranks run the same checks in the same order.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use distributed::communicator::WaitPolicy;
use distributed::{CollectiveError, Communicator};

/// Lengths without, with one, with many bytes, and over what MPI sends at once.
const LENGTHS: [usize; 4] = [0, 1, 10_007, (1 << 20) + 3];

/// Runs all checks; must be called by all ranks.
pub(crate) fn check(communicator: &dyn Communicator) {
    all_checks(communicator);
    let duplicate = communicator.duplicate().unwrap();
    all_checks(&*duplicate);
    duplicate.set_wait_policy(WaitPolicy::Sleep);
    all_checks(&*duplicate);
    super::collectives(&*duplicate);
    calls_of_duplicates_do_not_mix(communicator, &*duplicate);
    a_message_of_another_length_is_refused(communicator);
    if communicator.supports_threads() {
        a_duplicate_works_beside_the_first(communicator);
        patience_changes_while_a_call_waits(communicator);
    }
}

fn all_checks(communicator: &dyn Communicator) {
    maxima_are_by_position(communicator);
    peers_must_be_other_ranks(communicator);
    for length in LENGTHS {
        a_ring_of_exchanges_never_waits_forever(communicator, length);
        messages_arrive_in_order_and_whole(communicator, length);
        root_hears_every_rank(communicator, length);
    }
}

fn bytes_of(rank: usize, length: usize) -> Vec<u8> {
    (0..length)
        .map(|index| (rank * 29 + index * 3 + 1) as u8)
        .collect()
}

fn maxima_are_by_position(communicator: &dyn Communicator) {
    let rank = communicator.rank() as u64;
    let world_size = communicator.world_size() as u64;
    let mut values = [rank, world_size - rank, u64::MAX - rank, 7];
    communicator.all_reduce_max_u64(&mut values).unwrap();
    assert_eq!(values, [world_size - 1, world_size, u64::MAX, 7]);
}

fn peers_must_be_other_ranks(communicator: &dyn Communicator) {
    let rank = communicator.rank();
    let world_size = communicator.world_size();
    for peer in [rank, world_size] {
        let refused = |call: &str| {
            Err(CollectiveError::Failed(format!(
                "{call}: expected a rank below the world size {world_size} and not {rank} itself, got {peer} (rank {rank})"
            )))
        };
        assert_eq!(communicator.send(peer, 1, &[1]), refused("send"));
        assert_eq!(communicator.receive(peer, 1, &mut [1]), refused("receive"));
        assert_eq!(
            communicator.exchange(peer, &[1], peer, &mut [1]),
            refused("exchange")
        );
    }
    if world_size == 1 {
        let error = communicator.receive_any(1).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("receive_any: expected a rank below")
        );
    }
    assert_eq!(communicator.try_receive_any(999).unwrap(), None);
}

fn a_ring_of_exchanges_never_waits_forever(communicator: &dyn Communicator, length: usize) {
    let rank = communicator.rank();
    let world_size = communicator.world_size();
    if world_size == 1 {
        return;
    }
    let next = (rank + 1) % world_size;
    let previous = (rank + world_size - 1) % world_size;
    // Every rank sends another length.
    let mut incoming = vec![0; length + previous];
    for _ in 0..3 {
        communicator
            .exchange(
                next,
                &bytes_of(rank, length + rank),
                previous,
                &mut incoming,
            )
            .unwrap();
        assert_eq!(
            incoming,
            bytes_of(previous, length + previous),
            "{length} bytes"
        );
    }
}

fn messages_arrive_in_order_and_whole(communicator: &dyn Communicator, length: usize) {
    let rank = communicator.rank();
    let world_size = communicator.world_size();
    for receiver in 1..world_size {
        if rank == receiver {
            let mut bytes = vec![0; length];
            for round in 0..3 {
                communicator.receive(0, 5, &mut bytes).unwrap();
                assert_eq!(
                    bytes,
                    bytes_of(round, length),
                    "message {round} of {length} bytes"
                );
            }
        } else if rank == 0 {
            (0..3).for_each(|round| {
                communicator
                    .send(receiver, 5, &bytes_of(round, length))
                    .unwrap()
            });
        }
    }
}

fn root_hears_every_rank(communicator: &dyn Communicator, length: usize) {
    let rank = communicator.rank();
    let world_size = communicator.world_size();
    if rank > 0 {
        communicator
            .send(0, 7, &bytes_of(rank, length + rank))
            .unwrap();
        communicator.send(0, 8, &bytes_of(rank, length)).unwrap();
    } else if world_size > 1 {
        let mut heard: Vec<usize> = (1..world_size)
            .map(|_| {
                let (from, bytes) = communicator.receive_any(7).unwrap();
                assert_eq!(
                    bytes,
                    bytes_of(from, length + from),
                    "{length} bytes of rank {from}"
                );
                from
            })
            .collect();
        while heard.len() < 2 * (world_size - 1) {
            match communicator.try_receive_any(8).unwrap() {
                None => std::thread::yield_now(),
                Some((from, bytes)) => {
                    assert_eq!(
                        bytes,
                        bytes_of(from, length),
                        "{length} bytes of rank {from}"
                    );
                    heard.push(from);
                }
            }
        }
        heard.sort_unstable();
        assert_eq!(
            heard,
            (1..world_size)
                .flat_map(|rank| [rank, rank])
                .collect::<Vec<_>>()
        );
    }
    // Messages of the next check must not overtake these.
    communicator.barrier().unwrap();
}

fn calls_of_duplicates_do_not_mix(communicator: &dyn Communicator, duplicate: &dyn Communicator) {
    let rank = communicator.rank();
    let world_size = communicator.world_size();
    if rank == 1 {
        communicator.send(0, 3, b"first").unwrap();
        duplicate.send(0, 3, b"duplicate").unwrap();
    } else if rank == 0 && world_size > 1 {
        assert_eq!(
            duplicate.receive_any(3).unwrap(),
            (1, b"duplicate".to_vec())
        );
        assert_eq!(communicator.receive_any(3).unwrap(), (1, b"first".to_vec()));
        assert_eq!(duplicate.try_receive_any(3).unwrap(), None);
    }
}

fn a_message_of_another_length_is_refused(communicator: &dyn Communicator) {
    // After an error a communicator is not used again.
    let duplicate = communicator.duplicate().unwrap();
    let rank = communicator.rank();
    let world_size = communicator.world_size();
    for sent in [3, 5, 100_000] {
        if rank == 1 {
            duplicate.send(0, 3, &bytes_of(1, sent)).unwrap();
        } else if rank == 0 && world_size > 1 {
            let error = duplicate.receive(1, 3, &mut [0; 4]).unwrap_err();
            assert_eq!(error, CollectiveError::lengths("receive", 1, 4, sent));
        }
    }
    communicator.barrier().unwrap();
}

fn a_duplicate_works_beside_the_first(communicator: &dyn Communicator) {
    let duplicate = communicator.duplicate().unwrap();
    duplicate.set_wait_policy(WaitPolicy::Sleep);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..20 {
                super::sums_are_right_and_equal_on_all_ranks(&*duplicate, 1009);
                a_ring_of_exchanges_never_waits_forever(&*duplicate, 70_001);
                root_hears_every_rank(&*duplicate, 10);
            }
        });
        for _ in 0..20 {
            super::sums_are_right_and_equal_on_all_ranks(communicator, 20_011);
            a_ring_of_exchanges_never_waits_forever(communicator, 11);
            root_hears_every_rank(communicator, 70_001);
        }
    });
    communicator.barrier().unwrap();
}

fn patience_changes_while_a_call_waits(communicator: &dyn Communicator) {
    let duplicate = communicator.duplicate().unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // The last rank comes late, so the others wait.
            if communicator.rank() + 1 == communicator.world_size() {
                std::thread::sleep(Duration::from_millis(20));
            }
            duplicate.barrier().unwrap();
            done.store(true, Ordering::SeqCst);
        });
        while !done.load(Ordering::SeqCst) {
            for wait_policy in [WaitPolicy::Sleep, WaitPolicy::Spin] {
                duplicate.set_wait_policy(wait_policy);
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    });
}
