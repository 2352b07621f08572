//! A replica in main memory: gradients in buckets, which are synchronised with the other ranks, and
//! an optimizer of flat parameters.
//!
//! In: losses and scores of each pass. Out: a model with updated parameters; equal replicas after
//! steps that ask for them.
//! Invariant: all ranks make the same collectives, and receive the same buckets, so replicas stay
//! equal to the bit.
//! Source: Li et al. 2020 (2006.15704) for the sum of every step's gradients, as in
//! DistributedDataParallel; Lin et al. 2020 (1808.07217) for local SGD.

mod bucket_hook;
mod optimizer;
mod servers;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use anyhow::{Result, anyhow, ensure};
use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::optim::{ModuleOptimizer, OptimizerRecord};
use burn::tensor::{Bytes, Tensor};
use distributed::gradients::{
    AllReducer, BucketContext, BucketPlan, BucketReduction, CompressedReduction, ExactReducer,
    ExactReduction, GradientReducer, MicroStepConfig, ReducerConfig, ReductionKind, StepHeader,
    Traffic, agree,
};
use distributed::replica::{ParameterLayout, read, write};
use distributed::watchdog::Phase;
use distributed::{CollectiveError, Communicator};

use self::bucket_hook::BucketHook;
use self::optimizer::HostOptimizer;
use self::servers::Servers;
pub use self::servers::{check_threads, serve};
use super::config::{Agreed, Clip, OptimizerState, Step, StepConfig, SyncMode};
use super::sync_plan::{bucket_cap_bytes, own_shards};
use crate::config::{OnOff, ReductionChoice, SyncMethod};
use crate::measure::metrics::ScoreSums;
use crate::measure::timer::Timer;
use crate::model::parts::{depth, is_within};
use crate::step::gradient_noise::NoiseSums;
use crate::task::{Scores, Task, UnreadPass};

/// The buckets, the optimizer and the synchronisation of one rank.
#[derive(Debug)]
pub(super) struct HostReplica {
    pub(super) reducer: GradientReducer,
    pub(super) hook: Arc<BucketHook>,
    pub(super) noise: NoiseSums,
    /// Scores of the step under way.
    pub(super) scores: Scores,
    /// The last step's gradient, if it was kept.
    pub(super) kept: Option<Vec<f32>>,
    optimizer: Optimizer,
    /// The norm statistics of virtual shards, if sums are exact.
    pub(super) shards: Option<ShardStatistics>,
    servers: Option<Servers>,
    /// False once a loss or gradient of this rank was not finite in a local step: the next average
    /// ends the run on all ranks.
    is_finite: bool,
    communicator: Arc<dyn Communicator>,
}

#[derive(Debug)]
enum Optimizer {
    /// With servers, which update, a copy of their parameters and velocities.
    Host(HostOptimizer),
    /// The parameters are only in the model.
    Custom(CustomOptimizer, ParameterLayout),
}

impl HostReplica {
    /// Plans the buckets of `model` and starts the synchronisation that `config` chooses.
    /// Collective: all ranks.
    ///
    /// # Errors
    /// If the ranks' plans differ, or a collective fails.
    pub(super) fn new<M: Module>(
        config: &StepConfig,
        model: &M,
        communicator: &Arc<dyn Communicator>,
    ) -> Result<Self> {
        let layout = ParameterLayout::new(model);
        let total_bytes = layout.num_elements() * size_of::<f32>();
        let reducer_config = ReducerConfig {
            bucket_cap_bytes: Some(bucket_cap_bytes(&config.sync, total_bytes)),
            overlap: config.sync.overlap == OnOff::On,
            rank_status: Arc::clone(&config.rank_status),
        };
        let servers = match config.sync.method {
            SyncMethod::ParameterServer { .. } => {
                Some(Servers::start(config, model, communicator)?)
            }
            _ => None,
        };
        let reducer = GradientReducer::with_reduction(
            model,
            Arc::clone(communicator),
            &reducer_config,
            |plans, own| match &servers {
                Some(servers) => Ok(Box::new(Arc::clone(&servers.client))),
                None => reduction(config, plans, own),
            },
        )?;
        if config.gradient_noise.is_some() {
            reducer.measure_parts();
        }
        let shards = match config.sync.method {
            SyncMethod::Exact { virtual_shards } => Some(ShardStatistics::new(
                model,
                Arc::clone(communicator),
                virtual_shards,
            )?),
            _ => None,
        };
        let optimizer = match &config.custom_optimizer {
            Some(custom) => Optimizer::Custom(custom.clone(), layout),
            None => {
                let parameters = read(model, &layout);
                let factors = &config.rate_factors;
                let rule = config.optimizer;
                Optimizer::Host(HostOptimizer::new(rule, factors, &layout, parameters))
            }
        };
        Ok(Self {
            hook: Arc::new(BucketHook::new(reducer.collector(), computes_apart(model))),
            reducer,
            noise: NoiseSums::default(),
            scores: Scores::default(),
            kept: None,
            optimizer,
            shards,
            servers,
            is_finite: true,
            communicator: Arc::clone(communicator),
        })
    }

