//! The step of a custom loop: passes whose losses are sums over samples, then one update.
//!
//! In: a model, an optimizer, the summed loss and the number of samples of each pass. Out: a
//! changed model.
//! Invariant: the update uses the exact mean over the samples of all ranks. The number of samples
//! travels with the step's header, so a rank need not know the samples of the others.

use std::borrow::Cow;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use burn::module::Module;
use burn::tensor::{Device, Tensor};
use distributed::gradients::MicroStepConfig;
use distributed::replica::broadcast_module;
use distributed::watchdog::Phase;
use distributed::{Communicator, ROOT};
use kernels::arena::keep_freed_memory;
use layers::PassContext;
use layers::backend::GradientHook;

use super::TrainingState;
use super::config::{OptimizerState, Step, StepConfig, StepContext, SyncMode};
use super::host::HostReplica;
use super::loss_scale::LossScale;
use crate::measure::metrics::ScoreSums;
use crate::measure::timer::Timer;
use crate::model::family::seed_draws;
use crate::model::floats;
use crate::model::parts;

/// A model in a custom loop, on one rank.
#[derive(Debug)]
pub struct SumStepper<M> {
    model: M,
    host: HostReplica,
    config: StepConfig,
    seed: u64,
    device: Device,
    communicator: Arc<dyn Communicator>,
    /// True from the first pass of a step to its update.
    is_open: bool,
}

/// The end of a step.
#[derive(Clone, Debug)]
pub struct SumStep {
    /// True if a rank requests a stop; identical on all ranks.
    pub stop: bool,
    /// Samples of all ranks.
    pub num_samples: u64,
    /// Sums of this rank.
    pub own: ScoreSums,
}

impl<M: Module> SumStepper<M> {
    /// Copies root's parameters and norm statistics to every rank and plans the buckets, as
    /// [`Stepper::new`](super::Stepper::new). Every step sums all gradients.
    /// Collective: all ranks.
    ///
    /// # Errors
    /// If the ranks' models differ in structure, two modules share a parameter, or the model has no
    /// parameter.
    pub fn new(
        model: M,
        config: StepConfig,
        seed: u64,
        communicator: Arc<dyn Communicator>,
    ) -> Result<Self> {
        let device = model.devices().into_iter().next();
        let device = device.context("model: expected parameters to train, got none")?;
        let model = broadcast_module(model, &*communicator, ROOT)?;
        keep_freed_memory();
        let mut host = HostReplica::new(&config, &model, &communicator)?;
        Ok(Self {
            model: host.attach(model)?,
            host,
            config,
            seed,
            device,
            communicator,
            is_open: false,
        })
    }

    /// Runs the passes of a step: the forward pass `loss`, which returns the summed loss and the
    /// number of its samples, and the backward pass. Without samples there is no backward pass.
    /// burn's random numbers are seeded before the first pass of a step.
    ///
    /// # Errors
    /// Those of `loss`.
    pub fn pass(
        &mut self,
        context: &StepContext,
        is_last: bool,
        timer: &Timer,
        loss: impl FnOnce(&M) -> Result<Option<(Tensor<1>, usize)>>,
    ) -> Result<()> {
        if !self.is_open {
            let step = self.step(context);
            self.host.begin(&self.model, &step);
            seed_draws(
                &self.device,
                (self.seed, self.communicator.rank()),
                context.step,
            );
            self.is_open = true;
        }
        let pass = {
            let _forward = timer.enter(Phase::Forward);
            let mut context = PassContext::from(self.config.computation);
            context.hook = Some(Arc::clone(&self.host.hook) as Arc<dyn GradientHook>);
            context.scope(|| loss(&self.model))?
        };
        let loss = match pass {
            Some((loss, num_samples)) if num_samples > 0 => {
                self.add(&loss, num_samples)?;
                Some(loss)
            }
            _ => None,
        };
        let _backward = timer.enter(Phase::Backward);
        let micro_step = MicroStepConfig {
            is_last,
            ..MicroStepConfig::default()
        };
        let step = self.step(context);
        self.host.backward(&self.model, loss, &step, micro_step);
        Ok(())
    }

    /// Ends the step after its last pass.
    /// Collective: all ranks.
    ///
    /// # Errors
    /// On all ranks, before the update, if a loss or gradient is not finite or no rank had samples.
    pub fn update(
        &mut self,
        context: &StepContext,
        parts: &[String],
        timer: &Timer,
    ) -> Result<SumStep> {
        self.is_open = false;
        let clip = self.config.clip;
        let host = &mut self.host;
        let status = host.update_by_sums(&mut self.model, context, parts, clip, timer)?;
        Ok(SumStep {
            stop: status.stop,
            num_samples: status.num_samples,
            own: std::mem::take(&mut self.host.scores.sums),
        })
    }

    /// Checks that an update can be limited to these parts of the model.
    ///
    /// # Errors
    /// If the model has no such part, or the optimizer updates all parameters at once.
    pub fn expect_parts(&self, parts: &[String]) -> Result<()> {
        ensure!(
            parts.is_empty() || self.config.custom_optimizer.is_some(),
            "parts: expected one of burn's optimizers, which keep a state for each parameter, got {:?}; use burn's",
            self.config.optimizer
        );
        parts::expect("parts", parts, self.host.reducer.layout())
    }

    /// Returns the model.
    pub fn into_model(self) -> M {
        self.model
    }

    /// Returns the paths of the parameters that no backward pass of this rank has given a gradient.
    pub fn unused_parameters(&self) -> Vec<&str> {
        self.host.reducer.unused_parameters()
    }

    /// Returns the bytes that this rank sent for the last step.
    pub fn bytes_sent(&self) -> u64 {
        self.host.agreed().traffic.bytes_sent
    }

    fn add(&mut self, loss: &Tensor<1>, num_samples: usize) -> Result<()> {
        let losses = floats(loss.clone().inner().into_data())?;
        ensure!(
            losses.len() == 1,
            "loss: expected the sum over the samples, one value, got {}",
            losses.len()
        );
        let loss_sum = losses.into_iter().map(f64::from).sum();
        self.host.scores.sums.add_losses(loss_sum, num_samples);
        Ok(())
    }

    /// Returns the step with the samples of its passes so far.
    fn step(&self, context: &StepContext) -> Step {
        Step {
            context: *context,
            mode: SyncMode::Global,
            num_micro_steps: 1,
            num_own: self.host.scores.sums.num_samples as usize,
            num_global: 0,
            divisor: 1,
            weight_factor: None,
            loss_scale: 1,
            can_skip: false,
        }
    }
}

impl<M: Module> TrainingState for SumStepper<M> {
    type Model = M;

    fn model(&self) -> &M {
        &self.model
    }

    fn parameters(&self) -> Cow<'_, [f32]> {
        self.host.parameters(&self.model)
    }

    fn optimizer_state(&self) -> OptimizerState {
        self.host.optimizer_state()
    }

    fn restore(&mut self, model: M, state: &OptimizerState, _: LossScale) -> Result<()> {
        self.host.restore(&model, state)?;
        self.model = self.host.attach(model)?;
        Ok(())
    }
}
