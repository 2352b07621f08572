//! The story of a run: start or resume, epochs, evaluation, checkpoints.
//!
//! In: a model, a resolved configuration, data, the ranks. Out: a trained model, checkpoints, one record an epoch.
//! Invariant: every rank walks the same path through this file; what only root does contains no collective.

mod epoch;
mod evaluation;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use datasets::ImageShape;
use distributed::{replica::check_fingerprint, watchdog::Phase};
use records::{EpochRecord, FinalTest};

use crate::config::{
    BatchNormKind, Decay, LossScaling, Moments, Momentum, OnNonFinite, OptimizerChoice, TrainConfig,
};
use crate::measure::energy::{self, EnergyMeter};
use crate::measure::gather::{self, RankTimes, SessionTimes};
use crate::measure::metrics::EpochCost;
use crate::measure::timer::Timer;
use crate::measure::trace::TraceClock;
use crate::model::ImageClassifier;
use crate::model::data;
use crate::model::schedule::LearningRate;
use crate::run::checkpoint::Progress;
use crate::run::checkpointer::Checkpointer;
use crate::run::evaluate::{Evaluation, UnreadImage};
use crate::run::progress_file::ProgressFile;
use crate::run::session::Session;
use crate::run::step_hashes::OwnHashes;
use crate::run::tensorboard::Tensorboard;
use crate::step::ema::Ema;
use crate::step::gradient_noise::{NoiseBatches, NoiseSums};
use crate::step::optimizer::{AdamConfig, OptimizerConfig, SgdConfig};
use crate::step::sync_plan::vain_compression;
use crate::step::{Clip, StepConfig, Stepper};

/// How a run ended, equal on all ranks but for the model's local norm statistics and for what was measured: of that root alone
/// knows all ranks' part.
#[derive(Clone, Debug)]
pub struct Outcome<M> {
    pub model: M,
    pub progress: Progress,
    /// Hash of all parameters' bits, in module order.
    pub parameter_hash: String,
    /// What every rank that trains measured in this session, warm-up steps excluded: on root of all, on another rank its own
    /// alone; empty on a rank that only serves.
    pub world: Vec<RankTimes>,
    /// How many updates asynchronous servers made with gradients of parameters that so many updates had made stale.
    pub staleness: Option<Vec<u64>>,
    /// The test split measured with the best model, where the run has a val split.
    pub test: Option<FinalTest>,
    /// Whether no better evaluation came within `--patience`.
    pub is_exhausted: bool,
    /// Whether it was stopped before its end.
    pub stopped_early: bool,
}

