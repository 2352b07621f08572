//! The rules of [`HostOptimizer`](super::HostOptimizer) that the device itself computes: SGD and
//! AdamW, by tensor operations.
//!
//! In: the learning rate, the mean gradient as one flat tensor. Out: updated parameters in the
//! model.
//! Invariant: only reading the state waits for the device. Roundings differ from those of the
//! kernels, which multiply and add in one operation.

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use distributed::replica::{ParameterLayout, replace, tensors};
use kernels::optimizer::adam;

use super::placement::{FlatPlacement, ORDER};
use crate::config::{AdamConfig, OptimizerChoice, SgdConfig};
use crate::step::config::{OptimizerState, has_two_moments, spares};

/// Parameters and moments, flat on a device.
#[derive(Clone, Debug)]
pub(in crate::step) struct DeviceOptimizer {
    /// SGD or AdamW: LARS and LAMB would launch sums over every single tensor.
    rule: OptimizerChoice,
    placement: FlatPlacement,
    parameters: Tensor<1>,
    /// Velocities; or first and second moments.
    moments: Vec<Tensor<1>>,
    /// `[1]`, or one for every element if some are spared; `None` without decay.
    weight_decays: Option<Tensor<1>>,
    num_updates: u64,
}

impl DeviceOptimizer {
    /// Returns an optimizer at rest over the parameters of `model`, which lie as `layout` says, on
    /// the plain `device`; `None` for LARS and LAMB.
    pub(super) fn new<M: Module>(
        rule: OptimizerChoice,
        layout: &ParameterLayout,
        model: &M,
        device: &Device,
    ) -> Option<Self> {
        let decay = match rule {
            OptimizerChoice::Sgd(sgd) => sgd.weight_decay,
            OptimizerChoice::Adamw(adam) => adam.weight_decay,
            _ => return None,
        };
        let placement = FlatPlacement::new(layout, device);
        let mut decays = vec![decay as f32; layout.num_elements()];
        for entry in layout.entries() {
            if spares(&rule, entry) {
                decays[entry.range()].fill(0.0);
            }
        }
        let is_uniform = decays.iter().all(|own| *own == decay as f32);
        let weight_decays = (decay != 0.0).then(|| {
            if is_uniform {
                Tensor::full([1], decay, device)
            } else {
                placement.upload(&decays)
            }
        });
        let zeros = placement.upload(&vec![0.0; layout.num_elements()]);
        Some(Self {
            rule,
            parameters: placed_parameters(&placement, model),
            moments: vec![zeros; if has_two_moments(&rule) { 2 } else { 1 }],
            weight_decays,
            placement,
            num_updates: 0,
        })
    }

    /// Returns the place of each parameter in the flat tensors.
    pub(super) fn placement(&self) -> &FlatPlacement {
        &self.placement
    }

    /// Reads the parameters back, flat in module order.
    pub(in crate::step) fn parameters(&self) -> Vec<f32> {
        self.placement.read(&self.parameters)
    }

    /// Reads the state back.
    pub(in crate::step) fn state(&self) -> OptimizerState {
        let moments = self.moments.iter();
        OptimizerState {
            moments: moments
                .flat_map(|moment| self.placement.read(moment))
                .collect(),
            num_updates: has_two_moments(&self.rule).then_some(self.num_updates),
            custom: None,
        }
    }

    /// Replaces the parameters by those of `model`, and the state by a saved one.
    ///
    /// # Panics
    /// If the number of moments differs from that of the rule.
    pub(super) fn restore<M: Module>(&mut self, model: &M, state: &OptimizerState) {
        let len = self.placement.layout().num_elements();
        assert_eq!(
            state.moments.len(),
            self.moments.len() * len,
            "moments and layout differ in length"
        );
        self.parameters = placed_parameters(&self.placement, model);
        let saved = state.moments.chunks_exact(len);
        for (moment, saved) in self.moments.iter_mut().zip(saved) {
            *moment = self.placement.upload(saved);
        }
        self.num_updates = state.num_updates.unwrap_or(0);
    }

    /// Makes an update with a flat gradient of this [placement](Self::placement).
    pub(super) fn update(&mut self, learning_rate: f64, gradient: Tensor<1>) {
        let scalars = self.next_scalars(learning_rate);
        self.update_by(|index, tensor| tensor * scalars[index], gradient);
    }

    /// Counts an update and returns its scalars: the learning rate; for AdamW also the corrections
    /// of the first moment and of the root of the second one.
    pub(super) fn next_scalars(&mut self, learning_rate: f64) -> Vec<f64> {
        self.num_updates += 1;
        let mut scalars = vec![learning_rate];
        if let OptimizerChoice::Adamw(AdamConfig { beta1, beta2, .. }) = self.rule {
            scalars.extend(adam::corrections([beta1, beta2], self.num_updates));
        }
        scalars
    }

    /// Makes the update without counting it; `times` multiplies by one of its scalars.
    pub(super) fn update_by(
        &mut self,
        times: impl Fn(usize, Tensor<1>) -> Tensor<1>,
        gradient: Tensor<1>,
    ) {
        let decay = self
            .weight_decays
            .as_ref()
            .map(|decays| self.parameters.clone() * decays.clone());
        let moments = &mut self.moments;
        let direction = match self.rule {
            OptimizerChoice::Adamw(AdamConfig {
                beta1,
                beta2,
                epsilon,
                ..
            }) => {
                let square = gradient.clone() * gradient.clone();
                moments[0] = moments[0].clone() + (gradient - moments[0].clone()) * (1.0 - beta1);
                moments[1] = moments[1].clone() * beta2 + square * (1.0 - beta2);
                let root = times(2, moments[1].clone().sqrt());
                added(times(1, moments[0].clone()) / (root + epsilon), decay)
            }
            OptimizerChoice::Sgd(SgdConfig {
                momentum, nesterov, ..
            }) => {
                let gradient = added(gradient, decay);
                moments[0] = moments[0].clone() * momentum + gradient.clone();
                if nesterov {
                    gradient + moments[0].clone() * momentum
                } else {
                    moments[0].clone()
                }
            }
            _ => unreachable!("`new` accepts only SGD and AdamW"),
        };
        self.parameters = self.parameters.clone() - times(0, direction);
    }

    /// Returns parameters and moments, flat as they lie on the device.
    pub(super) fn flat(&self) -> Vec<Tensor<1>> {
        let mut flat = vec![self.parameters.clone()];
        flat.extend(self.moments.iter().cloned());
        flat
    }

    /// Continues in these tensors, in the order of [`flat`](Self::flat).
    pub(super) fn replace_flat(&mut self, flat: &[Tensor<1>]) {
        self.parameters = flat[0].clone();
        self.moments = flat[1..].to_vec();
    }

    /// Returns `model` with these parameters, which are views of the flat ones.
    pub(super) fn place<M: Module>(&self, model: M) -> M {
        replace(
            model,
            self.placement.layout(),
            ORDER,
            self.placement.views(&self.parameters),
        )
    }
}

fn added(tensor: Tensor<1>, other: Option<Tensor<1>>) -> Tensor<1> {
    match other {
        Some(other) => tensor + other,
        None => tensor,
    }
}

fn placed_parameters<M: Module>(placement: &FlatPlacement, model: &M) -> Tensor<1> {
    let tensors = tensors(model, placement.layout(), ORDER).into_iter();
    placement.joined(tensors.map(Some))
}
