//! The ranks that make other ranks wait.
//!
//! In: the report of every rank, or its absence. Out: the ranks at fault, and a message.
//! Invariant: a rank is at fault only according to its report. Ranks without an answer have
//! priority over busy ranks. Busy ranks have priority over ranks that wait elsewhere. A rank that
//! makes progress is never at fault.

use std::fmt::{Display, Formatter};
use std::time::Duration;

use super::status::{Phase, RankReport, seconds};
use crate::error::list;

/// Number of ranks that a headline describes.
const MAX_NAMED: usize = 4;

/// Alarm of a rank that has waited for too long. `Display` is the message: a line that begins
/// `error (rank R): ` and a line for every rank.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Alarm {
    /// The rank that reports the alarm.
    pub rank: usize,
    /// Duration of the wait.
    pub waited: Duration,
    /// Time limit for answers.
    pub asked_for: Duration,
    /// Report of each rank, in rank order. `None` stands for no answer. Empty if the other ranks
    /// could not be asked.
    pub answers: Vec<Option<RankReport>>,
    /// The ranks at fault.
    pub cause: AlarmCause,
}

/// The ranks at fault.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AlarmCause {
    /// These ranks did not answer.
    Silent(Vec<usize>),
    /// These ranks do not wait and make no progress, so other ranks wait for them.
    Busy(Vec<usize>),
    /// These ranks wait in another call or step than most ranks. All ranks, if there is no
    /// majority.
    Apart(Vec<usize>),
    /// All ranks wait at the same place.
    Together,
    /// Some rank has not started its watchdog, so the ranks could not be asked.
    NotStarted,
}

impl AlarmCause {
    /// Returns the cause according to the answers of all ranks. Returns `None` if any rank has made
    /// progress within the last `timeout`.
    pub(super) fn on(answers: &[Option<RankReport>], timeout: Duration) -> Option<Self> {
        let silent: Vec<usize> = (0..answers.len())
            .filter(|&rank| answers[rank].is_none())
            .collect();
        if !silent.is_empty() {
            return Some(Self::Silent(silent));
        }
        let ranks = |wanted: &dyn Fn(&RankReport) -> bool| -> Vec<usize> {
            let is_wanted = |&rank: &usize| {
                let report = answers[rank].as_ref();
                report.is_some_and(|report| !is_at_rest(report) && wanted(report))
            };
            (0..answers.len()).filter(is_wanted).collect()
        };
        let busy = ranks(&|report| report.call.is_none() && report.still_for >= timeout);
        if !busy.is_empty() {
            return Some(Self::Busy(busy));
        }
        if !ranks(&|report| report.still_for < timeout).is_empty() {
            return None;
        }
        let common = majority(answers).map(meeting);
        let apart = ranks(&|report| Some(meeting(report)) != common);
        Some(if apart.is_empty() {
            Self::Together
        } else {
            Self::Apart(apart)
        })
    }

    /// Returns the minimum time until there can be a cause, if the ranks do not change.
    pub(super) fn is_due_in(answers: &[Option<RankReport>], timeout: Duration) -> Duration {
        let concerned = || {
            answers
                .iter()
                .flatten()
                .filter(|report| !is_at_rest(report))
        };
        let busy = concerned()
            .filter(|report| report.call.is_none())
            .map(|report| report.still_for)
            .max();
        let all = concerned().map(|report| report.still_for).min();
        timeout.saturating_sub(busy.max(all).unwrap_or_default())
    }
}

/// Returns true if a rank waits for requests of other ranks, so that no rank waits for it.
fn is_at_rest(report: &RankReport) -> bool {
    report.phase == Phase::Serving && report.call.is_none()
}

impl Alarm {
    /// Returns a one-line description of the problem.
    pub fn reason(&self) -> String {
        format!("no progress for {}: {}", seconds(self.waited), self.fault())
    }

