//! `state.json` of a checkpoint: position of the run, input of the model, configuration.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use records::{Best, EpochRecord, Summary};
use serde::{Deserialize, Serialize};

use super::{MODEL_FILE, TRAINING_FILE, residual_file};
use crate::measure::gather::{self, RankTimes};
use crate::measure::metrics::ScoreSums;
use crate::model::schedule::Plateau;
use crate::step::loss_scale::LossScale;
use crate::task::ModelInput;

/// Layout of the files; raised when another version could not read them or would misread them.
pub(in crate::run) const FORMAT: u32 = 3;

/// Limit of the ranks of a checkpoint.
const MAX_RANKS: usize = 1 << 20;
/// Limit of the samples of an epoch.
const MAX_SAMPLES: u64 = 1 << 53;

/// Position of a run, which determines the random state together with the seed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Progress {
    /// Current epoch, from 0.
    pub epoch: u64,
    /// Updates since the start of the run.
    pub step: u64,
    /// Updates of this epoch. The sample cursor is this number times the global batch size.
    pub step_in_epoch: u64,
    /// Updates that `epoch` and `step_in_epoch` do not count; not 0 if the number of images
    /// changed.
    pub extra_steps: i64,
    /// Skipped steps of the run; their loss or gradient was not finite.
    pub skipped_steps: u64,
    /// Images of the completed epochs.
    pub images: u64,
    /// Time of this epoch so far, over all sessions, seconds.
    pub epoch_seconds: f64,
    /// Scores of this epoch so far, over all ranks.
    pub epoch_scores: ScoreSums,
    /// Best evaluation so far.
    pub best: Option<Best>,
    /// Evaluations since the best one.
    pub evaluations_since_best: u64,
    /// Position of `--schedule plateau`.
    pub plateau: Plateau,
    /// Record of the last completed epoch.
    pub last_record: Option<EpochRecord>,
}

impl Progress {
    /// Returns true if the best evaluation is that of the present model: of the epoch that has just
    /// ended.
    pub fn is_best(&self) -> bool {
        self.step_in_epoch == 0
            && self
                .best
                .as_ref()
                .is_some_and(|best| best.epoch.checked_add(1) == Some(self.epoch))
    }

    /// Forgets a best evaluation that `is_other`, and returns a warning about it.
    pub fn forget_best(
        &mut self,
        is_other: impl Fn(&Best) -> bool,
        reason: &str,
    ) -> Option<String> {
        let best = self.best.take_if(|best| is_other(best))?;
        self.evaluations_since_best = 0;
        self.plateau.best = None;
        self.plateau.num_without_better = 0;
        Some(format!(
            "resume: the best so far, {} {:.4} after epoch {}, is forgotten: {reason}",
            best.monitor,
            best.value,
            best.epoch + 1
        ))
    }

    /// Returns the step of the learning rate schedule, which ignores `extra_steps`.
    pub fn schedule_step(&self) -> u64 {
        self.step
            .saturating_add_signed(self.extra_steps.saturating_neg())
    }

    /// Checks that step, epoch and step in the epoch agree if an epoch has `steps_per_epoch` steps.
    ///
    /// # Errors
    /// If they do not.
    pub fn check_position(&self, steps_per_epoch: u64) -> Result<()> {
        let epoch = self.epoch;
        let step_in_epoch = self.step_in_epoch;
        let expected = i128::from(epoch) * i128::from(steps_per_epoch)
            + i128::from(step_in_epoch)
            + i128::from(self.extra_steps);
        ensure!(
            step_in_epoch <= steps_per_epoch && i128::from(self.step) == expected,
            "step, epoch and step_in_epoch do not agree: expected step {expected} at step {step_in_epoch} of {steps_per_epoch} in epoch {epoch}, got {}",
            self.step
        );
        Ok(())
    }

    /// Moves the position into epochs of `steps_per_epoch` steps, which other data have. If such an
    /// epoch is shorter than the trained part of the present one, that one counts as trained.
    pub fn move_to_epochs_of(&mut self, steps_per_epoch: u64) {
        self.step_in_epoch = self.step_in_epoch.min(steps_per_epoch);
        let counted = self
            .epoch
            .saturating_mul(steps_per_epoch)
            .saturating_add(self.step_in_epoch);
        // Both fit: a run makes fewer than 2^63 steps.
        self.extra_steps = self.step.wrapping_sub(counted) as i64;
    }

    /// Returns the number of images trained so far.
    pub fn num_images(&self) -> u64 {
        self.images.saturating_add(self.epoch_scores.num_samples)
    }

