//! The only clock of a training run: the phases of a rank, for metrics, trace and watchdog.
//!
//! In: phases, entered and left. Out: [`Seconds`] of a step and of an epoch, spans for the trace,
//! the status of this rank.
//! Invariant: time counts only in the innermost phase. A rank counts only its own time.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use distributed::watchdog::{Phase, RankStatus};
use records::Seconds;

/// Maximum number of a rank's spans in a trace: 40 MiB.
pub const MAX_SPANS: usize = 1 << 20;

/// Sums of time by phase, for the current step and the current epoch.
///
/// The timer reports the phase to the watchdog.
#[derive(Debug, Default)]
pub struct Timer {
    status: Arc<RankStatus>,
    counted: RefCell<Counted>,
}

#[derive(Debug, Default)]
struct Counted {
    step: Seconds,
    epoch: Seconds,
    spans: Option<Vec<Span>>,
    /// Open phases, the innermost last. Each has the time up to which it has been counted.
    entered: Vec<(Phase, Instant)>,
}

/// A period of one activity on one rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Span {
    pub what: Activity,
    pub start: Instant,
    pub duration: Duration,
}

/// Activity of a rank or of its communication thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activity {
    /// A phase of the run.
    Phase(Phase),
    /// The reduction of this bucket.
    Bucket(usize),
}

/// Guard that ends a phase on drop.
#[must_use = "a phase ends when its guard is dropped"]
#[derive(Debug)]
pub struct PhaseGuard<'a>(&'a Timer);

impl Timer {
    /// Returns a timer at zero that reports to `status`.
    pub fn new(status: Arc<RankStatus>) -> Self {
        Self {
            status,
            ..Self::default()
        }
    }

    /// Keeps every span if `keeps_spans`.
    #[must_use]
    pub fn keeping_spans(self, keeps_spans: bool) -> Self {
        self.counted.borrow_mut().spans = keeps_spans.then(Vec::new);
        self
    }

    /// Reports the start of a step.
    pub fn begin_step(&self, epoch: u64, step: u64) {
        self.status.at(epoch, step);
    }

    /// Begins a phase; the outer phase pauses.
    ///
    /// Wait for an asynchronous device within the phase. Otherwise, its time counts in a later
    /// phase.
    pub fn enter(&self, phase: Phase) -> PhaseGuard<'_> {
        let now = Instant::now();
        let mut counted = self.counted.borrow_mut();
        counted.count_until(now);
        counted.entered.push((phase, now));
        self.status.enter(phase);
        PhaseGuard(self)
    }

    fn leave(&self) {
        let now = Instant::now();
        let mut counted = self.counted.borrow_mut();
        counted.count_until(now);
        counted.entered.pop();
        if let Some((outer, since)) = counted.entered.last_mut() {
            *since = now;
            self.status.enter(*outer);
        }
    }

    /// Counts the reduction of a bucket, which ran concurrently with the phases.
    pub fn add_bucket(&self, bucket: usize, start: Instant, end: Instant) {
        let counted = &mut *self.counted.borrow_mut();
        for seconds in [&mut counted.step, &mut counted.epoch] {
            seconds.reduction += (end - start).as_secs_f64();
        }
        counted.keep(Activity::Bucket(bucket), start, end);
    }

    /// Returns at most [`MAX_SPANS`] spans since the last call, and one more if spans are missing.
    pub fn take_spans(&self) -> Vec<Span> {
        self.counted
            .borrow_mut()
            .spans
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default()
    }

    /// Returns the time since the last call. The next step starts from zero.
    pub fn take_step(&self) -> Seconds {
        std::mem::take(&mut self.counted.borrow_mut().step)
    }

    /// Returns the time since the last call. The next epoch and step start from zero.
    pub fn take_epoch(&self) -> Seconds {
        self.take_step();
        std::mem::take(&mut self.counted.borrow_mut().epoch)
    }
}

impl Drop for PhaseGuard<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl Counted {
    /// Adds the time until `now` to the innermost phase.
    fn count_until(&mut self, now: Instant) {
        let Some(&(phase, since)) = self.entered.last() else {
            return;
        };
        for seconds in [&mut self.step, &mut self.epoch] {
            if let Some(seconds) = seconds_of(seconds, phase) {
                *seconds += (now - since).as_secs_f64();
            }
        }
        self.keep(Activity::Phase(phase), since, now);
    }

