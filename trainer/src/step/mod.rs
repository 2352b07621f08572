//! One training step: micro-batches to gradients, and these to parameters.
//!
//! In: the loaded samples of one step, its learning rate. Out: a changed model; how the step ended, and its scores.
//! Invariant: between a step's first and last collective no rank leaves alone: all ranks draw the same conclusion from the same
//! global step status.
//! Source: Li et al. 2020, PyTorch Distributed (2006.15704), for buckets; Goyal et al. 2017 (1706.02677), section 3, for the mean.

pub mod ema;
pub mod gradient_noise;
pub mod loss_scale;
pub mod norm_reducer;
pub mod optimizer;
pub mod readback;
pub mod sync_plan;

mod bucket_hook;
mod config;
mod end;
mod pass;
mod replica;
mod update;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, ensure};
use burn::tensor::{Device, Tensor};
use datasets::{DeviceBatch, LoadedStep};
use distributed::{
    CollectiveError, Communicator,
    reduction::ReductionState,
    replica::{ElementOrder, ParameterLayout, broadcast_module, replace, tensors},
    watchdog::Phase,
};
use layers::{PassContext, StatisticsReducer};

pub use self::config::{Clip, StepConfig};
pub use self::end::{StepEnd, StepOutcome};
use self::pass::{Pass, forward, placeholder};
use self::replica::Replica;
use self::update::{Finished, MicroStep, Step, Update};
pub use self::update::{check_threads, serve};
use crate::measure::metrics::{ScoreSums, StepTraffic};
use crate::measure::timer::Timer;
use crate::model::ImageClassifier;
use crate::step::gradient_noise::NoiseSums;
use crate::step::loss_scale::LossScale;
use crate::step::norm_reducer::{NormReducer, expect_synchronised};
use crate::step::optimizer::{OptimizerState, with_ids_by_order};

/// One step of a run: the same on all ranks, but for the last two.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepContext {
    /// Pass over the train split, from 0.
    pub epoch: u64,
    /// Optimizer update, from 0 over the whole run.
    pub step: u64,
    /// Of this update.
    pub learning_rate: f64,
    /// Whether all replicas must be equal after it, whatever the method: the epoch ends, or a checkpoint is due.
    pub must_sync: bool,
    /// Whether [`Stepper::gradients`] will be asked for after it; a rank's own affair.
    pub keeps_gradients: bool,
    /// Sum of the class weights of the step's samples over all ranks, where classes have weights and samples one class each: the loss
    /// is the mean by these weights.
    pub weight_sum: Option<f64>,
    /// Whether this rank wants the run to stop after it.
    pub stop: bool,
}

/// A model in training on one rank.
#[derive(Debug)]
pub struct Stepper<M> {
    model: M,
    /// What makes parameters of gradients, by the way that `--sync` and `--update` choose.
    update: Box<dyn Update<M>>,
    loss_scale: LossScale,
    /// Of the norm statistics.
    statistics: ParameterLayout,
    /// Of the parameters.
    layout: ParameterLayout,
    traffic: StepTraffic,
    noise: NoiseSums,
    /// Whether a forward pass has shown that all normalisations are synchronised that are to be.
    has_checked_norms: bool,
    /// When the last backward pass began.
    backward_start: Instant,
    communicator: Arc<dyn Communicator>,
    device: Device,
    config: StepConfig,
}

impl<M: ImageClassifier> Stepper<M> {
    /// Takes root's parameters and norm statistics on every rank and plans the buckets.
    /// Collective: all ranks.
    ///
    /// `device` is the plain device; the model trains on its autodiff form.
    ///
    /// # Errors
    /// When the ranks' models differ in structure, norms are to be synchronised and the model's are not, or the way to update has not
    /// that optimizer.
    pub fn new(
        model: M,
        config: StepConfig,
        communicator: Arc<dyn Communicator>,
        device: &Device,
    ) -> Result<Self> {
        let model = broadcast_module(model, &*communicator, 0)?;
        let mut stepper = Self {
            update: update::start(&config, &model, &communicator, device)?,
            loss_scale: LossScale::new(config.loss_scale),
            statistics: ParameterLayout::statistics(&model),
            layout: ParameterLayout::new(&model),
            traffic: StepTraffic::default(),
            noise: NoiseSums::default(),
            has_checked_norms: false,
            backward_start: Instant::now(),
            device: device.clone().autodiff(),
            model: model.clone(),
            communicator,
            config,
        };
        stepper.attach(model)?;
        Ok(stepper)
    }

