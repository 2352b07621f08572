//! The configuration of a command: flags as typed ([`cli`]), and the values decided from them.
//!
//! In: flags, a TOML file and the world size. Out: [`TrainConfig`] and similar types.
//! Invariant: `global_batch_size = micro_batch_size * grad_accum_steps * num_workers`, exactly. An
//! option without effect is an error. [`TrainConfig::to_toml`] prints options that resolve to the
//! same configuration.

#![allow(
    missing_docs,
    reason = "a field of a section is the flag of the same name"
)]

pub mod choices;
pub mod cli;

mod batch;
mod commands;
mod compute;
mod data;
mod error;
mod eval;
mod family;
mod file;
mod model;
mod name;
mod optimizer;
mod options;
mod predict_scaling;
pub mod recipes;
mod resolve;
mod run;
mod saved;
mod scaling_method;
mod schedule;
mod sync;

pub use crate::config::choices::{
    Activations, AugmentKind, BatchNormKind, Compression, Convolution, CpuKind, CropScale,
    DatasetKind, DeviceChoice, InputKind, Kernels, LossScaling, ModelOption, Monitor, OnBadImage,
    OnNonFiniteKind, OnOff, OptimizerKind, RateFactor, Recompute, ReductionChoice, SamplerKind,
    ScheduleKind, ServerPlacement, Shortcut, Split, SyncKind, UpdateKind,
};
pub use batch::BatchSection;
pub(crate) use commands::file_name;
pub use commands::{BenchConfig, DoctorConfig, SimulationConfig};
pub use compute::ComputeSection;
pub(crate) use compute::instruction_set;
pub use data::{
    CifarFiles, DataSection, DatasetChoice, ImageFiles, ImageSize, NormalizationChoice,
    TrainSplitSection,
};
pub(crate) use data::{MAX_CLASSES, MAX_IMAGE_SIDE};
pub use error::{ConfigError, invalid};
pub use eval::{EvalConfig, WeightSource};
pub use family::Family;
pub(crate) use family::decided;
pub use model::ModelChoice;
pub use optimizer::{AdamConfig, LossChoice, OptimizerChoice, OptimizerSection, SgdConfig};
pub use predict_scaling::ScalingConfig;
pub use resolve::Sections;
pub use run::{OnNonFinite, RunSection};
pub use scaling_method::scaling_method_name;
pub use schedule::{ScheduleChoice, ScheduleSection};
pub use sync::{Staleness, SyncMethod, SyncSection, timeout};

use crate::config::choices::Resolution;
use crate::config::cli::{DataArgs, ModelSection, TrainArgs};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::path::Path;

/// The configuration of a training run. Its sections are printed, compared and saved.
///
/// `Deserialize` reads what this program wrote into a checkpoint, without regard to this machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "saved::SavedFlags", into = "saved::SavedSections")]
pub struct TrainConfig {
    sections: Sections,
    /// True if this session resumes a run.
    pub resume: bool,
    /// Name for run directories and reports.
    model_name: String,
    /// Options that the model's family supports.
    supported: Vec<ModelOption>,
    /// Number of all ranks, including ranks that only serve.
    world_size: usize,
}

impl Deref for TrainConfig {
    type Target = Sections;

    fn deref(&self) -> &Sections {
        &self.sections
    }
}

impl TrainConfig {
    /// Resolves the configuration of a network of this program.
    ///
    /// # Errors
    /// A [`ConfigError`] that names the option and the remedy; also if the file of `--config`
    /// cannot be read.
    pub fn resolve(args: &TrainArgs, world_size: usize) -> Result<Self, ConfigError> {
        Self::resolve_for(&Family::BUILT_IN, args, world_size)
    }

    /// Does the same as [`resolve`](Self::resolve) for a model of this family.
    ///
    /// # Errors
    /// Same as [`resolve`](Self::resolve); also for an option that the family does not support.
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

