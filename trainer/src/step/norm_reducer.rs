//! Statistics of batch normalisation over all ranks.
//!
//! In: one rank's sums. Out: their total over the ranks. Invariant: a rank without samples takes
//! part in every collective, with zeros.

use std::sync::Arc;

use anyhow::{Result, ensure};
use burn::module::Module;
use distributed::Communicator;
use layers::backend::StatisticsReducer;

/// Sums norm statistics with a [`Communicator`].
#[derive(Debug)]
pub struct NormReducer {
    communicator: Arc<dyn Communicator>,
    has_samples: bool,
}

impl NormReducer {
    /// Creates a reducer for a pass with or without samples. A rank without samples computes on a
    /// placeholder, so that it makes the same collectives as the others, and contributes zeros.
    pub fn new(communicator: Arc<dyn Communicator>, has_samples: bool) -> Self {
        Self {
            communicator,
            has_samples,
        }
    }
}

impl StatisticsReducer for NormReducer {
    /// # Panics
    /// If the collective fails: a forward pass cannot return an error. The abort ends the
    /// other ranks.
    fn all_reduce_sum(&self, values: &mut [f64]) {
        if !self.has_samples {
            values.fill(0.0);
        }
        if let Err(error) = self.communicator.all_reduce_sum_f64(values) {
            panic!("norm statistics: {error}");
        }
    }
}

/// Checks that the last forward pass used only synchronised batch normalisations.
///
/// # Errors
/// The same on all ranks, naming burn's own batch normalisations.
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
