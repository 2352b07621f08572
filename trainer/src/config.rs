//! A training run as decided: every value plain, every contradiction refused.
//!
//! In: [`TrainArgs`], a TOML file and the world size. Out: [`TrainConfig`].
//! Invariant: `global_batch_size = micro_batch_size * grad_accum_steps * world_size`, exactly; an option without
//! effect is an error; what [`TrainConfig::to_toml`] prints resolves to the same configuration.

mod commands;
mod data;
mod doctor;
mod error;
mod file;
mod netbench;
mod options;
mod own_model;
mod parts;
mod predict_scaling;
mod report;
mod resolve;
mod scaling_method;
mod sync;
mod to_args;
mod verify;

pub use crate::choices::{
    AugmentKind, BatchNormKind, Compression, ConvolutionKind, CpuKind, DatasetKind, DeviceChoice, Dtype, InputKind,
    KernelsKind, OnBadImageKind, OnNonFiniteKind, OnOff, PlacementKind, ReductionChoice, ScalingKind, ScheduleKind,
    ShortcutKind, SyncKind, UpdateKind,
};
pub use commands::{BenchConfig, EvalConfig, PredictConfig, SimulationConfig, WeightSource};
pub(crate) use data::{MAX_CLASSES, MAX_IMAGE_SIDE};
pub use doctor::DoctorConfig;
pub use error::ConfigError;
pub use netbench::NetbenchConfig;
pub use own_model::{ModelChoice, ModelOption, OwnModel};
pub use parts::{
    BatchConfig, ComputeConfig, Course, DataConfig, DataSource, ModelConfig, NormalizationConfig, OnNonFinite,
    OptimizerConfig, RunConfig, ScheduleConfig, TrainSplitConfig,
};
pub use predict_scaling::{NamedNetwork, NetworkSource, PredictScalingConfig, ProfileSource, ScalingConfig};
pub use report::report_request;
pub(crate) use resolve::instruction_set;
pub use scaling_method::scaling_method_name;
pub use sync::{Staleness, SyncConfig, SyncMethod, starting_timeout};
pub use verify::VerifyConfig;

use crate::cli::TrainArgs;
use options::{OnResume, Scope};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt;

/// Everything a training run needs to know.
///
/// `Deserialize` is for what this program wrote itself, as in a checkpoint; a user's file goes through
/// [`TrainConfig::resolve`] or [`TrainConfig::from_toml`], which check it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrainConfig {
    /// Which network.
    pub model: ModelChoice,
    /// Which images.
    pub data: DataConfig,
    /// What only training does with them.
    pub train_split: TrainSplitConfig,
    /// Samples of a step.
    pub batch: BatchConfig,
    /// How the ranks' gradients or parameters become one.
    pub sync: SyncConfig,
    /// Descent and loss.
    pub optimizer: OptimizerConfig,
    /// Epochs and learning rate.
    pub schedule: ScheduleConfig,
    /// Start, output and cadence.
    pub run: RunConfig,
    /// Device and threads.
    pub compute: ComputeConfig,
}

impl TrainConfig {
    /// Decides what was left open and refuses what contradicts itself.
    ///
    /// # Errors
    /// A [`ConfigError`] that names the option and the remedy; also if the file of `--config` cannot be read.
    pub fn resolve(args: &TrainArgs, world_size: usize) -> Result<Self, ConfigError> {
        Self::resolve_for(None, args, world_size)
    }

    /// As [`resolve`](Self::resolve), for a program's own model instead of the residual networks.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve); also for an option that the model does not take.
    pub fn resolve_for(own: Option<&OwnModel>, args: &TrainArgs, world_size: usize) -> Result<Self, ConfigError> {
        match &args.config {
            None => resolve::train(own, args, world_size),
            Some(path) => resolve::train(own, &file::merged(&file::read(path)?, args)?, world_size),
        }
    }

    /// As [`resolve_for`](Self::resolve_for), with the options of an earlier session, as [`to_toml`](Self::to_toml) printed them, in
    /// place of the file of `--config`; flags win.
    ///
    /// # Errors
    /// As [`resolve_for`](Self::resolve_for).
    pub fn resolve_over(
        saved: &str,
        own: Option<&OwnModel>,
        args: &TrainArgs,
        world_size: usize,
    ) -> Result<Self, ConfigError> {
        resolve::train(own, &file::merged(&file::parse(saved, "the saved run.toml")?, args)?, world_size)
    }

