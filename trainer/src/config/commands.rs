//! The configurations of `predict` and `bench`.
//!
//! In: their flags. Out: the flags with their gaps filled.
//! Invariant: as in [`super`], an option without effect is refused.

use super::checks::{Filled, at_least, invalid, no_effect, within};
use super::error::ConfigError;
use super::family::Family;
use super::sync::SyncConfig;
use super::{MAX_CLASSES, MAX_IMAGE_SIDE, netbench, shared_settings};
use crate::config::choices::{BatchNormKind, Compression, DeviceChoice, LossScaling, UpdateKind};
use crate::config::cli::{BenchArgs, PredictArgs, SyncArgs};
use simulate::{NetworkError, NetworkModel};
use std::collections::BTreeMap;
use std::ops::Deref;
use std::path::{Path, PathBuf};

/// The most samples of a pass of `bench` and `eval`.
pub(super) const MOST_SAMPLES: usize = 1 << 20;

/// What `trainer predict` names: its flags, filled.
#[derive(Debug, Clone)]
pub struct PredictConfig {
    flags: PredictArgs,
}

impl Deref for PredictConfig {
    type Target = PredictArgs;

    fn deref(&self) -> &PredictArgs {
        &self.flags
    }
}

impl PredictConfig {
    /// Decides the prediction.
    ///
    /// # Errors
    /// A [`ConfigError`] naming the option and the remedy.
    pub fn resolve(args: &PredictArgs, family: &Family) -> Result<Self, ConfigError> {
        let mut flags = args.clone();
        at_least("--top", *flags.top.get_or_insert(5), 1)?;
        flags.compute = flags.compute.decided(family)?;
        Ok(Self { flags })
    }
}

/// Most ranks that are simulated.
pub(super) const MOST_SIMULATED: usize = 4096;

/// Options of `bench` that leave a step as it is, or that its result tells by itself.
#[rustfmt::skip]
const NO_STEP_OPTIONS: [&str; 11] = ["batch_size_per_rank", "steps", "warmup_steps", "seed", "model", "dtype", "kernels", "device", "threads", "timeout", "trace"];

/// What `trainer bench` measures: its flags, filled.
#[derive(Debug, Clone, PartialEq)]
pub struct BenchConfig {
    flags: BenchArgs,
    /// Name of the model.
    pub model_name: String,
    /// Networks and numbers of ranks to predict the speed for.
    pub simulation: Option<SimulationConfig>,
}

impl Deref for BenchConfig {
    type Target = BenchArgs;

    fn deref(&self) -> &BenchArgs {
        &self.flags
    }
}

impl BenchConfig {
    /// Decides the measurement.
    ///
    /// # Errors
    /// A [`ConfigError`] naming the option and the remedy.
    pub fn resolve(
        args: &BenchArgs,
        family: &Family,
        world_size: usize,
    ) -> Result<Self, ConfigError> {
        if args.export_job.is_some() && !family.is_resnet() {
            let because = format!(
                "on models of the family {}, which other programs do not know",
                family.name
            );
            return Err(no_effect("--export-job", because, "leave it out"));
        }
        let mut flags = args.clone();
        flags.compute = flags.compute.decided(family)?;
        let device = flags.compute.device.filled();
        // Steps that warm up are not measured: those that are, are all compressed.
        if flags.sync.compress.is_some_and(Compression::has_warmup) {
            flags.sync.compress_warmup_steps.get_or_insert(0);
        }
        flags.sync.fill(world_size, device)?;
        flags.sync.expect_offered(device)?;
        flags.sync.expect_batch_norm(flags.batch_norm)?;
        flags
            .sync
            .expect_loss_scale(LossScaling::of(flags.compute.dtype()))?;
        let simulation = simulation(args)?;
        // What several ranks would take is told only where gradients pass through main memory, as theirs do.
        if args.profile_output.is_some() || simulation.is_some() {
            if args.sync.update == Some(UpdateKind::Device) {
                let because = "with --profile-output or --simulate-network, which tell of ranks that meet in main memory";
                return Err(no_effect("--update device", because, "leave it out"));
            }
            flags.sync.update = Some(UpdateKind::Host);
        }
        let model_name = family.decide(&mut flags.model)?;
        within(
            "--batch-size-per-rank",
            *flags.batch_size_per_rank.get_or_insert(128),
            1..=MOST_SAMPLES,
        )?;
        at_least(
            "--grad-accum-steps",
            *flags.grad_accum_steps.get_or_insert(1),
            1,
        )?;
        if flags.grad_accum_steps.filled() > 1 {
            let one_pass = [
                (
                    "with --export-job, whose steps are one pass",
                    flags.export_job.is_some(),
                ),
                (
                    "with --virtual-shards, of which each is a pass",
                    flags.sync.method().virtual_shards().is_some(),
                ),
            ];
            if let Some((because, _)) = one_pass.into_iter().find(|(_, is_so)| *is_so) {
                return Err(no_effect("--grad-accum-steps", because, "leave it out"));
            }
        }
        let shards = flags
            .sync
            .method()
            .virtual_shards()
            .filter(|shards| !shards.is_multiple_of(world_size));
        if let Some(shards) = shards.filter(|_| flags.export_job.is_some()) {
            let expected = format!(
                "a multiple of the {world_size} ranks with --export-job, whose batches are equal"
            );
            return Err(invalid("--virtual-shards", expected, shards));
        }
        at_least("--steps", *flags.steps.get_or_insert(20), 1)?;
        // A GPU's fourth step may be recorded, which takes longer than any other.
        flags
            .warmup_steps
            .get_or_insert(if matches!(device, DeviceChoice::Cuda(_)) {
                5
            } else {
                3
            });
        within(
            "--image-size",
            *flags.image_size.get_or_insert(32),
            8..=MAX_IMAGE_SIDE,
        )?;
        within(
            "--num-classes",
            *flags.num_classes.get_or_insert(10),
            2..=MAX_CLASSES,
        )?;
        flags.batch_norm.get_or_insert(BatchNormKind::Local);
        flags.seed.get_or_insert(0);
        flags.profile_output = flags
            .profile_output
            .map(|path| file_name("--profile-output", path))
            .transpose()?;
        flags.export_job = flags
            .export_job
            .map(|path| directory_name("--export-job", path))
            .transpose()?;
        Ok(Self {
            flags,
            model_name,
            simulation,
        })
    }

