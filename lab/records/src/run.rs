//! Runs: `manifest.json`, and a line of `metrics.jsonl` for each epoch.
//!
//! Invariant: times are seconds; each accuracy is a share 0..1 and has an exact count.

use crate::evaluation::Evaluation;
use crate::number::{nan_if_null, nans_of_names};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::ops::AddAssign;
use std::path::Path;

/// Data of a run.
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
    /// SHA-256 of the train split in hexadecimal.
    pub train_checksum: String,
    /// SHA-256 of the val split; absent (null) without one.
    pub val_checksum: Option<String>,
    /// SHA-256 of the test split; empty without one.
    pub test_checksum: String,
    /// Notes about the data set, such as skipped files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Ranks and machines of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchFacts {
    /// Number of ranks.
    pub ranks: usize,
    /// Compute threads of each rank.
    pub threads_per_rank: usize,
    /// Names of the machines.
    pub nodes: Vec<String>,
    /// Communication library: first line of its version text.
    pub mpi_library: String,
    /// Backend and device.
    pub device: String,
}

/// Session of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of the program.
    pub version: String,
    /// Commit of the program, or "unknown".
    pub commit: String,
    /// Hash of the options that must be equal on all ranks.
    pub config_hash: String,
    /// Start in UTC, RFC 3339.
    pub started: String,
    /// Program and flags as typed.
    pub command_line: Vec<String>,
    /// CPU of root's machine.
    pub cpu_model: String,
    /// CPUs that root may use.
    pub cpu_count: usize,
    /// Operating system and architecture.
    pub platform: String,
    /// Ranks and machines.
    pub launch: LaunchFacts,
    /// Data.
    pub dataset: DatasetFacts,
}

/// Quotes a word of a command line for a shell if necessary.
pub fn quoted(word: impl AsRef<OsStr>) -> String {
    let word = word.as_ref().to_string_lossy();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.into_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Returns words as a line that can be pasted into a shell.
pub fn quoted_line(words: impl IntoIterator<Item = impl AsRef<OsStr>>) -> String {
    let words: Vec<String> = words.into_iter().map(quoted).collect();
    words.join(" ")
}

impl Manifest {
    /// Returns the name of the program, for a shell.
    pub fn program(&self) -> String {
        let program = self.command_line.first().map(Path::new);
        let program = program.and_then(Path::file_name);
        program.map_or_else(String::new, quoted)
    }

    /// Returns the command that resumes the run in `directory` with as many ranks: its Slurm job,
    /// or `train --resume` under a launcher.
    pub fn resume_command(&self, directory: &Path) -> String {
        // A task of an array has the directory DIR-TASK.
        let task = directory.to_str().and_then(|text| text.rsplit_once('-'));
        let is_number = |text: &str| text.bytes().all(|digit| digit.is_ascii_digit());
        let task = task.filter(|(_, task)| !task.is_empty() && is_number(task));
        let of_array = task.map(|(array, task)| (format!("--array {task} "), Path::new(array)));
        let jobs = [Some((String::new(), directory)), of_array];
        let scripts = jobs.into_iter().flatten();
        let mut scripts = scripts.map(|(flag, job)| (flag, job.join(JOB_SCRIPT)));
        if let Some((flag, script)) = scripts.find(|(_, script)| script.exists()) {
            return format!("sbatch {flag}{}", quoted(script));
        }
        let program = self.program();
        let program = match (self.launch.ranks, self.launch.nodes.len()) {
            (0 | 1, _) => program,
            (ranks, 0 | 1) => format!("{program} launch -n {ranks} --"),
            (ranks, _) => format!("mpirun -n {ranks} {program}"),
        };
        format!(
            "{program} train --resume --output-dir {}",
            quoted(directory)
        )
    }
}

/// Batch script in the directory of a run that `trainer slurm submit` has submitted.
pub const JOB_SCRIPT: &str = "job.sbatch";

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
    /// Waiting for collectives: exposed communication.
    pub communication: f64,
    /// Reduction of gradients on the communication thread; not part of a step.
    pub reduction: f64,
    /// Update.
    pub optimizer: f64,
    /// Evaluation; not part of a step.
    pub evaluation: f64,
    /// Checkpoints; not part of a step.
    pub checkpoint: f64,
}

