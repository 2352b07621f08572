//! A run: its manifest, `manifest.json`, and its epochs, a line each of `metrics.jsonl`.
//!
//! Invariant: times are seconds; an accuracy is a share 0..1 and its exact count stands beside it.

use crate::evaluation::Evaluation;
use crate::number::nan_if_null;
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::ops::AddAssign;

/// The data a run read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetFacts {
    /// Name of the data set.
    pub name: String,
    /// Training images.
    pub num_train: usize,
    /// Val images; 0 without a val split.
    #[serde(default)]
    pub num_val: usize,
    /// Test images; 0 without a test split.
    pub num_test: usize,
    /// Identity of the train split, SHA-256 in hexadecimal.
    pub train_checksum: String,
    /// Identity of the val split; absent (null) without one.
    #[serde(default)]
    pub val_checksum: Option<String>,
    /// Identity of the test split; empty without one.
    pub test_checksum: String,
    /// Notes of the data set, such as what was left out of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// How a run was launched.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchFacts {
    /// Number of ranks.
    pub ranks: usize,
    /// Compute threads of each rank.
    pub threads_per_rank: usize,
    /// Names of the machines, each once.
    pub nodes: Vec<String>,
    /// The communication library, its first line about itself.
    pub mpi_library: String,
    /// Backend and device.
    pub device: String,
}

/// One launch of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of the program.
    pub version: String,
    /// Commit the program was built from, or "unknown".
    pub commit: String,
    /// Hash of the options that every rank must have alike.
    pub config_hash: String,
    /// Start in UTC, RFC 3339.
    pub started: String,
    /// Program and flags as typed.
    pub command_line: Vec<String>,
    /// Processor of the root's machine.
    pub cpu_model: String,
    /// Processors the root may use.
    pub cpu_count: usize,
    /// Operating system and architecture.
    pub platform: String,
    /// The launch.
    pub launch: LaunchFacts,
    /// The data.
    pub dataset: DatasetFacts,
}