    fn fault(&self) -> String {
        let described = |ranks: &[usize], describe: &dyn Fn(&RankReport) -> String| {
            let named = ranks.iter().take(MAX_NAMED);
            let named = named.filter_map(|&rank| Some((rank, self.answers[rank].as_ref()?)));
            let mut texts: Vec<String> = named
                .map(|(rank, report)| format!("rank {rank} {}", describe(report)))
                .collect();
            if ranks.len() > MAX_NAMED {
                texts.push(format!("and {} more", ranks.len() - MAX_NAMED));
            }
            texts.join("; ")
        };
        let place = |report: &RankReport| {
            let call = report.call_name().unwrap_or("no call");
            format!("in {call} of {}", report.place())
        };
        let most = majority(&self.answers);
        match &self.cause {
            AlarmCause::Silent(ranks) if ranks.len() == 1 => format!(
                "{} does not answer: stopped or ended, or its machine is gone or overloaded",
                list(ranks)
            ),
            AlarmCause::Silent(ranks) => format!(
                "{} do not answer: stopped or ended, or their machines are gone or overloaded",
                list(ranks)
            ),
            AlarmCause::Busy(ranks) => described(ranks, &|report| {
                let phase = report.phase;
                let busy = seconds(report.phase_for);
                format!(
                    "waits for no rank, busy in {phase} of {} for {busy}",
                    report.place()
                )
            }),
            AlarmCause::Apart(ranks) => {
                let apart = described(ranks, &|report| format!("waits {}", place(report)));
                let most = most.map_or_else(String::new, |most| format!(", most {}", place(most)));
                format!("{apart}{most}. Every rank must make the same calls in the same order")
            }
            AlarmCause::Together => {
                let full = match most.and_then(RankReport::call_name) {
                    Some("node_memory") => "/dev/shm of a node has too little space, ",
                    _ => "",
                };
                let place = most.map_or_else(String::new, |report| format!(" {}", place(report)));
                format!(
                    "all ranks wait{place}: {full}a connection is lost, or the call takes longer than the timeout"
                )
            }
            AlarmCause::NotStarted => "not all ranks have started their watchdogs".to_owned(),
        }
    }
}

impl Display for Alarm {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "error (rank {}): {}", self.rank, self.reason())?;
        for (rank, answer) in self.answers.iter().enumerate() {
            match answer {
                Some(report) => write!(formatter, "\n  rank {rank}: {report}")?,
                None => write!(
                    formatter,
                    "\n  rank {rank}: no answer within {}",
                    seconds(self.asked_for)
                )?,
            }
        }
        Ok(())
    }
}

/// Returns the properties that are equal on ranks that wait for each other.
fn meeting(report: &RankReport) -> (u64, u64, Option<usize>, Option<&str>) {
    (report.epoch, report.step, report.bucket, report.call_name())
}

