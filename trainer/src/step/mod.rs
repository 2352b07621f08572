//! One training step: micro-batches to gradients, and these to parameters.
//!
//! Gradients are summed and parameters updated in main memory (`host`) or on each rank's device
//! (`device`).
//!
//! In: the loaded samples of one step, its learning rate. Out: a changed model, the outcome,
//! scores.
//! Invariant: no rank leaves a step between its first and last collective: all ranks draw the same
//! conclusion from the same global step status.
//! Source: Li et al. 2020, PyTorch Distributed (2006.15704), for buckets; Goyal et al. 2017
//! (1706.02677), section 3, for the mean.

pub mod ema;
pub mod gradient_noise;
pub mod loss_scale;
pub mod norm_reducer;
pub mod readback;
pub mod sync_plan;

mod config;
mod custom;
mod device;
mod host;
mod results;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, ensure};
use burn::module::Module;
use burn::tensor::{Device, Tensor};
use datasets::{LoadedStep, MicroBatch};
use distributed::gradients::{MicroStepConfig, ReductionState};
use distributed::replica::{ElementOrder, ParameterLayout, broadcast_module, replace, tensors};
use distributed::watchdog::Phase;
use distributed::{CollectiveError, Communicator, ROOT};
use kernels::arena::keep_freed_memory;
use layers::PassContext;
use layers::backend::{GradientHook, StatisticsReducer};

use self::config::{Agreed, Step, SyncMode};
pub use self::config::{Clip, OptimizerState, StepConfig, StepContext};
use self::device::{DeviceReplica, FlatPlacement, Output};
use self::gradient_noise::NoiseSums;
use self::host::HostReplica;
pub use self::host::{CustomOptimizer, check_threads, serve};
use self::loss_scale::LossScale;
use self::norm_reducer::{NormReducer, expect_synchronised};
pub use self::results::{StepEnd, StepOutcome, StepResults};
use crate::config::{OnOff, OptimizerChoice, ReductionChoice, SyncMethod, UpdateKind};
use crate::measure::metrics::StepTraffic;
use crate::measure::timer::Timer;
use crate::task::{BatchOf, PassSize, Task, UnreadPass};

/// A model in training on one rank.
#[derive(Debug)]
pub struct Stepper<M> {
    model: M,
    replica: Replica,
    /// True if the model's layers take a pass context.
    supports_pass_context: bool,
    /// On a device, that after the last step whose results are known.
    loss_scale: LossScale,
    /// False if the last step whose results are known was skipped.
    has_updated: bool,
    statistics: ParameterLayout,
    layout: ParameterLayout,
    traffic: StepTraffic,
    /// True if a forward pass has shown that all normalisations are synchronised that must be.
    has_checked_norms: bool,
    /// Start of the last backward pass.
    backward_start: Instant,
    communicator: Arc<dyn Communicator>,
    device: Device,
    config: StepConfig,
}

/// The place of gradients and parameters.
#[derive(Debug)]
enum Replica {
    Host(Box<HostReplica>),
    /// On the device of this rank.
    Device(Box<DeviceReplica>),
}

impl<M: Module> Stepper<M> {
    /// Copies root's parameters and norm statistics to every rank and plans the buckets. From here
    /// on the process keeps the memory that steps free ([`keep_freed_memory`]). Collective: all
    /// ranks.
    ///
    /// `device` is the plain device; the model trains on its autodiff form.
    ///
    /// # Errors
    /// If the ranks' models differ in structure, options of `config` exclude each other, or
    /// `--batch-norm sync` is given and the model has no norm that supports it.
    pub fn new<T: Task<Model = M>>(
        task: &Arc<T>,
        model: M,
        config: StepConfig,
        communicator: Arc<dyn Communicator>,
        device: &Device,
    ) -> Result<Self> {
        let supports_pass_context = task.supports_pass_context(&model);
        Self::start(
            model,
            supports_pass_context,
            config,
            communicator,
            device.clone().autodiff(),
            |config, model, communicator| match config.sync.update {
                UpdateKind::Host => host_replica(config, model, communicator),
                UpdateKind::Device => {
                    let replica = DeviceReplica::new(task, config, model, communicator, device)?;
                    Ok(Replica::Device(Box::new(replica)))
                }
            },
        )
    }