impl<M> Outcome<M> {
    /// Of a rank that only served parameters.
    pub(crate) fn of_server(model: M) -> Self {
        let (progress, parameter_hash, world) = (Progress::default(), String::new(), Vec::new());
        let (staleness, test, is_exhausted, stopped_early) = (None, None, false, false);
        Self {
            model,
            progress,
            parameter_hash,
            world,
            staleness,
            test,
            is_exhausted,
            stopped_early,
        }
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
    let mut stepper = Stepper::new(
        model,
        step_config(session),
        Arc::clone(&session.communicator),
        session.device,
    )?;
    let checkpointer = Checkpointer::new(session);
    let mut ema = session
        .ema_decay
        .map(|decay| Ema::new(decay, stepper.parameters().into_owned()));
    let mut progress = if config.resume {
        checkpointer.resume(&mut stepper, ema.as_mut())?
    } else {
        Progress::default()
    };
    let forgotten = session.best_rule.forget_other(&mut progress);
    let lost = session.files.open_metrics(progress.epoch)?;
    // Whatever could refuse this start has been asked: a refused one leaves the run's files as they were.
    let mut hashes = OwnHashes::of_run(config);
    if let Some(resumption) = &session.resumption {
        let keeps_course =
            resumption.keeps_course(config) && session.files.was_begun_alike(session.manifest);
        session.files.begin(config, session.manifest, true)?;
        if !keeps_course {
            session.files.end_hashes(progress.step);
            hashes.iter_mut().for_each(OwnHashes::give_up);
        }
    }
    session
        .reporter
        .note(&format!("gradients {}", stepper.gradient_route()));
    let vain = vain_compression(&config.sync.method, || stepper.reduction_state());
    lost.iter()
        .chain(&vain)
        .chain(&forgotten)
        .for_each(|text| session.reporter.warn(text));
    let schedule = LearningRate::new(config, data::steps_per_epoch(config, session.data)?);
    let trace = TraceClock::start(config.sync.trace.as_deref(), communicator)?;
    let timer = Timer::new(Arc::clone(&session.rank_status)).keeping_spans(trace.is_some());
    let energy = EnergyMeter::of_rank(communicator.topology(), Path::new(energy::POWERCAP));
    let times = SessionTimes::starting_at(progress.step + config.run.warmup_steps, timer, energy);
    let mut training = Training {
        session,
        tensorboard: Tensorboard::open(session, progress.step),
        progress_file: ProgressFile::new(session),
        stepper,
        ema,
        checkpointer,
        schedule,
        first_step: progress.step,
        progress,
        times,
        hashes,
        own_noise: NoiseSums::default(),
        noise: NoiseSums::default(),
        noted_first_step: false,
        noted_refused_threads: false,
        epoch_start: Instant::now(),
        image_shape: None,
        test: None,
    };
    // A signal that came during the start: there is nothing new to keep.
    let mut stopped = session.stop.is_raised_anywhere(communicator)?;
    while !stopped && !training.has_ended() {
        stopped = training.epoch()?;
    }
    let stopped = stopped || !training.measure_test()?;
    if stopped && session.data.val.is_some() && session.data.test.is_some() {
        session
            .reporter
            .note("stopped before the test split was measured; `--resume` measures it at the end");
    }
    training.end(trace, stopped)
}

/// A run under way on one rank.
struct Training<'a, M> {
    session: &'a Session<'a>,
    stepper: Stepper<M>,
    /// What is evaluated and saved to be used, in place of the parameters in training.
    ema: Option<Ema>,
    checkpointer: Checkpointer<'a>,
    schedule: LearningRate,
    progress: Progress,
    /// Of this session.
    first_step: u64,
    times: SessionTimes,
    /// Of the first steps, where a repetition has the same bits.
    hashes: Option<OwnHashes>,
    /// Of this rank's gradients in the epoch, as far as this session made it; then of all ranks'.
    own_noise: NoiseSums,
    noise: NoiseSums,
    tensorboard: Tensorboard<'a>,
    progress_file: ProgressFile,
    noted_first_step: bool,
    noted_refused_threads: bool,
    /// When this session began the epoch.
    epoch_start: Instant,
    /// The size that was noted last, where it changes with the epoch.
    image_shape: Option<ImageShape>,
    /// The test split measured with the best model, in a run with a val split.
    test: Option<FinalTest>,
}

