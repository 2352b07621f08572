//! A run from its start or resume over epochs, evaluations and checkpoints to its end.
//!
//! In: a model, a resolved configuration, data, the ranks. Out: a trained model, checkpoints, a
//! record of each epoch.
//! Invariant: every rank takes the same path through this file; what only root does contains no
//! collective. In a run with a val split the test split is measured once, with the best model.

mod epoch;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, ensure};
use datasets::Samples;
use distributed::replica::check_fingerprint;
use distributed::watchdog::Phase;
use records::{EpochRecord, EvaluationByClass, FinalTest, Manifest, file};

use crate::config::{BatchNormKind, LossScaling, OnNonFinite, TrainConfig};
use crate::measure::energy::EnergyMeter;
use crate::measure::gather::{self, RankTimes, SessionTimes};
use crate::measure::manifest::bearing_on_bits;
use crate::measure::timer::Timer;
use crate::measure::trace::TraceClock;
use crate::model::data;
use crate::model::schedule::LearningRate;
use crate::run::checkpoint::{CheckpointState, Progress};
use crate::run::checkpointer::Checkpointer;
use crate::run::directory::{EVALUATION, MANIFEST, METRICS, STEPS};
use crate::run::evaluate::{EvaluateConfig, Evaluation, UnreadImage, evaluate};
use crate::run::metrics_file::MetricsFile;
use crate::run::progress_file::ProgressFile;
use crate::run::session::Session;
use crate::run::step_hashes::HashRecorder;
use crate::run::step_log::StepLog;
use crate::run::tensorboard::Tensorboard;
use crate::step::ema::Ema;
use crate::step::gradient_noise::{NoiseBatches, NoiseSums};
use crate::step::sync_plan::vain_compression;
use crate::step::{Clip, StepConfig, Stepper};
use crate::task::Task;

/// Result of a session, equal on all ranks but for the model's local norm statistics and for
/// `world`.
#[derive(Clone, Debug)]
pub struct Outcome<M> {
    pub model: M,
    pub progress: Progress,
    /// Hash of all parameters' bits, in module order.
    pub parameter_hash: String,
    /// Measurements of this session without its warm-up steps: of every rank that trains on root,
    /// of the rank itself on others; empty on a rank that only serves.
    pub world: Vec<RankTimes>,
    /// Number of updates of asynchronous servers by the staleness of their parameters.
    pub staleness: Option<Vec<u64>>,
    /// Scores of the best model on the test split, in a run with a val split.
    pub test: Option<FinalTest>,
    /// True if `--patience` ended the run.
    pub is_exhausted: bool,
    pub stopped_early: bool,
}

