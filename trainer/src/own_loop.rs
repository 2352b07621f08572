//! A custom training loop on any number of ranks: what such a loop lacks, in one type.
//!
//! In: a model, an optimizer, the summed loss of each pass. Out: a trained model, and the directory
//! of a run, which `trainer report` and `trainer watch` show.
//! Invariant: all ranks take the same steps, and stop together. A resumed loop continues with the
//! same bits on the same number of ranks.
//!
//! For everything that is not a [`Task`](crate::task::Task), such as adversarial networks or
//! reinforcement learning. `trainer/examples/own_loop.rs` is a whole program.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{ExitCode, Termination};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, ensure};
use burn::module::Module;
use burn::optim::ModuleOptimizer;
use burn::tensor::{Device, Tensor};
use clap::Parser;
use datasets::samples::checksum;
use distributed::Communicator;
use distributed::replica::{average_norm_statistics, check_fingerprint};
use distributed::watchdog::Phase;
use records::{DatasetFacts, Manifest, RunProgress, Summary};
use serde_json::json;

use crate::config::cli::{ModelSection, TrainArgs};
use crate::config::{ComputeSection, ConfigError, DatasetKind, SyncSection, invalid};
use crate::measure::energy::EnergyMeter;
use crate::measure::gather::{self, SessionTimes, accepted_by_root, total_scores_with};
use crate::measure::manifest;
use crate::measure::metrics::StepLine;
use crate::measure::report::Reporter;
use crate::measure::timer::Timer;
use crate::model::family::seed_draws;
use crate::run::checkpoint::{Checkpoint, CheckpointState, CheckpointStore, Damaged, Progress};
use crate::run::checkpointer::Checkpointer;
use crate::run::directory::{CHECKPOINTS, LOG, METRICS, PROGRESS, RunDirectory, holder};
use crate::run::identity::{self, first_difference};
use crate::run::metrics_file::MetricsFile;
use crate::run::progress_file::ProgressFile;
use crate::step::{Clip, CustomOptimizer, StepConfig, StepContext, Stepper};
use crate::world::launch::{self, Start};
use crate::world::stop::StopFlag;

pub use crate::config::{AdamConfig, OptimizerChoice, SgdConfig};
pub use crate::measure::metrics::ScoreSums;
pub use crate::world::ranks::World;
pub use records::{EpochRecord, Evaluation};

/// Number of steps of a session before its speed is measured.
const WARMUP_STEPS: u64 = 5;

/// Name of a loop's settings in a checkpoint.
const KIND: &str = "own-loop";

/// Settings of a loop. As flags, they have the names of the trainer's.
#[derive(Clone, Debug, PartialEq, Parser)]
pub struct OwnLoopConfig {
    /// Number of epochs: records and automatic checkpoints [default: 10]
    #[arg(long, value_name = "N", default_value_t = Self::default().epochs, hide_default_value = true)]
    pub epochs: u64,
    /// Seed of random numbers [default: 0]
    #[arg(long, value_name = "N", default_value_t, hide_default_value = true)]
    pub seed: u64,
    /// Directory of the run; without it the loop writes no files
    #[arg(long, value_name = "DIR")]
    pub output_dir: Option<PathBuf>,
    /// Continue the run in --output-dir from its newest checkpoint, or start it
    #[arg(long, requires = "output_dir")]
    pub resume: bool,
    /// Largest L2 norm of the mean gradient [default: no limit]
    #[arg(long, value_name = "NORM")]
    pub clip_grad_norm: Option<f64>,
    /// Number of checkpoints to keep [default: 2]
    #[arg(long, value_name = "N", default_value_t = Self::default().keep_checkpoints, hide_default_value = true)]
    pub keep_checkpoints: usize,
    /// Options of the program by name. They must be equal on all ranks and in all sessions of a
    /// run, and a report shows them.
    #[arg(skip)]
    pub options: BTreeMap<String, String>,
}

