//! The only clock of a training run: time by phase, and the memory high-water mark.
//!
//! In: durations. Out: [`Seconds`] of a step and of an epoch. Invariant: a duration is counted in one phase only, and
//! a rank counts its own time.

use crate::metrics::Seconds;
use std::fs;
use std::time::{Duration, Instant};

/// Most stretches kept: 40 MiB.
const MAX_SPANS: usize = 1 << 20;

/// What a rank spends time on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Waiting for the loader and copying to the device.
    Data,
    /// Logits and loss.
    Forward,
    /// Gradients.
    Backward,
    /// Waiting for collectives.
    Communication,
    /// Update of the parameters.
    Optimizer,
    /// Test split.
    Evaluation,
    /// Writing checkpoints.
    Checkpoint,
}

/// Adds up time by phase, for the current step and for the current epoch; keeps what happened when, if asked to.
#[derive(Debug, Clone, Default)]
pub struct PhaseClock {
    step: Seconds,
    epoch: Seconds,
    spans: Option<Vec<Span>>,
}

/// One stretch of time on one rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Span {
    /// What it was.
    pub what: Activity,
    /// When it began.
    pub start: Instant,
    /// How long it took.
    pub duration: Duration,
}

/// What a rank, or its communication thread, was at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activity {
    /// A phase of the step.
    Phase(Phase),
    /// The reduction of this bucket.
    Bucket(usize),
}

impl PhaseClock {
    /// A clock at zero.
    pub fn new() -> Self {
        Self::default()
    }

    /// A clock at zero that keeps every stretch of time.
    pub fn keeping_spans() -> Self {
        Self { spans: Some(Vec::new()), ..Self::default() }
    }

    /// Counts the time since `start` in `phase`.
    pub fn add_since(&mut self, phase: Phase, start: Instant) {
        let duration = start.elapsed();
        for seconds in [&mut self.step, &mut self.epoch] {
            *of_phase(seconds, phase) += duration.as_secs_f64();
        }
        self.keep(Activity::Phase(phase), start, duration);
    }

    /// Counts a bucket's reduction, which went on beside the phases.
    pub fn add_bucket(&mut self, bucket: usize, start: Instant, end: Instant) {
        let duration = end - start;
        for seconds in [&mut self.step, &mut self.epoch] {
            seconds.reduction += duration.as_secs_f64();
        }
        self.keep(Activity::Bucket(bucket), start, duration);
    }

    /// Runs `work` and counts its time in `phase`. A device that computes behind the caller's back must be waited
    /// for inside `work`, else its time lands in a later phase.
    pub fn time<T>(&mut self, phase: Phase, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = work();
        self.add_since(phase, start);
        result
    }

    /// The stretches kept since the last call.
    pub fn take_spans(&mut self) -> Vec<Span> {
        self.spans.as_mut().map(std::mem::take).unwrap_or_default()
    }

    fn keep(&mut self, what: Activity, start: Instant, duration: Duration) {
        if let Some(spans) = self.spans.as_mut().filter(|spans| spans.len() < MAX_SPANS) {
            spans.push(Span { what, start, duration });
        }
    }

    /// The time since the last step was taken; the next step starts from zero.
    pub fn take_step(&mut self) -> Seconds {
        std::mem::take(&mut self.step)
    }

    /// The time since the last epoch was taken; the next epoch, and step, start from zero.
    pub fn take_epoch(&mut self) -> Seconds {
        self.step = Seconds::default();
        std::mem::take(&mut self.epoch)
    }
}

fn of_phase(seconds: &mut Seconds, phase: Phase) -> &mut f64 {
    match phase {
        Phase::Data => &mut seconds.data,
        Phase::Forward => &mut seconds.forward,
        Phase::Backward => &mut seconds.backward,
        Phase::Communication => &mut seconds.communication,
        Phase::Optimizer => &mut seconds.optimizer,
        Phase::Evaluation => &mut seconds.evaluation,
        Phase::Checkpoint => &mut seconds.checkpoint,
    }
}

