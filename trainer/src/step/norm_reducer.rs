//! Batch normalisation's statistics over all ranks, as the models ask for them.
//!
//! In: one rank's sums. Out: their total over the ranks. Invariant: a rank without samples still takes part in every
//! collective, with zeros.

use std::sync::Arc;

use anyhow::{Result, ensure};
use burn::module::Module;
use distributed::Communicator;
use layers::StatisticsReducer;

/// Sums norm statistics with a [`Communicator`].
#[derive(Debug)]
pub struct NormReducer {
    communicator: Arc<dyn Communicator>,
    has_samples: bool,
}

impl NormReducer {
    /// A reducer whose rank contributes if its batches `has_samples`. A rank whose share of the last partial batch is empty computes
    /// on a placeholder, so that it makes the same collectives as the others, and contributes zeros.
    pub fn new(communicator: Arc<dyn Communicator>, has_samples: bool) -> Self {
        Self {
            communicator,
            has_samples,
        }
    }
}

impl StatisticsReducer for NormReducer {
    /// # Panics
    /// When the collective fails: a forward pass cannot return an error, and the other ranks learn of it through the abort.
    fn all_reduce_sum(&self, values: &mut [f64]) {
        if !self.has_samples {
            values.fill(0.0);
        }
        if let Err(error) = self.communicator.all_reduce_sum_f64(values) {
            panic!("norm statistics: {error}");
        }
    }
}

/// # Errors
/// The same on all ranks when the last forward pass used batch normalisations of burn's own.
pub fn expect_synchronised<M: Module>(model: &M) -> Result<()> {
    let local = layers::backend::locally_normalised(model);
    ensure!(
        local.is_empty(),
        "--batch-norm sync: ranks do not share the statistics of {} (expected layers::BatchNorm, got burn's own BatchNorm). Replace it, or \
         use --batch-norm local",
        local.join(", ")
    );
    Ok(())
}
