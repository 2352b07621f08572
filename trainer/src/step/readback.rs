//! Results of a device on their way back, read by a thread of their own.
//!
//! In: what a device was told to compute. Out: values in host memory, in order.
//! Invariant: whoever sends does not wait for the device; an answer is waited for only by [`Readback::receive`]; the thread ends
//! when this is dropped, and its panic is handed on.

use std::fmt;
use std::panic::resume_unwind;
use std::sync::LazyLock;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};

use burn::tensor::StreamId;

/// The stream of all readbacks of this process.
///
/// cubecl (0.11.3, cubecl-server, `stream/event.rs`) lets a reading stream wait for all that the writing stream was given until
/// then. On the stream that computes, a readback would wait for the next step too, whose work is there already; on one of its own
/// and begun at once, it waits for its own step.
static READBACKS: LazyLock<StreamId> = LazyLock::new(StreamId::allocate);

/// A thread that reads back.
pub struct Readback<I, O> {
    /// Absent while it is dropped.
    items: Option<Sender<I>>,
    answers: Receiver<O>,
    /// Absent after its end.
    thread: Option<JoinHandle<()>>,
    num_unanswered: usize,
}

impl<I: Send + 'static, O: Send + 'static> Readback<I, O> {
    /// A thread that makes an answer of each item by `read`.
    ///
    /// # Panics
    /// If the operating system refuses a thread.
    pub fn start(read: impl Fn(I) -> O + Send + 'static) -> Self {
        let (items, for_thread) = channel();
        let (from_thread, answers) = channel();
        let read_all = move || {
            for item in for_thread {
                if from_thread.send(read(item)).is_err() {
                    return;
                }
            }
        };
        let thread = Builder::new().name("readback".to_owned()).spawn(|| READBACKS.executes(read_all));
        let thread = thread.expect("the operating system refused the readback thread");
        Self { items: Some(items), answers, thread: Some(thread), num_unanswered: 0 }
    }

    /// Has an item read.
    ///
    /// # Panics
    /// As the reading of an earlier item did.
    pub fn send(&mut self, item: I) {
        if self.items.as_ref().is_none_or(|items| items.send(item).is_err()) {
            self.hand_panic_on();
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
        match self.answers.recv() {
            Ok(answer) => Some(answer),
            Err(_) => self.hand_panic_on(),
        }
    }

    fn hand_panic_on(&mut self) -> ! {
        match self.thread.take().map(JoinHandle::join) {
            Some(Err(panic)) => resume_unwind(panic),
            _ => unreachable!("the thread ends only by a panic while its channels are open"),
        }
    }
}

impl<I, O> Drop for Readback<I, O> {
    fn drop(&mut self) {
        drop(self.items.take());
        if let Some(thread) = self.thread.take() {
            // A panic in an answer that nobody waits for any more has nobody to be told to.
            drop(thread.join());
        }
    }
}

impl<I, O> fmt::Debug for Readback<I, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Readback").field("num_unanswered", &self.num_unanswered).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::mpsc::sync_channel;

    use super::*;

    #[test]
    fn answers_come_in_order_and_none_where_nothing_was_sent() {
        let mut readback = Readback::start(|item: usize| 10 * item);
        assert_eq!(readback.receive(), None);
        (0..3).for_each(|item| readback.send(item));
        assert_eq!(readback.num_unanswered(), 3);
        assert_eq!([(); 4].map(|()| readback.receive()), [Some(0), Some(10), Some(20), None]);
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
