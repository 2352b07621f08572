//! How a step is made, apart from model and data.

use std::sync::Arc;

use distributed::{Communicator, watchdog::RankStatus};

use crate::config::{LossScaling, RateFactor, SyncConfig};
use crate::model::loss::Loss;
use crate::step::gradient_noise::NoiseBatches;
use crate::step::optimizer::{OptimizerConfig, OwnOptimizer};

/// How a step is made, apart from model and data.
#[derive(Clone, Debug)]
pub struct StepConfig {
    /// The optimizer; SGD or AdamW where the device updates, SGD alone where servers do, or ranks by themselves.
    pub optimizer: OptimizerConfig,
    /// On the learning rates of parts of the model, where neither the device nor servers update.
    pub rate_factors: Vec<RateFactor>,
    /// What makes parameters of gradients instead of `optimizer`, where every step sums all gradients.
    pub own_optimizer: Option<OwnOptimizer>,
    pub loss: Arc<dyn Loss>,
    /// Weights of the classes in the loss, where a step's mean is over the weights of its samples; empty without them.
    pub class_weights: Vec<f64>,
    /// How large the mean gradient may be, where every step sums all gradients.
    pub clip: Option<Clip>,
    /// Factor on the loss; dynamic only where all ranks sum the gradients of every step.
    pub loss_scale: LossScaling,
    /// Norm statistics over all ranks instead of each rank's own.
    pub sync_batch_norm: bool,
    /// Whether a step with a loss or gradient that is not finite is skipped, instead of ending in an error. Only where all ranks
    /// sum the gradients of every step.
    pub skips_non_finite: bool,
    /// Measures the noise of gradients between batches of these sizes, where every step sums all gradients as they are.
    pub gradient_noise: Option<NoiseBatches>,
    /// How the ranks' gradients or parameters become one.
    pub sync: SyncConfig,
    /// Joins the ranks that train with those that only serve parameters, where there are such.
    pub server_link: Option<Arc<dyn Communicator>>,
    /// Where the communication thread says which bucket it reduces.
    pub rank_status: Arc<RankStatus>,
}

impl StepConfig {
    /// The sum of the weights of samples of these classes.
    pub fn weight_sum(&self, classes: impl Iterator<Item = usize>) -> f64 {
        classes.map(|class| self.class_weights[class]).sum()
    }
}

/// A limit of the mean gradient over all samples of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Clip {
    /// Largest L2 norm; a longer gradient is scaled down to it, as by `torch.nn.utils.clip_grad_norm_`.
    Norm(f64),
    /// Largest size of a value, as by `torch.nn.utils.clip_grad_value_`.
    Value(f64),
}
