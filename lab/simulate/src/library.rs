//! What the collectives of a good MPI library take.
//!
//! In: a network, a number of ranks, bytes. Out: seconds after the last rank has come.
//! Invariant: one rank takes no time.
//! Source: Thakur, Rabenseifner & Gropp 2005, Optimization of collective communication operations in MPICH, tables of costs.
//!
//! An estimate: each collective takes the better of two algorithms over the slower of its links, whatever the nodes.

use crate::network::{Link, NetworkModel};

/// The collectives of one world.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Library {
    link: Link,
    ranks: f64,
    /// Rounds in which all ranks have heard of all.
    rounds: f64,
}

impl Library {
    pub(crate) fn new(network: &NetworkModel, ranks: usize) -> Self {
        let link = network.link(ranks <= network.ranks_per_node());
        Self {
            link,
            ranks: ranks as f64,
            rounds: f64::from(ranks.max(1).next_power_of_two().ilog2()),
        }
    }

    /// The part of a buffer that each rank gets from others.
    fn foreign(&self) -> f64 {
        (self.ranks - 1.0) / self.ranks
    }

    /// All-reduce: recursive doubling, or halving and doubling.
    pub(crate) fn reduce(&self, bytes: f64) -> f64 {
        let short = self.rounds * self.link.seconds(bytes);
        let long = 2.0 * (self.rounds * self.link.alpha + self.foreign() * self.link.beta * bytes);
        short.min(long)
    }

    /// Broadcast: a binomial tree, or a scatter and a gather.
    pub(crate) fn broadcast(&self, bytes: f64) -> f64 {
        let short = self.rounds * self.link.seconds(bytes);
        let messages = self.rounds + self.ranks - 1.0;
        short.min(messages * self.link.alpha + 2.0 * self.foreign() * self.link.beta * bytes)
    }

    /// Gather of `bytes` in all on all ranks: recursive doubling.
    pub(crate) fn gather(&self, bytes: f64) -> f64 {
        self.rounds * self.link.alpha + self.foreign() * self.link.beta * bytes
    }

    pub(crate) fn barrier(&self) -> f64 {
        self.gather(0.0)
    }
}
