//! The story of a run: start or resume, epochs of steps, evaluation, checkpoints.
//!
//! In: a model, a resolved configuration, data, the ranks. Out: a trained model, checkpoints, one record an epoch.
//! Invariant: every rank walks the same path through this file; what only root does contains no collective.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use datasets::{Loader, LoaderConfig, ShardConfig, ShardPlan};
use distributed::{check_fingerprint, watchdog};

use crate::checkpoint::Progress;
use crate::clock::{Phase, PhaseClock};
use crate::config::{BatchNormKind, Filled, InputKind, OnNonFiniteKind, TrainConfig};
use crate::data;
use crate::evaluate::{EvaluateConfig, Evaluation, evaluate};
use crate::gather::{self, RankTimes, SessionTimes, total_scores};
use crate::input::Input;
use crate::keeper::Keeper;
use crate::loss_scale::{LossScale, LossScaling};
use crate::metrics::{EpochCost, ScoreSums, StepLine};
use crate::model::ImageClassifier;
use crate::optimizer::SgdConfig;
use crate::schedule::LearningRate;
use crate::session::Session;
use crate::step::{StepConfig, StepPosition, Stepper};
use crate::stop::StopVote;
use crate::synchronizer::own_shards;
use crate::trace::TraceClock;

/// How a run ended, equal on all ranks but for the model's local norm statistics and for what was measured: of that root alone
/// knows all ranks' part.
#[derive(Clone, Debug)]
pub struct Outcome<M> {
    /// The model as trained.
    pub model: M,
    /// Where the run stands.
    pub progress: Progress,
    /// Hash of all parameters' bits, in module order.
    pub parameter_hash: String,
    /// What every rank that trains measured in this session, warm-up steps excluded: on root of all, on another rank its own
    /// alone; empty on a rank that only serves.
    pub world: Vec<RankTimes>,
    /// How many updates asynchronous servers made with gradients of parameters that so many updates had made stale.
    pub staleness: Option<Vec<u64>>,
    /// Whether it was stopped before its last epoch.
    pub stopped_early: bool,
}

impl<M> Outcome<M> {
    /// Of a rank that only served parameters.
    pub(crate) fn of_server(model: M) -> Self {
        let (progress, parameter_hash, world) = (Progress::default(), String::new(), Vec::new());
        Self { model, progress, parameter_hash, world, staleness: None, stopped_early: false }
    }
}

/// Trains `model` as `session` says, from the newest checkpoint if asked to.
///
/// # Errors
/// When data cannot be read, output cannot be written, a loss or gradient is not finite, or the ranks drift apart.
///
/// # Collective
/// Must be called by all ranks, with equal configuration and data.
pub fn fit<M: ImageClassifier>(model: M, session: &Session<'_>) -> Result<Outcome<M>> {
    let config = session.config;
    let communicator = &*session.communicator;
    let mut stepper = Stepper::new(model, step_config(session), Arc::clone(&session.communicator), session.device)?;
    let keeper = Keeper::new(session);
    let mut progress = if config.resume { keeper.resume(&mut stepper)? } else { Progress::default() };
    // Whatever could refuse this start has been asked: a refused one leaves the run's files as they were.
    if session.resumption.is_some() {
        session.records.begin(config, session.manifest)?;
    }
    session.reporter.note(&format!("gradients {}", stepper.gradient_route()));
    session.records.open_metrics(progress.epoch)?;
    let schedule = LearningRate::new(config, data::steps_per_epoch(config, session.data)?);
    let trace = TraceClock::start(config.sync.trace.as_deref(), communicator)?;
    let clock = if trace.is_some() { PhaseClock::keeping_spans() } else { PhaseClock::new() };
    let mut times = SessionTimes::starting_at(progress.step + config.run.warmup_steps.filled(), clock);
    // A signal that came during the start: there is nothing new to keep.
    let mut stopped = session.stop.is_raised_anywhere(communicator)?;

    while !stopped && progress.epoch < config.schedule.epochs.filled() {
        let epoch_start = Instant::now();
        stopped = train_epoch(&mut stepper, session, &keeper, &schedule, &mut progress, &mut times)?;
        if stopped {
            keeper.save(&stepper, &progress)?;
            break;
        }
        check_fingerprint(stepper.model(), communicator, progress.epoch)?;
        let evaluation = evaluate_if_due(&stepper, session, &progress, &mut times)?;
        if evaluation.is_some_and(|evaluation| evaluation.scores.is_none()) {
            // The epoch is trained; a resumed run begins with its evaluation.
            keeper.save(&stepper, &progress)?;
            stopped = true;
            break;
        }
        let test = evaluation.and_then(|evaluation| evaluation.scores);
        // The sums are global, so all ranks stop here together, before such a model is saved.
        ensure!(
            test.is_none_or(|test| test.loss_sum.is_finite()),
            "epoch {}: the test loss is not finite, expected a number; lower the learning rate or clip the gradient",
            progress.epoch
        );
        let is_best = progress.note_evaluation(test);
        let world = times.take_epoch().gather(communicator)?;
        let cost = EpochCost {
            epoch: progress.epoch,
            step: progress.step,
            learning_rate: schedule.at(progress.schedule_step().saturating_sub(1)),
            images_per_second: gather::images_per_second(&world),
            total: epoch_start.elapsed(),
            seconds: world[0].seconds,
            peak_memory_bytes: gather::peak_memory_bytes(&world),
            traffic: stepper.take_traffic(),
            num_ranks: communicator.world_size(),
            skipped_steps: progress.skipped_steps,
            loss_scale: (config.optimizer.loss_scale.filled() != LossScaling::None)
                .then(|| stepper.loss_scale().factor()),
            overflowed_steps: stepper.loss_scale().num_overflows(),
        };
        let record = cost.record(progress.epoch_scores, test);
        session.reporter.epoch(&record);
        session.records.epoch(&record)?;
        progress.last_record = Some(record);
        progress.begin_next_epoch();
        let last = progress.epoch == config.schedule.epochs.filled();
        stopped = !last && evaluation.is_some_and(|evaluation| evaluation.stop);
        if is_best || last || stopped || progress.epoch % config.run.checkpoint_every_epochs.filled() == 0 {
            session.whereabouts.enter(watchdog::Phase::Checkpoint);
            times.clock.time(Phase::Checkpoint, || keeper.save(&stepper, &progress))?;
        }
    }
    session.whereabouts.enter(watchdog::Phase::Ending);
    let parameter_hash = check_fingerprint(stepper.model(), communicator, progress.epoch)?.to_string();
    if let Some(trace) = trace {
        trace.write(&times.clock.take_spans(), communicator)?;
        session.reporter.note(&format!("trace of all ranks written to {}", trace.path().display()));
    }
    let world = times.take_session().gather(communicator)?;
    let (model, staleness) = stepper.finish()?;
    Ok(Outcome { model, progress, parameter_hash, world, staleness, stopped_early: stopped })
}

