//! The rules of `HostOptimizer` on a device, by operations on flat tensors: SGD, LARS, AdamW, LAMB.
//!
//! In: the learning rate, the mean gradient as one flat tensor. Out: updated parameters in the
//! model.
//! Invariant: equal inputs give equal bits on devices of one kind, as only single values round.
//! Only reading the state waits for the device. Roundings differ from those of the kernels, which
//! multiply and add in one operation.

use burn::module::Module;
use burn::tensor::{Bool, Device, Tensor, TensorData};
use distributed::replica::{ParameterEntry, ParameterLayout, replace, tensors};
use kernels::optimizer::adam;

use super::parameter_sums::ParameterSums;
use super::placement::{FlatPlacement, ORDER};
use crate::config::{AdamConfig, OptimizerChoice, SgdConfig};
use crate::model::parts;
use crate::step::config::{
    Clip, OptimizerState, Step, StepConfig, has_two_moments, rate_factor, spares,
};

/// Parameters and moments, flat on a device.
#[derive(Clone, Debug)]
pub(in crate::step) struct DeviceOptimizer {
    rule: OptimizerChoice,
    clip: Option<Clip>,
    placement: FlatPlacement,
    parameters: Tensor<1>,
    /// Velocities; or first and second moments.
    moments: Vec<Tensor<1>>,
    /// `[1]`, or one for every element if some are spared; `None` without decay.
    weight_decays: Option<Tensor<1>>,
    /// Factor of every element on the learning rate, unless all are 1.
    rate_factors: Option<Tensor<1>>,
    sums: ParameterSums,
    /// True for parameters without a ratio of norms.
    spared: Tensor<1, Bool>,
    /// Includes a step whose outcome the host does not know yet.
    num_updates: u64,
    /// Outcome of the last step, `[3]`: 1 for an update, an overflow of the gradient, or a loss
    /// that is not finite; 0 for the others.
    outcome: Tensor<1>,
}

impl DeviceOptimizer {
    /// Returns an optimizer at rest over the parameters of `model` on the plain `device`.
    ///
    /// # Panics
    /// If the optimizer is a custom one.
    pub(super) fn new<M: Module>(config: &StepConfig, model: &M, device: &Device) -> Self {
        let rule = config.optimizer;
        let decay = match rule {
            OptimizerChoice::Sgd(sgd) | OptimizerChoice::Lars { sgd, .. } => sgd.weight_decay,
            OptimizerChoice::Adamw(adam) | OptimizerChoice::Lamb(adam) => adam.weight_decay,
            OptimizerChoice::Custom => unreachable!("a custom optimizer has its own rule"),
        };
        let layout = ParameterLayout::new(model);
        let placement = FlatPlacement::new(&layout, device);
        let depth = parts::depth(&layout);
        let entries = layout.entries();
        let spared: Vec<bool> = entries.iter().map(|entry| spares(&rule, entry)).collect();
        let of_each = |value: &dyn Fn(&ParameterEntry) -> f64| {
            let mut values = vec![0.0; layout.num_elements()];
            for entry in entries {
                values[entry.range()].fill(value(entry) as f32);
            }
            placement.upload(&values)
        };
        let weight_decays = (decay != 0.0).then(|| {
            if spared.contains(&true) {
                of_each(&|entry| if spares(&rule, entry) { 0.0 } else { decay })
            } else {
                Tensor::full([1], decay, device)
            }
        });
        let factor = |entry: &ParameterEntry| rate_factor(&config.rate_factors, &entry.path, depth);
        let rate_factors = (!config.rate_factors.is_empty()).then(|| of_each(&factor));
        let zeros = placement.upload(&vec![0.0; layout.num_elements()]);
        let num_parameters = spared.len();
        Self {
            rule,
            clip: config.clip,
            parameters: placed_parameters(&placement, model),
            moments: vec![zeros; if has_two_moments(&rule) { 2 } else { 1 }],
            weight_decays,
            rate_factors,
            sums: ParameterSums::new(&placement.num_granules(), device),
            spared: Tensor::from_data(TensorData::new(spared, [num_parameters]), device),
            outcome: Tensor::from_data([1.0, 0.0, 0.0], device),
            placement,
            num_updates: 0,
        }
    }

    /// Returns the place of each parameter in the flat tensors.
    pub(super) fn placement(&self) -> &FlatPlacement {
        &self.placement
    }

