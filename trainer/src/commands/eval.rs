//! `trainer eval`: measures loss and accuracy of saved weights on a split, overall and by class.

use std::sync::Arc;

use anyhow::{Context, Error, Result, anyhow, ensure};
use datasets::{DatasetError, Samples};
use distributed::watchdog::Phase;
use records::{EvaluationByClass, grouped};

use crate::config::cli::EvalArgs;
use crate::config::{EvalConfig, Family, WeightSource, timeout};
use crate::measure::gather::found_by_root;
use crate::measure::report::lines;
use crate::model::data;
use crate::run::evaluate::{EvaluateConfig, evaluate};
use crate::run::identity;
use crate::run::trained_model::TrainedModel;
use crate::task::{ModelInput, Opening, Purpose, Setup, Task};
use crate::world::ranks::World;

/// Remedy if the classes differ from those of the training.
const CHANGED_CLASSES: &str = "give data with the class names of the training, or --allow-changed-classes if labels are positions in its list of classes";

/// Evaluates a weights file or a checkpoint. Root reads it for all ranks.
/// Collective: all ranks.
///
/// # Errors
/// If flags contradict each other or differ between ranks, or weights or data cannot be read. Also
/// if the classes differ from those of the checkpoint.
pub fn eval<T: Task>(args: &EvalArgs, world: &World) -> Result<EvaluationByClass> {
    let family = Family::of::<T>();
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
    let saved = TrainedModel::find(&weights, world)?;
    let config = match of_flags {
        Some(config) => config,
        None => EvalConfig::resolve(args, &family, saved.trained()?.as_ref())?,
    };
    identity::compare(config.shared_settings(), communicator)?;
    let (device, _) = world.prepare_compute(&config.compute)?;
    world.rank_status.enter(Phase::Data);
    let input = saved.state.as_ref().and_then(|state| state.input.as_ref());
    let by_name = input.is_some() && !config.allow_changed_classes;
    let model_args: T::Args = config.model.read()?;
    let (split, samples) =
        open::<T>(&config, &model_args, input, world).map_err(|error| explained(error, by_name))?;
    data::share_checksums(&[&samples], config.data.folder(), communicator)?;
    let facts = [("split", split.clone()), ("images", samples.checksum())];
    identity::compare(
        facts.map(|(what, value)| (what.to_owned(), value)).to_vec(),
        communicator,
    )?;
    let now = T::input(&samples, &samples);
    if let (Some(input), Some(now)) = (input, &now) {
        check_input(input, now, &config, world)?;
    }
    let known = input.or(now.as_ref());
    let names = known.map_or(&[][..], |input| &input.class_names);
    let setup = Setup {
        purpose: Purpose::Eval(&config),
        samples: &*samples,
        input,
        device: &device,
    };
    let task = Arc::new(T::new(&model_args, &setup)?);
    let request = task.request(&config.compute, &device);
    let model = saved.model(&*task, &model_args, &request, world)?;
    let num_samples = grouped(samples.len() as u64);
    let split_name = samples.name();
    let cells = [format!("{num_samples} of {split_name}")];
    world.reporter.notes(&lines::row("samples", &cells));
    world.rank_status.enter(Phase::Evaluation);
    let how = EvaluateConfig {
        micro_batch_size: config.batch_size_per_rank,
        loader_threads: config.data.loader_threads,
        input: config.compute.input,
        computation: config.compute.computation()?,
        reporter: world.reporter.clone(),
    };
    let evaluation = evaluate(
        &task,
        &model,
        &samples,
        &how,
        communicator,
        &device,
        &world.stop,
    )?;
    let progress = saved.state.as_ref().map(|state| &state.progress);
    let whole = progress.filter(|progress| progress.step_in_epoch == 0);
    let whole = whole.and_then(|progress| progress.epoch.checked_sub(1));
    let result = evaluation
        .by_class((&split, whole), &*samples, names, communicator)?
        .context("eval: stopped by a signal before all images were measured")?;
    let epoch = progress.map_or_else(String::new, |progress| match progress.step_in_epoch {
        0 => format!(" | epoch {}", progress.epoch),
        step => format!(" | epoch {} step {step}", progress.epoch + 1),
    });
    // Only root has the answers of all ranks.
    let result = found_by_root(communicator, || Ok(result))?;
    world
        .reporter
        .evaluation(&format!("{} on {split_name}{epoch}", saved.name()), &result);
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
fn open<T: Task>(
    config: &EvalConfig,
    args: &T::Args,
    input: Option<&ModelInput>,
    world: &World,
) -> Result<(String, Arc<T::Samples>)> {
    let opening = Opening {
        purpose: Purpose::Eval(config),
        communicator: &*world.communicator,
        reporter: &world.reporter,
    };
    let mut last: Option<Error> = None;
    for name in &config.candidates {
        let error = match T::open_split(args, name, input, &opening) {
            Ok(Some(opened)) => return Ok((name.clone(), opened)),
            Ok(None) if T::HAS_IMAGES => anyhow!(
                "--split: --dataset {} has no such split (expected train or test, got {name})",
                config.data.dataset.kind()
            ),
            Ok(None) => anyhow!(
                "--split: the task {} has no such split (expected another of train, val and test, got {name})",
                T::NAME
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
    now: &ModelInput,
    config: &EvalConfig,
    world: &World,
) -> Result<()> {
    let channels = now.channels;
    ensure!(
        channels == input.channels,
        "eval: expected images of {} channels, got {channels}",
        input.channels
    );
    let height = now.height;
    let width = now.width;
    if (height, width) != (input.height, input.width) {
        world.reporter.warn(&format!(
            "eval: images of {height}x{width} pixels, the training's were {}x{}; --image-size or --resolution say which",
            input.height, input.width
        ));
    }
    let Some(other) = input.other_class(&now.class_names) else {
        return Ok(());
    };
    let change = format!("eval: the classes are not those of the training: {other}");
    ensure!(config.allow_changed_classes, "{change}; {CHANGED_CLASSES}");
    ensure!(
        now.class_names.len() <= input.class_names.len(),
        "{change}; the network has no answer for the further classes"
    );
    world.reporter.warn(&format!(
        "{change}; labels are compared by position, as --allow-changed-classes says"
    ));
    Ok(())
}
