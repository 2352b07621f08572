//! The configurations of `eval`, `predict` and `bench`.
//!
//! In: their flags, and for `eval` the configuration a checkpoint was trained with. Out: plain values.
//! Invariant: as in [`super`], an option without effect is refused.

use super::error::ConfigError;
use super::own_model::ModelChoice;
use super::parts::{ComputeConfig, DataConfig, DataSource, ModelConfig};
use super::resolve::{at_least, compute, model, no_effect};
use super::sync::{self, SyncConfig};
use super::{TrainConfig, data, file, netbench, shared_settings};
use crate::choices::{BatchNormKind, UpdateKind};
use crate::cli::{
    BatchArgs, BenchArgs, DataArgs, EvalArgs, ModelArgs, PredictArgs, RunArgs, SyncArgs, TrainArgs, TrainSplitArgs,
};
use crate::loss_scale::LossScaling;
use serde::{Deserialize, Serialize};
use simulate::{NetworkError, NetworkModel};
use std::path::{Path, PathBuf};
use std::time::Duration;

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

/// What `trainer eval` measures.
#[derive(Debug, Clone, PartialEq)]
pub struct EvalConfig {
    /// The network.
    pub model: ModelConfig,
    /// Its parameters.
    pub weights: WeightSource,
    /// The data set, of which the test split is used.
    pub data: DataConfig,
    /// Samples of one rank's forward pass.
    pub batch_size_per_rank: usize,
    /// Whether the data's class names may be others than the checkpoint's.
    pub allow_changed_classes: bool,
    /// Longest wait for another rank.
    pub timeout: Duration,
    /// Device and threads.
    pub compute: ComputeConfig,
    /// End with a JSON line.
    pub json: bool,
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
    pub fn resolve(args: &EvalArgs, trained: Option<&TrainConfig>) -> Result<Self, ConfigError> {
        let batch_size_per_rank = at_least("--batch-size-per-rank", args.batch_size_per_rank.unwrap_or(128), 1)?;
        let compute = compute(&args.compute)?;
        let timeout = Self::timeout(args)?;
        let weights = Self::weights(args)?;
        let (model, data) = match &weights {
            WeightSource::File(_) => {
                if args.allow_changed_classes {
                    let because = "with --weights, a file that tells no class names";
                    return Err(no_effect("--allow-changed-classes", because, "leave it out"));
                }
                (named_model(args)?, named_data(args)?)
            }
            WeightSource::Checkpoint(_) => {
                let trained = trained.expect("the caller reads the checkpoint's configuration first");
                if args.model != ModelArgs::default() {
                    let because = "with --checkpoint, which tells the network";
                    return Err(no_effect("--model, --depth or --shortcut", because, "leave it out"));
                }
                (*trained.model.resnet()?, data_like(trained, args)?)
            }
        };
        let allow_changed_classes = args.allow_changed_classes;
        Ok(Self { model, weights, data, batch_size_per_rank, allow_changed_classes, timeout, compute, json: args.json })
    }

