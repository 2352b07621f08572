//! Predicted speeds of many ranks, as written by `trainer predict-scaling --output`.
//!
//! Invariant: a prediction belongs to the cell of a study that it names, if it names one.

use crate::{BucketRecord, LayerSeconds};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Value of `schema`.
pub const PREDICTION_SCHEMA: &str = "lockstep.prediction/1";

/// Step from which the speeds were predicted, seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProfileFacts {
    /// Forward pass.
    pub forward_s: f64,
    /// Backward pass.
    pub backward_s: f64,
    /// Optimizer.
    pub optimizer_s: f64,
    /// Waiting for images.
    pub input_s: f64,
    /// Remainder.
    pub other_s: f64,
    /// Standard deviation of a step, from which the delay of the slowest rank follows.
    pub spread_s: f64,
    /// Buckets in the order of their reduction.
    pub buckets: Vec<BucketRecord>,
    /// Layers in the backward pass.
    pub layers: Vec<LayerSeconds>,
}

/// Network of the predictions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NetworkFacts {
    /// Name.
    pub name: String,
    /// Source: `named`, `flags`, or `measured` and the file.
    pub source: String,
    /// Latency, seconds per message.
    pub alpha_s: f64,
    /// Bandwidth, bytes per second.
    pub bytes_per_second: f64,
    /// Ranks on each node.
    pub ranks_per_node: Option<usize>,
    /// Text for `--network`, with the links inside a node.
    pub text: String,
}

/// One prediction.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PredictionRecord {
    /// Synchronisation method, as `--methods` names it.
    pub method: String,
    /// `--sync`.
    pub sync: String,
    /// `--reduction`; absent (null) with compression or without all-reduce.
    pub reduction: Option<String>,
    /// `--compress`.
    pub compress: Option<String>,
    /// `--servers`.
    pub servers: Option<usize>,
    /// `--server-placement`.
    pub server_placement: Option<String>,
    /// `--every`.
    pub local_steps: Option<u64>,
    /// Ranks that train.
    pub ranks: usize,
    /// Samples of one rank's step.
    pub batch_size_per_rank: usize,
    /// `weak` or `strong`.
    pub scaling: String,
    /// Time of a step, milliseconds.
    pub step_ms: Option<f64>,
    /// Time of a step without communication and stragglers, milliseconds.
    pub compute_ms: Option<f64>,
    /// Speed of all ranks.
    pub images_per_second: Option<f64>,
    /// Speed over that of one rank.
    pub speedup: Option<f64>,
    /// Speedup over the number of ranks.
    pub efficiency: Option<f64>,
    /// Communication per step, hidden or exposed, milliseconds.
    pub communication_ms: Option<f64>,
    /// Exposed communication per step, without stragglers, milliseconds.
    pub exposed_ms: Option<f64>,
    /// Waiting per step, for gradients or slower ranks, milliseconds; mean over the ranks.
    pub waiting_ms: Option<f64>,
    /// Largest bucket, bytes.
    pub bucket_bytes: Option<u64>,
    /// Largest bucket with the highest speed, bytes; absent (null) on one rank or without buckets.
    pub best_bucket_bytes: Option<u64>,
    /// Speed with the best bucket.
    pub best_images_per_second: Option<f64>,
    /// Id of the predicted cell of a study.
    pub cell: Option<String>,
    /// Predicted repetition of the cell; absent (null) if the prediction is for all repetitions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repetition: Option<u64>,
}

/// A profile of one rank, a network, and predictions from both.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PredictionFile {
    /// [`PREDICTION_SCHEMA`].
    pub schema: String,
    /// Time of writing in UTC, RFC 3339.
    pub created: String,
    /// Commit of the program, or "unknown".
    pub commit: String,
    /// Name of the neural network.
    pub model: String,
    /// Number format of activations.
    pub dtype: String,
    /// Backend and device of the measured step.
    pub device: String,
    /// Samples of the measured step.
    pub batch_size_per_rank: usize,
    /// Compute threads of the measured rank.
    pub threads: Option<usize>,
    /// Kernels and further options of the rank's work, by the names that studies use.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub work: BTreeMap<String, String>,
    /// The measured step.
    pub profile: ProfileFacts,
    /// The network between ranks.
    pub network: NetworkFacts,
    /// Predictions by method, then ranks.
    pub predictions: Vec<PredictionRecord>,
    /// Published figures, and their simulation.
    pub published: Vec<PublishedFigure>,
}

/// Published figure and its simulation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PublishedFigure {
    /// Source.
    pub source: String,
    /// Measured quantity.
    pub what: String,
    /// Number of GPUs.
    pub ranks: u64,
    /// Speedup per GPU, as published.
    pub published_efficiency: Option<f64>,
    /// Speedup per GPU, as simulated.
    pub predicted_efficiency: Option<f64>,
    /// Assumptions of the simulation that the source does not state.
    pub assumed: String,
}
