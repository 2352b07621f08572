//! Pauses of a thread that polls for messages while another thread computes.
//!
//! In: the time that the thread has waited, or the interval between the starts of waits. Out: a
//! pause.
//! Invariant: within bounds, a pause is an eighth of the wait, or the pauses of a pass are together
//! a quarter of the pass.
//!
//! A poll costs far more than its instructions. It takes two context switches, and on a virtual
//! machine also exits for the timer, 40 µs in total on one machine. So a few waits may each end
//! late, but many may not: docs/decisions/waiting.md.
//! not: docs/decisions/waiting.md.

use std::time::Duration;

/// Shortest pause. Linux may let a thread sleep up to 50 µs longer.
const SHORTEST: Duration = Duration::from_micros(50);

/// Longest pause. At 10 Gbit/s 1.2 MB arrive in this time, which the buffers of a TCP connection
/// can hold. A pause of 2 ms gains nothing more.
const LONGEST: Duration = Duration::from_millis(1);

/// Polls after each pause. One poll of a TCP connection receives one fragment of a message.
pub(crate) const LOOKS_A_WAKE: u32 = 4;

/// Returns the pause between two polls of MPI's threads if waits start `interval` apart on average.
#[cfg(any(feature = "mpi", test))]
pub(crate) fn pause_between(interval: Duration) -> Duration {
    (interval / 4).clamp(SHORTEST, LONGEST)
}

/// Returns the pause before the next poll of a thread that has waited for `waited`, 50 µs to 1 ms.
/// The thread has no information about other waits.
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