    /// Where the parameters are read from, as can be told before a checkpoint is read.
    ///
    /// # Errors
    /// When there is no source, or two.
    pub fn weights(args: &EvalArgs) -> Result<WeightSource, ConfigError> {
        match (&args.weights, &args.checkpoint) {
            (Some(_), Some(_)) => Err(ConfigError::Conflict {
                option: "--weights",
                other: "--checkpoint".to_owned(),
                remedy: "give one of them".to_owned(),
            }),
            (None, None) => Err(ConfigError::Missing {
                option: "--checkpoint",
                because: "there is nothing to measure".to_owned(),
                remedy: "give a checkpoint directory, or --weights FILE with --model and --dataset".to_owned(),
            }),
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
        let weights = match &self.weights {
            WeightSource::File(path) => ("--weights", path),
            WeightSource::Checkpoint(path) => ("--checkpoint", path),
        };
        let batch = BatchArgs { batch_size_per_rank: Some(self.batch_size_per_rank), ..BatchArgs::default() };
        let sync = SyncArgs { timeout: Some(self.timeout.as_secs()), ..SyncArgs::default() };
        // A machine's own, and it need not be text.
        let data = DataArgs { data_dir: None, ..self.data.to_args() };
        let (model, compute) = (ModelChoice::Resnet(self.model).to_args(), self.compute.to_args());
        let mut settings = shared_settings(&TrainArgs { model, data, batch, sync, compute, ..TrainArgs::default() });
        settings.push((weights.0.to_owned(), weights.1.display().to_string()));
        settings.push(("--allow-changed-classes".to_owned(), self.allow_changed_classes.to_string()));
        settings
    }
}

fn named_model(args: &EvalArgs) -> Result<ModelConfig, ConfigError> {
    if args.model.model.is_none() && args.model.depth.is_none() {
        return Err(ConfigError::Missing {
            option: "--model",
            because: "a weights file does not tell its network".to_owned(),
            remedy: "give for example --model resnet20".to_owned(),
        });
    }
    model(&args.model)
}

fn named_data(args: &EvalArgs) -> Result<DataConfig, ConfigError> {
    if args.data.dataset.is_none() {
        return Err(ConfigError::Missing {
            option: "--dataset",
            because: "a weights file does not tell what it was trained on".to_owned(),
            remedy: "give for example --dataset cifar10 --data-dir DIR".to_owned(),
        });
    }
    data::data(&args.data, &TrainSplitArgs::default())
}

fn data_like(trained: &TrainConfig, args: &EvalArgs) -> Result<DataConfig, ConfigError> {
    let TrainArgs { data, train_split, .. } = trained.to_args();
    let below = DataSections { data, train_split };
    let flags = DataSections { data: args.data.clone(), train_split: TrainSplitArgs::default() };
    let merged: DataSections = file::laid_over(&below, &flags)?;
    let mut data = data::data(&merged.data, &merged.train_split)?;
    let side = data.source.image_size() as u64;
    let (option, num_train, num_test, typed) = match &mut data.source {
        DataSource::Shapes { num_train, num_test, .. } => {
            ("--shapes-test", num_train, *num_test, args.data.shapes_test)
        }
        DataSource::Synthetic { num_train, num_test, .. } => {
            ("--synthetic-test", num_train, *num_test, args.data.synthetic_test)
        }
        DataSource::Cifar10 { .. } | DataSource::Cifar100 { .. } | DataSource::ImageFolder { .. } => return Ok(data),
    };
    // What is drawn to be trained on is not drawn here; there is one image of it, as no split is empty.
    *num_train = 1;
    if typed.is_none() && (num_test as u64).saturating_mul(3 * side * side) > MOST_DRAWN_BYTES {
        return Err(ConfigError::Invalid {
            option,
            expected: format!("at most {MOST_DRAWN_BYTES} bytes of images, or the number as a flag"),
            got: format!("the checkpoint's {num_test} images"),
        });
    }
    Ok(data)
}

/// What `trainer predict` names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PredictConfig {
    /// The checkpoint directory.
    pub checkpoint: PathBuf,
    /// Image files.
    pub images: Vec<PathBuf>,
    /// Classes to print for each.
    pub top: usize,
    /// Device and threads.
    pub compute: ComputeConfig,
    /// End with a JSON line.
    pub json: bool,
}

impl PredictConfig {
    /// Decides the prediction.
    ///
    /// # Errors
    /// A [`ConfigError`] naming the option and the remedy.
    pub fn resolve(args: &PredictArgs) -> Result<Self, ConfigError> {
        Ok(Self {
            checkpoint: args.checkpoint.clone(),
            images: args.images.clone(),
            top: at_least("--top", args.top.unwrap_or(5), 1)?,
            compute: compute(&args.compute)?,
            json: args.json,
        })
    }
}

/// Most ranks that are simulated.
pub(super) const MOST_SIMULATED: usize = 4096;

/// What `trainer bench` measures.
#[derive(Debug, Clone, PartialEq)]
pub struct BenchConfig {
    /// The network.
    pub model: ModelConfig,
    /// Samples of one rank in one step.
    pub batch_size_per_rank: usize,
    /// Measured steps.
    pub steps: usize,
    /// Steps before them.
    pub warmup_steps: usize,
    /// Height and width, pixels.
    pub image_size: usize,
    /// Classes.
    pub num_classes: usize,
    /// Over which samples batch statistics go.
    pub batch_norm: BatchNormKind,
    /// How the ranks' gradients or parameters become one.
    pub sync: SyncConfig,
    /// Networks and numbers of ranks to predict the speed for.
    pub simulation: Option<SimulationConfig>,
    /// File of the measured step.
    pub profile_output: Option<PathBuf>,
    /// Seed of weights and pixels.
    pub seed: u64,
    /// Device and threads.
    pub compute: ComputeConfig,
    /// End with a JSON line.
    pub json: bool,
    /// Where the measured job is written for other programs.
    pub export_job: Option<PathBuf>,
}

