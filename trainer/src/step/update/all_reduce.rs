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
    BucketPlan, BucketReduction, CollectiveError, Communicator, CompressedReduction, ParameterLayout, Phase,
    ReductionKind, SumReduction,
};

use super::super::{Clip, StepConfig};
use super::{Finished, MicroStep, Output, Replica, Step, StepPlan, Update};
use crate::config::SyncMethod;
use crate::measure::timer::Timer;
use crate::model::ImageClassifier;
use crate::step::optimizer::OptimizerState;

/// Sums gradients, clips their mean, updates.
#[derive(Debug)]
pub(super) struct AllReduce {
    pub(super) replica: Replica,
    clip: Option<Clip>,
}

impl AllReduce {
    /// With the reduction of `config`; that of the library where another method merely begins with this one.
    ///
    /// # Collective
    /// Must be called by all ranks.
    pub(super) fn start<M: Module>(
        config: &StepConfig,
        model: &M,
        communicator: &Arc<dyn Communicator>,
    ) -> Result<Self> {
        let replica = Replica::start(config, model, communicator, |plans, own| reduction(config, plans, own))?;
        Ok(Self::of(replica, config))
    }

    /// With the reduction that `replica` has.
    pub(super) fn of(replica: Replica, config: &StepConfig) -> Self {
        Self { replica, clip: config.clip }
    }

    /// Limits the mean gradient, and updates with it.
    fn update_clipped(&mut self, learning_rate: f64, clip: Clip) {
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
        for bucket in gradients.buckets() {
            self.replica.optimizer.update(learning_rate, bucket);
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

    fn finish(&mut self, model: &mut M, step: &Step, _: &StepPlan, timer: &Timer) -> Result<Finished> {
        let (learning_rate, clip) = (step.context.learning_rate, self.clip);
        let reduced = self.replica.reduce(timer, |optimizer, bucket| {
            // The norm of the whole gradient is known only with its last bucket.
            if clip.is_none() {
                optimizer.update(learning_rate, bucket);
            }
        });
        let scores = self.replica.scores();
        let status = match reduced {
            Err(fault @ CollectiveError::NonFinite { .. }) => return Ok(Finished::not_finite(fault, scores)),
            reduced => reduced?,
        };
        let _optimizer = timer.enter(Phase::Optimizer);
        if let Some(clip) = clip {
            self.update_clipped(learning_rate, clip);
        }
        self.replica.commit(model);
        let traffic = self.replica.reducer.report().traffic;
        Ok(Finished { stop: status.is_some_and(|status| status.stop), scores, traffic, fault: None })
    }

    fn parameters(&self) -> Cow<'_, [f32]> {
        self.replica.optimizer.parameters().into()
    }

    fn optimizer_state(&self) -> OptimizerState {
        self.replica.optimizer.state()
    }

    fn restore(&mut self, model: &M, state: &OptimizerState) {
        self.replica.restore(model, state);
    }

    fn attach(&mut self, model: &M) -> Result<()> {
        self.replica.attach(model);
        Ok(())
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
        SyncMethod::Allreduce { compression, compress_warmup_steps, .. } if compression.is_some() => {
            Ok(Box::new(CompressedReduction::new(compression.0, compress_warmup_steps, plans, communicator)?))
        }
        SyncMethod::Allreduce { reduction, .. } => match reduction.kind() {
            Some(kind) => Ok(Box::new(SumReduction::new(kind, communicator)?)),
            None => by_nccl(&*communicator, config),
        },
        _ => Ok(Box::new(SumReduction::new(ReductionKind::Library, communicator)?)),
    }
}

/// The sum on GPUs; without an index of its own a rank has the GPU of its index on its node.
#[cfg(feature = "nccl")]
fn by_nccl(communicator: &dyn Communicator, config: &StepConfig) -> Result<Box<dyn BucketReduction>, CollectiveError> {
    let gpu = config.sync.gpu.unwrap_or(communicator.topology().local_rank);
    Ok(Box::new(distributed::NcclReduction::new(communicator, gpu, Arc::clone(&config.rank_status))?))
}

#[cfg(not(feature = "nccl"))]
fn by_nccl(
    _communicator: &dyn Communicator,
    _config: &StepConfig,
) -> Result<Box<dyn BucketReduction>, CollectiveError> {
    unreachable!("a program without nccl refuses --reduction nccl before it starts")
}
