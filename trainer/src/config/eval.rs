//! The configuration of `eval`.
//!
//! In: its flags, and the configuration a checkpoint was trained with. Out: the flags with their gaps filled.
//! Invariant: as in [`super`], an option without effect is refused.

use super::checks::{Filled, at_least, conflict, invalid, missing, no_effect, within};
use super::commands::MOST_SAMPLES;
use super::error::ConfigError;
use super::family::Family;
use super::{TrainConfig, file, shared_settings};
use crate::config::choices::{DatasetKind, SplitKind};
use crate::config::cli::{DataArgs, EvalArgs, TrainSplitArgs};
use serde::{Deserialize, Serialize};
use std::ops::Deref;
use std::path::PathBuf;
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

/// A split to measure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MeasuredSplit {
    /// The split of this name.
    Named(String),
    /// A part of the training images, which `--val-fraction` divided.
    PartOfTrain(SplitKind),
}

impl MeasuredSplit {
    /// Its name.
    pub fn name(&self) -> String {
        match self {
            Self::Named(name) => name.clone(),
            Self::PartOfTrain(kind) => kind.to_string(),
        }
    }
}

/// What `trainer eval` measures: its flags, filled, of which the model and the data set are those of the checkpoint unless typed.
#[derive(Debug, Clone, PartialEq)]
pub struct EvalConfig {
    flags: EvalArgs,
    /// What is made to be trained on: as little as can be, unless it is measured.
    pub train_split: TrainSplitArgs,
    /// Seed of the run, by which `--val-fraction` chose.
    pub seed: u64,
    /// What is measured: the first of these that is there and has labels.
    pub candidates: Vec<MeasuredSplit>,
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
    pub fn resolve(
        args: &EvalArgs,
        family: &Family,
        trained: Option<&TrainConfig>,
    ) -> Result<Self, ConfigError> {
        let mut flags = args.clone();
        within(
            "--batch-size-per-rank",
            *flags.batch_size_per_rank.get_or_insert(128),
            1..=MOST_SAMPLES,
        )?;
        flags.compute = flags.compute.decided(family)?;
        flags.timeout = Some(Self::timeout(args)?.as_secs());
        let weights = Self::weights(args)?;
        let (train_split, seed) = match &weights {
            WeightSource::File(_) => (fill_for_file(&mut flags, family)?, 0),
            WeightSource::Checkpoint(_) => {
                let trained =
                    trained.expect("the caller reads the checkpoint's configuration first");
                (
                    fill_like(trained, &mut flags, family)?,
                    trained.run.seed.filled(),
                )
            }
        };
        let named = |name: &str| MeasuredSplit::Named(name.to_owned());
        let part = |kind| {
            train_split
                .val_fraction
                .map(|_| MeasuredSplit::PartOfTrain(kind))
        };
        let train = || part(SplitKind::Train).unwrap_or_else(|| named("train"));
        let val = || {
            part(SplitKind::Val)
                .unwrap_or_else(|| named(flags.data.eval_split.as_deref().unwrap_or("val")))
        };
        let candidates = match (&args.data.eval_split, args.split) {
            (Some(name), _) => vec![named(name)],
            (None, Some(SplitKind::Train)) => vec![train()],
            (None, Some(SplitKind::Val)) => vec![val()],
            (None, Some(SplitKind::Test)) => vec![named("test")],
            (None, None) => vec![named("test"), val()],
        };
        Ok(Self {
            flags,
            train_split,
            seed,
            candidates,
            weights,
        })
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
        Ok(Duration::from_secs(at_least(
            "--timeout",
            args.timeout.unwrap_or(120),
            1,
        )?))
    }

    /// What must be equal on all ranks, as (option, value).
    pub fn shared_settings(&self) -> Vec<(String, String)> {
        // A machine's own, and it need not be text.
        let data = DataArgs {
            data_dir: None,
            ..self.data.clone()
        };
        let mut settings = shared_settings(&EvalArgs {
            data,
            ..self.flags.clone()
        });
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
        return Err(no_effect(
            "--allow-changed-classes",
            because,
            "leave it out",
        ));
    }
    if family.is_resnet()
        && !flags
            .model
            .0
            .keys()
            .any(|key| key == "model" || key == "depth")
    {
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
fn fill_like(
    trained: &TrainConfig,
    flags: &mut EvalArgs,
    family: &Family,
) -> Result<TrainSplitArgs, ConfigError> {
    if let Some(flag) = flags.model.first_flag() {
        return Err(no_effect(
            flag,
            "with --checkpoint, which tells the network",
            "leave it out",
        ));
    }
    flags.model = trained.model_of(family)?;
    let below = DataSections {
        data: trained.data.clone(),
        train_split: trained.train_split.clone(),
    };
    let typed = DataSections {
        data: flags.data.clone(),
        train_split: TrainSplitArgs::default(),
    };
    let merged: DataSections = file::laid_over(&below, &typed)?;
    let val_fraction = merged.train_split.val_fraction;
    let (data, mut split) = merged.data.decided(merged.train_split)?;
    let needs_train = match flags.split {
        Some(SplitKind::Train) => true,
        Some(SplitKind::Val) => val_fraction.is_some(),
        // What is drawn has a test split.
        Some(SplitKind::Test) | None => false,
    };
    // What is drawn to be trained on is not drawn here unless it is measured; there is one image of it, as no split is empty.
    let drawn = |number: Option<usize>| number.map(|number| if needs_train { number } else { 1 });
    split = TrainSplitArgs {
        shapes_train: drawn(split.shapes_train),
        synthetic_train: drawn(split.synthetic_train),
        limit_train: split.limit_train.filter(|_| needs_train),
        val_fraction,
        ..TrainSplitArgs::default()
    };
    expect_few_drawn(&data, &split, &typed.data)?;
    flags.data = data;
    Ok(split)
}

/// Refuses to draw more images than fit into memory because a checkpoint says so.
fn expect_few_drawn(
    data: &DataArgs,
    split: &TrainSplitArgs,
    typed: &DataArgs,
) -> Result<(), ConfigError> {
    let (option, num_train, num_test, typed) = match data.dataset.filled() {
        DatasetKind::Shapes => (
            "--shapes-test",
            split.shapes_train,
            data.shapes_test,
            typed.shapes_test,
        ),
        DatasetKind::Synthetic => (
            "--synthetic-test",
            split.synthetic_train,
            data.synthetic_test,
            typed.synthetic_test,
        ),
        DatasetKind::Cifar10 | DatasetKind::Cifar100 | DatasetKind::ImageFolder => return Ok(()),
        DatasetKind::Shards | DatasetKind::Parquet | DatasetKind::Own => return Ok(()),
    };
    let (num_train, num_test, side) = (
        num_train.filled(),
        num_test.filled(),
        data.image_size() as u64,
    );
    let fits = |number: usize| (number as u64).saturating_mul(3 * side * side) <= MOST_DRAWN_BYTES;
    let expected =
        || format!("at most {MOST_DRAWN_BYTES} bytes of images, or the number as a flag");
    if typed.is_none() && !fits(num_test) {
        return Err(invalid(
            option,
            expected(),
            format!("the checkpoint's {num_test} images"),
        ));
    }
    if !fits(num_train) {
        let expected = format!("training images of at most {MOST_DRAWN_BYTES} bytes");
        return Err(invalid(
            "--split",
            expected,
            format!("the checkpoint's {num_train} images"),
        ));
    }
    Ok(())
}