impl BenchConfig {
    /// Decides the measurement.
    ///
    /// # Errors
    /// A [`ConfigError`] naming the option and the remedy.
    pub fn resolve(args: &BenchArgs, world_size: usize) -> Result<Self, ConfigError> {
        let compute = compute(&args.compute)?;
        let mut sync = sync::on_device(sync::sync(&args.sync, world_size)?, &args.sync, compute.device)?;
        sync::fits_loss_scale(&sync, LossScaling::of(compute.dtype))?;
        let simulation = simulation(args)?;
        // What several ranks would take is told only where gradients pass through main memory, as theirs do.
        if args.profile_output.is_some() || simulation.is_some() {
            if args.sync.update == Some(UpdateKind::Device) {
                let because =
                    "with --profile-output or --simulate-network, which tell of ranks that meet in main memory";
                return Err(no_effect("--update device", because, "leave it out"));
            }
            sync.update = UpdateKind::Host;
        }
        Ok(Self {
            model: model(&args.model)?,
            batch_size_per_rank: at_least("--batch-size-per-rank", args.batch_size_per_rank.unwrap_or(128), 1)?,
            steps: at_least("--steps", args.steps.unwrap_or(20), 1)?,
            warmup_steps: args.warmup_steps.unwrap_or(3),
            image_size: at_least("--image-size", args.image_size.unwrap_or(32), 8)?,
            num_classes: at_least("--num-classes", args.num_classes.unwrap_or(10), 2)?,
            batch_norm: args.batch_norm.unwrap_or(BatchNormKind::Local),
            sync,
            simulation,
            profile_output: args.profile_output.clone().map(|path| file_name("--profile-output", path)).transpose()?,
            seed: args.seed.unwrap_or(0),
            compute,
            json: args.json,
            export_job: args.export_job.clone().map(|path| directory_name("--export-job", path)).transpose()?,
        })
    }

    /// What must be equal on all ranks, as (option, value): what root alone writes need not.
    pub fn shared_settings(&self) -> Vec<(String, String)> {
        let (batch_size_per_rank, batch_norm) = (Some(self.batch_size_per_rank), Some(self.batch_norm));
        let data = DataArgs {
            image_size: Some(self.image_size),
            synthetic_classes: Some(self.num_classes),
            ..DataArgs::default()
        };
        let mut settings = shared_settings(&TrainArgs {
            model: ModelChoice::Resnet(self.model).to_args(),
            data,
            batch: BatchArgs { batch_size_per_rank, batch_norm, ..BatchArgs::default() },
            sync: SyncArgs { trace: None, ..self.sync.to_args() },
            run: RunArgs { seed: Some(self.seed), ..RunArgs::default() },
            compute: self.compute.to_args(),
            ..TrainArgs::default()
        });
        let further = [
            ("--steps", self.steps.to_string()),
            ("--warmup-steps", self.warmup_steps.to_string()),
            ("--export-job", self.export_job.is_some().to_string()),
            ("--trace", self.sync.trace.is_some().to_string()),
        ];
        settings.extend(further.map(|(option, value)| (option.to_owned(), value)));
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
    let refuse = |NetworkError { expected, got, .. }: NetworkError| ConfigError::Invalid {
        option,
        expected: expected.to_owned(),
        got: if got == text { format!("\"{got}\"") } else { format!("\"{got}\" in \"{text}\"") },
    };
    text.parse().map_err(refuse)
}

/// Refuses numbers of ranks that take too long.
pub(super) fn simulated_ranks(option: &'static str, ranks: &[usize]) -> Result<(), ConfigError> {
    match ranks.iter().find(|ranks| !(1..=MOST_SIMULATED).contains(*ranks)) {
        None => Ok(()),
        Some(ranks) => {
            let expected = format!("1 to {MOST_SIMULATED} ranks");
            Err(ConfigError::Invalid { option, expected, got: ranks.to_string() })
        }
    }
}

/// A directory that is there or can be made: no file of that name.
fn directory_name(option: &'static str, path: PathBuf) -> Result<PathBuf, ConfigError> {
    if path.exists() && !path.is_dir() {
        let (expected, got) = ("the name of a directory".to_owned(), format!("the file {}", path.display()));
        return Err(ConfigError::Invalid { option, expected, got });
    }
    Ok(path)
}

/// The path of a file to be written.
pub(super) fn file_name(option: &'static str, path: PathBuf) -> Result<PathBuf, ConfigError> {
    if path.file_name().is_none() || path.is_dir() {
        let (expected, got) = ("the name of a file".to_owned(), path.display().to_string());
        return Err(ConfigError::Invalid { option, expected, got });
    }
    Ok(path)
}
