//! The same descent as [`Optimizer`](super::Optimizer) with SGD, by tensor operations on the device that computes: gradients never leave it.
//!
//! In: the learning rate, the mean gradient as one flat tensor. Out: updated parameters, placed in the model.
//! Invariant: nothing here waits for the device but reading the state out. Roundings differ from the kernel's, which multiplies and
//! adds in one.

use burn::module::Module;
use burn::tensor::{Device, Tensor, TensorData};
use distributed::{ParameterLayout, replace, tensors};

use super::{OptimizerState, SgdConfig};
use crate::model::floats;

/// Elements of flat tensors come in such numbers, so that a parameter which begins and ends at a multiple of it can be a view of
/// them on a GPU, where views are aligned to 512 bytes.
const GRANULE: usize = 128;

/// Parameters and velocities, flat on a device.
#[derive(Clone, Debug)]
pub struct DeviceSgd {
    config: SgdConfig,
    layout: ParameterLayout,
    device: Device,
    parameters: Tensor<1>,
    velocities: Tensor<1>,
    /// Of every element, where some do not decay.
    weight_decays: Option<Tensor<1>>,
}

impl DeviceSgd {
    /// An optimizer at rest over the parameters of `model`, which lie as `layout` says, on the plain `device`.
    pub fn new<M: Module>(config: SgdConfig, layout: &ParameterLayout, model: &M, device: &Device) -> Self {
        let decays_alike = config.weight_decay == 0.0 || layout.entries().iter().all(|entry| config.decays(entry));
        let weight_decays = (!decays_alike).then(|| {
            let mut of_elements = vec![0.0; layout.num_elements()];
            for entry in layout.entries().iter().filter(|entry| config.decays(entry)) {
                of_elements[entry.range()].fill(config.weight_decay as f32);
            }
            upload(&of_elements, device)
        });
        Self {
            config,
            parameters: flat(tensors(model, layout)),
            velocities: upload(&vec![0.0; layout.num_elements()], device),
            weight_decays,
            layout: layout.clone(),
            device: device.clone(),
        }
    }

    /// The parameters, flat in module order, read back.
    pub fn parameters(&self) -> Vec<f32> {
        self.read(&self.parameters)
    }

    /// The velocities, read back: the state to save.
    pub fn state(&self) -> OptimizerState {
        OptimizerState { moments: self.read(&self.velocities), num_updates: None, own: None }
    }

    /// Replaces parameters by those of `model`, and velocities by saved ones.
    ///
    /// # Panics
    /// When there are other than one velocity for each parameter.
    pub fn restore<M: Module>(&mut self, model: &M, state: &OptimizerState) {
        assert_eq!(state.moments.len(), self.layout.num_elements(), "velocities and layout differ in length");
        self.parameters = flat(tensors(model, &self.layout));
        self.velocities = upload(&state.moments, &self.device);
    }

    /// Makes the update `w -= learning_rate * direction`.
    ///
    /// # Shapes
    /// `gradient`: as [`flat_gradient`](Self::flat_gradient) makes it.
    pub fn update(&mut self, learning_rate: f64, gradient: Tensor<1>) {
        let SgdConfig { momentum, nesterov, weight_decay, .. } = self.config;
        let gradient = match &self.weight_decays {
            Some(decays) => gradient + self.parameters.clone() * decays.clone(),
            None if weight_decay != 0.0 => gradient + self.parameters.clone() * weight_decay,
            None => gradient,
        };
        self.velocities = self.velocities.clone() * momentum + gradient.clone();
        let direction = if nesterov { gradient + self.velocities.clone() * momentum } else { self.velocities.clone() };
        self.parameters = self.parameters.clone() - direction * learning_rate;
    }

    /// Gradients of all parameters in module order, flat; zeros where there is none.
    pub fn flat_gradient(&self, gradients: Vec<Option<Tensor<1>>>) -> Tensor<1> {
        let entries = self.layout.entries().iter().zip(gradients);
        let whole = entries.map(|(entry, gradient)| match gradient {
            Some(gradient) => gradient,
            None => Tensor::zeros([entry.len], &self.device),
        });
        flat(whole.collect())
    }

    /// `model` with these parameters.
    pub fn place<M: Module>(&self, model: M) -> M {
        let parts = self.layout.entries().iter().map(|entry| self.parameters.clone().slice(entry.range()));
        replace(model, &self.layout, parts.collect())
    }

    fn read(&self, values: &Tensor<1>) -> Vec<f32> {
        let mut values = floats(values.clone().into_data()).expect("what was computed in f32 is read as f32");
        values.truncate(self.layout.num_elements());
        values
    }
}

/// Tensors end to end, and zeros behind them up to a whole number of granules.
fn flat(mut tensors: Vec<Tensor<1>>) -> Tensor<1> {
    let num_elements: usize = tensors.iter().map(|tensor| tensor.dims()[0]).sum();
    let num_missing = num_elements.next_multiple_of(GRANULE) - num_elements;
    if let (Some(first), true) = (tensors.first(), num_missing > 0) {
        tensors.push(Tensor::zeros([num_missing], &first.device()));
    }
    Tensor::cat(tensors, 0)
}

/// As [`flat`], of values in host memory.
fn upload(values: &[f32], device: &Device) -> Tensor<1> {
    let mut padded = values.to_vec();
    padded.resize(values.len().next_multiple_of(GRANULE), 0.0);
    let len = padded.len();
    Tensor::from_data(TensorData::new(padded, [len]), device)
}
