//! A rank's parameters in main memory, and the buckets in which its gradients leave for other ranks.
//!
//! In: forward results, losses. Out: gradients in buckets, their sums, parameters in the model.
//! Invariant: parameters change only when all buckets are there and finite.

use std::sync::Arc;

use anyhow::Result;
use burn::module::Module;
use burn::tensor::Tensor;
use distributed::{
    CollectiveError, Communicator,
    gradients::{BucketPlan, GlobalStepStatus, GradientReducer, MicroStepConfig, StepHeader},
    reduction::{BucketContext, BucketReduction},
    replica::{ParameterLayout, read, write},
    watchdog::{Phase, WatchedReduction},
};
use layers::GradientHook;

use super::StepConfig;
use super::bucket_hook::BucketHook;
use super::pass::Output;
use super::update::{MicroStep, Step};
use crate::measure::metrics::ScoreSums;
use crate::measure::timer::Timer;
use crate::step::optimizer::{Optimizer, OptimizerState};
use crate::step::sync_plan::reducer_config;

/// Parameters, optimizer and buckets of one rank.
#[derive(Debug)]
pub(super) struct Replica {
    pub(super) reducer: GradientReducer,
    pub(super) optimizer: Optimizer,
    pub(super) communicator: Arc<dyn Communicator>,
    /// Where layers hand their gradients over.
    hook: Arc<BucketHook>,
    /// Of the step under way.
    scores: ScoreSums,
}

impl Replica {
    /// The replica of `model`, whose buckets are reduced by what `reduction` makes of their plan and a communicator of its own.
    /// Collective: all ranks.
    ///
    /// # Errors
    /// When the ranks' plans differ, or a collective fails.
    pub(super) fn start<M: Module>(
        config: &StepConfig,
        model: &M,
        communicator: &Arc<dyn Communicator>,
        reduction: impl FnOnce(
            (&ParameterLayout, &BucketPlan),
            Arc<dyn Communicator>,
        ) -> Result<Box<dyn BucketReduction>, CollectiveError>,
    ) -> Result<Self, CollectiveError> {
        let how = reducer_config(&config.sync, &ParameterLayout::new(model));
        let reducer = GradientReducer::with_reduction(
            model,
            Arc::clone(communicator),
            &how,
            |plans, own| {
                Ok(Box::new(WatchedReduction::new(
                    reduction(plans, own)?,
                    Arc::clone(&config.rank_status),
                )))
            },
        )?;
        if config.gradient_noise.is_some() {
            reducer.measure_parts();
        }
        Ok(Self {
            optimizer: Optimizer::with_rate_factors(
                config.optimizer,
                &config.rate_factors,
                reducer.layout(),
                read(model, reducer.layout()),
            ),
            hook: Arc::new(BucketHook::new(reducer.collector(), config.sync.update)),
            reducer,
            communicator: Arc::clone(communicator),
            scores: ScoreSums::default(),
        })
    }

    /// Ties `model` to the buckets: its parameters are known by their ids.
    ///
    /// # Errors
    /// When two of its modules share a parameter.
    pub(super) fn attach<M: Module>(&mut self, model: &M) -> Result<(), CollectiveError> {
        self.reducer.rename(model)
    }

    /// Puts gradients into the buckets while the backward pass goes on.
    pub(super) fn hook(&self) -> Arc<dyn GradientHook> {
        Arc::clone(&self.hook) as _
    }

    /// To be called before the passes of a step.
    pub(super) fn begin(&mut self, step: &Step) {
        self.scores = ScoreSums::default();
        let learning_rate = step.context.learning_rate;
        self.reducer.begin_step(BucketContext {
            learning_rate,
            has_samples: step.num_own > 0,
        });
    }

    /// Reads the scores of a forward pass.
    pub(super) fn end_forward(&mut self, output: Option<Output>) -> Result<()> {
        if let Some(output) = output {
            self.scores += output.score().read()?;
        }
        Ok(())
    }

    /// Differentiates `loss`, its gradients on their way to the buckets; posts the header ahead of the first that leaves.
    pub(super) fn backward<M: Module>(
        &mut self,
        model: &M,
        loss: Option<Tensor<1>>,
        step: &Step,
        micro: &MicroStep,
    ) {
        if micro.posts_header {
            self.reducer.post_header(self.header(step));
        }
        let Some(loss) = loss else { return };
        self.reducer.begin_micro_step(MicroStepConfig {
            // A power of two, so dividing before the sum over the ranks gives the bits of dividing after it; and what
            // compression keeps back does not depend on the scale.
            weight: (1.0 / f64::from(step.loss_scale)) as f32,
            slot: micro.slot,
            is_last: micro.is_last,
            // A placeholder's gradients mean nothing, since the statistics that they flow through do not contain it.
            discard: !micro.has_samples,
        });
        let gradients = loss.backward();
        self.hook.wait();
        self.reducer.accumulate(model, gradients, 1.0);
    }

    /// What this rank tells the others of the step, whose losses are known.
    pub(super) fn header(&self, step: &Step) -> StepHeader {
        StepHeader {
            epoch: step.context.epoch,
            step: step.context.step,
            plan_hash: self.reducer.plan().hash(),
            stop: step.context.stop,
            num_samples: step.num_own as u64,
            finite: self.scores.loss_sum.is_finite(),
        }
    }

    /// The scores of the step under way, if it has samples on this rank.
    pub(super) fn scores(&self) -> Option<ScoreSums> {
        Some(self.scores).filter(|scores| scores.num_samples > 0)
    }

    /// Waits for the buckets of the step.
    /// Collective: all ranks.
    ///
    /// # Errors
    /// As [`GradientReducer::finish`].
    pub(super) fn reduce(
        &mut self,
        timer: &Timer,
    ) -> Result<Option<GlobalStepStatus>, CollectiveError> {
        let _waiting = timer.enter(Phase::Waiting);
        let status = self.reducer.finish()?;
        for (bucket, times) in self.reducer.report().buckets.iter().enumerate() {
            timer.add_bucket(bucket, times.start, times.end);
        }
        Ok(status)
    }

    /// Takes the parameters of `model`, which something else has updated.
    pub(super) fn note_parameters<M: Module>(&mut self, model: &M) {
        self.optimizer
            .note_parameters(read(model, self.reducer.layout()));
    }

    /// Gives `model` the optimizer's parameters.
    pub(super) fn place<M: Module>(&self, model: &mut M) {
        *model = write(
            model.clone(),
            self.reducer.layout(),
            self.optimizer.parameters(),
        );
    }

    /// Goes on from the parameters of `model`, and this state of the optimizer.
    pub(super) fn restore<M: Module>(&mut self, model: &M, state: &OptimizerState) {
        self.optimizer
            .restore(&read(model, self.reducer.layout()), state);
    }
}
