//! The section of the optimizer as typed.

use crate::config::choices::{ClassWeights, LossKind, LossScaling, OptimizerKind, RateFactor};
use clap::Args;
use serde::{Deserialize, Serialize};

/// The optimizer and its loss.
#[derive(Debug, Clone, Default, PartialEq, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Optimizer")]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct OptimizerArgs {
    /// sgd, adamw (as PyTorch's), lars or lamb (for large batches: steps are scaled for each tensor), own (that of a program of your own); all but sgd only with --sync allreduce; lars, lamb and own not with --update device (the default of --device cuda) [default: sgd]
    #[arg(long, value_enum, value_name = "NAME", hide_possible_values = true)]
    pub optimizer: Option<OptimizerKind>,

    /// Learning rate after warmup, for the reference batch if scaled [default: sgd 0.1; adamw, lamb, own 1e-3; lars 1]
    #[arg(long, value_name = "RATE")]
    pub learning_rate: Option<f64>,

    /// Linear scaling rule: rate * global batch size / reference batch size [default: off]
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub scale_learning_rate: Option<bool>,

    /// Batch size that --learning-rate is meant for, samples (with --scale-learning-rate) [default: 128]
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

    /// Added to the root of the mean of squared gradients (adamw, lamb), above 0 [default: adamw 1e-8; lamb 1e-6]
    #[arg(long, value_name = "NUMBER")]
    pub epsilon: Option<f64>,

    /// Share of a tensor's norm by which a step of lars at learning rate 1 moves it, above 0 [default: 0.001]
    #[arg(long, value_name = "SHARE")]
    pub trust_coefficient: Option<f64>,

    /// L2 penalty added to the gradient (sgd, lars), or share taken from the parameters per step and learning rate (adamw, lamb) [default: 1e-4; adamw, lamb 0.01]
    #[arg(long, value_name = "FACTOR")]
    pub weight_decay: Option<f64>,

    /// Decay the normalisation parameters and biases too, as the published networks were trained; lars and lamb scale their steps then, too [default: true; lars, lamb false]
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub decay_norm_and_bias: Option<bool>,

    /// cross-entropy, or binary-cross-entropy: each class for itself, of mixed images those with a share above 0.2 present; evaluation reports cross entropy [default: cross-entropy]
    #[arg(long, value_enum, value_name = "NAME", hide_possible_values = true)]
    pub loss: Option<LossKind>,

    /// Share of the target spread evenly over all classes, 0 up to but not 1 (loss cross-entropy) [default: 0]
    #[arg(long, value_name = "SHARE")]
    pub label_smoothing: Option<f64>,

    /// Class weights of the training loss: balanced, or one per class: w1,w2,… (loss cross-entropy) [default: none]
    #[arg(long, value_name = "WEIGHTS")]
    pub class_weights: Option<ClassWeights>,

    /// Scale the gradient down to this global L2 norm if it is larger [default: off]
    #[arg(long, value_name = "NORM")]
    pub clip_grad_norm: Option<f64>,

    /// Leave these parts of the model as they are, such as conv1,bn1,layer1: no gradient, no update; norm statistics go on [default: none]
    #[arg(long, value_delimiter = ',', value_name = "PART")]
    pub freeze: Option<Vec<String>>,

    /// Factors on the learning rate of parts of the model, such as layer1=0.1,linear=10; the longest name counts (not with --update device) [default: 1 for all]
    #[arg(long, value_delimiter = ',', value_name = "PART=FACTOR")]
    pub learning_rate_factors: Option<Vec<RateFactor>>,

    /// Limit every value of the mean gradient to this size, up or down [default: off]
    #[arg(long, value_name = "SIZE")]
    pub clip_grad_value: Option<f64>,

    /// Keep a moving average of the parameters, of which each step leaves this share: evaluated, saved as the model, used by eval and predict; 0 up to but not 1, such as 0.999 (not where ranks run apart) [default: off]
    #[arg(long, value_name = "SHARE")]
    pub ema_decay: Option<f64>,

    /// Factor on the loss that keeps gradients of 16 bits in range: none, dynamic (sync allreduce) or a power of two [default: dynamic with --dtype f16, else none]
    #[arg(long, value_name = "FACTOR")]
    pub loss_scale: Option<LossScaling>,
}
