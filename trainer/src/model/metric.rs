//! Figures of a model's answers beside loss, top-1 and top-5.
//!
//! In: the logits of each evaluated sample, its class. Out: sums over all samples of all ranks, and the figure that they give.

use std::fmt::Debug;

/// A figure over a whole split. A program of its own brings some by
/// [`ModelFamily::metrics`](super::family::ModelFamily::metrics); they are printed, and written to `metrics.jsonl` under `metrics` of
/// the evaluation.
///
/// Ranks exchange sums, so a metric is what sums over samples tell: shares of classes, calibration, costs; no rank statistics.
pub trait Metric: Debug + Send + Sync {
    /// Its name in records.
    fn name(&self) -> String;

    /// How many numbers are summed.
    fn num_sums(&self) -> usize;

    /// Adds one sample to the sums, of which there are [`num_sums`](Self::num_sums).
    fn add(&self, logits: &[f32], label: u32, sums: &mut [f64]);

    /// The figure.
    fn value(&self, sums: &[f64]) -> f64;

    /// Whether a lower value is a better one, by default not; `--monitor val-NAME` chooses the best model by it.
    fn lower_is_better(&self) -> bool {
        false
    }
}
