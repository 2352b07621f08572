//! Optimizers over one flat buffer of parameters: descent with momentum, LARS, AdamW, LAMB.
//!
//! In: the learning rate and the synchronised mean gradient. Out: updated parameters.
//! Invariant: equal inputs give equal bits on every rank, so replicas never drift apart.
//! Source: Sutskever et al. 2013; Nesterov's form and the order of operations as in PyTorch's `torch.optim.SGD`. Those of the other
//! rules stand with [`OptimizerConfig`].

mod config;
mod on_device;
mod own;
mod placement;
#[cfg(test)]
mod tests;

use std::ops::Range;

use distributed::{
    CollectiveError, Communicator,
    gradients::{LocalBucket, SyncedBucket},
    reduction::Traffic,
    replica::{ParameterEntry, ParameterLayout},
};
use kernels::optimizer::sgd::{self, SgdUpdate};
use kernels::optimizer::{adam, lamb, lars};
use kernels::simd::Isa;

use crate::config::RateFactor;
use crate::model::parts::{self, is_within};

pub use config::{AdamConfig, OptimizerConfig, SgdConfig};
pub use on_device::DeviceOptimizer;
pub use own::{OwnOptimizer, with_ids_by_order};
pub(in crate::step) use placement::ORDER;

/// The parameters of a model and what the optimizer remembers of their gradients, updated in place: by whoever knows that all gradients are there and
/// finite.
#[derive(Clone, Debug)]
pub struct Optimizer {
    config: OptimizerConfig,
    /// Flat in module order.
    parameters: Vec<f32>,
    /// As in [`OptimizerState`].
    moments: Vec<f32>,
    /// As long as the longest tensor where the rule needs it.
    scratch: Vec<f32>,
    /// In module order.
    spans: Vec<Span>,
    num_updates: u64,
}

/// What an optimizer remembers: what a checkpoint holds of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OptimizerState {
    /// Velocities, flat in module order; or first moments and, behind them, second moments.
    pub moments: Vec<f32>,
    /// Updates made, which count where there are two moments.
    pub num_updates: Option<u64>,
    /// The record of an optimizer of the program's own, in its place.
    pub own: Option<Vec<u8>>,
}

/// One parameter tensor.
#[derive(Clone, Debug)]
struct Span {
    range: Range<usize>,
    /// Whether it is spared decay.
    is_spared: bool,
    /// On the learning rate.
    factor: f64,
}

/// One of the kernel's ways to make an update by SGD.
type SgdStep = fn(Isa, &SgdUpdate, &mut [f32], &mut [f32], &[f32]);

impl Optimizer {
    /// An optimizer at rest over `parameters`, which lie as `layout` says.
    ///
    /// # Panics
    /// When `parameters` has another length than the layout.
    pub fn new(config: OptimizerConfig, layout: &ParameterLayout, parameters: Vec<f32>) -> Self {
        Self::with_rate_factors(config, &[], layout, parameters)
    }

    /// As [`new`](Self::new), with factors on the learning rate of parts of the model; of several that hold a parameter the longest
    /// name counts.
    ///
    /// # Panics
    /// As [`new`](Self::new).
    pub fn with_rate_factors(
        config: OptimizerConfig,
        factors: &[RateFactor],
        layout: &ParameterLayout,
        parameters: Vec<f32>,
    ) -> Self {
        assert_eq!(
            parameters.len(),
            layout.num_elements(),
            "parameters and layout differ in length"
        );
        let depth = parts::depth(layout);
        let factor = |entry: &ParameterEntry| {
            let of_parts = factors
                .iter()
                .filter(|factor| is_within(&entry.path, &factor.part, depth));
            of_parts
                .max_by_key(|factor| factor.part.len())
                .map_or(1.0, |factor| factor.factor)
        };
        let span = |entry: &ParameterEntry| Span {
            range: entry.range(),
            is_spared: config.spares(entry),
            factor: factor(entry),
        };
        let num_moments = if config.has_two_moments() { 2 } else { 1 };
        let moments = vec![0.0; num_moments * parameters.len()];
        let spans: Vec<Span> = layout.entries().iter().map(span).collect();
        let longest = spans.iter().map(|span| span.range.len()).max().unwrap_or(0);
        let scratch = vec![
            0.0;
            if matches!(config, OptimizerConfig::Lamb(_)) {
                longest
            } else {
                0
            }
        ];
        Self {
            config,
            parameters,
            moments,
            scratch,
            spans,
            num_updates: 0,
        }
    }

    /// The parameters, flat in module order.
    pub fn parameters(&self) -> &[f32] {
        &self.parameters
    }

    /// The velocities, flat in module order; or first moments and, behind them, second moments.
    pub fn moments(&self) -> &[f32] {
        &self.moments
    }

    /// What it remembers: the state to save.
    pub fn state(&self) -> OptimizerState {
        let num_updates = self.config.has_two_moments().then_some(self.num_updates);
        OptimizerState {
            moments: self.moments.clone(),
            num_updates,
            own: None,
        }
    }

    /// Replaces parameters and state by saved ones.
    ///
    /// # Panics
    /// When a length differs.
    pub fn restore(&mut self, parameters: &[f32], state: &OptimizerState) {
        self.parameters.copy_from_slice(parameters);
        self.moments.copy_from_slice(&state.moments);
        self.num_updates = state.num_updates.unwrap_or(0);
    }

