//! Whether a run may go on from its newest checkpoint, and where: decided before anything of it is overwritten.
//!
//! In: configuration and data of this start, the run's checkpoints. Out: a [`Resumption`], or what does not fit and why.
//! Invariant: root decides, for it alone looks at the disk; what is refused leaves the run's files as they were.

use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use datasets::{DatasetSplits, ImageDataset};
use distributed::reduction::CompressionKind;

use crate::config::{
    BatchNormKind, Compression, ConfigDifference, DatasetChoice, SyncMethod, TrainConfig,
};
use crate::measure::report::Reporter;
use crate::model::data::steps_per_epoch;
use crate::model::schedule::LearningRate;
use crate::run::checkpoint::{Checkpoint, CheckpointState, CheckpointStore, Damaged, Progress};
use crate::run::output::OutputDirectory;
use crate::step::sync_plan::averages_early;

/// The option that names the optimizer.
const OPTIMIZER: &str = "optimizer.optimizer";

/// A checkpoint that this start may go on from.
#[derive(Clone, Debug)]
pub struct Resumption {
    /// The checkpoint; its position is one in epochs of the present data.
    pub checkpoint: Checkpoint,
    /// Newer ones that are not whole.
    pub damaged: Vec<Damaged>,
    /// What was asked for otherwise than the run was planned.
    pub notes: Vec<String>,
    /// What is no longer as the run began.
    pub warnings: Vec<String>,
    /// How the run was configured.
    pub before: TrainConfig,
    /// Whether ranks that make steps of their own met for this checkpoint alone, as the run was stopped.
    pub averaged_early: bool,
}

impl Resumption {
    /// The newest whole checkpoint of the run in `directory`; `None` if it has none yet.
    ///
    /// # Errors
    /// When no checkpoint is whole, there is none of a run that has ended before, the run was configured otherwise or for fewer epochs than it has begun, its data were others and `allow_changed_data` is not set, or
    /// the checkpoint's position contradicts itself.
    pub fn find(
        directory: &OutputDirectory,
        config: &TrainConfig,
        data: &DatasetSplits,
        allow_changed_data: bool,
    ) -> Result<Option<Self>> {
        let store = CheckpointStore::new(&directory.checkpoints(), config.run.keep_checkpoints);
        let (Some(checkpoint), damaged) = store.resume()? else {
            ensure!(
                !directory.has_ended(),
                "resume: expected the checkpoints of the run in {}, which has come to an end before, got none; restore them, or choose another --output-dir",
                directory.path().display()
            );
            return Ok(None);
        };
        let before: TrainConfig = serde_json::from_value(checkpoint.state.config.clone())
            .context("configuration in the checkpoint")?;
        let before = before.with_absolute_paths();
        let mut resumption = Self {
            checkpoint,
            damaged,
            notes: Vec::new(),
            warnings: Vec::new(),
            before: before.clone(),
            averaged_early: false,
        };
        let steps_per_epoch = steps_per_epoch(config, data)?;
        resumption.check_epochs(config.schedule.epochs)?;
        resumption.check_config(config, &before)?;
        resumption.notes.extend(config.without_effect_on(&before));
        resumption
            .warnings
            .extend(changes_of_course(config, &before));
        resumption.averaged_early =
            averaged_early(&before, &resumption.state().progress, steps_per_epoch);
        if resumption.averaged_early {
            resumption.warnings.push(another_course(
                "the stop averaged the ranks' parameters earlier than planned",
            ));
        }
        resumption.check_data(config, data, allow_changed_data)?;
        resumption.check_position(data, steps_per_epoch)?;
        let step = resumption.state().progress.schedule_step();
        resumption
            .notes
            .extend(change_of_schedule(config, &before, steps_per_epoch, step));
        resumption.notes.extend(change_of_sizes(config, &before));
        Ok(Some(resumption))
    }

    /// Whether the steps from here on are those that the run would have made: equal options, ranks and device.
    pub fn keeps_course(&self, config: &TrainConfig) -> bool {
        let hash = |config: &TrainConfig| config.clone().resuming(true).hash();
        hash(config) == hash(&self.before)
            && config.compute == self.before.compute
            && !self.averaged_early
    }

    /// Says the warnings and notes.
    pub fn tell(&self, reporter: &Reporter) {
        self.warnings
            .iter()
            .for_each(|warning| reporter.warn(warning));
        self.notes.iter().for_each(|note| reporter.note(note));
    }

    fn state(&self) -> &CheckpointState {
        &self.checkpoint.state
    }

    fn check_epochs(&self, epochs: u64) -> Result<()> {
        let progress = &self.state().progress;
        let begun = progress.epoch + u64::from(progress.step_in_epoch > 0);
        ensure!(
            epochs >= begun,
            "resume: expected --epochs {begun} or more, as {} is from epoch {begun} of the run, got {epochs}",
            self.checkpoint.directory.display()
        );
        Ok(())
    }