    /// Returns the parameters as they lie on the device.
    pub(in crate::step) fn flat_parameters(&self) -> (Tensor<1>, &FlatPlacement) {
        (self.parameters.clone(), &self.placement)
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

    /// Returns `gradient` within the limit; and zero, `[1]`, or NaN if a value or the norm is not
    /// finite.
    pub(super) fn clipped(&self, gradient: Tensor<1>) -> (Tensor<1>, Tensor<1>) {
        let zero = (gradient.clone() * 0.0).sum();
        let limit = match self.clip {
            None => return (gradient, zero),
            Some(Clip::Value(limit)) => return (gradient.clamp(-limit, limit), zero),
            Some(Clip::Norm(limit)) => limit,
        };
        let norm = self.sums.norm(gradient.clone());
        let factor = (norm.clone().recip() * limit).clamp_max(1.0);
        (gradient * factor, zero + norm * 0.0)
    }

    /// Counts an update and returns its scalars: the learning rate; with two moments the
    /// corrections of the first one and of the root of the second one; the loss scale if it is in
    /// use. A scalar has one value, or if steps can be skipped one for each [outcome](Self::picked)
    /// of the step before. The host knows that outcome unless it `is_unread`.
    pub(super) fn next_scalars(&mut self, step: &Step, is_unread: bool) -> Vec<Vec<f64>> {
        self.num_updates += 1;
        let scales = match is_unread {
            true => step.loss_scale.after_each(),
            false => [step.loss_scale; 3],
        };
        let of_outcome = |outcome: usize| {
            let is_skipped = is_unread && outcome > 0;
            let mut scalars = vec![step.context.learning_rate];
            if let OptimizerChoice::Adamw(adam) | OptimizerChoice::Lamb(adam) = self.rule {
                let AdamConfig { beta1, beta2, .. } = adam;
                let number = self.num_updates - u64::from(is_skipped);
                scalars.extend(adam::corrections([beta1, beta2], number));
            }
            let scale = scales[outcome];
            scalars.extend(scale.is_in_use().then(|| f64::from(scale.factor())));
            scalars
        };
        let outcomes = 0..if step.can_skip { scales.len() } else { 1 };
        let of_outcomes: Vec<_> = outcomes.map(of_outcome).collect();
        let indices = 0..of_outcomes[0].len();
        let values = |index: usize| of_outcomes.iter().map(|scalars| scalars[index]).collect();
        indices.map(values).collect()
    }

    /// Returns scalars, each with its value for the outcome of the last step.
    pub(super) fn picked(&self, scalars: &[Tensor<1>]) -> Vec<Tensor<1>> {
        let pick = |values: &Tensor<1>| match values.dims() {
            [1] => values.clone(),
            _ => (values.clone() * self.outcome.clone()).sum(),
        };
        scalars.iter().map(pick).collect()
    }

    /// Returns the loss scale of picked scalars, if it is in use.
    pub(super) fn loss_scale<'a>(&self, scalars: &'a [Tensor<1>]) -> Option<&'a Tensor<1>> {
        scalars.get(if has_two_moments(&self.rule) { 3 } else { 1 })
    }

    /// Takes `before` back, as [`flat`](Self::flat) returned it, if the loss or a value of the
    /// gradient is not finite; notes the outcome.
    pub(super) fn keep_if_finite(
        &mut self,
        before: Vec<Tensor<1>>,
        [loss, gradient]: [Tensor<1>; 2],
    ) {
        let is_finite = |value: Tensor<1>| (value * 0.0).equal_elem(0.0).float();
        let loss = is_finite(loss);
        let updated = loss.clone() * is_finite(gradient);
        let overflowed = loss.clone() - updated.clone();
        self.outcome = Tensor::cat(vec![updated, overflowed, loss.neg() + 1.0], 0);
        let mut kept = self.if_updated(before, self.flat());
        // Kept in any case.
        kept[0] = self.outcome.clone();
        self.replace_flat(&kept);
    }

    /// Returns the tensors `after` if the last step made an update, otherwise `before`.
    pub(in crate::step) fn if_updated(
        &self,
        before: Vec<Tensor<1>>,
        after: Vec<Tensor<1>>,
    ) -> Vec<Tensor<1>> {
        let is_update = self.outcome.clone().slice(0..1).equal_elem(1.0);
        let pairs = before.into_iter().zip(after);
        let chosen = pairs.map(|(before, after)| {
            let everywhere = is_update.clone().expand(after.dims());
            before.mask_where(everywhere, after)
        });
        chosen.collect()
    }

    /// Takes back the count of an update that the device did not make.
    pub(super) fn note_skip(&mut self) {
        self.num_updates -= 1;
    }

    /// Makes an update with its picked scalars, without counting it.
    pub(super) fn update(&mut self, scalars: &[Tensor<1>], gradient: Tensor<1>) {
        let parameters = self.parameters.clone();
        let decay = self.weight_decays.clone();
        let decay = decay.map(|decays| parameters.clone() * decays);
        let mut direction = match self.rule {
            OptimizerChoice::Adamw(adam) => self.adam_direction(&adam, gradient, decay, scalars),
            OptimizerChoice::Lamb(adam) => {
                let direction = self.adam_direction(&adam, gradient, decay, scalars);
                let own = self.sums.norms(parameters.clone());
                let of_direction = self.sums.norms(direction.clone());
                let ratio = own.clone() / of_direction.clone();
                self.scaled_by_ratio(direction, ratio, own * of_direction)
            }
            OptimizerChoice::Sgd(sgd) => self.sgd_direction(&sgd, added(gradient, decay)),
            OptimizerChoice::Lars {
                sgd,
                trust_coefficient,
            } => {
                let own = self.sums.norms(parameters.clone());
                let of_gradient = self.sums.norms(gradient.clone());
                let whole = of_gradient.clone() + own.clone() * sgd.weight_decay;
                let ratio = own.clone() * trust_coefficient / whole;
                let gradient =
                    self.scaled_by_ratio(added(gradient, decay), ratio, own * of_gradient);
                self.sgd_direction(&sgd, gradient)
            }
            OptimizerChoice::Custom => unreachable!("`new` accepts no custom optimizer"),
        };
        if let Some(factors) = &self.rate_factors {
            direction = direction * factors.clone();
        }
        self.parameters = parameters - direction * scalars[0].clone();
    }

    /// Moves both moments; returns the direction of the step.
    fn adam_direction(
        &mut self,
        adam: &AdamConfig,
        gradient: Tensor<1>,
        decay: Option<Tensor<1>>,
        scalars: &[Tensor<1>],
    ) -> Tensor<1> {
        let [beta1, beta2] = [adam.beta1, adam.beta2];
        let moments = &mut self.moments;
        let square = gradient.clone() * gradient.clone();
        moments[0] = moments[0].clone() + (gradient - moments[0].clone()) * (1.0 - beta1);
        moments[1] = moments[1].clone() * beta2 + square * (1.0 - beta2);
        let root = moments[1].clone().sqrt() * scalars[2].clone();
        let first = moments[0].clone() * scalars[1].clone();
        added(first / (root + adam.epsilon), decay)
    }

    /// Moves the velocity; returns the direction of the step.
    fn sgd_direction(&mut self, sgd: &SgdConfig, gradient: Tensor<1>) -> Tensor<1> {
        let velocity = self.moments[0].clone() * sgd.momentum + gradient.clone();
        self.moments[0] = velocity.clone();
        if sgd.nesterov {
            gradient + velocity * sgd.momentum
        } else {
            velocity
        }
    }

    /// Multiplies each parameter's part by its ratio, except where the product of its norms is 0
    /// and where it is spared.
    fn scaled_by_ratio(&self, whole: Tensor<1>, ratio: Tensor<1>, norms: Tensor<1>) -> Tensor<1> {
        let is_plain = norms.equal_elem(0.0).bool_or(self.spared.clone());
        self.sums.scaled(whole, ratio.mask_fill(is_plain, 1.0))
    }

    /// Returns what a step changes: the outcome, parameters and moments, flat as they lie on the
    /// device.
    pub(super) fn flat(&self) -> Vec<Tensor<1>> {
        let mut flat = vec![self.outcome.clone(), self.parameters.clone()];
        flat.extend(self.moments.iter().cloned());
        flat
    }

    /// Continues in these tensors, in the order of [`flat`](Self::flat).
    pub(super) fn replace_flat(&mut self, flat: &[Tensor<1>]) {
        self.outcome = flat[0].clone();
        self.parameters = flat[1].clone();
        self.moments = flat[2..].to_vec();
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
    placement.joined(tensors.map(Some), Vec::new())
}
