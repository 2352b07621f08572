//! Ranks update alone, and average their parameters and velocities now and then.
//!
//! In: this rank's buckets. Out: its own update; every so many steps, and where replicas must be equal, the mean over all ranks.
//! Invariant: all ranks average after the same steps; a loss or gradient that was not finite on one rank ends the run on all when
//! they meet next.
//! Source: Lin et al. 2020, "Don't use large mini-batches, use local SGD" (1808.07217).

use std::borrow::Cow;
use std::sync::Arc;

use anyhow::Result;
use burn::module::Module;
use burn::tensor::Tensor;
use distributed::{
    Communicator,
    gradients::{StepHeader, agree},
    reduction::Traffic,
    watchdog::Phase,
};

use super::super::{StepConfig, StepContext};
use super::{AllReduce, Finished, MicroStep, Output, Replica, Step, StepPlan, SyncMode, Update};
use crate::measure::timer::Timer;
use crate::model::ImageClassifier;
use crate::step::optimizer::OptimizerState;

/// Local updates, after a beginning in which all gradients are summed.
#[derive(Debug)]
pub(super) struct LocalSgd {
    all_reduce: AllReduce,
    /// Steps between two averagings.
    every: u64,
    /// Before this step every step sums all gradients.
    from_step: u64,
    /// Since the run began.
    has_met_non_finite: bool,
    /// Of the last step, if that was to keep it and this rank took it alone.
    own_gradient: Option<Vec<f32>>,
}

impl LocalSgd {
    /// Collective: all ranks.
    pub(super) fn start<M: Module>(
        (every, from_step): (u64, u64),
        config: &StepConfig,
        model: &M,
        communicator: &Arc<dyn Communicator>,
    ) -> Result<Self> {
        let all_reduce = AllReduce::start(config, model, communicator)?;
        Ok(Self {
            all_reduce,
            every,
            from_step,
            has_met_non_finite: false,
            own_gradient: None,
        })
    }

    fn mode(&self, context: &StepContext) -> SyncMode {
        match context.step {
            step if step < self.from_step => SyncMode::AllReduce,
            step if context.must_sync || (step + 1).is_multiple_of(self.every) => {
                SyncMode::LocalThenAverage
            }
            _ => SyncMode::Local,
        }
    }

    /// Updates with this rank's own gradients, unless it had no sample or one of them is not finite, which all learn when they meet.
    fn update_alone(&mut self, step: &Step) -> StepHeader {
        let replica = &mut self.all_reduce.replica;
        let learning_rate = step.context.learning_rate;
        let mut kept = (step.context.keeps_gradients && step.num_own > 0)
            .then(|| vec![0.0; replica.reducer.layout().num_elements()]);
        let is_finite = replica.reducer.finish_local(|buckets, is_finite| {
            if let Some(kept) = &mut kept {
                buckets
                    .iter()
                    .for_each(|bucket| kept[bucket.elements()].copy_from_slice(bucket.values()));
            }
            if step.num_own > 0 && is_finite {
                replica.optimizer.update_alone(learning_rate, buckets);
            }
            is_finite
        });
        self.own_gradient = kept;
        let header = replica.header(step);
        self.has_met_non_finite |= !(header.finite && is_finite);
        StepHeader {
            finite: !self.has_met_non_finite,
            ..header
        }
    }
}

impl<M: ImageClassifier> Update<M> for LocalSgd {
    fn begin(&mut self, model: &M, step: &Step) -> StepPlan {
        let plan = self.all_reduce.begin(model, step);
        match self.mode(&step.context) {
            SyncMode::AllReduce => plan,
            mode => StepPlan::of_own_samples(step, mode),
        }
    }

    fn end_forward(&mut self, model: &mut M, output: Option<Output>) -> Result<()> {
        self.all_reduce.end_forward(model, output)
    }

    fn backward(&mut self, model: &M, loss: Option<Tensor<1>>, step: &Step, micro: &MicroStep) {
        self.all_reduce.backward(model, loss, step, micro);
    }

    fn finish(
        &mut self,
        model: &mut M,
        step: &Step,
        plan: &StepPlan,
        timer: &Timer,
    ) -> Result<Finished> {
        if plan.mode == SyncMode::AllReduce {
            return self.all_reduce.finish(model, step, plan, timer);
        }
        let header = {
            let _optimizer = timer.enter(Phase::Optimizer);
            self.update_alone(step)
        };
        let replica = &mut self.all_reduce.replica;
        let (mut stop, mut traffic) = (false, Traffic::default());
        if plan.mode == SyncMode::LocalThenAverage {
            let _waiting = timer.enter(Phase::Waiting);
            stop = agree(&*replica.communicator, &header)?.stop;
            traffic = replica.optimizer.average(&*replica.communicator)?;
        }
        let _optimizer = timer.enter(Phase::Optimizer);
        replica.place(model);
        Ok(Finished {
            stop,
            scores: replica.scores(),
            traffic,
            ..Finished::default()
        })
    }

    fn parameters(&self) -> Cow<'_, [f32]> {
        self.all_reduce.replica.optimizer.parameters().into()
    }

    fn optimizer_state(&self) -> OptimizerState {
        self.all_reduce.replica.optimizer.state()
    }

    fn restore(&mut self, model: &M, state: &OptimizerState) -> Result<()> {
        self.all_reduce.restore(model, state)
    }

    fn attach(&mut self, model: &M) -> Result<()> {
        self.all_reduce.attach(model)
    }

    fn gradients(&mut self) -> Option<Vec<f32>> {
        let synced = self.all_reduce.replica.reducer.synced();
        // After a step of this rank alone there is no sum.
        self.own_gradient
            .take()
            .or_else(|| (!synced.buckets().is_empty()).then(|| synced.to_flat()))
    }

    fn replica(&self) -> Option<&Replica> {
        Some(&self.all_reduce.replica)
    }
}