/// Trains `model` from the newest checkpoint of a resumed run, or from the beginning.
/// Collective: all ranks, with equal configuration and data.
///
/// # Errors
/// If data cannot be read, output cannot be written, a loss or gradient is not finite, or
/// the replicas differ.
pub fn fit<T: Task>(model: T::Model, session: &Session<'_, T>) -> Result<Outcome<T::Model>> {
    let config = session.config;
    let reporter = session.reporter;
    let communicator = &*session.communicator;
    let mut stepper = Stepper::new(
        &session.task,
        model,
        step_config(session)?,
        Arc::clone(&session.communicator),
        session.device,
    )?;
    let checkpointer = Checkpointer::new(
        Arc::clone(&session.communicator),
        reporter,
        session.directory,
        config.run.keep_checkpoints,
    );
    let mut ema = session.ema_decay.map(|decay| Ema::new(decay, &stepper));
    let mut progress = if config.resume {
        resume(&checkpointer, &mut stepper, ema.as_mut(), session)?
    } else {
        Progress::default()
    };
    let mut warnings = Vec::from_iter(session.best_rule.forget_other(&mut progress));
    let mut metrics = None;
    if let Some(directory) = session.directory {
        let (file, warning) = MetricsFile::open(&directory.file(METRICS), progress.epoch)?;
        metrics = Some(file);
        warnings.extend(warning);
    }
    let logged = session.directory.filter(|_| config.run.log_steps);
    let step_log = logged.map(|directory| StepLog::open(&directory.file(STEPS), progress.step));
    let step_log = step_log.transpose()?;
    // From here on nothing rejects this start. A rejected one leaves the run's files unchanged.
    let mut keeps_course = true;
    if let (Some(resumption), Some(directory)) = (&session.resumption, session.directory) {
        let is_alike =
            |before: Manifest| bearing_on_bits(&before) == bearing_on_bits(session.manifest);
        keeps_course =
            resumption.keeps_course(config) && directory.read(MANIFEST).is_some_and(is_alike);
        directory.begin(config, session.manifest, true)?;
    }
    let hashes = HashRecorder::of_run(config, session.directory, progress.step, keeps_course);
    let kept_from_device = config.kept_from_device();
    let reason = kept_from_device.map(|option| format!(", as {option} needs main memory"));
    let reason = reason.unwrap_or_default();
    reporter.detail(&format!("gradients {}{reason}", stepper.gradient_route()));
    warnings.extend(stepper.route_warning());
    warnings.extend(vain_compression(&config.sync.method, || {
        stepper.reduction_state()
    }));
    for warning in &warnings {
        reporter.warn(warning);
    }
    let steps_per_epoch = data::steps_per_epoch(config, &*session.data.train)?;
    let trace = TraceClock::start(config.sync.trace.as_deref(), communicator)?;
    let timer = Timer::new(Arc::clone(&session.rank_status)).keeping_spans(trace.is_some());
    let energy = EnergyMeter::of_rank(communicator.topology());
    let first_measured_step = progress.step + config.run.warmup_steps;
    let mut training = Training {
        session,
        tensorboard: Tensorboard::open(session, progress.step),
        progress_file: ProgressFile::of(session, &progress, steps_per_epoch),
        metrics,
        step_log,
        stepper,
        ema,
        checkpointer,
        schedule: LearningRate::new(config, steps_per_epoch),
        first_step: progress.step,
        progress,
        times: SessionTimes::starting_at(first_measured_step, timer, energy),
        hashes,
        own_noise: NoiseSums::default(),
        noise: NoiseSums::default(),
        noted_refused_threads: false,
        seconds_in_kernels: 0.0,
        multiply_adds: 0.0,
        epoch_start: Instant::now(),
        test: None,
    };
    // A signal during the start: nothing is new that would have to be saved.
    let mut stopped = session.stop.is_raised_anywhere(communicator)?;
    while !stopped && !training.has_ended() {
        stopped = training.epoch()?;
    }
    let stopped = stopped || !training.measure_test()?;
    if stopped && session.data.val.is_some() && session.data.test.is_some() {
        reporter.note("stopped before the final test; `--resume` runs it at the end of the run");
    }
    training.end(trace, stopped)
}

/// Restores the stepper from the checkpoint of the session, if there is one, and reports the place.
/// Collective: all ranks.
fn resume<T: Task>(
    checkpointer: &Checkpointer,
    stepper: &mut Stepper<T::Model>,
    ema: Option<&mut Ema>,
    session: &Session<'_, T>,
) -> Result<Progress> {
    let found = session
        .resumption
        .as_ref()
        .map(|found| (&found.checkpoint, found.damaged.as_slice()));
    let Some(state) = checkpointer.resume(stepper, ema, found)? else {
        return Ok(Progress::default());
    };
    let reporter = session.reporter;
    reporter.note(&state.place(session.config.schedule.epochs));
    if let Some(resumption) = &session.resumption {
        for warning in &resumption.warnings {
            reporter.warn(warning);
        }
        reporter.notes(&resumption.notes);
    }
    Ok(state.progress)
}

/// A run under way on one rank.
struct Training<'a, T: Task> {
    session: &'a Session<'a, T>,
    stepper: Stepper<T::Model>,
    /// Average of the parameters, which is evaluated and saved in their place.
    ema: Option<Ema>,
    checkpointer: Checkpointer,
    schedule: LearningRate,
    progress: Progress,
    /// Number of steps before this session.
    first_step: u64,
    times: SessionTimes,
    hashes: Option<HashRecorder>,
    /// Gradient noise of the epoch, of this session: sums of this rank, and of all ranks.
    own_noise: NoiseSums,
    noise: NoiseSums,
    tensorboard: Tensorboard<'a>,
    progress_file: ProgressFile,
    /// Absent on other ranks than root.
    metrics: Option<MetricsFile>,
    /// Absent on other ranks than root, and without `--log-steps`.
    step_log: Option<StepLog>,
    noted_refused_threads: bool,
    /// Time in Lockstep's CPU kernels until the end of the session's first step.
    seconds_in_kernels: f64,
    /// Multiply-adds of the forward pass for a sample of the session's first step.
    multiply_adds: f64,
    /// When this session began the epoch.
    epoch_start: Instant,
    /// Scores of the best model on the test split, in a run with a val split.
    test: Option<FinalTest>,
}