    /// Does the same as [`resolve_for`](Self::resolve_for), with the options of an earlier session
    /// instead of the file of `--config`. [`to_toml`](Self::to_toml) printed these options; flags
    /// override them.
    ///
    /// # Errors
    /// Same as [`resolve_for`](Self::resolve_for).
    pub fn resolve_over(
        saved: &str,
        family: &Family,
        args: &TrainArgs,
        world_size: usize,
    ) -> Result<Self, ConfigError> {
        let mut saved = file::parse(saved, "the saved run.toml")?;
        // Each session has its own trace.
        saved.sync.trace = None;
        family.expect("--resume", saved.model.family())?;
        Self::decide(file::merged(&saved, args)?, family, world_size)
    }

    /// Resolves the configuration that [`to_toml`](Self::to_toml) printed.
    ///
    /// # Errors
    /// Same as [`resolve`](Self::resolve).
    pub fn from_toml(text: &str, world_size: usize) -> Result<Self, ConfigError> {
        let args = file::parse(text, "the TOML text")?;
        Self::decide(args, &Family::BUILT_IN, world_size)
    }

    fn decide(
        mut args: TrainArgs,
        family: &Family,
        world_size: usize,
    ) -> Result<Self, ConfigError> {
        assert!(world_size > 0, "world_size: expected at least 1, got 0");
        let resume = args.resume;
        let typed = args.clone();
        let model_name = family.decide(&mut args.model)?;
        if !family.has_images {
            let data = DataArgs::of_task();
            let plain = TrainArgs {
                data: data.clone(),
                model: args.model.clone(),
                ..TrainArgs::default()
            };
            let plain = Sections::decide(plain, family.options, world_size)?;
            family.expect_no_image_option(&typed, &plain)?;
            args.data = DataArgs {
                loader_threads: args.data.loader_threads,
                ..data
            };
        }
        let sections = Sections::decide(args, family.options, world_size)?;
        family.expect_effect(&typed, &sections)?;
        options::expect_effect(&typed, &sections)?;
        sections.expect_offered()?;
        Ok(Self {
            sections,
            resume,
            model_name,
            supported: family.options.to_vec(),
            world_size,
        })
    }

    /// Returns these options as flags.
    pub fn to_args(&self) -> TrainArgs {
        file::parse(&self.to_toml(), "the decided options")
            .expect("sections have the keys of flags")
    }

    /// Returns this configuration for a run in `directory`, with all other paths absolute.
    pub(crate) fn in_directory(self, directory: &Path) -> Self {
        let mut config = self.with_absolute_paths();
        config.sections.run.name = None;
        config.sections.run.output_dir = Some(directory.to_owned());
        config
    }

    /// Returns this configuration with all paths absolute, except the output directory.
    pub(crate) fn with_absolute_paths(mut self) -> Self {
        let Sections { data, run, .. } = &mut self.sections;
        let paths = [
            data.folder_mut(),
            run.weights.as_mut(),
            run.tensorboard.as_mut(),
        ];
        for path in paths.into_iter().flatten() {
            *path = std::path::absolute(&*path).unwrap_or_else(|_| path.clone());
        }
        self
    }

    /// Returns this configuration, with the options that apply only at the first start taken from
    /// `before`.
    pub(crate) fn begun_as(mut self, before: &Self) -> Self {
        let run = &mut self.sections.run;
        run.weights.clone_from(&before.run.weights);
        run.new_head = before.run.new_head;
        run.zero_gamma = before.run.zero_gamma;
        self
    }

    /// Returns a sentence for each option that differs from `before` and applies only at the first
    /// start.
    pub(crate) fn without_effect_on(&self, before: &Self) -> Vec<String> {
        let now = self.clone().with_absolute_paths();
        let now = &now.run;
        let was = &before.run;
        let ignored = [
            (
                "--weights",
                now.weights.is_some() && now.weights != was.weights,
            ),
            ("--new-head", now.new_head && !was.new_head),
            (
                "--zero-gamma",
                now.zero_gamma == Some(true) && now.zero_gamma != was.zero_gamma,
            ),
        ];
        let ignored = ignored.into_iter().filter(|(_, is_ignored)| *is_ignored);
        ignored
            .map(|(option, _)| {
                format!("resume: {option} has no effect, as the run continues from its checkpoint")
            })
            .collect()
    }