    /// Makes an update with the gradients of all buckets.
    ///
    /// Only synchronised gradients have the type this takes.
    pub fn update(&mut self, learning_rate: f64, buckets: &[SyncedBucket]) {
        self.update_all(
            learning_rate,
            buckets
                .iter()
                .map(|bucket| (bucket.elements(), bucket.values())),
        );
    }

    /// As [`update`](Self::update), from this rank's own gradients: replicas drift apart until they are averaged.
    pub fn update_alone(&mut self, learning_rate: f64, buckets: &[LocalBucket<'_>]) {
        self.update_all(
            learning_rate,
            buckets
                .iter()
                .map(|bucket| (bucket.elements(), bucket.values())),
        );
    }

    fn update_all<'a>(
        &mut self,
        learning_rate: f64,
        buckets: impl IntoIterator<Item = (Range<usize>, &'a [f32])>,
    ) {
        for (elements, gradients) in buckets {
            self.step(learning_rate, elements, gradients, sgd::step);
        }
        self.num_updates += 1;
    }

    /// Takes parameters that a server has updated; velocities are the server's affair.
    pub fn take_parameters(&mut self, bucket: &SyncedBucket) {
        self.parameters[bucket.elements()].copy_from_slice(bucket.values());
    }

    /// Makes an update by SGD of some elements, on the calling thread: on a server, whose thread may be beside a compute pool that waits for it.
    pub fn update_elements(
        &mut self,
        learning_rate: f64,
        elements: Range<usize>,
        gradients: &[f32],
    ) {
        self.step(learning_rate, elements, gradients, sgd::step_alone);
    }

    /// Replaces parameters and velocities of some elements.
    pub fn restore_elements(
        &mut self,
        elements: Range<usize>,
        parameters: &[f32],
        velocities: &[f32],
    ) {
        self.parameters[elements.clone()].copy_from_slice(parameters);
        self.moments[elements].copy_from_slice(velocities);
    }

    /// Takes parameters that something else has updated.
    ///
    /// # Panics
    /// When their number is another.
    pub fn note_parameters(&mut self, parameters: Vec<f32>) {
        assert_eq!(
            parameters.len(),
            self.parameters.len(),
            "parameters and layout differ in length"
        );
        self.parameters = parameters;
    }

    /// Replaces parameters and velocities by their mean over all ranks.
    /// Collective: all ranks.
    pub fn average(&mut self, communicator: &dyn Communicator) -> Result<Traffic, CollectiveError> {
        let num_ranks = communicator.world_size() as f32;
        let mut traffic = Traffic::default();
        for values in [&mut self.parameters, &mut self.moments] {
            communicator.all_reduce_sum(values)?;
            values.iter_mut().for_each(|value| *value /= num_ranks);
            traffic += Traffic::of_sum(values.len(), size_of::<f32>(), communicator.world_size());
        }
        Ok(traffic)
    }

    /// Updates whole tensors.
    fn step(
        &mut self,
        learning_rate: f64,
        elements: Range<usize>,
        gradients: &[f32],
        sgd_step: SgdStep,
    ) {
        let Self {
            config,
            parameters,
            moments,
            scratch,
            spans,
            num_updates,
        } = self;
        let (isa, number) = (Isa::detect(), *num_updates + 1);
        let (first_moments, second_moments) = moments.split_at_mut(parameters.len());
        let first = spans.partition_point(|span| span.range.start < elements.start);
        for Span {
            range,
            is_spared,
            factor,
        } in spans[first..]
            .iter()
            .take_while(|span| span.range.start < elements.end)
        {
            let (is_spared, learning_rate) = (*is_spared, learning_rate * factor);
            let gradients = &gradients[range.start - elements.start..range.end - elements.start];
            let (parameters, first) = (
                &mut parameters[range.clone()],
                &mut first_moments[range.clone()],
            );
            // Nothing where there is one moment.
            let second = second_moments.get_mut(range.clone()).unwrap_or_default();
            match config {
                OptimizerConfig::Lars {
                    sgd,
                    trust_coefficient,
                } if !is_spared => {
                    let update = sgd.update(learning_rate, is_spared);
                    lars::step(
                        isa,
                        &update,
                        *trust_coefficient,
                        parameters,
                        first,
                        gradients,
                    );
                }
                OptimizerConfig::Sgd(sgd) | OptimizerConfig::Lars { sgd, .. } => {
                    sgd_step(
                        isa,
                        &sgd.update(learning_rate, is_spared),
                        parameters,
                        first,
                        gradients,
                    );
                }
                OptimizerConfig::AdamW(config) => {
                    let update = config.adamw_update(learning_rate, number, is_spared);
                    adam::step(isa, &update, parameters, [first, second], gradients);
                }
                OptimizerConfig::Lamb(config) => {
                    let update = config.lamb_update(learning_rate, number, is_spared);
                    lamb::step(
                        isa,
                        &update,
                        parameters,
                        &mut scratch[..range.len()],
                        [first, second],
                        gradients,
                    );
                }
            }
        }
    }
}
