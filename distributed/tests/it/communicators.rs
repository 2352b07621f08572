//! The conformance suite on one rank and on threads, and how a world of threads ends.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use burn::nn::LinearConfig;
use burn::tensor::Device;
use distributed::communicator::{SingleCommunicator, ThreadCommunicator, leave};
use distributed::gradients::{
    BucketContext, BucketReduction, GradientReducer, ReducerConfig, Traffic,
};
use distributed::{CollectiveError, Communicator, run_ranks, try_run_ranks};

use crate::conformance;

fn aborted(rank: usize, reason: &str) -> CollectiveError {
    CollectiveError::Aborted {
        rank,
        reason: reason.to_owned(),
    }
}

#[test]
fn a_single_rank_conforms() {
    conformance::check(&SingleCommunicator::new());
    assert_eq!(SingleCommunicator::new().library(), "none");
}

#[test]
fn one_to_four_threads_conform() {
    for world_size in 1..=4 {
        let libraries = run_ranks(world_size, |communicator| {
            conformance::check(&communicator);
            communicator.library()
        });
        assert_eq!(libraries, vec!["threads"; world_size]);
    }
}

#[test]
fn a_thread_that_the_system_refuses_is_an_error() {
    const NAME: &str = "communicators::a_thread_that_the_system_refuses_is_an_error";
    // No system has room for such a stack; the main thread of the child needs none.
    let stack = (1_u64 << 62).to_string();
    if std::env::var("RUST_MIN_STACK").is_ok_and(|size| size == stack) {
        assert!(try_run_ranks(2, |communicator| communicator.rank()).is_err());
        return;
    }
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", NAME, "--test-threads=1"])
        .env("RUST_MIN_STACK", &stack)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&child.stdout);
    assert!(
        child.status.success() && text.contains("1 passed"),
        "{text}"
    );
}

#[test]
fn work_that_fails_on_one_rank_is_told_with_its_rank_and_ends_the_others_waiting() {
    let told = run_ranks(2, |communicator| {
        let mut told = None;
        let done = match communicator.rank() {
            0 => Err(CollectiveError::no_thread("gone")),
            // The last rank would wait here.
            _ => communicator.barrier(),
        };
        leave(Some(&communicator), done, |rank, error| {
            told = Some((rank, error.to_string()));
            1
        });
        told.unwrap()
    });
    let root = &told[0];
    let other = &told[1];
    assert!(root.0 == Some(0) && root.1.contains("gone"), "{root:?}");
    assert!(
        other.0 == Some(1) && other.1.contains("job aborted by rank 0"),
        "{other:?}"
    );
}

#[test]
fn work_that_succeeds_leaves_when_all_ranks_have_finished() {
    let num_done = AtomicUsize::new(0);
    run_ranks(3, |communicator| {
        num_done.fetch_add(1, Ordering::SeqCst);
        let done = Ok::<(), CollectiveError>(());
        leave(Some(&communicator), done, |_, error| panic!("{error}"));
        assert_eq!(num_done.load(Ordering::SeqCst), 3);
    });
}

#[test]
fn thread_sums_are_added_in_rank_order() {
    // (1e8 - 1e8) + 1 is 1, 1e8 + (-1e8 + 1) is 0 in f32.
    let parts = [1e8_f32, -1e8, 1.0];
    for _ in 0..20 {
        let sums = run_ranks(3, |communicator| {
            // The last rank comes first.
            std::thread::sleep(Duration::from_micros(
                200 * (2 - communicator.rank() as u64),
            ));
            let mut values = [parts[communicator.rank()]];
            communicator.all_reduce_sum(&mut values).unwrap();
            values[0]
        });
        assert_eq!(sums, [1.0; 3]);
    }
}

#[test]
fn different_lengths_fail_on_every_rank() {
    let outcomes = run_ranks(3, |communicator| {
        let mut values = vec![1.0; if communicator.rank() == 2 { 5 } else { 4 }];
        let first = communicator.all_reduce_sum(&mut values).unwrap_err();
        let mut bytes = vec![0; 3 - communicator.rank()];
        (first, communicator.broadcast(0, &mut bytes).unwrap_err())
    });
    for (first, second) in outcomes {
        assert_eq!(
            first.to_string(),
            "all_reduce_sum: expected 4 elements as on rank 0, got 5 (rank 2)"
        );
        assert_eq!(
            second.to_string(),
            "broadcast: expected 3 elements as on rank 0, got 2 (rank 1)"
        );
    }
}

#[test]
fn different_collectives_and_roots_fail_on_every_rank() {
    let outcomes = run_ranks(2, |communicator| {
        let mixed = match communicator.rank() {
            0 => communicator.barrier(),
            _ => communicator.all_reduce_sum_u64(&mut []),
        };
        (
            mixed.unwrap_err(),
            communicator
                .broadcast(communicator.rank(), &mut [])
                .unwrap_err(),
        )
    });
    for (mixed, roots) in outcomes {
        let rule = "Every rank must make the same collectives in the same order.";
        assert_eq!(
            mixed.to_string(),
            format!("rank 1 called all_reduce_sum_u64 while rank 0 called barrier. {rule}")
        );
        let called =
            "rank 1 called broadcast from root 1 while rank 0 called broadcast from root 0";
        assert_eq!(roots.to_string(), format!("{called}. {rule}"));
    }
}

