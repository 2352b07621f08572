//! One epoch of steps: input, update, log, checkpoints within the epoch.
//!
//! In: the position of the run. Out: the run an epoch later, or stopped in it. Invariant: every
//! rank takes the same path through this file.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use datasets::{LoadedStep, Loader, LoaderConfig, Samples, ShardConfig, ShardPlan, threads};
use distributed::watchdog::Phase;
use layers::timing::{kernel_times, multiply_adds};
use records::{Seconds, bytes, decimal};

use super::Training;
use crate::config::{BatchNormKind, OnNonFinite};
use crate::measure::gather::total_scores_with;
use crate::measure::metrics::{ScoreSums, StepLine};
use crate::measure::process_memory::peak_memory_bytes;
use crate::measure::report::lines;
use crate::model::family::seed_draws;
use crate::model::input::Input;
use crate::run::checkpoint::Progress;
use crate::run::session::Session;
use crate::run::step_hashes::HashRecorder;
use crate::step::gradient_noise::NoiseSums;
use crate::step::sync_plan::{averages_early, distance, meets_after, own_shards};
use crate::step::{StepContext, StepEnd, StepOutcome, StepResults};
use crate::task::{BatchOf, Task};
use crate::world::stop::StopVote;

/// Outputs that are due after the next step.
struct Due {
    /// Number of the step, from 1.
    number: u64,
    checkpoint: bool,
    /// Images and curves in TensorBoard.
    tensorboard: bool,
    gradients: bool,
    /// True if the step is the last of the epoch.
    end: bool,
}

/// The epoch under way.
struct Epoch<'a, T: Task> {
    input: Input<BatchOf<T>>,
    num_steps: u64,
    /// Scores of this rank in this session.
    own: ScoreSums,
    /// Scores of all ranks in earlier sessions of this epoch.
    earlier: ScoreSums,
    /// Scores of the last step whose results are known; `None` before the first step.
    last_scores: Option<ScoreSums>,
    /// Present from the first step in which ranks run independently.
    vote: Option<StopVote<'a>>,
}

impl<'run, T: Task> Training<'run, T> {
    /// Runs the remaining steps of the epoch, evaluates, and saves a checkpoint if one is due.
    /// Returns true if the ranks agreed to stop.
    pub(super) fn epoch(&mut self) -> Result<bool> {
        self.epoch_start = Instant::now();
        let session = self.session;
        let plan = shard_plan(session, self.progress.epoch)?;
        let num_steps = plan.num_steps() as u64;
        self.note_epoch();
        let loader = Loader::start(
            Arc::clone(&session.data.train),
            plan,
            loader_config(session, &self.progress),
        );
        let mut epoch = Epoch {
            input: Input::start(loader, session.config.compute.input, self.stepper.device()),
            num_steps,
            own: ScoreSums::default(),
            earlier: self.progress.epoch_scores.clone(),
            last_scores: None,
            vote: None,
        };
        let mut stopped = false;
        self.times.energy.begin();
        while !stopped && self.progress.step_in_epoch < num_steps {
            let start = Instant::now();
            let due = self.due(&epoch);
            let (context, loaded) = self.next(&mut epoch, &due)?;
            let num_samples = loaded.global_num_samples as u64;
            let micro_batches = loaded.micro_batches.iter();
            let own_num_samples: usize = micro_batches.map(|micro| micro.num_samples).sum();
            let timer = &self.times.timer;
            let earlier = multiply_adds();
            let end = self.stepper.step(&session.task, context, loaded, timer)?;
            if self.progress.step == self.first_step {
                self.multiply_adds = (multiply_adds() - earlier) / own_num_samples.max(1) as f64;
            }
            stopped = end.stop;
            self.end_step(&mut epoch, &due, &context, end, (start, num_samples))?;
        }
        self.times.energy.end();
        self.total_scores(&epoch)?;
        if stopped {
            self.save()?;
            return Ok(true);
        }
        self.end_epoch()
    }

    fn due(&self, epoch: &Epoch<'run, T>) -> Due {
        let run = &self.session.config.run;
        let number = self.progress.step + 1;
        let is_due = |every: Option<u64>| every.is_some_and(|every| number.is_multiple_of(every));
        let end = self.progress.step_in_epoch + 1 == epoch.num_steps;
        let tensorboard = is_due(run.tensorboard_every);
        Due {
            number,
            checkpoint: is_due(run.checkpoint_every_steps),
            tensorboard,
            gradients: self.tensorboard.is_open() && (tensorboard || end),
            end,
        }
    }

