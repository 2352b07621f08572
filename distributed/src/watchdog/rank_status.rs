//! The position of a rank in its run, readable by its other threads at any time.
//!
//! In: notes of the training loop and of watched calls. Out: a [`RankReport`] of the moment.
//! Invariant: writing never waits; a reader may see a new step with an old phase, never a value
//! that was not written.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::phase::Phase;
use super::report::RankReport;

/// Calls that can be noted at once; further ones, of more threads, are made all the same.
const SLOTS: usize = 8;

/// Names of the calls that can wait for other ranks; the code of a call is its index plus one.
const CALLS: [&str; 18] = [
    "all_reduce_sum",
    "all_reduce_sum_f64",
    "all_reduce_sum_u64",
    "all_reduce_max_u64",
    "broadcast",
    "all_gather",
    "barrier",
    "send",
    "receive",
    "exchange",
    "receive_any",
    "the answer of the local server",
    "duplicate",
    "node_memory",
    "node_memory.sum_f32",
    "node_memory.sum_u64",
    "ncclCommInitRank",
    "ncclAllReduce",
];

/// Returns the name of a call from its code; `None` for 0, which is no call, and unknown codes.
pub(super) fn call_name(code: u64) -> Option<&'static str> {
    CALLS
        .get(usize::try_from(code.checked_sub(1)?).ok()?)
        .copied()
}

/// Returns the code of a call.
pub(super) fn call_code(name: &str) -> u64 {
    let index = CALLS.iter().position(|&call| call == name);
    index.expect("every call that is noted has a code") as u64 + 1
}

/// The position of this rank; shared by its threads, written without locks.
#[derive(Debug)]
pub struct RankStatus {
    /// Start of all stamps.
    base: Instant,
    epoch: AtomicU64,
    step: AtomicU64,
    /// The bucket plus one; 0 is none.
    bucket: AtomicU64,
    phase: AtomicU64,
    /// Progress that was counted.
    count: AtomicU64,
    /// More of it, counted elsewhere.
    source: Option<fn() -> u64>,
    /// All of it at the beginning of the phase.
    count_before: AtomicU64,
    /// Calls under way; 0 is none.
    calls: [AtomicU64; SLOTS],
    /// Calls that have ended: most begin and end between two looks.
    num_ended: AtomicU64,
    /// The trace that a reader saw last, and the time when it had changed.
    seen: Mutex<(Trace, Instant)>,
}

/// All that changes while a rank makes progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Trace {
    place: [u64; 6],
    calls: [u64; SLOTS],
}

impl Default for RankStatus {
    fn default() -> Self {
        let now = Instant::now();
        Self {
            base: now,
            epoch: AtomicU64::new(0),
            step: AtomicU64::new(0),
            bucket: AtomicU64::new(0),
            phase: AtomicU64::new(Phase::Starting as u64),
            count: AtomicU64::new(0),
            source: None,
            count_before: AtomicU64::new(0),
            calls: std::array::from_fn(|_| AtomicU64::new(0)),
            num_ended: AtomicU64::new(0),
            seen: Mutex::new((Trace::default(), now)),
        }
    }
}

impl RankStatus {
    /// At the start of epoch 0 and step 0.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the same, with the progress of work that knows nothing of ranks: `source` gives a
    /// number that grows with it.
    #[must_use]
    pub fn counting(mut self, source: fn() -> u64) -> Self {
        self.source = Some(source);
        self
    }

    /// Begins a phase, also if it is the one before.
    pub fn enter(&self, phase: Phase) {
        self.count_before.store(self.count(), Ordering::Relaxed);
        self.phase
            .store(self.stamp(phase as u64), Ordering::Relaxed);
    }

    /// Begins a step.
    pub fn at(&self, epoch: u64, step: u64) {
        self.epoch.store(epoch, Ordering::Relaxed);
        self.step.store(step, Ordering::Relaxed);
    }

    /// Sets the bucket of gradients that is being reduced.
    pub fn bucket(&self, bucket: Option<usize>) {
        self.bucket.store(
            bucket.map_or(0, |bucket| bucket as u64 + 1),
            Ordering::Relaxed,
        );
    }

    /// Counts progress inside a phase that may take long: bytes, files, batches.
    pub fn advance(&self, by: u64) {
        self.count.fetch_add(by, Ordering::Relaxed);
    }

    /// Returns the current position.
    pub fn report(&self) -> RankReport {
        let [phase, bucket] =
            [&self.phase, &self.bucket].map(|place| place.load(Ordering::Relaxed));
        let oldest = self.oldest_call();
        RankReport {
            epoch: self.epoch.load(Ordering::Relaxed),
            step: self.step.load(Ordering::Relaxed),
            phase: Phase::from_code(code(phase)).unwrap_or(Phase::Starting),
            phase_for: self.since(phase),
            count: self
                .count()
                .saturating_sub(self.count_before.load(Ordering::Relaxed)),
            still_for: self.still_for(),
            bucket: bucket
                .checked_sub(1)
                .and_then(|bucket| usize::try_from(bucket).ok()),
            call: oldest
                .and_then(|call| call_name(code(call.0)).map(|name| (name, self.since(call.0)))),
        }
    }

