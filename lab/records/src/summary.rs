//! The end of a run, `summary.json`.
//!
//! Invariant: a speed is images over all ranks by wall-clock seconds.

use crate::EpochRecord;
use crate::evaluation::{Best, FinalTest};
use serde::{Deserialize, Serialize};

/// Speed over the measured steps, images per second over all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ThroughputStats {
    /// All images / all seconds: not the mean of the steps' speeds, which favours fast steps.
    pub mean: f64,
    /// Standard deviation of the steps' speeds around their own mean (n - 1); 0 for one step.
    pub sigma: f64,
    /// Standard deviation of the steps with a whole batch over their mean: an epoch's last one may be short, and so of another speed.
    #[serde(default)]
    pub whole_batch_variation: f64,
    /// Slowest step.
    pub min: f64,
    /// Fastest step.
    pub max: f64,
    /// Median time of a step, milliseconds.
    pub step_milliseconds_median: f64,
    /// Steps measured.
    pub num_steps: u64,
}

/// The rank that the others waited for most: the one with the most own time, communication excluded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SlowestRank {
    /// Its rank.
    pub rank: usize,
    /// Its machine.
    pub node: String,
    /// Its own milliseconds a step, communication excluded.
    pub own_milliseconds_per_step: f64,
    /// Mean of that over all ranks.
    pub mean_milliseconds_per_step: f64,
}

/// Where the time of one rank's steps went, in seconds over all of them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RankSeconds {
    /// Its rank.
    pub rank: usize,
    /// Its machine.
    pub node: String,
    /// Steps, warm-up included.
    pub num_steps: u64,
    /// Waiting for data.
    pub data: f64,
    /// Logits and loss.
    pub forward: f64,
    /// Gradients.
    pub backward: f64,
    /// Collectives that the step waited for.
    pub communication: f64,
    /// Update.
    pub optimizer: f64,
    /// What is left of the steps.
    pub other: f64,
}

/// The whole run, as `summary.json`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Start of the session that ended, as its manifest has it.
    pub started: String,
    /// Epochs done.
    pub epochs: u64,
    /// Steps done.
    pub steps: u64,
    /// Training images seen.
    pub images: u64,
    /// The last epoch.
    pub final_epoch: Option<EpochRecord>,
    /// The best evaluation, and by what it is chosen; absent (null) where nothing was evaluated.
    #[serde(default)]
    pub best: Option<Best>,
    /// The test split, measured once with the best model; absent (null) in a run without a val or a test split, or not at its end.
    #[serde(default)]
    pub test: Option<FinalTest>,
    /// SHA-256 of all parameters in hexadecimal; equal runs have equal hashes.
    pub parameter_hash: String,
    /// Time of this start of the run with everything in it.
    pub seconds_total: f64,
    /// Training speed after the warmup steps, over all ranks.
    pub images_per_second: Option<ThroughputStats>,
    /// The slowest rank, if there are several.
    pub slowest_rank: Option<SlowestRank>,
    /// Where every rank's time went in this start of the run.
    pub rank_seconds: Vec<RankSeconds>,
    /// Largest resident memory of a rank, bytes.
    pub peak_memory_bytes: u64,
    /// Updates that asynchronous parameter servers made, by how many others had made their parameters stale; absent elsewhere.
    #[serde(default)]
    pub staleness: Option<Vec<u64>>,
    /// Steps that were skipped because a loss or gradient was not finite.
    #[serde(default)]
    pub skipped_steps: u64,
    /// Evaluations since the best one where `--patience` ended the run before its last epoch; absent (null) elsewhere.
    #[serde(default)]
    pub patience_ended_after: Option<u64>,
    /// Whether the run was stopped before its end.
    pub stopped_early: bool,
}