/// A word of a command line as a shell would read it back.
pub fn quoted(word: impl AsRef<OsStr>) -> String {
    let word = word.as_ref().to_string_lossy();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.into_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Seconds by phase.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Seconds {
    /// Waiting for data.
    pub data: f64,
    /// Logits and loss.
    pub forward: f64,
    /// Gradients.
    pub backward: f64,
    /// Collectives that the step waited for: the exposed communication.
    pub communication: f64,
    /// Reduction of gradients on the communication thread, hidden or not; not part of a step.
    pub reduction: f64,
    /// Update.
    pub optimizer: f64,
    /// Val or test split; not part of a step.
    pub evaluation: f64,
    /// Checkpoints; not part of a step.
    pub checkpoint: f64,
}

impl Seconds {
    /// The five phases of a step together.
    pub fn step_total(&self) -> f64 {
        self.data + self.forward + self.backward + self.communication + self.optimizer
    }
}

impl AddAssign for Seconds {
    fn add_assign(&mut self, other: Self) {
        self.data += other.data;
        self.forward += other.forward;
        self.backward += other.backward;
        self.communication += other.communication;
        self.reduction += other.reduction;
        self.optimizer += other.optimizer;
        self.evaluation += other.evaluation;
        self.checkpoint += other.checkpoint;
    }
}

/// How much the gradients of single images differ, from those of small and large batches (McCandlish et al. 2018).
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct GradientNoise {
    /// Of the true gradient, estimated; without bias, so that of few steps it may be below zero.
    pub squared_norm: f64,
    /// Trace of the covariance of single images' gradients, estimated in the same way.
    pub covariance_trace: f64,
    /// The simple noise scale, their ratio: the batch size from which on larger ones bring little. Absent (null) where it is not told.
    pub batch_size: Option<f64>,
    /// Steps that were measured: those with a whole batch.
    pub num_steps: u64,
}

/// One line of `metrics.jsonl`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct EpochRecord {
    /// From 0.
    pub epoch: u64,
    /// Steps done since the start of the run.
    pub step: u64,
    /// Mean over the epoch as it was trained, nats; absent (null) if no step of it counted, as the next two.
    pub train_loss: Option<f64>,
    /// Share 0..1.
    pub train_top1: Option<f64>,
    /// Share 0..1.
    pub train_top5: Option<f64>,
    /// Samples trained.
    pub train_num_samples: u64,
    /// Exact count.
    pub train_top1_correct: u64,
    /// Exact count.
    pub train_top5_correct: u64,
    /// Scores on the val split; absent (null) where the run has none, or it was not measured after this epoch.
    #[serde(default)]
    pub val: Option<Evaluation>,
    /// Scores on the test split, in a run without a val split; absent (null) where it was not measured after this epoch.
    #[serde(default)]
    pub test: Option<Evaluation>,
    /// Global samples over the slowest rank's time in steps; evaluation, checkpoints and the session's warm-up steps excluded; 0 where
    /// the start that ended the epoch measured no step of it.
    pub images_per_second: f64,
    /// Rate of the epoch's last step.
    pub learning_rate: f64,
    /// Root's time by phase, in the start that ended the epoch.
    pub seconds: Seconds,
    /// Steps of that start, whose time this is; absent (null) in older files.
    #[serde(default)]
    pub num_steps: Option<u64>,
    /// Time of the epoch with everything in it, over all starts that trained it.
    pub seconds_total: f64,
    /// Largest resident memory of a rank, bytes.
    pub peak_memory_bytes: u64,
    /// Share of root's steps that was waiting for the other ranks, 0..1: communication that nothing hid.
    #[serde(default)]
    pub exposed_communication_share: f64,
    /// Bytes of gradients, or of what is averaged in their place, that root sent in a step, in the mean of this start's steps.
    #[serde(default)]
    pub bytes_sent_per_step: u64,
    /// What compression left out, as a share of the gradient's L2 norm, in the mean of this start's steps; 0 without one.
    #[serde(default, deserialize_with = "nan_if_null")]
    pub compression_error: f64,
    /// Ranks that trained.
    #[serde(default)]
    pub num_ranks: usize,
    /// Steps of the run so far that were skipped because a loss or gradient was not finite.
    #[serde(default)]
    pub skipped_steps: u64,
    /// Factor on the loss after the epoch; absent (null) without loss scaling.
    #[serde(default)]
    pub loss_scale: Option<u32>,
    /// Steps of the run so far that were left out because scaled gradients overflowed, which halves the factor.
    #[serde(default)]
    pub overflowed_steps: u64,
    /// Energy of the machines' processors (RAPL) in the epoch's steps, for each image; absent (null) where it cannot be read.
    #[serde(default)]
    pub joules_per_image: Option<f64>,
    /// Noise of the gradients of the epoch's steps; absent (null) where it was not measured.
    #[serde(default)]
    pub gradient_noise: Option<GradientNoise>,
}

impl EpochRecord {
    /// Its number from 1; with those before it, so many epochs are done.
    pub fn number(&self) -> u64 {
        self.epoch.saturating_add(1)
    }

    /// The evaluation after the epoch and its split, `val` or `test`, where there was one.
    pub fn evaluation(&self) -> Option<(&'static str, &Evaluation)> {
        let val = self.val.as_ref().map(|val| ("val", val));
        val.or_else(|| self.test.as_ref().map(|test| ("test", test)))
    }

    /// Share of the evaluated samples that were answered right, 0..1.
    pub fn evaluated_top1(&self) -> Option<f64> {
        self.evaluation().map(|(_, scores)| scores.top1)
    }

    /// Training speed, images/s; none where none was measured, as where a run was stopped in the epoch's evaluation and resumed.
    pub fn speed(&self) -> Option<f64> {
        Some(self.images_per_second).filter(|speed| *speed > 0.0)
    }

    /// Share of root's steps that was waiting for the other ranks; none where it made no step.
    pub fn exposed_share(&self) -> Option<f64> {
        Some(self.exposed_communication_share).filter(|_| self.seconds.step_total() > 0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_as_a_shell_needs_it() {
        assert_eq!(
            [quoted("--model"), quoted("a b"), quoted("it's"), quoted("")],
            ["--model", "'a b'", "'it'\\''s'", "''"]
        );
    }
}
