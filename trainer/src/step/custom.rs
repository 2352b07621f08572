//! The step of a custom loop: passes whose losses are sums over samples, then one update.
//!
//! In: a model, the summed loss and the number of samples of each pass. Out: a changed model.
//! Invariant: the update uses the exact mean over the samples of all ranks. The number of samples
//! travels with the step's header, so a rank need not know the samples of the others.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use burn::module::Module;
use burn::tensor::Tensor;
use distributed::Communicator;
use distributed::gradients::MicroStepConfig;
use distributed::watchdog::Phase;

use super::config::{Step, StepConfig, StepContext, SyncMode};
use super::host::HostReplica;
use super::loss_scale::LossScale;
use super::{Replica, StepEnd, StepOutcome, StepResults, Stepper, host_replica};
use crate::measure::timer::Timer;
use crate::model::{floats, parts};

impl<M: Module> Stepper<M> {
    /// Returns the stepper of a custom loop, as [`new`](Self::new). Every step sums all gradients
    /// in main memory.
    /// Collective: all ranks.
    ///
    /// # Errors
    /// As [`new`](Self::new); if the model has no parameter.
    pub fn of_custom_loop(
        model: M,
        config: StepConfig,
        communicator: Arc<dyn Communicator>,
    ) -> Result<Self> {
        let device = model.devices().into_iter().next();
        let device = device.context("model: expected parameters to train, got none")?;
        Self::start(model, true, config, communicator, device, host_replica)
    }

    /// Begins a step, before its first pass.
    pub fn begin(&mut self, context: &StepContext) {
        let (model, host, _) = self.on_host();
        host.begin(model, &step(context));
    }

    /// Runs a pass of a step: the forward pass `loss`, which returns the summed loss and the number
    /// of its samples, and the backward pass. Without samples there is no backward pass.
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
        let pass = {
            let _forward = timer.enter(Phase::Forward);
            let context = self.pass_context(true);
            context.scope(|| loss(&self.model))?
        };
        let pass = pass.filter(|(_, num_samples)| *num_samples > 0);
        let (model, host, _) = self.on_host();
        if let Some((loss, num_samples)) = &pass {
            let losses = floats(loss.clone().inner().into_data())?;
            ensure!(
                losses.len() == 1,
                "loss: expected the sum over the samples, one value, got {}",
                losses.len()
            );
            host.scores.sums.add_losses(losses[0].into(), *num_samples);
        }
        let _backward = timer.enter(Phase::Backward);
        let micro_step = MicroStepConfig {
            is_last,
            ..MicroStepConfig::default()
        };
        let loss = pass.map(|(loss, _)| loss);
        host.backward(model, loss, &step(context), micro_step);
        Ok(())
    }

    /// Ends a step after its last pass: updates `parts` of the model, or the whole without parts.
    /// Collective: all ranks.
    ///
    /// # Errors
    /// On all ranks, before the update, if a loss or gradient is not finite or no rank had samples.
    pub fn update(
        &mut self,
        context: &StepContext,
        parts: &[String],
        timer: &Timer,
    ) -> Result<StepEnd> {
        let (model, host, config) = self.on_host();
        let agreed = host.update(model, &step(context), parts, config, timer)?;
        let scores = host.take_scores();
        let results = StepResults::new(context.step, StepOutcome::Updated, scores);
        Ok(self.end(agreed, Some(results)))
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
        parts::expect("parts", parts, &self.layout)
    }

    fn on_host(&mut self) -> (&mut M, &mut HostReplica, &StepConfig) {
        match &mut self.replica {
            Replica::Host(host) => (&mut self.model, host, &self.config),
            Replica::Device(_) => unreachable!("a custom loop has its replica in main memory"),
        }
    }
}

/// Returns the step whose divisor is the number of samples in the headers.
fn step(context: &StepContext) -> Step {
    Step {
        context: *context,
        mode: SyncMode::Global,
        num_micro_steps: 1,
        num_own: 0,
        num_global: None,
        divisor: 1,
        weight_factor: None,
        loss_scale: LossScale::default(),
        can_skip: false,
    }
}