    /// As [`new`](Self::new), with the replica that `replica` makes.
    fn start(
        model: M,
        supports_pass_context: bool,
        config: StepConfig,
        communicator: Arc<dyn Communicator>,
        device: Device,
        replica: impl FnOnce(&StepConfig, &M, &Arc<dyn Communicator>) -> Result<Replica>,
    ) -> Result<Self> {
        let model = broadcast_module(model, &*communicator, ROOT)?;
        keep_freed_memory();
        check(&config, communicator.world_size())?;
        let replica = replica(&config, &model, &communicator)?;
        let mut stepper = Self {
            replica,
            supports_pass_context,
            loss_scale: LossScale::new(config.loss_scale),
            has_updated: true,
            statistics: ParameterLayout::statistics(&model),
            layout: ParameterLayout::new(&model),
            traffic: StepTraffic::default(),
            has_checked_norms: false,
            backward_start: Instant::now(),
            device,
            model: model.clone(),
            communicator,
            config,
        };
        stepper.attach(model)?;
        Ok(stepper)
    }

    /// Takes one step.
    ///
    /// The gradient is the exact mean over the step's samples by their weights, however they are
    /// distributed: each rank's loss is the sum over its samples divided by the global weight, and
    /// gradients are summed. Local steps and asynchronous servers use the mean over one rank's
    /// samples.
    ///
    /// # Errors
    /// If a loss or gradient is not finite on any rank (before the update, on all ranks)
    /// and such steps are not skipped, or ranks drifted apart. If the device updates, the first
    /// error comes a step late, or from [`wait`](Self::wait).
    ///
    /// # Collective
    /// Must be called by all ranks, with equal contexts except for `stop` and
    /// `keeps_gradients`.
    pub fn step<T: Task<Model = M>>(
        &mut self,
        task: &Arc<T>,
        context: StepContext,
        loaded: LoadedStep<BatchOf<T>>,
        timer: &Timer,
    ) -> Result<StepEnd> {
        timer.begin_step(context.epoch, context.step);
        let step = self.plan(context, &loaded);
        if let Replica::Device(device) = &mut self.replica
            && device.replay(task, &mut self.model, &loaded.micro_batches, &step, timer)?
        {
            return self.end_on_device(timer);
        }
        // A forward pass changes norm statistics; a skipped step restores them.
        let saved = step
            .can_skip
            .then(|| tensors(&self.model, &self.statistics, ElementOrder::Module));
        match &mut self.replica {
            Replica::Host(host) => host.begin(&self.model, &step),
            Replica::Device(device) => device.begin(&step),
        }
        for (index, micro) in loaded.micro_batches.into_iter().enumerate() {
            let micro_step = MicroStepConfig {
                // A power of two, so dividing before the sum over the ranks gives the bits of
                // dividing after it; and the state of compression does not depend on the scale.
                weight: (1.0 / f64::from(step.loss_scale.factor())) as f32,
                // An exact sum keeps the gradients of every micro-step apart.
                slot: if matches!(self.config.sync.method, SyncMethod::Exact { .. }) {
                    index
                } else {
                    0
                },
                is_last: index + 1 == step.num_micro_steps && step.mode.reduces(),
                // The gradients of another rank's sample mean nothing here.
                discard: micro.num_samples == 0,
            };
            let loss = {
                let _forward = timer.enter(Phase::Forward);
                self.forward(&**task, micro, &step)?
            };
            let _backward = timer.enter(Phase::Backward);
            self.backward_start = Instant::now();
            match &mut self.replica {
                Replica::Host(host) => host.backward(&self.model, loss, &step, micro_step),
                Replica::Device(device) => device.backward(&self.model, loss, &step),
            }
        }
        let host = match &mut self.replica {
            Replica::Host(host) => host,
            Replica::Device(device) => {
                device.update(&mut self.model, &step, timer)?;
                if let Some(saved) = saved {
                    let new = tensors(&self.model, &self.statistics, ElementOrder::Module);
                    let kept = device.optimizer.if_updated(saved, new);
                    self.set_statistics(kept);
                }
                return self.end_on_device(timer);
            }
        };
        let updated = host.update(&mut self.model, &step, &[], &self.config, timer);
        let scores = host.take_scores();
        let (agreed, outcome) = match updated {
            Ok(agreed) => {
                self.loss_scale.note_good_step();
                (agreed, StepOutcome::Updated)
            }
            Err(error) => {
                let mut agreed = host.agreed();
                // The losses of compression count only if the gradients are finite.
                agreed.traffic.input_squared = 0.0;
                agreed.traffic.error_squared = 0.0;
                let outcome = self.skip(error)?;
                if let Some(saved) = saved {
                    self.set_statistics(saved);
                }
                (agreed, outcome)
            }
        };
        let results = StepResults::new(context.step, outcome, scores);
        Ok(self.end(agreed, Some(results)))
    }

