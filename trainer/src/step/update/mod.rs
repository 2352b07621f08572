//! How gradients become parameters: one file for each way.
//!
//! In: the passes of a step. Out: changed parameters, or what was not finite in them. Invariant: every way makes the same
//! collectives on all ranks; parameters change only when all buckets are there and finite.

mod all_reduce;
mod exact;
mod local_sgd;
mod on_device;
mod recorded;
mod servers;

use std::borrow::Cow;
use std::fmt::Debug;
use std::sync::Arc;

use anyhow::{Result, bail, ensure};
use burn::tensor::{Device, Tensor};
use datasets::DeviceBatch;
use distributed::{CollectiveError, Communicator, reduction::Traffic};
use kernels::arena::keep_freed_memory;

use self::all_reduce::AllReduce;
use self::exact::Exact;
use self::local_sgd::LocalSgd;
use self::on_device::OnDevice;
use self::servers::Servers;
pub use self::servers::{check_threads, serve};
use super::pass::Output;
use super::replica::Replica;
use super::{StepConfig, StepContext};
use crate::config::SyncMethod;
use crate::measure::metrics::ScoreSums;
use crate::measure::timer::Timer;
use crate::model::ImageClassifier;
use crate::step::gradient_noise::SquaredNorms;
use crate::step::optimizer::{OptimizerConfig, OptimizerState, SgdConfig};

/// A way to make parameters of gradients.
///
/// A step is [`begin`](Self::begin); for each micro-batch [`end_forward`](Self::end_forward) and [`backward`](Self::backward);
/// [`finish`](Self::finish). Where [`replay`](Self::replay) makes it, it is that alone.
pub(super) trait Update<M>: Debug {
    /// Makes a step whole, where one like it was recorded.
    ///
    /// # Errors
    /// As [`finish`](Self::finish).
    fn replay(
        &mut self,
        _: &mut M,
        _: &[DeviceBatch],
        _: &Step,
        _: &Timer,
    ) -> Result<Option<Finished>> {
        Ok(None)
    }

    /// What the passes of this step are to do about the other ranks.
    fn begin(&mut self, model: &M, step: &Step) -> StepPlan;

    /// Takes the results of a forward pass, if the micro-batch had samples.
    fn end_forward(&mut self, model: &mut M, output: Option<Output>) -> Result<()>;

    /// Differentiates `loss`, if there is one: gradients go where they are summed.
    fn backward(&mut self, model: &M, loss: Option<Tensor<1>>, step: &Step, micro: &MicroStep);

    /// Makes the update, with the other ranks or without.
    /// Collective: all ranks.
    ///
    /// # Errors
    /// When a collective fails, the ranks drifted apart, or something that can no more be undone was not finite.
    fn finish(
        &mut self,
        model: &mut M,
        step: &Step,
        plan: &StepPlan,
        timer: &Timer,
    ) -> Result<Finished>;

    /// Waits for the results of all steps made so far, after which the model is what they made of it; the scores that neither
    /// [`finish`](Self::finish) nor [`replay`](Self::replay) has told of.
    ///
    /// # Errors
    /// When something in them was not finite.
    fn wait(&mut self, _model: &mut M, _timer: &Timer) -> Result<Option<ScoreSums>> {
        Ok(None)
    }

    /// The parameters, flat in module order.
    fn parameters(&self) -> Cow<'_, [f32]>;

    /// What the optimizer remembers.
    fn optimizer_state(&self) -> OptimizerState;

    /// Goes on from the parameters of `model`, and this state of the optimizer; [`attach`](Self::attach) follows.
    ///
    /// # Errors
    /// When the state is none of this optimizer, the same on all ranks.
    fn restore(&mut self, model: &M, state: &OptimizerState) -> Result<()>;

    /// Ties a model to what its update is made of: buckets that know its parameters, servers that learn of them.
    /// Collective: all ranks.
    fn attach(&mut self, model: &M) -> Result<()>;

