//! Position of a rank in its run. Other threads of the rank can read it at any time.
//!
//! In: notes of the training loop and of watched calls. Out: a [`RankReport`], as a line of text or
//! as bytes for another rank.
//! Invariant: times are durations, because ranks have no common clock. Every note counts as
//! progress.

use std::fmt::{Display, Formatter};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Current activity of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Phase {
    /// Before the first step.
    Starting,
    /// Downloading, reading or hashing the data.
    Opening,
    /// Waiting for a batch or preparing it.
    Data,
    /// Forward pass.
    Forward,
    /// Backward pass.
    Backward,
    /// Waiting for gradients of other ranks.
    Waiting,
    /// Update of the parameters.
    Optimizer,
    /// Evaluation.
    Evaluation,
    /// Writing or reading a checkpoint.
    Checkpoint,
    /// Waiting for requests, on a rank that is only a server. No rank waits for it.
    Serving,
    /// After the last step.
    Ending,
}

impl Phase {
    /// All phases in the order of their codes.
    const ALL: [Self; 11] = [
        Self::Starting,
        Self::Opening,
        Self::Data,
        Self::Forward,
        Self::Backward,
        Self::Waiting,
        Self::Optimizer,
        Self::Evaluation,
        Self::Checkpoint,
        Self::Serving,
        Self::Ending,
    ];
}

impl Display for Phase {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> std::fmt::Result {
        formatter.pad(&format!("{self:?}").to_lowercase())
    }
}

/// Position of this rank, shared by its threads.
#[derive(Debug)]
pub struct RankStatus {
    position: Mutex<Position>,
    /// Counted progress.
    count: AtomicU64,
    /// Source of more progress, counted elsewhere.
    source: Option<fn() -> u64>,
}

#[derive(Debug)]
struct Position {
    epoch: u64,
    step: u64,
    bucket: Option<usize>,
    phase: Phase,
    phase_since: Instant,
    /// All counted progress at the start of the phase.
    count_before: u64,
    /// Calls in progress, oldest first.
    calls: Vec<Call>,
    /// Number of calls that have started.
    num_calls: u64,
    /// Time of the last change, noted or observed, and all counted progress at that time.
    changed: (Instant, u64),
}

/// A call that may wait for other ranks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub(super) number: u64,
    name: &'static str,
    pub(super) since: Instant,
}

impl Default for RankStatus {
    fn default() -> Self {
        let now = Instant::now();
        Self {
            position: Mutex::new(Position {
                epoch: 0,
                step: 0,
                bucket: None,
                phase: Phase::Starting,
                phase_since: now,
                count_before: 0,
                calls: Vec::new(),
                num_calls: 0,
                changed: (now, 0),
            }),
            count: AtomicU64::new(0),
            source: None,
        }
    }
}

impl RankStatus {
    /// Returns the status at the start of epoch 0 and step 0.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the progress of work that does not depend on ranks. `source` returns a number that
    /// grows with the progress.
    #[must_use]
    pub fn counting(mut self, source: fn() -> u64) -> Self {
        self.source = Some(source);
        self
    }

    /// Starts a phase, even if it is the current phase.
    pub fn enter(&self, phase: Phase) {
        let mut position = self.change();
        position.phase = phase;
        position.phase_since = position.changed.0;
        position.count_before = self.count();
    }

    /// Starts a step.
    pub fn at(&self, epoch: u64, step: u64) {
        let mut position = self.change();
        position.epoch = epoch;
        position.step = step;
    }

    /// Sets the bucket of gradients that is being reduced.
    pub fn bucket(&self, bucket: Option<usize>) {
        self.change().bucket = bucket;
    }

    /// Counts progress inside a phase that may take long, such as bytes, files or batches.
    pub fn advance(&self, by: u64) {
        self.count.fetch_add(by, Ordering::Relaxed);
    }

