//! Many predictions from one measured step: each a way to synchronise on some number of ranks.
//!
//! In: the step of one rank, perhaps a second one with another batch, a network. Out: [`Outcome`]s, in the order of the scenarios.
//! Invariant: the same steps, network and scenarios give the same outcomes.

use rayon::prelude::*;

use crate::{
    NetworkModel, Prediction, Predictor, ServerPlacement, SimulationError, StepProfile,
    Synchronisation,
};

/// What stays as ranks are added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scaling {
    /// The batch of each rank.
    Weak,
    /// The global batch, which is that of the measured step: each rank has its share.
    Strong,
}

/// One way to train on more ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scenario {
    /// How the replicas become one.
    pub synchronisation: Synchronisation,
    /// Whether buckets travel during the backward pass.
    pub overlap: bool,
    /// Limit of a bucket, bytes.
    pub bucket_bytes: u64,
    /// What stays as ranks are added.
    pub scaling: Scaling,
    /// Ranks that train.
    pub ranks: usize,
}

/// What is predicted of a scenario.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// Samples of one rank's step.
    pub batch_size_per_rank: usize,
    /// The step. Its speedup is over one rank with the same batch.
    pub prediction: Prediction,
    /// Times as fast as the measured step alone.
    pub speedup: f64,
    /// The limit of a bucket with which training is fastest, bytes, and its prediction; `None` where nothing is sent in buckets or alone.
    pub best_buckets: Option<(u64, Prediction)>,
}

impl Scenario {
    /// Why training from a step of `batch_size_per_rank` cannot be so.
    pub fn why_not(&self, batch_size_per_rank: usize) -> Option<String> {
        match self.synchronisation {
            Synchronisation::ParameterServer {
                servers,
                placement: ServerPlacement::Beside,
                ..
            } if servers > self.ranks => Some(format!("{servers} servers need as many ranks")),
            _ if self.scaling == Scaling::Strong
                && !batch_size_per_rank.is_multiple_of(self.ranks) =>
            {
                Some(format!(
                    "they do not divide a global batch of {batch_size_per_rank}"
                ))
            }
            _ => None,
        }
    }

    /// Predicts from `measured`, and for another batch also from `second`, as [`StepProfile::at_batch`] does.
    ///
    /// # Errors
    /// As for [`predict`](crate::predict()).
    pub fn predict(
        &self,
        measured: &StepProfile,
        second: Option<&StepProfile>,
        network: &NetworkModel,
    ) -> Result<Outcome, SimulationError> {
        let step = match self.scaling {
            Scaling::Weak => measured.clone(),
            Scaling::Strong => measured.at_batch(second, measured.batch_size_per_rank / self.ranks),
        };
        let step = step.with_bucket_cap(self.bucket_bytes);
        let mut predictor = Predictor::new(&step, self.synchronisation, network, self.ranks)?;
        let prediction = predictor.predict(&step, self.overlap)?;
        let is_local = matches!(self.synchronisation, Synchronisation::LocalSgd { .. });
        let has_buckets = self.ranks > 1 && self.overlap && !is_local;
        let best_buckets = if has_buckets {
            Some(predictor.best_bucket_bytes(&step)?)
        } else {
            None
        };
        let of_one = measured.batch_size_per_rank as f64 / measured.compute_s();
        let speedup = prediction.images_per_second / of_one;
        Ok(Outcome {
            batch_size_per_rank: step.batch_size_per_rank,
            prediction,
            speedup,
            best_buckets,
        })
    }
}

/// Predicts every scenario, on all cores.
///
/// # Errors
/// As for [`predict`](crate::predict()).
pub fn predict_scenarios(
    measured: &StepProfile,
    second: Option<&StepProfile>,
    network: &NetworkModel,
    scenarios: &[Scenario],
) -> Result<Vec<Outcome>, SimulationError> {
    // The largest worlds take longest: those first, so that no core is left with one of them at the end.
    let mut order: Vec<usize> = (0..scenarios.len()).collect();
    order.sort_by_key(|&index| std::cmp::Reverse(scenarios[index].ranks));
    let mut outcomes = order
        .into_par_iter()
        .with_max_len(1)
        .map(|index| Ok((index, scenarios[index].predict(measured, second, network)?)))
        .collect::<Result<Vec<_>, SimulationError>>()?;
    outcomes.sort_by_key(|(index, _)| *index);
    Ok(outcomes.into_iter().map(|(_, outcome)| outcome).collect())
}
