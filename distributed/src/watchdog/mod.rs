//! Watchdog: no rank waits forever, and the alarm names the rank for which others wait.
//!
//! In: the calls of a [`WatchedCommunicator`] and the notes of a training loop. Out: an [`Alarm`],
//! then the end of the job.
//! Invariant: only a call that waits longer than the timeout raises an alarm, and only because of
//! ranks that make no progress for the timeout. The length of a computation does not matter. One
//! rank prints the alarm.
//!
//! Every rank has a thread with a duplicate communicator. The thread answers other ranks even while
//! this rank computes or waits. See [`Watchdog`].

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use self::watch::Watch;
use crate::{CollectiveError, Communicator, communicator::WaitPolicy};

mod alarm;
mod status;
mod watch;
mod watched;

pub use self::alarm::{Alarm, AlarmCause};
pub use self::status::{Phase, RankReport, RankStatus};
pub use self::watched::WatchedCommunicator;

/// Callback that prints an alarm. The job ends after the callback returns.
pub type OnAlarm = Arc<dyn Fn(&Alarm) + Send + Sync>;

/// Delay of each rank's alarm after the alarm of the rank before, if ranks cannot be asked. The
/// delay grows up to [`MAX_STAGGERED`] ranks.
const STAGGER: Duration = Duration::from_secs(1);

/// Number of ranks after which the delay grows no further.
const MAX_STAGGERED: u32 = 3;

/// Thread that ends the job when a call of this rank has waited for too long.
///
/// The thread asks all other ranks for their position. Ranks at fault have not answered, or have
/// made no progress, for the timeout. Progress is a change of phase, step, call or
/// [count](RankStatus::advance). A call may wait while every rank that others may wait for makes
/// progress. Of several waiting ranks, the first rank reports.
///
/// The thread runs from [`start`](Watchdog::start) until its drop, which ends it within a fraction
/// of a second. Ranks should run a last barrier before the drop, because a rank that ends earlier
/// no longer answers.
#[derive(Debug)]
pub struct Watchdog {
    timeout: Arc<Mutex<Duration>>,
    /// The thread, or `None` in a world of one rank.
    thread: Option<WatchdogThread>,
}

#[derive(Debug)]
struct WatchdogThread {
    /// Sender without messages. Its drop ends the thread.
    stop: Sender<()>,
    thread: JoinHandle<()>,
    /// Kept so that the thread is not the last owner of MPI's resources.
    _communicator: Arc<dyn Communicator>,
}

impl Watchdog {
    /// Starts the thread on a duplicate of `communicator`. Does nothing in a world of one rank.
    ///
    /// `communicator` is not a [`WatchedCommunicator`], because the thread's own calls are not
    /// progress.
    ///
    /// The thread raises an alarm if a call in `rank_status` has waited longer than `timeout` for
    /// ranks without progress. It also raises an alarm if not all ranks have called `start` within
    /// the timeout. It then calls `on_alarm`, and [`abort`](Communicator::abort) with exit code 1.
    ///
    /// # Errors
    /// Returns [`CollectiveError::WatchdogNeedsThreads`] on all ranks if the communicator does not
    /// [support threads](Communicator::supports_threads). The job can continue without a watchdog.
    /// Returns other errors if the job ends.
    ///
    /// # Collective
    /// Must be called by all ranks, with the same timeout.
    pub fn start(
        communicator: &dyn Communicator,
        rank_status: Arc<RankStatus>,
        timeout: Duration,
        on_alarm: OnAlarm,
    ) -> Result<Self, CollectiveError> {
        let limit = Arc::new(Mutex::new(timeout));
        if communicator.world_size() == 1 {
            return Ok(Self {
                timeout: limit,
                thread: None,
            });
        }
        if !communicator.supports_threads() {
            return Err(CollectiveError::WatchdogNeedsThreads {
                library: communicator.library(),
            });
        }
        let duplicate = duplicate_in_time(communicator, timeout, &on_alarm)?;
        duplicate.set_wait_policy(WaitPolicy::Sleep);
        let watch = Watch::new(
            Arc::clone(&duplicate),
            rank_status,
            Arc::clone(&limit),
            on_alarm,
        );
        let (stop, stopped) = channel();
        let thread = Builder::new().name("watchdog".to_owned());
        let thread = thread.spawn(move || watch.run(&stopped));
        let thread = thread.map_err(|error| not_started(communicator, &error))?;
        Ok(Self {
            timeout: limit,
            thread: Some(WatchdogThread {
                stop,
                thread,
                _communicator: duplicate,
            }),
        })
    }

    /// Changes the timeout, also for calls in progress. All ranks should use the same timeout.
    pub fn set_timeout(&self, timeout: Duration) {
        *self.timeout.lock().unwrap_or_else(PoisonError::into_inner) = timeout;
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        if let Some(WatchdogThread { stop, thread, .. }) = self.thread.take() {
            drop(stop);
            // The panic hook has printed a panic of the thread.
            let _ = thread.join();
        }
    }
}

fn not_started(communicator: &dyn Communicator, error: &std::io::Error) -> CollectiveError {
    CollectiveError::Failed(format!(
        "the watchdog's thread did not start on rank {}: {error}. Raise the limit of processes (ulimit -u, pids.max of the cgroup).",
        communicator.rank()
    ))
}

/// Returns a duplicate. Ends the job if not all ranks create it within `timeout`.
fn duplicate_in_time(
    communicator: &dyn Communicator,
    timeout: Duration,
    on_alarm: &OnAlarm,
) -> Result<Arc<dyn Communicator>, CollectiveError> {
    let rank = communicator.rank();
    let start = Instant::now();
    let staggered = u32::try_from(rank).unwrap_or(u32::MAX).min(MAX_STAGGERED);
    let limit = timeout.saturating_add(STAGGER * staggered);
    let (done, waits) = channel::<()>();
    std::thread::scope(|scope| {
        let thread = Builder::new().name("watchdog-start".to_owned());
        let thread = thread.spawn_scoped(scope, move || {
            if waits.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                let alarm = Alarm {
                    rank,
                    waited: start.elapsed(),
                    asked_for: Duration::ZERO,
                    answers: Vec::new(),
                    cause: AlarmCause::NotStarted,
                };
                on_alarm(&alarm);
                communicator.abort(&alarm.reason(), 1);
            }
        });
        thread.map_err(|error| not_started(communicator, &error))?;
        let duplicate = communicator.duplicate();
        drop(done);
        duplicate
    })
}
