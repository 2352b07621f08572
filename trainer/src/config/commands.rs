//! The configurations of `eval`, `predict` and `bench`.
//!
//! In: their flags, and for `eval` the configuration a checkpoint was trained with. Out: the flags with their gaps filled.
//! Invariant: as in [`super`], an option without effect is refused.

use super::checks::{Filled, at_least, conflict, invalid, missing, no_effect, within};
use super::error::ConfigError;
use super::family::Family;
use super::sync::SyncConfig;
use super::{MAX_CLASSES, MAX_IMAGE_SIDE, TrainConfig, file, netbench, shared_settings};
use crate::config::choices::{BatchNormKind, Compression, DatasetKind, DeviceChoice, LossScaling, UpdateKind};
use crate::config::cli::{BenchArgs, DataArgs, EvalArgs, PredictArgs, SyncArgs, TrainSplitArgs};
use serde::{Deserialize, Serialize};
use simulate::{NetworkError, NetworkModel};
use std::collections::BTreeMap;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The most samples of a pass of `bench` and `eval`.
const MOST_SAMPLES: usize = 1 << 20;

/// The most bytes of test images that are drawn because a checkpoint says so: its numbers may be anybody's.
const MOST_DRAWN_BYTES: u64 = 4 << 30;

/// Where parameters are read from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WeightSource {
    /// A weights file of any framework.
    File(PathBuf),
    /// A checkpoint directory of this program.
    Checkpoint(PathBuf),
}

/// What `trainer eval` measures: its flags, filled, of which the model and the data set are those of the checkpoint unless typed.
#[derive(Debug, Clone, PartialEq)]
pub struct EvalConfig {
    flags: EvalArgs,
    /// What is made to be trained on: as little as can be.
    pub train_split: TrainSplitArgs,
    /// The parameters.
    pub weights: WeightSource,
}

impl Deref for EvalConfig {
    type Target = EvalArgs;

    fn deref(&self) -> &EvalArgs {
        &self.flags
    }
}

/// The sections that `eval` shares with `train`, for laying its flags over the options of a trained run.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct DataSections {
    data: DataArgs,
    #[serde(default)]
    train_split: TrainSplitArgs,
}

impl EvalConfig {
    /// Decides the evaluation. `trained` is the configuration that the checkpoint of `--checkpoint` holds: its model
    /// is used, and its data set unless flags say otherwise.
    ///
    /// # Errors
    /// A [`ConfigError`] naming the option and the remedy.
    ///
    /// # Panics
    /// If `--checkpoint` was given without `trained`.
    pub fn resolve(args: &EvalArgs, family: &Family, trained: Option<&TrainConfig>) -> Result<Self, ConfigError> {
        let mut flags = args.clone();
        within("--batch-size-per-rank", *flags.batch_size_per_rank.get_or_insert(128), 1..=MOST_SAMPLES)?;
        flags.compute = flags.compute.decided(family)?;
        flags.timeout = Some(Self::timeout(args)?.as_secs());
        let weights = Self::weights(args)?;
        let train_split = match &weights {
            WeightSource::File(_) => fill_for_file(&mut flags, family)?,
            WeightSource::Checkpoint(_) => {
                let trained = trained.expect("the caller reads the checkpoint's configuration first");
                fill_like(trained, &mut flags, family)?
            }
        };
        Ok(Self { flags, train_split, weights })
    }

    /// Where the parameters are read from, as can be told before a checkpoint is read.
    ///
    /// # Errors
    /// When there is no source, or two.
    pub fn weights(args: &EvalArgs) -> Result<WeightSource, ConfigError> {
        match (&args.weights, &args.checkpoint) {
            (Some(_), Some(_)) => Err(conflict("--weights", "--checkpoint", "give one of them")),
            (None, None) => Err(missing(
                "--checkpoint",
                "there is nothing to measure",
                "give a checkpoint directory, or --weights FILE with --model and --dataset",
            )),
            (Some(path), None) => Ok(WeightSource::File(path.clone())),
            (None, Some(path)) => Ok(WeightSource::Checkpoint(path.clone())),
        }
    }

    /// The longest wait for another rank, as can be told before a checkpoint is read.
    ///
    /// # Errors
    /// When it is 0.
    pub fn timeout(args: &EvalArgs) -> Result<Duration, ConfigError> {
        Ok(Duration::from_secs(at_least("--timeout", args.timeout.unwrap_or(120), 1)?))
    }

