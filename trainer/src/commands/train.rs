//! `trainer train`: prepares and runs the training loop.
//!
//! In: flags. Out: an output directory with metrics, summary, manifest, configuration and
//! checkpoints.
//! Invariant: errors in flags or data are reported before any file is written.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, bail, ensure};
use burn::tensor::Device;
use burn_resnet::Head;
use datasets::{Samples, Splits};
use distributed::communicator::Launcher;
use distributed::replica::ParameterLayout;
use distributed::{Communicator, ROOT, watchdog};
use records::{DatasetFacts, Manifest, Summary, counted, quoted};

use crate::config::cli::{ComputeArgs, TrainArgs};
use crate::config::{BatchNormKind, ConfigError, Family, OptimizerChoice, TrainConfig, timeout};
use crate::measure::gather;
use crate::measure::manifest;
use crate::measure::trace;
use crate::model::data;
use crate::model::family::ModelRequest;
use crate::model::network::load_weights_with_report;
use crate::model::parts;
use crate::run::best::BestRule;
use crate::run::checkpoint::{CheckpointStore, Progress};
use crate::run::directory::{CHECKPOINTS, FILES, LOG, RUN_TOML, RunDirectory, expect_run, holder};
use crate::run::head::head;
use crate::run::identity;
use crate::run::resumption::Resumption;
use crate::run::session::Session;
use crate::run::tensorboard;
use crate::run::train::{Outcome, fit};
use crate::step;
use crate::step::CustomOptimizer;
use crate::task::{ModelInput, Opening, Purpose, Setup, Task, build};
use crate::world::ranks::{Role, World};

