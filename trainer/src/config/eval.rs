//! The configuration of `eval`.
//!
//! In: its flags, and the configuration in a checkpoint. Out: decided values.
//! Invariant: as in [`super`], an option without effect is rejected.

use super::commands::MAX_SAMPLES;
use super::compute::ComputeSection;
use super::data::{DataSection, DatasetChoice, TrainSplitSection};
use super::error::{ConfigError, conflict, invalid, missing, no_effect, within};
use super::family::Family;
use super::sync::timeout;
use super::{TrainConfig, file, options, shared_settings};
use crate::config::choices::Split;
use crate::config::cli::{DataArgs, EvalArgs, ModelSection, TrainSplitArgs};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Largest memory for images drawn at the request of a checkpoint, because the file is not trusted.
const MAX_DRAWN_BYTES: usize = 4 << 30;

/// Source of the parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WeightSource {
    /// A weights file of any framework.
    File(PathBuf),
    /// A checkpoint directory of this program.
    Checkpoint(PathBuf),
}

/// The measurement of `trainer eval`. A checkpoint sets model and data set, unless flags do.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct EvalConfig {
    /// Number of samples of one rank in one forward pass.
    pub batch_size_per_rank: usize,
    /// True if labels are compared by position.
    pub allow_changed_classes: bool,
    /// Split that `--split` names.
    pub split: Option<Split>,
    /// Longest wait for another rank, seconds.
    timeout: u64,
    /// The network.
    pub model: ModelSection,
    /// The images.
    pub data: DataSection,
    /// Device and threads.
    pub compute: ComputeSection,
    /// True if flags replace the normalisation of the training.
    #[serde(skip)]
    pub replaces_normalization: bool,
    /// Options of the training images that determine the evaluated split.
    #[serde(skip)]
    pub train_split: TrainSplitSection,
    /// Seed of the run, with which `--val-fraction` selected images.
    #[serde(skip)]
    pub seed: u64,
    /// Candidates for the split to measure, which is the first one that exists and has labels.
    #[serde(skip)]
    pub candidates: Vec<String>,
    /// The parameters.
    #[serde(skip)]
    pub weights: WeightSource,
}

/// The sections of a run that `eval` needs.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct DataSections {
    data: DataArgs,
    train_split: TrainSplitArgs,
}

impl EvalConfig {
    /// Decides the evaluation. `trained` is the configuration in the checkpoint of `--checkpoint`.
    ///
    /// # Errors
    /// A [`ConfigError`] that names the option and the remedy.
    ///
    /// # Panics
    /// If `--checkpoint` was given without `trained`.
    pub fn resolve(
        args: &EvalArgs,
        family: &Family,
        trained: Option<&TrainConfig>,
    ) -> Result<Self, ConfigError> {
        let batch_size_per_rank = within(
            "--batch-size-per-rank",
            args.batch_size_per_rank.unwrap_or(128),
            1..=MAX_SAMPLES,
        )?;
        options::expect_ranges(args)?;
        let compute = args.compute.decide_for(family)?;
        let timeout = timeout(args.timeout)?.as_secs();
        let weights = Self::weights(args)?;
        if !family.has_images {
            let plain = DataArgs::of_task();
            family.expect_no_image_option(&args.data, &plain)?;
        }
        let (model, (data, train_split), seed) = match &weights {
            WeightSource::File(_) => {
                let model = model_of_flags(args, family)?;
                (model, data_of_flags(args, family)?, 0)
            }
            WeightSource::Checkpoint(_) => {
                let trained =
                    trained.expect("the caller reads the checkpoint's configuration first");
                if let Some(flag) = args.model.first_flag() {
                    let because = "with --checkpoint, which names the network";
                    return Err(no_effect(flag, because, "leave it out"));
                }
                let model = trained.model_of(family)?;
                (model, data_like(trained, args)?, trained.run.seed)
            }
        };
        let val = data.eval_split().unwrap_or("val");
        let candidates = match (&args.data.eval_split, args.split) {
            (Some(name), _) => vec![name.clone()],
            (None, Some(Split::Val)) => vec![val.to_owned()],
            (None, Some(split)) => vec![split.to_string()],
            (None, None) => vec!["test".to_owned(), val.to_owned()],
        };
        Ok(Self {
            batch_size_per_rank,
            allow_changed_classes: args.allow_changed_classes,
            split: args.split,
            timeout,
            model,
            data,
            compute,
            replaces_normalization: args.data.normalize_mean.is_some(),
            train_split,
            seed,
            candidates,
            weights,
        })
    }

