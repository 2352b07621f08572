//! The wait policy of a process.
//!
//! In: a policy, which another thread may change. Out: the pause between two polls.
//! Invariant: a process that spins still yields its core at intervals, because a node may have more
//! ranks than cores.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::communicator::WaitPolicy;
use crate::pause::{LOOKS_A_WAKE, pause_after, pause_between};

/// Time of polls without a pause at the start of every wait. A call that is almost complete then
/// costs no sleep.
///
/// Measured with `examples/all_reduce.rs` on two cores: 64 KiB by `MPI_Iallreduce` on 2 sleeping
/// ranks take 0.3 ms without these polls and 0.03 ms with 20 µs of them. 60 µs are slower again if
/// ranks outnumber cores.
const FIRST_LOOKS: Duration = Duration::from_micros(20);

/// Number of polls between two yields.
const YIELD_INTERVAL: u32 = 16;

/// Wait policy of a communicator, shared by all threads that wait on the communicator.
#[derive(Debug, Default)]
pub(super) struct SharedWaitPolicy {
    sleeping: AtomicBool,
    /// Start of the current period of [`WaitPolicy::Sleep`].
    since: Mutex<Option<Instant>>,
    /// Number of waits with a pause since then, on all threads, such as a server on a worker's
    /// rank.
    num_waits: AtomicU32,
    /// Pause between two polls in microseconds. It comes from the waits of the last sleeping period
    /// with any waits, such as a pass. 0 before the end of the first such period.
    pause_micros: AtomicU32,
}

impl SharedWaitPolicy {
    pub(super) fn set(&self, wait_policy: WaitPolicy) {
        let mut since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        match (wait_policy, *since) {
            (WaitPolicy::Sleep, None) => {
                *since = Some(Instant::now());
                self.num_waits.store(0, Ordering::Relaxed);
            }
            (WaitPolicy::Spin, Some(start)) => {
                *since = None;
                let num_waits = self.num_waits.load(Ordering::Relaxed);
                if num_waits > 0 {
                    let micros = pause_between(start.elapsed() / num_waits).as_micros() as u32;
                    self.pause_micros.store(micros, Ordering::Relaxed);
                }
            }
            _ => {}
        }
        self.sleeping
            .store(wait_policy == WaitPolicy::Sleep, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> WaitPolicy {
        if self.sleeping.load(Ordering::Relaxed) {
            WaitPolicy::Sleep
        } else {
            WaitPolicy::Spin
        }
    }

    /// Polls until `look` returns a value.
    pub(super) fn wait<T>(&self, mut look: impl FnMut() -> Option<T>) -> T {
        let mut looks: u32 = 0;
        let mut start = None;
        let mut has_paused = false;
        loop {
            if let Some(found) = look() {
                return found;
            }
            looks = looks.wrapping_add(1);
            match self.get() {
                WaitPolicy::Sleep if looks.is_multiple_of(LOOKS_A_WAKE) => {
                    let waited = start.get_or_insert_with(Instant::now).elapsed();
                    if waited > FIRST_LOOKS {
                        if !std::mem::replace(&mut has_paused, true) {
                            self.num_waits.fetch_add(1, Ordering::Relaxed);
                        }
                        let pause = match self.pause_micros.load(Ordering::Relaxed) {
                            0 => pause_after(waited),
                            micros => Duration::from_micros(micros.into()),
                        };
                        // A thread that waits for this thread may wake it.
                        std::thread::park_timeout(pause);
                    }
                }
                WaitPolicy::Spin if looks.is_multiple_of(YIELD_INTERVAL) => {
                    std::thread::yield_now()
                }
                _ => std::hint::spin_loop(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_waits_in_a_long_pass_pause_longer_than_many_in_a_short_one() {
        let pause_of = |waits: usize, pass: Duration| {
            let wait_policy = SharedWaitPolicy::default();
            wait_policy.set(WaitPolicy::Sleep);
            let start = Instant::now();
            for _ in 0..waits {
                let begin = Instant::now();
                wait_policy.wait(|| (begin.elapsed() > 2 * FIRST_LOOKS).then_some(()));
            }
            std::thread::sleep(pass.saturating_sub(start.elapsed()));
            wait_policy.set(WaitPolicy::Spin);
            wait_policy.pause_micros.load(Ordering::Relaxed)
        };
        assert_eq!(pause_of(0, Duration::from_millis(1)), 0, "nothing is known");
        assert_eq!(pause_of(1, Duration::from_millis(5)), 1000);
        let of_many = pause_of(50, Duration::ZERO);
        assert!((50..1000).contains(&of_many), "{of_many} us");
    }

    #[test]
    fn a_wait_becomes_patient_while_it_waits() {
        let wait_policy = SharedWaitPolicy::default();
        let mut looks = 0;
        let start = Instant::now();
        wait_policy.wait(|| {
            looks += 1;
            wait_policy.set(if looks < 1000 {
                WaitPolicy::Spin
            } else {
                WaitPolicy::Sleep
            });
            (start.elapsed() > Duration::from_millis(20)).then_some(())
        });
        // 20 ms have room for 400 sleeps. Without sleeps there would be hundreds of thousands of
        // polls.
        assert!(looks < 10_000, "{looks} looks");
    }
}