impl<M: ImageClassifier> Training<'_, M> {
    /// The rest of the epoch, its evaluation, its record, and a checkpoint if one is due; whether the ranks agreed to stop.
    fn epoch(&mut self) -> Result<bool> {
        self.epoch_start = Instant::now();
        let config = self.session.config;
        if self.train()? {
            self.save()?;
            return Ok(true);
        }
        check_fingerprint(
            self.stepper.model(),
            &*self.session.communicator,
            self.progress.epoch,
        )?;
        let evaluation = match self.evaluate_if_due() {
            Err(error) if error.is::<UnreadImage>() => return Err(self.keep_unevaluated(error)?),
            evaluation => evaluation?,
        };
        if evaluation
            .as_ref()
            .is_some_and(|evaluation| evaluation.sums.is_none())
        {
            // The epoch is trained; a resumed run begins with its evaluation.
            self.save()?;
            return Ok(true);
        }
        let scores = evaluation.as_ref().and_then(Evaluation::scores);
        // The sums are global, so all ranks stop here together, before such a model is saved.
        ensure!(
            scores.as_ref().is_none_or(|scores| scores.loss.is_finite()),
            "epoch {}: the {} loss is not finite, expected a number; lower the learning rate or clip the gradient",
            self.progress.epoch,
            self.session.evaluated_split()
        );
        let is_best = match &scores {
            Some(scores) => {
                let Session {
                    best_rule,
                    communicator,
                    ..
                } = self.session;
                best_rule.note(&mut self.progress, scores, &**communicator)?
            }
            None => false,
        };
        self.record(scores)?;
        if let Some(evaluation) = evaluation.as_ref().filter(|_| is_best) {
            self.write_by_class(
                evaluation,
                self.session.evaluated_split(),
                self.progress.epoch,
            )?;
        }
        self.progress.begin_next_epoch();
        let is_last = self.has_ended();
        // One that is due by steps where the epoch ends is of the whole epoch.
        let is_due = config
            .run
            .checkpoint_every_steps
            .is_some_and(|every| self.progress.step.is_multiple_of(every));
        let stopped = !is_last && evaluation.is_some_and(|evaluation| evaluation.stop);
        if is_best
            || is_last
            || stopped
            || is_due
            || self
                .progress
                .epoch
                .is_multiple_of(config.run.checkpoint_every_epochs)
        {
            self.save()?;
        }
        Ok(stopped)
    }

    fn save(&mut self) -> Result<()> {
        self.progress_file.enter("checkpoint");
        let _checkpoint = self.times.timer.enter(Phase::Checkpoint);
        let mut progress = self.progress.clone();
        if progress.step_in_epoch > 0 {
            progress.epoch_seconds = self.epoch_seconds();
        }
        self.checkpointer
            .save(&self.stepper, self.ema.as_ref(), &progress)
    }

    /// How long the epoch has taken so far, in all sessions.
    fn epoch_seconds(&self) -> f64 {
        self.progress.epoch_seconds + self.epoch_start.elapsed().as_secs_f64()
    }

    /// Writes the epoch down, on root.
    fn record(&mut self, scores: Option<records::Evaluation>) -> Result<()> {
        let seconds_total = self.epoch_seconds();
        let Self {
            session,
            stepper,
            progress,
            ..
        } = self;
        let communicator = &*session.communicator;
        let all_ranks = session
            .server_link
            .as_ref()
            .unwrap_or(&session.communicator);
        let world = self.times.take_epoch().gather(communicator)?;
        self.progress_file.epoch(&world);
        let scales_loss = session.config.optimizer.loss_scale != LossScaling::None;
        let cost = EpochCost {
            epoch: progress.epoch,
            step: progress.step,
            learning_rate: self.schedule.at(progress.schedule_step().saturating_sub(1)),
            images_per_second: gather::images_per_second(&world),
            total: Duration::try_from_secs_f64(seconds_total).unwrap_or_default(),
            seconds: world[0].seconds,
            num_steps: world[0].num_steps,
            peak_memory_bytes: gather::peak_memory_bytes(&world),
            traffic: stepper.take_traffic(),
            num_ranks: communicator.world_size(),
            skipped_steps: progress.skipped_steps,
            loss_scale: scales_loss.then(|| stepper.loss_scale().factor()),
            overflowed_steps: stepper.loss_scale().num_overflows(),
            joules_per_image: gather::joules_per_image(&world, all_ranks.topology().num_nodes),
            gradient_noise: noise_batches(session.config)
                .and_then(|batches| self.noise.estimate(batches)),
        };
        self.own_noise = NoiseSums::default();
        let (val, test) = if session.data.val.is_some() {
            (scores, None)
        } else {
            (None, scores)
        };
        let record = EpochRecord {
            val,
            test,
            ..cost.record(progress.epoch_scores)
        };
        // Nothing is made in a directory that took the place of the run's.
        session.files.expect_in_place()?;
        session.reporter.epoch(&record);
        session
            .files
            .epoch(&record)?
            .iter()
            .for_each(|warning| session.reporter.warn(warning));
        self.tensorboard.epoch(&record);
        progress.last_record = Some(record);
        Ok(())
    }

    /// Writes the trace of this session's steps, if it made one. What keeps root from writing it is no reason to lose the run's end.
    fn write_trace(&mut self, trace: &TraceClock) -> Result<()> {
        let Session {
            reporter,
            communicator,
            ..
        } = self.session;
        if self.progress.step == self.first_step {
            reporter.note("no trace is written, as this start made no step");
            return Ok(());
        }
        let spans = self.times.timer.take_spans();
        let ends_early = trace.ends_early(&spans, &**communicator)?;
        let Some(text) = trace.gather(&spans, &**communicator)? else {
            return Ok(());
        };
        match trace.put(&text) {
            Ok(()) => {
                reporter.note(&format!(
                    "trace of all ranks written to {}",
                    trace.path().display()
                ));
                ends_early.iter().for_each(|warning| reporter.warn(warning));
            }
            Err(error) => reporter.warn(&format!("{error:#}; the run is whole, and has no trace")),
        }
        Ok(())
    }

    /// Compares the replicas for the last time and brings together what the ranks measured.
    fn end(mut self, trace: Option<TraceClock>, stopped_early: bool) -> Result<Outcome<M>> {
        let communicator = &*self.session.communicator;
        self.session.rank_status.enter(Phase::Ending);
        let parameter_hash =
            check_fingerprint(self.stepper.model(), communicator, self.progress.epoch)?.to_string();
        self.checkpointer.finish()?;
        if let Some(trace) = trace {
            self.write_trace(&trace)?;
        }
        let world = self.times.take_session().gather(communicator)?;
        let (model, staleness) = self.stepper.finish()?;
        let is_exhausted = self.session.best_rule.is_exhausted(&self.progress);
        let (progress, test) = (self.progress, self.test);
        Ok(Outcome {
            model,
            progress,
            parameter_hash,
            world,
            staleness,
            test,
            is_exhausted,
            stopped_early,
        })
    }
}