    /// What must be equal on all ranks, as (option, value).
    pub fn shared_settings(&self) -> Vec<(String, String)> {
        // A machine's own, and it need not be text.
        let data = DataArgs { data_dir: None, ..self.data.clone() };
        let mut settings = shared_settings(&EvalArgs { data, ..self.flags.clone() });
        let weights = match &self.weights {
            WeightSource::File(path) => ("--weights", path),
            WeightSource::Checkpoint(path) => ("--checkpoint", path),
        };
        settings.push((weights.0.to_owned(), weights.1.display().to_string()));
        settings
    }
}

/// A weights file tells nothing of itself.
fn fill_for_file(flags: &mut EvalArgs, family: &Family) -> Result<TrainSplitArgs, ConfigError> {
    if flags.allow_changed_classes {
        let because = "with --weights, a file that tells no class names";
        return Err(no_effect("--allow-changed-classes", because, "leave it out"));
    }
    if family.is_resnet() && !flags.model.0.keys().any(|key| key == "model" || key == "depth") {
        return Err(missing(
            "--model",
            "a weights file does not tell its network",
            "give for example --model resnet20",
        ));
    }
    family.decide(&mut flags.model)?;
    if flags.data.dataset.is_none() {
        return Err(missing(
            "--dataset",
            "a weights file does not tell what it was trained on",
            "give for example --dataset cifar10 --data-dir DIR",
        ));
    }
    let train_split;
    (flags.data, train_split) = flags.data.clone().decided(TrainSplitArgs::default())?;
    Ok(train_split)
}

/// The model of a trained run, and its data where no flags say otherwise.
fn fill_like(trained: &TrainConfig, flags: &mut EvalArgs, family: &Family) -> Result<TrainSplitArgs, ConfigError> {
    if let Some(flag) = flags.model.first_flag() {
        return Err(no_effect(flag, "with --checkpoint, which tells the network", "leave it out"));
    }
    flags.model = trained.model_of(family)?;
    let below = DataSections { data: trained.data.clone(), train_split: trained.train_split.clone() };
    let typed = DataSections { data: flags.data.clone(), train_split: TrainSplitArgs::default() };
    let merged: DataSections = file::laid_over(&below, &typed)?;
    let (data, mut split) = merged.data.decided(merged.train_split)?;
    // What is drawn to be trained on is not drawn here; there is one image of it, as no split is empty.
    split = TrainSplitArgs {
        shapes_train: split.shapes_train.map(|_| 1),
        synthetic_train: split.synthetic_train.map(|_| 1),
        ..TrainSplitArgs::default()
    };
    expect_few_drawn(&data, &typed.data)?;
    flags.data = data;
    Ok(split)
}

