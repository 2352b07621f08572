//! Decides whether a run can continue from its newest checkpoint, and where, before any file is
//! overwritten.
//!
//! In: configuration and data of this start, the run's checkpoints. Out: a [`Resumption`], or the
//! reason why not.
//! Invariant: root decides, since it alone reads the disk. A refusal leaves the run's files
//! unchanged.

use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use datasets::{Samples, Splits};
use distributed::gradients::CompressionKind;

use crate::config::{
    BatchNormKind, Compression, ConfigDifference, DatasetChoice, SyncMethod, TrainConfig,
};
use crate::model::data::steps_per_epoch;
use crate::model::schedule::LearningRate;
use crate::run::checkpoint::{Checkpoint, CheckpointStore, Damaged, Progress};
use crate::run::directory::{CHECKPOINTS, RunDirectory};
use crate::step::sync_plan::{averages_early, staleness};
use crate::task::ModelInput;

/// The option that names the optimizer.
const OPTIMIZER: &str = "optimizer.optimizer";

/// A checkpoint from which this session continues.
#[derive(Clone, Debug)]
pub struct Resumption {
    /// The checkpoint, with its position moved into epochs of the present data.
    pub checkpoint: Checkpoint,
    /// Newer checkpoints that are not whole.
    pub damaged: Vec<Damaged>,
    /// Options that differ from the plan of the run.
    pub notes: Vec<String>,
    /// Changes since the run began.
    pub warnings: Vec<String>,
    /// Configuration of the run before.
    pub before: TrainConfig,
    /// True if ranks that run independently averaged their parameters only for this checkpoint,
    /// because the run was stopped.
    averaged_early: bool,
}

impl Resumption {
    /// Returns the newest whole checkpoint of the run in `directory`; `None` if it has none yet.
    ///
    /// # Errors
    /// If no checkpoint is whole, or the run has ended without one; if the configuration
    /// or, without `allow_changed_data`, the data differ; if the run has begun more epochs than
    /// planned now; if the checkpoint's position contradicts itself.
    pub fn find(
        directory: &RunDirectory,
        config: &TrainConfig,
        (data, input): (&Splits<impl Samples>, Option<&ModelInput>),
        allow_changed_data: bool,
    ) -> Result<Option<Self>> {
        let keep = config.run.keep_checkpoints;
        let store = CheckpointStore::new(&directory.file(CHECKPOINTS), keep);
        let (Some(checkpoint), damaged) = store.latest()? else {
            directory.expect_unfinished()?;
            return Ok(None);
        };
        let before: TrainConfig = serde_json::from_value(checkpoint.state.config.clone())
            .context("configuration in the checkpoint")?;
        let before = before.with_absolute_paths();
        let steps_per_epoch = steps_per_epoch(config, &*data.train)?;
        let averaged_early = averaged_early(&before, &checkpoint.state.progress, steps_per_epoch);
        let mut resumption = Self {
            notes: config.without_effect_on(&before),
            warnings: Vec::new(),
            averaged_early,
            checkpoint,
            damaged,
            before,
        };
        let progress = &resumption.checkpoint.state.progress;
        let begun = progress.epoch + u64::from(progress.step_in_epoch > 0);
        let epochs = config.schedule.epochs;
        ensure!(
            epochs >= begun,
            "resume: expected --epochs {begun} or more, since {} is a checkpoint of epoch {begun}, got {epochs}",
            resumption.checkpoint.directory.display()
        );
        // Without a step left, no change has an effect.
        if progress.epoch < epochs {
            let before = &resumption.before;
            resumption.warnings = changes_of_course(config, before, averaged_early);
        }
        resumption.check_config(config)?;
        resumption.check_classes(input)?;
        resumption.check_data(config, data, allow_changed_data)?;
        resumption.check_position(data, steps_per_epoch)?;
        let progress = &resumption.checkpoint.state.progress;
        let before = &resumption.before;
        let changes = [
            change_of_schedule(config, before, steps_per_epoch, progress),
            change_of_sizes(config, before),
        ];
        resumption.notes.extend(changes.into_iter().flatten());
        Ok(Some(resumption))
    }

    /// Returns true if the next steps are those of an undisturbed run: with equal options, ranks
    /// and device.
    pub fn keeps_course(&self, config: &TrainConfig) -> bool {
        let hash = |config: &TrainConfig| config.clone().resuming(true).hash();
        hash(config) == hash(&self.before)
            && config.compute == self.before.compute
            && !self.averaged_early
    }