    /// Returns the context and the samples of the next step.
    fn next(
        &mut self,
        epoch: &mut Epoch<'run, T>,
        due: &Due,
    ) -> Result<(StepContext, LoadedStep<BatchOf<T>>)> {
        let session = self.session;
        let loaded = {
            let _data = self.times.timer.enter(Phase::Data);
            let next = epoch.input.next();
            next.context("loader: ended before the epoch")??
        };
        let context = StepContext {
            keeps_gradients: due.gradients,
            ..self.context(epoch, due.checkpoint || due.end)?
        };
        if let Some(micro) = loaded.micro_batches.first()
            && (due.tensorboard || due.number == 1)
            && self.tensorboard.is_open()
            && micro.num_samples > 0
            && let Some(picture) = T::picture(&session.data.train, &micro.batch)
        {
            self.tensorboard.picture(due.number, picture);
        }
        let seed = session.config.run.seed;
        let rank = session.communicator.rank();
        seed_draws(self.stepper.device(), (seed, rank), context.step);
        Ok((context, loaded))
    }

    /// Logs a step and its samples, which began at `start`, and saves a checkpoint if one is due
    /// within the epoch.
    fn end_step(
        &mut self,
        epoch: &mut Epoch<'run, T>,
        due: &Due,
        context: &StepContext,
        end: StepEnd,
        (start, global_num_samples): (Instant, u64),
    ) -> Result<()> {
        let session = self.session;
        let config = session.config;
        let is_log_step =
            (self.progress.step_in_epoch + 1).is_multiple_of(config.run.log_every_steps);
        // By root's clock, for which no rank waits: the line has the last known results.
        let should_log = is_log_step || session.reporter.is_step_due();
        // An average that only a stop causes is not part of what a repetition computes.
        let is_forced = !due.checkpoint
            && !due.end
            && context.must_sync
            && averages_early(&config.sync.method, config.num_workers(), context.step);
        let is_hashed = !is_forced && HashRecorder::is_due(&self.hashes, &self.progress);
        // What is saved or hashed must be complete; otherwise a device is not waited for. Equal on
        // all ranks, as they wait together.
        let must_be_complete = is_log_step
            || due.checkpoint
            || due.end
            || is_hashed
            || due.tensorboard
            || config.run.log_steps;
        let stop = end.stop;
        let own = self.take_results(epoch, end, must_be_complete)?;
        if due.gradients
            && let Some(gradients) = self.stepper.gradients()
        {
            self.tensorboard
                .gradients(due.number, self.stepper.layout(), &gradients);
        }
        if let Some(ema) = &mut self.ema {
            ema.update(&self.stepper);
        }
        self.note_once();
        self.checkpointer.look()?;

        let mut line = StepLine {
            epoch: self.progress.epoch,
            step_in_epoch: self.progress.step_in_epoch,
            steps_per_epoch: epoch.num_steps,
            scores: epoch.last_scores.clone().unwrap_or_default(),
            learning_rate: context.learning_rate,
            duration: start.elapsed(),
            seconds: self.times.timer.take_step(),
            global_num_samples,
            time_left: None,
        };
        self.note_cost(&line.seconds);
        line.time_left = self.progress_file.step(&line, due.number);
        session.reporter.step(&line, should_log || due.end);
        if let Some(log) = &mut self.step_log {
            log.append(due.number, &line, own.as_ref())?;
        }
        let is_shown = match config.run.tensorboard_every {
            Some(_) => due.tensorboard,
            None => should_log,
        };
        if due.end || is_shown {
            self.tensorboard.step(due.number, &line);
        }
        self.times
            .add_step(self.progress.step, global_num_samples, line.duration);
        if let Some(hashes) = &mut self.hashes
            && is_hashed
        {
            let parameters = self.stepper.parameters();
            hashes.add(self.progress.step, own, self.stepper.layout(), &parameters);
        }
        self.progress.step += 1;
        self.progress.step_in_epoch += 1;
        if due.checkpoint && !stop && !due.end {
            self.total_scores(epoch)?;
            self.save()?;
        }
        Ok(())
    }

    /// Reports what changes with the epoch, such as the size of images: in the session's first
    /// epoch and when it differs from the last.
    fn note_epoch(&self) {
        let epoch = self.progress.epoch;
        let note = |epoch| T::note_of_epoch(&self.session.data.train, epoch);
        let before = epoch.checked_sub(1).and_then(note);
        if let Some(text) = note(epoch)
            && (self.progress.step == self.first_step || before.as_ref() != Some(&text))
        {
            let reporter = self.session.reporter;
            reporter.note(&format!("epoch {}: {text}", epoch + 1));
        }
    }

