//! The request to stop, as raised by a signal.
//!
//! In: signals of terminals, services and schedulers. Out: a flag that is read once a step or a
//! batch of an evaluation, and on which all ranks agree.
//! Invariant: a signal handler only sets a flag.

mod vote;

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use distributed::{CollectiveError, Communicator};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGXCPU, SIGXFSZ};
use signal_hook::{SigId, flag, low_level};

pub use vote::StopVote;

/// Set when the run is to stop at the end of the next step.
#[derive(Clone, Debug, Default)]
pub struct StopFlag {
    raised: Arc<AtomicBool>,
    /// Number of reads until the flag raises itself, if it does.
    looks_left: Option<Arc<AtomicU64>>,
    /// The handlers that end the process at a second SIGTERM or SIGHUP, until
    /// [`disarm`](Self::disarm).
    ending: Arc<Mutex<Vec<SigId>>>,
}

impl StopFlag {
    /// Returns the same flag, which also raises itself at the read after `num_looks` others, for a
    /// stop at a known place: a run reads it once at its start, once a step, once a batch of an
    /// evaluation and once at its end.
    pub fn or_after_looks(&self, num_looks: u64) -> Self {
        Self {
            looks_left: Some(Arc::new(AtomicU64::new(num_looks))),
            ..self.clone()
        }
    }

    /// Returns a flag that is set by SIGTERM, SIGINT, SIGHUP (a closed terminal), SIGUSR1, SIGUSR2
    /// and SIGXCPU (warnings of schedulers).
    ///
    /// A second SIGINT ends the process at once with code 130. Until the flag is read for the first
    /// time, so does a second SIGTERM or SIGHUP, with code 128 plus the signal's number. SIGHUP
    /// stays ignored if it is ignored already, as under `nohup`. SIGXFSZ does nothing, so that a
    /// write beyond the limit of a file's size fails like any other write.
    ///
    /// # Errors
    /// If the operating system refuses to register a handler.
    pub fn on_signals() -> std::io::Result<Self> {
        let stop = Self::default();
        // The handlers that end the process are registered before those that set the flags: the
        // first signal finds the flags down.
        flag::register_conditional_shutdown(SIGINT, 130, Arc::clone(&stop.raised))?;
        let mut stopping = vec![SIGTERM, SIGINT, SIGUSR1, SIGUSR2, SIGXCPU];
        let mut ending = vec![SIGTERM];
        if !is_ignored(SIGHUP) {
            stopping.push(SIGHUP);
            ending.push(SIGHUP);
        }
        let was_asked = Arc::new(AtomicBool::new(false));
        let mut handlers = Vec::new();
        for signal in ending {
            handlers.push(flag::register_conditional_shutdown(
                signal,
                128 + signal,
                Arc::clone(&was_asked),
            )?);
            flag::register(signal, Arc::clone(&was_asked))?;
        }
        *stop.ending.lock().unwrap_or_else(PoisonError::into_inner) = handlers;
        for signal in stopping {
            flag::register(signal, Arc::clone(&stop.raised))?;
        }
        flag::register(SIGXFSZ, Arc::default())?;
        Ok(stop)
    }

    /// Lets the process stop in order from now on: further SIGTERM or SIGHUP do not end it at once.
    pub fn disarm(&self) {
        let mut handlers = self.ending.lock().unwrap_or_else(PoisonError::into_inner);
        for handler in handlers.drain(..) {
            low_level::unregister(handler);
        }
    }

    pub fn raise(&self) {
        self.raised.store(true, Ordering::Relaxed);
    }

    /// Returns true if a stop was requested on any rank.
    /// Collective: all ranks.
    pub fn is_raised_anywhere(
        &self,
        communicator: &dyn Communicator,
    ) -> Result<bool, CollectiveError> {
        let mut num_ranks = [u64::from(self.is_raised())];
        communicator.all_reduce_sum_u64(&mut num_ranks)?;
        Ok(num_ranks[0] > 0)
    }

    /// Returns true if a stop was requested on this rank.
    pub fn is_raised(&self) -> bool {
        self.disarm();
        if let Some(looks_left) = &self.looks_left
            && looks_left
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |looks| {
                    looks.checked_sub(1)
                })
                .is_err()
        {
            self.raise();
        }
        self.raised.load(Ordering::Relaxed)
    }
}

/// Returns true if this process was started with `signal` ignored.
fn is_ignored(signal: i32) -> bool {
    ignores(
        &fs::read_to_string("/proc/self/status").unwrap_or_default(),
        signal,
    )
}

/// Reads the mask of ignored signals in `status`, the text of `/proc/self/status`.
fn ignores(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0);
    mask >> (signal - 1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_of_ignored_signals_counts_from_signal_1() {
        let status = "Name:\ttrainer\nSigBlk:\t0000000000000001\nSigIgn:\t0000000000001001\n";
        assert_eq!(
            [1, 2, 13, 64].map(|signal| ignores(status, signal)),
            [true, false, true, false]
        );
        assert!(!ignores("", 1));
    }
}
