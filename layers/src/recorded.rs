//! A computation recorded once by a GPU, and replayed by one launch: a CUDA graph.
//!
//! In: a closure that reads and [overwrites](overwrite) tensors which stay where they are. Out: its results, the same tensors at every replay.
//! Invariant: all that a replay reads or writes lives as long as the recording; one thread records and replays.
//! Source: burn 0.22.1, `burn::tensor::capture`, on the driver's `cuStreamBeginCapture`.

#![allow(unsafe_code)]

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use burn::backend::Dispatch;
use burn::tensor::{Device, Graph, StreamId, Tensor, capture};

use crate::ops::LayerOps;

/// Whether this process records.
static IS_ON: AtomicBool = AtomicBool::new(false);

/// Lets this process record what its GPU can, by default nothing.
pub fn record(yes: bool) {
    IS_ON.store(yes, Ordering::Relaxed);
}

/// Whether it does.
pub fn records() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// Held while a recording is made, and by other threads while they call the driver otherwise than to launch work: it refuses to give memory to any
/// thread while it records.
pub fn undisturbed() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a GPU recorded.
pub struct Recorded<T> {
    graph: Graph<T, Box<dyn FnMut() -> T + Send>>,
    stream: StreamId,
}

impl<T> Recorded<T> {
    /// Runs `make` three times, then records it, without running it. `None` where [nothing is to be recorded](record), and on a
    /// backend that records nothing or failed to, with nothing said of how often `make` ran.
    pub fn record(device: &Device, make: impl FnMut() -> T + Send + 'static) -> Option<Self> {
        if !records() {
            return None;
        }
        let _undisturbed = undisturbed();
        let graph = capture(device, Box::new(make) as Box<dyn FnMut() -> T + Send>);
        graph.is_hardware().then_some(Self {
            graph,
            stream: StreamId::current(),
        })
    }

    /// Runs what was recorded, behind all that this thread has given to the device; its results, which the next replay overwrites. What the
    /// closure drew or decided when it was recorded stays so: random numbers, branches.
    ///
    /// # Panics
    /// On another thread than that which recorded.
    pub fn replay(&mut self) -> &T {
        assert_eq!(
            StreamId::current(),
            self.stream,
            "replay: expected the stream that recorded"
        );
        // SAFETY: the backend keeps the memory that a recording touches for as long as it lives (cubecl 0.11.3, cubecl-server,
        // `command/capture.rs`, `Graph::_guards`), whoever drops its tensors. Refreshes by `overwrite` and reads on this thread are given to the
        // stream that recorded; a reader on another stream waits for what a replay writes, as for any launch.
        unsafe { self.graph.replay() }
    }
}

impl<T> fmt::Debug for Recorded<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorded").finish_non_exhaustive()
    }
}

/// `source`, written to where `target` lies if the backend is a GPU's: then whoever holds `target` has these values from now on, whether the
/// result is used or not; it must be kept until the device was given the work.
///
/// # Shapes
/// Both as long, of f32. Flat, as only there no gaps can be.
pub fn overwrite(target: &Tensor<1>, source: Tensor<1>) -> Tensor<1> {
    let (target, source) = (target.clone().into_dispatch(), source.into_dispatch());
    Tensor::from_dispatch(<Dispatch as LayerOps>::overwrite(target, source))
}
