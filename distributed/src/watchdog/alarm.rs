//! Who keeps the others waiting.
//!
//! In: what every rank told of itself, or that it did not answer. Out: the rank at fault, and a message for people.
//! Invariant: a rank is named only by what it told; one without an answer comes before one that is busy, and that before one that
//! waits elsewhere.

use std::fmt::{Display, Formatter};
use std::time::Duration;

use super::report::{Report, seconds};
use crate::error::list;

/// Ranks that a headline tells of one by one.
const MAX_TOLD: usize = 4;

/// A rank has waited for too long. `Display` is the message: a line that begins `error (rank R): ` and a line for every rank.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Alarm {
    /// The rank that speaks.
    pub rank: usize,
    /// For how long it has waited.
    pub waited: Duration,
    /// How long answers were waited for.
    pub asked_for: Duration,
    /// What each rank told, in rank order; `None` is no answer. Empty if nobody could be asked.
    pub answers: Vec<Option<Report>>,
    /// Who is at fault.
    pub verdict: Verdict,
}

/// Who is at fault.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// These ranks did not answer.
    Silent(Vec<usize>),
    /// These ranks wait for nobody, so the others wait for them.
    Busy(Vec<usize>),
    /// These ranks wait in another call or step than most; all ranks, if there is no majority.
    Apart(Vec<usize>),
    /// All ranks wait at the same place.
    Together,
    /// Some rank has not started its watchdog, so nobody could be asked.
    NotStarted,
}

impl Verdict {
    /// The verdict on the answers of all ranks.
    pub(super) fn on(answers: &[Option<Report>]) -> Self {
        let ranks = |wanted: &dyn Fn(Option<&Report>) -> bool| -> Vec<usize> {
            (0..answers.len()).filter(|&rank| wanted(answers[rank].as_ref())).collect()
        };
        let silent = ranks(&|answer| answer.is_none());
        if !silent.is_empty() {
            return Self::Silent(silent);
        }
        let busy = ranks(&|answer| answer.is_some_and(|report| report.call.is_none()));
        if !busy.is_empty() {
            return Self::Busy(busy);
        }
        let common = majority(answers).map(meeting);
        let apart = ranks(&|answer| answer.map(meeting) != common);
        if apart.is_empty() { Self::Together } else { Self::Apart(apart) }
    }

    /// Whether the ranks that now wait may still come together: true where each rank waits for another.
    pub(super) fn may_pass(&self) -> bool {
        matches!(self, Self::Apart(_) | Self::Together)
    }
}

impl Alarm {
    /// What is wrong, in one line.
    pub fn reason(&self) -> String {
        format!("no progress for {}: {}", seconds(self.waited), self.fault())
    }

    fn fault(&self) -> String {
        let told = |ranks: &[usize], tell: &dyn Fn(usize, &Report) -> String| {
            let mut texts: Vec<String> = ranks
                .iter()
                .take(MAX_TOLD)
                .filter_map(|&rank| self.answers[rank].as_ref().map(|report| tell(rank, report)))
                .collect();
            if ranks.len() > MAX_TOLD {
                texts.push(format!("and {} more", ranks.len() - MAX_TOLD));
            }
            texts.join("; ")
        };
        let call = |report: &Report| report.call.map_or("no call", |(name, _)| name);
        match &self.verdict {
            Verdict::Silent(ranks) => {
                let (do_not, their) =
                    if ranks.len() == 1 { ("does not", "its machine is") } else { ("do not", "their machines are") };
                format!("{} {do_not} answer: stopped or ended, or {their} gone or overloaded", list(ranks))
            }
            Verdict::Busy(ranks) => told(ranks, &|rank, report| {
                let (phase, place, busy) = (report.phase, report.place(), seconds(report.phase_for));
                format!("rank {rank} waits for nobody, busy in {phase} of {place} for {busy}")
            }),
            Verdict::Apart(ranks) => {
                let apart =
                    told(ranks, &|rank, report| format!("rank {rank} waits in {} of {}", call(report), report.place()));
                let rule = "every rank must make the same calls in the same order";
                match majority(&self.answers) {
                    Some(most) => format!("{apart}, most in {} of {}; {rule}", call(most), most.place()),
                    None => format!("{apart}; {rule}"),
                }
            }
            Verdict::Together => {
                let place = majority(&self.answers)
                    .map_or_else(String::new, |report| format!(" in {} of {}", call(report), report.place()));
                format!("all ranks wait{place}: a connection is lost, or the call takes longer than the timeout")
            }
            Verdict::NotStarted => "not all ranks have started their watchdogs".to_owned(),
        }
    }
}

