//! The same rules as [`Optimizer`](super::Optimizer), SGD and AdamW, by tensor operations on the device that computes: gradients never leave it.
//!
//! In: the learning rate, the mean gradient as one flat tensor. Out: updated parameters, placed in the model.
//! Invariant: nothing here waits for the device but reading the state out. Roundings differ from the kernels', which multiply and
//! add in one.

use std::sync::OnceLock;

use burn::module::Module;
use burn::tensor::{Device, Gradients, Tensor};
use distributed::replica::{ParameterLayout, replace, take_gradients, tensors};
use kernels::optimizer::adam;

use super::placement::{ORDER, Placement};
use super::{AdamConfig, OptimizerConfig, OptimizerState, SgdConfig};

/// The rules that update on a device: sums over single tensors, which the others need, would be launches for each.
#[derive(Clone, Copy, Debug)]
enum Rule {
    Sgd(SgdConfig),
    AdamW(AdamConfig),
}

/// Parameters and moments, flat on a device.
#[derive(Clone, Debug)]
pub struct DeviceOptimizer {
    rule: Rule,
    placement: Placement,
    parameters: Tensor<1>,
    /// Velocities; or first and second moments.
    moments: Vec<Tensor<1>>,
    /// `[1]`, or of every element where some are spared; nothing where none decays.
    weight_decays: Option<Tensor<1>>,
    num_updates: u64,
    /// Indices in the layout of parameters without a gradient in the first backward pass.
    unused: OnceLock<Vec<usize>>,
}

impl DeviceOptimizer {
    /// An optimizer at rest over the parameters of `model`, which lie as `layout` says, on the plain `device`. `None` for rules that
    /// update in main memory alone: LARS and LAMB.
    pub fn new<M: Module>(
        config: OptimizerConfig,
        layout: &ParameterLayout,
        model: &M,
        device: &Device,
    ) -> Option<Self> {
        let (rule, num_moments, decay) = match config {
            OptimizerConfig::Sgd(sgd) => (Rule::Sgd(sgd), 1, sgd.weight_decay),
            OptimizerConfig::AdamW(adam) => (Rule::AdamW(adam), 2, adam.weight_decay),
            OptimizerConfig::Lars { .. } | OptimizerConfig::Lamb(_) => return None,
        };
        let placement = Placement::new(layout, device);
        let spared = || layout.entries().iter().filter(|entry| config.spares(entry));
        let weight_decays = (decay != 0.0).then(|| {
            if spared().next().is_none() {
                return Tensor::full([1], decay, device);
            }
            let mut of_elements = vec![decay as f32; layout.num_elements()];
            spared().for_each(|entry| of_elements[entry.range()].fill(0.0));
            placement.upload(&of_elements)
        });
        Some(Self {
            rule,
            parameters: parameters(&placement, model),
            moments: (0..num_moments)
                .map(|_| placement.upload(&vec![0.0; layout.num_elements()]))
                .collect(),
            weight_decays,
            placement,
            num_updates: 0,
            unused: OnceLock::new(),
        })
    }

    /// The parameters, flat in module order, read back.
    pub fn parameters(&self) -> Vec<f32> {
        self.placement.read(&self.parameters)
    }

    /// What it remembers, read back: the state to save.
    pub fn state(&self) -> OptimizerState {
        OptimizerState {
            moments: self
                .moments
                .iter()
                .flat_map(|moment| self.placement.read(moment))
                .collect(),
            num_updates: matches!(self.rule, Rule::AdamW(_)).then_some(self.num_updates),
            own: None,
        }
    }

    /// Replaces parameters by those of `model`, and the state by a saved one.
    ///
    /// # Panics
    /// When there are more or fewer moments than this rule has.
    pub fn restore<M: Module>(&mut self, model: &M, state: &OptimizerState) {
        let len = self.placement.layout().num_elements();
        assert_eq!(
            state.moments.len(),
            self.moments.len() * len,
            "moments and layout differ in length"
        );
        self.parameters = parameters(&self.placement, model);
        for (index, moment) in self.moments.iter_mut().enumerate() {
            *moment = self
                .placement
                .upload(&state.moments[index * len..(index + 1) * len]);
        }
        self.num_updates = state.num_updates.unwrap_or(0);
    }

    /// Makes an update.
    ///
    /// # Shapes
    /// `gradient`: as [`gradient`](Self::gradient) makes it.
    pub fn update(&mut self, learning_rate: f64, gradient: Tensor<1>) {
        let scalars = self.next_scalars(learning_rate);
        self.update_by(|index, tensor| tensor * scalars[index], gradient);
    }

    /// Counts an update, and tells its scalars: the learning rate; for AdamW also the corrections of the first moment and of the root of the
    /// second one.
    pub(in crate::step) fn next_scalars(&mut self, learning_rate: f64) -> Vec<f64> {
        self.num_updates += 1;
        let mut scalars = vec![learning_rate];
        if let Rule::AdamW(AdamConfig { betas, .. }) = self.rule {
            scalars.extend(adam::corrections(betas, self.num_updates));
        }
        scalars
    }

    /// The update itself, uncounted; `times` multiplies by one of its scalars.
    pub(in crate::step) fn update_by(
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
            Rule::Sgd(SgdConfig {
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
            Rule::AdamW(AdamConfig { betas, epsilon, .. }) => {
                let square = gradient.clone() * gradient.clone();
                moments[0] =
                    moments[0].clone() + (gradient - moments[0].clone()) * (1.0 - betas[0]);
                moments[1] = moments[1].clone() * betas[1] + square * (1.0 - betas[1]);
                let root = times(2, moments[1].clone().sqrt());
                added(times(1, moments[0].clone()) / (root + epsilon), decay)
            }
        };
        self.parameters = self.parameters.clone() - times(0, direction);
    }

    /// Parameters and moments, flat as they lie on the device.
    pub(in crate::step) fn flat(&self) -> Vec<Tensor<1>> {
        [&self.parameters]
            .into_iter()
            .chain(&self.moments)
            .cloned()
            .collect()
    }

    /// Goes on in these tensors, as [`flat`](Self::flat) gives them.
    pub(in crate::step) fn go_on_in(&mut self, flat: &[Tensor<1>]) {
        for (tensor, flat) in [&mut self.parameters]
            .into_iter()
            .chain(&mut self.moments)
            .zip(flat)
        {
            *tensor = flat.clone();
        }
    }

    /// The gradients of `model` as one flat tensor, zeros where there is none.
    pub fn gradient<M: Module>(&self, model: &M, gradients: Gradients) -> Tensor<1> {
        let gradients = take_gradients(model, self.placement.layout(), ORDER, gradients);
        self.unused.get_or_init(|| {
            (0..gradients.len())
                .filter(|&index| gradients[index].is_none())
                .collect()
        });
        self.placement.joined(gradients)
    }

    /// Paths of the parameters without a gradient in the first backward pass.
    pub fn unused_parameters(&self) -> Vec<&str> {
        let (entries, unused) = (self.placement.layout().entries(), self.unused.get());
        unused
            .into_iter()
            .flatten()
            .map(|&index| entries[index].path.as_str())
            .collect()
    }

    /// A gradient's values in module order, read back.
    pub fn read(&self, gradient: &Tensor<1>) -> Vec<f32> {
        self.placement.read(gradient)
    }

    /// `model` with these parameters, which are views of the flat ones.
    pub fn place<M: Module>(&self, model: M) -> M {
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

fn parameters<M: Module>(placement: &Placement, model: &M) -> Tensor<1> {
    placement.joined(
        tensors(model, placement.layout(), ORDER)
            .into_iter()
            .map(Some),
    )
}