    /// Makes one step.
    ///
    /// The gradient is the exact mean over the step's samples, whichever rank holds how many: each rank's loss is the sum over
    /// its samples divided by the global number of samples, and gradients are summed. A rank that updates alone, or a server by
    /// itself, takes the mean over its own samples.
    ///
    /// # Errors
    /// A non-finite loss or gradient on any rank (before the update, on all ranks) unless such steps are skipped, or ranks that
    /// drifted apart. Where the device updates and no step is skipped, the first comes a step late, or from [`wait`](Self::wait).
    ///
    /// # Collective
    /// Must be called by all ranks, with the same context but for its wish to stop, and whether it keeps gradients.
    pub fn step(
        &mut self,
        context: StepContext,
        loaded: LoadedStep<DeviceBatch>,
        timer: &Timer,
    ) -> Result<StepEnd> {
        timer.begin_step(context.epoch, context.step);
        let own_labels = || loaded.micro_batches.iter().flat_map(|batch| &batch.labels);
        let step = Step {
            context,
            num_own: own_labels().count(),
            own_weight_sum: context.weight_sum.map(|_| {
                self.config
                    .weight_sum(own_labels().map(|label| *label as usize))
            }),
            num_global: loaded.global_num_samples,
            loss_scale: self.loss_scale.factor(),
            can_skip: self.config.skips_non_finite || self.loss_scale.is_dynamic(),
        };
        let replayed = self
            .update
            .replay(&mut self.model, &loaded.micro_batches, &step, timer);
        if let Some(finished) = replayed.map_err(|error| self.add_loss_scale_hint(error))? {
            return self.settle(finished, None);
        }
        // A forward pass changes norm statistics, which a step that is skipped leaves as they were.
        let saved = step
            .can_skip
            .then(|| tensors(&self.model, &self.statistics, ElementOrder::Module));
        let plan = self.update.begin(&self.model, &step);
        let num_micro_steps = loaded.micro_batches.len();
        for (index, batch) in loaded.micro_batches.into_iter().enumerate() {
            let micro = plan.micro_step(index, num_micro_steps, !batch.labels.is_empty());
            self.micro_step(batch, &step, &micro, timer)?;
        }
        let finished = self.update.finish(&mut self.model, &step, &plan, timer);
        let finished = finished.map_err(|error| self.add_loss_scale_hint(error))?;
        if let (Some(batches), Some(norms)) = (self.config.gradient_noise, finished.squared_norms)
            && step.num_global == batches.large
        {
            self.noise += NoiseSums::of_step(norms, num_micro_steps, batches);
        }
        self.settle(finished, saved)
    }

    /// Forward and backward pass of one micro-batch.
    fn micro_step(
        &mut self,
        batch: DeviceBatch,
        step: &Step,
        micro: &MicroStep,
        timer: &Timer,
    ) -> Result<()> {
        let loss_sum = {
            let _forward = timer.enter(Phase::Forward);
            let Pass { output, loss_sum } = self.pass(batch, micro.loss_factor)?;
            self.check_norms()?;
            self.update.end_forward(&mut self.model, output)?;
            loss_sum
        };
        let _backward = timer.enter(Phase::Backward);
        self.backward_start = Instant::now();
        let loss =
            loss_sum.map(|sum| sum.mul_scalar(f64::from(step.loss_scale) / micro.divisor as f64));
        self.update.backward(&self.model, loss, step, micro);
        Ok(())
    }

    /// The forward pass of one micro-batch. One without samples needs none, unless others wait for its share of a synchronised norm.
    fn pass(&self, batch: DeviceBatch, loss_factor: Option<f64>) -> Result<Pass> {
        let forward = |batch, has_samples| {
            self.pass_context(has_samples)
                .scope(|| forward(&self.model, batch, &*self.config.loss, loss_factor))
        };
        if !batch.labels.is_empty() {
            let (output, loss_sum) = forward(batch, true)?;
            return Ok(Pass {
                output: Some(output),
                loss_sum: Some(loss_sum),
            });
        }
        if !self.syncs_norm() {
            return Ok(Pass::default());
        }
        let (_, loss_sum) = forward(placeholder(batch.shape).upload(&self.device), false)?;
        Ok(Pass {
            output: None,
            loss_sum: Some(loss_sum),
        })
    }