impl Default for OwnLoopConfig {
    fn default() -> Self {
        Self {
            epochs: 10,
            seed: 0,
            output_dir: None,
            resume: false,
            clip_grad_norm: None,
            keep_checkpoints: 2,
            options: BTreeMap::new(),
        }
    }
}

/// Optimizer of a loop.
#[derive(Clone, Debug)]
pub enum LoopOptimizer {
    /// Any of burn's. Parameters get other ids, so a group of parameters is given by path.
    Burn(CustomOptimizer),
    /// One of Lockstep's, with the numbers of PyTorch's.
    Lockstep(OptimizerChoice),
}

impl From<ModuleOptimizer> for LoopOptimizer {
    fn from(optimizer: ModuleOptimizer) -> Self {
        Self::Burn(CustomOptimizer(optimizer))
    }
}

impl From<OptimizerChoice> for LoopOptimizer {
    fn from(optimizer: OptimizerChoice) -> Self {
        Self::Lockstep(optimizer)
    }
}

/// Joins the ranks, runs `work` on this rank with its device (without autodiff), and leaves. An
/// error on one rank ends all ranks. SIGTERM and the like request a stop.
///
/// Call it once, in `main`.
pub fn launch<T: Termination>(work: impl FnOnce(&World, &Device) -> Result<T>) -> ExitCode {
    launch::launch(Start::World, |world| {
        let (device, _) = world.prepare_compute(&ComputeSection::default())?;
        work(world, &device)
    })
}

/// A model in a custom loop. Every method with "Collective" in its documentation must be called by
/// all ranks, in the same order.
///
/// Norm statistics are those of each rank. Evaluations and saved models have their mean.
#[derive(Debug)]
pub struct OwnLoop<M> {
    stepper: Stepper<M>,
    config: OwnLoopConfig,
    communicator: Arc<dyn Communicator>,
    stop: StopFlag,
    reporter: Reporter,
    /// Time of the session's start, as in its manifest.
    started: String,
    /// The files of the run, on root.
    directory: Option<RunDirectory>,
    metrics: Option<MetricsFile>,
    progress_file: ProgressFile,
    checkpointer: Checkpointer,
    progress: Progress,
    /// Scores of all ranks in earlier sessions of this epoch.
    earlier: ScoreSums,
    /// Scores of this rank in this session of the epoch.
    own: ScoreSums,
    times: SessionTimes,
    /// True from the first pass of a step to its update.
    is_in_step: bool,
    /// True during the steps of an epoch.
    measures_energy: bool,
    learning_rate: f64,
    /// Start of the session.
    start: Instant,
    /// When this session began the epoch.
    epoch_start: Instant,
    /// End of the last step, or of what came after it.
    since: Instant,
    /// True if the ranks have agreed to stop.
    should_stop: bool,
    /// True if a checkpoint has all steps.
    is_saved: bool,
}