    /// Notes that this rank waits in `call`, until the drop of the result.
    pub(crate) fn note(&self, call: &'static str) -> Noted<'_> {
        let mut position = self.change();
        let call = Call {
            number: position.num_calls,
            name: call,
            since: position.changed.0,
        };
        position.num_calls += 1;
        position.calls.push(call);
        Noted {
            status: self,
            number: call.number,
        }
    }

    /// Returns the call that has been in progress for the longest time.
    pub(super) fn oldest_call(&self) -> Option<Call> {
        self.lock().calls.first().copied()
    }

    /// Returns the current position.
    pub fn report(&self) -> RankReport {
        let count = self.count();
        let mut position = self.lock();
        if position.changed.1 != count {
            position.changed = (Instant::now(), count);
        }
        let call = position.calls.first();
        RankReport {
            epoch: position.epoch,
            step: position.step,
            phase: position.phase,
            phase_for: position.phase_since.elapsed(),
            count: count.saturating_sub(position.count_before),
            still_for: position.changed.0.elapsed(),
            bucket: position.bucket,
            call: call.map(|call| (call.name.to_owned(), call.since.elapsed())),
        }
    }

    /// Returns all counted progress.
    fn count(&self) -> u64 {
        let elsewhere = self.source.map_or(0, |source| source());
        self.count.load(Ordering::Relaxed).wrapping_add(elsewhere)
    }

    fn change(&self) -> MutexGuard<'_, Position> {
        let mut position = self.lock();
        position.changed.0 = Instant::now();
        position
    }

    fn lock(&self) -> MutexGuard<'_, Position> {
        self.position.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A noted call. The note ends with the drop.
pub(crate) struct Noted<'status> {
    status: &'status RankStatus,
    number: u64,
}

impl Drop for Noted<'_> {
    fn drop(&mut self) {
        let mut position = self.status.change();
        position.calls.retain(|call| call.number != self.number);
    }
}

/// Position of a rank at the time of a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankReport {
    /// Epoch of the rank.
    pub epoch: u64,
    /// Step of the rank.
    pub step: u64,
    /// Phase of the rank.
    pub phase: Phase,
    /// Time since the start of the phase.
    pub phase_for: Duration,
    /// Progress counted in this phase, such as bytes of data; 0 if the phase counts nothing.
    pub count: u64,
    /// Time since the last progress: a change of phase, step, bucket, call or count.
    pub still_for: Duration,
    /// Bucket of gradients under reduction.
    pub bucket: Option<usize>,
    /// Call in which the rank waits for other ranks, and the time since its start. Of several
    /// calls, the oldest.
    pub call: Option<(String, Duration)>,
}

impl RankReport {
    /// Returns the name of the call in which the rank waits.
    pub(super) fn call_name(&self) -> Option<&str> {
        self.call.as_ref().map(|(name, _)| name.as_str())
    }

    /// Returns eight numbers, little-endian, and the name of the call.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let (name, waited) = self.call.clone().unwrap_or_default();
        let numbers = [
            self.epoch,
            self.step,
            self.phase as u64,
            millis(self.phase_for),
            self.count,
            millis(self.still_for),
            self.bucket.map_or(u64::MAX, |bucket| bucket as u64),
            millis(waited),
        ];
        let mut bytes: Vec<u8> = numbers.into_iter().flat_map(u64::to_le_bytes).collect();
        bytes.extend(name.into_bytes());
        bytes
    }

    /// Returns `None` if the bytes are not a report.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (numbers, name) = bytes.split_at_checked(size_of::<[u64; 8]>())?;
        let mut numbers = numbers
            .as_chunks()
            .0
            .iter()
            .map(|number| u64::from_le_bytes(*number));
        let mut next = || numbers.next().unwrap_or_default();
        Some(Self {
            epoch: next(),
            step: next(),
            phase: *Phase::ALL.get(usize::try_from(next()).ok()?)?,
            phase_for: Duration::from_millis(next()),
            count: next(),
            still_for: Duration::from_millis(next()),
            bucket: usize::try_from(next())
                .ok()
                .filter(|&bucket| bucket != usize::MAX),
            call: {
                let waited = Duration::from_millis(next());
                let name = String::from_utf8_lossy(name).into_owned();
                (!name.is_empty()).then_some((name, waited))
            },
        })
    }

    /// Returns epoch, step and bucket as text.
    pub(super) fn place(&self) -> String {
        // Messages count from 1.
        let epoch = self.epoch.saturating_add(1);
        let step = self.step.saturating_add(1);
        let bucket = self
            .bucket
            .map_or_else(String::new, |bucket| format!(", bucket {bucket}"));
        format!("epoch {epoch}, step {step}{bucket}")
    }
}

impl Display for RankReport {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> std::fmt::Result {
        let place = self.place();
        let phase_for = seconds(self.phase_for);
        write!(formatter, "{place}, {} for {phase_for}", self.phase)?;
        if self.count > 0 {
            write!(formatter, ", {} counted", self.count)?;
        }
        match &self.call {
            Some((name, waited)) => write!(formatter, "; waits in {name} for {}", seconds(*waited)),
            None => formatter.write_str("; waits for no rank"),
        }
    }
}

