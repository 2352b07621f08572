//! How long a thread sleeps that looks for messages beside one that computes.
//!
//! In: how far apart what it waits for comes, or how long it has waited. Out: a pause. Invariant: all pauses together make a pass later by a quarter of
//! itself at most, where they lie between their bounds.
//!
//! A look costs far more than its instructions: two switches of the thread, and on a virtual machine exits for the timer, 40 µs in all
//! on one of them. So few waits may each be late, and many may not: `docs/log.md`, 2026-11-25.

use std::time::Duration;

/// Linux lets a thread sleep for up to 50 µs longer.
const SHORTEST: Duration = Duration::from_micros(50);

/// At 10 Gbit/s 1.2 MB arrive meanwhile, which the buffers of a TCP connection hold; 2 ms gain nothing more.
const LONGEST: Duration = Duration::from_millis(1);

/// The longest where nothing is known of other waits.
const LONGEST_UNKNOWN: Duration = Duration::from_micros(250);

/// The pause between two looks for what comes once in `interval`, on average.
pub fn pause_between(interval: Duration) -> Duration {
    (interval / 4).clamp(SHORTEST, LONGEST)
}

/// The pause before the next look of a thread that has waited for `waited` and knows of no other wait.
pub(crate) fn pause_after(waited: Duration) -> Duration {
    (waited / 8).clamp(SHORTEST, LONGEST_UNKNOWN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_a_quarter_of_the_interval_or_an_eighth_of_the_wait_within_bounds() {
        assert_eq!(pause_between(Duration::ZERO), SHORTEST);
        assert_eq!(pause_between(Duration::from_millis(2)), Duration::from_micros(500));
        assert_eq!(pause_between(Duration::from_secs(1)), LONGEST);
        assert_eq!(pause_after(Duration::ZERO), SHORTEST);
        assert_eq!(pause_after(Duration::from_micros(800)), Duration::from_micros(100));
        assert_eq!(pause_after(Duration::from_secs(1)), LONGEST_UNKNOWN);
    }
}
