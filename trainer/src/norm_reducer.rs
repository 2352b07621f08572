//! Batch normalisation's statistics over all ranks, as the models ask for them.
//!
//! In: one rank's sums. Out: their total over the ranks. Invariant: a rank without samples still takes part in every
//! collective, with zeros.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use distributed::Communicator;
use layers::StatisticsReducer;

/// Sums norm statistics with a [`Communicator`].
#[derive(Debug)]
pub struct NormReducer {
    communicator: Arc<dyn Communicator>,
    counts: AtomicBool,
}

impl NormReducer {
    /// A reducer whose rank contributes.
    pub fn new(communicator: Arc<dyn Communicator>) -> Self {
        Self { communicator, counts: AtomicBool::new(true) }
    }

    /// Whether this rank's coming batches count. A rank whose share of the last partial batch is empty computes on a
    /// placeholder, so that it makes the same collectives as the others, and contributes zeros.
    pub fn set_counts(&self, counts: bool) {
        self.counts.store(counts, Ordering::Relaxed);
    }
}

impl StatisticsReducer for NormReducer {
    /// # Panics
    /// When the collective fails: a forward pass cannot return an error, and the other ranks learn of it through the abort.
    fn all_reduce_sum(&self, values: &mut [f64]) {
        if !self.counts.load(Ordering::Relaxed) {
            values.fill(0.0);
        }
        if let Err(error) = self.communicator.all_reduce_sum_f64(values) {
            panic!("norm statistics: {error}");
        }
    }
}
