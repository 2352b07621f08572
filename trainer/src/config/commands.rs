//! The configurations of `eval`, `predict` and `bench`.
//!
//! In: their flags, and for `eval` the configuration a checkpoint was trained with. Out: plain values.
//! Invariant: as in [`super`], an option without effect is refused.

use super::error::ConfigError;
use super::parts::{ComputeConfig, DataConfig, ModelConfig};
use super::resolve::{at_least, compute, model, no_effect};
use super::sync::{self, SyncConfig};
use super::{TrainConfig, data, file, netbench};
use crate::choices::{BatchNormKind, UpdateKind};
use crate::cli::{BenchArgs, DataArgs, EvalArgs, ModelArgs, PredictArgs, TrainArgs, TrainSplitArgs};
use crate::loss_scale::LossScaling;
use distributed::simulate::{NetworkError, NetworkModel};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

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
        let (weights, model, data) = match (&args.weights, &args.checkpoint) {
            (Some(_), Some(_)) => {
                return Err(ConfigError::Conflict {
                    option: "--weights",
                    other: "--checkpoint".to_owned(),
                    remedy: "give one of them".to_owned(),
                });
            }
            (None, None) => {
                return Err(ConfigError::Missing {
                    option: "--checkpoint",
                    because: "there is nothing to measure".to_owned(),
                    remedy: "give a checkpoint directory, or --weights FILE with --model and --dataset".to_owned(),
                });
            }
            (Some(path), None) => {
                let source = WeightSource::File(path.clone());
                (source, named_model(args)?, named_data(args)?)
            }
            (None, Some(path)) => {
                let trained = trained.expect("the caller reads the checkpoint's configuration first");
                if args.model != ModelArgs::default() {
                    return Err(ConfigError::NoEffect {
                        option: "--model, --depth or --shortcut",
                        because: "with --checkpoint, which tells the network".to_owned(),
                        remedy: "leave it out".to_owned(),
                    });
                }
                (WeightSource::Checkpoint(path.clone()), trained.model, data_like(trained, args)?)
            }
        };
        Ok(Self { model, weights, data, batch_size_per_rank, compute, json: args.json })
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
    data::data(&merged.data, &merged.train_split)
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
