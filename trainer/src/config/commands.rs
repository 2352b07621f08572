//! The configurations of `bench` and `doctor`.
//!
//! In: their flags. Out: decided values.
//! Invariant: as in [`super`], an option without effect is rejected.

use super::compute::ComputeSection;
use super::data::{DataSection, TrainSplitSection};
use super::error::{ConfigError, conflict, invalid, no_effect, within};
use super::family::Family;
use super::options;
use super::predict_scaling::of_network;
use super::shared_settings;
use super::sync::{SyncMethod, SyncSection, timeout};
use crate::config::choices::{
    BatchNormKind, DeviceChoice, LossScaling, ReductionChoice, UpdateKind,
};
use crate::config::cli::{BenchArgs, DoctorArgs, ModelArgs, ModelSection, TrainSplitArgs};
use serde::Serialize;
use simulate::NamedNetwork;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// Largest number of samples in a forward pass of `bench` and `eval`.
pub(super) const MAX_SAMPLES: usize = 1 << 20;
/// Largest number of simulated ranks.
pub(super) const MAX_SIMULATED: usize = 4096;
/// Options of `bench` that do not change a step, or that the result of `bench` contains anyway.
#[rustfmt::skip]
const NO_STEP_OPTIONS: [&str; 11] = ["batch_size_per_rank", "steps", "warmup_steps", "seed", "model", "dtype", "kernels", "device", "threads", "timeout", "trace"];

/// The steps that `trainer bench` measures.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct BenchConfig {
    pub batch_size_per_rank: usize,
    pub grad_accum_steps: usize,
    pub steps: usize,
    pub warmup_steps: usize,
    pub image_size: usize,
    pub num_classes: usize,
    pub batch_norm: BatchNormKind,
    pub seed: u64,
    pub model: ModelSection,
    pub sync: SyncSection,
    pub compute: ComputeSection,
    /// Name of the model.
    #[serde(skip)]
    pub model_name: String,
    /// Networks and numbers of ranks to predict the speed for.
    #[serde(skip)]
    pub simulation: Option<SimulationConfig>,
    #[serde(skip)]
    pub export_job: Option<PathBuf>,
}

impl BenchConfig {
    /// Number of different batches.
    pub const NUM_BATCHES: usize = 4;

    /// Resolves the flags of `trainer bench`.
    ///
    /// # Errors
    /// A [`ConfigError`] that names the option and the remedy.
    pub fn resolve(
        args: &BenchArgs,
        family: &Family,
        world_size: usize,
    ) -> Result<Self, ConfigError> {
        if args.export_job.is_some() && !family.is_built_in() {
            let because = format!(
                "on models of the family {}, which other programs cannot build",
                family.name
            );
            return Err(no_effect("--export-job", because, "leave it out"));
        }
        family.expect_no_image_option(args, &BenchArgs::default())?;
        let compute = args.compute.decide_for(family)?;
        let mut typed = args.sync.clone();
        // Warm-up steps are not measured, so compression covers all measured steps.
        if typed.compress.is_some_and(|compress| compress.has_warmup()) {
            typed.compress_warmup_steps.get_or_insert(0);
        }
        options::expect_ranges(args)?;
        let mut sync = typed.clone().decide(world_size, compute.device)?;
        options::expect_effect(&typed, &sync)?;
        sync.expect_offered(compute.device)?;
        let batch_norm = args.batch_norm.unwrap_or(BatchNormKind::Local);
        sync.expect_compatible(batch_norm, LossScaling::of(compute.dtype()))?;
        let syncs_norm = batch_norm == BatchNormKind::Sync && world_size > 1;
        let needs_main_memory = sync.needs_main_memory(syncs_norm);
        sync.decide_update(typed.update, needs_main_memory)?;
        let simulation = simulation(args)?;
        // Ranks exchange data in main memory, so a step that predicts several ranks is updated
        // there.
        if args.profile_output.is_some() || simulation.is_some() {
            if args.sync.update == Some(UpdateKind::Device) {
                let because = "with --profile-output or --simulate-network, which describe ranks that meet in main memory";
                return Err(no_effect("--update device", because, "leave it out"));
            }
            sync.update = UpdateKind::Host;
            if let SyncMethod::Allreduce { reduction, .. } = &mut sync.method {
                reduction.get_or_insert(ReductionChoice::Hierarchical);
            }
        }
        let mut model = args.model.clone();
        let model_name = family.decide(&mut model)?;
        if args.export_job.is_some() && model.read::<ModelArgs>()?.residual().is_err() {
            return Err(conflict(
                "--export-job",
                format!("--model {model_name}"),
                "other programs build only residual networks; remove --export-job",
            ));
        }
        let grad_accum_steps = args.grad_accum_steps.unwrap_or(1);
        let shards = sync.method.virtual_shards();
        if grad_accum_steps > 1 && args.export_job.is_some() {
            let because = "with --export-job, whose steps are one pass";
            return Err(no_effect("--grad-accum-steps", because, "leave it out"));
        }
        if grad_accum_steps > 1 && shards.is_some() {
            let because = "with --virtual-shards, each of which is a pass";
            return Err(no_effect("--grad-accum-steps", because, "leave it out"));
        }
        if let Some(shards) = shards
            && args.export_job.is_some()
            && !shards.is_multiple_of(world_size)
        {
            let expected = format!(
                "a multiple of the {world_size} ranks with --export-job, whose batches are equal"
            );
            return Err(invalid("--virtual-shards", expected, shards));
        }
        // A GPU may capture its fourth step, which takes longer than any other step.
        let warmup_steps = match compute.device {
            DeviceChoice::Cuda(_) => 5,
            _ => 3,
        };
        Ok(Self {
            batch_size_per_rank: within(
                "--batch-size-per-rank",
                args.batch_size_per_rank.unwrap_or(128),
                1..=MAX_SAMPLES,
            )?,
            grad_accum_steps,
            steps: args.steps.unwrap_or(20),
            warmup_steps: args.warmup_steps.unwrap_or(warmup_steps),
            image_size: args.image_size.unwrap_or(32),
            num_classes: args.num_classes.unwrap_or(10),
            batch_norm,
            seed: args.seed.unwrap_or(0),
            model,
            sync,
            compute,
            model_name,
            simulation,
            export_job: directory_name("--export-job", args.export_job.as_ref())?,
        })
    }