/// The rest of the epoch at `progress`; whether the ranks agreed to stop in it.
fn train_epoch<M: ImageClassifier>(
    stepper: &mut Stepper<M>,
    session: &Session<'_>,
    keeper: &Keeper<'_>,
    schedule: &LearningRate,
    progress: &mut Progress,
    times: &mut SessionTimes,
) -> Result<bool> {
    let config = session.config;
    let communicator = &*session.communicator;
    let plan = shard_plan(session, progress.epoch)?;
    let steps_per_epoch = plan.num_steps() as u64;
    let loader = Loader::start(Arc::clone(&session.data.train), plan, loader_config(session, progress));
    let mut input = Input::start(loader, config.compute.input.filled(), stepper.device());
    // What an earlier session of this epoch scored is a sum over all ranks already; this session's is one rank's own.
    let earlier = progress.epoch_scores;
    let mut own = ScoreSums::default();
    // Of the last step whose results are known.
    let mut told = ScoreSums::default();
    let mut stopped = false;
    let mut vote = stepper.staleness().map(|staleness| StopVote::new(communicator, staleness, progress.step));

    while !stopped && progress.step_in_epoch < steps_per_epoch {
        session.whereabouts.enter(watchdog::Phase::Data);
        let start = Instant::now();
        let loaded = input.next().context("loader: ended before the epoch")??;
        times.clock.add_since(Phase::Data, start);
        let saves = config.run.checkpoint_every_steps.is_some_and(|every| (progress.step + 1).is_multiple_of(every));
        let ends_epoch = progress.step_in_epoch + 1 == steps_per_epoch;
        let wants_stop = session.stop.is_raised();
        let meets_anyway = saves || ends_epoch;
        let must_meet = match &mut vote {
            Some(vote) => vote.meets_after(progress.step, wants_stop, meets_anyway)?,
            None => meets_anyway,
        };
        let at = StepPosition { epoch: progress.epoch, step: progress.step, must_meet };
        let learning_rate = schedule.at(progress.schedule_step());
        let global_num_samples = loaded.global_num_samples as u64;
        let mut scores = ScoreSums::default();
        let end = stepper.step(at, loaded, learning_rate, wants_stop, &mut scores, &mut times.clock)?;
        stopped = end.stop;
        own += scores;
        // What is printed or saved is whole; between, a device is not waited for.
        let is_told = (progress.step_in_epoch + 1).is_multiple_of(config.run.log_every_steps.filled());
        if is_told || saves || ends_epoch || stopped || told.num_samples == 0 {
            let mut rest = ScoreSums::default();
            stepper.settle(&mut rest, &mut times.clock)?;
            own += rest;
            scores = if rest.num_samples > 0 { rest } else { scores };
        }
        told = if scores.num_samples > 0 { scores } else { told };
        match end.skipped {
            Some(_) if end.overflowed => note_overflow(session, progress.step, stepper.loss_scale()),
            Some(reason) => note_skipped_step(session, progress, &reason)?,
            None => {}
        }
        let duration = start.elapsed();
        session.reporter.step(&StepLine {
            epoch: progress.epoch,
            step_in_epoch: progress.step_in_epoch,
            steps_per_epoch,
            scores: told,
            learning_rate,
            duration,
            seconds: times.clock.take_step(),
            global_num_samples,
        });
        times.add_step(progress.step, global_num_samples, duration);
        progress.step += 1;
        progress.step_in_epoch += 1;

        if saves && !stopped && !ends_epoch {
            progress.epoch_scores = total_scores(communicator, own)?;
            progress.epoch_scores += earlier;
            session.whereabouts.enter(watchdog::Phase::Checkpoint);
            times.clock.time(Phase::Checkpoint, || keeper.save(stepper, progress))?;
        }
    }
    progress.epoch_scores = total_scores(communicator, own)?;
    progress.epoch_scores += earlier;
    Ok(stopped)
}

