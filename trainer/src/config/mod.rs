//! A training run as decided: every gap in the flags filled, every contradiction refused.
//!
//! In: [`TrainArgs`], a TOML file and the world size. Out: [`TrainConfig`].
//! Invariant: `global_batch_size = micro_batch_size * grad_accum_steps * num_workers`, exactly; an option without
//! effect is an error, and absent from the filled flags; what [`TrainConfig::to_toml`] prints resolves to the same configuration.

pub mod choices;
pub mod cli;

mod batch;
mod checks;
mod commands;
mod compute;
mod data;
mod doctor;
mod error;
mod eval;
mod family;
mod file;
mod model;
mod name;
mod netbench;
mod optimizer;
mod options;
mod predict_scaling;
pub mod recipes;
mod report;
mod resolve;
mod run;
mod saved;
mod scaling_method;
mod schedule;
mod shard;
mod sync;
mod verify;

pub use crate::config::choices::{
    AugmentKind, BatchNormKind, Compression, ConvolutionKind, CpuKind, CropScale, DatasetKind,
    DeviceChoice, Dtype, InputKind, KernelsKind, LossScaling, OnBadImageKind, OnNonFiniteKind,
    OnOff, OptimizerKind, PlacementKind, RecomputeKind, ReductionChoice, SamplerKind, ScalingKind,
    ScheduleKind, ShortcutKind, SplitKind, SyncKind, UpdateKind,
};
pub use crate::config::choices::{Figure, Monitor, RateFactor};
pub use checks::Filled;
pub use commands::{BenchConfig, PredictConfig, SimulationConfig};
pub(crate) use compute::instruction_set;
pub(crate) use data::{MAX_CLASSES, MAX_IMAGE_SIDE};
pub use doctor::DoctorConfig;
pub use error::ConfigError;
pub use eval::{EvalConfig, MeasuredSplit, WeightSource};
pub(crate) use family::decided;
pub use family::{Family, ModelOption};
pub use netbench::NetbenchConfig;
pub use predict_scaling::{
    NamedNetwork, NetworkSource, PredictScalingConfig, ProfileSource, ScalingConfig,
};
pub use report::report_request;
pub use scaling_method::scaling_method_name;
pub use shard::images_per_shard;
pub use sync::{Staleness, SyncConfig, SyncMethod};
pub use verify::VerifyConfig;

use crate::config::choices::Resolution;
use crate::config::cli::{ModelSection, TrainArgs};
use options::{OnResume, Scope};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt;
use std::ops::Deref;
use std::path::Path;

/// Everything a training run needs to know: its flags, of which each that has an effect is [filled](Filled), and what they mean
/// together. They are what is printed, compared and saved.
///
/// `Deserialize` is for what this program wrote itself into a checkpoint: it asks nothing of this machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "serde_json::Value", into = "saved::SavedConfig")]
pub struct TrainConfig {
    flags: TrainArgs,
    /// For run directories and reports.
    model_name: String,
    /// The options that the model's family heeds.
    heeded: Vec<ModelOption>,
    /// All ranks, those that only serve, too.
    world_size: usize,
}

impl Deref for TrainConfig {
    type Target = TrainArgs;

    fn deref(&self) -> &TrainArgs {
        &self.flags
    }
}

impl TrainConfig {
    /// Decides what was left open and refuses what contradicts itself, for a residual network.
    ///
    /// # Errors
    /// A [`ConfigError`] that names the option and the remedy; also if the file of `--config` cannot be read.
    pub fn resolve(args: &TrainArgs, world_size: usize) -> Result<Self, ConfigError> {
        Self::resolve_for(&Family::RESNET, args, world_size)
    }

    /// As [`resolve`](Self::resolve), for a model of this family.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve); also for an option that the family does not heed.
    pub fn resolve_for(
        family: &Family,
        args: &TrainArgs,
        world_size: usize,
    ) -> Result<Self, ConfigError> {
        let mut args = args.clone();
        if let Some(path) = &args.config {
            args = file::merged(&file::read(path)?, &args)?;
        }
        if let Some(recipe) = args.recipe {
            args = file::merged(&recipe.options(family)?, &args)?;
        }
        Self::decide(args, family, world_size)
    }

    /// As [`resolve_for`](Self::resolve_for), with the options of an earlier session, as [`to_toml`](Self::to_toml) printed them, in
    /// place of the file of `--config`; flags win.
    ///
    /// # Errors
    /// As [`resolve_for`](Self::resolve_for).
    pub fn resolve_over(
        saved: &str,
        family: &Family,
        args: &TrainArgs,
        world_size: usize,
    ) -> Result<Self, ConfigError> {
        let mut saved = file::parse(saved, "the saved run.toml")?;
        // That of the session before is its own.
        saved.sync.trace = None;
        family.expect("--resume", saved.model.family())?;
        Self::decide(file::merged(&saved, args)?, family, world_size)
    }