    fn check_config(&self, config: &TrainConfig) -> Result<()> {
        let passed = |config| passed_milestones(config, &self.checkpoint.state.progress);
        let mut differences = config.differences(&self.before);
        differences.retain(|difference| {
            difference.key != "schedule.milestones" || passed(config) != passed(&self.before)
        });
        // Another optimizer has other options.
        let is_another = differences
            .iter()
            .any(|difference| difference.key == OPTIMIZER);
        differences.retain(|difference| {
            !is_another || difference.key == OPTIMIZER || !difference.key.starts_with("optimizer.")
        });
        let list: Vec<String> = differences
            .iter()
            .map(|difference| format!("{difference} ({})", reason(difference)))
            .collect();
        ensure!(
            list.is_empty(),
            "resume: options differ from those of the run: {}. Resume with its options, or begin another run from its weights: --weights {} and another --output-dir",
            list.join("; "),
            self.checkpoint.model_path().display()
        );
        Ok(())
    }

    fn check_classes(&self, input: Option<&ModelInput>) -> Result<()> {
        let before = self.checkpoint.state.input.as_ref();
        let other = before.zip(input);
        if let Some(other) = other.and_then(|(before, now)| before.other_class(&now.class_names)) {
            bail!(
                "resume: the classes have changed: {other}. Restore the data, or begin another run from its weights: --weights {} --new-head and another --output-dir",
                self.checkpoint.model_path().display()
            );
        }
        Ok(())
    }

    fn check_data<S: Samples>(
        &mut self,
        config: &TrainConfig,
        data: &Splits<S>,
        allow_changed_data: bool,
    ) -> Result<()> {
        let state = &mut self.checkpoint.state;
        let checksum = |split: &Option<Arc<S>>| Some(split.as_ref()?.checksum());
        let manifest = match config.data.dataset {
            DatasetChoice::Shards(_) => " (a new or removed MANIFEST changes it, too)",
            _ => "",
        };
        let train = Some(state.dataset_checksum.clone());
        for (split, before, now) in [
            ("train", train, Some(data.train.checksum())),
            ("val", state.val_checksum.clone(), checksum(&data.val)),
            ("test", state.test_checksum.clone(), checksum(&data.test)),
        ] {
            if before == now {
                continue;
            }
            let in_words = |checksum: Option<String>| {
                checksum.map_or("no such split".to_owned(), |sum| format!("sha256 {sum}"))
            };
            let change = format!(
                "resume: the {split} split has changed: expected {}, got {}",
                in_words(before),
                in_words(now)
            );
            ensure!(
                allow_changed_data,
                "{change}{manifest}. Restore the data, choose another --output-dir, or continue with --allow-changed-data"
            );
            self.warnings.push(format!(
                "{change}. Continuing because of --allow-changed-data"
            ));
            let monitored = format!("{split}-");
            self.warnings.extend(state.progress.forget_best(
                |best| best.monitor.starts_with(&monitored),
                &format!("it was measured on other {split} images"),
            ));
        }
        Ok(())
    }

    /// Checks the position on the data of the checkpoint. On changed data, moves it into their
    /// epochs.
    fn check_position(&mut self, data: &Splits<impl Samples>, steps_per_epoch: u64) -> Result<()> {
        let state = &mut self.checkpoint.state;
        let progress = &mut state.progress;
        if state.dataset_checksum == data.train.checksum() {
            let directory = self.checkpoint.directory.display();
            return progress.check_position(steps_per_epoch).with_context(|| {
                format!("resume: {directory}: move it away to continue from an older one")
            });
        }
        let before = progress.step_in_epoch;
        progress.move_to_epochs_of(steps_per_epoch);
        if progress.step_in_epoch < before {
            self.warnings.push(format!(
                "resume: epoch {} had {before} steps, and an epoch of the changed data has {steps_per_epoch}: it counts as trained",
                progress.epoch + 1
            ));
        }
        Ok(())
    }
}

/// Returns the reason why an option cannot change.
fn reason(ConfigDifference { key, before, now }: &ConfigDifference) -> String {
    let reason = match key.as_str() {
        "schedule.epochs" => {
            return format!(
                "the learning rate depends on it: add --schedule-epochs {now} to stretch the schedule, or --schedule-epochs {before} to keep it"
            );
        }
        "schedule.milestones" => "passed milestones cannot change",
        "run.seed" => "it determines the order of the samples",
        "batch.global-batch-size" | "train-split.drop-last" => {
            "the position in the epoch is a number of batches"
        }
        OPTIMIZER => "the saved optimizer state belongs to that optimizer",
        "data.eval-split" => "that split chose the best model",
        _ if key.starts_with("model.") => "the saved parameters belong to that network",
        _ if key.starts_with("data.") || key.starts_with("train-split.") => {
            "the saved position is one in those images"
        }
        _ => "the steps before and after would belong to two different trainings",
    };
    reason.to_owned()
}