    /// Checks once, after the first forward pass, that no normalisation is left out where statistics are summed over ranks.
    fn check_norms(&mut self) -> Result<()> {
        let is_due = self.syncs_norm() && !std::mem::replace(&mut self.has_checked_norms, true);
        if is_due {
            expect_synchronised(&self.model)
        } else {
            Ok(())
        }
    }

    /// Ends a step; one in which something was not finite is as if it had never begun, if it can be skipped.
    ///
    /// # Errors
    /// What was not finite, where the step cannot be skipped.
    fn settle(&mut self, finished: Finished, saved: Option<Vec<Tensor<1>>>) -> Result<StepEnd> {
        let Finished {
            stop,
            scores,
            traffic,
            fault,
            ..
        } = finished;
        self.traffic.num_steps += 1;
        self.traffic.total += traffic;
        let Some(fault) = fault else {
            self.loss_scale.note_good_step();
            return Ok(StepEnd {
                stop,
                outcome: StepOutcome::Updated,
                scores,
            });
        };
        let outcome = self.skip_step(fault)?;
        if let Some(saved) = saved {
            self.model = replace(
                self.model.clone(),
                &self.statistics,
                ElementOrder::Module,
                saved,
            );
        }
        // Of an overflow the losses are as good as any: only its gradients were scaled too far.
        let counts = matches!(outcome, StepOutcome::Overflowed(_));
        Ok(StepEnd {
            stop,
            outcome,
            scores: scores.filter(|_| counts),
        })
    }

    /// Goes over a step in which something was not finite.
    ///
    /// # Errors
    /// `fault`, where the step cannot be skipped.
    fn skip_step(&mut self, fault: CollectiveError) -> Result<StepOutcome> {
        let is_gradient = matches!(
            &fault,
            CollectiveError::NonFinite {
                parameter: Some(_),
                ..
            }
        );
        if is_gradient && self.loss_scale.note_overflow() {
            return Ok(StepOutcome::Overflowed(self.loss_scale));
        }
        if self.config.skips_non_finite {
            return Ok(StepOutcome::Skipped(fault.to_string()));
        }
        Err(self.add_loss_scale_hint(fault.into()))
    }

    /// Adds what a fixed loss scale may have to do with a gradient that is not finite.
    fn add_loss_scale_hint(&self, error: anyhow::Error) -> anyhow::Error {
        match (error.downcast_ref(), self.loss_scale.factor()) {
            (Some(CollectiveError::NonFinite { parameter: Some(_), .. }), factor) if factor > 1 => error.context(
                format!("gradients times a fixed loss scale of {factor}; try a smaller one, or --loss-scale dynamic"),
            ),
            _ => error,
        }
    }

    /// Waits for the results of all steps made so far; the scores of those that [`step`](Self::step) has not told of.
    ///
    /// # Errors
    /// A non-finite loss or gradient in one of them.
    pub fn wait(&mut self, timer: &Timer) -> Result<Option<ScoreSums>> {
        self.update
            .wait(&mut self.model, timer)
            .map_err(|error| self.add_loss_scale_hint(error))
    }

    pub fn model(&self) -> &M {
        &self.model
    }

    /// The model, its training over, and how many updates asynchronous servers made, by their staleness.
    /// Collective: all ranks.
    pub fn finish(self) -> Result<(M, Option<Vec<u64>>)> {
        Ok((self.model, self.update.end()?))
    }

