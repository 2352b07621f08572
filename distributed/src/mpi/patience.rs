//! How a process waits for the others.
//!
//! In: a choice, which another thread may change. Out: the pause between two looks at what is waited for.
//! Invariant: whoever looks busily still yields its core now and then, as there may be more ranks than cores.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::Patience;

/// Looks without a pause at the beginning of every wait; what is nearly there costs no sleep.
const FIRST_LOOKS: u32 = 16;

/// Busy looks between two yields.
const YIELD_INTERVAL: u32 = 16;

/// With Linux's timer slack of 50 µs a thread that asks for this sleeps for about 80 µs.
const SLEEP: Duration = Duration::from_micros(30);

/// The patience of a communicator, shared by all that wait on its behalf.
#[derive(Debug, Default)]
pub(super) struct SharedPatience {
    sleeping: AtomicBool,
}

impl SharedPatience {
    pub(super) fn set(&self, patience: Patience) {
        self.sleeping.store(patience == Patience::Sleeping, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> Patience {
        if self.sleeping.load(Ordering::Relaxed) { Patience::Sleeping } else { Patience::Busy }
    }

    /// Looks until `look` finds something.
    pub(super) fn wait<T>(&self, mut look: impl FnMut() -> Option<T>) -> T {
        let mut looks: u32 = 0;
        loop {
            if let Some(found) = look() {
                return found;
            }
            looks = looks.wrapping_add(1);
            match self.get() {
                Patience::Sleeping if looks > FIRST_LOOKS => std::thread::sleep(SLEEP),
                _ if looks.is_multiple_of(YIELD_INTERVAL) => std::thread::yield_now(),
                _ => std::hint::spin_loop(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_wait_becomes_patient_while_it_waits() {
        let patience = SharedPatience::default();
        let mut looks = 0;
        let start = Instant::now();
        patience.wait(|| {
            looks += 1;
            patience.set(if looks < 1000 { Patience::Busy } else { Patience::Sleeping });
            (looks == 1100).then_some(())
        });
        assert!(start.elapsed() >= 100 * SLEEP, "100 sleeps took {:?}", start.elapsed());
    }
}
