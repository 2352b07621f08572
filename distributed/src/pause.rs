//! Pauses of a thread that polls for messages while another thread computes.
//!
//! In: the time that it has waited, or the time between the starts of its waits. Out: a pause.
//! Invariant: within bounds a pause is an eighth of the wait, or the pauses of a pass are together
//! a quarter of it.
//!
//! A poll costs far more than its instructions: two context switches, and on a virtual machine
//! exits for the timer, 40 µs in all on one of them. So a few waits may each be late, and many may
//! not: docs/decisions/waiting.md.

use std::time::Duration;

/// Linux lets a thread sleep for up to 50 µs longer.
const SHORTEST: Duration = Duration::from_micros(50);

/// At 10 Gbit/s 1.2 MB arrive meanwhile, which the buffers of a TCP connection hold; 2 ms gain
/// nothing more.
const LONGEST: Duration = Duration::from_millis(1);

/// Looks after each pause: a look at a TCP connection takes one fragment of a message off it.
pub(crate) const LOOKS_A_WAKE: u32 = 4;

/// Returns the pause between two looks of MPI's threads where waits begin `interval` apart, on
/// average.
#[cfg(any(feature = "mpi", test))]
pub(crate) fn pause_between(interval: Duration) -> Duration {
    (interval / 4).clamp(SHORTEST, LONGEST)
}

/// Returns the pause before the next look of a thread that has waited for `waited` and knows of no
/// other wait, 50 µs to 1 ms.
pub fn pause_after(waited: Duration) -> Duration {
    (waited / 8).clamp(SHORTEST, LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_a_quarter_of_the_interval_or_an_eighth_of_the_wait_within_bounds() {
        for (pause, share) in [
            (pause_between as fn(Duration) -> Duration, 4),
            (pause_after, 8),
        ] {
            assert_eq!(pause(Duration::ZERO), SHORTEST);
            assert_eq!(
                pause(Duration::from_millis(2)),
                Duration::from_millis(2) / share
            );
            assert_eq!(pause(Duration::from_secs(1)), LONGEST);
        }
    }
}