    /// The mean gradient of the last step, flat in module order, where that was to keep it and this rank had it.
    fn gradients(&mut self) -> Option<Vec<f32>> {
        None
    }

    /// What is in main memory; nothing where the device updates.
    fn replica(&self) -> Option<&Replica>;

    /// Paths of the parameters that no backward pass of this rank has given a gradient.
    fn unused_parameters(&self) -> Vec<&str> {
        self.replica()
            .map(|replica| replica.reducer.unused_parameters())
            .unwrap_or_default()
    }

    /// How gradients get to the update of a rank that is alone, in words.
    fn route(&self) -> &'static str {
        "none, one rank"
    }

    /// Ends whatever was started; how many updates asynchronous servers made, by their staleness.
    ///
    /// # Collective
    /// Must be called by all ranks that train.
    fn end(self: Box<Self>) -> Result<Option<Vec<u64>>> {
        Ok(None)
    }
}

/// The way that `config` chooses. From here on the process keeps what steps free ([`keep_freed_memory`]).
/// Collective: all ranks.
///
/// # Errors
/// When the ranks' models differ in structure, the way has not that optimizer, or a collective fails.
pub(super) fn start<M: ImageClassifier>(
    config: &StepConfig,
    model: &M,
    communicator: &Arc<dyn Communicator>,
    device: &Device,
) -> Result<Box<dyn Update<M>>> {
    keep_freed_memory();
    let is_on_device = config.sync.updates_on_device(communicator.world_size());
    let sums_all = matches!(
        config.sync.method,
        SyncMethod::Allreduce { .. } | SyncMethod::Exact { .. }
    );
    ensure!(
        config.own_optimizer.is_none() || (sums_all && !is_on_device),
        "optimizer: expected SGD, as an own one updates only where every step sums all gradients, in main memory"
    );
    ensure!(
        config.rate_factors.is_empty()
            || !(is_on_device || matches!(config.sync.method, SyncMethod::ParameterServer { .. })),
        "rate_factors: expected none where a device or servers update, got {:?}",
        config.rate_factors
    );
    if is_on_device {
        return Ok(Box::new(OnDevice::new(config, model, device)?));
    }
    if !sums_all {
        sgd_alone(config)?;
    }
    Ok(match config.sync.method {
        SyncMethod::Allreduce { .. } => Box::new(AllReduce::start(config, model, communicator)?),
        SyncMethod::Exact { virtual_shards } => {
            Box::new(Exact::start(virtual_shards, config, model, communicator)?)
        }
        SyncMethod::LocalSgd { every, from_step } => Box::new(LocalSgd::start(
            (every, from_step),
            config,
            model,
            communicator,
        )?),
        SyncMethod::ParameterServer { .. } => {
            Box::new(Servers::start(config, model, communicator)?)
        }
    })
}

/// The optimizer of ways that have SGD alone.
fn sgd_alone(config: &StepConfig) -> Result<SgdConfig> {
    match config.optimizer {
        OptimizerConfig::Sgd(sgd) => Ok(sgd),
        other => {
            bail!(
                "optimizer: expected SGD, as it alone updates on servers or on ranks that run apart, got {other:?}"
            )
        }
    }
}

/// A step under way on this rank.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) context: StepContext,
    /// Samples of this rank.
    pub(super) num_own: usize,
    /// Sum of the class weights of this rank's samples, where classes have weights.
    pub(super) own_weight_sum: Option<f64>,
    /// Samples of all ranks.
    pub(super) num_global: usize,
    /// Factor on the loss, a power of two.
    pub(super) loss_scale: u32,
    /// Whether it is skipped if something is not finite: then nothing of it may have taken effect.
    pub(super) can_skip: bool,
}

/// What a step does about the other ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SyncMode {
    /// Gradients are summed before the update, or a server makes it of them.
    AllReduce,
    /// The rank updates alone.
    Local,
    /// The rank updates alone; then parameters and velocities are averaged.
    LocalThenAverage,
}