/// Returns a report from the majority, if more than half of all ranks wait at the same place.
fn majority(answers: &[Option<RankReport>]) -> Option<&RankReport> {
    let concerned = || {
        answers
            .iter()
            .flatten()
            .filter(|report| !is_at_rest(report))
    };
    let same = |report: &&RankReport| {
        concerned()
            .filter(|other| meeting(other) == meeting(report))
            .count()
    };
    concerned()
        .max_by_key(same)
        .filter(|report| 2 * same(report) > concerned().count())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    fn report(step: u64, call: Option<&str>) -> Option<RankReport> {
        Some(RankReport {
            epoch: 0,
            step,
            phase: Phase::Backward,
            phase_for: Duration::from_secs(61),
            count: 0,
            still_for: TIMEOUT,
            bucket: None,
            call: call.map(|name| (name.to_owned(), Duration::from_secs(60))),
        })
    }

    fn alarm(answers: Vec<Option<RankReport>>) -> Alarm {
        let cause = AlarmCause::on(&answers, TIMEOUT).unwrap();
        Alarm {
            rank: 0,
            waited: TIMEOUT,
            asked_for: TIMEOUT,
            answers,
            cause,
        }
    }

    #[test]
    fn a_silent_rank_comes_before_a_busy_one() {
        let alarm = alarm(vec![report(7, Some("barrier")), report(7, None), None]);
        assert_eq!(alarm.cause, AlarmCause::Silent(vec![2]));
        assert_eq!(
            alarm.to_string(),
            "error (rank 0): no progress for 60 s: rank 2 does not answer: stopped or ended, or its machine is gone or \
             overloaded\n  rank 0: epoch 1, step 8, backward for 61 s; waits in barrier for 60 s\n  rank 1: epoch 1, step 8, \
             backward for 61 s; waits for no rank\n  rank 2: no answer within 60 s"
        );
    }

    /// Returns a rank whose last change was `seconds` ago.
    fn changed(seconds: u64, phase: Phase, call: Option<&str>) -> Option<RankReport> {
        report(7, call).map(|report| RankReport {
            phase,
            still_for: Duration::from_secs(seconds),
            ..report
        })
    }

    #[test]
    fn there_is_no_verdict_while_a_rank_makes_progress() {
        let waits = || changed(70, Phase::Waiting, Some("barrier"));
        for progresses in [
            changed(59, Phase::Data, None),
            changed(1, Phase::Data, Some("send")),
        ] {
            let answers = [waits(), progresses.clone(), waits()];
            assert_eq!(AlarmCause::on(&answers, TIMEOUT), None);
            let still_for = progresses.unwrap().still_for;
            assert_eq!(
                AlarmCause::is_due_in(&answers, TIMEOUT),
                TIMEOUT - still_for
            );
        }
        assert_eq!(
            AlarmCause::on(&[waits(), waits()], TIMEOUT),
            Some(AlarmCause::Together)
        );
    }

    #[test]
    fn a_rank_without_progress_is_named_although_another_makes_some() {
        let answers = [
            changed(70, Phase::Waiting, Some("barrier")),
            changed(60, Phase::Data, None),
            changed(1, Phase::Data, None),
        ];
        assert_eq!(
            AlarmCause::on(&answers, TIMEOUT),
            Some(AlarmCause::Busy(vec![1]))
        );
        assert_eq!(AlarmCause::is_due_in(&answers, TIMEOUT), Duration::ZERO);
    }

    #[test]
    fn a_rank_that_serves_is_named_only_where_it_waits_itself() {
        let idle = || changed(600, Phase::Serving, None);
        let waits = |call| changed(70, Phase::Waiting, Some(call));
        assert_eq!(
            AlarmCause::on(
                &[waits("receive"), changed(3, Phase::Data, None), idle()],
                TIMEOUT
            ),
            None
        );
        assert_eq!(
            AlarmCause::on(&[waits("barrier"), idle(), idle()], TIMEOUT),
            Some(AlarmCause::Together)
        );
        let sends = changed(70, Phase::Serving, Some("send"));
        let answers = [waits("barrier"), waits("barrier"), sends];
        assert_eq!(
            AlarmCause::on(&answers, TIMEOUT),
            Some(AlarmCause::Apart(vec![2]))
        );
    }

    #[test]
    fn a_busy_rank_comes_before_one_elsewhere() {
        let alarm = alarm(vec![
            report(7, Some("barrier")),
            report(6, None),
            report(8, Some("barrier")),
        ]);
        assert_eq!(alarm.cause, AlarmCause::Busy(vec![1]));
        let text = "no progress for 60 s: rank 1 waits for no rank, busy in backward of epoch 1, step 7 for 61 s";
        assert_eq!(alarm.reason(), text);
    }

    #[test]
    fn the_minority_is_named() {
        let rule = "Every rank must make the same calls in the same order";
        let other_call = alarm(vec![
            report(7, Some("barrier")),
            report(7, Some("exchange")),
            report(7, Some("exchange")),
        ]);
        assert_eq!(other_call.cause, AlarmCause::Apart(vec![0]));
        let text =
            "rank 0 waits in barrier of epoch 1, step 8, most in exchange of epoch 1, step 8";
        assert_eq!(
            other_call.reason(),
            format!("no progress for 60 s: {text}. {rule}")
        );
        let other_step = alarm(vec![
            report(7, Some("barrier")),
            report(7, Some("barrier")),
            report(8, Some("barrier")),
        ]);
        assert_eq!(other_step.cause, AlarmCause::Apart(vec![2]));
    }

    #[test]
    fn without_a_majority_all_are_named() {
        let alarm = alarm(vec![
            report(7, Some("barrier")),
            report(7, Some("exchange")),
        ]);
        assert_eq!(alarm.cause, AlarmCause::Apart(vec![0, 1]));
        let text = "rank 0 waits in barrier of epoch 1, step 8; rank 1 waits in exchange of epoch 1, step 8";
        assert!(alarm.reason().contains(text), "{alarm}");
    }

    #[test]
    fn nobody_is_named_where_all_wait_together() {
        let alarm = alarm(vec![report(7, Some("barrier")); 3]);
        assert_eq!(alarm.cause, AlarmCause::Together);
        assert!(
            alarm
                .reason()
                .contains("all ranks wait in barrier of epoch 1, step 8: a connection "),
            "{alarm}"
        );
        let allocates = self::alarm(vec![report(0, Some("node_memory")); 2]);
        assert!(
            allocates
                .reason()
                .contains("step 1: /dev/shm of a node has too little space, a "),
            "{allocates}"
        );
    }

    #[test]
    fn a_headline_stays_short_in_a_large_world() {
        let mut answers = vec![report(7, None); 64];
        answers[0] = report(7, Some("barrier"));
        assert!(alarm(answers).reason().ends_with("for 61 s; and 59 more"));
    }
}
