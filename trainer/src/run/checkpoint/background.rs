//! Work that goes on while training does: one piece at a time, on a thread of its own.
//!
//! In: work. Out: its result. Invariant: where the operating system refuses the thread, the work is done before [`Background::start`] returns.

use std::panic::resume_unwind;
use std::thread::JoinHandle;

use anyhow::Result;
use datasets::threads;

/// One piece of work under way, or none. Dropped, it waits for that.
#[derive(Debug)]
pub struct Background<T> {
    under_way: Option<Piece<T>>,
}

#[derive(Debug)]
enum Piece<T> {
    OnThread(JoinHandle<Result<T>>),
    Done(Result<T>),
}

type Work<T> = Box<dyn FnOnce() -> Result<T> + Send>;

impl<T> Default for Background<T> {
    fn default() -> Self {
        Self { under_way: None }
    }
}

impl<T: Send + 'static> Background<T> {
    /// Begins the next piece.
    ///
    /// # Panics
    /// If an earlier piece was not [waited](Self::wait) for.
    pub fn start(&mut self, work: impl FnOnce() -> Result<T> + Send + 'static) {
        self.take_up(threads::start(
            "checkpoint",
            Box::new(work) as Work<T>,
            |work| work(),
        ));
    }

    /// Notes the piece on its thread; without a thread, does it.
    fn take_up(&mut self, started: Result<JoinHandle<Result<T>>, Work<T>>) {
        assert!(
            self.under_way.is_none(),
            "background: expected nothing under way"
        );
        self.under_way = Some(match started {
            Ok(thread) => Piece::OnThread(thread),
            Err(work) => Piece::Done(work()),
        });
    }

    /// Returns the result of the piece that has ended since the last call, if one has.
    pub fn ended(&mut self) -> Result<Option<T>> {
        let has_ended = |piece: &mut Piece<T>| match piece {
            Piece::OnThread(thread) => thread.is_finished(),
            Piece::Done(_) => true,
        };
        self.under_way
            .take_if(has_ended)
            .map(Piece::result)
            .transpose()
    }

    /// Waits for the piece that is under way and returns its result.
    pub fn wait(&mut self) -> Result<Option<T>> {
        self.under_way.take().map(Piece::result).transpose()
    }
}

impl<T> Drop for Background<T> {
    fn drop(&mut self) {
        if let Some(Piece::OnThread(thread)) = self.under_way.take() {
            // Another error is on its way already.
            let _ = thread.join();
        }
    }
}

impl<T> Piece<T> {
    fn result(self) -> Result<T> {
        match self {
            Self::OnThread(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
            Self::Done(result) => result,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn work_goes_on_beside_and_its_result_comes_once() {
        let (go, may_end) = channel();
        let mut background = Background::default();
        background.start(move || Ok(may_end.recv()?));
        assert_eq!(background.ended().unwrap(), None);
        go.send(7).unwrap();
        assert_eq!(background.wait().unwrap(), Some(7));
        assert_eq!(
            (background.wait().unwrap(), background.ended().unwrap()),
            (None, None)
        );
    }

    #[test]
    fn an_error_is_told_and_the_next_piece_begins() {
        let mut background = Background::default();
        background.start(|| anyhow::bail!("no space"));
        assert_eq!(background.wait().unwrap_err().to_string(), "no space");
        background.start(|| Ok(1));
        assert_eq!(background.wait().unwrap(), Some(1));
    }

    #[test]
    fn without_a_thread_the_piece_is_done_at_once_and_its_result_comes_once() {
        let mut background = Background::default();
        background.take_up(Err(Box::new(|| Ok(7))));
        assert_eq!(
            (background.ended().unwrap(), background.wait().unwrap()),
            (Some(7), None)
        );
        background.take_up(Err(Box::new(|| anyhow::bail!("no space"))));
        assert_eq!(background.wait().unwrap_err().to_string(), "no space");
    }

    #[test]
    fn what_is_dropped_has_ended() {
        let has_ended = Arc::new(AtomicBool::new(false));
        let (go, may_end) = channel::<()>();
        let mut background = Background::default();
        let ends = Arc::clone(&has_ended);
        background.start(move || {
            let _ = may_end.recv();
            ends.store(true, Ordering::Relaxed);
            Ok(())
        });
        drop(go);
        drop(background);
        assert!(has_ended.load(Ordering::Relaxed));
    }
}
