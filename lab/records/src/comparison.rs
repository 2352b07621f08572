//! A comparison with other frameworks, `comparison.json`, and what each rank of one of them tells, `rank-0.json`.
//!
//! Invariant: a row without a number says why; images/s are the global samples over the slowest rank's time.

use crate::number::nans_if_null;
use crate::{Estimate, Machine, Quiet};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// What `comparison.json` says of itself.
pub const COMPARISON_SCHEMA: &str = "lockstep.comparison/1";

/// What was compared, on which job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Comparison {
    /// [`COMPARISON_SCHEMA`].
    pub schema: String,
    /// Begin in UTC, RFC 3339.
    pub created: String,
    /// Commit of our program.
    pub commit: String,
    /// SHA-256 of our program in hexadecimal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub program_sha256: Option<String>,
    /// Where.
    pub machine: Machine,
    /// The job that all did, by name.
    pub job: Map<String, Value>,
    /// One a framework and job.
    pub rows: Vec<ComparisonRow>,
    /// What was tried to find the setting that each framework competes with, one a setting.
    pub sweep: Vec<ComparisonRow>,
    /// The training of each framework on images.
    pub accuracy: Vec<Course>,
}

/// One framework in one setting.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ComparisonRow {
    /// Its name; `Lockstep` is ours.
    pub framework: String,
    /// Its version.
    pub version: String,
    /// Which of its ways.
    pub variant: String,
    /// What was set other than the framework's own defaults, by name.
    pub setting: BTreeMap<String, String>,
    /// In a sweep: the name whose options were tried, the others held.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tried: String,
    /// Network.
    pub model: String,
    /// Number format.
    pub dtype: String,
    /// What started the ranks.
    pub launcher: String,
    /// What carried the gradients.
    pub communication: String,
    /// Ranks.
    pub ranks: u64,
    /// Compute threads of each.
    pub threads: u64,
    /// One a round.
    pub images_per_second: Vec<Option<f64>>,
    /// Median of the rounds, without the disturbed ones if six or more are quiet.
    pub images_per_second_median: Option<f64>,
    /// Median of its speed over ours in the same round.
    pub ratio_to_lockstep: Option<f64>,
    /// See [`Estimate::interval`].
    pub ratio_interval: Option<[f64; 2]>,
    /// Median of its speed over its own single rank's in the same round.
    pub speedup: Option<f64>,
    /// See [`Estimate::interval`].
    pub speedup_interval: Option<[f64; 2]>,
    /// Speedup by rank.
    pub efficiency: Option<f64>,
    /// Most of any round, bytes.
    pub peak_memory_bytes_rank: Option<u64>,
    /// Most of any round, bytes, all ranks together.
    pub peak_memory_bytes_total: Option<u64>,
    /// Of a rank's peak: what was there as soon as the framework had been imported, bytes.
    pub import_memory_bytes_rank: Option<u64>,
    /// Mean loss of the parameters after two updates, nats.
    pub loss_after_2: Option<f64>,
    /// Mean loss of the parameters after five updates, nats.
    pub loss_after_5: Option<f64>,
    /// Whether the losses are ours within rounding.
    pub loss_agrees: Option<bool>,
    /// Whether the number may be compared.
    pub counts: Option<bool>,
    /// Rounds that were measured although the machine was not quiet.
    pub disturbed_blocks: Option<u64>,
    /// How quiet the machine was in the last round.
    pub quiet: Option<Quiet>,
    /// Of the last round, as a shell reads it.
    pub command: Option<String>,
    /// What failed: why there is no number, or fewer rounds.
    pub gap: Option<String>,
    /// What was measured.
    pub blocks: Vec<Block>,
}

impl ComparisonRow {
    /// Its speed over ours, with the interval.
    pub fn ratio(&self) -> Option<Estimate> {
        self.ratio_to_lockstep.map(|median| Estimate {
            median,
            interval: self.ratio_interval,
        })
    }

    /// Its speed over its single rank's, with the interval.
    pub fn speedup(&self) -> Option<Estimate> {
        self.speedup.map(|median| Estimate {
            median,
            interval: self.speedup_interval,
        })
    }
}

/// One measurement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Block {
    /// Over all ranks.
    pub images_per_second: f64,
    /// Mean loss over all ranks of every step from the first on, nats.
    #[serde(deserialize_with = "nans_if_null")]
    pub losses: Vec<f64>,
    /// Most of any rank's process, bytes.
    pub peak_memory_bytes_rank: u64,
    /// All processes together, bytes.
    pub peak_memory_bytes_total: u64,
    /// Of the largest rank's peak: what was there as soon as the framework had been imported, bytes; 0 for ours, which imports nothing.
    #[serde(default)]
    pub import_memory_bytes_rank: u64,
    /// Begin and end of the measured steps, seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured_unix_s: Option<[f64; 2]>,
    /// How quiet the machine was between them.
    #[serde(default)]
    pub quiet: Option<Quiet>,
    /// Whether others used the processors meanwhile.
    #[serde(rename = "disturbed")]
    pub is_disturbed: bool,
    /// As a shell reads it.
    pub command: String,
}

impl Block {
    /// The mean loss of the parameters after this many updates, nats.
    pub fn loss_after(&self, updates: usize) -> Option<f64> {
        self.losses.get(updates).copied()
    }
}

/// One framework's training on images.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Course {
    /// Its name.
    pub framework: String,
    /// Its version, if it trained.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Network.
    pub model: String,
    /// Number format.
    pub dtype: String,
    /// Compute threads.
    pub threads: u64,
    /// Epochs that were asked for.
    pub num_epochs: u64,
    /// Of the initial weights, the order and the augmentation.
    pub seed: u64,
    /// Folder of the images.
    pub data_dir: String,
    /// Ascending.
    pub epochs: Vec<CourseEpoch>,
    /// Why there are none.
    pub gap: Option<String>,
}

/// The end of an epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CourseEpoch {
    /// From 1.
    pub epoch: u64,
    /// Nats.
    pub train_loss: Option<f64>,
    /// Share 0..1.
    pub test_top1: Option<f64>,
    /// Seconds of training and evaluation since the images lie decoded in memory.
    pub elapsed_s: Option<f64>,
    /// Training images by the seconds of the epoch without its evaluation.
    pub images_per_second: Option<f64>,
}

/// What a rank or server of another framework writes at its end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PeerResult {
    /// Of the framework.
    pub version: String,
    /// Which of its ways.
    pub variant: String,
    /// What carried the gradients.
    pub communication: String,
    /// Of the measured steps.
    pub seconds: Option<f64>,
    /// Of this rank in every step from the first on, nats.
    #[serde(deserialize_with = "nans_if_null")]
    pub losses: Vec<f64>,
    /// Bytes.
    pub peak_memory_bytes: u64,
    /// Of it: what was there as soon as the framework had been imported.
    pub import_memory_bytes: u64,
    /// Begin and end of the measured steps, seconds since 1970.
    pub measured_unix_s: Option<[f64; 2]>,
    /// Of a training on images.
    pub epochs: Vec<CourseEpoch>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_loss_that_is_no_number_is_null_in_the_file_and_none_again() {
        let block = Block {
            losses: vec![2.5, f64::NAN],
            ..Block::default()
        };
        let value = serde_json::to_value(&block).unwrap();
        assert_eq!(value["losses"], json!([2.5, null]));
        let read: Block = serde_json::from_value(value).unwrap();
        assert!(read.loss_after(1).unwrap().is_nan() && read.loss_after(2).is_none());
        assert!(serde_json::from_value::<Block>(json!({ "images_per_second": 3 })).is_err());
    }
}
