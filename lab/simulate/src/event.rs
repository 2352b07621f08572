//! What happens to workers and servers, in the order of its time.
//!
//! In: events as they are planned. Out: the earliest. Invariant: of two at one time the one that was planned first.

use std::cmp::Ordering;

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Event {
    /// A worker's computing comes to a point of its step, unless more of its core has been taken than when this was planned.
    Milestone {
        worker: usize,
        index: usize,
        taken_s: f64,
    },
    /// A worker knows the headers of all.
    Header { worker: usize },
    /// A worker has a bucket's parameters.
    Answer { worker: usize },
    /// A server may take its next push.
    Serve { server: usize },
    /// A worker's step is over.
    StepEnd { worker: usize },
}

/// An event and its time; the greatest is the earliest, as heaps give the greatest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timed {
    pub(crate) time: f64,
    pub(crate) order: u64,
    pub(crate) event: Event,
}

impl Ord for Timed {
    fn cmp(&self, other: &Self) -> Ordering {
        other
            .time
            .total_cmp(&self.time)
            .then(other.order.cmp(&self.order))
    }
}

impl PartialOrd for Timed {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Timed {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Timed {}
