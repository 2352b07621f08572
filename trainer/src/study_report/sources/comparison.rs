//! A comparison with other frameworks.
//!
//! In: `comparison.json`. Out: [`Comparison`]. Invariant: a row without a number says why.

use super::{Machine, check_schema, parsed, read_json};
use anyhow::Result;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::path::Path;

const SCHEMA: &str = "lockstep.comparison/1";

/// What was compared, on which job.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Comparison {
    /// RFC 3339.
    pub created: String,
    /// Of our program.
    pub commit: String,
    /// Where.
    pub machine: Machine,
    /// The job that all did, by name.
    pub job: Map<String, Value>,
    /// One a framework and setting.
    pub rows: Vec<ComparisonRow>,
    /// Course of the training of each framework.
    pub accuracy: Vec<Course>,
}

/// One framework in one setting.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ComparisonRow {
    /// Its name; `Lockstep` is ours.
    pub framework: String,
    /// Its version.
    pub version: String,
    /// Which of its ways.
    pub variant: String,
    /// Network.
    pub model: String,
    /// Number format.
    pub dtype: String,
    /// What started the ranks.
    pub launcher: String,
    /// What carried the gradients.
    pub communication: String,
    /// How many.
    pub ranks: u64,
    /// Of each rank.
    pub threads: u64,
    /// One a block.
    pub images_per_second: Vec<Option<f64>>,
    /// Of the blocks.
    pub images_per_second_median: Option<f64>,
    /// Its speed over ours.
    pub ratio_to_lockstep: Option<f64>,
    /// Against its own single rank.
    pub speedup: Option<f64>,
    /// Speedup by rank.
    pub efficiency: Option<f64>,
    /// Bytes.
    pub peak_memory_bytes_rank: Option<f64>,
    /// Bytes, all ranks together.
    pub peak_memory_bytes_total: Option<f64>,
    /// Nats.
    pub loss_after_2: Option<f64>,
    /// Nats.
    pub loss_after_5: Option<f64>,
    /// Whether the losses are ours within rounding.
    pub loss_agrees: Option<bool>,
    /// Whether the number may be compared.
    pub counts: Option<bool>,
    /// Blocks that were measured although the machine was not quiet.
    pub disturbed_blocks: Option<u64>,
    /// As a shell reads it.
    pub command: String,
    /// What failed: why there is no number, or fewer blocks.
    pub gap: Option<String>,
}

/// One framework's training.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Course {
    /// Its name.
    pub framework: String,
    /// Network.
    pub model: String,
    /// Number format.
    pub dtype: String,
    /// Ascending.
    pub epochs: Vec<EpochPoint>,
    /// Why there are none.
    pub gap: Option<String>,
}

/// The end of an epoch.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub struct EpochPoint {
    /// From 1.
    pub epoch: f64,
    /// Nats.
    pub train_loss: Option<f64>,
    /// Share 0..1.
    pub test_top1: Option<f64>,
    /// Since the start.
    pub elapsed_s: Option<f64>,
}

impl Comparison {
    /// Reads a comparison.
    ///
    /// # Errors
    /// When it cannot be read or is not a comparison's.
    pub fn read(path: &Path, remarks: &mut Vec<String>) -> Result<Self> {
        let value: Value = read_json(path)?;
        check_schema(path, &value, SCHEMA, remarks)?;
        parsed(path, value)
    }
}

impl ComparisonRow {
    /// Framework with its way, for a reader.
    pub fn name(&self) -> String {
        in_words([&self.framework, &self.version, &self.variant])
    }
}

impl Course {
    /// Framework with what it trained, for a reader.
    pub fn name(&self) -> String {
        in_words([&self.framework, &self.model, &self.dtype])
    }
}

fn in_words(parts: [&str; 3]) -> String {
    let known: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    known.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::fs;

    #[test]
    fn a_row_that_was_never_measured_and_a_machine_without_mpi_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("comparison.json");
        let row = json!({ "framework": "MXNet", "command": null, "quiet": null, "images_per_second": [], "gap": "not installed",
            "blocks": [] });
        let machine = json!({ "cpu_model": null, "cpu_count": 2, "memory_bytes": null, "kernel": null, "mpi": null });
        let value = json!({ "schema": SCHEMA, "created": null, "commit": null, "machine": machine, "rows": [row] });
        fs::write(&path, value.to_string()).unwrap();
        let comparison = Comparison::read(&path, &mut Vec::new()).unwrap();
        let row = &comparison.rows[0];
        assert_eq!((row.command.as_str(), row.gap.as_deref()), ("", Some("not installed")));
        assert_eq!(comparison.machine, Machine { cpu_count: 2, ..Machine::default() });
    }
}
