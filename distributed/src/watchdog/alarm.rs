//! Who keeps the others waiting.
//!
//! In: what every rank told of itself, or that it did not answer. Out: the rank at fault, and a message for people.
//! Invariant: a rank is named only by what it told; one without an answer comes before one that is busy, and that before one that
//! waits elsewhere; no rank is at fault that makes progress.

use std::fmt::{Display, Formatter};
use std::time::Duration;

use super::phase::Phase;
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
    /// How long an answer was waited for.
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
    /// These ranks wait for nobody and make no progress, so the others wait for them.
    Busy(Vec<usize>),
    /// These ranks wait in another call or step than most; all ranks, if there is no majority.
    Apart(Vec<usize>),
    /// All ranks wait at the same place.
    Together,
    /// Some rank has not started its watchdog, so nobody could be asked.
    NotStarted,
}

impl Verdict {
    /// The verdict on the answers of all ranks; `None` while one of them makes progress: while something of it has changed within
    /// the last `timeout`.
    pub(super) fn on(answers: &[Option<Report>], timeout: Duration) -> Option<Self> {
        let ranks = |wanted: &dyn Fn(Option<&Report>) -> bool| -> Vec<usize> {
            (0..answers.len())
                .filter(|&rank| wanted(answers[rank].as_ref()))
                .collect()
        };
        let silent = ranks(&|answer| answer.is_none());
        if !silent.is_empty() {
            return Some(Self::Silent(silent));
        }
        let concerns = |answer: Option<&Report>, test: &dyn Fn(&Report) -> bool| {
            answer.is_some_and(|report| !is_at_rest(report) && test(report))
        };
        let busy = ranks(&|answer| {
            concerns(answer, &|report| {
                report.call.is_none() && report.still_for >= timeout
            })
        });
        if !busy.is_empty() {
            return Some(Self::Busy(busy));
        }
        if !ranks(&|answer| concerns(answer, &|report| report.still_for < timeout)).is_empty() {
            return None;
        }
        let common = majority(answers).map(meeting);
        let apart = ranks(&|answer| concerns(answer, &|report| Some(meeting(report)) != common));
        Some(if apart.is_empty() {
            Self::Together
        } else {
            Self::Apart(apart)
        })
    }

