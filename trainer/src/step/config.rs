//! The configuration of a rank's steps, and one step under way.

use std::sync::Arc;

use distributed::Communicator;
use distributed::gradients::Traffic;
use distributed::replica::ParameterEntry;
use distributed::watchdog::RankStatus;
use layers::backend::Computation;

use crate::config::{LossScaling, OptimizerChoice, RateFactor, SyncMethod, SyncSection};
use crate::model::parts::is_within;
use crate::step::gradient_noise::NoiseBatches;
use crate::step::host::CustomOptimizer;
use crate::step::loss_scale::LossScale;
use crate::step::sync_plan::{meets_after, staleness};

/// The configuration of a rank's steps, without model and data.
#[derive(Clone, Debug)]
pub struct StepConfig {
    /// SGD for parameter servers and local SGD.
    pub optimizer: OptimizerChoice,
    /// Factors on the learning rates of parts of the model; not if servers update.
    pub rate_factors: Vec<RateFactor>,
    /// Replaces `optimizer`; only if every step sums all gradients.
    pub custom_optimizer: Option<CustomOptimizer>,
    /// Limit of the mean gradient; only if every step sums all gradients.
    pub clip: Option<Clip>,
    /// Factor on the loss; dynamic only if all ranks sum the gradients of every step.
    pub loss_scale: LossScaling,
    /// Computation of layers whose model does not choose it.
    pub computation: Computation,
    /// Norm statistics over all ranks instead of each rank's own.
    pub sync_batch_norm: bool,
    /// Skip a step with a loss or gradient that is not finite, instead of failing; only if all
    /// ranks sum the gradients of every step.
    pub skips_non_finite: bool,
    /// Batch sizes between which the noise of gradients is measured; only if every step sums all
    /// gradients uncompressed.
    pub gradient_noise: Option<NoiseBatches>,
    /// Synchronisation of the ranks' gradients or parameters.
    pub sync: SyncSection,
    /// Index of the GPU that sums with NCCL; by default the rank's index on its node.
    pub gpu: Option<usize>,
    /// Joins the ranks that train with those that only serve parameters, if there are any.
    pub server_link: Option<Arc<dyn Communicator>>,
    /// The status that names the bucket under reduction.
    pub rank_status: Arc<RankStatus>,
}

impl StepConfig {
    /// Returns the configuration of a step without further options.
    pub fn new(optimizer: OptimizerChoice, sync: SyncSection) -> Self {
        Self {
            optimizer,
            rate_factors: Vec::new(),
            custom_optimizer: None,
            clip: None,
            loss_scale: LossScaling::None,
            computation: Computation::default(),
            sync_batch_norm: false,
            skips_non_finite: false,
            gradient_noise: None,
            sync,
            gpu: None,
            server_link: None,
            rank_status: Arc::default(),
        }
    }
}

/// A limit of the mean gradient over all samples of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Clip {
    /// Largest L2 norm; a longer gradient is scaled down, as by `torch.nn.utils.clip_grad_norm_`.
    Norm(f64),
    /// Largest magnitude of a value, as by `torch.nn.utils.clip_grad_value_`.
    Value(f64),
}

/// One step of a run; identical on all ranks except for `keeps_gradients` and `stop`.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepContext {
    /// Pass over the train split, from 0.
    pub epoch: u64,
    /// Optimizer update, from 0 over the whole run.
    pub step: u64,
    pub learning_rate: f64,
    /// True if all replicas must be equal after the step: the epoch ends, or a checkpoint is due.
    pub must_sync: bool,
    /// True if [`Stepper::gradients`](super::Stepper::gradients) is called after the step.
    pub keeps_gradients: bool,
    /// True if this rank requests that the run stop after the step.
    pub stop: bool,
}

/// Synchronisation of a rank with the others in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SyncMode {
    /// Gradients are summed; the update uses the mean over all ranks' samples.
    Global,
    /// A server updates with each rank's mean gradient separately.
    Push,
    /// The rank updates with its own mean gradient.
    Local,
    /// An update as with `Local`, followed by an average of parameters and velocities.
    LocalThenAverage,
}

impl SyncMode {
    /// Returns the mode of a step; the same on all ranks.
    pub(super) fn of(method: &SyncMethod, context: &StepContext) -> Self {
        match method {
            SyncMethod::LocalSgd { from_step, .. } if context.step < *from_step => Self::Global,
            SyncMethod::LocalSgd { .. }
                if context.must_sync || meets_after(method, context.step) =>
            {
                Self::LocalThenAverage
            }
            SyncMethod::LocalSgd { .. } => Self::Local,
            _ if staleness(method).is_some() => Self::Push,
            _ => Self::Global,
        }
    }

    /// Returns true if buckets leave this rank.
    pub(super) fn reduces(self) -> bool {
        matches!(self, Self::Global | Self::Push)
    }
}

/// A step under way on this rank.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) context: StepContext,
    pub(super) mode: SyncMode,
    pub(super) num_micro_steps: usize,
    /// Samples of this rank.
    pub(super) num_own: usize,
    /// Samples of all ranks; `None` in a custom loop, where only the headers have their number.
    pub(super) num_global: Option<usize>,
    /// Divisor of this rank's summed losses.
    pub(super) divisor: usize,
    /// Factor that turns the mean over samples into the mean by their weights, unless it is 1.
    pub(super) weight_factor: Option<f64>,
    /// Factor on the loss that is differentiated; on a device, that of the last step whose results
    /// are known.
    pub(super) loss_scale: LossScale,
    /// True if the step is skipped if something is not finite.
    pub(super) can_skip: bool,
}

/// The agreement of all ranks in a step, and what this rank sent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Agreed {
    pub(super) stop: bool,
    /// Samples of all ranks, if the ranks sent headers; otherwise 0.
    pub(super) num_samples: u64,
    pub(super) traffic: Traffic,
}

/// The state of an optimizer in a checkpoint, without the parameters.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OptimizerState {
    /// Velocities, flat in module order; or first moments, followed by second moments.
    pub moments: Vec<f32>,
    /// Number of updates, if the rule has two moments.
    pub num_updates: Option<u64>,
    /// Record of a custom optimizer, which has neither.
    pub custom: Option<Vec<u8>>,
}

/// Returns true if the rule has first and second moments, corrected for their start, not
/// velocities.
pub(super) fn has_two_moments(rule: &OptimizerChoice) -> bool {
    matches!(rule, OptimizerChoice::Adamw(_) | OptimizerChoice::Lamb(_))
}

/// Returns true if this parameter has no decay, and no ratio of a rule that has one.
pub(super) fn spares(rule: &OptimizerChoice, entry: &ParameterEntry) -> bool {
    let decays = match rule {
        OptimizerChoice::Sgd(sgd) | OptimizerChoice::Lars { sgd, .. } => sgd.decay_norm_and_bias,
        OptimizerChoice::Adamw(adam) | OptimizerChoice::Lamb(adam) => adam.decay_norm_and_bias,
        OptimizerChoice::Custom => None,
    };
    decays == Some(false) && entry.shape.len() <= 1
}

/// Returns the factor on the learning rate of the parameter at `path`: that of the longest name
/// that holds it. `depth` is that of the model's [parts](crate::model::parts).
pub(super) fn rate_factor(factors: &[RateFactor], path: &str, depth: usize) -> f64 {
    let of_parts = factors
        .iter()
        .filter(|factor| is_within(path, &factor.part, depth));
    let longest = of_parts.max_by_key(|factor| factor.part.len());
    longest.map_or(1.0, |factor| factor.factor)
}