impl<M: Module> OwnLoop<M> {
    /// Starts or resumes a loop. Root's parameters and norm statistics are copied to all ranks, and
    /// all ranks compare their models, settings and programs. Root locks the directory of the run.
    /// Gradients of Lockstep's layers travel to the other ranks during the backward pass.
    /// Collective.
    ///
    /// # Errors
    /// If ranks differ, the directory cannot be used, or a resumed run has other settings than
    /// before.
    pub fn new(
        model: M,
        optimizer: impl Into<LoopOptimizer>,
        config: &OwnLoopConfig,
        world: &World,
    ) -> Result<Self> {
        check(config)?;
        let communicator = Arc::clone(&world.communicator);
        let reporter = world.reporter.clone();
        let mut settings = of_run(config);
        settings.insert("--epochs".to_owned(), config.epochs.to_string());
        settings.insert("--resume".to_owned(), config.resume.to_string());
        identity::compare(settings.into_iter().collect(), &*communicator)?;
        let step_config = step_config(config, optimizer.into(), world);
        let mut stepper = Stepper::of_custom_loop(model, step_config, Arc::clone(&communicator))?;
        let own = if world.is_root() {
            open(config, &*communicator)
        } else {
            Ok((None, None))
        };
        let (directory, found) = accepted_by_root(&*communicator, own)?;
        if let Some(directory) = &directory {
            reporter.log_to(&directory.file(LOG))?;
        }
        let keep = config.keep_checkpoints;
        let checkpointer = Checkpointer::new(
            Arc::clone(&communicator),
            &reporter,
            directory.as_ref(),
            keep,
        );
        let mut progress = Progress::default();
        if config.resume {
            let found = found
                .as_ref()
                .map(|(checkpoint, damaged)| (checkpoint, damaged.as_slice()));
            if let Some(state) = checkpointer.resume(&mut stepper, None, found)? {
                reporter.note(&state.place(config.epochs));
                progress = state.progress;
            }
        }
        let manifest = manifest(config, &*communicator, stepper.device())?;
        let mut metrics = None;
        if let Some(directory) = &directory {
            let (file, warning) = MetricsFile::open(&directory.file(METRICS), progress.epoch)?;
            warning.iter().for_each(|warning| reporter.warn(warning));
            metrics = Some(file);
            directory.begin_with(&run_toml(config)?, &manifest, found.is_some())?;
        }
        let record = RunProgress {
            started: manifest.started.clone(),
            epoch: progress.epoch,
            epochs: config.epochs,
            step: progress.step,
            step_in_epoch: progress.step_in_epoch,
            ..RunProgress::default()
        };
        let path = directory.as_ref().map(|directory| directory.file(PROGRESS));
        let timer = Timer::new(Arc::clone(&world.rank_status));
        let energy = EnergyMeter::of_rank(communicator.topology());
        let should_stop = world.stop.is_raised_anywhere(&*communicator)?;
        let now = Instant::now();
        Ok(Self {
            stepper,
            config: config.clone(),
            communicator,
            stop: world.stop.clone(),
            reporter,
            started: manifest.started,
            directory,
            metrics,
            progress_file: ProgressFile::new(path, record),
            checkpointer,
            earlier: progress.epoch_scores.clone(),
            own: ScoreSums::default(),
            times: SessionTimes::starting_at(progress.step + WARMUP_STEPS, timer, energy),
            is_in_step: false,
            measures_energy: false,
            learning_rate: 0.0,
            start: now,
            epoch_start: now,
            since: now,
            should_stop,
            is_saved: config.resume,
            progress,
        })
    }

    /// Returns the model in training.
    pub fn model(&self) -> &M {
        self.stepper.model()
    }

    /// Returns the current epoch, from 0. A resumed loop continues here.
    pub fn epoch(&self) -> u64 {
        self.progress.epoch
    }

    /// Returns the number of steps of this epoch so far. A resumed loop continues here, so it skips
    /// the samples of these steps.
    pub fn step_in_epoch(&self) -> u64 {
        self.progress.step_in_epoch
    }

    /// Returns true until all epochs are recorded, or the ranks have agreed to stop.
    pub fn is_running(&self) -> bool {
        self.progress.epoch < self.config.epochs && !self.should_stop
    }

    /// Returns true if any rank received a signal that requests a stop. Equal on all ranks: they
    /// agree in each collective method of this type.
    pub fn should_stop(&self) -> bool {
        self.should_stop
    }

    /// Returns the paths of the parameters that no backward pass of this rank has given a gradient.
    /// Empty before the first step.
    pub fn unused_parameters(&self) -> Vec<&str> {
        self.stepper.unused_parameters()
    }

    /// Adds a pass to the step that the next [`step`](Self::step) ends, for batches that exceed the
    /// memory. Ranks may have different numbers of passes.
    ///
    /// # Errors
    /// Those of `loss`.
    pub fn accumulate(
        &mut self,
        loss: impl FnOnce(&M) -> Result<Option<(Tensor<1>, usize)>>,
    ) -> Result<()> {
        let context = self.context(0.0);
        self.pass(&context, false, loss)
    }

