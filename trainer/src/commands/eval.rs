//! `trainer eval`: measures loss and accuracy of saved weights on a split, overall and by class.

use anyhow::{Context, Error, Result, anyhow, ensure};
use datasets::{DatasetError, ImageDataset};
use distributed::watchdog::Phase;
use records::EvaluationByClass;

use crate::config::cli::EvalArgs;
use crate::config::{EvalConfig, Family, WeightSource, timeout};
use crate::measure::gather::found_by_root;
use crate::model::data::{self, OpenedSplit};
use crate::model::family::{ModelFamily, ModelRequest, own_data};
use crate::model::loss;
use crate::run::checkpoint::ModelInput;
use crate::run::evaluate::{EvaluateConfig, evaluate};
use crate::run::identity;
use crate::run::saved_model::SavedModel;
use crate::world::ranks::World;

/// Remedy if the classes differ from those of the training.
const CHANGED_CLASSES: &str = "give data with the class names of the training, or --allow-changed-classes if labels are positions in its list of classes";

/// Evaluates a weights file or a checkpoint. Root reads it for all ranks.
/// Collective: all ranks.
///
/// # Errors
/// If flags contradict each other or differ between ranks, or weights or data cannot be read. Also
/// if the classes differ from those of the checkpoint.
pub fn eval<F: ModelFamily>(args: &EvalArgs, world: &World) -> Result<EvaluationByClass> {
    let family = Family::of::<F>();
    let communicator = &*world.communicator;
    let weights = EvalConfig::weights(args)?;
    // A weights file needs only the flags, so usage errors are reported before any file is read.
    let of_flags = match &weights {
        WeightSource::File(_) => Some(EvalConfig::resolve(args, &family, None)?),
        WeightSource::Checkpoint(_) => None,
    };
    let watchdog = world.watch(timeout(args.timeout)?)?;
    let source = if of_flags.is_some() {
        "--weights"
    } else {
        "--checkpoint"
    };
    identity::compare(
        vec![("source of the weights".to_owned(), source.to_owned())],
        communicator,
    )?;
    let saved = SavedModel::find(&weights, world)?;
    let config = match of_flags {
        Some(config) => config,
        None => EvalConfig::resolve(args, &family, saved.trained()?.as_ref())?,
    };
    identity::compare(config.shared_settings(), communicator)?;
    let (device, _) = world.prepare_compute(&config.compute)?;
    world.rank_status.enter(Phase::Data);
    let input = saved.state.as_ref().map(|state| &state.input);
    let known = input.map(|input| input.class_names.len());
    // Without class names, labels are compared by position.
    let classes = input
        .filter(|_| !config.allow_changed_classes)
        .map(|input| &input.class_names[..]);
    let (
        split,
        OpenedSplit {
            samples,
            normalization,
        },
    ) = open::<F>(&config, classes, world).map_err(|error| explained(error, classes.is_some()))?;
    data::share_checksums(&[&samples], config.data.folder(), communicator)?;
    let facts = [("split", split.clone()), ("images", samples.checksum())];
    identity::compare(
        facts.map(|(what, value)| (what.to_owned(), value)).to_vec(),
        communicator,
    )?;
    if let Some(input) = input {
        check_input(input, &*samples, &config, world)?;
    }
    let num_classes = known.unwrap_or_else(|| samples.class_names().len());
    let in_channels = samples.image_shape().channels;
    let request = ModelRequest {
        in_channels,
        ..ModelRequest::new(num_classes, &config.compute, &device)
    };
    let model = saved.model::<F>(&config.model, &request, world)?;
    world.rank_status.enter(Phase::Evaluation);
    let how = EvaluateConfig {
        micro_batch_size: config.batch_size_per_rank,
        loader_threads: config.data.loader_threads,
        input: config.compute.input,
        loss: F::loss(&config.model.read()?, loss::cross_entropy(&config.compute)),
        metrics: F::metrics(&config.model.read()?, request.num_classes),
        reporter: world.reporter.clone(),
    };
    // The network was trained with this normalisation.
    let of_training = input
        .filter(|_| args.data.normalize_mean.is_none())
        .map(ModelInput::normalization);
    let normalization = of_training.unwrap_or(normalization);
    let evaluation = evaluate(
        &model,
        &samples,
        &normalization,
        &how,
        communicator,
        &device,
        &world.stop,
    )?;
    let names = input.map_or(samples.class_names(), |input| &input.class_names);
    let result = evaluation
        .by_class((&split, None), &*samples, names, communicator)?
        .context("eval: stopped by a signal before all images were measured")?;
    // Only root has the answers of all ranks.
    let result = found_by_root(communicator, || Ok(result))?;
    world
        .reporter
        .evaluation(&format!("{} on {}", saved.name(), samples.name()), &result);
    if args.json {
        world.reporter.json(&result)?;
    }
    world.rank_status.enter(Phase::Ending);
    world.end_watch(watchdog)?;
    Ok(result)
}