/// Refuses to draw more test images than fit into memory because a checkpoint says so.
fn expect_few_drawn(data: &DataArgs, typed: &DataArgs) -> Result<(), ConfigError> {
    let (option, num_test, typed) = match data.dataset.filled() {
        DatasetKind::Shapes => ("--shapes-test", data.shapes_test, typed.shapes_test),
        DatasetKind::Synthetic => ("--synthetic-test", data.synthetic_test, typed.synthetic_test),
        DatasetKind::Cifar10 | DatasetKind::Cifar100 | DatasetKind::ImageFolder => return Ok(()),
        DatasetKind::Shards | DatasetKind::Parquet | DatasetKind::Own => return Ok(()),
    };
    let (num_test, side) = (num_test.filled(), data.image_size() as u64);
    if typed.is_none() && (num_test as u64).saturating_mul(3 * side * side) > MOST_DRAWN_BYTES {
        return Err(invalid(
            option,
            format!("at most {MOST_DRAWN_BYTES} bytes of images, or the number as a flag"),
            format!("the checkpoint's {num_test} images"),
        ));
    }
    Ok(())
}

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
    pub fn resolve(args: &BenchArgs, family: &Family, world_size: usize) -> Result<Self, ConfigError> {
        if args.export_job.is_some() && !family.is_resnet() {
            let because = format!("on models of the family {}, which other programs do not know", family.name);
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
        flags.sync.expect_loss_scale(LossScaling::of(flags.compute.dtype()))?;
        let simulation = simulation(args)?;
        // What several ranks would take is told only where gradients pass through main memory, as theirs do.
        if args.profile_output.is_some() || simulation.is_some() {
            if args.sync.update == Some(UpdateKind::Device) {
                let because =
                    "with --profile-output or --simulate-network, which tell of ranks that meet in main memory";
                return Err(no_effect("--update device", because, "leave it out"));
            }
            flags.sync.update = Some(UpdateKind::Host);
        }
        let model_name = family.decide(&mut flags.model)?;
        within("--batch-size-per-rank", *flags.batch_size_per_rank.get_or_insert(128), 1..=MOST_SAMPLES)?;
        at_least("--grad-accum-steps", *flags.grad_accum_steps.get_or_insert(1), 1)?;
        if flags.grad_accum_steps.filled() > 1 {
            let one_pass = [
                ("with --export-job, whose steps are one pass", flags.export_job.is_some()),
                ("with --virtual-shards, of which each is a pass", flags.sync.method().virtual_shards().is_some()),
            ];
            if let Some((because, _)) = one_pass.into_iter().find(|(_, is_so)| *is_so) {
                return Err(no_effect("--grad-accum-steps", because, "leave it out"));
            }
        }
        let shards = flags.sync.method().virtual_shards().filter(|shards| !shards.is_multiple_of(world_size));
        if let Some(shards) = shards.filter(|_| flags.export_job.is_some()) {
            let expected = format!("a multiple of the {world_size} ranks with --export-job, whose batches are equal");
            return Err(invalid("--virtual-shards", expected, shards));
        }
        at_least("--steps", *flags.steps.get_or_insert(20), 1)?;
        // A GPU's fourth step may be recorded, which takes longer than any other.
        flags.warmup_steps.get_or_insert(if matches!(device, DeviceChoice::Cuda(_)) { 5 } else { 3 });
        within("--image-size", *flags.image_size.get_or_insert(32), 8..=MAX_IMAGE_SIDE)?;
        within("--num-classes", *flags.num_classes.get_or_insert(10), 2..=MAX_CLASSES)?;
        flags.batch_norm.get_or_insert(BatchNormKind::Local);
        flags.seed.get_or_insert(0);
        flags.profile_output = flags.profile_output.map(|path| file_name("--profile-output", path)).transpose()?;
        flags.export_job = flags.export_job.map(|path| directory_name("--export-job", path)).transpose()?;
        Ok(Self { flags, model_name, simulation })
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
        let options = super::settings(&self.flags).into_iter().map(|(option, value)| {
            let key = option.trim_start_matches("--").rsplit('.').next().unwrap_or_default().replace('-', "_");
            (key, value.trim_matches('"').to_owned())
        });
        options.filter(|(key, _)| !NO_STEP_OPTIONS.contains(&key.as_str())).collect()
    }

    /// What must be equal on all ranks, as (option, value): what root alone writes need not.
    pub fn shared_settings(&self) -> Vec<(String, String)> {
        let sync = SyncArgs { trace: None, ..self.sync.clone() };
        let mut settings = shared_settings(&BenchArgs { sync, ..self.flags.clone() });
        for (option, path) in [("--export-job", &self.export_job), ("--trace", &self.sync.trace)] {
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
            Some(_) => Err(no_effect("--simulate-ranks", "without --simulate-network", "add that or leave this out")),
        };
    };
    let network = network_model("--simulate-network", network)?;
    let ranks = args.simulate_ranks.clone().unwrap_or_else(|| (1..=10).map(|power| 1 << power).collect());
    simulated_ranks("--simulate-ranks", &ranks)?;
    Ok(Some(SimulationConfig { network, ranks }))
}

/// The network that `text` names, describes, or is the file of.
pub(super) fn network_model(option: &'static str, text: &str) -> Result<NetworkModel, ConfigError> {
    if netbench::names_a_measurement(text) {
        return netbench::measured_network(option, Path::new(text.trim()));
    }
    let refuse = |NetworkError { expected, got, .. }: NetworkError| {
        invalid(option, expected, if got == text { format!("\"{got}\"") } else { format!("\"{got}\" in \"{text}\"") })
    };
    text.parse().map_err(refuse)
}

/// Refuses numbers of ranks that take too long.
pub(super) fn simulated_ranks(option: &'static str, ranks: &[usize]) -> Result<(), ConfigError> {
    match ranks.iter().find(|ranks| !(1..=MOST_SIMULATED).contains(*ranks)) {
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
        let (expected, got) = ("the name of a directory".to_owned(), format!("the file {}", path.display()));
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