    /// Reports once, after the first step, which operations are burn's own and which parameters had
    /// no gradient; and once if the operating system refuses threads.
    fn note_once(&mut self) {
        let reporter = self.session.reporter;
        if self.progress.step == self.first_step {
            for operation in layers::fallback_ops() {
                reporter.note(&format!(
                    "slower fallback of burn in use for the {operation}"
                ));
            }
            if let Some(warning) = without_gradient(&self.stepper.unused_parameters()) {
                reporter.warn(&warning);
            }
        }
        if threads::num_refused() > 0 && !self.noted_refused_threads {
            self.noted_refused_threads = true;
            reporter.warn(
                "the operating system refuses threads (limits: `ulimit -u`, pids.max of the cgroup): batches are loaded and checkpoints written between steps",
            );
        }
    }

    /// Reports once, after the session's second step, the memory and the multiply-adds of a step;
    /// on a CPU also the share of the passes that burn's operations took, if it is large.
    fn note_cost(&mut self, seconds: &Seconds) {
        const WORTH_A_NOTE: f64 = 0.1;
        let num_steps = self.progress.step - self.first_step;
        if num_steps > 1 {
            return;
        }
        let in_kernels: f64 = kernel_times().iter().map(|kernel| kernel.seconds).sum();
        if num_steps == 0 {
            self.seconds_in_kernels = in_kernels;
            return;
        }
        let mut cells = vec![format!("peak {}", bytes(peak_memory_bytes()))];
        if self.multiply_adds > 0.0 {
            let millions = self.multiply_adds / 1e6;
            let millions = decimal(millions, 1);
            cells.push(format!("{millions} M multiply-adds/sample forward"));
        }
        let config = self.session.config;
        // A synchronised norm waits for other ranks in the passes.
        let waits = config.batch.batch_norm == BatchNormKind::Sync && config.num_workers() > 1;
        let passes = seconds.forward + seconds.backward;
        let share = 1.0 - (in_kernels - self.seconds_in_kernels) / passes.max(f64::MIN_POSITIVE);
        if share > WORTH_A_NOTE && !waits && !config.compute.device.launches_kernels() {
            cells.push(format!("{:.0} % outside Lockstep's kernels", 100.0 * share));
        }
        self.session.reporter.notes(&lines::row("step", &cells));
    }

    /// Returns the context of the next step. All replicas synchronise after it if it `must_sync`,
    /// or if ranks that run independently stop there.
    fn context(&self, epoch: &mut Epoch<'run, T>, must_sync: bool) -> Result<StepContext> {
        let session = self.session;
        let step = self.progress.step;
        let method = &session.config.sync.method;
        let stop = session.stop.is_raised();
        let must_sync = match distance(method, step) {
            Some(distance) => {
                let vote = epoch
                    .vote
                    .get_or_insert_with(|| StopVote::new(&*session.communicator, distance, step));
                vote.meets_after(step, stop, must_sync || meets_after(method, step))?
            }
            None => must_sync,
        };
        Ok(StepContext {
            epoch: self.progress.epoch,
            step,
            learning_rate: self.learning_rate(self.progress.schedule_step()),
            must_sync,
            keeps_gradients: false,
            stop,
        })
    }

    /// Takes the results that became known with a step. Waits for those of the step itself if they
    /// `must_be_complete` and after the first step. Returns the scores of the last step whose
    /// results are known now.
    /// Collective: all ranks.
    fn take_results(
        &mut self,
        epoch: &mut Epoch<'_, T>,
        end: StepEnd,
        must_be_complete: bool,
    ) -> Result<Option<ScoreSums>> {
        let waits = must_be_complete || end.stop || epoch.last_scores.is_none();
        let rest = match waits {
            true => self.stepper.wait(&self.times.timer)?,
            false => None,
        };
        let mut scores = None;
        for results in end.results.into_iter().chain(rest) {
            self.note_outcome(&results)?;
            epoch.own += results.scores.clone().unwrap_or_default();
            scores = results.scores.or(scores);
        }
        let last = scores.clone().or(epoch.last_scores.take());
        epoch.last_scores = Some(last.unwrap_or_default());
        Ok(scores)
    }

