//! What a checkpoint's `state.json` says: where the run stands, what the model takes, how it was configured.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use datasets::{DatasetSplits, Normalization, normal_form};
use records::{Best, EpochRecord};
use serde::{Deserialize, Serialize};

use super::{MODEL_FILE, TRAINING_FILE, residual_file};
use crate::config::{MAX_CLASSES, MAX_IMAGE_SIDE};
use crate::measure::metrics::ScoreSums;
use crate::step::loss_scale::LossScale;

/// Number of the layout of the files. A program reads only its own.
pub(super) const FORMAT: u32 = 3;

/// The most ranks of a checkpoint that is opened.
const MAX_RANKS: usize = 1 << 20;
/// The most samples of an epoch that a checkpoint may have counted.
const MAX_SAMPLES: u64 = 1 << 53;

/// Where a run stands. All randomness is a function of the seed and this position, so it is the random state as well.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// The epoch in work, from 0.
    pub epoch: u64,
    /// Updates made in the whole run.
    pub step: u64,
    /// Updates made in this epoch: the sample cursor is this times the global batch size.
    pub step_in_epoch: u64,
    /// Updates made beyond those that `epoch` and `step_in_epoch` count: not 0 once the run has gone on on another number of
    /// images, whose epochs have more or fewer steps.
    pub extra_steps: i64,
    /// Steps of the whole run that were skipped because a loss or gradient was not finite.
    pub skipped_steps: u64,
    /// Images trained in the epochs done.
    pub images: u64,
    /// How long this epoch has taken so far, seconds, in all sessions.
    pub epoch_seconds: f64,
    /// This epoch's scores over all ranks so far.
    pub epoch_scores: ScoreSums,
    /// The best evaluation so far.
    pub best: Option<Best>,
    /// Evaluations since the best one.
    pub evaluations_since_best: u64,
    /// The last epoch done.
    pub last_record: Option<EpochRecord>,
}

impl Progress {
    /// Whether the run's best evaluation so far is that of the model as it stands: of the epoch that has just ended.
    pub fn is_best(&self) -> bool {
        self.step_in_epoch == 0
            && self
                .best
                .as_ref()
                .is_some_and(|best| best.epoch.checked_add(1) == Some(self.epoch))
    }

    /// The step that the schedule counts: `step_in_epoch` steps after the beginning of `epoch`.
    pub fn schedule_step(&self) -> u64 {
        self.step
            .saturating_add_signed(self.extra_steps.saturating_neg())
    }

    /// Whether step, epoch and step in the epoch say the same of a run whose epochs have `steps_per_epoch` steps.
    ///
    /// # Errors
    /// When they do not.
    pub fn check_position(&self, steps_per_epoch: u64) -> Result<()> {
        let Self {
            epoch,
            step,
            step_in_epoch,
            extra_steps,
            ..
        } = *self;
        let expected = i128::from(epoch) * i128::from(steps_per_epoch)
            + i128::from(step_in_epoch)
            + i128::from(extra_steps);
        ensure!(
            step_in_epoch <= steps_per_epoch && i128::from(step) == expected,
            "step, epoch and step_in_epoch do not agree: expected step {expected} at step {step_in_epoch} of {steps_per_epoch} in epoch {epoch}, got {step}"
        );
        Ok(())
    }

    /// Puts the position into epochs of `steps_per_epoch` steps, which other data have; an epoch that is shorter than what was
    /// trained of it counts as trained.
    pub fn move_to_epochs_of(&mut self, steps_per_epoch: u64) {
        self.step_in_epoch = self.step_in_epoch.min(steps_per_epoch);
        let counted = self
            .epoch
            .saturating_mul(steps_per_epoch)
            .saturating_add(self.step_in_epoch);
        // Both fit: a run makes fewer than 2^63 steps.
        self.extra_steps = self.step.wrapping_sub(counted) as i64;
    }

    /// Images trained so far.
    pub fn images(&self) -> u64 {
        self.images.saturating_add(self.epoch_scores.num_samples)
    }

    /// Goes to the beginning of the next epoch.
    pub fn begin_next_epoch(&mut self) {
        self.epoch += 1;
        self.step_in_epoch = 0;
        self.images = self.images();
        self.epoch_seconds = 0.0;
        self.epoch_scores = ScoreSums::default();
    }
}

/// What a trained model takes and what its logits stand for, so that it can be used without its data set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelInput {
    /// Pixels.
    pub height: usize,
    /// Pixels.
    pub width: usize,
    /// 3 for RGB.
    pub channels: usize,
    /// Mean of each channel of pixels in 0..1, subtracted.
    pub mean: Vec<f32>,
    /// Standard deviation of each channel, divided by.
    pub std: Vec<f32>,
    /// Class names, in the order of the logits.
    pub class_names: Vec<String>,
}

impl ModelInput {
    /// What models trained on `data` take.
    pub fn of(data: &DatasetSplits) -> Self {
        let shape = data.evaluated().unwrap_or(&data.train).image_shape();
        Self {
            height: shape.height,
            width: shape.width,
            channels: shape.channels,
            mean: data.normalization.mean.clone(),
            std: data.normalization.std.clone(),
            class_names: data.train.class_names().to_vec(),
        }
    }

    /// How its pixels are normalised.
    pub fn normalization(&self) -> Normalization {
        Normalization {
            mean: self.mean.clone(),
            std: self.std.clone(),
        }
    }

