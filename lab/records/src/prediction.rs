//! Predicted speeds of more ranks: what `trainer predict-scaling --output` writes.
//!
//! Invariant: a prediction's cell is the one it names, else the file's at its place.

use crate::{BucketRecord, LayerSeconds};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

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
    /// What one rank alone computes of it, milliseconds: a step where communication costs nothing
    /// and no rank is slower than others.
    pub compute_ms: Option<f64>,
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
    /// A step in which a rank waits, for gradients or for slower ranks, milliseconds; mean over the
    /// ranks.
    pub waiting_ms: Option<f64>,
    /// Limit of a bucket.
    pub bucket_bytes: Option<u64>,
    /// Limit with which training is fastest; none where nothing is sent in buckets or alone.
    pub best_bucket_bytes: Option<u64>,
    /// Speed with that one.
    pub best_images_per_second: Option<f64>,
    /// The measured cell of a study that it stands for.
    pub cell: Option<String>,
    /// Which repetition of the cell, if it was made for one alone, before that ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repetition: Option<u64>,
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
    /// Kernels and further options of its work, under the names that a study has for them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub work: BTreeMap<String, String>,
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
    /// What of the simulation's input the source does not tell.
    pub assumed: String,
}

/// Whether what was created then was there before a run began, both in UTC, RFC 3339; a run that
/// does not tell its begin has none.
pub fn is_in_time(created: &str, started: Option<&str>) -> bool {
    started.is_some_and(|started| !started.is_empty() && created <= started)
}

impl PredictionFile {
    /// The cell of a study that the prediction at this place stands for.
    pub fn cell(&self, index: usize) -> Option<&str> {
        let own = self
            .predictions
            .get(index)
            .and_then(|record| record.cell.as_ref());
        own.or_else(|| self.cells.get(index).and_then(Option::as_ref))
            .map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_predictions_own_cell_wins_over_the_files() {
        let file: PredictionFile = serde_json::from_value(serde_json::json!({
            "schema": PREDICTION_SCHEMA, "cells": ["a", "b"],
            "predictions": [{ "ranks": 2 }, { "ranks": 4, "cell": "c" }, { "ranks": 8 }],
        }))
        .unwrap();
        assert_eq!(
            [0, 1, 2].map(|index| file.cell(index)),
            [Some("a"), Some("c"), None]
        );
    }
}