    fn keep(&mut self, what: Activity, start: Instant, end: Instant) {
        if let Some(spans) = self.spans.as_mut().filter(|spans| spans.len() <= MAX_SPANS) {
            spans.push(Span {
                what,
                start,
                duration: end - start,
            });
        }
    }
}

/// Returns the sum of a phase, if the phase has one.
fn seconds_of(seconds: &mut Seconds, phase: Phase) -> Option<&mut f64> {
    match phase {
        Phase::Data => Some(&mut seconds.data),
        Phase::Forward => Some(&mut seconds.forward),
        Phase::Backward => Some(&mut seconds.backward),
        Phase::Waiting => Some(&mut seconds.communication),
        Phase::Optimizer => Some(&mut seconds.optimizer),
        Phase::Evaluation => Some(&mut seconds.evaluation),
        Phase::Checkpoint => Some(&mut seconds.checkpoint),
        _ => None,
    }
}

/// Returns the wall-clock time.
pub fn seconds_since_1970() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs_f64()
}

#[cfg(test)]
mod tests {
    use std::thread::sleep;

    use super::*;

    /// Spends at least `milliseconds` in `phase`.
    fn spend(timer: &Timer, phase: Phase, milliseconds: u64) {
        let _phase = timer.enter(phase);
        sleep(Duration::from_millis(milliseconds));
    }

    #[test]
    fn time_counts_in_the_step_and_in_the_epoch() {
        let timer = Timer::default();
        spend(&timer, Phase::Forward, 2);
        let first = timer.take_step().forward;
        spend(&timer, Phase::Forward, 2);
        spend(&timer, Phase::Evaluation, 2);
        let second = timer.take_step();
        assert!(
            first >= 2e-3 && second.forward >= 2e-3 && second.evaluation >= 2e-3,
            "{first} {second:?}"
        );
        let epoch = timer.take_epoch();
        assert_eq!(
            (epoch.forward, epoch.evaluation),
            (first + second.forward, second.evaluation)
        );
        assert_eq!(epoch.step_total(), epoch.forward);
        assert_eq!(timer.take_epoch(), Seconds::default());
        assert!(timer.take_spans().is_empty());
    }

    #[test]
    fn every_moment_counts_only_in_the_innermost_phase_which_the_watchdog_gets() {
        let status = Arc::new(RankStatus::new());
        let timer = Timer::new(Arc::clone(&status)).keeping_spans(true);
        timer.begin_step(3, 70);
        let outer = timer.enter(Phase::Waiting);
        spend(&timer, Phase::Optimizer, 1);
        assert_eq!(
            status.report().phase,
            Phase::Waiting,
            "the outer phase continues"
        );
        drop(outer);
        let report = status.report();
        assert_eq!(
            (report.epoch, report.step, report.phase),
            (3, 70, Phase::Waiting),
            "until another is entered"
        );
        let spans = timer.take_spans();
        let what = [Phase::Waiting, Phase::Optimizer, Phase::Waiting].map(Activity::Phase);
        assert_eq!(spans.iter().map(|span| span.what).collect::<Vec<_>>(), what);
        assert!(
            spans
                .windows(2)
                .all(|pair| pair[0].start + pair[0].duration == pair[1].start),
            "{spans:?}"
        );
        let step = timer.take_step();
        let seconds = |index: usize| spans[index].duration.as_secs_f64();
        assert_eq!(
            (step.communication, step.optimizer),
            (seconds(0) + seconds(2), seconds(1))
        );
    }

    #[test]
    fn the_reduction_of_a_bucket_is_no_part_of_the_step() {
        let timer = Timer::default().keeping_spans(true);
        let start = Instant::now();
        timer.add_bucket(3, start, start + Duration::from_millis(20));
        let bucket = Span {
            what: Activity::Bucket(3),
            start,
            duration: Duration::from_millis(20),
        };
        assert_eq!(timer.take_spans(), [bucket]);
        let step = timer.take_step();
        assert_eq!((step.reduction, step.step_total()), (0.02, 0.0));
        assert!(timer.take_spans().is_empty());
    }
}