impl Display for Alarm {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "error (rank {}): {}", self.rank, self.reason())?;
        for (rank, answer) in self.answers.iter().enumerate() {
            match answer {
                Some(report) => write!(formatter, "\n  rank {rank}: {report}")?,
                None => write!(formatter, "\n  rank {rank}: no answer within {}", seconds(self.asked_for))?,
            }
        }
        Ok(())
    }
}

/// What must be equal on ranks that wait for each other.
fn meeting(report: &Report) -> (u64, u64, Option<usize>, Option<&'static str>) {
    (report.epoch, report.step, report.bucket, report.call.map(|(name, _)| name))
}

/// A report of the ranks that are more than half of all and wait at the same place.
fn majority(answers: &[Option<Report>]) -> Option<&Report> {
    let same = |report: &&Report| answers.iter().flatten().filter(|other| meeting(other) == meeting(report)).count();
    answers.iter().flatten().max_by_key(same).filter(|report| 2 * same(report) > answers.len())
}

#[cfg(test)]
mod tests {
    use super::super::whereabouts::Phase;
    use super::*;

    fn report(step: u64, call: Option<&'static str>) -> Option<Report> {
        Some(Report {
            epoch: 0,
            step,
            phase: Phase::Backward,
            phase_for: Duration::from_secs(61),
            bucket: None,
            call: call.map(|name| (name, Duration::from_secs(60))),
        })
    }

    fn alarm(answers: Vec<Option<Report>>) -> Alarm {
        let verdict = Verdict::on(&answers);
        Alarm { rank: 0, waited: Duration::from_secs(60), asked_for: Duration::from_secs(3), answers, verdict }
    }

    #[test]
    fn a_silent_rank_comes_before_a_busy_one() {
        let alarm = alarm(vec![report(7, Some("barrier")), report(7, None), None]);
        assert_eq!(alarm.verdict, Verdict::Silent(vec![2]));
        assert_eq!(
            alarm.to_string(),
            "error (rank 0): no progress for 60 s: rank 2 does not answer: stopped or ended, or its machine is gone or \
             overloaded\n  rank 0: epoch 0, step 7, backward for 61 s; waits in barrier for 60 s\n  rank 1: epoch 0, step 7, \
             backward for 61 s; waits for nobody\n  rank 2: no answer within 3.0 s"
        );
    }

    #[test]
    fn a_busy_rank_comes_before_one_elsewhere() {
        let alarm = alarm(vec![report(7, Some("barrier")), report(6, None), report(8, Some("barrier"))]);
        assert_eq!(alarm.verdict, Verdict::Busy(vec![1]));
        let text = "no progress for 60 s: rank 1 waits for nobody, busy in backward of epoch 0, step 6 for 61 s";
        assert_eq!(alarm.reason(), text);
    }

    #[test]
    fn the_minority_is_named() {
        let rule = "every rank must make the same calls in the same order";
        let other_call =
            alarm(vec![report(7, Some("barrier")), report(7, Some("exchange")), report(7, Some("exchange"))]);
        assert_eq!(other_call.verdict, Verdict::Apart(vec![0]));
        let text = "rank 0 waits in barrier of epoch 0, step 7, most in exchange of epoch 0, step 7";
        assert_eq!(other_call.reason(), format!("no progress for 60 s: {text}; {rule}"));
        let other_step =
            alarm(vec![report(7, Some("barrier")), report(7, Some("barrier")), report(8, Some("barrier"))]);
        assert_eq!(other_step.verdict, Verdict::Apart(vec![2]));
    }

    #[test]
    fn without_a_majority_all_are_named() {
        let alarm = alarm(vec![report(7, Some("barrier")), report(7, Some("exchange"))]);
        assert_eq!(alarm.verdict, Verdict::Apart(vec![0, 1]));
        let text = "rank 0 waits in barrier of epoch 0, step 7; rank 1 waits in exchange of epoch 0, step 7";
        assert!(alarm.reason().contains(text), "{alarm}");
    }

    #[test]
    fn nobody_is_named_where_all_wait_together() {
        let alarm = alarm(vec![report(7, Some("barrier")); 3]);
        assert_eq!(alarm.verdict, Verdict::Together);
        assert!(alarm.reason().contains("all ranks wait in barrier of epoch 0, step 7: "), "{alarm}");
    }

    #[test]
    fn a_headline_stays_short_in_a_large_world() {
        let mut answers = vec![report(7, None); 64];
        answers[0] = report(7, Some("barrier"));
        assert!(alarm(answers).reason().ends_with("for 61 s; and 59 more"));
    }
}