    /// Whether a checkpoint can hold it.
    ///
    /// # Errors
    /// What it cannot.
    pub fn check(&self) -> Result<()> {
        let ModelInput {
            height,
            width,
            channels,
            mean,
            std,
            class_names,
        } = self;
        let num_classes = class_names.len();
        for side in [*height, *width] {
            ensure!(
                (1..=MAX_IMAGE_SIDE).contains(&side),
                "input: expected sides of 1 to {MAX_IMAGE_SIDE} pixels, got {side}"
            );
        }
        ensure!(
            height == width,
            "input: expected square images, got {height}x{width}"
        );
        ensure!(*channels > 0, "input: expected at least 1 channel, got 0");
        ensure!(
            mean.len() == *channels && std.len() == *channels,
            "input: expected mean and std of {channels} channels, got {} and {}",
            mean.len(),
            std.len()
        );
        ensure!(
            mean.iter().all(|value| value.is_finite())
                && std.iter().all(|value| value.is_finite() && *value > 0.0),
            "input: expected finite means and positive std, got {mean:?} and {std:?}"
        );
        ensure!(
            (1..=MAX_CLASSES).contains(&num_classes),
            "input: expected 1 to {MAX_CLASSES} classes, got {num_classes}"
        );
        Ok(())
    }

    /// The first class that is another in `now`, in words, if there is one; a name in another Unicode form is the same.
    pub fn other_class(&self, now: &[String]) -> Option<String> {
        let trained = &self.class_names;
        let form = |name: Option<&String>| name.map(|name| normal_form(name));
        let differs = |&class: &usize| {
            trained.get(class) != now.get(class) && form(trained.get(class)) != form(now.get(class))
        };
        let first = (0..trained.len().max(now.len())).find(differs)?;
        let named = |names: &[String]| {
            names
                .get(first)
                .map_or("none".to_owned(), |name| format!("\"{name}\""))
        };
        Some(format!(
            "class {first} of {}: expected {}, got {} (class {first} of {})",
            trained.len(),
            named(trained),
            named(now),
            now.len()
        ))
    }
}

/// What `state.json` holds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CheckpointState {
    /// Layout of the files.
    pub format: u32,
    /// Program version that wrote it.
    pub version: String,
    /// Position and sums.
    pub progress: Progress,
    /// Ranks that wrote it, each with norm statistics of its own.
    pub world_size: usize,
    /// Hash of all bits of the parameters in training, not of their average where one is kept.
    pub parameter_hash: String,
    /// The loss scale.
    pub loss_scale: LossScale,
    /// What the model takes and tells.
    pub input: ModelInput,
    /// Checksum of the train split.
    pub dataset_checksum: String,
    /// Checksum of the val split, if there is one.
    pub val_checksum: Option<String>,
    /// Checksum of the test split, if there is one.
    pub test_checksum: Option<String>,
    /// The resolved configuration.
    pub config: serde_json::Value,
    /// SHA-256 of the files of tensors beside it.
    pub files: BTreeMap<String, String>,
}

impl CheckpointState {
    /// A state of the present format, its file checksums still to be filled in by [`super::CheckpointStore::save`].
    pub fn new(
        progress: Progress,
        loss_scale: LossScale,
        world_size: usize,
        parameter_hash: String,
        data: &DatasetSplits,
        config: serde_json::Value,
    ) -> Self {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let files = BTreeMap::new();
        Self {
            format: FORMAT,
            version,
            progress,
            world_size,
            parameter_hash,
            loss_scale,
            input: ModelInput::of(data),
            dataset_checksum: data.train.checksum(),
            val_checksum: data.val.as_ref().map(|val| val.checksum()),
            test_checksum: data.test.as_ref().map(|test| test.checksum()),
            config,
            files,
        }
    }

    /// Whether the run compressed its gradients and saved what its ranks had kept back.
    pub fn has_residuals(&self) -> bool {
        self.files.contains_key(&residual_file(0))
    }

    /// The files beside this one.
    pub(super) fn file_names(&self) -> impl Iterator<Item = String> + use<> {
        let num_residuals = if self.has_residuals() {
            self.world_size
        } else {
            0
        };
        [MODEL_FILE, TRAINING_FILE]
            .map(str::to_owned)
            .into_iter()
            .chain((0..num_residuals).map(residual_file))
    }

    /// The text of the file.
    ///
    /// # Errors
    /// When it could not be read again, as with a number that JSON does not have.
    pub(super) fn to_json(&self) -> Result<Vec<u8>> {
        let text = serde_json::to_vec_pretty(self)?;
        serde_json::from_slice::<Self>(&text)
            .context("the state could not be read again")?
            .check()?;
        Ok(text)
    }

    /// Whether a run could have written this: sizes that memory is asked for by are those of real jobs and images.
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
        ensure!(
            scores.num_samples <= MAX_SAMPLES
                && scores.top1_correct.max(scores.top5_correct) <= scores.num_samples,
            "epoch_scores: expected at most {MAX_SAMPLES} samples and no more right answers, got {scores:?}"
        );
        ensure!(
            self.progress.epoch_seconds >= 0.0 && self.progress.epoch_seconds.is_finite(),
            "epoch_seconds: expected 0 or more, got {}",
            self.progress.epoch_seconds
        );
        self.input.check()
    }
}