    /// For how long nothing has been noted, as far as its readers could see: they look again and
    /// again.
    fn still_for(&self) -> Duration {
        let places = [
            &self.epoch,
            &self.step,
            &self.bucket,
            &self.phase,
            &self.num_ended,
        ];
        let [epoch, step, bucket, phase, num_ended] =
            places.map(|place| place.load(Ordering::Relaxed));
        let calls = std::array::from_fn(|slot| self.calls[slot].load(Ordering::Relaxed));
        let trace = Trace {
            place: [epoch, step, bucket, phase, num_ended, self.count()],
            calls,
        };
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.0 != trace {
            *seen = (trace, Instant::now());
        }
        seen.1.elapsed()
    }

    /// Returns all progress that was counted.
    fn count(&self) -> u64 {
        self.count
            .load(Ordering::Relaxed)
            .wrapping_add(self.source.map_or(0, |source| source()))
    }

    /// Notes that this rank waits in `call` until the result is dropped.
    pub(crate) fn note(&self, call: &'static str) -> Noted<'_> {
        let stamp = self.stamp(call_code(call));
        let free = |slot: &&AtomicU64| {
            slot.load(Ordering::Relaxed) == 0
                && slot
                    .compare_exchange(0, stamp, Ordering::Relaxed, Ordering::Relaxed)
                    .is_ok()
        };
        Noted {
            slot: self.calls.iter().find(free),
            num_ended: &self.num_ended,
        }
    }

    /// Returns the call that has been under way for longest.
    pub(super) fn oldest_call(&self) -> Option<Underway> {
        // The start is in the upper bits.
        let calls = self.calls.iter().map(|slot| slot.load(Ordering::Relaxed));
        calls.filter(|&call| call != 0).min().map(Underway)
    }

    /// For how long `call` has been under way.
    pub(super) fn waited(&self, call: Underway) -> Duration {
        self.since(call.0)
    }

    /// Now, with a code in the lowest byte.
    fn stamp(&self, code: u64) -> u64 {
        let elapsed = self.base.elapsed();
        (elapsed.as_secs() * 1_000_000 + u64::from(elapsed.subsec_micros())) << 8 | code
    }

    /// Returns the time since a stamp.
    fn since(&self, stamp: u64) -> Duration {
        self.base
            .elapsed()
            .saturating_sub(Duration::from_micros(stamp >> 8))
    }
}

/// Returns the code of a stamp.
fn code(stamp: u64) -> u64 {
    stamp & 0xff
}

/// One call under way, identified by its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Underway(u64);

/// A call that is noted until this is dropped.
pub(crate) struct Noted<'status> {
    /// `None` where all slots were taken.
    slot: Option<&'status AtomicU64>,
    num_ended: &'status AtomicU64,
}

impl Drop for Noted<'_> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            slot.store(0, Ordering::Relaxed);
        }
        self.num_ended.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_tells_the_oldest_call() {
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
        assert!(
            report
                .call
                .is_some_and(|(name, waited)| name == "node_memory.sum_f32"
                    && waited >= Duration::from_millis(2))
        );
        drop(outer);
        assert!(
            rank_status
                .report()
                .call
                .is_some_and(|(name, _)| name == "exchange")
        );
        drop(inner);
        rank_status.bucket(None);
        assert_eq!(
            (rank_status.report().call, rank_status.report().bucket),
            (None, None)
        );
    }

    #[test]
    fn whatever_is_noted_is_progress_and_nothing_else_is() {
        let rank_status = RankStatus::new();
        rank_status.report();
        let is_progress = |what: &dyn Fn()| {
            std::thread::sleep(Duration::from_millis(2));
            let before = rank_status.report().still_for;
            what();
            assert!(before >= Duration::from_millis(2), "{before:?}");
            let seen = rank_status.seen.lock().unwrap().1;
            rank_status.report();
            rank_status.seen.lock().unwrap().1 > seen
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
    fn a_report_tells_what_was_counted_in_its_phase() {
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
    fn more_calls_than_slots_are_not_noted_and_do_no_harm() {
        let rank_status = RankStatus::new();
        let noted: Vec<_> = (0..SLOTS + 2)
            .map(|_| rank_status.note("barrier"))
            .collect();
        assert_eq!(noted.iter().filter(|noted| noted.slot.is_none()).count(), 2);
        drop(noted);
        assert_eq!(rank_status.oldest_call(), None);
    }

    #[test]
    fn every_call_has_a_code() {
        for (index, name) in CALLS.into_iter().enumerate() {
            assert_eq!(call_code(name), index as u64 + 1);
            assert_eq!(call_name(call_code(name)), Some(name));
        }
        assert_eq!((call_name(0), call_name(99)), (None, None));
    }
}
