//! A step captured once by a GPU and replayed with one launch: a CUDA graph.
//!
//! In: a closure that reads and overwrites tensors which keep their memory.
//! Out: its results, the same tensors at every replay.
//! Invariant: all memory of a replay lives as long as the captured step; one thread captures and
//! replays.
//! Source: burn 0.22.1, `burn::tensor::capture`, on the driver's `cuStreamBeginCapture`.

#![allow(unsafe_code)]

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use burn::tensor::{Device, Graph, StreamId, capture};

/// Locks out captures of other threads; held while a step is captured.
///
/// A thread holds it for each driver call other than a launch: during a capture the driver gives
/// memory to no thread.
pub fn capture_lock() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A step that a GPU captured.
pub struct CapturedStep<T> {
    graph: Graph<T, Box<dyn FnMut() -> T + Send>>,
    stream: StreamId,
}

impl<T> CapturedStep<T> {
    /// Runs `step` three times, then captures it without running it.
    ///
    /// Returns `None` on a backend that captures nothing or failed to; `step` then ran an unknown
    /// number of times.
    pub fn capture(device: &Device, step: impl FnMut() -> T + Send + 'static) -> Option<Self> {
        let _lock = capture_lock();
        let graph = capture(device, Box::new(step) as Box<dyn FnMut() -> T + Send>);
        graph.is_hardware().then_some(Self {
            graph,
            stream: StreamId::current(),
        })
    }

    /// Replays the step after all work that this thread has given to the device, and returns its
    /// results.
    ///
    /// The next replay overwrites the results. Random numbers and branches are those of the
    /// capture.
    ///
    /// # Panics
    /// On another thread than the one that captured.
    pub fn replay(&mut self) -> &T {
        assert_eq!(
            StreamId::current(),
            self.stream,
            "replay: expected the stream of the capture"
        );
        // SAFETY: the backend keeps the memory of a capture for as long as the capture lives, even
        // when its tensors are dropped (cubecl 0.11.3, cubecl-server, `command/capture.rs`,
        // `Graph::_guards`). Overwrites and reads on this thread go to the stream of the capture; a
        // reader on another stream waits for the writes of a replay, as for any launch.
        unsafe { self.graph.replay() }
    }
}

impl<T> fmt::Debug for CapturedStep<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CapturedStep").finish_non_exhaustive()
    }
}
