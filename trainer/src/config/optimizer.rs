//! The section `[optimizer]`: optimizer, loss, and what else changes an update.

use super::checks::{above_0, at_least, conflict, in_range, share};
use super::error::ConfigError;
use crate::config::choices::{
    Activations, ClassWeights, LossKind, LossScaling, OptimizerKind, RateFactor,
};
use crate::config::cli::OptimizerArgs;
use serde::Serialize;

/// Optimizer, loss, and what else changes an update.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct OptimizerSection {
    #[serde(flatten)]
    pub optimizer: OptimizerChoice,
    pub learning_rate: f64,
    pub scale_learning_rate: bool,
    /// Present with `--scale-learning-rate`.
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

/// An optimizer with the options that it takes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(
    tag = "optimizer",
    rename_all = "kebab-case",
    rename_all_fields = "kebab-case"
)]
pub enum OptimizerChoice {
    /// Stochastic gradient descent with momentum.
    Sgd(SgdConfig),
    /// Adam with decoupled decay (Loshchilov and Hutter 2019, 1711.05101), as PyTorch's
    /// `torch.optim.AdamW`.
    Adamw(AdamConfig),
    /// Descent with momentum, its step scaled for each tensor (You et al. 2017, 1708.03888).
    ///
    /// As timm's `Lars`: the learning rate is outside the velocity, an undefined ratio is 1,
    /// parameters without decay have no ratio. Unlike there, weights have the ratio even if the
    /// decay is 0, and no epsilon is added to norms.
    Lars {
        #[serde(flatten)]
        sgd: SgdConfig,
        /// Share of a tensor's norm by which a step at learning rate 1 moves it.
        trust_coefficient: f64,
    },
    /// Adam's direction, its step scaled for each tensor (You et al. 2020, 1904.00962).
    ///
    /// As timm's `Lamb` without its clipping: moments are corrected for their start, an undefined
    /// ratio is 1, parameters without decay have no ratio. Unlike there, weights have the ratio
    /// even if the decay is 0.
    Lamb(AdamConfig),
    /// The optimizer of the model family.
    Custom,
}

/// Options of sgd and lars.
///
/// # Differs from PyTorch
/// None with `dampening = 0`. burn's own `MomentumConfig` has a dampening of 0.1 by default.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct SgdConfig {
    /// Decay of the velocity, in `[0, 1)`.
    pub momentum: f64,
    /// Look ahead along the velocity (Nesterov).
    pub nesterov: bool,
    /// L2 penalty added to the gradient.
    pub weight_decay: f64,
    /// Whether parameters of one axis (norm scales and shifts, biases) decay: yes in He et al., no
    /// in Goyal et al. Absent where nothing decays and no step is scaled.
    pub decay_norm_and_bias: Option<bool>,
}

/// Options of adamw and lamb.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct AdamConfig {
    /// Decay of the first moment, in `[0, 1)`.
    pub beta1: f64,
    /// Decay of the second moment, in `[0, 1)`.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub epsilon: f64,
    /// Share of a parameter that a step at learning rate 1 subtracts.
    pub weight_decay: f64,
    /// As in [`SgdConfig`].
    pub decay_norm_and_bias: Option<bool>,
}

