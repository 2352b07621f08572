//! Every step sums all gradients; then every rank makes the same update. What DistributedDataParallel does.
//!
//! In: this rank's buckets. Out: the update with the mean gradient over all ranks' samples.
//! Invariant: replicas stay equal to the bit.

use std::borrow::Cow;
use std::sync::Arc;

use anyhow::Result;
use burn::module::Module;
use burn::tensor::Tensor;
use distributed::{
    CollectiveError, Communicator,
    gradients::BucketPlan,
    reduction::{AllReducer, BucketReduction, CompressedReduction, ReductionKind},
    replica::ParameterLayout,
    watchdog::Phase,
};

use super::super::{Clip, StepConfig};
use super::{Finished, MicroStep, Output, Replica, Step, StepPlan, Update};
use crate::config::SyncMethod;
use crate::measure::timer::Timer;
use crate::model::ImageClassifier;
use crate::step::gradient_noise::SquaredNorms;
use crate::step::optimizer::{OptimizerState, OwnOptimizer};

/// Sums gradients, clips their mean, updates.
#[derive(Debug)]
pub(super) struct AllReduce {
    pub(super) replica: Replica,
    clip: Option<Clip>,
    measures_noise: bool,
    own_optimizer: Option<OwnOptimizer>,
}

impl AllReduce {
    /// With the reduction of `config`; that of the library where another method merely begins with this one.
    /// Collective: all ranks.
    pub(super) fn start<M: Module>(
        config: &StepConfig,
        model: &M,
        communicator: &Arc<dyn Communicator>,
    ) -> Result<Self> {
        let replica = Replica::start(config, model, communicator, |plans, own| {
            reduction(config, plans, own)
        })?;
        Ok(Self::of(replica, config))
    }

    /// With the reduction that `replica` has.
    pub(super) fn of(replica: Replica, config: &StepConfig) -> Self {
        let measures_noise = config.gradient_noise.is_some();
        Self {
            replica,
            clip: config.clip,
            measures_noise,
            own_optimizer: config.own_optimizer.clone(),
        }
    }

    /// Limits the mean gradient.
    fn clip(&mut self, clip: Clip) {
        let mut gradients = self.replica.reducer.synced();
        match clip {
            Clip::Norm(limit) => {
                let norm = gradients.norm();
                if norm > limit {
                    gradients.scale((limit / norm) as f32);
                }
            }
            Clip::Value(limit) => gradients.clamp(limit as f32),
        }
    }
}

impl<M: ImageClassifier> Update<M> for AllReduce {
    fn begin(&mut self, _: &M, step: &Step) -> StepPlan {
        self.replica.begin(step);
        StepPlan::all_reduce(step)
    }

    fn end_forward(&mut self, _: &mut M, output: Option<Output>) -> Result<()> {
        self.replica.end_forward(output)
    }

    fn backward(&mut self, model: &M, loss: Option<Tensor<1>>, step: &Step, micro: &MicroStep) {
        self.replica.backward(model, loss, step, micro);
    }

    fn finish(
        &mut self,
        model: &mut M,
        step: &Step,
        _: &StepPlan,
        timer: &Timer,
    ) -> Result<Finished> {
        let learning_rate = step.context.learning_rate;
        let reduced = self.replica.reduce(timer);
        let scores = self.replica.scores();
        let status = match reduced {
            Err(fault @ CollectiveError::NonFinite { .. }) => {
                let report = self.replica.reducer.report();
                return Ok(Finished::not_finite(
                    fault,
                    scores,
                    report.traffic,
                    report.stop,
                ));
            }
            reduced => reduced?,
        };
        let _optimizer = timer.enter(Phase::Optimizer);
        let squared_norms = self.measures_noise.then(|| {
            let parts = self.replica.reducer.report().squared_norm_of_parts;
            SquaredNorms {
                parts,
                sum: self.replica.reducer.synced().norm().powi(2),
            }
        });
        self.clip.into_iter().for_each(|clip| self.clip(clip));
        let Self {
            replica,
            own_optimizer,
            ..
        } = self;
        match own_optimizer {
            Some(own) => {
                let gradients = replica.reducer.synced().to_params(model);
                *model = own.step(learning_rate, model.clone(), gradients);
                replica.note_parameters(model);
            }
            None => {
                replica
                    .optimizer
                    .update(learning_rate, replica.reducer.synced().buckets());
                replica.place(model);
            }
        }
        let traffic = self.replica.reducer.report().traffic;
        Ok(Finished {
            stop: status.is_some_and(|status| status.stop),
            scores,
            traffic,
            squared_norms,
            fault: None,
        })
    }

    fn parameters(&self) -> Cow<'_, [f32]> {
        self.replica.optimizer.parameters().into()
    }

    fn optimizer_state(&self) -> OptimizerState {
        match &self.own_optimizer {
            Some(own) => OptimizerState {
                own: Some(own.record()),
                ..OptimizerState::default()
            },
            None => self.replica.optimizer.state(),
        }
    }

    fn restore(&mut self, model: &M, state: &OptimizerState) -> Result<()> {
        match (&mut self.own_optimizer, &state.own) {
            (Some(own), Some(record)) => {
                own.restore(record)?;
                self.replica.note_parameters(model);
            }
            _ => self.replica.restore(model, state),
        }
        Ok(())
    }

    fn attach(&mut self, model: &M) -> Result<()> {
        Ok(self.replica.attach(model)?)
    }

    fn gradients(&mut self) -> Option<Vec<f32>> {
        Some(self.replica.reducer.synced().to_flat())
    }

    fn replica(&self) -> Option<&Replica> {
        Some(&self.replica)
    }
}

fn reduction(
    config: &StepConfig,
    plans: (&ParameterLayout, &BucketPlan),
    communicator: Arc<dyn Communicator>,
) -> Result<Box<dyn BucketReduction>, CollectiveError> {
    match config.sync.method {
        SyncMethod::Allreduce {
            compression,
            compress_warmup_steps,
            ..
        } if compression.is_some() => Ok(Box::new(CompressedReduction::new(
            compression.0,
            compress_warmup_steps,
            plans,
            communicator,
        )?)),
        SyncMethod::Allreduce { reduction, .. } => match reduction.kind() {
            Some(kind) => Ok(Box::new(AllReducer::new(kind, communicator)?)),
            None => by_nccl(&*communicator, config),
        },
        _ => Ok(Box::new(AllReducer::new(
            ReductionKind::Library,
            communicator,
        )?)),
    }
}

/// The sum on GPUs; without an index of its own a rank has the GPU of its index on its node.
#[cfg(feature = "nccl")]
fn by_nccl(
    communicator: &dyn Communicator,
    config: &StepConfig,
) -> Result<Box<dyn BucketReduction>, CollectiveError> {
    let gpu = config
        .sync
        .gpu
        .unwrap_or(communicator.topology().local_rank);
    Ok(Box::new(distributed::reduction::NcclReduction::new(
        communicator,
        gpu,
        Arc::clone(&config.rank_status),
    )?))
}

#[cfg(not(feature = "nccl"))]
fn by_nccl(
    _communicator: &dyn Communicator,
    _config: &StepConfig,
) -> Result<Box<dyn BucketReduction>, CollectiveError> {
    unreachable!("a program without nccl refuses --reduction nccl before it starts")
}
