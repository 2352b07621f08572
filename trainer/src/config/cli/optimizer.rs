//! The section of the optimizer as typed.

use crate::config::choices::{ClassWeights, LossKind, LossScaling, OptimizerKind, RateFactor};
use clap::Args;
use serde::{Deserialize, Serialize};

/// The optimizer and its loss.
#[derive(Debug, Clone, Default, PartialEq, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Optimizer")]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct OptimizerArgs {
    /// Optimizer; all but sgd need --sync allreduce [default: sgd]
    #[arg(long, value_name = "NAME")]
    pub optimizer: Option<OptimizerKind>,

    /// Learning rate after warmup [default: sgd 0.1; lars 1; others 1e-3]
    #[arg(long, value_name = "RATE")]
    pub learning_rate: Option<f64>,

    /// Scale the rate by global batch size / reference batch size [default: off]
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub scale_learning_rate: Option<bool>,

    /// Batch size that --learning-rate is meant for, samples [default: 128]
    #[arg(long, value_name = "SAMPLES")]
    pub reference_batch_size: Option<usize>,

    /// Momentum of sgd and lars, 0 up to but not 1 [default: 0.9]
    #[arg(long, value_name = "FACTOR")]
    pub momentum: Option<f64>,

    /// Nesterov's form of momentum (sgd, lars) [default: off]
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub nesterov: Option<bool>,

    /// Decay of the mean of gradients (adamw, lamb), 0 up to but not 1 [default: 0.9]
    #[arg(long, value_name = "FACTOR")]
    pub beta1: Option<f64>,

    /// Decay of the mean of squared gradients (adamw, lamb), 0 up to but not 1 [default: 0.999]
    #[arg(long, value_name = "FACTOR")]
    pub beta2: Option<f64>,

    /// Term added to the root of squared gradients [default: adamw 1e-8; lamb 1e-6]
    #[arg(long, value_name = "NUMBER")]
    pub epsilon: Option<f64>,

    /// Step of lars at rate 1, as a share of the tensor's norm [default: 0.001]
    #[arg(long, value_name = "SHARE")]
    pub trust_coefficient: Option<f64>,

    /// Weight decay: L2 (sgd, lars) or decoupled (adamw, lamb) [default: 1e-4; adamw, lamb 0.01]
    #[arg(long, value_name = "FACTOR")]
    pub weight_decay: Option<f64>,

    /// Decay normalisation parameters and biases too [default: true; lars, lamb false]
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub decay_norm_and_bias: Option<bool>,

    /// Training loss; evaluation reports cross entropy [default: cross-entropy]
    #[arg(long, value_name = "NAME")]
    pub loss: Option<LossKind>,

    /// Share of the target spread over all classes, 0 up to but not 1 [default: 0]
    #[arg(long, value_name = "SHARE")]
    pub label_smoothing: Option<f64>,

    /// Class weights of the loss: balanced, or w1,w2,... [default: none]
    #[arg(long, value_name = "WEIGHTS")]
    pub class_weights: Option<ClassWeights>,

    /// Largest global L2 norm of the gradient [default: off]
    #[arg(long, value_name = "NORM")]
    pub clip_grad_norm: Option<f64>,

    /// Parts of the model that are not trained, such as conv1,layer1 [default: none]
    #[arg(long, value_delimiter = ',', value_name = "PART")]
    pub freeze: Option<Vec<String>>,

    /// Factors on the rate of parts of the model, such as layer1=0.1,linear=10 [default: none]
    #[arg(long, value_delimiter = ',', value_name = "PART=FACTOR")]
    pub learning_rate_factors: Option<Vec<RateFactor>>,

    /// Largest magnitude of a value of the mean gradient [default: off]
    #[arg(long, value_name = "SIZE")]
    pub clip_grad_value: Option<f64>,

    /// Decay of the moving average of parameters that is evaluated and saved [default: off]
    #[arg(long, value_name = "SHARE")]
    pub ema_decay: Option<f64>,

    /// Factor on the loss: none, dynamic or a power of two [default: dynamic with f16, else none]
    #[arg(long, value_name = "FACTOR")]
    pub loss_scale: Option<LossScaling>,
}
