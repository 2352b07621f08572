//! The time of one rank, and when its links are free.
//!
//! In: messages in the order in which the rank sends and receives them. Out: the rank's time after each.
//! Invariant: a time depends on what the rank did before and on when its messages departed, on nothing else.
//!
//! A sender goes on when its message has left. The incoming link takes messages in the order in which the rank receives them, and
//! one that waits for it does not hold up its sender's link. A link inside a node and one between nodes work at the same time.

use crate::network::NetworkModel;

/// Seconds since the start of the simulation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Clock {
    pub(crate) now: f64,
    /// When the outgoing links are free: between nodes and inside the node.
    outgoing: [f64; 2],
    /// When the incoming links are free.
    incoming: [f64; 2],
}

/// The link of a message between two ranks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    inside: bool,
    seconds: f64,
}

impl Route {
    pub(crate) fn new(network: &NetworkModel, from: usize, to: usize, bytes: f64) -> Self {
        let inside = network.is_inside(from, to);
        Self {
            inside,
            seconds: network.link(inside).seconds(bytes),
        }
    }
}

impl Clock {
    /// A clock that shows `now`, with free links.
    pub(crate) fn at(now: f64) -> Self {
        Self {
            now,
            ..Self::default()
        }
    }

    /// Sends a message; when it departed.
    pub(crate) fn send(&mut self, route: Route) -> f64 {
        let free = &mut self.outgoing[usize::from(route.inside)];
        let departed = self.now.max(*free);
        *free = departed + route.seconds;
        self.now = *free;
        departed
    }

    /// Receives a message that departed at `departed`.
    pub(crate) fn receive(&mut self, route: Route, departed: f64) {
        let free = &mut self.incoming[usize::from(route.inside)];
        *free = departed.max(*free) + route.seconds;
        self.now = self.now.max(*free);
    }

    /// Makes a collective that all ranks have begun at `latest` and that takes `seconds`.
    pub(crate) fn collective(&mut self, latest: f64, seconds: f64) {
        self.now = self.now.max(latest) + seconds;
    }
}
