//! Questions to all other ranks, and their answers.
//!
//! In: messages on the watchdog's communicator. Out: the report of each rank.
//! Invariant: the watchdog waits for no message, and sends none on its own thread: a rank that has
//! stopped may block a sender.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use super::rank_status::Underway;
use super::report::RankReport;
use crate::{CollectiveError, Communicator};

/// "Where are you?": the number of the inquiry.
const QUESTION: u16 = 0;

/// The number of the inquiry, and a report.
const ANSWER: u16 = 1;

/// Time limit for pending messages at the end.
const LAST_POSTS: Duration = Duration::from_millis(500);

pub(super) struct Post {
    communicator: Arc<dyn Communicator>,
    /// Messages on their way.
    threads: Vec<JoinHandle<()>>,
    /// Messages that wait for a thread, oldest first, while the operating system rejects threads.
    waiting: VecDeque<QueuedMessage>,
}

#[derive(Clone)]
struct QueuedMessage {
    to: usize,
    tag: u16,
    bytes: Vec<u8>,
}

impl Post {
    pub(super) fn new(communicator: Arc<dyn Communicator>) -> Self {
        Self {
            communicator,
            threads: Vec::new(),
            waiting: VecDeque::new(),
        }
    }

    /// Sends a message on a new thread; messages are rare, and few go to one rank at a time.
    fn send(&mut self, to: usize, tag: u16, bytes: Vec<u8>) {
        self.waiting.push_back(QueuedMessage { to, tag, bytes });
        self.send_waiting(Builder::new);
    }

    fn send_waiting(&mut self, builder: impl Fn() -> Builder) {
        self.threads.retain(|thread| !thread.is_finished());
        while let Some(message) = self.waiting.front().cloned() {
            let communicator = Arc::clone(&self.communicator);
            let QueuedMessage { to, tag, bytes } = message;
            let thread = builder().name("watchdog-post".to_owned());
            // What cannot be sent is an answer that does not come.
            let Ok(thread) = thread.spawn(move || drop(communicator.send(to, tag, &bytes))) else {
                return;
            };
            self.threads.push(thread);
            self.waiting.pop_front();
        }
    }

    /// Answers the questions that have come.
    pub(super) fn answer(&mut self, report: &RankReport) -> Result<(), CollectiveError> {
        self.send_waiting(Builder::new);
        while let Some((from, mut message)) = self.communicator.try_receive_any(QUESTION)? {
            message.extend_from_slice(&report.to_bytes());
            self.send(from, ANSWER, message);
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

/// One round of questions, because of one call.
pub(super) struct Inquiry {
    number: u64,
    pub(super) call: Underway,
    pub(super) started: Instant,
    /// When those who answer were last asked.
    pub(super) asked: Instant,
    /// In rank order.
    pub(super) answers: Vec<Option<RankReport>>,
}

impl Inquiry {
    /// Asks all other ranks; `report` counts as the answer of this one.
    pub(super) fn start(post: &mut Post, number: u64, call: Underway, report: RankReport) -> Self {
        let rank = post.communicator.rank();
        let world_size = post.communicator.world_size();
        let mut answers = vec![None; world_size];
        answers[rank] = Some(report);
        for to in (0..world_size).filter(|&to| to != rank) {
            post.send(to, QUESTION, number.to_le_bytes().to_vec());
        }
        let now = Instant::now();
        Self {
            number,
            call,
            started: now,
            asked: now,
            answers,
        }
    }

    /// Asks those who have answered once more, while others have not.
    pub(super) fn ask_again(&mut self, post: &mut Post) {
        let rank = post.communicator.rank();
        for to in (0..self.answers.len()).filter(|&to| to != rank && self.answers[to].is_some()) {
            post.send(to, QUESTION, self.number.to_le_bytes().to_vec());
        }
        self.asked = Instant::now();
    }

    /// Takes the answers that have come; whether all have.
    pub(super) fn collect(&mut self, post: &Post) -> Result<bool, CollectiveError> {
        while let Some((from, message)) = post.communicator.try_receive_any(ANSWER)? {
            // An answer to an earlier inquiry is out of date.
            if let Some(report) = message.strip_prefix(&self.number.to_le_bytes()) {
                self.answers[from] = RankReport::from_bytes(report);
            }
        }
        Ok(self.answers.iter().all(Option::is_some))
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
                post.waiting.push_back(QueuedMessage {
                    to: 1,
                    tag: ANSWER,
                    bytes: vec![7],
                });
                // No thread has such a stack.
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