    /// The configuration that [`to_toml`](Self::to_toml) printed.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve).
    pub fn from_toml(text: &str, world_size: usize) -> Result<Self, ConfigError> {
        Self::decide(
            file::parse(text, "the TOML text")?,
            &Family::RESNET,
            world_size,
        )
    }

    fn decide(args: TrainArgs, family: &Family, world_size: usize) -> Result<Self, ConfigError> {
        assert!(world_size > 0, "world_size: expected at least 1, got 0");
        let mut flags = TrainArgs {
            config: None,
            recipe: None,
            allow_changed_data: false,
            ..args
        };
        family.reject_inapplicable_options(&flags)?;
        let model_name = family.decide(&mut flags.model)?;
        resolve::fill(&mut flags, family.options, world_size)?;
        resolve::expect_offered(&flags)?;
        Ok(Self {
            flags,
            model_name,
            heeded: family.options.to_vec(),
            world_size,
        })
    }

    /// The same, written to `directory`; its other files are found from any folder.
    pub(crate) fn in_directory(self, directory: &Path) -> Self {
        let mut config = self.with_absolute_paths();
        config.flags.run.name = None;
        config.flags.run.output_dir = Some(directory.to_owned());
        config
    }

    /// The same, its files but the output directory found from any folder.
    pub(crate) fn with_absolute_paths(mut self) -> Self {
        let TrainArgs { data, run, .. } = &mut self.flags;
        for path in [&mut data.data_dir, &mut run.weights, &mut run.tensorboard]
            .into_iter()
            .flatten()
        {
            *path = std::path::absolute(&*path).unwrap_or_else(|_| path.clone());
        }
        self
    }

    /// The same, begun as `before` was: with what counts at the first start alone.
    pub(crate) fn begun_as(mut self, before: &Self) -> Self {
        let (run, began) = (&mut self.flags.run, &before.flags.run);
        run.weights.clone_from(&began.weights);
        (run.new_head, run.zero_gamma) = (began.new_head, began.zero_gamma);
        self
    }

    /// A sentence on each option that is given otherwise than the run of `before` began with, and counts at the first start alone.
    pub(crate) fn without_effect_on(&self, before: &Self) -> Vec<String> {
        let now = self.clone().with_absolute_paths();
        let (now, was) = (&now.run, &before.run);
        let given = [
            (
                "--weights",
                now.weights.is_some() && now.weights != was.weights,
            ),
            (
                "--new-head",
                now.new_head == Some(true) && now.new_head != was.new_head,
            ),
            (
                "--zero-gamma",
                now.zero_gamma == Some(true) && now.zero_gamma != was.zero_gamma,
            ),
        ];
        let ignored = given.into_iter().filter(|(_, is_ignored)| *is_ignored);
        ignored
            .map(|(option, _)| {
                format!("resume: {option} has no effect, as the run goes on from its checkpoint")
            })
            .collect()
    }

    /// The same, of a start with `--resume` or without.
    pub(crate) fn resuming(mut self, resume: bool) -> Self {
        self.flags.resume = resume;
        self
    }

    /// The configuration as TOML that `--config` accepts. `--resume` is not part of it.
    pub fn to_toml(&self) -> String {
        toml::to_string(&self.flags)
            .expect("options are numbers, text, flags and lists, which TOML has")
    }

    /// The flags of a model that this family is to build.
    ///
    /// # Errors
    /// When the run was one of another family.
    pub fn model_of(&self, family: &Family) -> Result<ModelSection, ConfigError> {
        family.expect("--checkpoint", self.model.family())?;
        let mut model = self.model.clone();
        family.decide(&mut model)?;
        Ok(model)
    }

    /// Name of the run: that of `--name`, or model, data set, the options that runs are compared by where they are not the default, and
    /// seed, such as `resnet20-shapes-seed0` or `resnet20-shapes-adamw-lr0.003-seed0`.
    pub fn run_name(&self) -> String {
        if let Some(name) = &self.run.name {
            return name.clone();
        }
        let mut parts = vec![
            self.model_name.clone(),
            self.data.dataset.filled().to_string(),
        ];
        parts.extend(name::changes(&self.flags, &self.heeded, self.world_size));
        parts.push(format!("seed{}", self.run.seed.filled()));
        parts.join("-")
    }

    /// How many ranks train.
    pub fn num_workers(&self) -> usize {
        self.sync.method().num_workers(self.world_size)
    }