    /// Ends a step whose results the device may still be computing.
    fn end_on_device(&mut self, timer: &Timer) -> Result<StepEnd> {
        let results = self.receive(device::MOST_UNREAD, timer)?;
        let agreed = match &mut self.replica {
            Replica::Host(host) => host.agreed(),
            Replica::Device(device) => device.agreed(),
        };
        Ok(self.end(agreed, results))
    }

    fn set_statistics(&mut self, statistics: Vec<Tensor<1>>) {
        let order = ElementOrder::Module;
        self.model = replace(self.model.clone(), &self.statistics, order, statistics);
    }

    fn plan<B>(&self, context: StepContext, loaded: &LoadedStep<B>) -> Step {
        let micro_batches = &loaded.micro_batches;
        let num_own: usize = micro_batches.iter().map(|micro| micro.num_samples).sum();
        let mode = SyncMode::of(&self.config.sync.method, &context);
        let is_global = mode == SyncMode::Global;
        let divisor = if is_global {
            loaded.global_num_samples
        } else {
            num_own.max(1)
        };
        let weight = if is_global {
            loaded.global_weight
        } else {
            micro_batches.iter().map(|micro| micro.weight).sum()
        };
        // Samples without weight have no loss either.
        let weight_factor = (weight > 0.0).then(|| divisor as f64 / weight);
        // The buckets that servers return hold parameters.
        let has_gradients = !matches!(self.config.sync.method, SyncMethod::ParameterServer { .. });
        Step {
            context: StepContext {
                keeps_gradients: context.keeps_gradients && has_gradients,
                ..context
            },
            mode,
            num_micro_steps: loaded.micro_batches.len(),
            num_own,
            num_global: Some(loaded.global_num_samples),
            divisor,
            weight_factor: weight_factor.filter(|factor| *factor != 1.0),
            loss_scale: self.loss_scale,
            can_skip: self.can_skip(),
        }
    }

    fn can_skip(&self) -> bool {
        self.config.skips_non_finite || self.loss_scale.is_dynamic()
    }

