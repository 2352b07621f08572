//! Metrics of evaluations besides loss, top-1 and top-5.
//!
//! In: the logits and the class of each evaluated sample. Out: sums over all samples of all ranks,
//! and the metric computed from them.

use std::fmt::Debug;

/// A metric over a whole split. [`ModelFamily::metrics`](super::family::ModelFamily::metrics)
/// returns custom metrics. They are printed, and written to `metrics.jsonl` under `metrics` of the
/// evaluation.
///
/// Ranks exchange sums, so a metric is a function of sums over samples. Examples are shares of
/// classes, calibration and costs.
pub trait Metric: Debug + Send + Sync {
    /// Returns the name in records.
    fn name(&self) -> String;

    /// Returns the number of sums.
    fn num_sums(&self) -> usize;

    /// Adds one sample to the sums; `sums` has [`num_sums`](Self::num_sums) elements.
    fn add(&self, logits: &[f32], label: u32, sums: &mut [f64]);

    /// Returns the value of the metric.
    fn value(&self, sums: &[f64]) -> f64;

    /// Returns true if a lower value is better, for `--monitor val-NAME`. Default: false.
    fn lower_is_better(&self) -> bool {
        false
    }
}
