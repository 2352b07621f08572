//! Predictions of speeds: what `trainer predict-scaling` writes.
//!
//! In: JSON. Out: [`PredictionFile`]. Invariant: a prediction's cell is the one it names, else the file's at its place.

use super::{Cell, Study, check_schema, name, network_name, parsed};
use anyhow::Result;
use serde::Deserialize;
use serde_json::Value;
use std::path::Path;

const SCHEMA: &str = "lockstep.prediction/1";

/// A profile of one rank, a network, and what follows of them.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PredictionFile {
    /// What it is called in the report.
    #[serde(skip)]
    pub label: String,
    /// Number, from 1, of the study it lies in; none for a file on its own.
    #[serde(skip)]
    pub study: Option<usize>,
    /// RFC 3339.
    pub created: String,
    /// Of the program.
    pub commit: String,
    /// Network of layers.
    pub model: String,
    /// Number format.
    pub dtype: String,
    /// Compute threads of a rank.
    pub threads: Option<u64>,
    /// Between ranks.
    pub network: PredictedNetwork,
    /// The step of one rank that it is made of.
    pub profile: PredictedProfile,
    /// One a setting.
    pub predictions: Vec<Predicted>,
    /// Against what others published.
    pub published: Vec<Published>,
    cells: Vec<Option<String>>,
}

/// The network that was assumed.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PredictedNetwork {
    /// Its name.
    pub name: String,
    /// Where its numbers come from.
    pub source: String,
    /// Latency.
    pub alpha_s: f64,
    /// Bandwidth.
    pub bytes_per_second: f64,
    /// That share a node.
    pub ranks_per_node: Option<u64>,
}

/// Seconds of the step of one rank.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PredictedProfile {
    /// Of the forward pass.
    pub forward_s: f64,
    /// Of the backward pass.
    pub backward_s: f64,
    /// Of the update.
    pub optimizer_s: f64,
    /// Of what the step does besides.
    pub other_s: f64,
}

impl PredictedProfile {
    /// Seconds of a step of `step_s` on a machine whose forward pass takes `forward_s`: all that is computed takes as much longer, what
    /// is waited for does not. None without a forward pass.
    pub fn step_at(&self, step_s: f64, forward_s: f64) -> Option<f64> {
        let computed_s = self.forward_s + self.backward_s + self.optimizer_s + self.other_s;
        let stretched_s = step_s + (forward_s / self.forward_s - 1.0) * computed_s;
        (self.forward_s > 0.0 && stretched_s > 0.0).then_some(stretched_s)
    }
}

/// One prediction.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Predicted {
    /// The method in one word; empty where the file does not tell it.
    pub method: String,
    /// Method.
    pub sync: String,
    /// Algorithm.
    pub reduction: Option<String>,
    /// Compression.
    pub compress: Option<String>,
    /// How many.
    pub ranks: usize,
    /// Samples.
    pub batch_size_per_rank: u64,
    /// `weak` or `strong`.
    pub scaling: String,
    /// Of a step.
    pub step_ms: Option<f64>,
    /// Of all ranks.
    pub images_per_second: Option<f64>,
    /// Against one rank.
    pub speedup: Option<f64>,
    /// Speedup by rank.
    pub efficiency: Option<f64>,
    /// Hidden or not.
    pub communication_ms: Option<f64>,
    /// Not hidden.
    pub exposed_ms: Option<f64>,
    /// Assumed.
    pub bucket_bytes: Option<f64>,
    /// Best for this setting.
    pub best_bucket_bytes: Option<f64>,
    /// With the best buckets.
    pub best_images_per_second: Option<f64>,
    /// The cell of a study for which it stands.
    pub cell: Option<String>,
}

/// A published figure and ours.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Published {
    /// Who.
    pub source: String,
    /// Of what.
    pub what: String,
    /// How many.
    pub ranks: u64,
    /// Theirs.
    pub published_efficiency: Option<f64>,
    /// Ours.
    pub predicted_efficiency: Option<f64>,
    /// Why they differ.
    pub explanation: String,
}

impl PredictionFile {
    /// Reads a prediction.
    ///
    /// # Errors
    /// When it is not a prediction.
    pub fn from_value(path: &Path, value: Value, remarks: &mut Vec<String>) -> Result<Self> {
        check_schema(path, &value, SCHEMA, remarks)?;
        let mut file: Self = parsed(path, value)?;
        file.label = name(path);
        if let Some(measured) = file.network.source.strip_prefix("measured ").map(Path::new) {
            // Studies call all of these files alike.
            if measured.file_stem().is_some_and(|stem| *stem == *file.network.name && stem == "network") {
                file.network.name = network_name(measured);
            }
        }
        for (prediction, cell) in file.predictions.iter_mut().zip(file.cells.drain(..)) {
            prediction.cell = prediction.cell.take().or(cell);
        }
        Ok(file)
    }

    /// Makes it one of a study: its network is that of the cells for which it stands.
    pub(super) fn stand_in(&mut self, study: &Study, number: usize) {
        self.study = Some(number);
        let names = |cell: &&Cell| self.predictions.iter().any(|one| one.cell.as_ref() == Some(&cell.id));
        let mut networks: Vec<String> = study.cells.iter().filter(names).map(|cell| cell.setting("network")).collect();
        networks.dedup();
        if let [network] = &mut networks[..]
            && !network.is_empty()
        {
            self.network.name = std::mem::take(network);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slower_machine_computes_longer_and_waits_as_long() {
        let profile = PredictedProfile { forward_s: 0.02, backward_s: 0.05, optimizer_s: 0.01, other_s: 0.02 };
        let step_s = profile.step_at(0.15, 0.03).unwrap();
        assert!((step_s - 0.2).abs() < 1e-12, "{step_s}");
        assert_eq!(profile.step_at(0.15, 0.02), Some(0.15));
        assert_eq!(PredictedProfile::default().step_at(0.15, 0.02), None);
    }

    #[test]
    fn a_network_that_was_measured_is_called_by_its_study_and_not_by_its_file() {
        let value = serde_json::json!({
            "schema": "lockstep.prediction/1", "predictions": [{ "ranks": 2, "cell": "a" }],
            "network": { "name": "network", "source": "measured s/runs/netbench-1gbit/r1a1/network.json" },
        });
        let mut file = PredictionFile::from_value(Path::new("p.json"), value, &mut Vec::new()).unwrap();
        assert_eq!(file.network.name, "netbench-1gbit");
        let cell = |id: &str, network: &str| {
            let settings = serde_json::json!({ "network": network }).as_object().unwrap().clone();
            Cell { id: id.to_owned(), settings, ..Cell::default() }
        };
        let study = Study { cells: vec![cell("a", "1gbit"), cell("b", "200mbit")], ..Study::default() };
        file.stand_in(&study, 1);
        assert_eq!((file.network.name.as_str(), file.study), ("1gbit", Some(1)));
    }

    #[test]
    fn a_predictions_own_cell_wins_over_the_files() {
        let value = serde_json::json!({
            "schema": "lockstep.prediction/1", "cells": ["a", "b"],
            "predictions": [{ "ranks": 2 }, { "ranks": 4, "cell": "c" }, { "ranks": 8 }],
        });
        let file = PredictionFile::from_value(Path::new("p.json"), value, &mut Vec::new()).unwrap();
        let cells: Vec<Option<&str>> = file.predictions.iter().map(|prediction| prediction.cell.as_deref()).collect();
        assert_eq!(cells, [Some("a"), Some("c"), None]);
    }
}
