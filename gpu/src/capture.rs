//! A captured step (CUDA graph), which one launch replays.
//!
//! In: a closure that reads and overwrites tensors in fixed memory.
//! Out: its results, the same tensors at every replay.
//! Invariant: all memory of a replay lives as long as the captured step; one thread captures and
//! replays.
//! Source: burn 0.22.1, `burn::tensor::capture`, on the driver's `cuStreamBeginCapture`.

#![allow(unsafe_code)]

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use burn::tensor::{Device, Graph, StreamId, capture};

/// Blocks captures of other threads while the guard exists; [`CapturedStep::capture`] holds it.
///
/// A thread holds the lock during each driver call except launches, because the driver allocates no
/// memory during a capture.
pub fn capture_lock() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A step of a GPU, captured for replay.
pub struct CapturedStep<T> {
    graph: Graph<T, Box<dyn FnMut() -> T + Send>>,
    stream: StreamId,
}

impl<T> CapturedStep<T> {
    /// Runs `step` three times, then captures it without running it.
    ///
    /// Returns `None` if the backend cannot capture or the capture failed. Then `step` ran an
    /// unknown number of times.
    pub fn capture(device: &Device, step: impl FnMut() -> T + Send + 'static) -> Option<Self> {
        let _lock = capture_lock();
        let graph = capture(device, Box::new(step) as Box<dyn FnMut() -> T + Send>);
        graph.is_hardware().then_some(Self {
            graph,
            stream: StreamId::current(),
        })
    }

    /// Replays the step after all work that this thread has queued, and returns its results.
    ///
    /// The next replay overwrites the results. Random numbers and branches are those of the
    /// capture.
    ///
    /// # Panics
    /// If another thread captured the step.
    pub fn replay(&mut self) -> &T {
        assert_eq!(
            StreamId::current(),
            self.stream,
            "replay: expected the stream of the capture"
        );
        // SAFETY: the backend keeps the memory of a capture as long as the capture lives, even
        // after its tensors are dropped (cubecl 0.11.3, cubecl-server, `command/capture.rs`,
        // `Graph::_guards`). Overwrites and reads of this thread use the stream of the capture.
        // Readers on other streams wait for the writes of a replay, as for any launch.
        unsafe { self.graph.replay() }
    }
}

impl<T> fmt::Debug for CapturedStep<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CapturedStep").finish_non_exhaustive()
    }
}