    /// Runs the forward pass of one micro-batch and returns the loss to differentiate. Without
    /// samples there is no pass, unless other ranks wait for its share of a synchronised norm.
    fn forward<T: Task<Model = M>>(
        &mut self,
        task: &T,
        micro: MicroBatch<BatchOf<T>>,
        step: &Step,
    ) -> Result<Option<Tensor<1>>> {
        let has_samples = micro.num_samples > 0;
        if !has_samples && !self.syncs_norm() {
            return Ok(None);
        }
        let size = PassSize::of(&micro);
        let batch = micro.batch;
        let (read, loss_sum) = self.pass_context(has_samples).scope(|| {
            let outputs = task.forward(&self.model, &batch)?;
            let loss_sum = task.loss_sum(&outputs, &batch);
            anyhow::Ok((task.to_read(&outputs, &batch), loss_sum))
        })?;
        if self.syncs_norm() && !self.has_checked_norms {
            self.has_checked_norms = true;
            expect_synchronised(&self.model)?;
        }
        if has_samples {
            let read = read.into_iter().map(Tensor::inner).collect();
            let sum = loss_sum.clone().inner();
            match &mut self.replica {
                Replica::Host(host) => {
                    let pass = UnreadPass::new(read, sum, size);
                    host.end_forward(task, &mut self.model, pass)?;
                }
                Replica::Device(device) => device.outputs.push(Output {
                    read,
                    loss_sum: sum,
                    size,
                }),
            }
        }
        let loss_sum = match step.weight_factor {
            Some(factor) => loss_sum.mul_scalar(factor),
            None => loss_sum,
        };
        let scale = match &self.replica {
            Replica::Host(_) => f64::from(step.loss_scale.factor()),
            // The device multiplies by the scale that it chose.
            Replica::Device(_) => 1.0,
        };
        Ok(Some(loss_sum.mul_scalar(scale / step.divisor as f64)))
    }

    /// Ends a step, with the results that became known.
    fn end(&mut self, agreed: Agreed, results: Option<StepResults>) -> StepEnd {
        let outcome = results.as_ref().map(|results| &results.outcome);
        self.has_updated = outcome.is_none_or(|outcome| *outcome == StepOutcome::Updated);
        self.traffic.num_steps += 1;
        self.traffic.total += agreed.traffic;
        StepEnd {
            stop: agreed.stop,
            num_samples: agreed.num_samples,
            results,
        }
    }

    /// Waits until at most `most_unread` steps of the device are unread. Returns the results of the
    /// other one, if there is one.
    fn receive(&mut self, most_unread: usize, timer: &Timer) -> Result<Option<StepResults>> {
        let Replica::Device(device) = &mut self.replica else {
            return Ok(None);
        };
        let Some(received) = device.receive(most_unread, timer)? else {
            return Ok(None);
        };
        let outcome = match received.non_finite {
            None => {
                self.loss_scale.note_good_step();
                StepOutcome::Updated
            }
            Some(error) => {
                device.note_skip();
                self.skip(error.into())?
            }
        };
        let results = StepResults::new(received.step, outcome, received.scores);
        Ok(Some(results))
    }

    /// Returns the outcome of a step in which a value was not finite.
    ///
    /// # Errors
    /// `error`, if it is another one or the step cannot be skipped.
    fn skip(&mut self, error: anyhow::Error) -> Result<StepOutcome> {
        let Some(CollectiveError::NonFinite { parameter, .. }) = error.downcast_ref() else {
            return Err(error);
        };
        if parameter.is_some() && self.loss_scale.note_overflow() {
            return Ok(StepOutcome::Overflowed(self.loss_scale));
        }
        if self.config.skips_non_finite {
            return Ok(StepOutcome::Skipped(error.to_string()));
        }
        Err(self.with_loss_scale_hint(error))
    }

    /// Adds that a fixed loss scale may be the cause of a gradient that is not finite.
    fn with_loss_scale_hint(&self, error: anyhow::Error) -> anyhow::Error {
        let factor = self.loss_scale.factor();
        match error.downcast_ref() {
            Some(CollectiveError::NonFinite { parameter: Some(_), .. }) if factor > 1 => error.context(
                format!("gradients times a fixed loss scale of {factor}; try a smaller one, or --loss-scale dynamic"),
            ),
            _ => error,
        }
    }

    /// Waits for the results of all steps so far; returns those that [`step`](Self::step) has not.
    /// Collective: all ranks.
    ///
    /// # Errors
    /// If a loss or gradient in one of them was not finite and such steps are not skipped.
    pub fn wait(&mut self, timer: &Timer) -> Result<Option<StepResults>> {
        if let Replica::Device(device) = &mut self.replica {
            device.update_model(&mut self.model);
        }
        self.receive(0, timer)
    }

