//! Offset of a rank's clock from root's.
//!
//! In: a clock on every rank. Out: [`ClockOffset`]. Invariant: the error is at most about half a
//! message's round trip.
//! Source: Cristian 1989, "Probabilistic clock synchronization".

use distributed::{CollectiveError, Communicator, ROOT};
use serde::{Deserialize, Serialize};

/// Number of round trips, of which the shortest gives the offset.
const NUM_ROUNDS: usize = 20;

/// Tag of the messages that compare clocks.
const CLOCK_TAG: u16 = 100;

/// Offset of root's clock from this rank's.
#[derive(Clone, Copy, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct ClockOffset {
    /// Root's clock minus this rank's, seconds.
    pub offset_s: f64,
    /// Largest error, seconds: half the shortest round trip.
    pub uncertainty_s: f64,
}

impl ClockOffset {
    /// Compares the clocks that `now` reads, in seconds, by messages to root and back.
    /// Collective: all ranks.
    pub fn measure(
        communicator: &dyn Communicator,
        now: impl Fn() -> f64,
    ) -> Result<Self, CollectiveError> {
        let mut message = [0; 8];
        if communicator.rank() == ROOT {
            for rank in 1..communicator.world_size() {
                for _ in 0..NUM_ROUNDS {
                    communicator.receive(rank, CLOCK_TAG, &mut message)?;
                    communicator.send(rank, CLOCK_TAG, &now().to_le_bytes())?;
                }
            }
            return Ok(Self::default());
        }
        let mut best = Self {
            offset_s: 0.0,
            uncertainty_s: f64::INFINITY,
        };
        for _ in 0..NUM_ROUNDS {
            let sent = now();
            communicator.send(ROOT, CLOCK_TAG, &message)?;
            communicator.receive(ROOT, CLOCK_TAG, &mut message)?;
            let received = now();
            let uncertainty_s = (received - sent) / 2.0;
            if uncertainty_s < best.uncertainty_s {
                best = Self {
                    offset_s: f64::from_le_bytes(message) - (sent + received) / 2.0,
                    uncertainty_s,
                };
            }
        }
        Ok(best)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use distributed::run_ranks;
    use std::time::Instant;

    #[test]
    fn a_clock_that_is_ahead_of_roots_has_a_negative_offset() {
        let start = Instant::now();
        let offsets = run_ranks(3, |communicator| {
            let ahead_s = 10.0 * communicator.rank() as f64;
            ClockOffset::measure(&communicator, || start.elapsed().as_secs_f64() + ahead_s).unwrap()
        });
        for (rank, offset) in offsets.iter().enumerate() {
            let error = (offset.offset_s + 10.0 * rank as f64).abs();
            assert!(
                error <= offset.uncertainty_s + 1e-9 && error < 5.0,
                "rank {rank}: {offset:?}"
            );
        }
    }
}