/// Formats a duration as `2.5 s` or, from 10 s on, as `12 s`.
pub(super) fn seconds(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    let digits = usize::from(seconds < 9.95);
    format!("{seconds:.digits$} s")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_the_oldest_call() {
        let rank_status = RankStatus::new();
        rank_status.at(2, 7);
        rank_status.enter(Phase::Backward);
        rank_status.bucket(Some(0));
        assert_eq!(rank_status.report().call, None);
        let outer = rank_status.note("node_memory.sum_f32");
        std::thread::sleep(Duration::from_millis(2));
        let inner = rank_status.note("exchange");
        let report = rank_status.report();
        assert_eq!(
            (report.epoch, report.step, report.phase, report.bucket),
            (2, 7, Phase::Backward, Some(0))
        );
        assert_eq!(report.call_name(), Some("node_memory.sum_f32"));
        assert!(report.call.unwrap().1 >= Duration::from_millis(2));
        drop(outer);
        assert_eq!(rank_status.report().call_name(), Some("exchange"));
        drop(inner);
        rank_status.bucket(None);
        let report = rank_status.report();
        assert_eq!((report.call, report.bucket), (None, None));
    }

    #[test]
    fn whatever_is_noted_is_progress_and_nothing_else_is() {
        let rank_status = RankStatus::new();
        let is_progress = |what: &dyn Fn()| {
            rank_status.report();
            std::thread::sleep(Duration::from_millis(2));
            what();
            rank_status.report().still_for < Duration::from_millis(2)
        };
        assert!(is_progress(&|| rank_status.enter(Phase::Opening)));
        assert!(is_progress(&|| rank_status.enter(Phase::Opening)));
        assert!(is_progress(&|| rank_status.at(0, 1)));
        assert!(is_progress(&|| rank_status.advance(1)));
        assert!(is_progress(&|| rank_status.bucket(Some(0))));
        assert!(is_progress(&|| drop(rank_status.note("barrier"))));
        assert!(is_progress(&|| std::mem::forget(
            rank_status.note("barrier")
        )));
        assert!(!is_progress(&|| {}));
        assert!(!is_progress(&|| assert_eq!(rank_status.report().count, 1)));
    }

    #[test]
    fn a_report_has_the_progress_counted_in_its_phase() {
        static ELSEWHERE: AtomicU64 = AtomicU64::new(70);
        let rank_status = RankStatus::new().counting(|| ELSEWHERE.load(Ordering::Relaxed));
        rank_status.advance(5);
        rank_status.enter(Phase::Opening);
        assert_eq!(rank_status.report().count, 0);
        rank_status.advance(2);
        ELSEWHERE.fetch_add(10, Ordering::Relaxed);
        assert_eq!(rank_status.report().count, 12);
    }

    #[test]
    fn reports_arrive_unchanged_and_read_as_lines() {
        let waiting = RankReport {
            epoch: 1,
            step: u64::MAX,
            phase: Phase::Waiting,
            phase_for: Duration::from_millis(12_345),
            count: 0,
            still_for: Duration::from_millis(345),
            bucket: Some(2),
            call: Some(("all_reduce_sum".to_owned(), Duration::from_millis(9_500))),
        };
        let opening = RankReport {
            step: 7,
            phase: Phase::Opening,
            count: 4096,
            bucket: None,
            call: None,
            ..waiting.clone()
        };
        let cases = [
            (
                waiting,
                "epoch 2, step 18446744073709551615, bucket 2, waiting for 12 s; waits in \
                 all_reduce_sum for 9.5 s",
            ),
            (
                opening.clone(),
                "epoch 2, step 8, opening for 12 s, 4096 counted; waits for no rank",
            ),
        ];
        for (report, line) in cases {
            assert_eq!(report.to_string(), line);
            assert_eq!(RankReport::from_bytes(&report.to_bytes()), Some(report));
        }
        for phase in Phase::ALL {
            let report = RankReport {
                phase,
                ..opening.clone()
            };
            assert_eq!(RankReport::from_bytes(&report.to_bytes()), Some(report));
        }
        assert_eq!(RankReport::from_bytes(&[0; 5]), None);
        assert_eq!(RankReport::from_bytes(&[255; 72]), None);
    }
}
