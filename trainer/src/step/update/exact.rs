//! Every step sums all gradients to the same bits on any number of ranks: a global batch is computed in virtual shards, whose
//! gradients and norm statistics are kept apart until they are added up exactly.
//!
//! In: this rank's shards, one a micro-batch. Out: the update with the mean gradient, norm statistics with the mean over all shards.
//! Invariant: the same bits on any number of ranks.

use std::borrow::Cow;
use std::sync::Arc;

use anyhow::Result;
use burn::module::Module;
use burn::tensor::Tensor;
use distributed::{
    Communicator,
    reduction::{ExactReducer, ExactReduction},
    replica::{ParameterLayout, read, write},
    watchdog::Phase,
};

use super::super::StepConfig;
use super::{AllReduce, Finished, MicroStep, Output, Replica, Step, StepPlan, Update};
use crate::measure::timer::Timer;
use crate::model::ImageClassifier;
use crate::step::optimizer::OptimizerState;
use crate::step::sync_plan::own_shards;

/// The all-reduce of virtual shards.
#[derive(Debug)]
pub(super) struct Exact {
    all_reduce: AllReduce,
    statistics: ShardStatistics,
    num_shards: usize,
}

impl Exact {
    /// Collective: all ranks.
    pub(super) fn start<M: Module>(
        num_shards: usize,
        config: &StepConfig,
        model: &M,
        communicator: &Arc<dyn Communicator>,
    ) -> Result<Self> {
        let num_own = own_shards(num_shards, communicator.rank(), communicator.world_size()).len();
        let replica = Replica::start(config, model, communicator, |_, own| {
            Ok(Box::new(ExactReduction::new(own, num_own)?))
        })?;
        let statistics = ShardStatistics::new(model, Arc::clone(communicator))?;
        Ok(Self {
            all_reduce: AllReduce::of(replica, config),
            statistics,
            num_shards,
        })
    }
}

impl<M: ImageClassifier> Update<M> for Exact {
    fn begin(&mut self, model: &M, step: &Step) -> StepPlan {
        self.statistics.begin_step(model);
        StepPlan {
            keeps_slots_apart: true,
            ..self.all_reduce.begin(model, step)
        }
    }

    fn end_forward(&mut self, model: &mut M, output: Option<Output>) -> Result<()> {
        let has_samples = output.is_some();
        self.all_reduce.end_forward(model, output)?;
        if has_samples {
            self.statistics.end_shard(model);
        }
        Ok(())
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
        let finished = self.all_reduce.finish(model, step, plan, timer)?;
        if finished.fault.is_none() {
            let _waiting = timer.enter(Phase::Waiting);
            self.statistics
                .end_step(model, self.num_shards.min(step.num_global))?;
        }
        Ok(finished)
    }

    fn parameters(&self) -> Cow<'_, [f32]> {
        self.all_reduce.replica.optimizer.parameters().into()
    }

    fn optimizer_state(&self) -> OptimizerState {
        Update::<M>::optimizer_state(&self.all_reduce)
    }

    fn restore(&mut self, model: &M, state: &OptimizerState) -> Result<()> {
        self.all_reduce.restore(model, state)
    }

    fn attach(&mut self, model: &M) -> Result<()> {
        self.all_reduce.attach(model)
    }

    fn gradients(&mut self) -> Option<Vec<f32>> {
        Some(self.all_reduce.replica.reducer.synced().to_flat())
    }

    fn replica(&self) -> Option<&Replica> {
        Some(&self.all_reduce.replica)
    }
}

/// The running norm statistics of a step's shards.
#[derive(Debug)]
struct ShardStatistics {
    layout: ParameterLayout,
    reducer: ExactReducer,
    /// As the step began.
    start: Vec<f32>,
    /// After each of this rank's shards that had samples.
    shards: Vec<Vec<f32>>,
}

impl ShardStatistics {
    /// Collective: all ranks.
    fn new<M: Module>(model: &M, communicator: Arc<dyn Communicator>) -> Result<Self> {
        let layout = ParameterLayout::statistics(model);
        Ok(Self {
            layout,
            reducer: ExactReducer::new(communicator)?,
            start: Vec::new(),
            shards: Vec::new(),
        })
    }

    /// Takes note of where the step begins.
    fn begin_step<M: Module>(&mut self, model: &M) {
        self.start = read(model, &self.layout);
        self.shards.clear();
    }

    /// Takes a shard's statistics and sets the model back to where the step began.
    fn end_shard<M: Module>(&mut self, model: &mut M) {
        self.shards.push(read(model, &self.layout));
        *model = write(model.clone(), &self.layout, &self.start);
    }

    /// Gives the model the mean over all ranks' `num_shards` shards that had samples.
    /// Collective: all ranks.
    fn end_step<M: Module>(&mut self, model: &mut M, num_shards: usize) -> Result<()> {
        for shard in &mut self.shards {
            shard
                .iter_mut()
                .zip(&self.start)
                .for_each(|(value, start)| *value -= start);
        }
        let shards: Vec<&[f32]> = self.shards.iter().map(Vec::as_slice).collect();
        let mut means = vec![0.0; self.layout.num_elements()];
        self.reducer.sum_shards(&shards, &mut means)?;
        means
            .iter_mut()
            .zip(&self.start)
            .for_each(|(mean, start)| *mean = start + *mean / num_shards as f32);
        *model = write(model.clone(), &self.layout, &means);
        Ok(())
    }
}
