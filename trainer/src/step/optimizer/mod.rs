//! Stochastic gradient descent with momentum over one flat buffer of parameters.
//!
//! In: the learning rate and the synchronised mean gradient. Out: updated parameters.
//! Invariant: equal inputs give equal bits on every rank, so replicas never drift apart.
//! Source: Sutskever et al. 2013; Nesterov's form and the order of operations as in PyTorch's `torch.optim.SGD`.

mod on_device;

use std::ops::Range;

use distributed::{CollectiveError, Communicator, LocalBucket, ParameterEntry, ParameterLayout, SyncedBucket};
use kernels::sgd::{SgdUpdate, step, step_alone};
use kernels::simd::Isa;
pub use on_device::DeviceSgd;
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

impl SgdConfig {
    fn decays(&self, entry: &ParameterEntry) -> bool {
        self.decay_norm_and_bias || entry.shape.len() > 1
    }
}

/// The parameters of a model and their velocities, updated bucket by bucket in one pass each.
///
/// An update is made beside the present values and takes effect with [`commit`](Self::commit): until then it can be dropped,
/// though its first buckets were computed while later ones were still on their way.
#[derive(Clone, Debug)]
pub struct Sgd {
    config: SgdConfig,
    present: State,
    next: State,
    /// `(offset, len, weight_decay)` of every parameter, in module order.
    spans: Vec<(usize, usize, f32)>,
}

/// One of the kernel's ways to make an update.
type Step = fn(Isa, &SgdUpdate, &mut [f32], &mut [f32], &[f32]);

