//! The watchdog's thread.
//!
//! In: the whereabouts of this rank, questions and answers of others. Out: answers, and an alarm when a call waits for too long.
//! Invariant: an alarm is raised only if the call that caused it still waits when all answers are there.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use super::OnAlarm;
use super::alarm::{Alarm, Verdict};
use super::inquiry::{Inquiry, Post};
use super::whereabouts::{Underway, Whereabouts};
use crate::{CollectiveError, Communicator};

/// Most time between two looks, and so until an answer.
const MAX_INTERVAL: Duration = Duration::from_millis(200);

/// Most time for answers.
const MAX_ASKING: Duration = Duration::from_secs(3);

/// What the thread knows.
pub(super) struct Watch {
    communicator: Arc<dyn Communicator>,
    whereabouts: Arc<Whereabouts>,
    timeout: Duration,
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
    Speak(Alarm),
}

impl Watch {
    pub(super) fn new(
        communicator: Arc<dyn Communicator>,
        whereabouts: Arc<Whereabouts>,
        timeout: Duration,
        on_alarm: OnAlarm,
    ) -> Self {
        let post = Post::new(Arc::clone(&communicator));
        let now = Instant::now();
        Self {
            communicator,
            whereabouts,
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
        (self.timeout / 10).clamp(Duration::from_millis(1), MAX_INTERVAL)
    }

    fn asking(&self) -> Duration {
        (self.timeout / 2).min(MAX_ASKING)
    }

    /// For how long `call` has waited while this process ran.
    fn waited(&self, call: Underway) -> Duration {
        self.whereabouts.waited(call).min(self.running_since.elapsed())
    }

    fn look(&mut self) -> Result<Option<Alarm>, CollectiveError> {
        // Whoever suspends a job for a while and lets it go on finds all ranks waiting for long, and none at fault.
        if self.last_look.elapsed() > self.timeout / 2 {
            self.running_since = Instant::now();
        }
        self.last_look = Instant::now();
        self.post.answer(|| self.whereabouts.report())?;
        let overdue = self.whereabouts.oldest_call().filter(|&call| self.waited(call) > self.timeout);
        let Some(call) = overdue else {
            (self.inquiry, self.held_since) = (None, None);
            return Ok(None);
        };
        let asking = self.asking();
        let Some(inquiry) = self.inquiry.as_mut().filter(|inquiry| inquiry.call == call) else {
            if self.pause_until <= Instant::now() {
                self.inquiry = Some(Inquiry::start(&mut self.post, self.next_number, call, self.whereabouts.report()));
                self.next_number += 1;
            }
            return Ok(None);
        };
        let all = inquiry.collect(&self.post)?;
        if !all && inquiry.started.elapsed() < asking {
            return Ok(None);
        }
        let mut answers = std::mem::take(&mut inquiry.answers);
        answers[self.communicator.rank()] = Some(self.whereabouts.report());
        self.inquiry = None;
        match self.decide(call, answers) {
            Decision::Speak(alarm) => Ok(Some(alarm)),
            Decision::AskAgain(pause) => {
                self.pause_until = Instant::now() + pause;
                Ok(None)
            }
        }
    }

    fn decide(&mut self, call: Underway, answers: Vec<Option<super::Report>>) -> Decision {
        let rank = self.communicator.rank();
        let waited = self.waited(call);
        let verdict = Verdict::on(&answers);
        let shortest = answers.iter().flatten().map(super::Report::waited).min().unwrap_or_default();
        if verdict.may_pass() && shortest < self.timeout && waited < 2 * self.timeout {
            // The last rank may just have come, and a long call of all ranks have begun.
            return Decision::AskAgain((self.timeout - shortest).min(2 * self.timeout - waited));
        }
        // An earlier rank that is about to find the same speaks in this one's place.
        let soon = self.timeout.saturating_sub(self.asking());
        if answers[..rank].iter().flatten().any(|earlier| earlier.waited() > soon) {
            let held = self.held_since.get_or_insert_with(Instant::now).elapsed();
            if held < 3 * self.asking() {
                return Decision::AskAgain(self.asking() / 2);
            }
        }
        Decision::Speak(Alarm { rank, waited, asked_for: self.asking(), answers, verdict })
    }
}