fn step_config(session: &Session<'_>) -> StepConfig {
    let config = session.config;
    StepConfig {
        optimizer: optimizer_config(config),
        rate_factors: config
            .optimizer
            .learning_rate_factors
            .clone()
            .unwrap_or_default(),
        custom_optimizer: session.custom_optimizer.clone(),
        loss: Arc::clone(&session.loss),
        class_weights: session.class_weights.clone(),
        clip: config
            .optimizer
            .clip_grad_norm
            .map(Clip::Norm)
            .or(config.optimizer.clip_grad_value.map(Clip::Value)),
        loss_scale: config.optimizer.loss_scale,
        sync_batch_norm: config.batch.batch_norm == BatchNormKind::Sync,
        skips_non_finite: config.run.on_non_finite != OnNonFinite::Stop,
        gradient_noise: noise_batches(config),
        sync: config.sync_config(),
        server_link: session.server_link.clone(),
        rank_status: Arc::clone(&session.rank_status),
    }
}

/// The batch sizes that the noise of gradients is measured between, if it is.
fn noise_batches(config: &TrainConfig) -> Option<NoiseBatches> {
    let batches = NoiseBatches {
        small: config.micro_batch_size(),
        large: config.batch.global_batch_size,
    };
    config.run.gradient_noise.then_some(batches)
}

/// The optimizer of a run.
pub(crate) fn optimizer_config(config: &TrainConfig) -> OptimizerConfig {
    let sgd = |momentum: Momentum, decay: Decay| SgdConfig {
        momentum: momentum.momentum,
        nesterov: momentum.nesterov,
        weight_decay: decay.weight_decay,
        decay_norm_and_bias: decay.decay_norm_and_bias.unwrap_or(true),
    };
    let adam = |moments: Moments, decay: Decay| AdamConfig {
        betas: [moments.beta1, moments.beta2],
        epsilon: moments.epsilon,
        weight_decay: decay.weight_decay,
        decay_norm_and_bias: decay.decay_norm_and_bias.unwrap_or(true),
    };
    match config.optimizer.optimizer {
        OptimizerChoice::Sgd { momentum, decay } => OptimizerConfig::Sgd(sgd(momentum, decay)),
        OptimizerChoice::Adamw { moments, decay } => OptimizerConfig::AdamW(adam(moments, decay)),
        OptimizerChoice::Lars {
            momentum,
            trust_coefficient,
            decay,
        } => OptimizerConfig::Lars {
            sgd: sgd(momentum, decay),
            trust_coefficient,
        },
        OptimizerChoice::Lamb { moments, decay } => OptimizerConfig::Lamb(adam(moments, decay)),
        // A custom optimizer takes the place of plain descent.
        OptimizerChoice::Custom => OptimizerConfig::Sgd(SgdConfig {
            momentum: 0.0,
            nesterov: false,
            weight_decay: 0.0,
            decay_norm_and_bias: true,
        }),
    }
}
