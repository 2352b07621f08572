//! Results of a device on their way back, read by a thread.
//!
//! In: queued results of a device. Out: values in host memory, in order.
//! Invariant: the sender does not wait for the device, only [`Readback::receive`] does. The thread
//! ends with the [`Readback`], and its panic is passed on. If the operating system refuses the
//! thread, the sender reads and waits.

use std::fmt;
use std::panic::resume_unwind;
use std::sync::LazyLock;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use burn::tensor::StreamId;
use datasets::threads;

/// The stream of all readbacks of this process.
///
/// cubecl (0.11.3, cubecl-server, `stream/event.rs`) lets a reading stream wait for all work that
/// the writing stream was given until then. On the stream that computes, a readback would also wait
/// for the next step, which is queued already. On its own stream, and started at once, it waits for
/// its step.
static READBACKS: LazyLock<StreamId> = LazyLock::new(StreamId::allocate);

/// Reads items back, in order.
pub struct Readback<I, O> {
    reader: Reader<I, O>,
    answers: Receiver<O>,
    num_unanswered: usize,
}

type Read<I, O> = Box<dyn Fn(I) -> O + Send>;

enum Reader<I, O> {
    /// Both are `None` after the thread's end.
    Thread(Option<Sender<I>>, Option<JoinHandle<()>>),
    /// There is no thread.
    Sender(Read<I, O>, Sender<O>),
}

impl<I: Send + 'static, O: Send + 'static> Readback<I, O> {
    /// Starts a reader that turns each item into an answer by `read`, on a thread if there is one.
    pub fn start(read: impl Fn(I) -> O + Send + 'static) -> Self {
        let (items, for_thread) = channel();
        let (sender, answers) = channel();
        let read_all = move |(read, sender): (Read<I, O>, Sender<O>)| {
            READBACKS.executes(|| {
                for item in for_thread {
                    if sender.send(read(item)).is_err() {
                        return;
                    }
                }
            });
        };
        let read = Box::new(read) as Read<I, O>;
        let reader = match threads::start("readback", (read, sender), read_all) {
            Ok(thread) => Reader::Thread(Some(items), Some(thread)),
            Err((read, sender)) => Reader::Sender(read, sender),
        };
        Self {
            reader,
            answers,
            num_unanswered: 0,
        }
    }

    /// Queues an item to be read.
    ///
    /// # Panics
    /// If reading this or an earlier item panicked.
    pub fn send(&mut self, item: I) {
        let is_sent = match &mut self.reader {
            Reader::Thread(items, _) => {
                items.as_ref().is_some_and(|items| items.send(item).is_ok())
            }
            Reader::Sender(read, answers) => {
                let answer = READBACKS.executes(|| read(item));
                answers.send(answer).is_ok()
            }
        };
        if !is_sent {
            self.pass_panic_on();
        }
        self.num_unanswered += 1;
    }

    /// Returns the number of items that were sent and whose answers were not received.
    pub fn num_unanswered(&self) -> usize {
        self.num_unanswered
    }

    /// Waits for the next item's answer; `None` if all were received.
    ///
    /// # Panics
    /// As the reading did.
    pub fn receive(&mut self) -> Option<O> {
        self.num_unanswered = self.num_unanswered.checked_sub(1)?;
        match self.answers.recv() {
            Ok(answer) => Some(answer),
            Err(_) => self.pass_panic_on(),
        }
    }

    /// Waits like [`receive`](Self::receive), at most `limit`; returns `None` after that.
    ///
    /// # Panics
    /// As the reading did.
    pub fn receive_within(&mut self, limit: Duration) -> Option<O> {
        let left = self.num_unanswered.checked_sub(1)?;
        match self.answers.recv_timeout(limit) {
            Ok(answer) => {
                self.num_unanswered = left;
                Some(answer)
            }
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => self.pass_panic_on(),
        }
    }

    fn pass_panic_on(&mut self) -> ! {
        if let Reader::Thread(_, thread) = &mut self.reader
            && let Some(Err(panic)) = thread.take().map(JoinHandle::join)
        {
            resume_unwind(panic);
        }
        unreachable!("a reader ends only by a panic while its channels are open")
    }
}

impl<I, O> Drop for Readback<I, O> {
    fn drop(&mut self) {
        if let Reader::Thread(items, thread) = &mut self.reader {
            drop(items.take());
            // An answer that panicked is no longer waited for.
            drop(thread.take().map(JoinHandle::join));
        }
    }
}

impl<I, O> fmt::Debug for Readback<I, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Readback")
            .field("num_unanswered", &self.num_unanswered)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::mpsc::{SyncSender, sync_channel};

    use super::*;

    #[test]
    fn answers_come_in_order_with_and_without_a_thread_and_none_where_nothing_was_sent() {
        let read = |item: usize| 10 * item;
        let (sender, answers) = channel();
        let without_thread = Readback {
            reader: Reader::Sender(Box::new(read) as Read<usize, usize>, sender),
            answers,
            num_unanswered: 0,
        };
        for mut readback in [Readback::start(read), without_thread] {
            assert_eq!(readback.receive(), None);
            (0..3).for_each(|item| readback.send(item));
            assert_eq!(readback.num_unanswered(), 3);
            assert_eq!(
                [(); 4].map(|()| readback.receive()),
                [Some(0), Some(10), Some(20), None]
            );
        }
    }

    /// Returns a readback that reads an item when a message comes.
    fn held() -> (SyncSender<()>, Readback<usize, usize>) {
        let (release, held) = sync_channel(0);
        let read = move |item| {
            held.recv().unwrap();
            item
        };
        (release, Readback::start(read))
    }

    #[test]
    fn the_sender_continues_while_an_item_is_read() {
        let (release, mut readback) = held();
        // Returns though nothing can be read yet.
        (0..2).for_each(|item| readback.send(item));
        (0..2).for_each(|_| release.send(()).unwrap());
        assert_eq!((readback.receive(), readback.receive()), (Some(0), Some(1)));
    }

    #[test]
    fn a_wait_with_a_limit_ends_and_the_answer_comes_later() {
        let (release, mut readback) = held();
        readback.send(7);
        assert_eq!(readback.receive_within(Duration::from_millis(1)), None);
        assert_eq!(readback.num_unanswered(), 1);
        release.send(()).unwrap();
        let limit = Duration::from_secs(60);
        let answers = [(); 2].map(|()| readback.receive_within(limit));
        assert_eq!(answers, [Some(7), None]);
    }

    #[test]
    fn a_panic_while_reading_reaches_the_receiver() {
        let mut readback = Readback::start(|item: usize| assert_ne!(item, 1, "unreadable"));
        (0..2).for_each(|item| readback.send(item));
        assert_eq!(readback.receive(), Some(()));
        assert!(catch_unwind(AssertUnwindSafe(|| readback.receive())).is_err());
    }
}