    /// How long it takes at least until there can be a verdict on ranks that do not change.
    pub(super) fn is_due_in(answers: &[Option<Report>], timeout: Duration) -> Duration {
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

/// Whether a rank waits for whatever others will ask of it, so that nobody waits for it.
fn is_at_rest(report: &Report) -> bool {
    report.phase == Phase::Serving && report.call.is_none()
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
                let (do_not, their) = if ranks.len() == 1 {
                    ("does not", "its machine is")
                } else {
                    ("do not", "their machines are")
                };
                format!(
                    "{} {do_not} answer: stopped or ended, or {their} gone or overloaded",
                    list(ranks)
                )
            }
            Verdict::Busy(ranks) => told(ranks, &|rank, report| {
                let (phase, place, busy) =
                    (report.phase, report.place(), seconds(report.phase_for));
                format!("rank {rank} waits for nobody, busy in {phase} of {place} for {busy}")
            }),
            Verdict::Apart(ranks) => {
                let apart = told(ranks, &|rank, report| {
                    format!(
                        "rank {rank} waits in {} of {}",
                        call(report),
                        report.place()
                    )
                });
                let rule = "every rank must make the same calls in the same order";
                match majority(&self.answers) {
                    Some(most) => format!(
                        "{apart}, most in {} of {}; {rule}",
                        call(most),
                        most.place()
                    ),
                    None => format!("{apart}; {rule}"),
                }
            }
            Verdict::Together => {
                let most = majority(&self.answers);
                let place = most.map_or_else(String::new, |report| {
                    format!(" in {} of {}", call(report), report.place())
                });
                let full = match most.map(call) {
                    Some("node_memory") => "/dev/shm of a node has too little space, ",
                    _ => "",
                };
                format!(
                    "all ranks wait{place}: {full}a connection is lost, or the call takes longer than the timeout"
                )
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

/// What must be equal on ranks that wait for each other.
fn meeting(report: &Report) -> (u64, u64, Option<usize>, Option<&'static str>) {
    (
        report.epoch,
        report.step,
        report.bucket,
        report.call.map(|(name, _)| name),
    )
}

/// A report of the ranks that are more than half of all and wait at the same place.
fn majority(answers: &[Option<Report>]) -> Option<&Report> {
    let concerned = || {
        answers
            .iter()
            .flatten()
            .filter(|report| !is_at_rest(report))
    };
    let same = |report: &&Report| {
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

    fn report(step: u64, call: Option<&'static str>) -> Option<Report> {
        Some(Report {
            epoch: 0,
            step,
            phase: Phase::Backward,
            phase_for: Duration::from_secs(61),
            count: 0,
            still_for: TIMEOUT,
            bucket: None,
            call: call.map(|name| (name, Duration::from_secs(60))),
        })
    }

    fn alarm(answers: Vec<Option<Report>>) -> Alarm {
        let verdict = Verdict::on(&answers, TIMEOUT).unwrap();
        Alarm {
            rank: 0,
            waited: TIMEOUT,
            asked_for: TIMEOUT,
            answers,
            verdict,
        }
    }

    #[test]
    fn a_silent_rank_comes_before_a_busy_one() {
        let alarm = alarm(vec![report(7, Some("barrier")), report(7, None), None]);
        assert_eq!(alarm.verdict, Verdict::Silent(vec![2]));
        assert_eq!(
            alarm.to_string(),
            "error (rank 0): no progress for 60 s: rank 2 does not answer: stopped or ended, or its machine is gone or \
             overloaded\n  rank 0: epoch 0, step 7, backward for 61 s; waits in barrier for 60 s\n  rank 1: epoch 0, step 7, \
             backward for 61 s; waits for nobody\n  rank 2: no answer within 60 s"
        );
    }

    /// A rank with a change `seconds` ago.
    fn changed(seconds: u64, phase: Phase, call: Option<&'static str>) -> Option<Report> {
        report(7, call).map(|report| Report {
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
            assert_eq!(Verdict::on(&answers, TIMEOUT), None);
            let still_for = progresses.unwrap().still_for;
            assert_eq!(Verdict::is_due_in(&answers, TIMEOUT), TIMEOUT - still_for);
        }
        assert_eq!(
            Verdict::on(&[waits(), waits()], TIMEOUT),
            Some(Verdict::Together)
        );
    }

    #[test]
    fn a_rank_without_progress_is_named_although_another_makes_some() {
        let answers = [
            changed(70, Phase::Waiting, Some("barrier")),
            changed(60, Phase::Data, None),
            changed(1, Phase::Data, None),
        ];
        assert_eq!(Verdict::on(&answers, TIMEOUT), Some(Verdict::Busy(vec![1])));
        assert_eq!(Verdict::is_due_in(&answers, TIMEOUT), Duration::ZERO);
    }

    #[test]
    fn a_rank_that_serves_is_named_only_where_it_waits_itself() {
        let idle = || changed(600, Phase::Serving, None);
        let waits = |call| changed(70, Phase::Waiting, Some(call));
        assert_eq!(
            Verdict::on(
                &[waits("receive"), changed(3, Phase::Data, None), idle()],
                TIMEOUT
            ),
            None
        );
        assert_eq!(
            Verdict::on(&[waits("barrier"), idle(), idle()], TIMEOUT),
            Some(Verdict::Together)
        );
        let sends = changed(70, Phase::Serving, Some("send"));
        let answers = [waits("barrier"), waits("barrier"), sends];
        assert_eq!(
            Verdict::on(&answers, TIMEOUT),
            Some(Verdict::Apart(vec![2]))
        );
    }

    #[test]
    fn a_busy_rank_comes_before_one_elsewhere() {
        let alarm = alarm(vec![
            report(7, Some("barrier")),
            report(6, None),
            report(8, Some("barrier")),
        ]);
        assert_eq!(alarm.verdict, Verdict::Busy(vec![1]));
        let text = "no progress for 60 s: rank 1 waits for nobody, busy in backward of epoch 0, step 6 for 61 s";
        assert_eq!(alarm.reason(), text);
    }

    #[test]
    fn the_minority_is_named() {
        let rule = "every rank must make the same calls in the same order";
        let other_call = alarm(vec![
            report(7, Some("barrier")),
            report(7, Some("exchange")),
            report(7, Some("exchange")),
        ]);
        assert_eq!(other_call.verdict, Verdict::Apart(vec![0]));
        let text =
            "rank 0 waits in barrier of epoch 0, step 7, most in exchange of epoch 0, step 7";
        assert_eq!(
            other_call.reason(),
            format!("no progress for 60 s: {text}; {rule}")
        );
        let other_step = alarm(vec![
            report(7, Some("barrier")),
            report(7, Some("barrier")),
            report(8, Some("barrier")),
        ]);
        assert_eq!(other_step.verdict, Verdict::Apart(vec![2]));
    }

    #[test]
    fn without_a_majority_all_are_named() {
        let alarm = alarm(vec![
            report(7, Some("barrier")),
            report(7, Some("exchange")),
        ]);
        assert_eq!(alarm.verdict, Verdict::Apart(vec![0, 1]));
        let text = "rank 0 waits in barrier of epoch 0, step 7; rank 1 waits in exchange of epoch 0, step 7";
        assert!(alarm.reason().contains(text), "{alarm}");
    }

    #[test]
    fn nobody_is_named_where_all_wait_together() {
        let alarm = alarm(vec![report(7, Some("barrier")); 3]);
        assert_eq!(alarm.verdict, Verdict::Together);
        assert!(
            alarm
                .reason()
                .contains("all ranks wait in barrier of epoch 0, step 7: a connection "),
            "{alarm}"
        );
        let allocates = self::alarm(vec![report(0, Some("node_memory")); 2]);
        assert!(
            allocates
                .reason()
                .contains("step 0: /dev/shm of a node has too little space, a "),
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