#[derive(Clone, Debug)]
struct State {
    parameters: Vec<f32>,
    velocities: Vec<f32>,
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
                let weight_decay = if config.decays(entry) { config.weight_decay as f32 } else { 0.0 };
                (entry.offset, entry.len, weight_decay)
            })
            .collect();
        let present = State { velocities: vec![0.0; parameters.len()], parameters };
        Self { config, next: present.clone(), present, spans }
    }

    /// The parameters, flat in module order.
    pub fn parameters(&self) -> &[f32] {
        &self.present.parameters
    }

    /// The velocities, flat in module order: the state to save.
    pub fn velocities(&self) -> &[f32] {
        &self.present.velocities
    }

    /// Replaces parameters and velocities by saved ones.
    ///
    /// # Panics
    /// When a length differs.
    pub fn restore(&mut self, parameters: &[f32], velocities: &[f32]) {
        self.present.parameters.copy_from_slice(parameters);
        self.present.velocities.copy_from_slice(velocities);
    }

    /// Prepares the update `w -= learning_rate * direction` of one bucket.
    ///
    /// Only synchronised gradients have the type this takes.
    pub fn update(&mut self, learning_rate: f64, bucket: &SyncedBucket) {
        self.prepare(learning_rate as f32, bucket.elements(), bucket.values(), step);
    }

    /// As [`update`](Self::update), from this rank's own gradients: replicas drift apart until they are averaged.
    pub fn update_alone(&mut self, learning_rate: f64, bucket: &LocalBucket<'_>) {
        self.prepare(learning_rate as f32, bucket.elements(), bucket.values(), step);
    }

    /// Prepares parameters that a server has updated; velocities are the server's affair.
    pub fn take_parameters(&mut self, bucket: &SyncedBucket) {
        self.next.parameters[bucket.elements()].copy_from_slice(bucket.values());
    }

    /// Makes an update of some elements at once, on the calling thread: on a server, where no step can be dropped, and whose thread may
    /// be beside a compute pool that waits for it.
    pub fn update_in_place(&mut self, learning_rate: f64, elements: Range<usize>, gradients: &[f32]) {
        self.prepare(learning_rate as f32, elements.clone(), gradients, step_alone);
        let State { parameters, velocities } = &self.next;
        self.present.parameters[elements.clone()].copy_from_slice(&parameters[elements.clone()]);
        self.present.velocities[elements.clone()].copy_from_slice(&velocities[elements]);
    }

    /// Replaces parameters and velocities of some elements.
    pub fn restore_elements(&mut self, elements: Range<usize>, parameters: &[f32], velocities: &[f32]) {
        self.present.parameters[elements.clone()].copy_from_slice(parameters);
        self.present.velocities[elements].copy_from_slice(velocities);
    }

    /// Replaces parameters and velocities by their mean over all ranks.
    ///
    /// # Errors
    /// When a collective fails.
    ///
    /// # Collective
    /// Must be called by all ranks.
    pub fn average(&mut self, communicator: &dyn Communicator) -> Result<(), CollectiveError> {
        let num_ranks = communicator.world_size() as f32;
        for values in [&mut self.present.parameters, &mut self.present.velocities] {
            communicator.all_reduce_sum(values)?;
            values.iter_mut().for_each(|value| *value /= num_ranks);
        }
        Ok(())
    }

    /// Makes the prepared updates, of which there must be one for every bucket, the present values.
    pub fn commit(&mut self) {
        std::mem::swap(&mut self.present, &mut self.next);
    }

    fn prepare(&mut self, learning_rate: f32, elements: Range<usize>, gradients: &[f32], step: Step) {
        let SgdConfig { momentum, nesterov, .. } = self.config;
        let first = self.spans.partition_point(|(offset, ..)| *offset < elements.start);
        for &(offset, len, weight_decay) in &self.spans[first..] {
            if offset >= elements.end {
                break;
            }
            let range = offset..offset + len;
            let update = SgdUpdate { learning_rate, momentum: momentum as f32, weight_decay, nesterov };
            let parameters = &mut self.next.parameters[range.clone()];
            let velocities = &mut self.next.velocities[range.clone()];
            parameters.copy_from_slice(&self.present.parameters[range.clone()]);
            velocities.copy_from_slice(&self.present.velocities[range]);
            let own = offset - elements.start;
            step(Isa::detect(), &update, parameters, velocities, &gradients[own..own + len]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::module::{Module, Param};
    use burn::tensor::{Device, Tensor};

    #[derive(Module, Debug)]
    struct WeightAndBias {
        weight: Param<Tensor<2>>,
        bias: Param<Tensor<1>>,
    }

    fn sgd(config: SgdConfig) -> Sgd {
        let device = Device::flex();
        let module = WeightAndBias {
            weight: Param::from_tensor(Tensor::from_floats([[0.5, -1.25]], &device)),
            bias: Param::from_tensor(Tensor::from_floats([2.0], &device)),
        };
        Sgd::new(config, &ParameterLayout::new(&module), vec![0.5, -1.25, 2.0])
    }

    /// One step in two buckets, the last parameter first.
    fn update(sgd: &mut Sgd, learning_rate: f32, gradients: &[f32]) {
        sgd.prepare(learning_rate, 2..3, &gradients[2..], step);
        sgd.prepare(learning_rate, 0..2, &gradients[..2], step_alone);
        sgd.commit();
    }

    fn after_three_steps(nesterov: bool, decay_norm_and_bias: bool) -> Vec<f32> {
        let mut sgd = sgd(SgdConfig { momentum: 0.9, nesterov, weight_decay: 0.01, decay_norm_and_bias });
        for gradients in [[1.0, -2.0, 0.5], [0.25, 0.5, -1.5], [-3.0, 1.0, 0.125]] {
            update(&mut sgd, 0.1, &gradients);
        }
        sgd.parameters().to_vec()
    }

    fn assert_close(got: &[f32], expected: &[f32]) {
        assert!(got.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{got:?} against {expected:?}");
    }

    /// Expected values by PyTorch 2.15 in double precision:
    /// `w = tensor([[0.5, -1.25]]); b = tensor([2.]); SGD([w, b], lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=…)`,
    /// then three steps with these gradients.
    #[test]
    fn three_steps_equal_pytorchs() {
        assert_close(&after_three_steps(false, true), &[0.479_102_3, -0.896_703_3, 2.125_829_5]);
        assert_close(&after_three_steps(true, true), &[0.655_451_8, -0.879_533_9, 2.194_702_9]);
    }

    #[test]
    fn a_bias_is_spared_decay_if_asked_and_a_weight_is_not() {
        let (all, spared) = (after_three_steps(false, true), after_three_steps(false, false));
        assert_eq!(all[..2], spared[..2]);
        assert!(spared[2] > all[2]);
    }

    #[test]
    fn a_restored_optimizer_makes_the_same_next_update() {
        let config = SgdConfig { momentum: 0.9, nesterov: true, weight_decay: 0.01, decay_norm_and_bias: true };
        let mut one = sgd(config);
        update(&mut one, 0.1, &[1.0, 2.0, 3.0]);
        let mut other = sgd(config);
        other.restore(one.parameters(), one.velocities());
        for sgd in [&mut one, &mut other] {
            update(sgd, 0.05, &[-1.0, 0.5, 2.0]);
        }
        assert_eq!(one.parameters(), other.parameters());
    }

    #[test]
    fn an_update_that_is_not_committed_leaves_no_trace() {
        let config = SgdConfig { momentum: 0.9, nesterov: false, weight_decay: 0.01, decay_norm_and_bias: true };
        let (mut plain, mut disturbed) = (sgd(config), sgd(config));
        disturbed.prepare(0.1, 2..3, &[f32::NAN], step);
        for sgd in [&mut plain, &mut disturbed] {
            update(sgd, 0.1, &[1.0, 2.0, 3.0]);
        }
        assert_eq!(plain.parameters(), disturbed.parameters());
        assert_eq!(plain.velocities(), disturbed.velocities());
    }
}
