//! The wish to stop, as raised by a signal.
//!
//! In: SIGTERM, SIGINT, SIGUSR1. Out: a flag that is read once a step, or a batch of an evaluation, and that all ranks agree upon.
//! Invariant: a signal only sets a flag; nothing is written or freed inside a signal's delivery.

mod vote;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use distributed::{CollectiveError, Communicator};
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use signal_hook::{SigId, flag, low_level};

pub use vote::StopVote;

/// Set once somebody wants this run to stop at the next step's end.
#[derive(Clone, Debug, Default)]
pub struct StopFlag {
    raised: Arc<AtomicBool>,
    /// Looks that are left until it raises itself, for a flag that does.
    looks_left: Option<Arc<AtomicU64>>,
    /// What ends the process at a second SIGTERM, until somebody [heeds](Self::heed) the flag.
    unheeded: Arc<Mutex<Option<SigId>>>,
}

impl StopFlag {
    /// A flag that nothing but [`StopFlag::raise`] sets.
    pub fn new() -> Self {
        Self::default()
    }

    /// A flag that raises itself at the look after `num_looks` others, to try a stop at a known place: a run looks once at its
    /// start, once a step, once a batch of an evaluation and once at its end.
    pub fn after_looks(num_looks: u64) -> Self {
        Self { looks_left: Some(Arc::new(AtomicU64::new(num_looks))), ..Self::default() }
    }

    /// The same flag, which also raises itself as [`after_looks`](Self::after_looks) does.
    pub fn or_after_looks(&self, num_looks: u64) -> Self {
        Self { looks_left: Some(Arc::new(AtomicU64::new(num_looks))), ..self.clone() }
    }

    /// A flag set by SIGTERM, SIGINT and SIGUSR1; a second SIGINT ends the process at once with code 130, a second SIGTERM with 143
    /// until the flag is [heeded](Self::heed), as by the first look.
    ///
    /// # Errors
    /// When the operating system refuses a signal's registration.
    pub fn on_signals() -> std::io::Result<Self> {
        let stop = Self::new();
        // Registered before the setter below, so that the first signal finds the flag still down.
        flag::register_conditional_shutdown(SIGINT, 130, Arc::clone(&stop.raised))?;
        let terminated = Arc::new(AtomicBool::new(false));
        let unheeded = flag::register_conditional_shutdown(SIGTERM, 143, Arc::clone(&terminated))?;
        flag::register(SIGTERM, terminated)?;
        *stop.unheeded.lock().unwrap_or_else(PoisonError::into_inner) = Some(unheeded);
        for signal in [SIGTERM, SIGINT, SIGUSR1] {
            flag::register(signal, Arc::clone(&stop.raised))?;
        }
        Ok(stop)
    }

    /// From now on the process stops in order, by itself or by those that it works for, however often SIGTERM comes.
    pub fn heed(&self) {
        if let Some(unheeded) = self.unheeded.lock().unwrap_or_else(PoisonError::into_inner).take() {
            low_level::unregister(unheeded);
        }
    }

    pub fn raise(&self) {
        self.raised.store(true, Ordering::Relaxed);
    }

    /// Whether a stop was asked for on any rank.
    /// Collective: all ranks.
    pub fn is_raised_anywhere(&self, communicator: &dyn Communicator) -> Result<bool, CollectiveError> {
        let mut wishes = [u64::from(self.is_raised())];
        communicator.all_reduce_sum_u64(&mut wishes)?;
        Ok(wishes[0] > 0)
    }

    /// Whether a stop was asked for.
    pub fn is_raised(&self) -> bool {
        self.heed();
        if let Some(looks_left) = &self.looks_left
            && looks_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |looks| looks.checked_sub(1)).is_err()
        {
            self.raise();
        }
        self.raised.load(Ordering::Relaxed)
    }
}