/// Returns the milestones before the present position.
fn passed_milestones(config: &TrainConfig, progress: &Progress) -> Vec<u64> {
    let milestones = config.schedule.schedule.milestones().iter().copied();
    milestones
        .filter(|epoch| (*epoch, 0) < (progress.epoch, progress.step_in_epoch))
        .collect()
}

/// Returns a warning for each change that affects the parameters by more than rounding.
fn changes_of_course(
    config: &TrainConfig,
    before: &TrainConfig,
    averaged_early: bool,
) -> Vec<String> {
    let norm_samples = |config: &TrainConfig| match config.batch.batch_norm {
        BatchNormKind::Local => config.micro_batch_size(),
        BatchNormKind::Sync => config.batch.global_batch_size / config.batch.grad_accum_steps(),
    };
    let method = &config.sync.method;
    let is_local_sgd = matches!(method, SyncMethod::LocalSgd { .. });
    let is_top_k = matches!(
        method,
        SyncMethod::Allreduce {
            compression: Compression(CompressionKind::TopK { .. }),
            ..
        }
    );
    let is_independent = is_local_sgd || staleness(method).is_some();
    let [samples, samples_before] = [config, before].map(norm_samples);
    let [ranks, ranks_before] = [config, before].map(TrainConfig::num_workers);
    let changes = [
        (
            samples != samples_before,
            format!(
                "batch norm takes its statistics over {samples} samples at a time, {samples_before} before"
            ),
        ),
        (
            is_top_k && config.sync.bucket_mib != before.sync.bucket_mib,
            "--bucket-mib, within which the largest gradients are chosen".to_owned(),
        ),
        (
            is_independent && ranks != ranks_before,
            format!("independent ranks: {ranks}, {ranks_before} before"),
        ),
        (
            is_local_sgd && config.run.checkpoint_every_steps != before.run.checkpoint_every_steps,
            "--checkpoint-every-steps, since local SGD averages the ranks before a checkpoint"
                .to_owned(),
        ),
        (
            averaged_early,
            "the stop averaged the ranks' parameters earlier than planned".to_owned(),
        ),
    ];
    let changes = changes.into_iter().filter(|(is_made, _)| *is_made);
    changes
        .map(|(_, change)| format!("resume: the run will differ from an undisturbed one: {change}"))
        .collect()
}

/// Returns true if ranks that run independently averaged their parameters only for this checkpoint.
fn averaged_early(before: &TrainConfig, progress: &Progress, steps_per_epoch: u64) -> bool {
    let Some(last) = progress.step.checked_sub(1) else {
        return false;
    };
    let is_due = before
        .run
        .checkpoint_every_steps
        .is_some_and(|every| progress.step.is_multiple_of(every));
    let is_planned = is_due || progress.step_in_epoch.is_multiple_of(steps_per_epoch);
    !is_planned && averages_early(&before.sync.method, before.num_workers(), last)
}

/// Returns a note if image sizes change in other epochs than planned: they change at shares of the
/// planned epochs.
fn change_of_sizes(config: &TrainConfig, before: &TrainConfig) -> Option<String> {
    let now = config.schedule.planned_epochs();
    let then = before.schedule.planned_epochs();
    let resolution = config.data.resolution()?;
    (resolution.depends_on_epochs() && now != then).then(|| {
        format!(
            "resume: --resolution {resolution} is planned for {now} epochs now, for {then} before: images change their size in other epochs"
        )
    })
}

/// Returns a note if the length of the run changes, with the effect on the learning rate.
fn change_of_schedule(
    config: &TrainConfig,
    before: &TrainConfig,
    steps_per_epoch: u64,
    progress: &Progress,
) -> Option<String> {
    let new = &config.schedule;
    let old = &before.schedule;
    let effect = if new.schedule != old.schedule {
        "has other milestones".to_owned()
    } else if new.schedule.depends_on_epochs() && new.planned_epochs() != old.planned_epochs() {
        format!(
            "is stretched from {} to {} epochs",
            old.planned_epochs(),
            new.planned_epochs()
        )
    } else if new.epochs == old.epochs {
        return None;
    } else {
        "is kept".to_owned()
    };
    let rate = |config: &TrainConfig| {
        let schedule = LearningRate::new(config, steps_per_epoch);
        schedule.at(progress.schedule_step(), &progress.plateau)
    };
    Some(format!(
        "resume: {} epochs, {} were planned; the {} schedule {effect}: learning rate {:.3e} at the next step, {:.3e} before the change",
        new.epochs,
        old.epochs,
        new.schedule.kind(),
        rate(config),
        rate(before)
    ))
}
