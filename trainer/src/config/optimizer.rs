//! The section `[optimizer]`: optimizer, loss, and other options that change an update.

use super::error::{ConfigError, conflict};
use super::file;
use crate::config::choices::{
    Activations, ClassWeights, LossKind, LossScaling, OptimizerKind, RateFactor,
};
use crate::config::cli::OptimizerArgs;
use serde::{Deserialize, Serialize};

/// Optimizer, loss, and other options that change an update.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct OptimizerSection {
    #[serde(flatten)]
    pub optimizer: OptimizerChoice,
    pub learning_rate: f64,
    pub scale_learning_rate: bool,
    /// Batch size for the unscaled rate; `Some` with `--scale-learning-rate`.
    pub reference_batch_size: Option<usize>,
    #[serde(flatten)]
    pub loss: LossChoice,
    pub clip_grad_norm: Option<f64>,
    pub freeze: Option<Vec<String>>,
    pub learning_rate_factors: Option<Vec<RateFactor>>,
    pub clip_grad_value: Option<f64>,
    pub ema_decay: Option<f64>,
    pub loss_scale: LossScaling,
}

/// An optimizer with its options.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(
    tag = "optimizer",
    rename_all = "kebab-case",
    rename_all_fields = "kebab-case"
)]
pub enum OptimizerChoice {
    /// Stochastic gradient descent with momentum.
    Sgd(SgdConfig),
    /// Adam with decoupled decay (Loshchilov and Hutter 2019, 1711.05101), as in PyTorch's
    /// `torch.optim.AdamW`.
    Adamw(AdamConfig),
    /// Descent with momentum, with its step scaled for each tensor (You et al. 2017, 1708.03888).
    ///
    /// Same as timm's `Lars`: the learning rate is outside the velocity, an undefined ratio is 1,
    /// and parameters without decay have no ratio. Unlike in timm, weights have a ratio even if the
    /// decay is 0, and norms get no epsilon.
    Lars {
        #[serde(flatten)]
        sgd: SgdConfig,
        /// Share of a tensor's norm by which a step at learning rate 1 moves the tensor.
        trust_coefficient: f64,
    },
    /// Adam's direction, with its step scaled for each tensor (You et al. 2020, 1904.00962).
    ///
    /// Same as timm's `Lamb` without clipping: moments are corrected for their start at zero, an
    /// undefined ratio is 1, and parameters without decay have no ratio. Unlike in timm, weights
    /// have a ratio even if the decay is 0.
    Lamb(AdamConfig),
    /// The optimizer of the model family.
    Custom,
}

/// Options of sgd and lars.
///
/// # Differs from PyTorch
/// No difference with `dampening = 0`. burn's `MomentumConfig` has a dampening of 0.1 by default.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct SgdConfig {
    /// Decay of the velocity, in `[0, 1)`.
    pub momentum: f64,
    /// True for Nesterov momentum, which looks ahead along the velocity.
    pub nesterov: bool,
    /// L2 penalty added to the gradient.
    pub weight_decay: f64,
    /// True if parameters of one axis (norm scales and shifts, biases) decay: true in He et al.,
    /// false in Goyal et al. `None` if nothing decays and no step is scaled.
    pub decay_norm_and_bias: Option<bool>,
}

/// Options of adamw and lamb.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct AdamConfig {
    /// Decay of the first moment, in `[0, 1)`.
    pub beta1: f64,
    /// Decay of the second moment, in `[0, 1)`.
    pub beta2: f64,
    /// Term added to the root of the second moment.
    pub epsilon: f64,
    /// Share of a parameter that a step at learning rate 1 subtracts.
    pub weight_decay: f64,
    /// Same as in [`SgdConfig`].
    pub decay_norm_and_bias: Option<bool>,
}

/// A loss with its options.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(
    tag = "loss",
    rename_all = "kebab-case",
    rename_all_fields = "kebab-case"
)]
pub enum LossChoice {
    /// Cross entropy of the softmax over all classes.
    CrossEntropy {
        label_smoothing: f64,
        class_weights: Option<ClassWeights>,
    },
    /// Cross entropy of a sigmoid for each class.
    BinaryCrossEntropy,
}

impl OptimizerArgs {
    /// Applies the defaults for activations of `dtype` and rejects contradictions.
    pub(super) fn decide(mut self, dtype: Activations) -> Result<OptimizerSection, ConfigError> {
        if self.clip_grad_value.is_some() && self.clip_grad_norm.is_some() {
            return Err(conflict(
                "--clip-grad-value",
                "--clip-grad-norm",
                "choose one of them",
            ));
        }
        let kind = *self.optimizer.get_or_insert(OptimizerKind::Sgd);
        let (learning_rate, epsilon, weight_decay) = match kind {
            OptimizerKind::Sgd => (0.1, 0.0, 1e-4),
            OptimizerKind::Lars => (1.0, 0.0, 1e-4),
            OptimizerKind::Adamw | OptimizerKind::Custom => (1e-3, 1e-8, 0.01),
            OptimizerKind::Lamb => (1e-3, 1e-6, 0.01),
        };
        // LARS and LAMB scale the step of each tensor.
        let adapts = matches!(kind, OptimizerKind::Lars | OptimizerKind::Lamb);
        self.learning_rate.get_or_insert(learning_rate);
        let is_scaled = *self.scale_learning_rate.get_or_insert(false);
        let reference = self.reference_batch_size.unwrap_or(128);
        self.reference_batch_size = is_scaled.then_some(reference);
        let momentum = *self.momentum.get_or_insert(0.9);
        if *self.nesterov.get_or_insert(false) && momentum == 0.0 {
            return Err(conflict(
                "--nesterov",
                "--momentum 0",
                "give a momentum above 0, or --nesterov=false",
            ));
        }
        self.beta1.get_or_insert(0.9);
        self.beta2.get_or_insert(0.999);
        self.epsilon.get_or_insert(epsilon);
        self.trust_coefficient.get_or_insert(0.001);
        let decays = *self.weight_decay.get_or_insert(weight_decay) > 0.0;
        let decays_all = self.decay_norm_and_bias.unwrap_or(!adapts);
        self.decay_norm_and_bias = (decays || adapts).then_some(decays_all);
        self.loss.get_or_insert(LossKind::CrossEntropy);
        self.label_smoothing.get_or_insert(0.0);
        if kind == OptimizerKind::Custom {
            self.learning_rate_factors = None;
        }
        self.loss_scale.get_or_insert(LossScaling::of(dtype));
        file::section(&self)
    }
}

impl OptimizerSection {
    /// Returns the learning rate after warmup. With `--scale-learning-rate`, the rate grows with
    /// the global batch size (linear scaling rule, Goyal et al. 2017, 1706.02677, section 2.1).
    pub(super) fn peak_learning_rate(&self, global_batch_size: usize) -> f64 {
        match self.reference_batch_size {
            None => self.learning_rate,
            Some(reference) => self.learning_rate * global_batch_size as f64 / reference as f64,
        }
    }
}