    pub(super) fn begin<M: Module>(&mut self, model: &M, step: &Step) {
        self.scores = Scores::default();
        self.kept = None;
        if let Some(shards) = &mut self.shards {
            shards.begin_step(model);
        }
        self.reducer.begin_step(BucketContext {
            learning_rate: step.context.learning_rate,
            has_samples: step.num_own > 0,
        });
    }

    /// Takes the results of a forward pass with samples, for which it waits.
    pub(super) fn end_forward<T: Task>(
        &mut self,
        task: &T,
        model: &mut T::Model,
        pass: UnreadPass,
    ) -> Result<()> {
        pass.add_to(task, &mut self.scores)?;
        if let Some(shards) = &mut self.shards {
            shards.end_shard(model);
        }
        Ok(())
    }

    /// Differentiates `loss` and collects the gradients; `None` if this rank makes no pass.
    pub(super) fn backward<M: Module>(
        &mut self,
        model: &M,
        loss: Option<Tensor<1>>,
        step: &Step,
        micro_step: MicroStepConfig,
    ) {
        // Ahead of the buckets, so that all ranks agree before they use a sum.
        if micro_step.is_last && step.mode == SyncMode::Global {
            self.reducer.post_header(self.header(step, true));
        }
        let Some(loss) = loss else { return };
        self.reducer.begin_micro_step(micro_step);
        let gradients = loss.backward();
        self.hook.wait();
        self.reducer.accumulate(model, gradients, 1.0);
    }

    /// Returns this rank's account of the step, after its last forward pass.
    fn header(&self, step: &Step, is_finite: bool) -> StepHeader {
        StepHeader {
            epoch: step.context.epoch,
            step: step.context.step,
            plan_hash: self.reducer.plan().hash(),
            stop: step.context.stop,
            num_samples: self.scores.sums.num_samples,
            finite: self.scores.sums.loss_sum.is_finite() && is_finite,
        }
    }

    /// Updates the parameters of `parts`, or all without parts, with the mean gradient, and
    /// synchronises the replicas if the step asks for it. A gradient over all ranks' samples is
    /// used only if it is finite on all of them.
    /// Collective: all ranks.
    ///
    /// # Errors
    /// [`NonFinite`](CollectiveError::NonFinite) on all ranks, before the update if the
    /// step can be skipped; or a collective failed.
    pub(super) fn update<M: Module>(
        &mut self,
        model: &mut M,
        step: &Step,
        parts: &[String],
        config: &StepConfig,
        timer: &Timer,
    ) -> Result<Agreed> {
        let mut num_samples = 0;
        if step.mode.reduces() {
            num_samples = self.update_by_all(model, step, parts, config, timer)?;
        } else {
            let gradients = self.reducer.finish_local();
            let is_finite = gradients.is_finite();
            let has_samples = step.num_own > 0;
            self.kept = (step.context.keeps_gradients && has_samples).then(|| gradients.to_flat());
            if is_finite && has_samples {
                let _optimizer = timer.enter(Phase::Optimizer);
                let optimizer = self.optimizer.host();
                optimizer.update(step.context.learning_rate, gradients.buckets());
                *model = optimizer.place(model.clone());
            }
            self.is_finite &= is_finite && self.scores.sums.loss_sum.is_finite();
        }
        let mut agreed = Agreed {
            num_samples,
            ..self.agreed()
        };
        if let Some(shards) = &mut self.shards {
            let _waiting = timer.enter(Phase::Waiting);
            shards.end_step(model, step.num_global.unwrap_or(0))?;
            return Ok(agreed);
        }
        if let Some(servers) = &self.servers
            && (step.context.must_sync || agreed.stop)
        {
            let _waiting = timer.enter(Phase::Waiting);
            let header = self.header(step, true);
            let optimizer = self.optimizer.host();
            agreed.stop = servers.meet(optimizer, self.reducer.plan(), &header)?;
        } else if step.mode == SyncMode::LocalThenAverage {
            let _waiting = timer.enter(Phase::Waiting);
            agreed = self.average(step)?;
        } else {
            return Ok(agreed);
        }
        if let Optimizer::Host(optimizer) = &self.optimizer {
            let _optimizer = timer.enter(Phase::Optimizer);
            *model = optimizer.place(model.clone());
        }
        Ok(agreed)
    }

