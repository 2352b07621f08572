//! The rules of optimizers and their numbers.

use distributed::replica::ParameterEntry;
use kernels::optimizer::adam::{AdamDirection, AdamWUpdate};
use kernels::optimizer::lamb::LambUpdate;
use kernels::optimizer::sgd::SgdUpdate;
use serde::{Deserialize, Serialize};

/// The rule of an optimizer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OptimizerConfig {
    /// Descent with momentum.
    Sgd(SgdConfig),
    /// Descent with momentum whose step is scaled for each tensor (You et al. 2017, 1708.03888).
    ///
    /// As timm's `Lars`: the learning rate is outside the velocity, an undefined ratio is 1, parameters
    /// without decay have no ratio. Unlike there, weights have the ratio even if the decay is 0, and no
    /// epsilon is added to norms.
    Lars {
        /// The descent.
        sgd: SgdConfig,
        /// Share of a tensor's norm by which a step at learning rate 1 moves it.
        trust_coefficient: f64,
    },
    /// Adam with decoupled decay (Loshchilov and Hutter 2019, 1711.05101), as PyTorch's `torch.optim.AdamW`.
    AdamW(AdamConfig),
    /// Adam's direction scaled for each tensor (You et al. 2020, 1904.00962).
    ///
    /// As timm's `Lamb` without its clipping: moments are corrected for their start, an undefined ratio
    /// is 1, parameters without decay have no ratio. Unlike there, weights have the ratio even if the
    /// decay is 0.
    Lamb(AdamConfig),
}

/// Descent with momentum.
///
/// # Differs from PyTorch
/// None with `dampening = 0`. burn's own `MomentumConfig` has a dampening of 0.1 by default.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SgdConfig {
    /// Decay of the velocity, in `[0, 1)`.
    pub momentum: f64,
    /// Look ahead along the velocity (Nesterov).
    pub nesterov: bool,
    /// L2 penalty added to the gradient.
    pub weight_decay: f64,
    /// Whether parameters of one axis (norm scales and shifts, biases) decay: yes in He et al., no in
    /// Goyal et al.
    pub decay_norm_and_bias: bool,
}

/// The numbers of AdamW and LAMB.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamConfig {
    /// Decays of the first and second moment, in `[0, 1)`.
    pub betas: [f64; 2],
    /// Added to the root of the second moment.
    pub epsilon: f64,
    /// Share of a parameter that a step at learning rate 1 subtracts.
    pub weight_decay: f64,
    /// As in [`SgdConfig`].
    pub decay_norm_and_bias: bool,
}

impl OptimizerConfig {
    /// Returns true if it has first and second moments, corrected for their start, not velocities.
    pub(super) fn has_two_moments(&self) -> bool {
        matches!(self, Self::AdamW(_) | Self::Lamb(_))
    }

    /// Returns true if this parameter has no decay, and no ratio of a rule that has one.
    pub(super) fn spares(&self, entry: &ParameterEntry) -> bool {
        let decays_all = match self {
            Self::Sgd(sgd) | Self::Lars { sgd, .. } => sgd.decay_norm_and_bias,
            Self::AdamW(adam) | Self::Lamb(adam) => adam.decay_norm_and_bias,
        };
        !decays_all && entry.shape.len() <= 1
    }
}

impl SgdConfig {
    /// Returns the update of a tensor.
    pub(super) fn update(&self, learning_rate: f64, is_spared: bool) -> SgdUpdate {
        SgdUpdate {
            learning_rate: learning_rate as f32,
            momentum: self.momentum as f32,
            weight_decay: if is_spared {
                0.0
            } else {
                self.weight_decay as f32
            },
            nesterov: self.nesterov,
        }
    }
}

impl AdamConfig {
    /// Returns AdamW's update of a tensor, `number` from 1.
    pub(super) fn adamw_update(
        &self,
        learning_rate: f64,
        number: u64,
        is_spared: bool,
    ) -> AdamWUpdate {
        AdamWUpdate {
            learning_rate: learning_rate as f32,
            kept: (1.0 - learning_rate * self.weight_decay(is_spared)) as f32,
            direction: AdamDirection::new(self.betas, self.epsilon, number),
        }
    }

    /// Returns LAMB's update of a tensor, `number` from 1.
    pub(super) fn lamb_update(
        &self,
        learning_rate: f64,
        number: u64,
        is_spared: bool,
    ) -> LambUpdate {
        LambUpdate {
            learning_rate: learning_rate as f32,
            weight_decay: self.weight_decay(is_spared) as f32,
            direction: AdamDirection::new(self.betas, self.epsilon, number),
            adapts: !is_spared,
        }
    }

    fn weight_decay(&self, is_spared: bool) -> f64 {
        if is_spared { 0.0 } else { self.weight_decay }
    }
}