    /// Returns this configuration for a start with or without `--resume`.
    pub(crate) fn resuming(mut self, resume: bool) -> Self {
        self.resume = resume;
        self
    }

    /// Returns the configuration as TOML that `--config` accepts, without `--resume`.
    pub fn to_toml(&self) -> String {
        toml::to_string(&self.sections)
            .expect("options are numbers, text, flags and lists, which TOML has")
    }

    /// Returns the flags of a model that this family builds.
    ///
    /// # Errors
    /// If the run belongs to another family.
    pub fn model_of(&self, family: &Family) -> Result<ModelSection, ConfigError> {
        family.expect("--checkpoint", self.model.family())?;
        let mut model = self.model.clone();
        family.decide(&mut model)?;
        Ok(model)
    }

    /// Returns the name of the run: the value of `--name`, or model, data set, changed options and
    /// seed, such as `resnet20-shapes-adamw-lr0.003-seed0`.
    pub fn run_name(&self) -> String {
        if let Some(name) = &self.run.name {
            return name.clone();
        }
        let mut parts = vec![
            self.model_name.clone(),
            self.data.dataset.kind().to_string(),
        ];
        let changes = name::changes(&self.sections, &self.supported, self.world_size);
        parts.extend(changes.expect("sections have the keys of flags"));
        parts.push(format!("seed{}", self.run.seed));
        parts.join("-")
    }

    /// Returns the name of the model.
    pub fn model_name(&self) -> &str {
        &self.model_name
    }

    /// Returns the number of training ranks.
    pub fn num_workers(&self) -> usize {
        self.sync.method.num_workers(self.world_size)
    }

    /// Returns the option that keeps the update from the device, which would make it by default.
    pub fn kept_from_device(&self) -> Option<String> {
        let is_kept = self.compute.device.update() != self.sync.update;
        self.sections
            .needs_main_memory(self.world_size)
            .filter(|_| is_kept)
    }

    /// Returns the number of samples of one rank's forward pass.
    pub fn micro_batch_size(&self) -> usize {
        let parts = self.batch.parts(&self.sync.method, self.num_workers());
        self.batch.global_batch_size / parts
    }

    /// Returns a warning if the last batch of an epoch of `num_samples` gives batch norm too few
    /// samples, although a whole batch does not.
    pub fn warning_of_last_batch(&self, num_samples: usize) -> Option<String> {
        const FEW: usize = 4;
        let batch = self.batch.global_batch_size;
        let rest = num_samples % batch;
        if self.train_split.drop_last || rest == 0 {
            return None;
        }
        let micro = self.micro_batch_size();
        let (shards, pass) = match self.batch.batch_norm {
            BatchNormKind::Local => (batch / micro / self.batch.grad_accum_steps(), micro),
            BatchNormKind::Sync => (1, batch / self.batch.grad_accum_steps()),
        };
        let of_shards = [rest / shards, rest.div_ceil(shards)].into_iter();
        let of_passes = of_shards
            .filter(|samples| *samples > 0)
            .map(|samples| (samples - 1) % pass + 1);
        let fewest = of_passes.min().filter(|fewest| *fewest < FEW.min(pass))?;
        Some(format!(
            "--global-batch-size {batch}: the last batch of {num_samples} training samples gives batch norm too few at a time (expected {FEW} or more, got {fewest}). Add --drop-last, or choose another batch size"
        ))
    }

    /// Returns true if both the loss and the sampler favour rare classes.
    pub fn weighs_classes_twice(&self) -> bool {
        let weighs = matches!(
            self.optimizer.loss,
            LossChoice::CrossEntropy {
                class_weights: Some(_),
                ..
            }
        );
        weighs && self.train_split.sampler == Some(SamplerKind::Balanced)
    }