    fn check_data(
        &mut self,
        config: &TrainConfig,
        data: &DatasetSplits,
        allow_changed_data: bool,
    ) -> Result<()> {
        if let Some(other) = self.state().input.other_class(data.train.class_names()) {
            bail!(
                "resume: the classes are not those of the run: {other}; restore the data, or begin another run from its weights: --weights {} --new-head and another --output-dir",
                self.checkpoint.model_path().display()
            );
        }
        let state = self.state();
        let checksum =
            |split: &Option<Arc<dyn ImageDataset>>| split.as_ref().map(|split| split.checksum());
        for (split, before, got) in [
            (
                "train",
                Some(state.dataset_checksum.clone()),
                Some(data.train.checksum()),
            ),
            ("val", state.val_checksum.clone(), checksum(&data.val)),
            ("test", state.test_checksum.clone(), checksum(&data.test)),
        ] {
            if before == got {
                continue;
            }
            let in_words = |checksum: Option<String>| {
                checksum.map_or("no such split".to_owned(), |sum| format!("sha256 {sum}"))
            };
            let (before, got) = (in_words(before), in_words(got));
            let change =
                format!("resume: the {split} split has changed: expected {before}, got {got}");
            if !allow_changed_data {
                let of_shards = match config.data.dataset {
                    DatasetChoice::Shards(_) => {
                        " (a MANIFEST made or removed since changes it too)"
                    }
                    _ => "",
                };
                bail!(
                    "{change}{of_shards}; restore the data, choose another --output-dir, or go on with --allow-changed-data"
                );
            }
            self.warnings
                .push(format!("{change}; going on, as --allow-changed-data says"));
            let progress = &mut self.checkpoint.state.progress;
            if let Some(best) = progress
                .best
                .take_if(|best| best.monitor.starts_with(&format!("{split}-")))
            {
                progress.evaluations_since_best = 0;
                self.warnings.push(format!(
                    "resume: the best so far, {} {:.4} after epoch {:02}, was of other {split} images: it is forgotten",
                    best.monitor, best.value, best.epoch
                ));
            }
        }
        Ok(())
    }

    /// On the data of the checkpoint its position must agree with itself; on others it is moved into their epochs.
    fn check_position(&mut self, data: &DatasetSplits, steps_per_epoch: u64) -> Result<()> {
        if self.state().dataset_checksum == data.train.checksum() {
            return self
                .state()
                .progress
                .check_position(steps_per_epoch)
                .with_context(|| {
                    format!(
                        "resume: {}: move it away to go on from an older one",
                        self.checkpoint.directory.display()
                    )
                });
        }
        let progress = &mut self.checkpoint.state.progress;
        let (epoch, before) = (progress.epoch, progress.step_in_epoch);
        progress.move_to_epochs_of(steps_per_epoch);
        if progress.step_in_epoch < before {
            self.warnings.push(format!(
                "resume: epoch {epoch} was at its step {before}, and the changed data have {steps_per_epoch} steps an epoch: it counts as trained"
            ));
        }
        Ok(())
    }

    fn check_config(&self, config: &TrainConfig, before: &TrainConfig) -> Result<()> {
        let passed = |config| passed_milestones(config, &self.state().progress);
        let is_to_come = |difference: &ConfigDifference| {
            difference.key == "schedule.milestones" && passed(config) == passed(before)
        };
        let mut differences = config.differences(before);
        differences.retain(|difference| !is_to_come(difference));
        // Another optimizer has other options.
        if differences
            .iter()
            .any(|difference| difference.key == OPTIMIZER)
        {
            differences.retain(|difference| {
                difference.key == OPTIMIZER || !difference.key.starts_with("optimizer.")
            });
        }
        if !differences.is_empty() {
            let list: Vec<String> = differences
                .iter()
                .map(|difference| format!("{difference} ({})", why(difference)))
                .collect();
            bail!(
                "resume: the checkpoint's run was configured otherwise: {}; resume with its options, or begin another run from its weights: --weights {} and another --output-dir",
                list.join("; "),
                self.checkpoint.model_path().display()
            );
        }
        Ok(())
    }
}

/// Why an option must stay what it was.
fn why(ConfigDifference { key, before, now }: &ConfigDifference) -> String {
    match key.as_str() {
        "schedule.epochs" => {
            return format!(
                "the learning rate depends on it: add --schedule-epochs {now} to stretch the schedule, or --schedule-epochs {before} to keep it"
            );
        }
        "schedule.milestones" => "only those to come may change",
        "run.seed" => "the order of the samples follows from it",
        "batch.global-batch-size" | "train-split.drop-last" => "the position in the epoch is counted in batches",
        OPTIMIZER => "what is saved of its gradients is of use to that optimizer alone",
        "data.eval-split" => "the best model was chosen by that split",
        _ if key.starts_with("model.") => "the saved parameters are those of that network",
        _ if key.starts_with("data.") || key.starts_with("train-split.") => "the saved position is one in those images",
        _ => "the steps before and after would be of two trainings",
    }
    .to_owned()
}

