//! Metrics of evaluations besides loss, top-1 and top-5.
//!
//! In: the logits of each evaluated sample, its class. Out: sums over all samples of all ranks, and
//! the figure that they give.

use std::fmt::Debug;

/// A figure over a whole split. [`ModelFamily::metrics`](super::family::ModelFamily::metrics)
/// returns custom ones; they are printed, and written to `metrics.jsonl` under `metrics` of the
/// evaluation.
///
/// Ranks exchange sums, so a metric is a function of sums over samples, such as shares of classes,
/// calibration or costs.
pub trait Metric: Debug + Send + Sync {
    /// Returns the name in records.
    fn name(&self) -> String;

    /// Returns the number of sums.
    fn num_sums(&self) -> usize;

    /// Adds one sample to the sums, of which there are [`num_sums`](Self::num_sums).
    fn add(&self, logits: &[f32], label: u32, sums: &mut [f64]);

    /// Returns the figure.
    fn value(&self, sums: &[f64]) -> f64;

    /// Returns true if a lower value is better, which `--monitor val-NAME` respects. Default:
    /// false.
    fn lower_is_better(&self) -> bool {
        false
    }
}