/// A loss with the options that it takes.
#[derive(Debug, Clone, PartialEq, Serialize)]
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
    /// Applies the defaults for activations of `dtype` and refuses contradictions.
    pub(super) fn decide(self, dtype: Activations) -> Result<OptimizerSection, ConfigError> {
        let kind = self.optimizer.unwrap_or(OptimizerKind::Sgd);
        let (learning_rate, epsilon, weight_decay) = match kind {
            OptimizerKind::Sgd => (0.1, 0.0, 1e-4),
            OptimizerKind::Lars => (1.0, 0.0, 1e-4),
            OptimizerKind::Adamw | OptimizerKind::Custom => (1e-3, 1e-8, 0.01),
            OptimizerKind::Lamb => (1e-3, 1e-6, 0.01),
        };
        let adapts = matches!(kind, OptimizerKind::Lars | OptimizerKind::Lamb);
        let weight_decay = in_range(
            "--weight-decay",
            self.weight_decay.unwrap_or(weight_decay),
            "0 or more",
            |decay| decay >= 0.0,
        )?;
        let decay_norm_and_bias =
            (weight_decay > 0.0 || adapts).then(|| self.decay_norm_and_bias.unwrap_or(!adapts));
        let sgd = || -> Result<SgdConfig, ConfigError> {
            let momentum = share("--momentum", self.momentum.unwrap_or(0.9))?;
            let nesterov = self.nesterov.unwrap_or(false);
            if nesterov && momentum == 0.0 {
                return Err(conflict(
                    "--nesterov",
                    "--momentum 0",
                    "give a momentum above 0, or --nesterov=false",
                ));
            }
            Ok(SgdConfig {
                momentum,
                nesterov,
                weight_decay,
                decay_norm_and_bias,
            })
        };
        let adam = || -> Result<AdamConfig, ConfigError> {
            Ok(AdamConfig {
                beta1: share("--beta1", self.beta1.unwrap_or(0.9))?,
                beta2: share("--beta2", self.beta2.unwrap_or(0.999))?,
                // A smaller value would be 0 as f32.
                epsilon: in_range(
                    "--epsilon",
                    self.epsilon.unwrap_or(epsilon),
                    "above 1e-38",
                    |epsilon| epsilon > 1e-38,
                )?,
                weight_decay,
                decay_norm_and_bias,
            })
        };
        let optimizer = match kind {
            OptimizerKind::Sgd => OptimizerChoice::Sgd(sgd()?),
            OptimizerKind::Adamw => OptimizerChoice::Adamw(adam()?),
            OptimizerKind::Lars => OptimizerChoice::Lars {
                sgd: sgd()?,
                trust_coefficient: above_0(
                    "--trust-coefficient",
                    self.trust_coefficient.unwrap_or(0.001),
                )?,
            },
            OptimizerKind::Lamb => OptimizerChoice::Lamb(adam()?),
            OptimizerKind::Custom => OptimizerChoice::Custom,
        };
        if self.clip_grad_value.is_some() && self.clip_grad_norm.is_some() {
            return Err(conflict(
                "--clip-grad-value",
                "--clip-grad-norm",
                "choose one of them",
            ));
        }
        for RateFactor { factor, .. } in self.learning_rate_factors.iter().flatten() {
            let expected = "above 0 for every part";
            in_range("--learning-rate-factors", *factor, expected, |factor| {
                factor > 0.0
            })?;
        }
        let scale_learning_rate = self.scale_learning_rate.unwrap_or(false);
        let reference = at_least(
            "--reference-batch-size",
            self.reference_batch_size.unwrap_or(128),
            1,
        )?;
        let above_0 = |option, value: Option<f64>| value.map(|value| above_0(option, value));
        Ok(OptimizerSection {
            optimizer,
            learning_rate: in_range(
                "--learning-rate",
                self.learning_rate.unwrap_or(learning_rate),
                "above 0",
                |rate| rate > 0.0,
            )?,
            scale_learning_rate,
            reference_batch_size: scale_learning_rate.then_some(reference),
            loss: match self.loss.unwrap_or(LossKind::CrossEntropy) {
                LossKind::CrossEntropy => LossChoice::CrossEntropy {
                    label_smoothing: share(
                        "--label-smoothing",
                        self.label_smoothing.unwrap_or(0.0),
                    )?,
                    class_weights: self.class_weights,
                },
                LossKind::BinaryCrossEntropy => LossChoice::BinaryCrossEntropy,
            },
            clip_grad_norm: above_0("--clip-grad-norm", self.clip_grad_norm).transpose()?,
            freeze: self.freeze,
            learning_rate_factors: self
                .learning_rate_factors
                .filter(|_| kind != OptimizerKind::Custom),
            clip_grad_value: above_0("--clip-grad-value", self.clip_grad_value).transpose()?,
            ema_decay: self
                .ema_decay
                .map(|decay| share("--ema-decay", decay))
                .transpose()?,
            loss_scale: self.loss_scale.unwrap_or(LossScaling::of(dtype)),
        })
    }
}

impl OptimizerSection {
    /// Returns the learning rate after warmup: with `--scale-learning-rate` it grows with the
    /// global batch size (linear scaling rule, Goyal et al. 2017, 1706.02677, section 2.1).
    pub(super) fn peak_learning_rate(&self, global_batch_size: usize) -> f64 {
        match self.reference_batch_size {
            None => self.learning_rate,
            Some(reference) => self.learning_rate * global_batch_size as f64 / reference as f64,
        }
    }
}

impl OptimizerChoice {
    /// Returns the choice without its options.
    pub fn kind(&self) -> OptimizerKind {
        match self {
            Self::Sgd { .. } => OptimizerKind::Sgd,
            Self::Adamw { .. } => OptimizerKind::Adamw,
            Self::Lars { .. } => OptimizerKind::Lars,
            Self::Lamb { .. } => OptimizerKind::Lamb,
            Self::Custom => OptimizerKind::Custom,
        }
    }
}
