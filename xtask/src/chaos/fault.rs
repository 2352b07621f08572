//! A fault of a run, drawn at random.
//!
//! In: a [`Random`]. Out: a [`Fault`]. Invariant: every fault takes the same number of draws, so
//! that a seed gives the same sequence regardless of the consequences. Source: Steele, Lea and
//! Flood, "Fast splittable pseudorandom number generators", 2014 (SplitMix64).

use std::iter;
use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Kind {
    Kill,
    /// SIGSTOP to a rank for longer than the others wait.
    Stop,
    Term,
    FullDisk,
    /// Read-only folder of checkpoints.
    ReadOnly,
    /// SIGKILL to a rank, then a cut file in the newest checkpoint.
    CutCheckpoint,
}

/// Kinds with frequency out of 20, signal and name. A stopped rank costs a timeout.
pub(super) const KINDS: [(Kind, usize, Option<&str>, &str); 6] = [
    (Kind::Kill, 7, Some("KILL"), "SIGKILL"),
    (Kind::Stop, 2, Some("STOP"), "SIGSTOP"),
    (Kind::Term, 4, Some("TERM"), "SIGTERM"),
    (Kind::FullDisk, 3, None, "full disk"),
    (Kind::ReadOnly, 2, None, "checkpoints read-only"),
    (
        Kind::CutCheckpoint,
        2,
        Some("KILL"),
        "SIGKILL, newest checkpoint cut",
    ),
];

/// Numbers of ranks to resume with; exact reduction has the same bits on each.
const RANKS: [usize; 5] = [2, 2, 2, 3, 4];
/// Earliest time of a fault after the start.
const EARLIEST: Duration = Duration::from_millis(300);

/// A fault in one start of the run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fault {
    pub(super) kind: Kind,
    /// Number of ranks in this start.
    pub(super) ranks: usize,
    /// Receiver of a signal.
    pub(super) rank: usize,
    pub(super) delay: Duration,
    /// Waits until a checkpoint is being written, for a limited time.
    pub(super) awaits_writing: bool,
    /// Choice of a checkpoint's file, and the share of it that stays, 0..1 each.
    pub(super) cut: (f64, f64),
}

impl Fault {
    /// Draws a fault at most `latest` after the start.
    pub(super) fn draw(random: &mut Random, latest: Duration) -> Self {
        let ranks = RANKS[random.below(RANKS.len())];
        let mut kinds = KINDS
            .iter()
            .flat_map(|(kind, weight, ..)| iter::repeat_n(*kind, *weight));
        let total = KINDS.iter().map(|(_, weight, ..)| weight).sum();
        Fault {
            kind: kinds.nth(random.below(total)).unwrap_or(Kind::Kill),
            ranks,
            rank: random.below(ranks),
            delay: EARLIEST + latest.saturating_sub(EARLIEST).mul_f64(random.share()),
            // Writing is short, so a part of the faults wait for it.
            awaits_writing: random.below(4) == 0,
            cut: (random.share(), random.share()),
        }
    }
}

impl Kind {
    pub(super) fn signal(self) -> Option<&'static str> {
        KINDS[self as usize].2
    }
}

/// A pseudorandom sequence, the same for the same seed.
pub(super) struct Random(pub(super) u64);

impl Random {
    /// Returns a number in 0..1.
    fn share(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((bits ^ (bits >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn below(&mut self, end: usize) -> usize {
        (self.share() * end as f64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(seed: u64) -> Vec<Fault> {
        let mut random = Random(seed);
        let draw = |_| Fault::draw(&mut random, Duration::from_secs(2));
        (0..400).map(draw).collect()
    }

    #[test]
    fn every_kind_is_drawn_on_every_number_of_ranks_and_hits_root_and_others() {
        let faults = drawn(1);
        let has = |is_meant: &dyn Fn(&Fault) -> bool| faults.iter().any(is_meant);
        for (kind, ..) in KINDS {
            for is_root in [true, false] {
                let is_meant = |fault: &Fault| fault.kind == kind && (fault.rank == 0) == is_root;
                assert!(has(&is_meant), "{kind:?} {is_root}");
            }
        }
        assert!(
            RANKS
                .iter()
                .all(|ranks| has(&|fault| fault.ranks == *ranks))
        );
        let latest = Duration::from_secs(2);
        assert!(!has(
            &|fault| fault.rank >= fault.ranks || fault.delay > latest
        ));
    }

    #[test]
    fn the_same_seed_draws_the_same_faults() {
        let text = |seed| format!("{:?}", drawn(seed));
        assert_eq!(text(3), text(3));
        assert_ne!(text(3), text(4));
    }
}