impl<T: Task> Training<'_, T> {
    fn save(&mut self) -> Result<()> {
        self.progress_file.enter("checkpoint");
        let _checkpoint = self.times.timer.enter(Phase::Checkpoint);
        if let Some(log) = &self.step_log {
            log.sync()?;
        }
        let mut progress = self.progress.clone();
        if progress.step_in_epoch > 0 {
            progress.epoch_seconds = self.epoch_seconds();
        }
        let facts = || {
            if let Some(directory) = self.session.directory {
                directory.expect_in_place()?;
            }
            let data = self.session.data;
            let config = self.session.config.clone().with_absolute_paths();
            Ok(CheckpointState {
                config: serde_json::to_value(config)?,
                input: T::input(&data.train, data.evaluated().unwrap_or(&data.train)),
                dataset_checksum: data.train.checksum(),
                val_checksum: data.val.as_ref().map(|val| val.checksum()),
                test_checksum: data.test.as_ref().map(|test| test.checksum()),
                ..CheckpointState::default()
            })
        };
        self.checkpointer
            .save(&self.stepper, self.ema.as_ref(), &progress, facts)
    }

    fn learning_rate(&self, step: u64) -> f64 {
        self.schedule.at(step, &self.progress.plateau)
    }

    /// Returns the time of the epoch so far, in all sessions.
    fn epoch_seconds(&self) -> f64 {
        self.progress.epoch_seconds + self.epoch_start.elapsed().as_secs_f64()
    }

    /// Reports the epoch, which has the best evaluation so far if `is_best`, and writes its record,
    /// on root.
    /// Collective: all ranks.
    fn record(&mut self, scores: Option<records::Evaluation>, is_best: bool) -> Result<()> {
        let seconds_total = self.epoch_seconds();
        let session = self.session;
        let communicator = &*session.communicator;
        let world = self.times.take_epoch().gather(communicator)?;
        self.progress_file.epoch(&world);
        let all_ranks = session
            .server_link
            .as_ref()
            .unwrap_or(&session.communicator);
        let scales_loss = session.config.optimizer.loss_scale != LossScaling::None;
        let loss_scale = self.stepper.loss_scale();
        let traffic = self.stepper.take_traffic();
        let train = &self.progress.epoch_scores;
        // Absent if every step was skipped.
        let means = train.evaluation(session.task.figures(train));
        let (val, test) = match session.data.val {
            Some(_) => (scores, None),
            None => (None, scores),
        };
        let record = EpochRecord {
            epoch: self.progress.epoch,
            step: self.progress.step,
            train_loss: means.as_ref().map(|means| means.loss),
            train_top1: means.as_ref().and_then(|means| means.top1),
            train_top5: means.as_ref().and_then(|means| means.top5),
            train_num_samples: train.num_samples,
            train_top1_correct: train.count("top1_correct"),
            train_top5_correct: train.count("top5_correct"),
            train_metrics: means.map_or_else(BTreeMap::new, |means| means.metrics),
            val,
            test,
            learning_rate: self.learning_rate(self.progress.schedule_step().saturating_sub(1)),
            seconds_total,
            bytes_sent_per_step: traffic.total.bytes_sent / traffic.num_steps.max(1),
            compression_error: traffic.total.relative_error(),
            num_ranks: communicator.world_size(),
            skipped_steps: self.progress.skipped_steps,
            loss_scale: scales_loss.then(|| loss_scale.factor()),
            overflowed_steps: loss_scale.num_overflows(),
            gradient_noise: noise_batches(session.config)
                .and_then(|batches| self.noise.estimate(batches)),
            ..EpochRecord::default()
        };
        let num_nodes = all_ranks.topology().num_nodes;
        let record = gather::with_measurements(record, &world, num_nodes);
        self.own_noise = NoiseSums::default();
        if let Some(directory) = session.directory {
            directory.expect_in_place()?;
        }
        session.reporter.epoch(&record, is_best);
        if let Some(metrics) = &mut self.metrics
            && let Some(warning) = metrics.append(&record)?
        {
            session.reporter.warn(&warning);
        }
        self.tensorboard.epoch(&record);
        self.progress.last_record = Some(record);
        Ok(())
    }

    /// Evaluates an epoch whose steps are done, writes its record, and saves a checkpoint if one is
    /// due. Returns true if the ranks agreed to stop.
    fn end_epoch(&mut self) -> Result<bool> {
        let session = self.session;
        let communicator = &*session.communicator;
        check_fingerprint(self.stepper.model(), communicator, self.progress.epoch)?;
        let epoch = self.progress.epoch + 1;
        let run = &session.config.run;
        let is_evaluated =
            epoch == session.config.schedule.epochs || epoch.is_multiple_of(run.eval_every_epochs);
        let evaluation = match session.data.evaluated() {
            Some(split) if is_evaluated => {
                self.progress_file.enter("evaluation");
                let averaged = self.averaged();
                let model = averaged.as_ref().unwrap_or(self.stepper.model());
                match self.evaluate(model, split) {
                    Err(error) if error.is::<UnreadImage>() => {
                        self.save()?;
                        self.checkpointer.finish()?;
                        // A rank that returns the error ends the job, so all wait until root has
                        // written.
                        communicator.barrier()?;
                        return Err(error.context(format!(
                            "epoch {epoch}: saved, but the evaluation failed; `--resume` repeats the evaluation"
                        )));
                    }
                    evaluation => Some(evaluation?),
                }
            }
            _ => None,
        };
        let scores = evaluation.as_ref().and_then(Evaluation::scores);
        if evaluation.is_some() && scores.is_none() {
            // Interrupted. A resumed run begins with this evaluation.
            self.save()?;
            return Ok(true);
        }
        // The sums are global, so all ranks stop here together, before such a model is saved.
        ensure!(
            scores.as_ref().is_none_or(|scores| scores.loss.is_finite()),
            "epoch {epoch}: the {} loss is not finite (expected a number); lower the learning rate or clip the gradient",
            session.evaluated_split()
        );
        let rule = &session.best_rule;
        let figure = match &scores {
            Some(scores) => Some(rule.figure(scores, communicator)?),
            None => None,
        };
        let is_best = figure.is_some_and(|figure| rule.note(&mut self.progress, figure));
        self.record(scores, is_best)?;
        if let Some(figure) = figure
            && (self.schedule).note(&mut self.progress.plateau, figure, rule.lower_is_better())
        {
            session.reporter.note(&format!(
                "epoch {epoch}: {} is on a plateau: learning rate {} from the next epoch on",
                rule.monitor,
                records::learning_rate(self.learning_rate(self.progress.schedule_step()))
            ));
        }
        if let Some(evaluation) = &evaluation
            && is_best
        {
            self.write_by_class(evaluation, session.evaluated_split(), self.progress.epoch)?;
        }
        self.progress.begin_next_epoch();
        let is_last = self.has_ended();
        let stopped = !is_last && evaluation.is_some_and(|evaluation| evaluation.stop);
        // One that is due by steps at the end of an epoch is saved here, with the whole epoch.
        let is_due = run
            .checkpoint_every_steps
            .is_some_and(|every| self.progress.step.is_multiple_of(every))
            || epoch.is_multiple_of(run.checkpoint_every_epochs);
        if is_best || is_last || stopped || is_due {
            self.save()?;
        }
        Ok(stopped)
    }

    /// Returns true if all epochs are trained, or `--patience` ends the run.
    fn has_ended(&self) -> bool {
        self.progress.epoch >= self.session.config.schedule.epochs
            || self.session.best_rule.is_exhausted(&self.progress)
    }

    /// Returns the model with the average of the parameters, if one is kept.
    fn averaged(&self) -> Option<T::Model> {
        let ema = self.ema.as_ref()?;
        Some(ema.place(self.stepper.model().clone()))
    }

    fn evaluate(&self, model: &T::Model, split: &Arc<T::Samples>) -> Result<Evaluation> {
        let session = self.session;
        let config = session.config;
        let how = EvaluateConfig {
            micro_batch_size: config.micro_batch_size(),
            loader_threads: config.data.loader_threads,
            input: config.compute.input,
            computation: config.compute.computation()?,
            reporter: session.reporter.clone(),
        };
        let _evaluation = self.times.timer.enter(Phase::Evaluation);
        evaluate(
            &session.task,
            model,
            split,
            &how,
            &*session.communicator,
            session.device,
            session.stop,
        )
    }

    /// Writes `evaluation.json`, on root. If it cannot be written, the run continues.
    /// Collective: all ranks.
    fn write_by_class(&self, evaluation: &Evaluation, split: &str, epoch: u64) -> Result<()> {
        let session = self.session;
        let data = session.data;
        let dataset = if split == "test" {
            &data.test
        } else {
            &data.val
        };
        let Some(dataset) = dataset else {
            return Ok(());
        };
        let names = T::input(&data.train, dataset).map_or_else(Vec::new, |input| input.class_names);
        let place = (split, Some(epoch));
        let record = evaluation.by_class(place, &**dataset, &names, &*session.communicator)?;
        if let (Some(directory), Some(record)) = (session.directory, record) {
            // On one line: a confusion matrix would otherwise have a line for each number.
            let text = serde_json::to_vec(&record)?;
            if let Err(error) = file::replace(&directory.file(EVALUATION), &text) {
                session.reporter.warn(&format!(
                    "{error:#}. The run continues; the file lacks this evaluation"
                ));
            }
        }
        Ok(())
    }

    /// Measures the test split with the best model, once, in a run with a val split. If an earlier
    /// session has measured the same model and images, its result is used. Returns false if a stop
    /// interrupted the test.
    /// Collective: all ranks.
    fn measure_test(&mut self) -> Result<bool> {
        let session = self.session;
        let (Some(_), Some(test)) = (&session.data.val, &session.data.test) else {
            return Ok(true);
        };
        // The best checkpoint may still be on its way to the disk.
        self.checkpointer.finish()?;
        let best = self.progress.best.as_ref().map(|best| best.epoch);
        self.test = gather::found_by_root(&*session.communicator, || {
            let earlier: Option<EvaluationByClass> = session
                .directory
                .and_then(|directory| directory.read(EVALUATION));
            Ok(earlier.and_then(|earlier| {
                let epoch = earlier.epoch?;
                let is_same = Some(epoch) == best
                    && earlier.split == "test"
                    && earlier.dataset_checksum == test.checksum();
                let scores = earlier.scores;
                is_same.then_some(FinalTest { epoch, scores })
            }))
        })?;
        if self.test.is_some() {
            session.reporter.note(
                "an earlier session ran the final test with the best model; it is not repeated",
            );
            return Ok(true);
        }
        self.progress_file.enter("test");
        let last = self
            .averaged()
            .unwrap_or_else(|| self.stepper.model().clone());
        let (model, epoch) = self.checkpointer.best_model(last, &self.progress)?;
        let evaluation = self.evaluate(&model, test).map_err(|error| {
            error.context(
                "the run is trained and saved, but the final test failed; `--resume` repeats it",
            )
        })?;
        let Some(scores) = evaluation.scores() else {
            return Ok(false);
        };
        self.write_by_class(&evaluation, "test", epoch)?;
        self.test = Some(FinalTest { epoch, scores });
        Ok(true)
    }

    /// Writes the trace of this session's steps. If root cannot, the run still ends normally.
    /// Collective: all ranks.
    fn write_trace(&mut self, trace: &TraceClock) -> Result<()> {
        let reporter = self.session.reporter;
        let communicator = &*self.session.communicator;
        if self.progress.step == self.first_step {
            reporter.note("no trace written: this session ran no steps");
            return Ok(());
        }
        let spans = self.times.timer.take_spans();
        match trace.write(&spans, communicator)? {
            Ok(warning) => {
                let path = trace.path().display();
                reporter.note(&format!("trace of all ranks written to {path}"));
                if let Some(warning) = warning {
                    reporter.warn(&warning);
                }
            }
            Err(error) => {
                reporter.warn(&format!("{error:#}; the run is complete, without a trace"))
            }
        }
        Ok(())
    }

    /// Compares the replicas for the last time and gathers the measurements of the ranks.
    /// Collective: all ranks.
    fn end(mut self, trace: Option<TraceClock>, stopped_early: bool) -> Result<Outcome<T::Model>> {
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
        Ok(Outcome {
            model,
            is_exhausted: self.session.best_rule.is_exhausted(&self.progress),
            progress: self.progress,
            parameter_hash,
            world,
            staleness,
            test: self.test,
            stopped_early,
        })
    }
}

