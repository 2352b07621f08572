//! The synchronisation of the gradients or parameters of all ranks.
//!
//! In: this rank's buckets and optimizer. Out: the reduction of the buckets; equal replicas after steps
//! that ask for them. Invariant: all ranks make the same collectives.
//! Source: Li et al. 2020 (2006.15704) for the sum of every step's gradients, as in
//! DistributedDataParallel; Lin et al. 2020 (1808.07217) for local SGD.

mod exact;
mod servers;

use std::sync::Arc;

use anyhow::Result;
use burn::module::Module;
use distributed::gradients::{
    AllReducer, BucketPlan, BucketReduction, CompressedReduction, ExactReduction, ReductionKind,
    StepHeader, Traffic, agree,
};
use distributed::replica::ParameterLayout;
use distributed::watchdog::Phase;
use distributed::{CollectiveError, Communicator};

use self::exact::ShardStatistics;
use self::servers::Servers;
pub use self::servers::{check_threads, serve};
use super::StepConfig;
use super::collector::HostBuckets;
use super::config::{Agreed, Step, StepContext, SyncMode};
use super::optimizer::{HostOptimizer, Optimizer};
use super::sync_plan::{meets_after, own_shards};
use crate::config::SyncMethod;
use crate::measure::timer::Timer;

/// The synchronisation of a rank with the others.
#[expect(clippy::large_enum_variant, reason = "a rank has one at a time")]
#[derive(Debug)]
pub(super) enum Synchronisation {
    /// Every step sums all gradients; a single rank has nothing to sum.
    AllReduce,
    /// As `AllReduce`, to the same bits on any number of ranks.
    Exact(ShardStatistics),
    /// Servers update.
    Servers(Servers),
    /// Ranks update independently and average their parameters in some steps.
    LocalSgd(LocalSgd),
}

impl Synchronisation {
    /// Starts the synchronisation that `config` chooses, and the buckets of `model`.
    /// Collective: all ranks.
    pub(super) fn start<M: Module>(
        config: &StepConfig,
        model: &M,
        communicator: &Arc<dyn Communicator>,
    ) -> Result<(Self, HostBuckets)> {
        let method = &config.sync.method;
        if let SyncMethod::ParameterServer { .. } = method {
            let (servers, buckets) = Servers::start(config, model, communicator)?;
            return Ok((Self::Servers(servers), buckets));
        }
        let buckets = HostBuckets::new(config, model, communicator, |plans, own| {
            reduction(config, plans, own)
        })?;
        let communicator = Arc::clone(communicator);
        let synchronisation = match method {
            SyncMethod::Exact { virtual_shards } => {
                Self::Exact(ShardStatistics::new(model, communicator, *virtual_shards)?)
            }
            SyncMethod::LocalSgd { .. } => Self::LocalSgd(LocalSgd {
                method: method.clone(),
                communicator,
                is_finite: true,
            }),
            _ => Self::AllReduce,
        };
        Ok((synchronisation, buckets))
    }

    pub(super) fn mode(&self, context: &StepContext) -> SyncMode {
        match self {
            Self::AllReduce | Self::Exact(_) => SyncMode::Global,
            Self::Servers(servers) => servers.mode(),
            Self::LocalSgd(local) => local.mode(context),
        }
    }

    /// Returns true if the gradients of every micro-step are kept apart until the reduction.
    pub(super) fn keeps_micro_steps_apart(&self) -> bool {
        matches!(self, Self::Exact(_))
    }

    pub(super) fn begin_step<M: Module>(&mut self, model: &M) {
        if let Self::Exact(statistics) = self {
            statistics.begin_step(model);
        }
    }

    /// Ends the forward pass of a micro-batch with samples.
    pub(super) fn end_forward<M: Module>(&mut self, model: &mut M) {
        if let Self::Exact(statistics) = self {
            statistics.end_shard(model);
        }
    }