/// The milestones after which steps were made.
fn passed_milestones(config: &TrainConfig, progress: &Progress) -> Vec<u64> {
    let is_passed = |epoch: &u64| (*epoch, 0) < (progress.epoch, progress.step_in_epoch);
    config
        .schedule
        .schedule
        .milestones()
        .iter()
        .copied()
        .filter(is_passed)
        .collect()
}

/// A sentence on each option that may change and yet moves the parameters by more than roundings.
fn changes_of_course(config: &TrainConfig, before: &TrainConfig) -> Vec<String> {
    let mut changes = Vec::new();
    let normalised_together = |config: &TrainConfig| match config.batch.batch_norm {
        BatchNormKind::Local => config.micro_batch_size(),
        BatchNormKind::Sync => config.batch.global_batch_size / config.batch.grad_accum_steps(),
    };
    let (now, was) = (normalised_together(config), normalised_together(before));
    if now != was {
        changes.push(format!(
            "batch norm takes its statistics over {now} samples at a time, {was} before"
        ));
    }
    let (now, was) = (config.sync.bucket_mib, before.sync.bucket_mib);
    if now != was
        && matches!(
            config.sync.method,
            SyncMethod::Allreduce {
                compression: Compression(CompressionKind::TopK { .. }),
                ..
            }
        )
    {
        changes.push("--bucket-mib, within which the largest gradients are chosen".to_owned());
    }
    let (now, was) = (config.num_workers(), before.num_workers());
    match config.sync.method {
        _ if now == was => {}
        SyncMethod::LocalSgd { .. } => {
            changes.push(format!(
                "{now} ranks make steps of their own with their shares of a batch, {was} before"
            ));
        }
        SyncMethod::ParameterServer {
            asynchronous: Some(_),
            ..
        } => {
            changes.push(format!(
                "{now} ranks send their servers updates, {was} before"
            ));
        }
        _ => {}
    }
    let (now, was) = (
        config.run.checkpoint_every_steps,
        before.run.checkpoint_every_steps,
    );
    if now != was && matches!(config.sync.method, SyncMethod::LocalSgd { .. }) {
        changes.push(
            "--checkpoint-every-steps, as ranks that run apart are averaged before a checkpoint"
                .to_owned(),
        );
    }
    changes
        .iter()
        .map(|change| another_course(change))
        .collect()
}

/// Whether ranks that make steps of their own met for the checkpoint alone.
fn averaged_early(before: &TrainConfig, progress: &Progress, steps_per_epoch: u64) -> bool {
    let is_due = before
        .run
        .checkpoint_every_steps
        .is_some_and(|every| progress.step.is_multiple_of(every));
    let meets = is_due || progress.step_in_epoch.is_multiple_of(steps_per_epoch);
    let last = progress.step.checked_sub(1);
    last.is_some_and(|last| {
        !meets && averages_early(&before.sync.method, before.num_workers(), last)
    })
}

fn another_course(change: &str) -> String {
    format!("resume: another course than the run would have had: {change}")
}

/// A sentence on image sizes that change in other epochs than planned, since they do so at shares of the planned ones.
fn change_of_sizes(config: &TrainConfig, before: &TrainConfig) -> Option<String> {
    let (now, was) = (
        config.schedule.planned_epochs(),
        before.schedule.planned_epochs(),
    );
    let resolution = config
        .data
        .resolution()
        .filter(|resolution| resolution.depends_on_epochs())?;
    (now != was).then(|| format!("resume: --resolution {resolution} is of {now} epochs now, of {was} before: images change their size in other ones"))
}

/// One sentence on another length of the run, and what becomes of the learning rate.
fn change_of_schedule(
    config: &TrainConfig,
    before: &TrainConfig,
    steps_per_epoch: u64,
    step: u64,
) -> Option<String> {
    let (new, old) = (&config.schedule, &before.schedule);
    let rate = |config: &TrainConfig| LearningRate::new(config, steps_per_epoch).at(step);
    let (epochs, was) = (new.epochs, old.epochs);
    let schedule = match (new.planned_epochs(), old.planned_epochs()) {
        _ if new.schedule != old.schedule => "has other milestones".to_owned(),
        (now, then) if new.schedule.depends_on_epochs() && now != then => {
            format!("is stretched from {then} to {now} epochs")
        }
        _ if epochs == was => return None,
        _ => "is kept".to_owned(),
    };
    Some(format!(
        "resume: {epochs} epochs, {was} were planned; the {} schedule {schedule}: learning rate {:.3e} at the next step, {:.3e} before the change",
        new.schedule.kind(),
        rate(config),
        rate(before)
    ))
}