    /// Samples of one rank's forward pass: `global_batch_size = micro_batch_size * grad_accum_steps * num_workers`, exactly, or, with
    /// virtual shards, times their number.
    pub fn micro_batch_size(&self) -> usize {
        self.batch
            .micro_batch_size(&self.sync.method(), self.num_workers())
    }

    /// Learning rate after warmup.
    pub fn peak_learning_rate(&self) -> f64 {
        self.optimizer
            .peak_learning_rate(self.batch.global_batch_size.filled())
    }

    /// How the ranks' gradients or parameters become one.
    pub fn sync_config(&self) -> SyncConfig {
        SyncConfig::of(&self.sync, self.compute.device.filled())
    }

    /// SHA-256 in hexadecimal of what must be equal on all ranks: version, world size, `--resume` and all options but
    /// the paths, threads and device of the machine.
    pub fn hash(&self) -> String {
        let mut digest = Sha256::new();
        digest.update(format!(
            "{}\n{}\n{}\n",
            env!("CARGO_PKG_VERSION"),
            self.num_workers(),
            self.resume
        ));
        for (key, value) in shared_settings(&self.flags) {
            digest.update(format!("{key}={value}\n"));
        }
        digest
            .finalize()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }

    /// What keeps this run from being the continuation of one with the configuration `before`: the options that would
    /// change the course of the parameters. Another length is a difference only where the schedule would change with it and
    /// `--schedule-epochs` does not say so.
    pub fn differences(&self, before: &Self) -> Vec<ConfigDifference> {
        let (old, new) = (before.settings(), self.settings());
        let find = |settings: &[(String, String)], key: &str| {
            settings
                .iter()
                .find(|(other, _)| other == key)
                .map_or("unset".to_owned(), |(_, value)| value.clone())
        };
        let mut keys: Vec<&String> = old.iter().chain(&new).map(|(key, _)| key).collect();
        keys.sort();
        keys.dedup();
        let mut differences: Vec<ConfigDifference> = keys
            .into_iter()
            .filter(|key| options::is(key, |option| option.on_resume == OnResume::Fixed))
            .map(|key| ConfigDifference {
                key: key.clone(),
                before: find(&old, key),
                now: find(&new, key),
            })
            .filter(|difference| difference.before != difference.now)
            .collect();
        let (planned, was) = (
            self.schedule.planned_epochs(),
            before.schedule.planned_epochs(),
        );
        if self.depends_on_epochs() && self.schedule.schedule_epochs.is_none() && planned != was {
            let (key, before, now) = (
                "schedule.epochs".to_owned(),
                was.to_string(),
                planned.to_string(),
            );
            differences.push(ConfigDifference { key, before, now });
        }
        differences
    }

    /// Whether a step depends on how many epochs are planned.
    fn depends_on_epochs(&self) -> bool {
        self.schedule.depends_on_epochs()
            || self
                .data
                .resolution
                .as_ref()
                .is_some_and(Resolution::depends_on_epochs)
    }

    /// All options with effect as (`section.key`, value), sorted.
    pub fn settings(&self) -> Vec<(String, String)> {
        settings(&self.flags)
    }

    /// What must be equal on all ranks, as (option, value).
    pub fn shared_settings(&self) -> Vec<(String, String)> {
        let mut settings = shared_settings(&self.flags);
        settings.push(("--resume".to_owned(), self.resume.to_string()));
        settings.push(("--trace".to_owned(), self.sync.trace.is_some().to_string()));
        settings
    }
}

/// All options that are given as (`section.key`, value), sorted; those that belong to no section as (`--key`, value).
fn settings(args: &impl Serialize) -> Vec<(String, String)> {
    let table = toml::Table::try_from(args).expect("options are plain values, which TOML has");
    let mut settings = Vec::new();
    for (name, value) in table {
        match value {
            toml::Value::Table(keys) => {
                settings.extend(
                    keys.into_iter()
                        .map(|(key, value)| (format!("{name}.{key}"), value.to_string())),
                );
            }
            value => settings.push((format!("--{name}"), value.to_string())),
        }
    }
    settings
}

/// Those that must be equal on all ranks: all but the paths, threads and device of the machine.
fn shared_settings(args: &impl Serialize) -> Vec<(String, String)> {
    let is_local = |key: &str| options::is(key, |option| option.scope == Scope::Rank);
    settings(args)
        .into_iter()
        .filter(|(key, _)| !is_local(key))
        .collect()
}

/// One option that two configurations do not agree on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigDifference {
    /// `section.key` as in the TOML file.
    pub key: String,
    /// Value in the earlier configuration.
    pub before: String,
    /// Value now.
    pub now: String,
}

impl fmt::Display for ConfigDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} was {}, is {}", self.key, self.before, self.now)
    }
}
