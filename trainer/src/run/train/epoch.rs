//! One epoch of steps: input, update, log, checkpoints within the epoch.
//!
//! In: where the run stands. Out: the run an epoch later, or stopped in it. Invariant: every rank walks the same path through this file.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use datasets::{ImageShape, Loader, LoaderConfig, Mix, ShardConfig, ShardPlan, threads};
use distributed::watchdog::Phase;

use super::Training;
use crate::config::{InputKind, OnNonFinite, SamplerKind};
use crate::measure::gather::total_scores_with;
use crate::measure::metrics::{ScoreSums, StepLine};
use crate::model::ImageClassifier;
use crate::model::data;
use crate::model::family::seed_draws;
use crate::model::input::Input;
use crate::run::checkpoint::Progress;
use crate::run::session::Session;
use crate::run::step_hashes::OwnHashes;
use crate::step::gradient_noise::NoiseSums;
use crate::step::loss_scale::LossScale;
use crate::step::sync_plan::{averages_early, distance, meets_after, own_shards};
use crate::step::{StepContext, StepEnd, StepOutcome};
use crate::world::stop::StopVote;

/// What of an epoch is under way.
struct Epoch<'a> {
    input: Input,
    num_steps: u64,
    /// What this rank scored in this session.
    own: ScoreSums,
    /// What an earlier session of this epoch scored: a sum over all ranks already.
    earlier: ScoreSums,
    /// Of the last step whose results are known.
    last_scores: Option<ScoreSums>,
    /// From the first step in which ranks run apart.
    vote: Option<StopVote<'a>>,
    /// The plan of all ranks' samples, where the loss is a mean by their class weights.
    weighted: Option<ShardPlan>,
}

impl<'run, M: ImageClassifier> Training<'run, M> {
    /// The steps that are left of the epoch; whether the ranks agreed to stop in it.
    pub(super) fn train(&mut self) -> Result<bool> {
        let session = self.session;
        let plan = shard_plan(session, self.progress.epoch)?;
        let num_steps = plan.num_steps() as u64;
        self.note_image_shape();
        let mix = &session.config.train_split;
        // Of mixed images, which have several classes, the mean is over the samples, as PyTorch's of class probabilities is.
        let weights_samples =
            !session.class_weights.is_empty() && mix.mixup.is_none() && mix.cutmix.is_none();
        let weighted = weights_samples.then(|| plan.clone());
        let loader = Loader::start(
            Arc::clone(&session.data.train),
            plan,
            loader_config(session, &self.progress),
        );
        let mut epoch = Epoch {
            input: Input::start(loader, session.config.compute.input, self.stepper.device()),
            num_steps,
            own: ScoreSums::default(),
            earlier: self.progress.epoch_scores,
            last_scores: None,
            vote: None,
            weighted,
        };
        let mut stopped = false;
        self.times.energy.begin();
        while !stopped && self.progress.step_in_epoch < num_steps {
            stopped = self.step(&mut epoch)?;
        }
        self.times.energy.end();
        self.total_scores(&epoch)?;
        Ok(stopped)
    }

    /// One step, its line in the log, and a checkpoint if one is due within the epoch; whether the ranks agreed to stop.
    fn step(&mut self, epoch: &mut Epoch<'run>) -> Result<bool> {
        let config = &self.session.config.run;
        let start = Instant::now();
        let loaded = {
            let _data = self.times.timer.enter(Phase::Data);
            epoch
                .input
                .next()
                .context("loader: ended before the epoch")??
        };
        let global_num_samples = loaded.global_num_samples as u64;
        let saves = config
            .checkpoint_every_steps
            .is_some_and(|every| (self.progress.step + 1).is_multiple_of(every));
        let ends_epoch = self.progress.step_in_epoch + 1 == epoch.num_steps;
        let number = self.progress.step + 1;
        let is_shown = config
            .tensorboard_every
            .is_some_and(|every| number.is_multiple_of(every));
        let keeps_gradients = self.tensorboard.is_open() && (is_shown || ends_epoch);
        let context = StepContext {
            keeps_gradients,
            ..self.context(epoch, saves || ends_epoch)?
        };
        if let Some(batch) = loaded
            .micro_batches
            .first()
            .filter(|_| is_shown || number == 1)
        {
            self.tensorboard
                .batch(number, batch, &self.session.data.normalization);
        }
        seed_draws(
            self.stepper.device(),
            (config.seed, self.session.communicator.rank()),
            context.step,
        );
        let end = self.stepper.step(context, loaded, &self.times.timer)?;
        // What is printed, saved or hashed is whole; between, a device is not waited for.
        let should_log = self.is_line_due();
        // What only a stop averages is no part of what a repetition computes.
        let is_forced =
            !saves && !ends_epoch && context.must_sync && self.averages_early(context.step);
        let hashes = !is_forced && OwnHashes::is_of(&self.hashes, &self.progress);
        let own = self.add_scores(
            epoch,
            &end,
            should_log || saves || ends_epoch || hashes || is_shown,
        )?;
        if keeps_gradients && end.outcome == StepOutcome::Updated {
            self.show_gradients();
        }
        self.note_outcome(end.outcome)?;
        self.note_fallbacks();
        self.checkpointer.look()?;

        let mut line = StepLine {
            epoch: self.progress.epoch,
            step_in_epoch: self.progress.step_in_epoch,
            steps_per_epoch: epoch.num_steps,
            scores: epoch.last_scores.unwrap_or_default(),
            learning_rate: context.learning_rate,
            duration: start.elapsed(),
            seconds: self.times.timer.take_step(),
            global_num_samples,
            time_left: None,
        };
        line.time_left = self.progress_file.step(&line, number);
        self.session.reporter.step(&line, should_log || ends_epoch);
        if ends_epoch || config.tensorboard_every.map_or(should_log, |_| is_shown) {
            self.tensorboard.step(number, &line);
        }
        self.times
            .add_step(self.progress.step, global_num_samples, line.duration);
        if let Some(hashes) = self.hashes.as_mut().filter(|_| hashes) {
            hashes.add(
                self.progress.step,
                own,
                self.stepper.layout(),
                &self.stepper.parameters(),
            );
        }
        self.progress.step += 1;
        self.progress.step_in_epoch += 1;
        if saves && !end.stop && !ends_epoch {
            self.total_scores(epoch)?;
            self.save()?;
        }
        Ok(end.stop)
    }

