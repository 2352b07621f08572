//! The watchdog on threads: the named rank, the rank that prints, and cases without an alarm.
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use distributed::communicator::{SingleCommunicator, ThreadCommunicator};
use distributed::gradients::{
    BucketContext, BucketPlan, BucketReduction, Consistency, HierarchicalReducer, Server,
    ServerClient, ServerPlan, ShardUpdate,
};
use distributed::replica::ParameterLayout;
use distributed::watchdog::{Alarm, AlarmCause, Phase, RankStatus, Watchdog, WatchedCommunicator};
use distributed::{CollectiveError, Communicator, run_ranks};

use crate::conformance;

const TIMEOUT: Duration = Duration::from_secs(1);

/// A rank with its watchdog, which keeps its alarms in `alarms`.
struct Rank {
    communicator: Arc<dyn Communicator>,
    rank_status: Arc<RankStatus>,
    watchdog: Watchdog,
}

fn watched(
    communicator: ThreadCommunicator,
    timeout: Duration,
    alarms: &Arc<Mutex<Vec<Alarm>>>,
) -> Rank {
    let rank_status = Arc::new(RankStatus::new());
    let kept = Arc::clone(alarms);
    let on_alarm = Arc::new(move |alarm: &Alarm| kept.lock().unwrap().push(alarm.clone()));
    let watchdog =
        Watchdog::start(&communicator, Arc::clone(&rank_status), timeout, on_alarm).unwrap();
    let communicator = WatchedCommunicator::new(Arc::new(communicator), Arc::clone(&rank_status));
    Rank {
        communicator: Arc::new(communicator),
        rank_status,
        watchdog,
    }
}

/// Runs three ranks until one alarm; what they return, and the alarm.
fn one_alarm<T: Send>(rank_main: impl Fn(usize, &Rank) -> T + Sync) -> (Vec<T>, Alarm) {
    let alarms = Arc::default();
    let results = run_ranks(3, |communicator| {
        let rank = watched(communicator, TIMEOUT, &alarms);
        rank_main(rank.communicator.rank(), &rank)
    });
    let mut alarms = alarms.lock().unwrap();
    assert_eq!(alarms.len(), 1, "{alarms:?}");
    (results, alarms.pop().unwrap())
}