    /// Samples of one rank in one step.
    pub fn samples_per_rank(&self) -> usize {
        self.batch_size_per_rank.filled() * self.grad_accum_steps.filled()
    }

    /// The same with other samples of one rank in one pass.
    pub fn with_batch_size_per_rank(mut self, samples: usize) -> Self {
        self.flags.batch_size_per_rank = Some(samples);
        self
    }

    /// How the ranks' gradients or parameters become one.
    pub fn sync_config(&self) -> SyncConfig {
        SyncConfig::of(&self.sync, self.compute.device.filled())
    }

    /// The options that change a step but for those that every result tells, under the names that a study has for them.
    pub fn step_options(&self) -> BTreeMap<String, String> {
        let options = super::settings(&self.flags)
            .into_iter()
            .map(|(option, value)| {
                let key = option
                    .trim_start_matches("--")
                    .rsplit('.')
                    .next()
                    .unwrap_or_default()
                    .replace('-', "_");
                (key, value.trim_matches('"').to_owned())
            });
        options
            .filter(|(key, _)| !NO_STEP_OPTIONS.contains(&key.as_str()))
            .collect()
    }

    /// What must be equal on all ranks, as (option, value): what root alone writes need not.
    pub fn shared_settings(&self) -> Vec<(String, String)> {
        let sync = SyncArgs {
            trace: None,
            ..self.sync.clone()
        };
        let mut settings = shared_settings(&BenchArgs {
            sync,
            ..self.flags.clone()
        });
        for (option, path) in [
            ("--export-job", &self.export_job),
            ("--trace", &self.sync.trace),
        ] {
            settings.push((option.to_owned(), path.is_some().to_string()));
        }
        settings
    }
}

/// What is simulated after a measurement.
#[derive(Debug, Clone, PartialEq)]
pub struct SimulationConfig {
    /// The network.
    pub network: NetworkModel,
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
                "add that or leave this out",
            )),
        };
    };
    let network = network_model("--simulate-network", network)?;
    let ranks = args
        .simulate_ranks
        .clone()
        .unwrap_or_else(|| (1..=10).map(|power| 1 << power).collect());
    simulated_ranks("--simulate-ranks", &ranks)?;
    Ok(Some(SimulationConfig { network, ranks }))
}

/// The network that `text` names, describes, or is the file of.
pub(super) fn network_model(option: &'static str, text: &str) -> Result<NetworkModel, ConfigError> {
    if netbench::names_a_measurement(text) {
        return netbench::measured_network(option, Path::new(text.trim()));
    }
    let refuse = |NetworkError { expected, got, .. }: NetworkError| {
        invalid(
            option,
            expected,
            if got == text {
                format!("\"{got}\"")
            } else {
                format!("\"{got}\" in \"{text}\"")
            },
        )
    };
    text.parse().map_err(refuse)
}

/// Refuses numbers of ranks that take too long.
pub(super) fn simulated_ranks(option: &'static str, ranks: &[usize]) -> Result<(), ConfigError> {
    match ranks
        .iter()
        .find(|ranks| !(1..=MOST_SIMULATED).contains(*ranks))
    {
        None => Ok(()),
        Some(ranks) => {
            let expected = format!("1 to {MOST_SIMULATED} ranks");
            Err(invalid(option, expected, ranks))
        }
    }
}

/// A directory that is there or can be made: no file of that name.
fn directory_name(option: &'static str, path: PathBuf) -> Result<PathBuf, ConfigError> {
    if path.exists() && !path.is_dir() {
        let (expected, got) = (
            "the name of a directory".to_owned(),
            format!("the file {}", path.display()),
        );
        return Err(invalid(option, expected, got));
    }
    Ok(path)
}

/// The path of a file to be written.
pub(super) fn file_name(option: &'static str, path: PathBuf) -> Result<PathBuf, ConfigError> {
    if path.file_name().is_none() || path.is_dir() {
        let (expected, got) = ("the name of a file".to_owned(), path.display().to_string());
        return Err(invalid(option, expected, got));
    }
    Ok(path)
}
