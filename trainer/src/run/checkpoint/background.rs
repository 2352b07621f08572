//! Work that goes on while training does: one piece at a time, on a thread of its own.

use std::panic::resume_unwind;
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result};

/// One piece of work under way, or none. Dropped, it waits for that.
#[derive(Debug)]
pub struct Background<T> {
    under_way: Option<JoinHandle<Result<T>>>,
}

impl<T> Default for Background<T> {
    fn default() -> Self {
        Self { under_way: None }
    }
}

impl<T: Send + 'static> Background<T> {
    /// Begins the next piece.
    ///
    /// # Errors
    /// When the operating system refuses a thread.
    ///
    /// # Panics
    /// If an earlier piece was not [waited](Self::wait) for.
    pub fn start(&mut self, work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<()> {
        assert!(self.under_way.is_none(), "background: expected nothing under way");
        let thread = thread::Builder::new().name("checkpoint".to_owned()).spawn(work);
        self.under_way = Some(thread.context("a thread that writes a checkpoint")?);
        Ok(())
    }

    /// What became of the piece that has ended since it was last asked, if one has.
    pub fn ended(&mut self) -> Result<Option<T>> {
        match self.under_way.take_if(|thread| thread.is_finished()) {
            None => Ok(None),
            Some(thread) => joined(thread).map(Some),
        }
    }

    /// What became of the piece that is under way, when it has ended.
    pub fn wait(&mut self) -> Result<Option<T>> {
        self.under_way.take().map(joined).transpose()
    }
}

impl<T> Drop for Background<T> {
    fn drop(&mut self) {
        // Another error is on its way already.
        let _ = self.under_way.take().map(JoinHandle::join);
    }
}

fn joined<T>(thread: JoinHandle<Result<T>>) -> Result<T> {
    thread.join().unwrap_or_else(|panic| resume_unwind(panic))
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
        background.start(move || Ok(may_end.recv()?)).unwrap();
        assert_eq!(background.ended().unwrap(), None);
        go.send(7).unwrap();
        assert_eq!(background.wait().unwrap(), Some(7));
        assert_eq!((background.wait().unwrap(), background.ended().unwrap()), (None, None));
    }

    #[test]
    fn an_error_is_told_and_the_next_piece_begins() {
        let mut background = Background::default();
        background.start(|| anyhow::bail!("no space")).unwrap();
        assert_eq!(background.wait().unwrap_err().to_string(), "no space");
        background.start(|| Ok(1)).unwrap();
        assert_eq!(background.wait().unwrap(), Some(1));
    }

    #[test]
    fn what_is_dropped_has_ended() {
        let has_ended = Arc::new(AtomicBool::new(false));
        let (go, may_end) = channel::<()>();
        let mut background = Background::default();
        let ends = Arc::clone(&has_ended);
        background
            .start(move || {
                let _ = may_end.recv();
                ends.store(true, Ordering::Relaxed);
                Ok(())
            })
            .unwrap();
        drop(go);
        drop(background);
        assert!(has_ended.load(Ordering::Relaxed));
    }
}
