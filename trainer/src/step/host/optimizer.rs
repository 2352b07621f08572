//! Optimizers over one flat buffer of parameters in main memory: SGD with momentum, LARS, AdamW,
//! LAMB.
//!
//! In: the learning rate and the mean gradient. Out: updated parameters.
//! Invariant: equal inputs give equal bits on every rank.
//! Source: Sutskever et al. 2013; Nesterov's form and the order of operations as in PyTorch's
//! `torch.optim.SGD`. The sources of the other rules are at [`OptimizerChoice`].

use std::ops::Range;

use burn::module::Module;
use distributed::replica::{ParameterEntry, ParameterLayout, read, write};
use kernels::optimizer::adam::{self, AdamDirection, AdamWUpdate};
use kernels::optimizer::lamb::{self, LambUpdate};
use kernels::optimizer::lars;
use kernels::optimizer::sgd::{self, SgdUpdate};
use kernels::simd::Isa;

use crate::config::{AdamConfig, OptimizerChoice, RateFactor, SgdConfig};
use crate::model::parts;
use crate::step::config::{OptimizerState, has_two_moments, rate_factor, spares};

/// The parameters and moments of a model in main memory, updated in place.
#[derive(Clone, Debug)]
pub(super) struct HostOptimizer {
    rule: OptimizerChoice,
    layout: ParameterLayout,
    /// Flat in module order.
    parameters: Vec<f32>,
    /// As in [`OptimizerState`].
    moments: Vec<f32>,
    /// As long as the longest tensor if the rule needs it.
    scratch: Vec<f32>,
    /// In module order.
    spans: Vec<Span>,
    num_updates: u64,
}

/// One parameter tensor.
#[derive(Clone, Debug)]
struct Span {
    range: Range<usize>,
    /// True if weight decay leaves it out.
    is_spared: bool,
    /// Factor on the learning rate.
    factor: f64,
}

/// A function of the kernel that makes an update by SGD.
type SgdStep = fn(Isa, &SgdUpdate, &mut [f32], &mut [f32], &[f32]);

impl HostOptimizer {
    /// Returns an optimizer at rest over `parameters`, which lie as `layout` says. `factors` are on
    /// the learning rate of parts of the model; the longest name that holds a parameter counts.
    ///
    /// # Panics
    /// If `parameters` and the layout differ in length.
    pub(super) fn new(
        rule: OptimizerChoice,
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
        let span = |entry: &ParameterEntry| Span {
            range: entry.range(),
            is_spared: spares(&rule, entry),
            factor: rate_factor(factors, &entry.path, depth),
        };
        let spans: Vec<Span> = layout.entries().iter().map(span).collect();
        let longest = match rule {
            OptimizerChoice::Lamb(_) => spans.iter().map(|span| span.range.len()).max(),
            _ => None,
        };
        let num_moments = if has_two_moments(&rule) { 2 } else { 1 };
        Self {
            rule,
            layout: layout.clone(),
            moments: vec![0.0; num_moments * parameters.len()],
            parameters,
            scratch: vec![0.0; longest.unwrap_or(0)],
            spans,
            num_updates: 0,
        }
    }

    /// Returns the parameters, flat in module order.
    pub(super) fn parameters(&self) -> &[f32] {
        &self.parameters
    }

    /// Returns the velocities, flat in module order; or first moments, followed by second moments.
    pub(super) fn moments(&self) -> &[f32] {
        &self.moments
    }

    pub(super) fn state(&self) -> OptimizerState {
        OptimizerState {
            moments: self.moments.clone(),
            num_updates: has_two_moments(&self.rule).then_some(self.num_updates),
            custom: None,
        }
    }

    /// Replaces the parameters by those of `model`, and the state by a saved one.
    ///
    /// # Panics
    /// If a length differs.
    pub(super) fn restore<M: Module>(&mut self, model: &M, state: &OptimizerState) {
        self.parameters = read(model, &self.layout);
        self.moments.copy_from_slice(&state.moments);
        self.num_updates = state.num_updates.unwrap_or(0);
    }

    pub(super) fn place<M: Module>(&self, model: M) -> M {
        write(model, &self.layout, &self.parameters)
    }