    /// Takes a step: a pass, then an update at this learning rate with the exact mean gradient over
    /// the samples of all ranks. `loss` returns the sum of the losses over the samples of this rank
    /// and their number; `None` or the number 0 if it has none. Numbers travel with the header that
    /// precedes the gradients, and differ between ranks as they like.
    ///
    /// Before the step's first pass, burn's random numbers are seeded by (seed, rank, step).
    /// `loss` runs in a [`PassContext`](layers::PassContext) with a gradient hook. A layer that is
    /// used twice in a pass needs a context without one.
    /// Collective.
    ///
    /// # Errors
    /// On all ranks, before the update, if a loss or gradient is not finite on any rank, or no rank
    /// has samples.
    pub fn step(
        &mut self,
        learning_rate: f64,
        loss: impl FnOnce(&M) -> Result<Option<(Tensor<1>, usize)>>,
    ) -> Result<()> {
        self.step_parts(&[], learning_rate, loss)
    }

    /// Takes a step as [`step`](Self::step) that updates only these parts of the model, such as
    /// `generator`. Only their gradients count in the norm. All other parameters and their states
    /// stay. For burn's optimizers.
    /// Collective.
    ///
    /// # Errors
    /// As [`step`](Self::step); if the model has no such part, or the optimizer is Lockstep's.
    pub fn step_parts(
        &mut self,
        parts: &[&str],
        learning_rate: f64,
        loss: impl FnOnce(&M) -> Result<Option<(Tensor<1>, usize)>>,
    ) -> Result<()> {
        let parts: Vec<String> = parts.iter().map(|part| (*part).to_owned()).collect();
        self.stepper.expect_parts(&parts)?;
        let context = self.context(learning_rate);
        self.pass(&context, true, loss)?;
        self.is_in_step = false;
        let end = self.stepper.update(&context, &parts, &self.times.timer)?;
        self.is_saved = false;
        self.should_stop |= end.stop;
        let num_samples = end.num_samples;
        let own = end.scores().unwrap_or_default();
        self.learning_rate = learning_rate;
        let duration = self.since.elapsed();
        let step = self.progress.step;
        self.progress.step += 1;
        self.progress.step_in_epoch += 1;
        let line = StepLine {
            epoch: self.progress.epoch,
            step_in_epoch: self.progress.step_in_epoch - 1,
            steps_per_epoch: 0,
            scores: own.clone(),
            learning_rate,
            duration,
            seconds: self.times.timer.take_step(),
            global_num_samples: num_samples,
            time_left: None,
        };
        self.progress_file.step(&line, self.progress.step);
        self.times.add_step(step, num_samples, duration);
        self.own += own;
        self.checkpointer.look()?;
        self.since = Instant::now();
        Ok(())
    }

    /// Evaluates the model without autodiff and with the ranks' mean norm statistics: `evaluate`
    /// returns the sums over this rank's samples. Returns the means over the samples of all ranks.
    /// A metric is its sum divided by the number of samples; the sums `top1_correct` and
    /// `top5_correct` are numbers of right answers.
    /// Collective.
    ///
    /// # Errors
    /// Those of `evaluate`; if no rank has samples.
    pub fn evaluate(
        &mut self,
        evaluate: impl FnOnce(&M) -> Result<ScoreSums>,
    ) -> Result<Evaluation> {
        self.pause("evaluation");
        let model = average_norm_statistics(self.model().valid(), &*self.communicator)?;
        let own = {
            let _evaluation = self.times.timer.enter(Phase::Evaluation);
            evaluate(&model)?
        };
        let sums = self.total(&own)?;
        self.since = Instant::now();
        let mut metrics = sums.metrics.clone();
        metrics.retain(|name, sum| {
            *sum /= sums.num_samples as f64;
            !["top1_correct", "top5_correct"].contains(&name.as_str())
        });
        sums.evaluation(metrics).ok_or_else(|| {
            anyhow::anyhow!(
                "evaluate: expected samples on at least one rank, got none; give a rank some"
            )
        })
    }

