//! The same descent as [`Optimizer`](super::Optimizer) with SGD, by tensor operations on the device that computes: gradients never leave it.
//!
//! In: the learning rate, the mean gradient as one flat tensor. Out: updated parameters, placed in the model.
//! Invariant: nothing here waits for the device but reading the state out. Roundings differ from the kernel's, which multiplies and
//! adds in one.

use burn::module::Module;
use burn::tensor::{Device, Gradients, Tensor};
use distributed::{ParameterLayout, replace, take_gradients, tensors};

use super::placement::{ORDER, Placement};
use super::{OptimizerState, SgdConfig};

/// Parameters and velocities, flat on a device.
#[derive(Clone, Debug)]
pub struct DeviceSgd {
    config: SgdConfig,
    placement: Placement,
    parameters: Tensor<1>,
    velocities: Tensor<1>,
    /// Of every element, where some do not decay.
    weight_decays: Option<Tensor<1>>,
}

impl DeviceSgd {
    /// An optimizer at rest over the parameters of `model`, which lie as `layout` says, on the plain `device`.
    pub fn new<M: Module>(config: SgdConfig, layout: &ParameterLayout, model: &M, device: &Device) -> Self {
        let placement = Placement::new(layout, device);
        let decays_alike = config.weight_decay == 0.0 || layout.entries().iter().all(|entry| config.decays(entry));
        let weight_decays = (!decays_alike).then(|| {
            let mut of_elements = vec![0.0; layout.num_elements()];
            for entry in layout.entries().iter().filter(|entry| config.decays(entry)) {
                of_elements[entry.range()].fill(config.weight_decay as f32);
            }
            placement.upload(&of_elements)
        });
        Self {
            config,
            parameters: parameters(&placement, model),
            velocities: placement.upload(&vec![0.0; layout.num_elements()]),
            weight_decays,
            placement,
        }
    }

    /// The parameters, flat in module order, read back.
    pub fn parameters(&self) -> Vec<f32> {
        self.placement.read(&self.parameters)
    }

    /// The velocities, read back: the state to save.
    pub fn state(&self) -> OptimizerState {
        OptimizerState { moments: self.placement.read(&self.velocities), num_updates: None, own: None }
    }

    /// Replaces parameters by those of `model`, and velocities by saved ones.
    ///
    /// # Panics
    /// When there are other than one velocity for each parameter.
    pub fn restore<M: Module>(&mut self, model: &M, state: &OptimizerState) {
        assert_eq!(
            state.moments.len(),
            self.placement.layout().num_elements(),
            "velocities and layout differ in length"
        );
        self.parameters = parameters(&self.placement, model);
        self.velocities = self.placement.upload(&state.moments);
    }

    /// Makes the update `w -= learning_rate * direction`.
    ///
    /// # Shapes
    /// `gradient`: as [`gradient`](Self::gradient) makes it.
    pub fn update(&mut self, learning_rate: f64, gradient: Tensor<1>) {
        self.update_by(|direction| direction * learning_rate, gradient);
    }

    /// The same where `scaled` multiplies by the learning rate.
    pub(in crate::step) fn update_by(&mut self, scaled: impl FnOnce(Tensor<1>) -> Tensor<1>, gradient: Tensor<1>) {
        let SgdConfig { momentum, nesterov, weight_decay, .. } = self.config;
        let gradient = match &self.weight_decays {
            Some(decays) => gradient + self.parameters.clone() * decays.clone(),
            None if weight_decay != 0.0 => gradient + self.parameters.clone() * weight_decay,
            None => gradient,
        };
        self.velocities = self.velocities.clone() * momentum + gradient.clone();
        let direction = if nesterov { gradient + self.velocities.clone() * momentum } else { self.velocities.clone() };
        self.parameters = self.parameters.clone() - scaled(direction);
    }

    /// Parameters and velocities, flat as they lie on the device.
    pub(in crate::step) fn flat(&self) -> [&Tensor<1>; 2] {
        [&self.parameters, &self.velocities]
    }

    /// Goes on in these tensors, as [`flat`](Self::flat) gives them.
    pub(in crate::step) fn go_on_in(&mut self, [parameters, velocities]: [Tensor<1>; 2]) {
        (self.parameters, self.velocities) = (parameters, velocities);
    }

    /// The gradients of `model` as one flat tensor, zeros where there is none.
    pub fn gradient<M: Module>(&self, model: &M, gradients: Gradients) -> Tensor<1> {
        self.placement.joined(take_gradients(model, self.placement.layout(), ORDER, gradients))
    }

    /// A gradient's values in module order, read back.
    pub fn read(&self, gradient: &Tensor<1>) -> Vec<f32> {
        self.placement.read(gradient)
    }

    /// `model` with these parameters, which are views of the flat ones.
    pub fn place<M: Module>(&self, model: M) -> M {
        replace(model, self.placement.layout(), ORDER, self.placement.views(&self.parameters))
    }
}

fn parameters<M: Module>(placement: &Placement, model: &M) -> Tensor<1> {
    placement.joined(tensors(model, placement.layout(), ORDER).into_iter().map(Some))
}
