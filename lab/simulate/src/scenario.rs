//! Predictions for many methods and numbers of ranks from one measured step.
//!
//! In: the step of one rank, optionally a second step with another batch, a network.
//! Out: a [`PredictionRecord`] per scenario, in order.
//! Invariant: the same input has the same output.

use std::fmt;

use clap::ValueEnum;
use rayon::prelude::*;
use records::PredictionRecord;
use serde::Serialize;

use crate::{
    NetworkModel, Predictor, ServerPlacement, SimulationError, StepProfile, Synchronisation,
};

/// Batch that stays fixed as ranks are added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scaling {
    /// The batch of each rank.
    Weak,
    /// The global batch.
    Strong,
}

impl fmt::Display for Scaling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Weak => "weak",
            Self::Strong => "strong",
        })
    }
}

/// Method and number of ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scenario {
    /// Synchronisation method.
    pub synchronisation: Synchronisation,
    /// True if buckets are reduced during the backward pass.
    pub overlap: bool,
    /// Most bytes of a bucket.
    pub bucket_bytes: u64,
    /// Batch that stays fixed as ranks are added.
    pub scaling: Scaling,
    /// Training ranks.
    pub ranks: usize,
}

impl Scenario {
    /// Returns why a step of `batch_size_per_rank` cannot be scaled to this scenario.
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

    /// Predicts from `measured`, and from `second` for another batch, as
    /// [`StepProfile::at_batch`] does. The record has no names of the method. Its speedup is
    /// over the measured step.
    ///
    /// # Errors
    /// As for [`predict`](crate::predict()).
    pub fn predict(
        &self,
        measured: &StepProfile,
        second: Option<&StepProfile>,
        network: &NetworkModel,
    ) -> Result<PredictionRecord, SimulationError> {
        let step = match self.scaling {
            Scaling::Weak => measured.clone(),
            Scaling::Strong => measured.at_batch(second, measured.batch_size_per_rank / self.ranks),
        };
        let step = step.with_bucket_cap(self.bucket_bytes);
        let mut predictor = Predictor::new(&step, self.synchronisation, network, self.ranks)?;
        let prediction = predictor.predict(&step, self.overlap)?;
        let is_local = matches!(self.synchronisation, Synchronisation::LocalSgd { .. });
        let has_buckets = self.ranks > 1 && self.overlap && !is_local;
        let best = has_buckets.then(|| predictor.best_bucket_bytes(&step));
        let best = best.transpose()?;
        let of_one = measured.batch_size_per_rank as f64 / measured.compute_s();
        let speedup = prediction.images_per_second / of_one;
        Ok(PredictionRecord {
            ranks: self.ranks,
            batch_size_per_rank: step.batch_size_per_rank,
            scaling: self.scaling.to_string(),
            step_ms: Some(prediction.step_s * 1e3),
            compute_ms: Some(prediction.step_s * prediction.efficiency * 1e3),
            images_per_second: Some(prediction.images_per_second),
            speedup: Some(speedup),
            efficiency: Some(speedup / self.ranks as f64),
            communication_ms: Some(prediction.communication_s * 1e3),
            exposed_ms: Some(prediction.exposed_s * 1e3),
            waiting_ms: Some(prediction.waiting_s * 1e3),
            bucket_bytes: Some(self.bucket_bytes),
            best_bucket_bytes: best.map(|(bytes, _)| bytes),
            best_images_per_second: best.map(|(_, best)| best.images_per_second),
            ..PredictionRecord::default()
        })
    }
}

/// Predicts every scenario on all cores.
///
/// # Errors
/// As for [`predict`](crate::predict()).
pub fn predict_scenarios(
    measured: &StepProfile,
    second: Option<&StepProfile>,
    network: &NetworkModel,
    scenarios: &[Scenario],
) -> Result<Vec<PredictionRecord>, SimulationError> {
    // Large worlds take longest and start first, so that all cores finish at about the same time.
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

/// Returns the experimentally determined serial fraction, (1/S - 1/N) / (1 - 1/N); `None` for one
/// rank or a speedup that is not positive and finite.
///
/// Source: Karp & Flatt 1990, Measuring parallel processor performance.
pub fn karp_flatt(speedup: f64, ranks: usize) -> Option<f64> {
    if ranks < 2 || !(speedup.is_finite() && speedup > 0.0) {
        return None;
    }
    let share = 1.0 / ranks as f64;
    Some((1.0 / speedup - share) / (1.0 - share))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The speedup on `ranks` ranks of work of which `serial_fraction` is not shared.
    fn amdahl_speedup(serial_fraction: f64, ranks: usize) -> f64 {
        1.0 / (serial_fraction + (1.0 - serial_fraction) / ranks as f64)
    }

    #[test]
    fn ten_times_as_fast_on_twelve_is_a_serial_share_of_less_than_two_percent() {
        let share = karp_flatt(10.11, 12).unwrap();
        assert!((share - 0.0170).abs() < 5e-5, "{share}");
        assert_eq!(karp_flatt(1.0, 1), None);
        assert_eq!(karp_flatt(0.0, 4), None);
        assert_eq!(karp_flatt(f64::NAN, 4), None);
    }

    #[test]
    fn what_amdahl_predicts_has_the_serial_share_it_was_predicted_from() {
        for ranks in [2, 3, 12, 1024] {
            for share in [0.0, 0.001, 0.3, 1.0] {
                let got = karp_flatt(amdahl_speedup(share, ranks), ranks).unwrap();
                assert!(
                    (got - share).abs() < 1e-9,
                    "{ranks} ranks: expected {share}, got {got}"
                );
            }
        }
        // More than linear has a negative share.
        assert!(karp_flatt(2.2, 2).unwrap() < 0.0);
    }
}