/// Trains the configured model.
///
/// Seeds burn's random numbers with `--seed`, makes the model, loads `--weights`, and sends root's
/// parameters to all ranks.
/// Collective: all ranks.
///
/// # Errors
/// If the flags contradict each other or have no effect on this model, or training fails.
// tidy: long function because the checks before a start have a fixed order
pub fn train<T: Task>(args: &TrainArgs, world: &World) -> Result<Outcome<T::Model>> {
    let communicator = &*world.communicator;
    let reporter = &world.reporter;
    // Watch the read of a saved configuration, too, although its timeout may differ.
    let watchdog = world.watch(timeout(args.sync.timeout)?)?;
    let config = resolve(
        args,
        &Family::of::<T>(),
        communicator,
        communicator.world_size(),
    )?;
    watchdog
        .iter()
        .for_each(|watchdog| watchdog.set_timeout(config.sync.timeout()));
    let line_every = Duration::from_secs(config.run.log_every_seconds);
    reporter.set_lines(line_every, config.run.verbose);
    let (device, num_threads) = world.prepare_compute(&config.compute)?;
    // Compare the settings before the first step that makes ranks wait for each other.
    identity::compare(config.shared_settings(), communicator)?;
    world.rank_status.enter(watchdog::Phase::Opening);
    let model_args: T::Args = config.model.read()?;
    let purpose = Purpose::Train(&config);
    let opening = Opening {
        purpose,
        communicator,
        reporter,
    };
    let data = T::open(&model_args, &opening)?;
    let evaluated = data.evaluated().with_context(|| {
        let name = T::NAME;
        format!("{name}: expected a split to evaluate on, val or test, got none; return one from Task::open")
    })?;
    if !T::HAS_IMAGES {
        data::notes(&data)
            .iter()
            .for_each(|note| reporter.note(note));
    }
    identity::check(&config, &data, communicator, reporter)?;
    let input = T::input(&data.train, evaluated);
    if let (Some(input), Some(_)) = (&input, &config.run.output_dir) {
        input
            .check()
            .context("--output-dir: expected data that a checkpoint can describe")?;
    }
    step::check_threads(&config.sync.method, communicator)?;
    world.rank_status.enter(watchdog::Phase::Starting);
    ensure!(
        !(config.train_split.drop_last && data.train.len() < config.batch.global_batch_size),
        "drop-last: expected at least one global batch of {} samples, got a train split of {}; use a smaller --global-batch-size",
        config.batch.global_batch_size,
        data.train.len()
    );
    let training_device = device.clone().autodiff();
    let setup = Setup {
        purpose,
        samples: &*data.train,
        input: None,
        device: &device,
    };
    let task = Arc::new(T::new(&model_args, &setup)?);
    let request = ModelRequest {
        seed: config.run.seed,
        zero_gamma: config.run.zero_gamma.unwrap_or(false),
        ..task.request(&config.compute, &training_device)
    };
    let goes_on = config.resume && gather::found_by_root(communicator, || has_checkpoint(&config))?;
    let model = initial_model(&*task, (&config, &model_args), &request, goes_on, world)?;
    let own_files: Vec<PathBuf> = match &config.run.output_dir {
        Some(directory) => FILES.iter().map(|name| directory.join(name)).collect(),
        None => Vec::new(),
    };
    trace::check(config.sync.trace.as_deref(), &own_files, communicator)?;
    let custom_optimizer = custom_optimizer::<T>(&config, &model_args)?;
    let split = if data.val.is_some() { "val" } else { "test" };
    let monitor = config.run.monitor.as_ref();
    let patience = config.run.patience;
    let figures = task.ranked_figures();
    expect_names(&*task)?;
    let (best_rule, other_split) = BestRule::new(monitor, patience, split, task.goal(), &figures)?;

    let (directory, resumption) = accept(
        &config,
        &data,
        input.as_ref(),
        args.allow_changed_data,
        world,
    )?;
    let config = match &resumption {
        Some(resumption) => config.clone().begun_as(&resumption.before),
        None => config.clone(),
    };
    if let Some(directory) = &directory {
        if directory.is_unlocked() {
            reporter.warn(
                "output directory: its file system has no working file locks, so two runs in one directory are not detected",
            );
        }
        reporter.log_to(&directory.file(LOG))?;
    }
    let manifest = manifest(&config, &data, communicator, num_threads, &device)?;
    if let Some(directory) = &directory
        && resumption.is_none()
    {
        directory.begin(&config, &manifest, false)?;
    }
    reporter.notes(&head(
        &manifest,
        &config,
        directory.as_ref().map(RunDirectory::path),
        &best_rule,
        ParameterLayout::new(&model).num_elements(),
        &task.facts(),
    ));
    other_split
        .iter()
        .for_each(|warning| reporter.warn(warning));
    let num_samples = data.train.len();
    let batch = config.batch.global_batch_size;
    let has_batch_norm = ParameterLayout::statistics(&model).num_elements() > 0;
    if num_samples < batch {
        reporter.warn(&format!(
            "--global-batch-size {batch} exceeds the {}: an epoch is one step. Choose a smaller batch",
            counted(num_samples, "training sample")
        ));
    } else if let Some(warning) = config.warning_of_last_batch(num_samples)
        && has_batch_norm
    {
        reporter.warn(&warning);
    }

    if config.weighs_classes_twice() {
        reporter.warn(
            "--class-weights with --sampler balanced: rare classes are weighted twice. Remove one of them",
        );
    }

    let start = Instant::now();
    let (workers, server_link) = match Role::of(&config.sync, &world.communicator)? {
        Role::Worker {
            communicator,
            server_link,
        } => (communicator, server_link),
        Role::Server(link) => {
            world.stop.disarm();
            step::serve(
                &config.sync,
                config.optimizer.optimizer,
                &model,
                link,
                &world.rank_status,
            )?;
            world.end_watch(watchdog)?;
            return Ok(Outcome {
                model,
                progress: Progress::default(),
                parameter_hash: String::new(),
                world: Vec::new(),
                staleness: None,
                test: None,
                is_exhausted: false,
                stopped_early: false,
            });
        }
    };
    let session = Session {
        config: &config,
        custom_optimizer,
        task,
        best_rule,
        ema_decay: config.optimizer.ema_decay,
        data: &data,
        communicator: workers,
        server_link,
        rank_status: Arc::clone(&world.rank_status),
        device: &device,
        stop: &world.stop,
        resumption,
        manifest: &manifest,
        reporter,
        directory: directory.as_ref(),
    };
    let in_words = |error: Error| {
        let moved = directory
            .as_ref()
            .and_then(|directory| directory.expect_in_place().err());
        match moved {
            Some(moved) if !error.is::<ConfigError>() => error.context(moved),
            _ => error,
        }
    };
    let outcome = fit(model, &session)
        .map_err(in_words)
        .inspect_err(|error| reporter.log(&format!("error: {error:#}")))?;
    world.end_watch(watchdog)?;
    let summary = summary(&outcome, &manifest, start.elapsed());
    if let Some(directory) = &directory {
        directory.finish(&summary)?;
    }
    let directory = directory.as_ref().map(RunDirectory::path);
    let next = directory.map_or_else(Vec::new, |directory| {
        next_commands(directory, &manifest, outcome.stopped_early)
    });
    reporter.finish(&summary, directory, &next);
    Ok(outcome)
}

/// Returns commands for a run that has ended: one that resumes it if it `is_stopped`, otherwise a
/// report and an evaluation.
fn next_commands(directory: &Path, manifest: &Manifest, is_stopped: bool) -> Vec<String> {
    if is_stopped {
        return vec![manifest.resume_command(directory)];
    }
    let program = manifest.program();
    let directory = quoted(directory);
    vec![
        format!("{program} report {directory}"),
        format!("{program} eval --checkpoint {directory}"),
    ]
}