/// Largest resident memory this process has had, bytes; 0 where the system does not tell (`VmHWM` of Linux).
pub fn peak_memory_bytes() -> u64 {
    status_bytes("VmHWM:")
}

/// Resident memory of this process now, bytes; 0 where the system does not tell (`VmRSS` of Linux).
pub fn resident_memory_bytes() -> u64 {
    status_bytes("VmRSS:")
}

fn status_bytes(field: &str) -> u64 {
    fs::read_to_string("/proc/self/status").ok().and_then(|status| bytes_of(&status, field)).unwrap_or(0)
}

/// Pages that the system had to supply to this process since it began (minor faults), all threads; 0 where it does not tell
/// (field 10 of Linux's `/proc/self/stat`). A step that asks for none reuses its memory.
pub fn minor_page_faults() -> u64 {
    fs::read_to_string("/proc/self/stat").ok().and_then(|stat| minor_faults(&stat)).unwrap_or(0)
}

fn minor_faults(stat: &str) -> Option<u64> {
    // The second field is the program's name in parentheses and may contain spaces.
    stat.rsplit_once(')')?.1.split_whitespace().nth(7)?.parse().ok()
}

fn bytes_of(status: &str, field: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A moment that long ago.
    fn ago(milliseconds: u64) -> Instant {
        Instant::now() - Duration::from_millis(milliseconds)
    }

    fn is_about(seconds: f64, expected: f64) -> bool {
        (expected..expected + 0.1).contains(&seconds)
    }

    #[test]
    fn time_counts_in_the_step_and_in_the_epoch() {
        let mut clock = PhaseClock::new();
        clock.add_since(Phase::Forward, ago(250));
        assert!(is_about(clock.take_step().forward, 0.25));
        clock.add_since(Phase::Forward, ago(500));
        clock.add_since(Phase::Evaluation, ago(1000));
        assert!(is_about(clock.take_step().forward, 0.5));
        let epoch = clock.take_epoch();
        assert!(is_about(epoch.forward, 0.75) && is_about(epoch.evaluation, 1.0));
        assert_eq!(epoch.step_total(), epoch.forward);
        assert_eq!(clock.take_epoch(), Seconds::default());
        assert!(clock.take_spans().is_empty());
    }

    #[test]
    fn a_keeping_clock_tells_what_happened_when_also_beside_the_phases() {
        let mut clock = PhaseClock::keeping_spans();
        let start = ago(30);
        clock.add_since(Phase::Backward, start);
        clock.add_bucket(3, start, start + Duration::from_millis(20));
        let spans = clock.take_spans();
        assert_eq!((spans[0].what, spans[0].start), (Activity::Phase(Phase::Backward), start));
        let bucket = Span { what: Activity::Bucket(3), start, duration: Duration::from_millis(20) };
        assert_eq!(spans[1..], [bucket]);
        let step = clock.take_step();
        assert_eq!((step.reduction, step.step_total()), (0.02, step.backward));
        assert!(clock.take_spans().is_empty());
    }

    #[test]
    fn timed_work_gives_back_its_result() {
        let mut clock = PhaseClock::new();
        assert_eq!(clock.time(Phase::Data, || 7), 7);
        assert!(clock.take_step().data >= 0.0);
    }

    #[test]
    fn page_faults_are_read_behind_a_name_with_spaces() {
        assert_eq!(minor_faults("7 (a b) c) S 1 7 7 0 -1 4194304 1234 0 5 0 1 2"), Some(1234));
        assert_eq!(minor_faults("7 (a"), None);
        assert!(!cfg!(target_os = "linux") || minor_page_faults() > 100);
    }

    #[test]
    fn memory_is_read_in_bytes() {
        assert_eq!(bytes_of("VmPeak:\t 9 kB\nVmHWM:\t   2048 kB\n", "VmHWM:"), Some(2 * 1024 * 1024));
        assert_eq!(bytes_of("VmPeak: 9 kB\n", "VmHWM:"), None);
        assert!(!cfg!(target_os = "linux") || peak_memory_bytes() > 1024 * 1024);
        assert!(!cfg!(target_os = "linux") || resident_memory_bytes() > 1024 * 1024);
    }
}
