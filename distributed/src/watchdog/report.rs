//! The report of a rank on its position.
//!
//! In: its status. Out: a line of text, or bytes for another rank.
//! Invariant: times are durations, as ranks have no common clock.

use std::fmt::{Display, Formatter};
use std::time::Duration;

use super::phase::Phase;
use super::rank_status::{call_code, call_name};

/// Bytes of a report on its way.
pub(super) const REPORT_BYTES: usize = 9 * size_of::<u64>();

/// The position of a rank when it was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankReport {
    /// Its epoch.
    pub epoch: u64,
    /// Its step.
    pub step: u64,
    /// Its phase.
    pub phase: Phase,
    /// For how long it has been in this phase.
    pub phase_for: Duration,
    /// Progress counted in this phase, such as bytes of data; 0 if the phase counts nothing.
    pub count: u64,
    /// For how long it has made no progress: no phase, step, bucket, call or count has changed.
    pub still_for: Duration,
    /// The bucket of gradients it reduces.
    pub bucket: Option<usize>,
    /// The call in which it waits for other ranks, and for how long; of several, the one that has
    /// waited for longest.
    pub call: Option<(&'static str, Duration)>,
}

impl RankReport {
    /// Returns the time that the rank has been waiting for other ranks; zero if it is not waiting.
    pub fn waited(&self) -> Duration {
        self.call.map_or(Duration::ZERO, |(_, waited)| waited)
    }

    pub(super) fn to_bytes(&self) -> [u8; REPORT_BYTES] {
        let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let (call, waited) = self
            .call
            .map_or((0, 0), |(name, waited)| (call_code(name), millis(waited)));
        let bucket = self.bucket.map_or(0, |bucket| bucket as u64 + 1);
        let phase = self.phase as u64;
        let phase_for = millis(self.phase_for);
        let still_for = millis(self.still_for);
        let numbers = [
            self.epoch, self.step, phase, phase_for, self.count, still_for, bucket, call, waited,
        ];
        let mut bytes = [0; REPORT_BYTES];
        bytes
            .as_chunks_mut()
            .0
            .iter_mut()
            .zip(numbers)
            .for_each(|(place, number)| *place = number.to_le_bytes());
        bytes
    }

    /// `None` if the bytes are no report.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (numbers, []) = bytes.as_chunks() else {
            return None;
        };
        let numbers: Vec<u64> = numbers
            .iter()
            .map(|&number| u64::from_le_bytes(number))
            .collect();
        let [
            epoch,
            step,
            phase,
            phase_for,
            count,
            still_for,
            bucket,
            call,
            waited,
        ] = *numbers.as_slice()
        else {
            return None;
        };
        Some(Self {
            epoch,
            step,
            phase: Phase::from_code(phase)?,
            phase_for: Duration::from_millis(phase_for),
            count,
            still_for: Duration::from_millis(still_for),
            bucket: bucket
                .checked_sub(1)
                .and_then(|bucket| usize::try_from(bucket).ok()),
            call: call_name(call).map(|name| (name, Duration::from_millis(waited))),
        })
    }

    /// Epoch, step and bucket.
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
        write!(
            formatter,
            "{}, {} for {}",
            self.place(),
            self.phase,
            seconds(self.phase_for)
        )?;
        if self.count > 0 {
            write!(formatter, ", {} counted", self.count)?;
        }
        match self.call {
            Some((name, waited)) => write!(formatter, "; waits in {name} for {}", seconds(waited)),
            None => formatter.write_str("; waits for no rank"),
        }
    }
}

/// `2.5 s` or, from 10 s on, `12 s`.
pub(super) fn seconds(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    if seconds < 9.95 {
        format!("{seconds:.1} s")
    } else {
        format!("{seconds:.0} s")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_survives_its_way() {
        let report = RankReport {
            epoch: 3,
            step: u64::MAX,
            phase: Phase::Ending,
            phase_for: Duration::from_millis(12_345),
            count: 7,
            still_for: Duration::from_millis(345),
            bucket: Some(0),
            call: Some(("barrier", Duration::from_millis(1_500))),
        };
        assert_eq!(
            RankReport::from_bytes(&report.to_bytes()),
            Some(report.clone())
        );
        let idle = RankReport {
            bucket: None,
            call: None,
            ..report
        };
        assert_eq!(RankReport::from_bytes(&idle.to_bytes()), Some(idle));
        assert_eq!(RankReport::from_bytes(&[0; 5]), None);
        assert_eq!(RankReport::from_bytes(&[255; REPORT_BYTES]), None);
    }

    #[test]
    fn a_report_reads_as_a_line() {
        let report = RankReport {
            epoch: 1,
            step: 7,
            phase: Phase::Waiting,
            phase_for: Duration::from_secs(12),
            count: 0,
            still_for: Duration::from_secs(9),
            bucket: Some(2),
            call: Some(("all_reduce_sum", Duration::from_millis(9_500))),
        };
        let text = "epoch 2, step 8, bucket 2, waiting for 12 s; waits in all_reduce_sum for 9.5 s";
        assert_eq!(report.to_string(), text);
        let opening = RankReport {
            phase: Phase::Opening,
            count: 4096,
            bucket: None,
            call: None,
            ..report
        };
        assert_eq!(
            opening.to_string(),
            "epoch 2, step 8, opening for 12 s, 4096 counted; waits for no rank"
        );
    }
}
