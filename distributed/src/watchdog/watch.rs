//! The watchdog's thread.
//!
//! In: the status of this rank, questions and answers of others. Out: answers, and an alarm if a
//! call waits too long.
//! Invariant: an alarm is raised only if the call still waits when all answers are there. The ranks
//! at fault have made no progress, or not answered, for the timeout.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use super::OnAlarm;
use super::alarm::{Alarm, AlarmCause};
use super::inquiry::{Inquiry, Post};
use super::rank_status::{RankStatus, Underway};
use super::report::RankReport;
use crate::{CollectiveError, Communicator};

/// Most time between two looks, and so until an answer.
const MAX_INTERVAL: Duration = Duration::from_millis(200);

/// Earlier ranks that will have waited for the timeout within this time speak first.
const MAX_SOON: Duration = Duration::from_secs(3);

/// A call that has waited for this part of the timeout is a reason to ask the others, and to ask
/// again.
const PART: u32 = 4;

/// A timeout, in milliseconds, that may be changed while the thread watches.
#[derive(Clone, Debug)]
pub(super) struct Timeout(Arc<AtomicU64>);

impl Timeout {
    pub(super) fn new(timeout: Duration) -> Self {
        let new = Self(Arc::default());
        new.set(timeout);
        new
    }

    pub(super) fn set(&self, timeout: Duration) {
        self.0.store(
            u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX),
            Ordering::Relaxed,
        );
    }

    fn get(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed))
    }
}

/// The state of the thread.
pub(super) struct Watch {
    communicator: Arc<dyn Communicator>,
    rank_status: Arc<RankStatus>,
    timeout: Timeout,
    on_alarm: OnAlarm,
    post: Post,
    inquiry: Option<Inquiry>,
    /// Number of the next inquiry.
    next_number: u64,
    /// No inquiry begins before.
    pause_until: Instant,
    /// When this process last looked, and since when it has run without a long stop.
    last_look: Instant,
    running_since: Instant,
    /// Since when an earlier rank has been given the word.
    held_since: Option<Instant>,
}

/// The consequence of the answers of all ranks.
enum Decision {
    /// It is no alarm, or not yet; ask again after this time.
    AskAgain(Duration),
    /// It is one, but an earlier rank has the word; look again at these answers.
    Hold,
    Speak(Alarm),
}

impl Watch {
    pub(super) fn new(
        communicator: Arc<dyn Communicator>,
        rank_status: Arc<RankStatus>,
        timeout: Timeout,
        on_alarm: OnAlarm,
    ) -> Self {
        let post = Post::new(Arc::clone(&communicator));
        let now = Instant::now();
        Self {
            communicator,
            rank_status,
            timeout,
            on_alarm,
            post,
            inquiry: None,
            next_number: 0,
            pause_until: now,
            last_look: now,
            running_since: now,
            held_since: None,
        }
    }

    /// Watches until `stopped` loses its sender, the job ends, or an alarm has been raised.
    pub(super) fn run(mut self, stopped: &Receiver<()>) {
        while stopped.recv_timeout(self.interval()) == Err(RecvTimeoutError::Timeout) {
            match self.look() {
                Ok(None) => {}
                Ok(Some(alarm)) => {
                    (self.on_alarm)(&alarm);
                    self.communicator.abort(&alarm.reason(), 1);
                    return;
                }
                // The job has ended, or the next call of this rank returns the error.
                Err(_) => return,
            }
        }
    }

    fn interval(&self) -> Duration {
        (self.timeout.get() / 10).clamp(Duration::from_millis(1), MAX_INTERVAL)
    }

    /// For how long `call` has waited while this process ran.
    fn waited(&self, call: Underway) -> Duration {
        self.rank_status
            .waited(call)
            .min(self.running_since.elapsed())
    }

    /// Returns the position of this rank; while it was stopped from outside it could make no
    /// progress.
    fn report(&self) -> RankReport {
        let report = self.rank_status.report();
        RankReport {
            still_for: report.still_for.min(self.running_since.elapsed()),
            ..report
        }
    }

    fn look(&mut self) -> Result<Option<Alarm>, CollectiveError> {
        let timeout = self.timeout.get();
        // After a job was suspended and resumed, all ranks have waited for long and none is at
        // fault.
        if self.last_look.elapsed() > timeout / 2 {
            self.running_since = Instant::now();
            self.inquiry = None;
            self.held_since = None;
        }
        self.last_look = Instant::now();
        let report = self.report();
        self.post.answer(&report)?;
        let long = self
            .rank_status
            .oldest_call()
            .filter(|&call| self.waited(call) > timeout / PART);
        let Some(call) = long else {
            self.inquiry = None;
            self.held_since = None;
            return Ok(None);
        };
        let Some(inquiry) = self.inquiry.as_mut().filter(|inquiry| inquiry.call == call) else {
            if self.pause_until <= Instant::now() {
                self.inquiry = Some(Inquiry::start(
                    &mut self.post,
                    self.next_number,
                    call,
                    report,
                ));
                self.next_number += 1;
            }
            return Ok(None);
        };
        inquiry.answers[self.communicator.rank()] = Some(report);
        if !inquiry.collect(&self.post)? && inquiry.started.elapsed() < timeout {
            // A rank without an answer may make progress. The reports of the others are out of date
            // by now.
            if inquiry.asked.elapsed() > timeout / PART {
                inquiry.ask_again(&mut self.post);
            }
            return Ok(None);
        }
        let answers = inquiry.answers.clone();
        let age = inquiry.asked.elapsed();
        match self.decide(call, answers, age) {
            Decision::Speak(alarm) => return Ok(Some(alarm)),
            Decision::Hold => {}
            Decision::AskAgain(pause) => {
                self.inquiry = None;
                self.pause_until = Instant::now() + pause;
            }
        }
        Ok(None)
    }

    /// Returns the consequence of answers to a question that was asked `age` ago.
    fn decide(
        &mut self,
        call: Underway,
        answers: Vec<Option<RankReport>>,
        age: Duration,
    ) -> Decision {
        let rank = self.communicator.rank();
        let timeout = self.timeout.get();
        let waited = self.waited(call);
        let found = AlarmCause::on(&answers, timeout);
        let (Some(cause), true) = (found, waited >= timeout) else {
            self.held_since = None;
            let due = AlarmCause::is_due_in(&answers, timeout).max(timeout.saturating_sub(waited));
            return Decision::AskAgain(
                due.clamp(self.interval(), timeout / PART + self.interval()),
            );
        };
        // An earlier rank that is about to find the same speaks in this one's place.
        let soon = (timeout / 2).min(MAX_SOON);
        let is_about_to_speak = |earlier: &RankReport| {
            earlier.call.is_some() && earlier.waited() + age + soon > timeout
        };
        if answers[..rank].iter().flatten().any(is_about_to_speak) {
            let held = self.held_since.get_or_insert_with(Instant::now).elapsed();
            if held < (3 * soon).max(timeout / 2) {
                return if matches!(cause, AlarmCause::Silent(_)) {
                    Decision::Hold
                } else {
                    Decision::AskAgain(soon / 2)
                };
            }
        }
        Decision::Speak(Alarm {
            rank,
            waited,
            asked_for: timeout,
            answers,
            cause,
        })
    }
}