fn step_config<T: Task>(session: &Session<'_, T>) -> Result<StepConfig> {
    let config = session.config;
    Ok(StepConfig {
        computation: config.compute.computation()?,
        optimizer: config.optimizer.optimizer,
        rate_factors: config
            .optimizer
            .learning_rate_factors
            .clone()
            .unwrap_or_default(),
        custom_optimizer: session.custom_optimizer.clone(),
        clip: config
            .optimizer
            .clip_grad_norm
            .map(Clip::Norm)
            .or(config.optimizer.clip_grad_value.map(Clip::Value)),
        loss_scale: config.optimizer.loss_scale,
        sync_batch_norm: config.batch.batch_norm == BatchNormKind::Sync,
        skips_non_finite: config.run.on_non_finite != OnNonFinite::Stop,
        gradient_noise: noise_batches(config),
        sync: config.sync.clone(),
        gpu: config.compute.device.gpu(),
        server_link: session.server_link.clone(),
        rank_status: Arc::clone(&session.rank_status),
    })
}

/// Returns the batch sizes whose gradients the noise scale compares, if it is measured.
fn noise_batches(config: &TrainConfig) -> Option<NoiseBatches> {
    let batches = NoiseBatches {
        small: config.micro_batch_size(),
        large: config.batch.global_batch_size,
    };
    config.run.gradient_noise.then_some(batches)
}
