//! Predicted speeds of more ranks: what `trainer predict-scaling --output` writes.
//!
//! Invariant: a prediction's cell is the one it names, else the file's at its place.

use crate::{BucketRecord, LayerSeconds};
use serde::{Deserialize, Serialize};

/// What such a file says of itself.
pub const PREDICTION_SCHEMA: &str = "lockstep.prediction/1";

/// The step that was predicted from, seconds.
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
    /// All else.
    pub other_s: f64,
    /// Standard deviation of a step, of which the slowest rank's delay follows.
    pub spread_s: f64,
    /// In the order of their reduction.
    pub buckets: Vec<BucketRecord>,
    /// The backward pass by layer.
    pub layers: Vec<LayerSeconds>,
}

/// The network that was predicted for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NetworkFacts {
    /// As it was called.
    pub name: String,
    /// `named`, `flags`, or `measured` and the file.
    pub source: String,
    /// Seconds a message.
    pub alpha_s: f64,
    /// Bytes a second.
    pub bytes_per_second: f64,
    /// Ranks on each node.
    pub ranks_per_node: Option<usize>,
    /// As `--network` reads it, with what lies inside a node.
    pub text: String,
}

/// One prediction.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PredictionRecord {
    /// The method in one word, as `--methods` reads it.
    pub method: String,
    /// `--sync`.
    pub sync: String,
    /// `--reduction`, of an uncompressed all-reduce.
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
    /// A step, milliseconds.
    pub step_ms: Option<f64>,
    /// Over all ranks.
    pub images_per_second: Option<f64>,
    /// Times as fast as one rank.
    pub speedup: Option<f64>,
    /// Speedup a rank.
    pub efficiency: Option<f64>,
    /// Gradients travel, hidden or not, milliseconds a step.
    pub communication_ms: Option<f64>,
    /// A step is longer by it than without the others, but for stragglers; milliseconds.
    pub exposed_ms: Option<f64>,
    /// Limit of a bucket.
    pub bucket_bytes: Option<u64>,
    /// Limit with which training is fastest; none where nothing is sent in buckets or alone.
    pub best_bucket_bytes: Option<u64>,
    /// Speed with that one.
    pub best_images_per_second: Option<f64>,
    /// The measured cell of a study that it stands for.
    pub cell: Option<String>,
}

/// What `--output` writes: a profile of one rank, a network, and what follows of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PredictionFile {
    /// [`PREDICTION_SCHEMA`].
    pub schema: String,
    /// In UTC, RFC 3339.
    pub created: String,
    /// Commit of the program, or "unknown".
    pub commit: String,
    /// Name of the network of layers.
    pub model: String,
    /// Number format of activations.
    pub dtype: String,
    /// Backend and device of the measured step.
    pub device: String,
    /// Samples of the measured step.
    pub batch_size_per_rank: usize,
    /// Compute threads of the measured rank.
    pub threads: Option<usize>,
    /// The measured step.
    pub profile: ProfileFacts,
    /// The network between ranks.
    pub network: NetworkFacts,
    /// By method, then ranks.
    pub predictions: Vec<PredictionRecord>,
    /// Published figures and what the same simulation says of them.
    pub published: Vec<PublishedFigure>,
    /// Cells of a study that the predictions stand for, in their order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cells: Vec<Option<String>>,
}

/// A published figure next to the simulation's.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PublishedFigure {
    /// Who says so.
    pub source: String,
    /// What was measured.
    pub what: String,
    /// GPUs.
    pub ranks: u64,
    /// Speedup a GPU, as published.
    pub published_efficiency: Option<f64>,
    /// Speedup a GPU, as simulated.
    pub predicted_efficiency: Option<f64>,
    /// Serial share that the published figure tells of.
    pub published_serial_fraction: Option<f64>,
    /// What of the simulation's input the source does not tell.
    pub assumed: String,
    /// Why the two differ.
    pub explanation: String,
}

impl ProfileFacts {
    /// Seconds of a step of `step_s` on a machine whose forward pass takes `forward_s`: all that is computed takes as much longer, what
    /// is waited for does not. None without a forward pass.
    pub fn step_at(&self, step_s: f64, forward_s: f64) -> Option<f64> {
        let computed_s = self.forward_s + self.backward_s + self.optimizer_s + self.other_s;
        let stretched_s = step_s + (forward_s / self.forward_s - 1.0) * computed_s;
        (self.forward_s > 0.0 && stretched_s > 0.0).then_some(stretched_s)
    }
}

impl PredictionFile {
    /// The cell of a study that the prediction at this place stands for.
    pub fn cell(&self, index: usize) -> Option<&str> {
        let own = self.predictions.get(index).and_then(|record| record.cell.as_ref());
        own.or_else(|| self.cells.get(index).and_then(Option::as_ref)).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slower_machine_computes_longer_and_waits_as_long() {
        let profile = ProfileFacts {
            forward_s: 0.02,
            backward_s: 0.05,
            optimizer_s: 0.01,
            other_s: 0.02,
            ..ProfileFacts::default()
        };
        let step_s = profile.step_at(0.15, 0.03).unwrap();
        assert!((step_s - 0.2).abs() < 1e-12, "{step_s}");
        assert_eq!(profile.step_at(0.15, 0.02), Some(0.15));
        assert_eq!(ProfileFacts::default().step_at(0.15, 0.02), None);
    }

    #[test]
    fn a_predictions_own_cell_wins_over_the_files() {
        let file: PredictionFile = serde_json::from_value(serde_json::json!({
            "schema": PREDICTION_SCHEMA, "cells": ["a", "b"],
            "predictions": [{ "ranks": 2 }, { "ranks": 4, "cell": "c" }, { "ranks": 8 }],
        }))
        .unwrap();
        assert_eq!([0, 1, 2].map(|index| file.cell(index)), [Some("a"), Some("c"), None]);
    }
}