    /// Ends the epoch: compares the ranks' parameters, writes the record to `metrics.jsonl`, and
    /// saves. `record` has what the loop does not know, such as `val` and `train_metrics`; only
    /// root's is written. Returns the record with the loss, speed and times added.
    /// Collective.
    ///
    /// # Errors
    /// On all ranks, if parameters differ between ranks; if the loss of an evaluation is not
    /// finite, or a file cannot be written.
    pub fn end_epoch(&mut self, record: EpochRecord) -> Result<EpochRecord> {
        self.pause("checkpoint");
        let epoch = self.progress.epoch;
        check_fingerprint(self.model(), &*self.communicator, epoch)?;
        ensure!(
            record
                .evaluation()
                .is_none_or(|(_, scores)| scores.loss.is_finite()),
            "epoch {}: the evaluated loss is not finite (expected a number); lower the learning rate or clip the gradient",
            epoch + 1
        );
        self.add_scores()?;
        let record = self.complete(record)?;
        if let Some(directory) = &self.directory {
            directory.expect_in_place()?;
        }
        self.reporter.epoch(&record, false);
        if let Some(metrics) = &mut self.metrics
            && let Some(warning) = metrics.append(&record)?
        {
            self.reporter.warn(&warning);
        }
        self.progress.last_record = Some(record.clone());
        self.progress.begin_next_epoch();
        self.own = ScoreSums::default();
        self.earlier = ScoreSums::default();
        self.epoch_start = Instant::now();
        self.write_checkpoint()?;
        Ok(record)
    }

    /// Saves the model, the optimizer's state and the position after the last step. The epoch's end
    /// and [`finish`](Self::finish) save, too. Root writes while training continues.
    /// Collective.
    ///
    /// # Errors
    /// If root cannot write this checkpoint, or could not write the last one.
    pub fn save(&mut self) -> Result<()> {
        self.pause("checkpoint");
        self.add_scores()?;
        self.write_checkpoint()
    }

    /// Saves steps that are not saved yet, writes the summary of the run, and returns the model.
    /// Collective.
    ///
    /// # Errors
    /// If a file cannot be written, or parameters differ between ranks.
    pub fn finish(mut self) -> Result<M> {
        if !self.is_saved && self.progress.step > 0 {
            self.save()?;
        }
        let communicator = &*self.communicator;
        let parameter_hash = check_fingerprint(self.model(), communicator, self.progress.epoch)?;
        self.checkpointer.finish()?;
        let world = self.times.take_session().gather(communicator)?;
        let summary = Summary {
            started: self.started,
            parameter_hash: parameter_hash.to_string(),
            seconds_total: self.start.elapsed().as_secs_f64(),
            stopped_early: self.progress.epoch < self.config.epochs,
            ..self.progress.summary(&world)
        };
        if let Some(directory) = &self.directory {
            directory.finish(&summary)?;
        }
        let directory = self.directory.as_ref().map(RunDirectory::path);
        self.reporter.finish(&summary, directory, &[]);
        Ok(self.stepper.finish()?.0)
    }

    fn context(&self, learning_rate: f64) -> StepContext {
        StepContext {
            epoch: self.progress.epoch,
            step: self.progress.step,
            learning_rate,
            ..StepContext::default()
        }
    }

    fn pass(
        &mut self,
        context: &StepContext,
        is_last: bool,
        loss: impl FnOnce(&M) -> Result<Option<(Tensor<1>, usize)>>,
    ) -> Result<()> {
        if !std::mem::replace(&mut self.measures_energy, true) {
            self.times.energy.begin();
        }
        let timer = &self.times.timer;
        timer.begin_step(context.epoch, context.step);
        let context = StepContext {
            stop: is_last && self.stop.is_raised(),
            ..*context
        };
        if !std::mem::replace(&mut self.is_in_step, true) {
            self.stepper.begin(&context);
            let place = (self.config.seed, self.communicator.rank());
            seed_draws(self.stepper.device(), place, context.step);
        }
        self.stepper.pass(&context, is_last, timer, loss)
    }