    /// Updates the parameters with the sum of all ranks' gradients, or takes those that servers
    /// have updated. Returns the samples of all ranks; 0 without headers.
    fn update_by_all<M: Module>(
        &mut self,
        model: &mut M,
        step: &Step,
        parts: &[String],
        config: &StepConfig,
        timer: &Timer,
    ) -> Result<u64> {
        let status = {
            let _waiting = timer.enter(Phase::Waiting);
            self.reducer.finish()?
        };
        for (bucket, times) in self.reducer.report().buckets.iter().enumerate() {
            timer.add_bucket(bucket, times.start, times.end);
        }
        let num_samples = status.map_or(0, |status| status.num_samples);
        let squared_norm_of_parts = self.reducer.report().squared_norm_of_parts;
        let _optimizer = timer.enter(Phase::Optimizer);
        let mut gradients = self.reducer.synced();
        if step.num_global.is_none() {
            ensure!(
                num_samples > 0,
                "step {}: expected samples on at least one rank, got none; give a rank some, or make no step",
                step.context.step + 1
            );
            gradients.scale((1.0 / num_samples as f64) as f32);
        }
        if !parts.is_empty() {
            let depth = depth(gradients.layout());
            let is_in = |path: &str| parts.iter().any(|part| is_within(path, part, depth));
            gradients.retain(|entry| is_in(&entry.path));
        }
        if let Some(batches) = config.gradient_noise
            && step.num_global == Some(batches.large)
        {
            let squared_norm = gradients.norm().powi(2);
            let num_parts = step.num_micro_steps;
            self.noise +=
                NoiseSums::of_step(squared_norm_of_parts, squared_norm, num_parts, batches);
        }
        match config.clip {
            Some(Clip::Norm(limit)) => {
                let norm = gradients.norm();
                if norm > limit {
                    gradients.scale((limit / norm) as f32);
                }
            }
            Some(Clip::Value(limit)) => gradients.clamp(limit as f32),
            None => {}
        }
        self.kept = step.context.keeps_gradients.then(|| gradients.to_flat());
        let learning_rate = step.context.learning_rate;
        let buckets = gradients.buckets().iter();
        let buckets = buckets.map(|bucket| (bucket.elements(), bucket.values()));
        *model = match &mut self.optimizer {
            Optimizer::Custom(custom, _) => {
                let gradients = gradients.to_params(model);
                custom.0.step(learning_rate, model.clone(), gradients)
            }
            Optimizer::Host(optimizer) => {
                if self.servers.is_some() {
                    optimizer.take_parameters(buckets);
                } else {
                    optimizer.update(learning_rate, buckets);
                }
                optimizer.place(model.clone())
            }
        };
        Ok(num_samples)
    }

    /// Replaces parameters and velocities by their mean over all ranks.
    /// Collective: all ranks.
    fn average(&mut self, step: &Step) -> Result<Agreed, CollectiveError> {
        let header = self.header(step, self.is_finite);
        let stop = agree(&*self.communicator, &header)?.stop;
        let world_size = self.communicator.world_size();
        let mut traffic = Traffic::default();
        for values in self.optimizer.host().buffers_mut() {
            self.communicator.all_reduce_sum(values)?;
            for value in values.iter_mut() {
                *value /= world_size as f32;
            }
            traffic += Traffic::of_sum(values.len(), size_of::<f32>(), world_size);
        }
        Ok(Agreed {
            stop,
            num_samples: 0,
            traffic,
        })
    }

    /// Takes the scores of the step, if this rank has samples in it.
    pub(super) fn take_scores(&mut self) -> Option<ScoreSums> {
        let sums = std::mem::take(&mut self.scores.sums);
        (sums.num_samples > 0).then_some(sums)
    }

