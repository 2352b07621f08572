//! Thread of the watchdog.
//!
//! In: the status of this rank, and questions and answers of other ranks. Out: answers, and an
//! alarm if a call waits too long.
//! Invariant: an alarm is raised only if the call still waits when all answers have arrived. The
//! ranks at fault have made no progress, or have not answered, for the timeout. The thread waits
//! for no message and sends none itself, because a stopped rank may block a sender.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use super::OnAlarm;
use super::alarm::{Alarm, AlarmCause};
use super::status::{RankReport, RankStatus};
use crate::{CollectiveError, Communicator};

/// Maximum time between two polls, and thus until an answer.
const MAX_INTERVAL: Duration = Duration::from_millis(200);

/// Time within which earlier ranks may reach the timeout and then report first.
const MAX_SOON: Duration = Duration::from_secs(3);

/// Divisor of the timeout. A call that has waited for this part of the timeout starts a new
/// inquiry.
const PART: u32 = 4;

/// Tag of a question, which contains the number of an inquiry.
const QUESTION: u16 = 0;

/// Tag of an answer, which contains the number of the inquiry and a report.
const ANSWER: u16 = 1;

/// Time limit for pending messages at the end.
const LAST_POSTS: Duration = Duration::from_millis(500);

/// The state of the thread.
pub(super) struct Watch {
    communicator: Arc<dyn Communicator>,
    rank_status: Arc<RankStatus>,
    timeout: Arc<Mutex<Duration>>,
    on_alarm: OnAlarm,
    post: Post,
    inquiry: Option<Inquiry>,
    /// Number of the next inquiry.
    next_number: u64,
    /// Time before which no inquiry starts.
    pause_until: Instant,
    last_look: Instant,
    /// Time since which this process has run without a long stop.
    running_since: Instant,
    /// Time since which an earlier rank may report first.
    held_since: Option<Instant>,
}

/// Questions to all other ranks because of one call.
struct Inquiry {
    number: u64,
    /// Number of the call.
    call: u64,
    started: Instant,
    asked: Instant,
    /// Answers in rank order.
    answers: Vec<Option<RankReport>>,
}

impl Watch {
    pub(super) fn new(
        communicator: Arc<dyn Communicator>,
        rank_status: Arc<RankStatus>,
        timeout: Arc<Mutex<Duration>>,
        on_alarm: OnAlarm,
    ) -> Self {
        let now = Instant::now();
        Self {
            post: Post::new(Arc::clone(&communicator)),
            communicator,
            rank_status,
            timeout,
            on_alarm,
            inquiry: None,
            next_number: 0,
            pause_until: now,
            last_look: now,
            running_since: now,
            held_since: None,
        }
    }

    /// Watches until the sender of `stopped` is dropped, the job ends, or an alarm has been raised.
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

    fn timeout(&self) -> Duration {
        *self.timeout.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn interval(&self) -> Duration {
        (self.timeout() / 10).clamp(Duration::from_millis(1), MAX_INTERVAL)
    }

    fn look(&mut self) -> Result<Option<Alarm>, CollectiveError> {
        let timeout = self.timeout();
        // After a suspended job resumes, all ranks have waited for long and no rank is at fault.
        if self.last_look.elapsed() > timeout / 2 {
            self.running_since = Instant::now();
            self.inquiry = None;
            self.held_since = None;
        }
        self.last_look = Instant::now();
        // While this process was stopped from outside, it could make no progress.
        let running_for = self.running_since.elapsed();
        let mut report = self.rank_status.report();
        report.still_for = report.still_for.min(running_for);
        self.post.answer(&report)?;
        let waits = self.rank_status.oldest_call();
        let waits = waits.map(|call| (call.number, call.since.elapsed().min(running_for)));
        let Some((call, waited)) = waits.filter(|(_, waited)| *waited > timeout / PART) else {
            self.inquiry = None;
            self.held_since = None;
            return Ok(None);
        };
        let rank = self.communicator.rank();
        let Some(inquiry) = self.inquiry.as_mut().filter(|inquiry| inquiry.call == call) else {
            if self.pause_until <= Instant::now() {
                let now = Instant::now();
                self.inquiry = Some(Inquiry {
                    number: self.next_number,
                    call,
                    started: now,
                    asked: now,
                    answers: vec![None; self.communicator.world_size()],
                });
                let all = 0..self.communicator.world_size();
                self.post.ask(self.next_number, all);
                self.next_number += 1;
            }
            return Ok(None);
        };
        inquiry.answers[rank] = Some(report);
        self.post.collect(inquiry)?;
        if inquiry.answers.iter().any(Option::is_none) && inquiry.started.elapsed() < timeout {
            // A rank without an answer may make progress. The reports of other ranks are now out of
            // date, so these ranks are asked again. A stopped rank would only block more threads.
            if inquiry.asked.elapsed() > timeout / PART {
                let answers = &inquiry.answers;
                let others = (0..answers.len()).filter(|&to| answers[to].is_some());
                self.post.ask(inquiry.number, others);
                inquiry.asked = Instant::now();
            }
            return Ok(None);
        }
        let answers = inquiry.answers.clone();
        let age = inquiry.asked.elapsed();
        let cause = AlarmCause::on(&answers, timeout).filter(|_| waited >= timeout);
        let Some(cause) = cause else {
            self.held_since = None;
            let due = AlarmCause::is_due_in(&answers, timeout).max(timeout.saturating_sub(waited));
            let interval = self.interval();
            self.ask_later(due.clamp(interval, timeout / PART + interval));
            return Ok(None);
        };
        // An earlier rank that is about to find the same cause reports first.
        let soon = (timeout / 2).min(MAX_SOON);
        let is_about_to_speak = |earlier: &RankReport| {
            let call = earlier.call.as_ref();
            call.is_some_and(|(_, waited)| *waited + age + soon > timeout)
        };
        if answers[..rank].iter().flatten().any(is_about_to_speak) {
            let held = self.held_since.get_or_insert_with(Instant::now).elapsed();
            if held < (3 * soon).max(timeout / 2) {
                // The answers about silent ranks do not change.
                if !matches!(cause, AlarmCause::Silent(_)) {
                    self.ask_later(soon / 2);
                }
                return Ok(None);
            }
        }
        Ok(Some(Alarm {
            rank,
            waited,
            asked_for: timeout,
            answers,
            cause,
        }))
    }

    fn ask_later(&mut self, pause: Duration) {
        self.inquiry = None;
        self.pause_until = Instant::now() + pause;
    }
}

/// Messages of the thread. A separate thread sends each message, because messages are rare and few
/// go to one rank at a time.
struct Post {
    communicator: Arc<dyn Communicator>,
    /// Threads that are sending messages.
    threads: Vec<JoinHandle<()>>,
    /// Receivers, tags and contents of messages that wait for a thread, oldest first. Messages wait
    /// while the operating system cannot create threads.
    waiting: VecDeque<(usize, u16, Vec<u8>)>,
}

impl Post {
    fn new(communicator: Arc<dyn Communicator>) -> Self {
        Self {
            communicator,
            threads: Vec::new(),
            waiting: VecDeque::new(),
        }
    }