/// What the passes of a step are to do.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepPlan {
    /// Losses are divided by it.
    pub(super) divisor: usize,
    /// Factor that makes the mean over samples one over their class weights, where classes have weights.
    loss_factor: Option<f64>,
    pub(super) mode: SyncMode,
    /// Whether this rank's header goes ahead of its buckets, so that all agree before they use a sum.
    pub(super) posts_header: bool,
    /// Whether the gradients of every micro-batch are kept apart until the reduction.
    pub(super) keeps_slots_apart: bool,
}

impl StepPlan {
    /// The mean over all ranks' samples.
    fn all_reduce(step: &Step) -> Self {
        let loss_factor = factor(step.num_global, step.context.weight_sum);
        let (divisor, mode) = (step.num_global, SyncMode::AllReduce);
        Self {
            divisor,
            loss_factor,
            mode,
            posts_header: true,
            keeps_slots_apart: false,
        }
    }

    /// The mean over this rank's own samples, with nothing said to the others.
    fn of_own_samples(step: &Step, mode: SyncMode) -> Self {
        let loss_factor = factor(step.num_own, step.own_weight_sum);
        Self {
            divisor: step.num_own.max(1),
            loss_factor,
            mode,
            posts_header: false,
            keeps_slots_apart: false,
        }
    }

    /// What its micro-step number `index` is to do.
    pub(super) fn micro_step(
        &self,
        index: usize,
        num_micro_steps: usize,
        has_samples: bool,
    ) -> MicroStep {
        let is_last = index + 1 == num_micro_steps && self.mode == SyncMode::AllReduce;
        MicroStep {
            divisor: self.divisor,
            loss_factor: self.loss_factor,
            slot: if self.keeps_slots_apart { index } else { 0 },
            is_last,
            posts_header: is_last && self.posts_header,
            has_samples,
        }
    }
}

/// Samples by the sum of their weights; 1 where all weigh nothing, as does their loss.
fn factor(num_samples: usize, weight_sum: Option<f64>) -> Option<f64> {
    weight_sum.map(|weight_sum| {
        if weight_sum > 0.0 {
            num_samples as f64 / weight_sum
        } else {
            1.0
        }
    })
}

/// One micro-batch's place in its step.
#[derive(Clone, Copy, Debug)]
pub(super) struct MicroStep {
    /// The loss is divided by it.
    pub(super) divisor: usize,
    /// Factor on the loss as it is scored and differentiated, where classes have weights.
    pub(super) loss_factor: Option<f64>,
    /// To which partial gradient its own is added.
    pub(super) slot: usize,
    /// Whether full buckets leave.
    pub(super) is_last: bool,
    pub(super) posts_header: bool,
    pub(super) has_samples: bool,
}

/// How an update ended.
#[derive(Debug, Default)]
pub(super) struct Finished {
    /// Whether the ranks agreed to stop.
    pub(super) stop: bool,
    /// What this rank has scored and not told before; nothing without samples.
    pub(super) scores: Option<ScoreSums>,
    /// What it sent.
    pub(super) traffic: Traffic,
    /// Of its gradients, where they are measured.
    pub(super) squared_norms: Option<SquaredNorms>,
    /// What was not finite, the same on all ranks: then no parameter has changed.
    pub(super) fault: Option<CollectiveError>,
}

impl Finished {
    /// A step that could not be made; its losses were `scores`. What compression left out of gradients that are not finite counts nowhere.
    fn not_finite(
        fault: CollectiveError,
        scores: Option<ScoreSums>,
        traffic: Traffic,
        stop: bool,
    ) -> Self {
        let traffic = Traffic {
            input_squared: 0.0,
            error_squared: 0.0,
            ..traffic
        };
        Self {
            fault: Some(fault),
            scores,
            traffic,
            stop,
            ..Self::default()
        }
    }
}