    /// Returns what the ranks agreed on in the reduction of the last step.
    pub(super) fn agreed(&self) -> Agreed {
        let report = self.reducer.report();
        Agreed {
            stop: report.stop,
            num_samples: 0,
            traffic: report.traffic,
        }
    }

    /// Returns the parameters, flat in module order.
    pub(super) fn parameters<M: Module>(&self, model: &M) -> Cow<'_, [f32]> {
        match &self.optimizer {
            Optimizer::Host(optimizer) => optimizer.parameters().into(),
            Optimizer::Custom(_, layout) => read(model, layout).into(),
        }
    }

    pub(super) fn optimizer_state(&self) -> OptimizerState {
        match &self.optimizer {
            Optimizer::Host(optimizer) => optimizer.state(),
            Optimizer::Custom(custom, _) => OptimizerState {
                custom: Some(custom.record()),
                ..OptimizerState::default()
            },
        }
    }

    /// Continues from the parameters of `model` and a saved state.
    ///
    /// # Errors
    /// If the state is of another optimizer, the same on all ranks.
    pub(super) fn restore<M: Module>(&mut self, model: &M, state: &OptimizerState) -> Result<()> {
        match &mut self.optimizer {
            Optimizer::Host(optimizer) => optimizer.restore(model, state),
            Optimizer::Custom(custom, _) => {
                if let Some(record) = &state.custom {
                    custom.restore(record)?;
                }
            }
        }
        Ok(())
    }

    /// Returns the model to train, after the servers know the optimizer's parameters.
    /// Collective: all ranks.
    pub(super) fn attach<M: Module>(&mut self, model: M) -> Result<M> {
        let model = match &self.optimizer {
            Optimizer::Custom(..) => with_ids_by_order(model),
            Optimizer::Host(_) => model,
        };
        if let Some(servers) = &self.servers {
            servers.send_state(self.optimizer.host(), self.reducer.plan())?;
        }
        self.reducer.rename(&model)?;
        Ok(model)
    }

    /// Leaves the servers; returns the number of updates of asynchronous ones, by staleness.
    /// Collective: all ranks that train.
    pub(super) fn finish(self) -> Result<Option<Vec<u64>>> {
        match self.servers {
            Some(servers) => servers.finish(),
            None => Ok(None),
        }
    }
}

/// Returns true if the model's device has separate memory and computes while the CPU continues.
fn computes_apart<M: Module>(model: &M) -> bool {
    let devices = model.devices();
    devices
        .iter()
        .any(|device| device.memory_pool_usage().is_some())
}

impl Optimizer {
    /// Returns the optimizer of parameter servers and local SGD, for which a custom one is refused.
    fn host(&mut self) -> &mut HostOptimizer {
        match self {
            Self::Host(optimizer) => optimizer,
            Self::Custom(..) => unreachable!("a custom optimizer updates by the sum of all ranks"),
        }
    }
}

/// Returns the reduction of buckets that `config` chooses.
fn reduction(
    config: &StepConfig,
    plans: (&ParameterLayout, &BucketPlan),
    communicator: Arc<dyn Communicator>,
) -> Result<Box<dyn BucketReduction>, CollectiveError> {
    let kind = match config.sync.method {
        SyncMethod::Exact { virtual_shards } => {
            let rank = communicator.rank();
            let num_own = own_shards(virtual_shards, rank, communicator.world_size()).len();
            return Ok(Box::new(ExactReduction::new(communicator, num_own)?));
        }
        SyncMethod::Allreduce {
            compression,
            compress_warmup_steps,
            ..
        } if compression.is_some() => {
            return Ok(Box::new(CompressedReduction::new(
                compression.0,
                compress_warmup_steps,
                plans,
                communicator,
            )?));
        }
        SyncMethod::Allreduce { reduction, .. } => {
            reduction.unwrap_or(ReductionChoice::Hierarchical).kind()
        }
        _ => Some(ReductionKind::Library),
    };
    match kind {
        Some(kind) => Ok(Box::new(AllReducer::new(kind, communicator)?)),
        #[cfg(feature = "nccl")]
        None => {
            // Without an index a rank has the GPU of its index on its node.
            let local_rank = communicator.topology().local_rank;
            Ok(Box::new(distributed::gradients::NcclReduction::new(
                &*communicator,
                config.gpu.unwrap_or(local_rank),
                Arc::clone(&config.rank_status),
            )?))
        }
        #[cfg(not(feature = "nccl"))]
        None => unreachable!("a program without nccl refuses --reduction nccl before it starts"),
    }
}