#[test]
fn an_abort_ends_pending_and_later_collectives_on_every_rank() {
    let outcomes = run_ranks(3, |communicator| {
        if communicator.rank() == 1 {
            communicator.abort("out of disk", 1);
        }
        (
            communicator.barrier().unwrap_err(),
            communicator.all_gather(&[1]).unwrap_err(),
        )
    });
    let expected = aborted(1, "out of disk");
    assert_eq!(outcomes, vec![(expected.clone(), expected); 3]);
}

#[test]
fn a_rank_that_leaves_early_ends_the_waiting_of_the_others() {
    let outcomes = run_ranks(3, |communicator| {
        communicator.barrier().unwrap();
        if communicator.rank() == 2 {
            Ok(())
        } else {
            communicator.barrier()
        }
    });
    let left = Err(aborted(2, "the rank has left"));
    assert_eq!(outcomes, [left.clone(), left, Ok(())]);
}

#[test]
fn an_abort_ends_messages_and_duplicates_too() {
    let outcomes = run_ranks(3, |communicator| {
        let duplicate = communicator.duplicate().unwrap();
        match communicator.rank() {
            0 => duplicate.abort("out of disk", 1),
            1 => {
                return (
                    communicator.receive(2, 1, &mut [0]),
                    communicator.send(2, 1, &[0]),
                );
            }
            _ => {}
        }
        (communicator.receive_any(1).map(|_| ()), duplicate.barrier())
    });
    let expected = Err(aborted(0, "out of disk"));
    assert_eq!(outcomes, vec![(expected.clone(), expected); 3]);
}

#[test]
fn messages_of_a_rank_that_has_left_arrive_and_then_an_error() {
    let outcomes = run_ranks(3, |communicator| match communicator.rank() {
        0 => {
            communicator.receive(1, 1, &mut [0; 2]).unwrap();
            communicator.receive(1, 1, &mut [0; 2])
        }
        1 => communicator.send(0, 1, &[1, 2]),
        // A world with one rank left has no sender.
        _ => communicator.receive_any(1).map(|_| ()),
    });
    let left = |rank| Err(aborted(rank, "the rank has left"));
    assert_eq!(outcomes, [left(1), Ok(()), left(1)]);
}

#[test]
fn ranks_that_still_exchange_do_not_mind_one_that_has_left() {
    for _ in 0..50 {
        let outcomes = run_ranks(4, |communicator| {
            if communicator.rank() == 3 {
                return Ok(());
            }
            let next = (communicator.rank() + 1) % 3;
            let previous = (communicator.rank() + 2) % 3;
            communicator.exchange(next, &[1; 100], previous, &mut [0; 100])
        });
        assert_eq!(outcomes, [Ok(()), Ok(()), Ok(()), Ok(())]);
    }
}

#[test]
fn a_rank_may_leave_right_after_the_last_collective() {
    for _ in 0..200 {
        let outcomes = run_ranks(4, |communicator| communicator.barrier());
        assert_eq!(outcomes, [Ok(()), Ok(()), Ok(()), Ok(())]);
    }
}

#[test]
fn a_panicking_rank_ends_the_others_and_goes_on_in_the_caller() {
    let num_aborted = AtomicUsize::new(0);
    let panic = catch_unwind(AssertUnwindSafe(|| {
        run_ranks(4, |communicator| {
            // A communicator kept alive by a second owner must not keep the others waiting.
            let communicator = Arc::new(communicator);
            std::mem::forget(Arc::clone(&communicator));
            assert!(communicator.rank() != 1, "rank 1 fails on purpose");
            let error = communicator.barrier().unwrap_err();
            assert_eq!(error, aborted(1, "the rank panicked"));
            num_aborted.fetch_add(1, Ordering::Relaxed);
        })
    }))
    .unwrap_err();
    assert_eq!(
        panic.downcast_ref::<&str>(),
        Some(&"rank 1 fails on purpose")
    );
    assert_eq!(num_aborted.into_inner(), 3);
}

#[test]
fn two_threads_of_a_rank_take_turns() {
    let sums = run_ranks(2, |communicator: ThreadCommunicator| {
        std::thread::scope(|scope| {
            let threads = [(); 2].map(|()| {
                scope.spawn(|| {
                    let mut total = 0;
                    for _ in 0..100 {
                        let mut values = [1];
                        communicator.all_reduce_sum_u64(&mut values).unwrap();
                        total += values[0];
                    }
                    total
                })
            });
            threads.map(|thread| thread.join().unwrap())
        })
    });
    assert_eq!(sums, [[200, 200], [200, 200]]);
}

/// Panics at its first bucket.
#[derive(Debug)]
struct Broken;

impl BucketReduction for Broken {
    fn reduce(
        &mut self,
        _: BucketContext,
        _: usize,
        _: &mut Vec<f32>,
    ) -> Result<Traffic, CollectiveError> {
        panic!("a sum fails on purpose")
    }
}

#[test]
fn a_panic_of_the_communication_thread_is_told_with_the_number_of_its_rank() {
    run_ranks(2, |communicator| {
        let rank = communicator.rank();
        let layer = LinearConfig::new(2, 2).init(&Device::flex().autodiff());
        let config = ReducerConfig {
            overlap: true,
            ..ReducerConfig::default()
        };
        let reducer =
            GradientReducer::with_reduction(&layer, Arc::new(communicator), &config, |_, _| {
                Ok(Box::new(Broken))
            });
        assert_eq!(
            reducer.unwrap().reduce().unwrap_err(),
            aborted(rank, "the communication thread panicked")
        );
    });
}