/// Adds a remedy to an error about data whose classes must match those of a checkpoint.
fn explained(error: Error, by_name: bool) -> Error {
    match error.downcast_ref() {
        Some(DatasetError::UnknownClasses { .. } | DatasetError::Unlabelled { .. }) if by_name => {
            error.context(CHANGED_CLASSES)
        }
        _ => error,
    }
}

/// Opens the first candidate split that exists and has labels. Returns its name, too.
/// Collective: all ranks.
fn open<F: ModelFamily>(
    config: &EvalConfig,
    classes: Option<&[String]>,
    world: &World,
) -> Result<(String, OpenedSplit)> {
    let mut last: Option<Error> = None;
    for name in &config.candidates {
        let own = own_data::<F>(&config.model);
        let communicator = &*world.communicator;
        let opened = data::open_split(config, own, name, classes, communicator, &world.reporter);
        let error = match opened {
            Ok(Some(opened)) => return Ok((name.clone(), opened)),
            Ok(None) => anyhow!(
                "--split: --dataset {} has no such split (expected train or test, got {name})",
                config.data.dataset.kind()
            ),
            Err(error) => match error.downcast_ref() {
                Some(DatasetError::Missing { .. } | DatasetError::Unlabelled { .. }) => error,
                _ => return Err(error),
            },
        };
        // Prefer the error about an unlabelled split: it is more specific than one about an absent
        // split.
        let is_unlabelled =
            |error: &Error| matches!(error.downcast_ref(), Some(DatasetError::Unlabelled { .. }));
        if !last.as_ref().is_some_and(is_unlabelled) {
            last = Some(error);
        }
    }
    Err(last.unwrap_or_else(|| anyhow!("eval: there is no split to measure")))
}

/// Checks that the labels of the split and the logits of the model refer to the same classes.
fn check_input(
    input: &ModelInput,
    test: &dyn ImageDataset,
    config: &EvalConfig,
    world: &World,
) -> Result<()> {
    let channels = test.image_shape().channels;
    ensure!(
        channels == input.channels,
        "eval: expected images of {} channels, got {channels}",
        input.channels
    );
    let height = test.image_shape().height;
    let width = test.image_shape().width;
    if (height, width) != (input.height, input.width) {
        world.reporter.warn(&format!(
            "eval: images of {height}x{width} pixels, the training's were {}x{}; --image-size or --resolution say which",
            input.height, input.width
        ));
    }
    let Some(other) = input.other_class(test.class_names()) else {
        return Ok(());
    };
    let change = format!("eval: the classes are not those of the training: {other}");
    ensure!(config.allow_changed_classes, "{change}; {CHANGED_CLASSES}");
    ensure!(
        test.class_names().len() <= input.class_names.len(),
        "{change}; the network has no answer for the further classes"
    );
    world.reporter.warn(&format!(
        "{change}; labels are compared by position, as --allow-changed-classes says"
    ));
    Ok(())
}
