//! Measured job for other programs, `job.json` of `trainer bench --export-job`.

use serde::{Deserialize, Serialize};

/// Value of `schema`.
pub const JOB_SCHEMA: &str = "lockstep.job/1";

/// Job that another program can repeat.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExportedJob {
    /// [`JOB_SCHEMA`].
    pub schema: String,
    /// Name of the network.
    pub model: String,
    /// Weighted layers of the network.
    pub depth: usize,
    /// Shortcut of a block that changes the shape: `a` or `b`.
    pub shortcut: String,
    /// Number of classes.
    pub num_classes: usize,
    /// Height and width of the images, pixels.
    pub image_size: usize,
    /// Number of ranks.
    pub ranks: usize,
    /// Samples of one rank in one step.
    pub batch_size_per_rank: usize,
    /// Batches of a rank, used in turn.
    pub num_batches: usize,
    /// Learning rate of all steps.
    pub learning_rate: f64,
    /// Momentum and weight decay, as in PyTorch's `SGD`.
    pub sgd: SgdFacts,
}

/// Optimizer of a job.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SgdFacts {
    /// Decay of the velocity, in `[0, 1)`.
    pub momentum: f64,
    /// True for Nesterov momentum.
    pub nesterov: bool,
    /// L2 penalty added to the gradient.
    pub weight_decay: f64,
    /// True if parameters with one axis decay too.
    pub decay_norm_and_bias: bool,
}
