//! `trainer eval`: loss and accuracy of saved weights on a test split.

use std::collections::BTreeMap;

use anyhow::{Context, Error, Result, ensure};
use datasets::{DatasetError, ImageDataset};
use distributed::Phase;
use serde::Serialize;

use crate::config::cli::EvalArgs;
use crate::config::{EvalConfig, Family, Filled, WeightSource};
use crate::measure::metrics::ScoreSums;
use crate::model::data;
use crate::model::family::{ModelFamily, ModelRequest, own_data};
use crate::model::loss;
use crate::run::checkpoint::ModelInput;
use crate::run::evaluate::{EvaluateConfig, evaluate};
use crate::run::identity;
use crate::run::saved_model::SavedModel;
use crate::world::ranks::World;

/// What to do about classes that the training did not have.
const CHANGED_CLASSES: &str = "give data with the class names of the training, or --allow-changed-classes if labels are positions in its list of classes";

/// What `--json` prints.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EvalResult {
    /// Test images.
    pub num_samples: u64,
    /// Answered right.
    pub top1_correct: u64,
    /// Label among the first five.
    pub top5_correct: u64,
    /// Mean loss, by default cross entropy in nats.
    pub loss: f64,
    /// Data set, with its split.
    pub dataset: String,
    /// SHA-256 of the test split.
    pub dataset_checksum: String,
    /// What a program of its own measures, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub metrics: BTreeMap<String, f64>,
}

impl EvalResult {
    fn of(sums: &ScoreSums, metrics: BTreeMap<String, f64>, test: &dyn ImageDataset) -> Self {
        Self {
            num_samples: sums.num_samples,
            top1_correct: sums.top1_correct,
            top5_correct: sums.top5_correct,
            loss: sums.loss_mean(),
            dataset: test.name().to_owned(),
            dataset_checksum: test.checksum(),
            metrics,
        }
    }
}

/// Evaluates a weights file or a checkpoint, which root reads for all ranks.
/// Collective: all ranks.
///
/// # Errors
/// When flags contradict each other, the ranks do not have the same flags and data, weights or data cannot be read, the checkpoint is of another family, or the data's
/// classes are not those of the checkpoint.
pub fn eval<F: ModelFamily>(args: &EvalArgs, world: &World) -> Result<EvalResult> {
    let (family, communicator) = (Family::of::<F>(), &*world.communicator);
    let weights = EvalConfig::weights(args)?;
    // Of a weights file the flags tell all, so that wrong usage is told before anything is read.
    let of_flags = match &weights {
        WeightSource::File(_) => Some(EvalConfig::resolve(args, &family, None)?),
        WeightSource::Checkpoint(_) => None,
    };
    let watchdog = world.watch(EvalConfig::timeout(args)?)?;
    let source = if of_flags.is_some() { "--weights" } else { "--checkpoint" };
    identity::compare(vec![("source of the weights".to_owned(), source.to_owned())], communicator)?;
    let saved = SavedModel::find(&weights, world)?;
    let config = match of_flags {
        Some(config) => config,
        None => EvalConfig::resolve(args, &family, saved.trained()?.as_ref())?,
    };
    identity::compare(config.shared_settings(), communicator)?;
    let (device, _) = world.prepare_compute(&config.compute)?;
    world.rank_status.enter(Phase::Data);
    let (own, input) = (own_data::<F>(&config.model), saved.state.as_ref().map(|state| &state.input));
    let known = input.map(|input| input.class_names.len());
    // By position where names may differ.
    let classes = input.filter(|_| !config.allow_changed_classes).map(|input| &input.class_names[..]);
    let data = data::open_split(&config.data, &config.train_split, own, None, classes, communicator, &world.reporter)
        .map_err(|error| explained(error, classes.is_some()))?;
    let test = &data.samples;
    data::share_checksums(&[test], config.data.data_dir.as_deref(), communicator)?;
    identity::compare(vec![("test split".to_owned(), test.checksum())], communicator)?;
    if let Some(input) = input {
        check_input(input, &**test, &config, world)?;
    }
    let (num_classes, in_channels) = (known.unwrap_or_else(|| test.class_names().len()), test.image_shape().channels);
    let request = ModelRequest { in_channels, ..ModelRequest::new(num_classes, &config.compute, &device) };
    let model = saved.model::<F>(&config.model, &request, world)?;
    world.rank_status.enter(Phase::Evaluation);
    let how = EvaluateConfig {
        micro_batch_size: config.batch_size_per_rank.filled(),
        loader_threads: config.data.loader_threads.filled(),
        input: config.compute.input.filled(),
        loss: F::loss(&config.model.read()?, loss::cross_entropy(0.0, &config.compute)),
        metrics: F::metrics(&config.model.read()?, request.num_classes),
        reporter: world.reporter.clone(),
    };
    // Whatever the data set's: the network knows its images so.
    let of_training = input.filter(|_| args.data.normalize_mean.is_none()).map(ModelInput::normalization);
    let normalization = of_training.unwrap_or(data.normalization);
    let evaluation = evaluate(&model, test, &normalization, &how, communicator, &device, &world.stop)?;
    let sums = evaluation.scores.context("eval: stopped by a signal before all images were measured")?;
    let result = EvalResult::of(&sums, evaluation.metrics, &**test);
    world.reporter.evaluation(&format!("{} on {}", saved.name(), test.name()), &sums, &result.metrics);
    if config.json {
        world.reporter.json(&result)?;
    }
    world.rank_status.enter(Phase::Ending);
    world.end_watch(watchdog)?;
    Ok(result)
}

/// An error of opening data whose classes must be those of a checkpoint, with a remedy if they are not.
fn explained(error: Error, by_name: bool) -> Error {
    match error.downcast_ref() {
        Some(DatasetError::UnknownClasses { .. } | DatasetError::Unlabelled { .. }) if by_name => {
            error.context(CHANGED_CLASSES)
        }
        _ => error,
    }
}

/// Whether the test split's labels mean what the model's logits do.
fn check_input(input: &ModelInput, test: &dyn ImageDataset, config: &EvalConfig, world: &World) -> Result<()> {
    let channels = test.image_shape().channels;
    ensure!(channels == input.channels, "eval: expected images of {} channels, got {channels}", input.channels);
    let (height, width) = (test.image_shape().height, test.image_shape().width);
    if (height, width) != (input.height, input.width) {
        world.reporter.warn(&format!(
            "eval: images of {height}x{width} pixels, the training's were {}x{}; --image-size or --resolution say which",
            input.height, input.width
        ));
    }
    let Some(other) = input.other_class(test.class_names()) else { return Ok(()) };
    let change = format!("eval: the classes are not those of the training: {other}");
    ensure!(config.allow_changed_classes, "{change}; {CHANGED_CLASSES}");
    ensure!(
        test.class_names().len() <= input.class_names.len(),
        "{change}; the network has no answer for the further classes"
    );
    world.reporter.warn(&format!("{change}; labels are compared by position, as --allow-changed-classes says"));
    Ok(())
}