    fn send_waiting(&mut self, builder: impl Fn() -> Builder) {
        self.threads.retain(|thread| !thread.is_finished());
        while let Some((to, tag, bytes)) = self.waiting.front().cloned() {
            let communicator = Arc::clone(&self.communicator);
            let thread = builder().name("watchdog-post".to_owned());
            // A message that cannot be sent is an answer that does not arrive.
            let Ok(thread) = thread.spawn(move || drop(communicator.send(to, tag, &bytes))) else {
                return;
            };
            self.threads.push(thread);
            self.waiting.pop_front();
        }
    }

    /// Answers the received questions.
    fn answer(&mut self, report: &RankReport) -> Result<(), CollectiveError> {
        while let Some((from, mut message)) = self.communicator.try_receive_any(QUESTION)? {
            message.extend(report.to_bytes());
            self.waiting.push_back((from, ANSWER, message));
        }
        self.send_waiting(Builder::new);
        Ok(())
    }

    /// Asks `ranks` other than this one.
    fn ask(&mut self, inquiry: u64, ranks: impl Iterator<Item = usize>) {
        let own = self.communicator.rank();
        for to in ranks.filter(|&to| to != own) {
            let question = inquiry.to_le_bytes().to_vec();
            self.waiting.push_back((to, QUESTION, question));
        }
        self.send_waiting(Builder::new);
    }

    /// Processes the received answers. Answers to an earlier inquiry are out of date.
    fn collect(&self, inquiry: &mut Inquiry) -> Result<(), CollectiveError> {
        while let Some((from, message)) = self.communicator.try_receive_any(ANSWER)? {
            if let Some(report) = message.strip_prefix(&inquiry.number.to_le_bytes()) {
                inquiry.answers[from] = RankReport::from_bytes(report);
            }
        }
        Ok(())
    }
}

impl Drop for Post {
    fn drop(&mut self) {
        let start = Instant::now();
        while self.threads.iter().any(|thread| !thread.is_finished())
            && start.elapsed() < LAST_POSTS
        {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_ranks;

    #[test]
    fn a_message_whose_thread_is_refused_is_sent_later() {
        run_ranks(2, |communicator| {
            let rank = communicator.rank();
            let communicator = Arc::new(communicator);
            let mut post = Post::new(communicator.clone());
            if rank == 0 {
                post.waiting.push_back((1, ANSWER, vec![7]));
                // No system can create a thread with such a stack.
                post.send_waiting(|| Builder::new().stack_size(1 << 60));
                assert_eq!(post.waiting.len(), 1);
                post.send_waiting(Builder::new);
                assert!(post.waiting.is_empty());
            } else {
                assert_eq!(communicator.receive_any(ANSWER).unwrap(), (0, vec![7]));
            }
            communicator.barrier().unwrap();
        });
    }
}
