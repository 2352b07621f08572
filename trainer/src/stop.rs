//! The wish to stop, as raised by a signal.
//!
//! In: SIGTERM, SIGINT, SIGUSR1. Out: a flag that the training loop reads once a step and all ranks agree upon.
//! Invariant: a signal only sets a flag; nothing is written or freed inside a signal's delivery.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use signal_hook::flag;

/// Set once somebody wants this run to stop at the next step's end.
#[derive(Clone, Debug, Default)]
pub struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    /// A flag that nothing but [`StopFlag::raise`] sets.
    pub fn new() -> Self {
        Self::default()
    }

    /// A flag set by SIGTERM, SIGINT and SIGUSR1; a second SIGINT ends the process at once with code 130.
    ///
    /// # Errors
    /// When the operating system refuses a signal's registration.
    pub fn on_signals() -> std::io::Result<Self> {
        let stop = Self::new();
        // Registered before the setter below, so that the first SIGINT finds the flag still down.
        flag::register_conditional_shutdown(SIGINT, 130, Arc::clone(&stop.0))?;
        for signal in [SIGTERM, SIGINT, SIGUSR1] {
            flag::register(signal, Arc::clone(&stop.0))?;
        }
        Ok(stop)
    }

    /// Asks for a stop.
    pub fn raise(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether a stop was asked for.
    pub fn is_raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