/// Waits, without a call that is watched, until the job has ended.
fn sleep_until_the_end(rank: &Rank) {
    let start = Instant::now();
    while rank.communicator.try_receive_any(9).is_ok() {
        assert!(start.elapsed() < 20 * TIMEOUT, "no rank ended the job");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_watched_communicator_conforms() {
    let rank_status = Arc::new(RankStatus::new());
    run_ranks(3, |communicator| {
        let watched = WatchedCommunicator::new(Arc::new(communicator), Arc::clone(&rank_status));
        conformance::check(&watched);
    });
    assert_eq!(rank_status.report().call, None);
}

#[test]
fn a_rank_that_does_not_answer_is_named() {
    let alarms: Arc<Mutex<Vec<Alarm>>> = Arc::default();
    let ends = run_ranks(3, |communicator| {
        if communicator.rank() == 2 {
            // It takes part in the start, but has no thread that answers.
            let unwatched = communicator.duplicate().unwrap();
            return unwatched.receive(0, 9, &mut []).unwrap_err();
        }
        watched(communicator, TIMEOUT, &alarms)
            .communicator
            .barrier()
            .unwrap_err()
    });
    let alarms = alarms.lock().unwrap();
    let [alarm] = alarms.as_slice() else {
        panic!("{alarms:?}")
    };
    assert_eq!(
        (alarm.rank, &alarm.cause),
        (0, &AlarmCause::Silent(vec![2]))
    );
    assert!(alarm.answers[1].as_ref().is_some_and(|report| {
        report
            .call
            .as_ref()
            .is_some_and(|(name, _)| name == "barrier")
    }));
    let text = alarm.to_string();
    assert!(
        text.starts_with("error (rank 0): no progress for ")
            && text.contains(": rank 2 does not answer"),
        "{text}"
    );
    assert!(
        text.contains("\n  rank 2: no answer within 1.0 s"),
        "{text}"
    );
    let aborted = CollectiveError::Aborted {
        rank: 0,
        reason: alarm.reason(),
    };
    assert_eq!(ends[..2], [aborted.clone(), aborted]);
}

#[test]
fn a_busy_rank_is_named_with_what_it_does() {
    let (_, alarm) = one_alarm(|index, rank| {
        rank.rank_status.at(1, 41);
        rank.communicator.barrier().unwrap();
        rank.rank_status.at(1, 42);
        rank.rank_status.enter(if index == 0 {
            Phase::Checkpoint
        } else {
            Phase::Waiting
        });
        match index {
            0 => sleep_until_the_end(rank),
            _ => drop(rank.communicator.all_reduce_sum(&mut [1.0]).unwrap_err()),
        }
    });
    assert_eq!((alarm.rank, &alarm.cause), (1, &AlarmCause::Busy(vec![0])));
    let text = alarm.to_string();
    let told = "rank 0 waits for no rank, busy in checkpoint of epoch 2, step 43 for ";
    assert!(
        text.starts_with("error (rank 1): no progress for ") && text.contains(told),
        "{text}"
    );
    assert!(
        text.contains("\n  rank 2: epoch 2, step 43, waiting for "),
        "{text}"
    );
    assert!(text.contains("; waits in all_reduce_sum for "), "{text}");
}

#[test]
fn a_rank_in_another_call_is_named() {
    let (_, alarm) = one_alarm(|index, rank| match index {
        2 => rank.communicator.receive(0, 5, &mut [0]).unwrap_err(),
        _ => rank.communicator.barrier().unwrap_err(),
    });
    assert_eq!((alarm.rank, &alarm.cause), (0, &AlarmCause::Apart(vec![2])));
    let told = "rank 2 waits in receive of epoch 1, step 1, most in barrier of epoch 1, step 1";
    assert!(alarm.reason().contains(told), "{alarm}");
}

#[test]
fn a_call_on_a_duplicate_by_another_thread_is_watched() {
    let (_, alarm) = one_alarm(|index, rank| {
        let duplicate = rank.communicator.duplicate().unwrap();
        std::thread::scope(|scope| {
            if index != 1 {
                scope.spawn(|| duplicate.all_reduce_sum_u64(&mut [1]).unwrap_err());
            }
            sleep_until_the_end(rank);
        });
    });
    assert_eq!((alarm.rank, &alarm.cause), (0, &AlarmCause::Busy(vec![1])));
    assert!(alarm.answers[2].as_ref().unwrap().call.as_ref().unwrap().0 == "all_reduce_sum_u64");
}

#[test]
fn a_missing_start_is_told() {
    let alarms: Arc<Mutex<Vec<Alarm>>> = Arc::default();
    run_ranks(3, |communicator| {
        let kept = Arc::clone(&alarms);
        let on_alarm = Arc::new(move |alarm: &Alarm| kept.lock().unwrap().push(alarm.clone()));
        if communicator.rank() != 1 {
            let timeout = Duration::from_millis(200);
            let error =
                Watchdog::start(&communicator, Arc::default(), timeout, on_alarm).unwrap_err();
            assert!(
                matches!(error, CollectiveError::Aborted { rank: 0, .. }),
                "{error}"
            );
        } else {
            communicator.receive(0, 0, &mut []).unwrap_err();
        }
    });
    let alarms = alarms.lock().unwrap();
    let [alarm] = alarms.as_slice() else {
        panic!("{alarms:?}")
    };
    assert_eq!((alarm.rank, &alarm.cause), (0, &AlarmCause::NotStarted));
    assert!(
        alarm
            .to_string()
            .ends_with(" s: not all ranks have started their watchdogs"),
        "{alarm}"
    );
}

#[test]
fn ranks_that_compute_for_long_raise_no_alarm() {
    let alarms: Arc<Mutex<Vec<Alarm>>> = Arc::default();
    run_ranks(3, |communicator| {
        let timeout = Duration::from_millis(600);
        let rank = watched(communicator, timeout, &alarms);
        std::thread::sleep(3 * timeout);
        rank.communicator.barrier().unwrap();
        // One is late, again and again, but never for as long as the timeout.
        for _ in 0..8 {
            if rank.communicator.rank() == 1 {
                std::thread::sleep(timeout / 4);
            }
            rank.communicator.barrier().unwrap();
        }
        drop(rank.watchdog);
    });
    assert_eq!(*alarms.lock().unwrap(), []);
}

#[test]
fn quick_worlds_raise_no_alarm() {
    let alarms: Arc<Mutex<Vec<Alarm>>> = Arc::default();
    for world_size in [1, 2, 4] {
        run_ranks(world_size, |communicator| {
            let rank = watched(communicator, TIMEOUT, &alarms);
            let mut reducer =
                HierarchicalReducer::new(rank.communicator.duplicate().unwrap()).unwrap();
            for step in 0..100 {
                rank.rank_status.at(0, step);
                let mut values = [1.0; 10];
                reducer.sum(&mut values).unwrap();
                assert_eq!(values, [world_size as f32; 10]);
            }
        });
    }
    assert_eq!(*alarms.lock().unwrap(), []);
}

#[test]
fn a_drop_ends_the_thread_long_before_the_timeout() {
    run_ranks(2, |communicator| {
        let rank_status = Arc::new(RankStatus::new());
        let noted = Arc::clone(&rank_status);
        // A limit that no clock reaches is none.
        let watchdog =
            Watchdog::start(&communicator, noted, Duration::MAX, Arc::new(|_: &_| {})).unwrap();
        communicator.barrier().unwrap();
        drop(watchdog);
        // The thread holds what it watches until its end.
        assert_eq!(Arc::strong_count(&rank_status), 1);
        communicator.barrier().unwrap();
    });
}

/// Makes progress as `how` says, every tenth of `timeout`, for three times as long.
fn progress(timeout: Duration, how: impl Fn(u32)) {
    for turn in 0..30 {
        std::thread::sleep(timeout / 10);
        how(turn);
    }
}

#[test]
fn ranks_wait_for_longer_than_the_timeout_for_one_that_makes_progress() {
    let alarms: Arc<Mutex<Vec<Alarm>>> = Arc::default();
    run_ranks(3, |communicator| {
        let rank = watched(communicator, TIMEOUT, &alarms);
        let is_late = |late| rank.communicator.rank() == late;
        if is_late(0) {
            // As a rank that downloads.
            rank.rank_status.enter(Phase::Opening);
            progress(TIMEOUT, |_| rank.rank_status.advance(1 << 10));
        }
        rank.communicator.barrier().unwrap();
        if is_late(1) {
            // As a slow rank that updates by itself.
            progress(TIMEOUT, |step| rank.rank_status.at(0, u64::from(step)));
        }
        rank.communicator.barrier().unwrap();
        if !is_late(2) {
            // As ranks that exchange while another waits for both.
            let other = 1 - rank.communicator.rank();
            progress(TIMEOUT, |_| {
                rank.communicator
                    .exchange(other, &[1], other, &mut [0])
                    .unwrap()
            });
        }
        rank.communicator.barrier().unwrap();
    });
    assert_eq!(*alarms.lock().unwrap(), []);
}

#[test]
fn a_rank_whose_progress_ends_is_named_with_what_it_counted() {
    let (_, alarm) = one_alarm(|index, rank| match index {
        0 => {
            rank.rank_status.enter(Phase::Opening);
            progress(TIMEOUT, |_| rank.rank_status.advance(100));
            sleep_until_the_end(rank);
        }
        _ => drop(rank.communicator.barrier().unwrap_err()),
    });
    assert_eq!((alarm.rank, &alarm.cause), (1, &AlarmCause::Busy(vec![0])));
    assert!(alarm.waited > 3 * TIMEOUT, "{alarm}");
    let text = alarm.to_string();
    assert!(
        text.contains("rank 0: epoch 1, step 1, opening for ") && text.contains(", 3000 counted; "),
        "{text}"
    );
}

#[test]
fn a_rank_that_only_serves_is_not_blamed_for_one_that_hangs() {
    let (_, alarm) = one_alarm(|index, rank| match index {
        0 => drop(rank.communicator.receive(1, 5, &mut [0]).unwrap_err()),
        1 => sleep_until_the_end(rank),
        _ => {
            rank.rank_status.enter(Phase::Serving);
            sleep_until_the_end(rank);
        }
    });
    assert_eq!((alarm.rank, &alarm.cause), (0, &AlarmCause::Busy(vec![1])));
}

#[test]
fn a_shorter_timeout_holds_for_a_call_that_waits_already() {
    let alarms: Arc<Mutex<Vec<Alarm>>> = Arc::default();
    run_ranks(2, |communicator| {
        let rank = watched(communicator, Duration::from_secs(3600), &alarms);
        rank.communicator.barrier().unwrap();
        rank.watchdog.set_timeout(TIMEOUT);
        match rank.communicator.rank() {
            0 => drop(rank.communicator.barrier().unwrap_err()),
            _ => sleep_until_the_end(&rank),
        }
    });
    let alarms = alarms.lock().unwrap();
    assert!(
        matches!(alarms.as_slice(), [alarm] if alarm.cause == AlarmCause::Busy(vec![1])),
        "{alarms:?}"
    );
}

/// A server's update that does nothing, over one element.
#[derive(Debug)]
struct NoUpdate([f32; 1]);

impl ShardUpdate for NoUpdate {
    fn update(&mut self, _bucket: usize, _learning_rate: f64, _gradient: &[f32]) {}

    fn state(&self, _bucket: usize) -> (&[f32], &[f32]) {
        (&self.0, &self.0)
    }

    fn restore(&mut self, _bucket: usize, _parameters: &[f32], _velocities: &[f32]) {}
}

#[test]
fn a_worker_that_waits_for_its_own_server_finds_the_rank_that_this_one_waits_for() {
    let (_, alarm) = one_alarm(|index, rank| {
        let layout = ParameterLayout::from_shapes([("weight".to_owned(), vec![1])]);
        let plan = ServerPlan::new(
            &BucketPlan::new(&layout, 4),
            3,
            vec![0],
            Consistency::Synchronous,
        );
        let link = rank.communicator.duplicate().unwrap();
        if index > 0 {
            return sleep_until_the_end(rank);
        }
        let server = Arc::new(Server::new(
            &plan,
            Arc::clone(&link),
            Box::new(NoUpdate([0.0])),
        ));
        let beside = Arc::clone(&server);
        let thread = std::thread::spawn(move || beside.serve_or_end_the_job());
        let mut client = Arc::new(ServerClient::new(
            plan,
            link,
            Some(server),
            Arc::clone(&rank.rank_status),
        ));
        let pushed = client.reduce(BucketContext::default(), 0, &mut vec![1.0]);
        assert!(matches!(
            pushed,
            Err(CollectiveError::Aborted { rank: 0, .. })
        ));
        thread.join().unwrap().unwrap_err();
    });
    // Both others hang; the one that was busy last may not have been so for long enough to be
    // named, too.
    assert!(
        matches!(&alarm.cause, AlarmCause::Busy(ranks) if !ranks.contains(&0)),
        "{alarm}"
    );
}

#[test]
fn a_world_of_one_is_not_watched() {
    let alarms = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&alarms);
    let rank_status = Arc::new(RankStatus::new());
    let on_alarm = Arc::new(move |_: &Alarm| {
        counted.fetch_add(1, Ordering::Relaxed);
    });
    let communicator = SingleCommunicator::new();
    let watchdog = Watchdog::start(&communicator, rank_status, Duration::ZERO, on_alarm).unwrap();
    assert!(format!("{watchdog:?}").contains("thread: None"));
    drop(watchdog);
    assert_eq!(alarms.load(Ordering::Relaxed), 0);
}