    /// Ends the steps for now: their speed and energy do not contain what follows.
    fn pause(&mut self, phase: &str) {
        if std::mem::take(&mut self.measures_energy) {
            self.times.energy.end();
        }
        self.progress_file.enter(phase);
    }

    /// Returns the sums over all ranks, which also agree whether to stop.
    fn total(&mut self, own: &ScoreSums) -> Result<ScoreSums> {
        let mut num_stops = [f64::from(u8::from(self.stop.is_raised()))];
        let sums = total_scores_with(&*self.communicator, own, &mut num_stops)?;
        self.should_stop |= num_stops[0] > 0.0;
        Ok(sums)
    }

    /// Sums the scores of the epoch so far over all ranks and sessions.
    fn add_scores(&mut self) -> Result<()> {
        let own = self.own.clone();
        self.progress.epoch_scores = self.total(&own)?;
        self.progress.epoch_scores += self.earlier.clone();
        Ok(())
    }

    /// Returns the time of the epoch so far, in all sessions.
    fn epoch_seconds(&self) -> f64 {
        self.progress.epoch_seconds + self.epoch_start.elapsed().as_secs_f64()
    }

    /// Returns a record with what this loop has measured in the fields that have no value.
    fn complete(&mut self, record: EpochRecord) -> Result<EpochRecord> {
        let communicator = &*self.communicator;
        let mut world = self.times.take_epoch().gather(communicator)?;
        self.progress_file.epoch(&world);
        let own = &mut world[0];
        // Whatever the loop does between two steps provides their data.
        let between = own.steps_total.as_secs_f64() - own.seconds.step_total();
        own.seconds.data += between.max(0.0);
        let scores = &self.progress.epoch_scores;
        let loss = (scores.num_samples > 0).then(|| scores.loss_mean());
        let traffic = self.stepper.take_traffic();
        let record = EpochRecord {
            epoch: self.progress.epoch,
            step: self.progress.step,
            train_loss: record.train_loss.or(loss),
            train_num_samples: scores.num_samples,
            learning_rate: self.learning_rate,
            seconds_total: self.epoch_seconds(),
            bytes_sent_per_step: traffic.total.bytes_sent / traffic.num_steps.max(1),
            num_ranks: communicator.world_size(),
            ..record
        };
        let num_nodes = communicator.topology().num_nodes;
        Ok(gather::with_measurements(record, &world, num_nodes))
    }

    fn write_checkpoint(&mut self) -> Result<()> {
        let mut progress = self.progress.clone();
        if progress.step_in_epoch > 0 {
            progress.epoch_seconds = self.epoch_seconds();
        }
        let facts = || {
            if let Some(directory) = &self.directory {
                directory.expect_in_place()?;
            }
            Ok(CheckpointState {
                config: json!({ KIND: of_run(&self.config) }),
                ..CheckpointState::default()
            })
        };
        {
            let _checkpoint = self.times.timer.enter(Phase::Checkpoint);
            self.checkpointer
                .save(&self.stepper, None, &progress, facts)?;
        }
        self.is_saved = true;
        self.since = Instant::now();
        Ok(())
    }
}

/// Checks the values of the settings.
fn check(config: &OwnLoopConfig) -> Result<(), ConfigError> {
    let norm = config.clip_grad_norm.unwrap_or(1.0);
    let (option, expected, got) = if norm.is_nan() || norm <= 0.0 {
        (
            "--clip-grad-norm",
            "a number above 0, or none for no limit",
            norm.to_string(),
        )
    } else if config.epochs == 0 {
        ("--epochs", "1 or more", "0".to_owned())
    } else if config.resume && config.output_dir.is_none() {
        (
            "--resume",
            "the directory of a run in --output-dir",
            "none".to_owned(),
        )
    } else {
        return Ok(());
    };
    Err(invalid(option, expected, got))
}

