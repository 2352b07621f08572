//! The optimizer of a rank: it turns mean gradients into parameters, wherever both are.
//!
//! In: the learning rate, the mean gradient. Out: a model with updated parameters; a state to save.
//! Invariant: equal inputs give equal bits on every rank, so replicas never drift apart.

mod custom;
mod device;
mod host;
mod placement;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use anyhow::{Result, anyhow};
use burn::module::Module;
use burn::tensor::{Device, Tensor};
use distributed::gradients::{LocalGradients, SyncedGradients};
use distributed::replica::{ParameterEntry, ParameterLayout, read};

pub use self::custom::CustomOptimizer;
pub(super) use self::custom::with_ids_by_order;
pub(super) use self::device::DeviceOptimizer;
pub(super) use self::host::HostOptimizer;
pub(super) use self::placement::{ORDER, Placement};
use super::StepConfig;
use crate::config::{OptimizerChoice, SyncMethod};

/// The owner of the parameters, which updates them.
#[expect(clippy::large_enum_variant, reason = "a rank has one at a time")]
#[derive(Debug)]
pub(super) enum Optimizer {
    Host(HostOptimizer),
    /// Servers update; the rank has a copy of their parameters and velocities.
    Server(HostOptimizer),
    Device(DeviceOptimizer),
    /// The parameters are only in the model.
    Custom(CustomOptimizer, ParameterLayout),
}

/// The mean gradient of a step.
#[expect(clippy::large_enum_variant, reason = "a rank has one at a time")]
#[derive(Debug)]
pub(super) enum MeanGradient<'a> {
    /// Over the samples of all ranks. From servers, the parameters that they have updated.
    Synced(SyncedGradients<'a>),
    /// Over this rank's samples: replicas differ until they are averaged.
    Local(LocalGradients<'a>),
    /// Flat on the device of the only rank, as [`Placement::joined`] makes it.
    Device(Tensor<1>),
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

impl Optimizer {
    /// Returns the optimizer of `config` over the parameters of `model`, at rest.
    ///
    /// # Errors
    /// If the device has no such optimizer.
    pub(super) fn new<M: Module>(
        config: &StepConfig,
        model: &M,
        device: Option<&Device>,
    ) -> Result<Self> {
        let layout = ParameterLayout::new(model);
        if let Some(device) = device {
            let optimizer = DeviceOptimizer::new(config.optimizer, &layout, model, device);
            let optimizer = optimizer.ok_or_else(|| {
                let got = config.optimizer;
                anyhow!("optimizer: expected SGD or AdamW on a device, got {got:?}")
            })?;
            return Ok(Self::Device(optimizer));
        }
        if let Some(custom) = &config.custom_optimizer {
            return Ok(Self::Custom(custom.clone(), layout));
        }
        let parameters = read(model, &layout);
        let factors = &config.rate_factors;
        let host = HostOptimizer::new(config.optimizer, factors, &layout, parameters);
        Ok(match config.sync.method {
            SyncMethod::ParameterServer { .. } => Self::Server(host),
            _ => Self::Host(host),
        })
    }

    /// Updates the parameters, also those of `model`.
    ///
    /// # Panics
    /// If the gradient is elsewhere than the optimizer.
    pub(super) fn update<M: Module>(
        &mut self,
        model: &mut M,
        learning_rate: f64,
        gradient: MeanGradient<'_>,
    ) {
        match (&mut *self, gradient) {
            (Self::Host(host), MeanGradient::Synced(gradients)) => {
                let buckets = gradients.buckets().iter();
                host.update(
                    learning_rate,
                    buckets.map(|bucket| (bucket.elements(), bucket.values())),
                );
            }
            (Self::Host(host), MeanGradient::Local(gradients)) => {
                host.update(learning_rate, gradients.buckets());
            }
            (Self::Server(host), MeanGradient::Synced(parameters)) => {
                host.take_parameters(parameters.buckets());
            }
            (Self::Device(device), MeanGradient::Device(gradient)) => {
                device.update(learning_rate, gradient);
            }
            (Self::Custom(custom, _), MeanGradient::Synced(gradients)) => {
                let gradients = gradients.to_params(model);
                *model = custom.0.step(learning_rate, model.clone(), gradients);
            }
            (optimizer, gradient) => unreachable!("{optimizer:?} takes no {gradient:?}"),
        }
        self.place(model);
    }

    /// Gives `model` the parameters.
    pub(super) fn place<M: Module>(&self, model: &mut M) {
        match self {
            Self::Host(host) | Self::Server(host) => *model = host.place(model.clone()),
            Self::Device(device) => *model = device.place(model.clone()),
            Self::Custom(..) => {}
        }
    }

    /// Returns the parameters, flat in module order.
    pub(super) fn parameters<M: Module>(&self, model: &M) -> Cow<'_, [f32]> {
        match self {
            Self::Host(host) | Self::Server(host) => host.parameters().into(),
            Self::Device(device) => device.parameters().into(),
            Self::Custom(_, layout) => read(model, layout).into(),
        }
    }

    pub(super) fn state(&self) -> OptimizerState {
        match self {
            Self::Host(host) | Self::Server(host) => host.state(),
            Self::Device(device) => device.state(),
            Self::Custom(custom, _) => OptimizerState {
                custom: Some(custom.record()),
                ..OptimizerState::default()
            },
        }
    }

    /// Continues from the parameters of `model` and a saved state.
    ///
    /// # Errors
    /// If the state is not of this optimizer, the same on all ranks.
    pub(super) fn restore<M: Module>(&mut self, model: &M, state: &OptimizerState) -> Result<()> {
        match self {
            Self::Host(host) | Self::Server(host) => host.restore(model, state),
            Self::Device(device) => device.restore(model, state),
            Self::Custom(custom, _) => {
                if let Some(record) = &state.custom {
                    custom.restore(record)?;
                }
            }
        }
        Ok(())
    }

    /// Returns the optimizer in main memory, which parameter servers and local SGD have.
    ///
    /// # Panics
    /// If it is another one.
    pub(super) fn host(&mut self) -> &mut HostOptimizer {
        match self {
            Self::Host(host) | Self::Server(host) => host,
            other => unreachable!("expected an optimizer in main memory, got {other:?}"),
        }
    }
}

/// Returns true if the rule has first and second moments, corrected for their start, not
/// velocities.
fn has_two_moments(rule: &OptimizerChoice) -> bool {
    matches!(rule, OptimizerChoice::Adamw(_) | OptimizerChoice::Lamb(_))
}

/// Returns true if this parameter has no decay, and no ratio of a rule that has one.
fn spares(rule: &OptimizerChoice, entry: &ParameterEntry) -> bool {
    let decays_all = match rule {
        OptimizerChoice::Sgd(sgd) | OptimizerChoice::Lars { sgd, .. } => sgd.decay_norm_and_bias,
        OptimizerChoice::Adamw(adam) | OptimizerChoice::Lamb(adam) => adam.decay_norm_and_bias,
        OptimizerChoice::Custom => None,
    };
    decays_all == Some(false) && entry.shape.len() <= 1
}
