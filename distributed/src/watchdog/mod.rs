//! No rank waits forever, and the alarm names the rank that the others wait for.
//!
//! In: the calls of a [`WatchedCommunicator`] and the notes of a training loop. Out: an [`Alarm`],
//! then the end of the job.
//! Invariant: only a call that waits longer than the timeout raises an alarm, and only because of
//! ranks without progress for as long. The length of a computation does not matter. One rank prints
//! the alarm.
//!
//! Every rank has a thread with a duplicate communicator, which answers other ranks even while this
//! rank computes or waits. See [`Watchdog`].

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use self::watch::{Timeout, Watch};
use crate::{CollectiveError, Communicator, communicator::WaitPolicy};

mod alarm;
mod inquiry;
mod phase;
mod rank_status;
mod report;
mod watch;
mod watched;

pub use self::alarm::{Alarm, AlarmCause};
pub use self::phase::Phase;
pub use self::rank_status::RankStatus;
pub use self::report::RankReport;
pub use self::watched::WatchedCommunicator;

/// Callback that prints an alarm; the job ends after it returns.
pub type OnAlarm = Box<dyn Fn(&Alarm) + Send>;

/// Time by which each rank delays its alarm after the rank before, if ranks cannot be asked, up to
/// [`MAX_STAGGERED`] ranks.
const STAGGER: Duration = Duration::from_secs(1);

/// Ranks from which on the wait for earlier ones grows no further.
const MAX_STAGGERED: u32 = 3;

/// A thread that ends the job when a call of this rank has waited for too long.
///
/// It asks all other ranks where they are, and names those at fault: that have not answered, or
/// made no progress, for the timeout. As long as every rank that others may wait for makes
/// progress, in phases, steps, calls or [counts](RankStatus::advance), the call may wait. Of
/// several ranks that wait, the first one speaks. It watches from [`start`](Watchdog::start) to its
/// drop, which ends the thread within a fraction of a second: ranks should make a last barrier
/// before, as a rank that ends earlier no longer answers.
#[derive(Debug)]
pub struct Watchdog {
    /// Nothing is ever sent: its drop ends the thread.
    stop: Option<Sender<()>>,
    /// `None` in a world of one.
    thread: Option<JoinHandle<()>>,
    timeout: Timeout,
    /// Kept so that the last owner of what MPI needs is not the thread.
    _communicator: Option<Arc<dyn Communicator>>,
}

impl Watchdog {
    /// Starts the thread on a duplicate of `communicator`; in a world of one does nothing.
    ///
    /// `communicator` is not a [`WatchedCommunicator`]: the thread's own calls are not progress.
    ///
    /// An alarm is due if a call noted in `rank_status` has waited longer than `timeout` for ranks
    /// without progress. It is also due if not all ranks have called `start` within the timeout.
    /// The thread then calls `on_alarm`, and [`abort`](Communicator::abort) with exit code 1.
    ///
    /// # Errors
    /// [`CollectiveError::WatchdogNeedsThreads`], on all ranks, if the communicator does not
    /// [support threads](Communicator::supports_threads); the job can continue without a watchdog.
    /// Others if the job ends.
    ///
    /// # Collective
    /// Must be called by all ranks, with the same timeout.
    pub fn start(
        communicator: &dyn Communicator,
        rank_status: Arc<RankStatus>,
        timeout: Duration,
        on_alarm: OnAlarm,
    ) -> Result<Self, CollectiveError> {
        if communicator.world_size() == 1 {
            return Ok(Self {
                stop: None,
                thread: None,
                timeout: Timeout::new(timeout),
                _communicator: None,
            });
        }
        if !communicator.supports_threads() {
            return Err(CollectiveError::WatchdogNeedsThreads {
                library: communicator.library(),
            });
        }
        let (duplicate, on_alarm) = duplicate_in_time(communicator, timeout, on_alarm)?;
        duplicate.set_wait_policy(WaitPolicy::Sleep);
        let (stop, stopped) = channel();
        let timeout = Timeout::new(timeout);
        let watch = Watch::new(
            Arc::clone(&duplicate),
            rank_status,
            timeout.clone(),
            on_alarm,
        );
        let rank = communicator.rank();
        let thread = std::thread::Builder::new()
            .name("watchdog".to_owned())
            .spawn(move || watch.run(&stopped));
        let thread = thread.map_err(|error| CollectiveError::WatchdogThread {
            rank,
            text: error.to_string(),
        })?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
            timeout,
            _communicator: Some(duplicate),
        })
    }

    /// Changes the timeout, for calls under way, too; all ranks should take the same.
    pub fn set_timeout(&self, timeout: Duration) {
        self.timeout.set(timeout);
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // The panic hook has printed a panic of the thread.
            let _ = thread.join();
        }
    }
}

/// Returns a duplicate, or the end of the job when not all ranks make it within `timeout`.
fn duplicate_in_time(
    communicator: &dyn Communicator,
    timeout: Duration,
    on_alarm: OnAlarm,
) -> Result<(Arc<dyn Communicator>, OnAlarm), CollectiveError> {
    let rank = communicator.rank();
    let start = Instant::now();
    let limit = timeout
        .saturating_add(STAGGER * u32::try_from(rank).unwrap_or(u32::MAX).min(MAX_STAGGERED));
    let (done, waits) = channel::<()>();
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("watchdog-start".to_owned());
        let thread = thread.spawn_scoped(scope, move || {
            if waits.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                let waited = start.elapsed();
                let alarm = Alarm {
                    rank,
                    waited,
                    asked_for: Duration::ZERO,
                    answers: Vec::new(),
                    cause: AlarmCause::NotStarted,
                };
                on_alarm(&alarm);
                communicator.abort(&alarm.reason(), 1);
            }
            on_alarm
        });
        let failed = |text: String| CollectiveError::WatchdogThread { rank, text };
        let thread = thread.map_err(|error| failed(error.to_string()))?;
        let duplicate = communicator.duplicate();
        drop(done);
        let on_alarm = thread
            .join()
            .map_err(|_| failed("it panicked".to_owned()))?;
        Ok((duplicate?, on_alarm))
    })
}