fn step_config(config: &OwnLoopConfig, optimizer: LoopOptimizer, world: &World) -> StepConfig {
    let (rule, custom) = match optimizer {
        LoopOptimizer::Burn(custom) => (OptimizerChoice::Custom, Some(custom)),
        LoopOptimizer::Lockstep(rule) => (rule, None),
    };
    StepConfig {
        custom_optimizer: custom,
        clip: config.clip_grad_norm.map(Clip::Norm),
        rank_status: Arc::clone(&world.rank_status),
        ..StepConfig::new(rule, SyncSection::default())
    }
}

/// Returns the settings that are equal in all sessions of a run.
fn of_run(config: &OwnLoopConfig) -> BTreeMap<String, String> {
    let clip = config.clip_grad_norm;
    let clip = clip.map_or("no limit".to_owned(), |norm| norm.to_string());
    let mut settings = config.options.clone();
    settings.insert("--seed".to_owned(), config.seed.to_string());
    settings.insert("--clip-grad-norm".to_owned(), clip);
    settings
}

/// Returns the text of `run.toml`, in the sections of the trainer.
fn run_toml(config: &OwnLoopConfig) -> Result<String> {
    let program = std::env::current_exe().unwrap_or_default();
    let program = program.file_stem().unwrap_or_default().to_string_lossy();
    let mut args = TrainArgs {
        model: ModelSection::from_iter([("model", &*program)]),
        ..TrainArgs::default()
    };
    args.data.dataset = Some(DatasetKind::Custom);
    args.schedule.epochs = Some(config.epochs);
    args.run.seed = Some(config.seed);
    args.run.output_dir.clone_from(&config.output_dir);
    args.optimizer.clip_grad_norm = config.clip_grad_norm;
    let mut sections = toml::Table::try_from(args)?;
    let options = toml::Table::try_from(&config.options)?;
    sections.insert("options".to_owned(), options.into());
    sections.retain(|_, section| section.as_table().is_some_and(|keys| !keys.is_empty()));
    Ok(toml::to_string(&sections)?)
}

/// Locks the directory of the run and finds the checkpoint to resume, on root.
#[expect(clippy::type_complexity, reason = "two results that belong together")]
fn open(
    config: &OwnLoopConfig,
    communicator: &dyn Communicator,
) -> Result<(Option<RunDirectory>, Option<(Checkpoint, Vec<Damaged>)>)> {
    let Some(path) = &config.output_dir else {
        return Ok((None, None));
    };
    let directory = RunDirectory::lock_at(path, config.resume, &holder(communicator))?;
    if !config.resume {
        return Ok((Some(directory), None));
    }
    let store = CheckpointStore::new(&directory.file(CHECKPOINTS), config.keep_checkpoints);
    let (Some(checkpoint), damaged) = store.latest()? else {
        directory.expect_unfinished()?;
        return Ok((Some(directory), None));
    };
    let place = checkpoint.directory.display();
    let before = &checkpoint.state.config[KIND];
    let Ok(before) = serde_json::from_value(before.clone()) else {
        return Err(ConfigError(format!(
            "resume: {place} is a checkpoint of another kind of program, expected one of a custom loop. Resume it with its program, or \
             choose another --output-dir"
        ))
        .into());
    };
    if let Some([name, expected, got]) = first_difference(&before, &of_run(config)) {
        return Err(ConfigError(format!(
            "resume: {name}: expected {expected} as in {place}, got {got}. Resume with the value of the run, or choose another --output-dir"
        ))
        .into());
    }
    Ok((Some(directory), Some((checkpoint, damaged))))
}

/// Returns the manifest of this launch. Collective.
fn manifest(
    config: &OwnLoopConfig,
    communicator: &dyn Communicator,
    device: &Device,
) -> Result<Manifest> {
    let launch = manifest::launch_facts(communicator, rayon::current_num_threads(), device)?;
    let hash = checksum(&[run_toml(config)?.as_bytes()]);
    let dataset = DatasetFacts {
        name: "custom".to_owned(),
        ..DatasetFacts::default()
    };
    Ok(manifest::of_this_launch(hash, launch, dataset))
}