impl Seconds {
    /// Returns the sum of the five phases of a step.
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

/// Differences between the gradients of single images, estimated from batches of two sizes
/// (McCandlish et al. 2018).
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct GradientNoise {
    /// Unbiased estimate of the true gradient's squared norm; may be negative after few steps.
    pub squared_norm: f64,
    /// Unbiased estimate of the trace of the covariance of single images' gradients.
    pub covariance_trace: f64,
    /// Simple noise scale, `covariance_trace / squared_norm`: larger batches bring little. Absent
    /// (null) if undetermined.
    pub batch_size: Option<f64>,
    /// Measured steps, which have a whole batch.
    pub num_steps: u64,
}

/// One line of `metrics.jsonl`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct EpochRecord {
    /// Number of the epoch, from 0.
    pub epoch: u64,
    /// Steps since the start of the run.
    pub step: u64,
    /// Mean loss during the epoch, nats; absent (null) if no step counted, as the next two.
    pub train_loss: Option<f64>,
    /// Share of correct answers, 0..1.
    pub train_top1: Option<f64>,
    /// Share of samples whose label is among the first five answers, 0..1.
    pub train_top5: Option<f64>,
    /// Trained samples.
    pub train_num_samples: u64,
    /// Count behind `train_top1`; absent if the task has no classes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub train_top1_correct: Option<u64>,
    /// Count behind `train_top5`; absent as `train_top1_correct`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub train_top5_correct: Option<u64>,
    /// Metrics during the epoch by name, besides the loss and the accuracy; absent without them.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "nans_of_names"
    )]
    pub train_metrics: BTreeMap<String, f64>,
    /// Scores on the val split; absent (null) without an evaluation on it.
    pub val: Option<Evaluation>,
    /// Scores on the test split in a run without a val split; absent (null) without an evaluation.
    pub test: Option<Evaluation>,
    /// Samples of all ranks over the slowest rank's time in steps, without evaluations, checkpoints
    /// and warm-up steps; 0 if the session that ended the epoch measured no step of it.
    pub images_per_second: f64,
    /// Learning rate of the epoch's last step.
    pub learning_rate: f64,
    /// Root's time by phase, in the session that ended the epoch.
    pub seconds: Seconds,
    /// Steps of the epoch in that session; absent (null) if unknown.
    pub num_steps: Option<u64>,
    /// Wall time of the epoch over all sessions that trained it.
    pub seconds_total: f64,
    /// Largest resident memory of a rank, bytes.
    pub peak_memory_bytes: u64,
    /// Exposed communication: share of root's step time that it waited for other ranks, 0..1.
    #[serde(default)]
    pub exposed_communication_share: f64,
    /// Bytes of gradients (or averaged parameters) that root sent per step of this session.
    #[serde(default)]
    pub bytes_sent_per_step: u64,
    /// Mean error of compression as a share of the gradient's L2 norm; 0 without compression.
    #[serde(default, deserialize_with = "nan_if_null")]
    pub compression_error: f64,
    /// Ranks that trained.
    #[serde(default)]
    pub num_ranks: usize,
    /// Skipped steps of the run so far; their loss or gradient was not finite.
    #[serde(default)]
    pub skipped_steps: u64,
    /// Factor on the loss after the epoch; absent (null) without loss scaling.
    pub loss_scale: Option<u32>,
    /// Skipped steps of the run so far whose scaled gradients overflowed; each halves the factor.
    #[serde(default)]
    pub overflowed_steps: u64,
    /// CPU energy (RAPL) per image in the epoch's steps; absent (null) if it cannot be read.
    pub joules_per_image: Option<f64>,
    /// Noise of the gradients in the epoch's steps; absent (null) if not measured.
    pub gradient_noise: Option<GradientNoise>,
}

impl EpochRecord {
    /// Returns the number from 1.
    pub fn number(&self) -> u64 {
        self.epoch.saturating_add(1)
    }

    /// Returns a score while the epoch trained, by the names of [`Evaluation::value`].
    pub fn trained(&self, figure: &str) -> Option<f64> {
        match figure {
            "loss" => self.train_loss,
            "top1" => self.train_top1,
            "top5" => self.train_top5,
            name => self.train_metrics.get(name).copied(),
        }
    }

    /// Returns a score after the epoch, by the names of [`Evaluation::value`].
    pub fn evaluated(&self, figure: &str) -> Option<f64> {
        self.evaluation()?.1.value(figure)
    }

    /// Returns the evaluation after the epoch and its split, `val` or `test`.
    pub fn evaluation(&self) -> Option<(&'static str, &Evaluation)> {
        let val = self.val.as_ref().map(|val| ("val", val));
        val.or_else(|| self.test.as_ref().map(|test| ("test", test)))
    }

    /// Returns the evaluated top-1 accuracy, 0..1.
    pub fn evaluated_top1(&self) -> Option<f64> {
        self.evaluation().and_then(|(_, scores)| scores.top1)
    }

    /// Returns the training speed, images/s; `None` if not measured, for example if the run was
    /// stopped during the epoch's evaluation and resumed.
    pub fn speed(&self) -> Option<f64> {
        Some(self.images_per_second).filter(|speed| *speed > 0.0)
    }

    /// Returns the exposed communication, 0..1; `None` without steps.
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

    #[test]
    fn a_run_resumes_by_its_job_or_with_as_many_ranks() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("run");
        let task = folder.path().join("run-3");
        let shown = directory.display().to_string();
        let on = |ranks, nodes: &[&str]| Manifest {
            command_line: vec!["/bin/trainer".to_owned(), "train".to_owned()],
            launch: LaunchFacts {
                ranks,
                nodes: nodes.iter().map(|node| (*node).to_owned()).collect(),
                ..LaunchFacts::default()
            },
            ..Manifest::default()
        };
        for (manifest, start) in [
            (on(1, &["a"]), "trainer"),
            (on(2, &["a"]), "trainer launch -n 2 --"),
            (on(2, &["a", "b"]), "mpirun -n 2 trainer"),
        ] {
            assert_eq!(
                manifest.resume_command(&directory),
                format!("{start} train --resume --output-dir {shown}")
            );
        }
        std::fs::create_dir(&directory).unwrap();
        std::fs::write(directory.join(JOB_SCRIPT), "").unwrap();
        for (directory, flag) in [(&directory, ""), (&task, "--array 3 ")] {
            assert_eq!(
                on(2, &["a", "b"]).resume_command(directory),
                format!("sbatch {flag}{shown}/job.sbatch")
            );
        }
    }
}