/// Prepares the output directory, and its newest checkpoint if the run resumes. Either all ranks
/// accept the run, or all reject it.
///
/// # Collective
/// Root sends its verdict to all ranks.
fn accept(
    config: &TrainConfig,
    data: &Splits<impl Samples>,
    input: Option<&ModelInput>,
    allow_changed_data: bool,
    world: &World,
) -> Result<(Option<RunDirectory>, Option<Resumption>)> {
    let communicator = &*world.communicator;
    // Check a new run before its directory exists. A run to resume is looked up first.
    let is_unused = if world.is_root() && !config.resume {
        tensorboard::expect_own_events(config, None)
    } else {
        Ok(())
    };
    let own = is_unused.and_then(|()| {
        if !world.is_root() {
            return Ok((None, None));
        }
        let directory = RunDirectory::lock(config, &holder(communicator))?;
        let resumption = if config.resume {
            Resumption::find(&directory, config, (data, input), allow_changed_data)?
        } else {
            None
        };
        tensorboard::expect_own_events(config, Some(&directory.file(RUN_TOML)))?;
        Ok((Some(directory), resumption))
    });
    gather::accepted_by_root(communicator, own)
}

/// Returns true if the run to resume has a checkpoint, complete or not.
fn has_checkpoint(config: &TrainConfig) -> Result<bool> {
    // `accept` reports an error here.
    let Ok(Some(directory)) = RunDirectory::to_resume(config) else {
        return Ok(false);
    };
    let keep = config.run.keep_checkpoints;
    CheckpointStore::new(&directory.join(CHECKPOINTS), keep).has_any()
}

/// Returns the initial model: random from its seed, or with the weights of `--weights` unless the
/// run resumes.
fn initial_model<T: Task>(
    task: &T,
    (config, args): (&TrainConfig, &T::Args),
    request: &ModelRequest<'_>,
    goes_on: bool,
    world: &World,
) -> Result<T::Model> {
    let model = build(task, args, request)?;
    ensure!(
        config.batch.batch_norm == BatchNormKind::Local || task.supports_pass_context(&model),
        "--batch-norm sync: this model has no synchronised norm, expected one that supports_pass_context; use --batch-norm local"
    );
    let model = match &config.run.weights {
        Some(path) if !goes_on => {
            let head = if config.run.new_head {
                Head::Own
            } else {
                Head::OfFile
            };
            load_weights_with_report(model, path, head, &world.reporter).context("--weights")?
        }
        _ => model,
    };
    let frozen = config.optimizer.freeze.as_deref().unwrap_or_default();
    let whole = ParameterLayout::new(&model);
    parts::expect("--freeze", frozen, &whole)?;
    let model = parts::freeze(model, frozen);
    let trained = ParameterLayout::new(&model);
    ensure!(
        trained.num_elements() > 0,
        "--freeze {}: expected parameters that are left to train, got none; freeze fewer",
        frozen.join(",")
    );
    let factors = config
        .optimizer
        .learning_rate_factors
        .as_deref()
        .unwrap_or_default();
    let rates: Vec<String> = factors.iter().map(|factor| factor.part.clone()).collect();
    parts::expect("--learning-rate-factors", &rates, &trained)?;
    if let Some((_, part)) = rates
        .iter()
        .enumerate()
        .find(|(index, part)| rates[..*index].contains(part))
    {
        bail!("--learning-rate-factors: expected each part once, got {part} twice; keep one");
    }
    Ok(model)
}

/// Checks the names of the metrics.
fn expect_names<T: Task>(task: &T) -> Result<()> {
    let mut known = vec!["loss".to_owned()];
    for metric in task.metrics() {
        let name = metric.name();
        ensure!(
            !name.is_empty() && !known.contains(&name),
            "TaskMetric::name: expected a name for each metric, other than loss, got `{name}` twice or for the loss"
        );
        known.push(name);
    }
    Ok(())
}

/// Returns the optimizer of the model family, with `--optimizer custom`.
fn custom_optimizer<T: Task>(
    config: &TrainConfig,
    args: &T::Args,
) -> Result<Option<CustomOptimizer>> {
    if config.optimizer.optimizer != OptimizerChoice::Custom {
        return Ok(None);
    }
    let own = T::optimizer(args).with_context(|| {
        format!(
            "--optimizer custom: expected a model whose family brings an optimizer, got none for {}; \
             choose one of sgd, adamw, lars, lamb",
            T::name(args)
        )
    })?;
    Ok(Some(CustomOptimizer(own)))
}