/// Says that scaled gradients overflowed, at the first, second, fourth, eighth time and so on: it is part of looking for the scale.
fn note_overflow(session: &Session<'_>, step: u64, scale: LossScale) {
    if scale.num_overflows().is_power_of_two() {
        session.reporter.note(&format!(
            "step {step}: gradients overflowed, step left out on all ranks; loss scale halved to {}, {} steps left out so far",
            scale.factor(),
            scale.num_overflows()
        ));
    }
}

/// Counts a step that all ranks left out, and gives up when there are too many.
fn note_skipped_step(session: &Session<'_>, progress: &mut Progress, reason: &str) -> Result<()> {
    let Some(limit) = session.config.run.max_skipped_steps else { return Ok(()) };
    progress.skipped_steps += 1;
    ensure!(
        progress.skipped_steps <= limit,
        "{reason}: skipped steps: expected at most {limit}, this is one more; go back to an older checkpoint with a lower learning rate, or raise --max-skipped-steps"
    );
    session
        .reporter
        .warn(&format!("{reason}: step skipped on all ranks, {} of at most {limit}", progress.skipped_steps));
    Ok(())
}

fn evaluate_if_due<M: ImageClassifier>(
    stepper: &Stepper<M>,
    session: &Session<'_>,
    progress: &Progress,
    times: &mut SessionTimes,
) -> Result<Option<Evaluation>> {
    let (config, data) = (session.config, session.data);
    let num_epochs = progress.epoch + 1;
    if num_epochs != config.schedule.epochs.filled()
        && !num_epochs.is_multiple_of(config.run.eval_every_epochs.filled())
    {
        return Ok(None);
    }
    let how = EvaluateConfig {
        micro_batch_size: config.micro_batch_size(),
        loader_threads: config.data.loader_threads.filled(),
        input: config.compute.input.filled(),
    };
    let communicator = &*session.communicator;
    session.whereabouts.enter(watchdog::Phase::Evaluation);
    times.clock.time(Phase::Evaluation, || {
        let stop = session.stop;
        evaluate(stepper.model(), &data.test, &data.normalization, &how, communicator, session.device, stop).map(Some)
    })
}

fn shard_plan(session: &Session<'_>, epoch: u64) -> Result<ShardPlan> {
    let config = session.config;
    let (rank, world_size) = (session.communicator.rank(), session.communicator.world_size());
    let num_shards = config.sync.method().virtual_shards().unwrap_or(world_size);
    let own_shards = own_shards(num_shards, rank, world_size);
    Ok(ShardPlan::new(ShardConfig {
        num_samples: session.data.train.len(),
        global_batch_size: config.batch.global_batch_size.filled(),
        seed: config.run.seed.filled(),
        epoch,
        shuffle: true,
        drop_last: config.train_split.drop_last.filled(),
        shard_index: own_shards.start,
        num_shards,
        num_own_shards: own_shards.len(),
    })?)
}

fn loader_config(session: &Session<'_>, progress: &Progress) -> LoaderConfig {
    let config = session.config;
    LoaderConfig {
        augment: data::augment(config.train_split.augment.filled()),
        raw: config.compute.input.filled() == InputKind::Device,
        seed: config.run.seed.filled(),
        epoch: progress.epoch,
        num_threads: config.data.loader_threads.filled(),
        first_step: progress.step_in_epoch as usize,
        ..LoaderConfig::new(config.micro_batch_size(), session.data.normalization.clone())
    }
}

fn step_config(session: &Session<'_>) -> StepConfig {
    let config = session.config;
    StepConfig {
        sgd: sgd_config(config),
        label_smoothing: config.optimizer.label_smoothing.filled(),
        clip_norm: config.optimizer.clip_grad_norm,
        loss_scale: config.optimizer.loss_scale.filled(),
        sync_batch_norm: config.batch.batch_norm.filled() == BatchNormKind::Sync,
        skips_non_finite: config.run.on_non_finite.filled() == OnNonFiniteKind::Skip,
        sync: config.sync_config(),
        server_link: session.server_link.clone(),
        whereabouts: Arc::clone(&session.whereabouts),
    }
}

/// The optimizer of a run.
pub(crate) fn sgd_config(config: &TrainConfig) -> SgdConfig {
    SgdConfig {
        momentum: config.optimizer.momentum.filled(),
        nesterov: config.optimizer.nesterov.filled(),
        weight_decay: config.optimizer.weight_decay.filled(),
        decay_norm_and_bias: config.optimizer.decay_norm_and_bias.unwrap_or(true),
    }
}
