//! The watchdog's thread.
//!
//! In: the status of this rank, questions and answers of others. Out: answers, and an alarm when a call waits for too long.
//! Invariant: an alarm is raised only if the call that caused it still waits when all answers are there, and only because of ranks
//! that have made no progress for the timeout, or have not answered for as long.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use super::OnAlarm;
use super::alarm::{Alarm, Verdict};
use super::inquiry::{Inquiry, Post};
use super::rank_status::{RankStatus, Underway};
use super::report::Report;
use crate::{CollectiveError, Communicator};

/// Most time between two looks, and so until an answer.
const MAX_INTERVAL: Duration = Duration::from_millis(200);

/// Earlier ranks that will have waited for the timeout within this time speak first.
const MAX_SOON: Duration = Duration::from_secs(3);

/// A call that has waited for this part of the timeout is a reason to ask the others, and to ask again.
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

/// What the thread knows.
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

/// What is done with the answers of all ranks.
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
                // The job has ended, or this rank's next call will tell.
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

    /// Where this rank is; while it was stopped from outside it could make no progress.
    fn report(&self) -> Report {
        let report = self.rank_status.report();
        Report {
            still_for: report.still_for.min(self.running_since.elapsed()),
            ..report
        }
    }

    fn look(&mut self) -> Result<Option<Alarm>, CollectiveError> {
        let timeout = self.timeout.get();
        // Whoever suspends a job for a while and lets it go on finds all ranks waiting for long, and none at fault.
        if self.last_look.elapsed() > timeout / 2 {
            self.running_since = Instant::now();
            (self.inquiry, self.held_since) = (None, None);
        }
        self.last_look = Instant::now();
        let report = self.report();
        self.post.answer(&report)?;
        let long = self
            .rank_status
            .oldest_call()
            .filter(|&call| self.waited(call) > timeout / PART);
        let Some(call) = long else {
            (self.inquiry, self.held_since) = (None, None);
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
            // Of a rank without an answer nobody knows whether it makes progress. What the others told meanwhile becomes old.
            if inquiry.asked.elapsed() > timeout / PART {
                inquiry.ask_again(&mut self.post);
            }
            return Ok(None);
        }
        let (answers, age) = (inquiry.answers.clone(), inquiry.asked.elapsed());
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

    /// What follows from answers to a question that was asked `age` ago.
    fn decide(&mut self, call: Underway, answers: Vec<Option<Report>>, age: Duration) -> Decision {
        let (rank, timeout, waited) = (
            self.communicator.rank(),
            self.timeout.get(),
            self.waited(call),
        );
        let verdict = Verdict::on(&answers, timeout).filter(|_| waited >= timeout);
        let Some(verdict) = verdict else {
            self.held_since = None;
            let due = Verdict::is_due_in(&answers, timeout).max(timeout.saturating_sub(waited));
            return Decision::AskAgain(
                due.clamp(self.interval(), timeout / PART + self.interval()),
            );
        };
        // An earlier rank that is about to find the same speaks in this one's place.
        let soon = (timeout / 2).min(MAX_SOON);
        let is_about_to_speak =
            |earlier: &Report| earlier.call.is_some() && earlier.waited() + age + soon > timeout;
        if answers[..rank].iter().flatten().any(is_about_to_speak) {
            let held = self.held_since.get_or_insert_with(Instant::now).elapsed();
            if held < (3 * soon).max(timeout / 2) {
                return if matches!(verdict, Verdict::Silent(_)) {
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
            verdict,
        })
    }
}
