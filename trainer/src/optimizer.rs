//! Stochastic gradient descent with momentum over one flat buffer of parameters.
//!
//! In: the learning rate and the synchronised mean gradient. Out: updated parameters.
//! Invariant: equal inputs give equal bits on every rank, so replicas never drift apart.
//! Source: Sutskever et al. 2013; Nesterov's form and the order of operations as in PyTorch's `torch.optim.SGD`.

use distributed::{ParameterLayout, SyncedGradients};
use serde::{Deserialize, Serialize};

/// What [`Sgd`] does with a gradient.
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
    /// Whether parameters of one axis (norm scales and shifts, biases) decay too: He et al. say yes, Goyal et al. no.
    pub decay_norm_and_bias: bool,
}

/// The parameters of a model and their velocities, updated in one pass.
#[derive(Clone, Debug)]
pub struct Sgd {
    config: SgdConfig,
    parameters: Vec<f32>,
    velocities: Vec<f32>,
    /// `(offset, len, weight_decay)` of every parameter, in module order.
    spans: Vec<(usize, usize, f32)>,
}

impl Sgd {
    /// An optimizer at rest over `parameters`, which lie as `layout` says.
    ///
    /// # Panics
    /// When `parameters` has another length than the layout.
    pub fn new(config: SgdConfig, layout: &ParameterLayout, parameters: Vec<f32>) -> Self {
        assert_eq!(parameters.len(), layout.num_elements(), "parameters and layout differ in length");
        let spans = layout
            .entries()
            .iter()
            .map(|entry| {
                let decays = config.decay_norm_and_bias || entry.shape.len() > 1;
                (entry.offset, entry.len, if decays { config.weight_decay as f32 } else { 0.0 })
            })
            .collect();
        let velocities = vec![0.0; parameters.len()];
        Self { config, parameters, velocities, spans }
    }

    /// The parameters, flat in module order.
    pub fn parameters(&self) -> &[f32] {
        &self.parameters
    }

    /// The velocities, flat in module order: the state to save.
    pub fn velocities(&self) -> &[f32] {
        &self.velocities
    }

    /// Replaces parameters and velocities by saved ones.
    ///
    /// # Panics
    /// When a length differs.
    pub fn restore(&mut self, parameters: &[f32], velocities: &[f32]) {
        self.parameters.copy_from_slice(parameters);
        self.velocities.copy_from_slice(velocities);
    }

    /// One update `w -= learning_rate * direction`.
    ///
    /// Only synchronised gradients have the type this takes.
    pub fn step(&mut self, learning_rate: f64, gradients: &SyncedGradients<'_>) {
        self.update(learning_rate as f32, gradients.as_slice());
    }

    fn update(&mut self, learning_rate: f32, gradients: &[f32]) {
        let momentum = self.config.momentum as f32;
        // With v = m*v + g the direction is g + m*v for Nesterov's form and v otherwise.
        let (of_gradient, of_velocity) = if self.config.nesterov { (1.0, momentum) } else { (0.0, 1.0) };
        for &(offset, len, weight_decay) in &self.spans {
            let range = offset..offset + len;
            let parameters = &mut self.parameters[range.clone()];
            let velocities = &mut self.velocities[range.clone()];
            for ((parameter, velocity), &gradient) in parameters.iter_mut().zip(velocities).zip(&gradients[range]) {
                let gradient = gradient + weight_decay * *parameter;
                *velocity = momentum * *velocity + gradient;
                *parameter -= learning_rate * (of_gradient * gradient + of_velocity * *velocity);
            }
        }
    }
}
