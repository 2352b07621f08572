//! The measured job, `job.json` of `trainer bench --export-job`, so that another program can do the same.

use serde::{Deserialize, Serialize};

/// What such a file says of itself.
pub const JOB_SCHEMA: &str = "lockstep.job/1";

/// The contents of `job.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// [`JOB_SCHEMA`].
    pub schema: String,
    /// Name of the network.
    pub model: String,
    /// Its weighted layers.
    pub depth: usize,
    /// Its shortcut where the shape changes: `a` or `b`.
    pub shortcut: String,
    /// Classes.
    pub num_classes: usize,
    /// Height and width of the images, pixels.
    pub image_size: usize,
    /// Ranks.
    pub ranks: usize,
    /// Samples of one rank in one step.
    pub batch_size_per_rank: usize,
    /// Batches of a rank, which come in turn.
    pub num_batches: usize,
    /// The same in all steps.
    pub learning_rate: f64,
    /// Momentum and weight decay, as PyTorch's `SGD` takes them.
    pub sgd: SgdFacts,
}

/// The optimizer of a job.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SgdFacts {
    /// Decay of the velocity, in `[0, 1)`.
    pub momentum: f64,
    /// Whether it looks ahead along the velocity.
    pub nesterov: bool,
    /// L2 penalty added to the gradient.
    pub weight_decay: f64,
    /// Whether parameters of one axis decay too.
    pub decay_norm_and_bias: bool,
}
