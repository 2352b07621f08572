//! Results of a device on their way back, read by a thread of their own.
//!
//! In: what a device was told to compute. Out: values in host memory, in order.
//! Invariant: the sender does not wait for the device; an answer is waited for only by [`Readback::receive`]; the thread ends
//! when this is dropped, and its panic is handed on. Where the operating system refuses the thread, the sender reads and waits.

use std::collections::VecDeque;
use std::fmt;
use std::panic::resume_unwind;
use std::sync::LazyLock;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use burn::tensor::StreamId;
use datasets::threads;

/// The stream of all readbacks of this process.
///
/// cubecl (0.11.3, cubecl-server, `stream/event.rs`) lets a reading stream wait for all that the writing stream was given until
/// then. On the stream that computes, a readback would wait for the next step too, whose work is there already; on one of its own
/// and begun at once, it waits for its own step.
static READBACKS: LazyLock<StreamId> = LazyLock::new(StreamId::allocate);

/// Reads items back, in order.
pub struct Readback<I, O> {
    reader: Reader<I, O>,
    num_unanswered: usize,
}

type Read<I, O> = Box<dyn Fn(I) -> O + Send>;

enum Reader<I, O> {
    Thread(ReadingThread<I, O>),
    /// The sender reads.
    Sender {
        read: Read<I, O>,
        answers: VecDeque<O>,
    },
}

struct ReadingThread<I, O> {
    /// Absent while it is dropped.
    items: Option<Sender<I>>,
    answers: Receiver<O>,
    /// Absent after its end.
    thread: Option<JoinHandle<()>>,
}

impl<I: Send + 'static, O: Send + 'static> Readback<I, O> {
    /// Starts to make an answer of each item by `read`, on a thread if there is one.
    pub fn start(read: impl Fn(I) -> O + Send + 'static) -> Self {
        let (items, for_thread) = channel();
        let (from_thread, answers) = channel();
        let read_all = move |read: Read<I, O>| {
            READBACKS.executes(|| {
                for item in for_thread {
                    if from_thread.send(read(item)).is_err() {
                        return;
                    }
                }
            });
        };
        match threads::start("readback", Box::new(read) as Read<I, O>, read_all) {
            Ok(thread) => Self::new(Reader::Thread(ReadingThread {
                items: Some(items),
                answers,
                thread: Some(thread),
            })),
            Err(read) => Self::by_sender(read),
        }
    }

    fn by_sender(read: Read<I, O>) -> Self {
        Self::new(Reader::Sender {
            read,
            answers: VecDeque::new(),
        })
    }

    fn new(reader: Reader<I, O>) -> Self {
        Self {
            reader,
            num_unanswered: 0,
        }
    }

    /// Has an item read.
    ///
    /// # Panics
    /// As the reading of this or an earlier item did.
    pub fn send(&mut self, item: I) {
        match &mut self.reader {
            Reader::Thread(reader) => {
                if reader
                    .items
                    .as_ref()
                    .is_none_or(|items| items.send(item).is_err())
                {
                    reader.hand_panic_on();
                }
            }
            Reader::Sender { read, answers } => {
                answers.push_back(READBACKS.executes(|| read(item)))
            }
        }
        self.num_unanswered += 1;
    }

    /// Items that were sent, and whose answers were not received.
    pub fn num_unanswered(&self) -> usize {
        self.num_unanswered
    }

    /// The next item's answer, once it is there; `None` if all were received.
    ///
    /// # Panics
    /// As the reading did.
    pub fn receive(&mut self) -> Option<O> {
        self.num_unanswered = self.num_unanswered.checked_sub(1)?;
        match &mut self.reader {
            Reader::Thread(reader) => match reader.answers.recv() {
                Ok(answer) => Some(answer),
                Err(_) => reader.hand_panic_on(),
            },
            Reader::Sender { answers, .. } => answers.pop_front(),
        }
    }
}

impl<I, O> ReadingThread<I, O> {
    fn hand_panic_on(&mut self) -> ! {
        match self.thread.take().map(JoinHandle::join) {
            Some(Err(panic)) => resume_unwind(panic),
            _ => unreachable!("the thread ends only by a panic while its channels are open"),
        }
    }
}

impl<I, O> Drop for ReadingThread<I, O> {
    fn drop(&mut self) {
        drop(self.items.take());
        if let Some(thread) = self.thread.take() {
            // A panic in an answer that is no longer waited for has no receiver.
            drop(thread.join());
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
    use std::sync::mpsc::sync_channel;

    use super::*;

    #[test]
    fn answers_come_in_order_with_and_without_a_thread_and_none_where_nothing_was_sent() {
        let read = |item: usize| 10 * item;
        for mut readback in [Readback::start(read), Readback::by_sender(Box::new(read))] {
            assert_eq!(readback.receive(), None);
            (0..3).for_each(|item| readback.send(item));
            assert_eq!(readback.num_unanswered(), 3);
            assert_eq!(
                [(); 4].map(|()| readback.receive()),
                [Some(0), Some(10), Some(20), None]
            );
        }
    }

    #[test]
    fn the_sender_goes_on_while_an_item_is_read() {
        let (release, held) = sync_channel(0);
        let mut readback = Readback::start(move |item: usize| {
            held.recv().unwrap();
            item
        });
        // Returns though nothing can be read yet.
        (0..2).for_each(|item| readback.send(item));
        (0..2).for_each(|_| release.send(()).unwrap());
        assert_eq!((readback.receive(), readback.receive()), (Some(0), Some(1)));
    }

    #[test]
    fn a_panic_while_reading_reaches_who_waits() {
        let mut readback = Readback::start(|item: usize| assert_ne!(item, 1, "unreadable"));
        (0..2).for_each(|item| readback.send(item));
        assert_eq!(readback.receive(), Some(()));
        assert!(catch_unwind(AssertUnwindSafe(|| readback.receive())).is_err());
    }
}