/// The running norm statistics of a step's virtual shards, one a micro-batch: the same bits on any
/// number of ranks, since shards are kept apart until they are added up exactly.
#[derive(Debug)]
pub(super) struct ShardStatistics {
    layout: ParameterLayout,
    reducer: ExactReducer,
    num_shards: usize,
    /// Statistics at the start of the step.
    start: Vec<f32>,
    /// Statistics after each of this rank's shards that had samples.
    shards: Vec<Vec<f32>>,
}

impl ShardStatistics {
    /// Collective: all ranks.
    fn new<M: Module>(
        model: &M,
        communicator: Arc<dyn Communicator>,
        num_shards: usize,
    ) -> Result<Self> {
        Ok(Self {
            layout: ParameterLayout::statistics(model),
            num_shards,
            reducer: ExactReducer::new(communicator)?,
            start: Vec::new(),
            shards: Vec::new(),
        })
    }

    fn begin_step<M: Module>(&mut self, model: &M) {
        self.start = read(model, &self.layout);
        self.shards.clear();
    }

    /// Takes a shard's statistics and resets the model to the start of the step.
    fn end_shard<M: Module>(&mut self, model: &mut M) {
        self.shards.push(read(model, &self.layout));
        *model = write(model.clone(), &self.layout, &self.start);
    }

    /// Gives the model the mean over the shards of all ranks that had some of the `num_samples`.
    /// Collective: all ranks.
    fn end_step<M: Module>(&mut self, model: &mut M, num_samples: usize) -> Result<()> {
        let num_shards = self.num_shards.min(num_samples) as f32;
        for shard in &mut self.shards {
            for (value, start) in shard.iter_mut().zip(&self.start) {
                *value -= start;
            }
        }
        let shards: Vec<&[f32]> = self.shards.iter().map(Vec::as_slice).collect();
        let mut means = vec![0.0; self.layout.num_elements()];
        self.reducer.sum_shards(&shards, &mut means)?;
        for (mean, start) in means.iter_mut().zip(&self.start) {
            *mean = start + *mean / num_shards;
        }
        *model = write(model.clone(), &self.layout, &means);
        Ok(())
    }
}

/// A custom optimizer: any of burn's, or one written for a program. Its record identifies
/// parameters by id, so a parameter has the same id in every process.
#[derive(Clone)]
pub struct CustomOptimizer(pub ModuleOptimizer);

impl CustomOptimizer {
    /// Returns the state as burn writes it.
    ///
    /// # Panics
    /// If burn cannot write it, which its own optimizers' states cannot cause.
    fn record(&self) -> Vec<u8> {
        let bytes = self.0.into_bytes();
        let bytes = bytes.expect("the optimizer's state can be written");
        bytes.to_vec()
    }

    /// Continues from a [`record`](Self::record).
    ///
    /// # Errors
    /// If it is not one, or of an optimizer whose state has another form: burn ignores what it
    /// cannot use.
    fn restore(&mut self, record: &[u8]) -> Result<()> {
        let record = OptimizerRecord::from_bytes(Bytes::from_bytes_vec(record.to_vec()));
        let record = record.map_err(|error| {
            anyhow!("record of the custom optimizer: {error}. Use another checkpoint")
        })?;
        let expected = record.len();
        self.0 = self.0.clone().load_record(record);
        let taken = self.0.to_record().len();
        ensure!(
            taken == expected,
            "record of the custom optimizer: expected {expected} tensors to be of this optimizer, got {taken}. Resume with the program \
             that started the run, or start another run from its --weights"
        );
        Ok(())
    }
}

impl fmt::Debug for CustomOptimizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CustomOptimizer")
    }
}

/// Returns `model` with parameters whose ids are their places in module order.
fn with_ids_by_order<M: Module>(model: M) -> M {
    model.map(&mut Numbering(0))
}

struct Numbering(u64);

impl ModuleMapper for Numbering {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        self.0 += 1;
        let (_, tensor, mapper) = param.consume();
        Param::from_mapped_value(ParamId::from(self.0), tensor, mapper)
    }
}