    /// Makes an update with the elements and gradients of all buckets.
    pub(super) fn update<'a>(
        &mut self,
        learning_rate: f64,
        buckets: impl IntoIterator<Item = (Range<usize>, &'a [f32])>,
    ) {
        for (elements, gradients) in buckets {
            self.step(learning_rate, elements, gradients, sgd::step);
        }
        self.num_updates += 1;
    }

    /// Takes parameters that servers have updated.
    pub(super) fn take_parameters<'a>(
        &mut self,
        buckets: impl IntoIterator<Item = (Range<usize>, &'a [f32])>,
    ) {
        for (elements, parameters) in buckets {
            self.parameters[elements].copy_from_slice(parameters);
        }
    }

    /// Makes an update by SGD of some elements on the calling thread: on a server, whose thread may
    /// run next to a compute pool that waits for it.
    pub(super) fn update_elements(
        &mut self,
        learning_rate: f64,
        elements: Range<usize>,
        gradients: &[f32],
    ) {
        self.step(learning_rate, elements, gradients, sgd::step_alone);
    }

    /// Replaces the parameters and velocities of some elements.
    pub(super) fn restore_elements(
        &mut self,
        elements: Range<usize>,
        parameters: &[f32],
        velocities: &[f32],
    ) {
        self.parameters[elements.clone()].copy_from_slice(parameters);
        self.moments[elements].copy_from_slice(velocities);
    }

    /// Returns the parameters and the moments, to be averaged over ranks.
    pub(super) fn buffers_mut(&mut self) -> [&mut Vec<f32>; 2] {
        [&mut self.parameters, &mut self.moments]
    }

    /// Updates whole tensors.
    fn step(
        &mut self,
        learning_rate: f64,
        elements: Range<usize>,
        gradients: &[f32],
        sgd_step: SgdStep,
    ) {
        let isa = Isa::detect();
        let number = self.num_updates + 1;
        let (first_moments, second_moments) = self.moments.split_at_mut(self.parameters.len());
        let start = |span: &Span| span.range.start;
        let spans = &self.spans[self
            .spans
            .partition_point(|span| start(span) < elements.start)..];
        for span in spans.iter().take_while(|span| start(span) < elements.end) {
            let range = span.range.clone();
            let is_spared = span.is_spared;
            let learning_rate = learning_rate * span.factor;
            let gradients = &gradients[range.start - elements.start..range.end - elements.start];
            let parameters = &mut self.parameters[range.clone()];
            let first = &mut first_moments[range.clone()];
            // Empty if the rule has one moment.
            let second = second_moments.get_mut(range.clone()).unwrap_or_default();
            let decay = |decay: f64| if is_spared { 0.0 } else { decay };
            let descent = |sgd: &SgdConfig| SgdUpdate {
                learning_rate: learning_rate as f32,
                momentum: sgd.momentum as f32,
                weight_decay: decay(sgd.weight_decay) as f32,
                nesterov: sgd.nesterov,
            };
            let direction = |adam: &AdamConfig| {
                AdamDirection::new([adam.beta1, adam.beta2], adam.epsilon, number)
            };
            match &self.rule {
                OptimizerChoice::Lars {
                    sgd,
                    trust_coefficient,
                } if !is_spared => lars::step(
                    isa,
                    &descent(sgd),
                    *trust_coefficient,
                    parameters,
                    first,
                    gradients,
                ),
                OptimizerChoice::Sgd(sgd) | OptimizerChoice::Lars { sgd, .. } => {
                    sgd_step(isa, &descent(sgd), parameters, first, gradients);
                }
                OptimizerChoice::Adamw(adam) => {
                    let update = AdamWUpdate {
                        learning_rate: learning_rate as f32,
                        kept: (1.0 - learning_rate * decay(adam.weight_decay)) as f32,
                        direction: direction(adam),
                    };
                    adam::step(isa, &update, parameters, [first, second], gradients);
                }
                OptimizerChoice::Lamb(adam) => {
                    let update = LambUpdate {
                        learning_rate: learning_rate as f32,
                        weight_decay: decay(adam.weight_decay) as f32,
                        direction: direction(adam),
                        adapts: !is_spared,
                    };
                    let scratch = &mut self.scratch[..range.len()];
                    lamb::step(
                        isa,
                        &update,
                        parameters,
                        scratch,
                        [first, second],
                        gradients,
                    );
                }
                OptimizerChoice::Custom => unreachable!("a custom optimizer has its own rule"),
            }
        }
    }
}