    /// Returns the source of the parameters, without reading a checkpoint.
    ///
    /// # Errors
    /// If there is no source, or there are two.
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

    /// Returns the settings that must be equal on all ranks, as (option, value).
    pub fn shared_settings(&self) -> Vec<(String, String)> {
        let mut config = self.clone();
        // Each machine has its own folder, and its name need not be UTF-8.
        if let Some(folder) = config.data.folder_mut() {
            folder.clear();
        }
        let mut settings = shared_settings(&config);
        let (option, path) = match &self.weights {
            WeightSource::File(path) => ("--weights", path),
            WeightSource::Checkpoint(path) => ("--checkpoint", path),
        };
        settings.push((option.to_owned(), path.display().to_string()));
        settings
    }
}

/// Returns the network that the flags name, because a weights file does not name it.
fn model_of_flags(args: &EvalArgs, family: &Family) -> Result<ModelSection, ConfigError> {
    if args.allow_changed_classes {
        let because = "with --weights, a file without class names";
        return Err(no_effect(
            "--allow-changed-classes",
            because,
            "leave it out",
        ));
    }
    let names_one = ["model", "depth"]
        .iter()
        .any(|key| args.model.0.contains_key(*key));
    if family.is_built_in() && !names_one {
        return Err(missing(
            "--model",
            "a weights file does not name its network",
            "give for example --model resnet20",
        ));
    }
    let mut model = args.model.clone();
    family.decide(&mut model)?;
    Ok(model)
}

fn data_of_flags(
    args: &EvalArgs,
    family: &Family,
) -> Result<(DataSection, TrainSplitSection), ConfigError> {
    if !family.has_images {
        return DataArgs::of_task().decide_with(TrainSplitArgs::default());
    }
    if args.data.dataset.is_none() {
        return Err(missing(
            "--dataset",
            "a weights file does not name its training data",
            "give for example --dataset cifar10 --data-dir DIR",
        ));
    }
    args.data.clone().decide_with(TrainSplitArgs::default())
}

/// Returns the data section of a trained run, overridden by flags.
fn data_like(
    trained: &TrainConfig,
    args: &EvalArgs,
) -> Result<(DataSection, TrainSplitSection), ConfigError> {
    let typed = BTreeMap::from([("data", &args.data)]);
    let DataSections { data, train_split } = file::laid_over(&trained.sections, &typed)?;
    let val_fraction = train_split.val_fraction;
    let needs_train = match args.split {
        Some(Split::Train) => true,
        Some(Split::Val) => val_fraction.is_some(),
        // Drawn data sets have a test split.
        Some(Split::Test) | None => false,
    };
    // Draw one training image if none is measured, because no split may be empty.
    let drawn = |number: Option<usize>| if needs_train { number } else { Some(1) };
    let (data, split) = data.decide_with(TrainSplitArgs {
        shapes_train: drawn(train_split.shapes_train),
        synthetic_train: drawn(train_split.synthetic_train),
        limit_train: train_split.limit_train.filter(|_| needs_train),
        val_fraction,
        ..TrainSplitArgs::default()
    })?;
    let (option, num_test, typed) = match data.dataset {
        DatasetChoice::Shapes { shapes_test, .. } => {
            ("--shapes-test", shapes_test, args.data.shapes_test)
        }
        DatasetChoice::Synthetic { synthetic_test, .. } => {
            ("--synthetic-test", synthetic_test, args.data.synthetic_test)
        }
        _ => return Ok((data, split)),
    };
    let bytes_per_image = 3 * data.image_size().pow(2);
    let fits = |number: usize| number.saturating_mul(bytes_per_image) <= MAX_DRAWN_BYTES;
    if typed.is_none() && !fits(num_test) {
        let expected =
            format!("at most {MAX_DRAWN_BYTES} bytes of images, or the number as a flag");
        let got = format!("the checkpoint's {num_test} images");
        return Err(invalid(option, expected, got));
    }
    let num_train = split.num_made();
    if !fits(num_train) {
        let expected = format!("training images of at most {MAX_DRAWN_BYTES} bytes");
        let got = format!("the checkpoint's {num_train} images");
        return Err(invalid("--split", expected, got));
    }
    Ok((data, split))
}