    /// Returns the learning rate after warmup.
    pub fn peak_learning_rate(&self) -> f64 {
        self.optimizer
            .peak_learning_rate(self.batch.global_batch_size)
    }

    /// Returns the SHA-256, in hexadecimal, of the settings that must be equal on all ranks:
    /// version, world size, `--resume`, and all options except the machine's paths, threads and
    /// device.
    pub fn hash(&self) -> String {
        let mut digest = Sha256::new();
        digest.update(format!(
            "{}\n{}\n{}\n",
            env!("CARGO_PKG_VERSION"),
            self.num_workers(),
            self.resume
        ));
        for (key, value) in shared_settings(&self.sections) {
            digest.update(format!("{key}={value}\n"));
        }
        digest
            .finalize()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }

    /// Returns the options that keep this run from continuing a run with the configuration
    /// `before`, because they change the course of the parameters. Another number of epochs counts
    /// only if it changes the schedule and `--schedule-epochs` is absent.
    pub fn differences(&self, before: &Self) -> Vec<ConfigDifference> {
        let unset = || ["unset", "unset"].map(str::to_owned);
        let mut values: BTreeMap<String, [String; 2]> = BTreeMap::new();
        for (index, config) in [before, self].into_iter().enumerate() {
            for (key, value) in config.settings() {
                if options::is_fixed(&key) {
                    values.entry(key).or_insert_with(unset)[index] = value;
                }
            }
        }
        let mut differences: Vec<ConfigDifference> = values
            .into_iter()
            .filter(|(_, [before, now])| before != now)
            .map(|(key, [before, now])| ConfigDifference { key, before, now })
            .collect();
        let planned = self.schedule.planned_epochs();
        let was = before.schedule.planned_epochs();
        if self.depends_on_epochs() && self.schedule.schedule_epochs.is_none() && planned != was {
            differences.push(ConfigDifference {
                key: "schedule.epochs".to_owned(),
                before: was.to_string(),
                now: planned.to_string(),
            });
        }
        differences
    }

    fn depends_on_epochs(&self) -> bool {
        let sizes = self.data.resolution();
        self.schedule.schedule.depends_on_epochs()
            || sizes.is_some_and(Resolution::depends_on_epochs)
    }

    /// Returns all options as (`section.key`, value), sorted.
    pub fn settings(&self) -> Vec<(String, String)> {
        settings(&self.sections)
    }

    /// Returns the settings that must be equal on all ranks, as (option, value).
    pub fn shared_settings(&self) -> Vec<(String, String)> {
        let mut settings = shared_settings(&self.sections);
        settings.push(("--resume".to_owned(), self.resume.to_string()));
        settings.push(("--trace".to_owned(), self.sync.trace.is_some().to_string()));
        settings
    }
}

/// Returns all options as (`section.key`, value), sorted. Options without a section are (`--key`,
/// value).
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

/// Returns the options that must be equal on all ranks: all except the machine's paths, threads and
/// device.
fn shared_settings(args: &impl Serialize) -> Vec<(String, String)> {
    let mut settings = settings(args);
    settings.retain(|(key, _)| !options::is_of_rank(key));
    settings
}

/// Implements `kind` for choices that contain their options.
macro_rules! kinds {
    ($($choice:ident => $kind:ident { $($variant:ident),+ })+) => {$(
        impl $choice {
            /// Returns the choice without its options.
            pub fn kind(&self) -> $kind {
                match self {
                    $(Self::$variant { .. } => $kind::$variant,)+
                }
            }
        }
    )+};
}

kinds! {
    DatasetChoice => DatasetKind { Shapes, Cifar10, Cifar100, ImageFolder, Shards, Parquet, Synthetic, Custom }
    OptimizerChoice => OptimizerKind { Sgd, Adamw, Lars, Lamb, Custom }
    ScheduleChoice => ScheduleKind { Constant, Multistep, Cosine, OneCycle, CosineRestarts, Polynomial, Plateau }
}

/// An option that differs between two configurations.
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