    /// The configuration that [`to_toml`](Self::to_toml) printed.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve).
    pub fn from_toml(text: &str, world_size: usize) -> Result<Self, ConfigError> {
        resolve::train(None, &file::parse(text, "the TOML text")?, world_size)
    }

    /// The configuration as TOML that `--config` accepts. `--resume` is not part of it.
    pub fn to_toml(&self) -> String {
        toml::to_string(&self.to_args()).expect("options are numbers, text, flags and lists, which TOML has")
    }

    /// The configuration as flags: those without effect are absent.
    pub fn to_args(&self) -> TrainArgs {
        to_args::to_args(self)
    }

    /// Name of the run, such as `resnet20-shapes-seed0`.
    pub fn run_name(&self) -> String {
        format!("{}-{}-seed{}", self.model.name(), self.data.source.kind(), self.run.seed)
    }

    /// Learning rate after warmup: scaled by global batch size / reference batch size if asked for
    /// (linear scaling rule, Goyal et al. 2017, 1706.02677, section 2.1).
    pub fn peak_learning_rate(&self) -> f64 {
        match self.optimizer.reference_batch_size {
            None => self.optimizer.learning_rate,
            Some(reference) => self.optimizer.learning_rate * self.batch.global_batch_size as f64 / reference as f64,
        }
    }

    /// SHA-256 in hexadecimal of what must be equal on all ranks: version, world size, `--resume` and all options but
    /// the paths, threads and device of the machine.
    pub fn hash(&self) -> String {
        let mut digest = Sha256::new();
        digest.update(format!("{}\n{}\n{}\n", env!("CARGO_PKG_VERSION"), self.batch.world_size, self.run.resume));
        for (key, value) in shared_settings(&self.to_args()) {
            digest.update(format!("{key}={value}\n"));
        }
        digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// What keeps this run from being the continuation of one with the configuration `before`: the options that would
    /// change the course of the parameters. Another length is a difference only where the schedule would change with it and
    /// `--schedule-epochs` does not say so.
    pub fn differences(&self, before: &Self) -> Vec<ConfigDifference> {
        let (old, new) = (before.settings(), self.settings());
        let find = |settings: &[(String, String)], key: &str| {
            settings.iter().find(|(other, _)| other == key).map_or("unset".to_owned(), |(_, value)| value.clone())
        };
        let mut keys: Vec<&String> = old.iter().chain(&new).map(|(key, _)| key).collect();
        keys.sort();
        keys.dedup();
        let mut differences: Vec<ConfigDifference> = keys
            .into_iter()
            .filter(|key| options::is(key, |option| option.on_resume == OnResume::Fixed))
            .map(|key| ConfigDifference { key: key.clone(), before: find(&old, key), now: find(&new, key) })
            .filter(|difference| difference.before != difference.now)
            .collect();
        let (planned, was) = (self.schedule.planned_epochs(), before.schedule.planned_epochs());
        if self.schedule.depends_on_epochs() && self.schedule.schedule_epochs.is_none() && planned != was {
            let (key, before, now) = ("schedule.epochs".to_owned(), was.to_string(), planned.to_string());
            differences.push(ConfigDifference { key, before, now });
        }
        differences
    }

    /// All options with effect as (`section.key`, value), sorted.
    pub fn settings(&self) -> Vec<(String, String)> {
        settings(&self.to_args())
    }
}

/// All options that are given as (`section.key`, value), sorted.
fn settings(args: &TrainArgs) -> Vec<(String, String)> {
    let table = toml::Table::try_from(args).expect("options are plain values, which TOML has");
    let mut settings = Vec::new();
    for (section, keys) in table {
        for (key, value) in keys.as_table().into_iter().flatten() {
            settings.push((format!("{section}.{key}"), value.to_string()));
        }
    }
    settings
}

/// Those that must be equal on all ranks: all but the paths, threads and device of the machine.
fn shared_settings(args: &TrainArgs) -> Vec<(String, String)> {
    let settings = settings(args).into_iter();
    settings.filter(|(key, _)| options::is(key, |option| option.scope == Scope::World)).collect()
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
