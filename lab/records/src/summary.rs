//! Result of a run, `summary.json`.
//!
//! Invariant: a speed is the images of all ranks per second of wall time.

use crate::EpochRecord;
use crate::evaluation::{Best, FinalTest};
use serde::{Deserialize, Serialize};

/// Speed in the measured steps, images per second of all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ThroughputStats {
    /// All images over all seconds.
    pub mean: f64,
    /// Standard deviation of the steps' speeds (n - 1); 0 for one step.
    pub sigma: f64,
    /// Standard deviation over mean of the steps with a whole batch.
    #[serde(default)]
    pub whole_batch_variation: f64,
    /// Slowest step.
    pub min: f64,
    /// Fastest step.
    pub max: f64,
    /// Median time of a step, milliseconds.
    pub step_milliseconds_median: f64,
    /// Measured steps.
    pub num_steps: u64,
}

/// Rank with the most time outside communication.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SlowestRank {
    /// Rank.
    pub rank: usize,
    /// Machine.
    pub node: String,
    /// Milliseconds per step outside communication.
    pub own_milliseconds_per_step: f64,
    /// Mean over all ranks of the milliseconds per step outside communication.
    pub mean_milliseconds_per_step: f64,
}

/// Time of a rank by phase, seconds over all its steps.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RankSeconds {
    /// Rank.
    pub rank: usize,
    /// Machine.
    pub node: String,
    /// Steps, with warm-up.
    pub num_steps: u64,
    /// Waiting for data.
    pub data: f64,
    /// Logits and loss.
    pub forward: f64,
    /// Gradients.
    pub backward: f64,
    /// Waiting for collectives.
    pub communication: f64,
    /// Update.
    pub optimizer: f64,
    /// Remainder of the steps.
    pub other: f64,
}

/// Result of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Start of the last session, as in its manifest.
    pub started: String,
    /// Completed epochs.
    pub epochs: u64,
    /// Completed steps.
    pub steps: u64,
    /// Trained images.
    pub images: u64,
    /// Last epoch.
    pub final_epoch: Option<EpochRecord>,
    /// Best evaluation; absent (null) without evaluations.
    pub best: Option<Best>,
    /// Test split, evaluated once with the best model at the end; absent (null) without val or test
    /// split.
    pub test: Option<FinalTest>,
    /// SHA-256 of all parameters in hexadecimal; equal runs have equal hashes.
    pub parameter_hash: String,
    /// Wall time of the last session.
    pub seconds_total: f64,
    /// Training speed of all ranks after the warm-up steps.
    pub images_per_second: Option<ThroughputStats>,
    /// Slowest rank, if there are several ranks.
    pub slowest_rank: Option<SlowestRank>,
    /// Time of every rank by phase in the last session.
    pub rank_seconds: Vec<RankSeconds>,
    /// Largest resident memory of a rank, bytes.
    pub peak_memory_bytes: u64,
    /// Updates of asynchronous parameter servers by staleness; absent (null) with other methods.
    pub staleness: Option<Vec<u64>>,
    /// Skipped steps; their loss or gradient was not finite.
    #[serde(default)]
    pub skipped_steps: u64,
    /// Evaluations since the best one, if `--patience` ended the run; otherwise absent (null).
    pub patience_ended_after: Option<u64>,
    /// True if the run was stopped before its end.
    pub stopped_early: bool,
}