    /// Ends a step after the update of this rank; returns what all ranks `agreed` on by then.
    /// Collective: all ranks.
    ///
    /// # Errors
    /// If a collective fails, or something that can no longer be undone was not finite.
    pub(super) fn end_step<M: Module>(
        &mut self,
        model: &mut M,
        optimizer: &mut Optimizer,
        buckets: &HostBuckets,
        step: &Step,
        mut agreed: Agreed,
        timer: &Timer,
    ) -> Result<Agreed> {
        match self {
            Self::AllReduce => return Ok(agreed),
            Self::Exact(statistics) => {
                let _waiting = timer.enter(Phase::Waiting);
                statistics.end_step(model, step.num_global)?;
                return Ok(agreed);
            }
            Self::Servers(servers) => {
                if !(step.context.must_sync || agreed.stop) {
                    return Ok(agreed);
                }
                let _waiting = timer.enter(Phase::Waiting);
                agreed.stop = servers.meet(optimizer.host(), buckets, step)?;
            }
            Self::LocalSgd(local) => {
                let header = buckets.header(step);
                local.is_finite &= header.finite || step.mode == SyncMode::Global;
                if step.mode != SyncMode::LocalThenAverage {
                    return Ok(agreed);
                }
                let _waiting = timer.enter(Phase::Waiting);
                agreed = local.average(optimizer.host(), header)?;
            }
        }
        let _optimizer = timer.enter(Phase::Optimizer);
        optimizer.place(model);
        Ok(agreed)
    }

    /// Informs servers of the optimizer's parameters.
    /// Collective: all ranks.
    pub(super) fn attach(&self, optimizer: &mut Optimizer, plan: &BucketPlan) -> Result<()> {
        match self {
            Self::Servers(servers) => Ok(servers.send_state(optimizer.host(), plan)?),
            _ => Ok(()),
        }
    }

    /// Ends what was started; returns the number of updates of asynchronous servers, by staleness.
    ///
    /// # Collective
    /// Must be called by all ranks that train.
    pub(super) fn finish(self) -> Result<Option<Vec<u64>>> {
        match self {
            Self::Servers(servers) => servers.finish(),
            _ => Ok(None),
        }
    }
}

/// Local updates, after a beginning in which all gradients are summed. A value that was not finite on
/// one rank ends the run on all ranks at the next average.
#[derive(Debug)]
pub(super) struct LocalSgd {
    method: SyncMethod,
    communicator: Arc<dyn Communicator>,
    /// Whether all losses and gradients of this rank were finite so far.
    is_finite: bool,
}

impl LocalSgd {
    fn mode(&self, context: &StepContext) -> SyncMode {
        match self.method {
            SyncMethod::LocalSgd { from_step, .. } if context.step < from_step => SyncMode::Global,
            _ if context.must_sync || meets_after(&self.method, context.step) => {
                SyncMode::LocalThenAverage
            }
            _ => SyncMode::Local,
        }
    }

    /// Replaces parameters and velocities by their mean over all ranks.
    /// Collective: all ranks.
    fn average(
        &self,
        optimizer: &mut HostOptimizer,
        header: StepHeader,
    ) -> Result<Agreed, CollectiveError> {
        let header = StepHeader {
            finite: self.is_finite,
            ..header
        };
        let stop = agree(&*self.communicator, &header)?.stop;
        let world_size = self.communicator.world_size();
        let mut traffic = Traffic::default();
        for values in optimizer.buffers_mut() {
            self.communicator.all_reduce_sum(values)?;
            for value in values.iter_mut() {
                *value /= world_size as f32;
            }
            traffic += Traffic::of_sum(values.len(), size_of::<f32>(), world_size);
        }
        Ok(Agreed { stop, traffic })
    }
}

/// Returns the reduction of buckets that `config` chooses.
fn reduction(
    config: &StepConfig,
    plans: (&ParameterLayout, &BucketPlan),
    communicator: Arc<dyn Communicator>,
) -> Result<Box<dyn BucketReduction>, CollectiveError> {
    match config.sync.method {
        SyncMethod::Exact { virtual_shards } => {
            let rank = communicator.rank();
            let num_own = own_shards(virtual_shards, rank, communicator.world_size()).len();
            Ok(Box::new(ExactReduction::new(communicator, num_own)?))
        }
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

/// Returns the sum on GPUs; without an index a rank has the GPU of its index on its node.
#[cfg(feature = "nccl")]
fn by_nccl(
    communicator: &dyn Communicator,
    config: &StepConfig,
) -> Result<Box<dyn BucketReduction>, CollectiveError> {
    let local_rank = communicator.topology().local_rank;
    Ok(Box::new(distributed::gradients::NcclReduction::new(
        communicator,
        config.sync.gpu.unwrap_or(local_rank),
        Arc::clone(&config.rank_status),
    )?))
}

#[cfg(not(feature = "nccl"))]
fn by_nccl(
    _: &dyn Communicator,
    _: &StepConfig,
) -> Result<Box<dyn BucketReduction>, CollectiveError> {
    unreachable!("a program without nccl refuses --reduction nccl before it starts")
}