    /// The parameters, flat in module order.
    pub fn parameters(&self) -> Cow<'_, [f32]> {
        self.update.parameters()
    }

    /// The mean gradient of the last step, flat as [`layout`](Self::layout) says, where that was to
    /// [keep](StepContext::keeps_gradients) it: over all ranks' samples, or this rank's own where it updated alone. Nothing where
    /// servers update.
    pub fn gradients(&mut self) -> Option<Vec<f32>> {
        self.update.gradients()
    }

    /// What the optimizer remembers: its state to save.
    pub fn optimizer_state(&self) -> OptimizerState {
        self.update.optimizer_state()
    }

    /// Continues from a saved model (parameters and norm statistics), a saved state of the optimizer and, if it was saved, the loss scale.
    /// Collective: all ranks.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn restore(
        &mut self,
        model: M,
        state: &OptimizerState,
        loss_scale: Option<LossScale>,
    ) -> Result<()> {
        self.loss_scale = loss_scale.unwrap_or(self.loss_scale);
        self.update.restore(&model, state)?;
        self.attach(model)
    }

    /// Returns the state of the gradients' reduction between two steps.
    pub fn reduction_state(&self) -> Option<ReductionState> {
        self.update.replica()?.reducer.reduction_state()
    }

    /// Continues after `num_steps` steps with the reduction's state from then.
    ///
    /// # Panics
    /// If a length differs from that of the [own state](Self::reduction_state).
    pub fn restore_reduction(&mut self, num_steps: u64, state: &ReductionState) {
        if let Some(replica) = self.update.replica() {
            replica.reducer.restore(num_steps, state);
        }
    }

    /// Where the batches of its steps belong: the device with its autodiff.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Where each parameter lies in a flat buffer.
    pub fn layout(&self) -> &ParameterLayout {
        &self.layout
    }

    /// How long after the last backward pass began each parameter's gradient was there, seconds; 0 where there was none.
    pub fn parameter_ready_s(&self) -> Vec<f64> {
        let since = |at: Option<Instant>| {
            at.map_or(0.0, |at| {
                at.saturating_duration_since(self.backward_start)
                    .as_secs_f64()
            })
        };
        match self.update.replica() {
            Some(replica) => replica.reducer.arrivals().into_iter().map(since).collect(),
            None => vec![0.0; self.layout.entries().len()],
        }
    }

    /// What this rank sent for gradients since the last call.
    pub fn take_traffic(&mut self) -> StepTraffic {
        std::mem::take(&mut self.traffic)
    }

    /// What was measured of this rank's gradients since the last call.
    pub fn take_noise(&mut self) -> NoiseSums {
        std::mem::take(&mut self.noise)
    }

    /// How gradients reach the buckets and these the other ranks, in words.
    pub fn gradient_route(&self) -> &'static str {
        let Some(replica) = self.update.replica() else {
            return self.update.route();
        };
        let is_possible = self.communicator.supports_threads();
        match (
            self.communicator.world_size() > 1,
            replica.reducer.overlaps(),
            self.model.supports_pass_context(),
        ) {
            (false, ..) => self.update.route(),
            (true, true, true) => "layer by layer, reduced beside the backward pass",
            (true, true, false) => {
                "after the backward pass, as this model hands none over, reduced by a thread"
            }
            (true, false, _) if self.config.sync.overlap && !is_possible => {
                "after the backward pass, as this MPI library lets one thread call it (MPI_THREAD_MULTIPLE is needed for overlap)"
            }
            (true, false, _) => "after the backward pass",
        }
    }

    /// Paths of the parameters that no backward pass of this rank has given a gradient; none before the first step.
    pub fn unused_parameters(&self) -> Vec<&str> {
        self.update.unused_parameters()
    }

    /// The factor on the next step's loss.
    pub fn loss_scale(&self) -> LossScale {
        self.loss_scale
    }

    /// Trains `model` from now on, tied to its update.
    fn attach(&mut self, model: M) -> Result<()> {
        ensure!(
            !self.syncs_norm() || model.supports_pass_context(),
            "batch norm sync: this model has no synchronised norm, expected one that supports_pass_context; use --batch-norm local"
        );
        let model = if self.config.own_optimizer.is_some() {
            with_ids_by_order(model)
        } else {
            model
        };
        self.update.attach(&model)?;
        self.model = model;
        Ok(())
    }

    /// Whether norm statistics are summed over ranks; a rank that is updated on its device shares nothing.
    fn syncs_norm(&self) -> bool {
        self.config.sync_batch_norm && self.update.replica().is_some()
    }

    /// What the layers of a forward pass, and its backward pass, share with others.
    fn pass_context(&self, has_samples: bool) -> PassContext {
        PassContext {
            reducer: self.syncs_norm().then(|| {
                let reducer = NormReducer::new(Arc::clone(&self.communicator), has_samples);
                Arc::new(reducer) as Arc<dyn StatisticsReducer>
            }),
            hook: self
                .update
                .replica()
                .filter(|_| self.model.supports_pass_context())
                .map(Replica::hook),
            ..PassContext::default()
        }
    }
}