    /// Sums the scores of the epoch so far over all ranks and sessions, and writes the hashes of
    /// its steps.
    /// Collective: all ranks.
    fn total_scores(&mut self, epoch: &Epoch<'_, T>) -> Result<()> {
        let communicator = &*self.session.communicator;
        if let Some(hashes) = &mut self.hashes {
            hashes.write(self.stepper.layout(), communicator, self.session.reporter)?;
        }
        self.own_noise += self.stepper.take_noise();
        let mut further = [self.own_noise.small, self.own_noise.num_small];
        self.progress.epoch_scores = total_scores_with(communicator, &epoch.own, &mut further)?;
        self.progress.epoch_scores += epoch.earlier.clone();
        self.noise = NoiseSums {
            small: further[0],
            num_small: further[1],
            ..self.own_noise
        };
        Ok(())
    }

    /// Reports a step that changed nothing: overflows of scaled gradients at the first, second,
    /// fourth, eighth time and so on, since they are normal while the scale adapts. Ends the run
    /// after too many skipped steps.
    fn note_outcome(&mut self, results: &StepResults) -> Result<()> {
        let reporter = self.session.reporter;
        let on_non_finite = self.session.config.run.on_non_finite;
        match (&results.outcome, on_non_finite) {
            (StepOutcome::Overflowed(scale), _) if scale.num_overflows().is_power_of_two() => {
                reporter.note(&format!(
                    "step {}: gradients overflowed, step skipped; loss scale halved to {}, {} skipped so far",
                    results.step + 1,
                    scale.factor(),
                    records::counted(scale.num_overflows() as usize, "step")
                ));
            }
            (StepOutcome::Skipped(reason), OnNonFinite::Skip { max_skipped_steps }) => {
                self.progress.skipped_steps += 1;
                let skipped = self.progress.skipped_steps;
                ensure!(
                    skipped <= max_skipped_steps,
                    "{reason}: skipped steps: expected at most {max_skipped_steps}, this is one more; resume from an older checkpoint with a lower learning rate, or raise --max-skipped-steps"
                );
                reporter.warn(&format!(
                    "{reason}: step skipped on all ranks, {skipped} of at most {max_skipped_steps}"
                ));
            }
            _ => {}
        }
        Ok(())
    }
}

/// Returns the warning about parameters of these paths, if there are any.
fn without_gradient(paths: &[&str]) -> Option<String> {
    const NUM_NAMED: usize = 8;
    let num_more = paths.len().saturating_sub(NUM_NAMED);
    let more = match num_more {
        0 => String::new(),
        _ => format!(" and {num_more} more"),
    };
    let first = paths[..paths.len() - num_more].join(", ");
    (!paths.is_empty()).then(|| {
        format!(
            "model: no gradient in the first step for {first}{more}: the forward pass does not use them, or detaches them. Weight decay still \
             changes them; remove them from the model, or --freeze them"
        )
    })
}

fn shard_plan<T: Task>(session: &Session<'_, T>, epoch: u64) -> Result<ShardPlan> {
    let config = session.config;
    let rank = session.communicator.rank();
    let world_size = session.communicator.world_size();
    let num_shards = config.sync.method.virtual_shards().unwrap_or(world_size);
    let own_shards = own_shards(num_shards, rank, world_size);
    let shard = ShardConfig {
        num_samples: session.data.train.len(),
        global_batch_size: config.batch.global_batch_size,
        seed: config.run.seed,
        epoch,
        shuffle: true,
        drop_last: config.train_split.drop_last,
        shard_index: own_shards.start,
        num_shards,
        num_own_shards: own_shards.len(),
    };
    Ok(session.data.train.plan(shard)?)
}

fn loader_config<T: Task>(session: &Session<'_, T>, progress: &Progress) -> LoaderConfig {
    let config = session.config;
    LoaderConfig {
        seed: config.run.seed,
        epoch: progress.epoch,
        first_step: progress.step_in_epoch as usize,
        ..LoaderConfig::new(config.micro_batch_size()).with_threads(config.data.loader_threads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_without_a_gradient_are_named_up_to_eight() {
        assert_eq!(without_gradient(&[]), None);
        let names: Vec<String> = (0..11).map(|index| format!("p{index}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let of = |count| without_gradient(&names[..count]).unwrap();
        assert!(
            of(1).starts_with("model: no gradient in the first step for p0: the forward pass"),
            "{}",
            of(1)
        );
        assert!(
            of(11).contains("for p0, p1, p2, p3, p4, p5, p6, p7 and 3 more: "),
            "{}",
            of(11)
        );
    }
}
