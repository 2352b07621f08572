//! What is done to a run, drawn at random.
//!
//! In: a [`Random`]. Out: a [`Fault`]. Invariant: a fault takes the same number of draws whatever it is, so that a seed gives the same
//! sequence whatever comes of each.

use std::fmt;
use std::time::Duration;

use super::random::Random;

/// The kinds of faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// SIGKILL to a rank.
    Kill,
    /// SIGSTOP to a rank, for longer than the others wait.
    Stop,
    /// SIGTERM to a rank.
    Term,
    /// No space left on the run's disk.
    FullDisk,
    /// The folder of the checkpoints turns read-only.
    ReadOnly,
    /// SIGKILL to a rank, after which a file of the newest checkpoint is found cut short.
    CutCheckpoint,
}

/// How often each kind is drawn, of 20. A stopped rank costs a timeout.
const WEIGHTS: [(Kind, usize); 6] = [
    (Kind::Kill, 7),
    (Kind::Stop, 2),
    (Kind::Term, 4),
    (Kind::FullDisk, 3),
    (Kind::ReadOnly, 2),
    (Kind::CutCheckpoint, 2),
];

/// Numbers of ranks to go on with; with the exact reduction any has the same bits.
const RANKS: [usize; 5] = [2, 2, 2, 3, 4];
/// Earliest moment of a fault after the start.
const EARLIEST: Duration = Duration::from_millis(300);

/// What happens to one start of the run, and when.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fault {
    pub(super) kind: Kind,
    /// The ranks of this start.
    pub(super) ranks: usize,
    /// Whom a signal is sent to.
    pub(super) rank: usize,
    pub(super) delay: Duration,
    /// Whether it waits until a checkpoint is written, if one is within a while.
    pub(super) awaits_writing: bool,
    /// Which file of a checkpoint is cut, and what part of it is left; 0..1 each.
    pub(super) cut: (f64, f64),
}

impl Fault {
    /// Draws one that comes at the `latest` so long after the start.
    pub(super) fn draw(random: &mut Random, latest: Duration) -> Self {
        let ranks = RANKS[random.below(RANKS.len())];
        Fault {
            kind: Kind::at(random.below(WEIGHTS.iter().map(|(_, weight)| weight).sum())),
            ranks,
            rank: random.below(ranks),
            delay: EARLIEST + (latest.max(EARLIEST) - EARLIEST).mul_f64(random.share()),
            // Writing is short: a part of the faults wait for it.
            awaits_writing: random.below(4) == 0,
            cut: (random.share(), random.share()),
        }
    }
}

impl Kind {
    fn at(mut place: usize) -> Self {
        for (kind, weight) in WEIGHTS {
            if place < weight {
                return kind;
            }
            place -= weight;
        }
        Kind::Kill
    }

    /// The kind, where there is no disk of the run's own to do it to.
    pub(super) fn without_disk(self) -> Self {
        match self {
            Kind::FullDisk | Kind::ReadOnly => Kind::Kill,
            other => other,
        }
    }

    /// The signal that it sends first, if it does.
    pub(super) fn signal(self) -> Option<&'static str> {
        match self {
            Kind::Kill | Kind::CutCheckpoint => Some("KILL"),
            Kind::Stop => Some("STOP"),
            Kind::Term => Some("TERM"),
            Kind::FullDisk | Kind::ReadOnly => None,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Kill => "SIGKILL",
            Kind::Stop => "SIGSTOP",
            Kind::Term => "SIGTERM",
            Kind::FullDisk => "full disk",
            Kind::ReadOnly => "checkpoints read-only",
            Kind::CutCheckpoint => "SIGKILL, newest checkpoint cut",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(seed: u64) -> Vec<Fault> {
        let mut random = Random(seed);
        (0..400)
            .map(|_| Fault::draw(&mut random, Duration::from_secs(2)))
            .collect()
    }

    #[test]
    fn every_kind_is_drawn_on_every_number_of_ranks_and_hits_root_and_others() {
        let faults = drawn(1);
        for (kind, _) in WEIGHTS {
            assert!(
                faults
                    .iter()
                    .any(|fault| fault.kind == kind && fault.rank == 0),
                "{kind}"
            );
            assert!(
                faults
                    .iter()
                    .any(|fault| fault.kind == kind && fault.rank > 0),
                "{kind}"
            );
        }
        assert!(
            RANKS
                .iter()
                .all(|ranks| faults.iter().any(|fault| fault.ranks == *ranks))
        );
        assert!(
            faults
                .iter()
                .all(|fault| fault.rank < fault.ranks && fault.delay <= Duration::from_secs(2))
        );
    }

    #[test]
    fn the_same_seed_draws_the_same_faults() {
        let texts = |seed| {
            drawn(seed)
                .iter()
                .map(|fault| format!("{fault:?}"))
                .collect::<Vec<_>>()
        };
        assert_eq!(texts(3), texts(3));
        assert_ne!(texts(3), texts(4));
    }
}