    /// Returns the model in training.
    pub fn model(&self) -> &M {
        &self.model
    }

    /// Ends the training; returns the model, and the number of updates of asynchronous servers by
    /// staleness.
    /// Collective: all ranks.
    pub fn finish(self) -> Result<(M, Option<Vec<u64>>)> {
        let staleness = match self.replica {
            Replica::Host(host) => host.finish()?,
            Replica::Device(device) => {
                device.finish()?;
                None
            }
        };
        Ok((self.model, staleness))
    }

    /// Returns the parameters, flat in module order.
    pub fn parameters(&self) -> Cow<'_, [f32]> {
        match &self.replica {
            Replica::Host(host) => host.parameters(&self.model),
            Replica::Device(device) => device.optimizer.parameters().into(),
        }
    }

    /// Returns the parameters on the device, flat, if it updates them.
    fn device_parameters(&self) -> Option<(Tensor<1>, &FlatPlacement)> {
        match &self.replica {
            Replica::Host(_) => None,
            Replica::Device(device) => Some(device.optimizer.flat_parameters()),
        }
    }

    /// Returns `after` if the device updated its parameters in the last step, otherwise `before`.
    fn if_updated(&self, before: Tensor<1>, after: Tensor<1>) -> Tensor<1> {
        match &self.replica {
            Replica::Device(device) if self.can_skip() => {
                let mut kept = device.optimizer.if_updated(vec![before], vec![after]);
                kept.swap_remove(0)
            }
            _ => after,
        }
    }

    /// Takes the mean gradient of the last step, flat as [`layout`](Self::layout) says, if the step
    /// [kept](StepContext::keeps_gradients) it: over all ranks' samples, or over this rank's after
    /// a local step. `None` if servers update.
    pub fn gradients(&mut self) -> Option<Vec<f32>> {
        match &mut self.replica {
            Replica::Host(host) => host.kept.take(),
            Replica::Device(device) => device.take_gradients(),
        }
    }

    /// Returns the optimizer's state to save.
    pub fn optimizer_state(&self) -> OptimizerState {
        match &self.replica {
            Replica::Host(host) => host.optimizer_state(),
            Replica::Device(device) => device.optimizer.state(),
        }
    }

    /// Continues from a saved model (parameters and norm statistics), a saved state of the
    /// optimizer and, if it was saved, the loss scale. Collective: all ranks.
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
        match &mut self.replica {
            Replica::Host(host) => host.restore(&model, state)?,
            Replica::Device(device) => device.restore(&model, state),
        }
        self.attach(model)
    }

    /// Returns the state of the gradients' reduction between two steps.
    pub fn reduction_state(&self) -> Option<ReductionState> {
        match &self.replica {
            Replica::Host(host) => host.reducer.reduction_state(),
            Replica::Device(device) => device.reduction_state(),
        }
    }

    /// Restores the state that the reduction had after `num_steps` steps.
    ///
    /// # Panics
    /// If a length differs from that of the [own state](Self::reduction_state).
    pub fn restore_reduction(&mut self, num_steps: u64, state: &ReductionState) {
        match &mut self.replica {
            Replica::Host(host) => host.reducer.restore(num_steps, state),
            Replica::Device(device) => device.restore_reduction(state),
        }
    }

    /// Returns the autodiff device of the batches.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the place of each parameter in a flat buffer.
    pub fn layout(&self) -> &ParameterLayout {
        &self.layout
    }

    /// Returns the time of each parameter's gradient after the start of the last backward pass, in
    /// seconds; 0 without one.
    pub fn parameter_ready_s(&self) -> Vec<f64> {
        let arrivals = match self.host() {
            Some(buckets) => buckets.reducer.arrivals(),
            None => vec![None; self.layout.entries().len()],
        };
        let since_start = |at: Instant| at.saturating_duration_since(self.backward_start);
        let seconds = |at| since_start(at).as_secs_f64();
        let arrivals = arrivals.into_iter();
        arrivals.map(|at| at.map_or(0.0, seconds)).collect()
    }

    /// Takes what this rank sent for gradients since the last call.
    pub fn take_traffic(&mut self) -> StepTraffic {
        std::mem::take(&mut self.traffic)
    }

    /// Takes the noise measured of this rank's gradients since the last call.
    pub fn take_noise(&mut self) -> NoiseSums {
        match &mut self.replica {
            Replica::Host(host) => std::mem::take(&mut host.noise),
            Replica::Device(_) => NoiseSums::default(),
        }
    }

    /// Describes the route of the gradients to the other ranks.
    pub fn gradient_route(&self) -> String {
        let host = match &self.replica {
            Replica::Device(device) => return device.gradient_route(),
            Replica::Host(host) => host,
        };
        let route = if self.communicator.world_size() == 1 {
            "none, one rank"
        } else if host.reducer.overlaps() {
            if self.supports_pass_context {
                "layer by layer, reduced during the backward pass"
            } else {
                "after the backward pass, as this model hands none over, reduced by a thread"
            }
        } else if self.config.sync.overlap == OnOff::On && !self.communicator.supports_threads() {
            "after the backward pass, as this MPI library lets one thread call it (MPI_THREAD_MULTIPLE is needed for overlap)"
        } else {
            "after the backward pass"
        };
        route.to_owned()
    }

    /// Returns the method of synchronisation, with the algorithm that the ranks chose.
    pub fn sync_method(&self) -> SyncMethod {
        let mut method = self.config.sync.method.clone();
        if let SyncMethod::Allreduce { reduction, .. } = &mut method {
            reduction.get_or_insert(match &self.replica {
                Replica::Host(_) => ReductionChoice::Hierarchical,
                Replica::Device(device) => device.reduction(),
            });
        }
        method
    }

    /// Returns a warning if the gradients take a slower route than expected.
    pub fn route_warning(&self) -> Option<String> {
        match &self.replica {
            Replica::Device(device) => device.warning(),
            Replica::Host(_) => None,
        }
    }

    /// Returns the paths of the parameters that no backward pass of this rank has given a gradient;
    /// empty before the first step.
    pub fn unused_parameters(&self) -> Vec<&str> {
        match &self.replica {
            Replica::Host(host) => host.reducer.unused_parameters(),
            Replica::Device(device) => device.unused_parameters(),
        }
    }

    /// Returns the factor on the next step's loss, after [`wait`](Self::wait) if the device updates.
    pub fn loss_scale(&self) -> LossScale {
        self.loss_scale
    }

    fn host(&self) -> Option<&HostReplica> {
        match &self.replica {
            Replica::Host(host) => Some(host),
            Replica::Device(_) => None,
        }
    }

    /// Trains `model` from now on.
    fn attach(&mut self, model: M) -> Result<()> {
        ensure!(
            !self.syncs_norm() || self.supports_pass_context,
            "--batch-norm sync: this model has no synchronised norm (expected one that supports_pass_context). Use --batch-norm local"
        );
        self.model = match &mut self.replica {
            Replica::Host(host) => host.attach(model)?,
            Replica::Device(_) => model,
        };
        Ok(())
    }

    /// Returns true if norm statistics are summed over ranks. Several ranks that update on devices
    /// do not sum them.
    fn syncs_norm(&self) -> bool {
        self.config.sync_batch_norm && self.host().is_some()
    }

    fn pass_context(&self, has_samples: bool) -> PassContext {
        let mut context = PassContext::from(self.config.computation);
        if self.syncs_norm() {
            let reducer = NormReducer::new(Arc::clone(&self.communicator), has_samples);
            context.reducer = Some(Arc::new(reducer) as Arc<dyn StatisticsReducer>);
        }
        if let Some(host) = self.host()
            && self.supports_pass_context
        {
            context.hook = Some(Arc::clone(&host.hook) as Arc<dyn GradientHook>);
        }
        context
    }
}