    /// Returns the summary of a run at this position, with the measurements of its last session.
    pub fn summary(&self, world: &[RankTimes]) -> Summary {
        Summary {
            epochs: self.epoch,
            steps: self.step,
            images: self.num_images(),
            final_epoch: self.last_record.clone(),
            best: self.best.clone(),
            images_per_second: world[gather::slowest_rank(world)].steps.speed,
            slowest_rank: gather::straggler(world),
            rank_seconds: gather::rank_seconds(world),
            peak_memory_bytes: gather::peak_memory_bytes(world),
            skipped_steps: self.skipped_steps,
            ..Summary::default()
        }
    }

    /// Moves to the beginning of the next epoch.
    pub fn begin_next_epoch(&mut self) {
        self.images = self.num_images();
        self.epoch += 1;
        self.step_in_epoch = 0;
        self.epoch_seconds = 0.0;
        self.epoch_scores = ScoreSums::default();
    }
}

/// Content of `state.json`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CheckpointState {
    /// Version of the format.
    pub format: u32,
    /// Version of the program.
    pub version: String,
    /// Position of the run.
    pub progress: Progress,
    /// Ranks that wrote the checkpoint, each with its norm statistics.
    pub world_size: usize,
    /// Hash of the parameters in training, not of their moving average.
    pub parameter_hash: String,
    /// Factor on the loss.
    pub loss_scale: LossScale,
    /// Input and classes of the model; absent if the task does not describe them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<ModelInput>,
    /// Checksum of the train split; empty in a custom loop.
    pub dataset_checksum: String,
    /// Checksum of the val split; absent (null) without one.
    pub val_checksum: Option<String>,
    /// Checksum of the test split; absent (null) without one.
    pub test_checksum: Option<String>,
    /// Resolved configuration.
    pub config: serde_json::Value,
    /// SHA-256 of the other files.
    pub files: BTreeMap<String, String>,
}

impl CheckpointState {
    /// Returns the note on a run of `epochs` epochs that continues from here.
    pub fn place(&self, epochs: u64) -> String {
        let Progress { epoch, step, .. } = self.progress;
        let place = if epoch < epochs {
            format!("at epoch {} step {step}", epoch + 1)
        } else {
            format!("after the last epoch, {epoch}, at step {step}")
        };
        let ranks = records::counted(self.world_size, "rank");
        format!("resumed {place} (written by {ranks})")
    }

    /// Returns true if the checkpoint has the residuals of compression.
    pub fn has_residuals(&self) -> bool {
        self.files.contains_key(&residual_file(0))
    }

    /// Returns the names of the files that have checksums here.
    pub(super) fn file_names(&self) -> Vec<String> {
        let mut names = [MODEL_FILE, TRAINING_FILE].map(str::to_owned).to_vec();
        if self.has_residuals() {
            names.extend((0..self.world_size).map(residual_file));
        }
        names
    }

    /// Returns the text of the file.
    ///
    /// # Errors
    /// If the text could not be read again, as with a number that JSON does not have.
    pub(super) fn to_json(&self) -> Result<Vec<u8>> {
        let text = serde_json::to_vec_pretty(self)?;
        serde_json::from_slice::<Self>(&text)
            .context("the state could not be read again")?
            .check()?;
        Ok(text)
    }

    /// Checks that a run could have written this: sizes by which memory is allocated are those of
    /// real jobs and images.
    pub(super) fn check(&self) -> Result<()> {
        let world_size = self.world_size;
        ensure!(
            (1..=MAX_RANKS).contains(&world_size),
            "world_size: expected 1 to {MAX_RANKS}, got {world_size}"
        );
        ensure!(
            self.loss_scale.is_possible(),
            "loss_scale: expected a power of two up to 2^24 after fewer than 2000 good steps, got {:?}",
            self.loss_scale
        );
        let scores = &self.progress.epoch_scores;
        let correct = ["top1_correct", "top5_correct"].map(|metric| scores.count(metric));
        let mut correct = correct.into_iter().flatten();
        ensure!(
            scores.num_samples <= MAX_SAMPLES && correct.all(|count| count <= scores.num_samples),
            "epoch_scores: expected at most {MAX_SAMPLES} samples and no more right answers, got {scores:?}"
        );
        ensure!(
            self.progress.epoch_seconds >= 0.0 && self.progress.epoch_seconds.is_finite(),
            "epoch_seconds: expected 0 or more, got {}",
            self.progress.epoch_seconds
        );
        self.input.as_ref().map_or(Ok(()), ModelInput::check)
    }
}
