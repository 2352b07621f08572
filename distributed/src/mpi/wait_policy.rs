//! How a process waits for the others.
//!
//! In: a choice, which another thread may change. Out: the pause between two looks at what is waited for.
//! Invariant: whoever looks busily still yields its core now and then, as there may be more ranks than cores.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::WaitPolicy;
use crate::pause::pause;

/// Time of looks without a pause at the beginning of every wait; what is nearly there costs no sleep.
///
/// Measured with `examples/all_reduce.rs` on two cores: 64 KiB by `MPI_Iallreduce` on 2 sleeping ranks take 0.3 ms without first looks
/// and 0.03 ms with 20 µs of them; 60 µs are slower again where ranks outnumber cores.
const FIRST_LOOKS: Duration = Duration::from_micros(20);

/// Busy looks between two yields.
const YIELD_INTERVAL: u32 = 16;

/// Looks after each sleep: a look at a TCP connection takes one fragment of a message off it.
const LOOKS_A_WAKE: u32 = 4;

/// The wait policy of a communicator, shared by all that wait on its behalf.
#[derive(Debug, Default)]
pub(super) struct SharedWaitPolicy {
    sleeping: AtomicBool,
}

impl SharedWaitPolicy {
    pub(super) fn set(&self, wait_policy: WaitPolicy) {
        self.sleeping.store(wait_policy == WaitPolicy::Sleep, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> WaitPolicy {
        if self.sleeping.load(Ordering::Relaxed) { WaitPolicy::Sleep } else { WaitPolicy::Spin }
    }

    /// Looks until `look` finds something.
    pub(super) fn wait<T>(&self, mut look: impl FnMut() -> Option<T>) -> T {
        let mut looks: u32 = 0;
        let mut start = None;
        loop {
            if let Some(found) = look() {
                return found;
            }
            looks = looks.wrapping_add(1);
            match self.get() {
                WaitPolicy::Sleep if looks.is_multiple_of(LOOKS_A_WAKE) => {
                    let waited = start.get_or_insert_with(Instant::now).elapsed();
                    if waited > FIRST_LOOKS {
                        std::thread::sleep(pause(waited));
                    }
                }
                WaitPolicy::Spin if looks.is_multiple_of(YIELD_INTERVAL) => std::thread::yield_now(),
                _ => std::hint::spin_loop(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_becomes_patient_while_it_waits() {
        let wait_policy = SharedWaitPolicy::default();
        let mut looks = 0;
        let start = Instant::now();
        wait_policy.wait(|| {
            looks += 1;
            wait_policy.set(if looks < 1000 { WaitPolicy::Spin } else { WaitPolicy::Sleep });
            (start.elapsed() > Duration::from_millis(20)).then_some(())
        });
        // 20 ms have room for 400 sleeps; without sleeps it would look hundreds of thousands of times.
        assert!(looks < 10_000, "{looks} looks");
    }
}