    /// Returns the number of samples of one rank in one step.
    pub fn samples_per_rank(&self) -> usize {
        self.batch_size_per_rank * self.grad_accum_steps
    }

    /// Returns the options that change a step, under the names that a study uses. Omits options
    /// that every result contains.
    pub fn step_options(&self) -> BTreeMap<String, String> {
        let mut options = BTreeMap::new();
        for (option, value) in super::settings(self) {
            let key = option.trim_start_matches("--");
            let key = key.rsplit('.').next().unwrap_or(key).replace('-', "_");
            if !NO_STEP_OPTIONS.contains(&key.as_str()) {
                options.insert(key, value.trim_matches('"').to_owned());
            }
        }
        options
    }

    /// Returns the settings that must be equal on all ranks, as (option, value). Outputs of root
    /// are not compared.
    pub fn shared_settings(&self) -> Vec<(String, String)> {
        let mut config = self.clone();
        config.sync.trace = None;
        let mut settings = shared_settings(&config);
        for (option, path) in [
            ("--export-job", &self.export_job),
            ("--trace", &self.sync.trace),
        ] {
            settings.push((option.to_owned(), path.is_some().to_string()));
        }
        settings
    }
}

/// The environment that `trainer doctor` examines.
#[derive(Debug, Clone, PartialEq)]
pub struct DoctorConfig {
    /// The data set.
    pub data: DataSection,
    /// Options of training images.
    pub train_split: TrainSplitSection,
    /// Device and threads.
    pub compute: ComputeSection,
    /// Directory that runs would be written to.
    pub output_dir: PathBuf,
    /// Longest wait for another rank.
    pub timeout: Duration,
}

impl DoctorConfig {
    /// Resolves the flags of `trainer doctor`.
    ///
    /// # Errors
    /// A [`ConfigError`] that names the option and the remedy.
    pub fn resolve(args: &DoctorArgs) -> Result<Self, ConfigError> {
        if args.data.download == Some(true) {
            return Err(no_effect(
                "--download",
                "with doctor, which downloads nothing",
                "leave it out; train downloads",
            ));
        }
        let train_split = TrainSplitArgs {
            val_fraction: args.val_fraction,
            ..TrainSplitArgs::default()
        };
        let (data, train_split) = args.data.clone().decide_with(train_split)?;
        Ok(Self {
            data,
            train_split,
            compute: args.compute.decide_for(&Family::BUILT_IN)?,
            output_dir: args.output_dir.clone().unwrap_or("runs".into()),
            timeout: timeout(args.timeout.or(Some(30)))?,
        })
    }
}

/// A simulation that follows a measurement.
#[derive(Debug, Clone, PartialEq)]
pub struct SimulationConfig {
    /// The network.
    pub network: NamedNetwork,
    /// Numbers of ranks.
    pub ranks: Vec<usize>,
}

fn simulation(args: &BenchArgs) -> Result<Option<SimulationConfig>, ConfigError> {
    let Some(network) = &args.simulate_network else {
        return match args.simulate_ranks {
            None => Ok(None),
            Some(_) => Err(no_effect(
                "--simulate-ranks",
                "without --simulate-network",
                "add --simulate-network or remove --simulate-ranks",
            )),
        };
    };
    let powers = || (1..=10).map(|power| 1 << power).collect();
    let ranks = args.simulate_ranks.clone().unwrap_or_else(powers);
    simulated_ranks("--simulate-ranks", &ranks)?;
    Ok(Some(SimulationConfig {
        network: NamedNetwork::read(network)
            .map_err(|error| of_network("--simulate-network", error))?,
        ranks,
    }))
}

/// Rejects numbers of ranks whose simulation takes too long.
pub(super) fn simulated_ranks(option: &str, ranks: &[usize]) -> Result<(), ConfigError> {
    let mut ranks = ranks.iter();
    match ranks.find(|ranks| !(1..=MAX_SIMULATED).contains(*ranks)) {
        None => Ok(()),
        Some(wrong) => {
            let expected = format!("1 to {MAX_SIMULATED} ranks");
            Err(invalid(option, expected, wrong))
        }
    }
}

/// Returns the path of a directory that exists or can be created.
fn directory_name(
    option: &'static str,
    path: Option<&PathBuf>,
) -> Result<Option<PathBuf>, ConfigError> {
    match path {
        Some(path) if path.exists() && !path.is_dir() => {
            let got = format!("the file {}", path.display());
            Err(invalid(option, "the name of a directory", got))
        }
        path => Ok(path.cloned()),
    }
}

/// Returns the path of a file to write.
pub(crate) fn file_name(
    option: &'static str,
    path: Option<&PathBuf>,
) -> Result<Option<PathBuf>, ConfigError> {
    match path {
        Some(path) if path.file_name().is_none() || path.is_dir() => {
            Err(invalid(option, "the name of a file", path.display()))
        }
        path => Ok(path.cloned()),
    }
}