    /// Returns true if the step under way has a line, apart from the last one of an epoch, which always has.
    fn is_line_due(&self) -> bool {
        let every = self.session.config.run.log_every_steps;
        (self.progress.step_in_epoch + 1).is_multiple_of(every)
            || self.session.reporter.is_step_due()
    }

    fn averages_early(&self, step: u64) -> bool {
        let config = self.session.config;
        averages_early(&config.sync.method, config.num_workers(), step)
    }

    /// How the last step's gradient is spread, for TensorBoard.
    fn show_gradients(&mut self) {
        if let Some(gradients) = self.stepper.gradients() {
            self.tensorboard
                .gradients(self.progress.step + 1, self.stepper.layout(), &gradients);
        }
    }

    /// Says the size of images where it changes with the epoch, at the session's first and whenever it is another.
    fn note_image_shape(&mut self) {
        let (session, epoch) = (self.session, self.progress.epoch);
        let Some(shape) = image_shape(session, epoch) else {
            return;
        };
        if self.image_shape.replace(shape) != Some(shape) {
            session.reporter.note(&format!(
                "epoch {epoch:02}: images of {} x {} pixels",
                shape.height, shape.width
            ));
        }
    }

    /// Says once, after the first step, which operations are burn's own and which parameters had no gradient, and once whether the operating
    /// system refuses threads.
    fn note_fallbacks(&mut self) {
        if !std::mem::replace(&mut self.noted_first_step, true) {
            for operation in layers::fallback_ops() {
                let note =
                    format!("burn's own operation, which is slower, stands in for the {operation}");
                self.session.reporter.note(&note);
            }
            if let Some(warning) = without_gradient(&self.stepper.unused_parameters()) {
                self.session.reporter.warn(&warning);
            }
        }
        if threads::num_refused() > 0 && !std::mem::replace(&mut self.noted_refused_threads, true) {
            self.session.reporter.warn(
                "the operating system refuses threads (limits: `ulimit -u`, pids.max of the cgroup): batches and checkpoints are made between steps until it gives some",
            );
        }
    }

    /// What the next step is to be; all replicas `must_sync` after it, or where ranks that run apart found that they stop there.
    fn context(&self, epoch: &mut Epoch<'run>, must_sync: bool) -> Result<StepContext> {
        let (session, step, method) = (
            self.session,
            self.progress.step,
            &self.session.config.sync.method,
        );
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
        let weight = |index: usize| session.class_weights[session.data.train.label(index)];
        let weight_sum = |plan: &ShardPlan| {
            plan.global_batch(self.progress.step_in_epoch as usize)
                .map(weight)
                .sum()
        };
        Ok(StepContext {
            epoch: self.progress.epoch,
            step: self.progress.step,
            weight_sum: epoch.weighted.as_ref().map(weight_sum),
            learning_rate: self.schedule.at(self.progress.schedule_step()),
            must_sync,
            keeps_gradients: false,
            stop,
        })
    }