fn host_replica<M: Module>(
    config: &StepConfig,
    model: &M,
    communicator: &Arc<dyn Communicator>,
) -> Result<Replica> {
    let replica = HostReplica::new(config, model, communicator)?;
    Ok(Replica::Host(Box::new(replica)))
}

/// Checks that the options of `config` do not exclude each other on `world_size` ranks.
fn check(config: &StepConfig, world_size: usize) -> Result<()> {
    let obstacle = config
        .sync
        .needs_main_memory(config.sync_batch_norm && world_size > 1);
    let is_on_device = config.sync.update == UpdateKind::Device;
    ensure!(
        !is_on_device || obstacle.is_none() && config.gradient_noise.is_none(),
        "update: {} needs gradients in main memory, expected UpdateKind::Host",
        obstacle.unwrap_or_else(|| "gradient_noise".to_owned())
    );
    let has_servers = matches!(config.sync.method, SyncMethod::ParameterServer { .. });
    let sums_all = matches!(
        config.sync.method,
        SyncMethod::Allreduce { .. } | SyncMethod::Exact { .. }
    );
    ensure!(
        config.custom_optimizer.is_none() || (sums_all && !is_on_device),
        "optimizer: a custom optimizer updates only in main memory, and only if every step sums all gradients (expected SGD)"
    );
    ensure!(
        config.rate_factors.is_empty() || !has_servers,
        "rate_factors: expected none if servers update, got {:?}",
        config.rate_factors
    );
    ensure!(
        !has_servers || (config.clip.is_none() && config.gradient_noise.is_none()),
        "clip, gradient_noise: parameter servers take unchanged gradients, expected none, got {:?} and {:?}",
        config.clip,
        config.gradient_noise
    );
    ensure!(
        sums_all || matches!(config.optimizer, OptimizerChoice::Sgd(_)),
        "optimizer: parameter servers and local SGD support only SGD, got {:?}",
        config.optimizer
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{RateFactor, ServerPlacement, SgdConfig, SyncSection};

    #[test]
    fn options_of_a_step_that_exclude_each_other_are_refused() {
        let sgd = SgdConfig {
            momentum: 0.9,
            nesterov: false,
            weight_decay: 0.0,
            decay_norm_and_bias: None,
        };
        let host = StepConfig::new(OptimizerChoice::Sgd(sgd), SyncSection::default());
        let mut allowed = host.clone();
        allowed.sync.update = UpdateKind::Device;
        check(&allowed, 2).unwrap();
        let synced = StepConfig {
            sync_batch_norm: true,
            ..allowed.clone()
        };
        check(&synced, 1).unwrap();
        let mut served = host.clone();
        served.sync.method = SyncMethod::ParameterServer {
            servers: 1,
            placement: ServerPlacement::Beside,
            asynchronous: None,
        };
        check(&served, 2).unwrap();
        let mut served_on_device = served.clone();
        served_on_device.sync.update = UpdateKind::Device;
        let factor = RateFactor {
            part: "linear".to_owned(),
            factor: 2.0,
        };
        let custom = CustomOptimizer(burn::optim::SgdConfig::new().init());
        for (config, expected) in [
            (synced, "update: --batch-norm sync needs"),
            (served_on_device, "update: --sync parameter-server needs"),
            (
                StepConfig {
                    custom_optimizer: Some(custom),
                    ..allowed
                },
                "optimizer: a custom optimizer",
            ),
            (
                StepConfig {
                    rate_factors: vec![factor],
                    ..served.clone()
                },
                "rate_factors: expected none",
            ),
            (
                StepConfig {
                    clip: Some(Clip::Norm(1.0)),
                    ..served.clone()
                },
                "clip, gradient_noise: ",
            ),
            (
                StepConfig {
                    optimizer: OptimizerChoice::Lars {
                        sgd,
                        trust_coefficient: 0.1,
                    },
                    ..served
                },
                "support only SGD",
            ),
        ] {
            let error = check(&config, 2).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