/// Returns the configuration of the flags. With `--resume --output-dir DIR`, the flags override the
/// configuration of the run in DIR.
///
/// # Collective
/// Root reads the saved configuration for all ranks.
fn resolve(
    args: &TrainArgs,
    family: &Family,
    communicator: &dyn Communicator,
    world_size: usize,
) -> Result<TrainConfig> {
    // Flags that differ between ranks are compared later. Here all ranks must take the same path.
    let mut of_ranks = [u64::from(args.resume)];
    communicator.all_reduce_max_u64(&mut of_ranks)?;
    if of_ranks != [0] && resumes_only(args) {
        let exists = match (communicator.rank(), &args.run.output_dir) {
            (ROOT, Some(directory)) => expect_run(directory).map_err(Error::from),
            (ROOT, None) => {
                let config = TrainConfig::resolve_for(family, args, world_size)?;
                RunDirectory::expect_default(&config)
            }
            _ => Ok(()),
        };
        gather::accepted_by_root(communicator, exists)?;
    }
    let saved = match of_ranks {
        [0] => None,
        _ => gather::found_by_root(communicator, || {
            match (args.resume, &args.config, args.recipe, &args.run.output_dir) {
                (true, None, None, Some(directory)) => saved_options(directory),
                _ => Ok(None),
            }
        })?,
    };
    Ok(match saved {
        Some(saved) => TrainConfig::resolve_over(&saved, family, args, world_size)?,
        None => TrainConfig::resolve_for(family, args, world_size)?,
    })
}

/// Returns true if no option describes a new run.
fn resumes_only(args: &TrainArgs) -> bool {
    let mut others = args.clone();
    others.run.output_dir = None;
    others.compute = ComputeArgs::default();
    others.resume = false;
    others.allow_changed_data = false;
    others == TrainArgs::default()
}

/// Returns the text of `run.toml`, if the file exists.
fn saved_options(directory: &Path) -> Result<Option<String>> {
    let path = directory.join(RUN_TOML);
    if !path.exists() {
        return Ok(None);
    }
    let text = records::file::read_to_string(&path).with_context(|| path.display().to_string())?;
    ensure!(
        !text.trim().is_empty(),
        "{}: expected the options of the run, got an empty file. Remove it and give the options again",
        path.display()
    );
    Ok(Some(text))
}

/// Returns the manifest of this launch. Collective: gathers the machines of the ranks.
fn manifest(
    config: &TrainConfig,
    data: &Splits<impl Samples>,
    communicator: &dyn Communicator,
    threads_per_rank: usize,
    device: &Device,
) -> Result<Manifest> {
    let launch = manifest::launch_facts(communicator, threads_per_rank, device)?;
    let dataset = DatasetFacts {
        name: config.data.dataset.kind().to_string(),
        num_train: data.train.len(),
        num_val: data.val.as_ref().map_or(0, |val| val.len()),
        num_test: data.test.as_ref().map_or(0, |test| test.len()),
        train_checksum: data.train.checksum(),
        val_checksum: data.val.as_ref().map(|val| val.checksum()),
        test_checksum: data
            .test
            .as_ref()
            .map_or(String::new(), |test| test.checksum()),
        notes: data::notes(data),
    };
    Ok(manifest::of_this_launch(config.hash(), launch, dataset))
}

fn summary<M>(outcome: &Outcome<M>, manifest: &Manifest, total: Duration) -> Summary {
    let progress = &outcome.progress;
    Summary {
        started: manifest.started.clone(),
        test: outcome.test.clone(),
        patience_ended_after: outcome
            .is_exhausted
            .then_some(progress.evaluations_since_best),
        parameter_hash: outcome.parameter_hash.clone(),
        seconds_total: total.as_secs_f64(),
        staleness: outcome.staleness.clone(),
        stopped_early: outcome.stopped_early,
        ..progress.summary(&outcome.world)
    }
}

/// Prints the resolved configuration as TOML for `--config`. The world has as many ranks as the
/// launcher has tasks; its first task prints.
///
/// # Errors
/// If the flags contradict each other, or standard output cannot be written.
pub fn config<T: Task>(args: &TrainArgs, world: &World) -> Result<()> {
    let launcher = Launcher::detect_from_environment()?;
    let num_ranks = launcher
        .as_ref()
        .map_or(1, |launcher| launcher.num_tasks.max(1));
    let config = resolve(args, &Family::of::<T>(), &*world.communicator, num_ranks)?;
    if launcher
        .and_then(|launcher| launcher.rank)
        .is_some_and(|rank| rank != ROOT)
    {
        return Ok(());
    }
    world.reporter.result(config.to_toml().trim_end())
}