    /// Adds what became known with a step; of this step itself, where it must be or nothing is known yet. What is known of the
    /// last step that is.
    fn add_scores(
        &mut self,
        epoch: &mut Epoch<'_>,
        end: &StepEnd,
        must_be_whole: bool,
    ) -> Result<Option<ScoreSums>> {
        let mut scores = end.scores;
        epoch.own += scores.unwrap_or_default();
        if must_be_whole || end.stop || epoch.last_scores.is_none() {
            let rest = self.stepper.wait(&self.times.timer)?;
            epoch.own += rest.unwrap_or_default();
            scores = rest.or(scores);
        }
        epoch.last_scores = scores.or(epoch.last_scores);
        Ok(scores)
    }

    /// The scores of the epoch so far, over all ranks and sessions; what was hashed in it is written.
    fn total_scores(&mut self, epoch: &Epoch<'_>) -> Result<()> {
        if let Some(hashes) = &mut self.hashes {
            let Session {
                communicator,
                files,
                reporter,
                ..
            } = self.session;
            hashes.write(self.stepper.layout(), &**communicator, (files, reporter))?;
        }
        self.own_noise += self.stepper.take_noise();
        let mut further = [self.own_noise.small, self.own_noise.num_small];
        self.progress.epoch_scores =
            total_scores_with(&*self.session.communicator, epoch.own, &mut further)?;
        self.progress.epoch_scores += epoch.earlier;
        self.noise = NoiseSums {
            small: further[0],
            num_small: further[1],
            ..self.own_noise
        };
        Ok(())
    }

    /// Averages what a step changed, or says what became of one that changed nothing.
    fn note_outcome(&mut self, outcome: StepOutcome) -> Result<()> {
        match outcome {
            StepOutcome::Updated => {
                self.ema
                    .iter_mut()
                    .for_each(|ema| ema.update(&self.stepper.parameters()));
                Ok(())
            }
            StepOutcome::Overflowed(scale) => {
                note_overflow(self.session, self.progress.step, scale);
                Ok(())
            }
            StepOutcome::Skipped(reason) => {
                note_skipped_step(self.session, &mut self.progress, &reason)
            }
        }
    }
}

/// The warning about parameters of these paths, if there are any.
fn without_gradient(paths: &[&str]) -> Option<String> {
    const NUM_NAMED: usize = 8;
    let (first, rest) = paths.split_at(paths.len().min(NUM_NAMED));
    let more = if rest.is_empty() {
        String::new()
    } else {
        format!(" and {} more", rest.len())
    };
    (!first.is_empty()).then(|| {
        format!(
            "model: no gradient in the first step for {}{more}: the forward pass does not use them, or detaches them. Weight decay still changes \
             them; remove them from the model, or --freeze them",
            first.join(", ")
        )
    })
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
    let OnNonFinite::Skip {
        max_skipped_steps: limit,
    } = session.config.run.on_non_finite
    else {
        return Ok(());
    };
    progress.skipped_steps += 1;
    ensure!(
        progress.skipped_steps <= limit,
        "{reason}: skipped steps: expected at most {limit}, this is one more; go back to an older checkpoint with a lower learning rate, or raise --max-skipped-steps"
    );
    session.reporter.warn(&format!(
        "{reason}: step skipped on all ranks, {} of at most {limit}",
        progress.skipped_steps
    ));
    Ok(())
}

fn shard_plan(session: &Session<'_>, epoch: u64) -> Result<ShardPlan> {
    let config = session.config;
    let (rank, world_size) = (
        session.communicator.rank(),
        session.communicator.world_size(),
    );
    let num_shards = config.sync.method.virtual_shards().unwrap_or(world_size);
    let own_shards = own_shards(num_shards, rank, world_size);
    let config_of_plan = ShardConfig {
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
    Ok(match config.train_split.sampler {
        Some(SamplerKind::Balanced) => ShardPlan::balanced(config_of_plan, &*session.data.train)?,
        _ => ShardPlan::new(config_of_plan)?,
    })
}

/// The shape of an epoch's images, where the run says one apart from the data set's.
fn image_shape(session: &Session<'_>, epoch: u64) -> Option<ImageShape> {
    let config = session.config;
    let resolution = config
        .data
        .resolution()
        .filter(|resolution| resolution.varies())?;
    let side = resolution.in_epoch(epoch, config.schedule.planned_epochs());
    Some(ImageShape {
        height: side,
        width: side,
        ..session.data.train.image_shape()
    })
}

fn loader_config(session: &Session<'_>, progress: &Progress) -> LoaderConfig {
    let config = session.config;
    LoaderConfig {
        image_shape: image_shape(session, progress.epoch),
        augment: data::augment(&config.train_split),
        mix: Mix {
            mixup: config.train_split.mixup,
            cutmix: config.train_split.cutmix,
        },
        raw: config.compute.input == InputKind::Device,
        seed: config.run.seed,
        epoch: progress.epoch,
        first_step: progress.step_in_epoch as usize,
        ..LoaderConfig::new(
            config.micro_batch_size(),
            session.data.normalization.clone(),
        )
        .with_threads(config.data.loader_threads)
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
