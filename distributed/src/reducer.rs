//! From every rank's gradients to their sum over all ranks.
//!
//! In: burn gradients, micro-step after micro-step. Out: one flat `f32` buffer, the same bits on every rank.
//! Invariant: one collective a bucket, in bucket order, on every rank, also on one that had no sample.
//! Source: Li et al. 2020, PyTorch Distributed (2006.15704), section 3.2.

use std::sync::Arc;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Gradients, Tensor};

use crate::communicator::expect_equal;
use crate::layout::{Cursor, with_values};
use crate::{BucketPlan, CollectiveError, Communicator, ParameterLayout};

/// Adds up gradients over micro-steps, then over ranks.
///
/// The global mean is exact because the caller weights: either a rank's loss is the sum over its samples divided by the global
/// number of samples (weight 1), or its mean loss is weighted by its share of the samples.
///
/// # Differs from PyTorch
/// `DistributedDataParallel` takes the plain mean over ranks, which over-weights the samples of a rank that has fewer.
#[derive(Debug)]
pub struct GradientReducer {
    layout: ParameterLayout,
    plan: BucketPlan,
    communicator: Arc<dyn Communicator>,
    flat: Vec<f32>,
    /// The buffer holds nothing of the coming step yet: zeros, or the gradients of the last step.
    fresh: bool,
}

impl GradientReducer {
    /// Plans the buckets of `module`'s trainable parameters.
    ///
    /// # Units
    /// `bucket_cap_bytes` counts bytes of `f32`.
    ///
    /// # Errors
    /// [`CollectiveError::PlanMismatch`] on all ranks when the plans differ, naming the first rank that does.
    ///
    /// # Collective
    /// Must be called by all ranks.
    pub fn new<M: Module>(
        module: &M,
        communicator: Arc<dyn Communicator>,
        bucket_cap_bytes: usize,
    ) -> Result<Self, CollectiveError> {
        let layout = ParameterLayout::new(module);
        let plan = BucketPlan::new(&layout, bucket_cap_bytes);
        let description = format!(
            "{} parameters with {} elements in {} buckets (hash {:016x})",
            layout.entries().len(),
            layout.num_elements(),
            plan.buckets().len(),
            plan.hash()
        );
        expect_equal(&*communicator, "bucket plan", &description)?;
        let flat = vec![0.0; layout.num_elements()];
        Ok(Self { layout, plan, communicator, flat, fresh: true })
    }

    /// Adds `weight` times this rank's gradients; several calls before a [`reduce`](GradientReducer::reduce) accumulate.
    ///
    /// A parameter without a gradient adds zero.
    ///
    /// # Panics
    /// When `module` is not built like the one the reducer was made for.
    pub fn accumulate<M: Module>(&mut self, module: &M, gradients: Gradients, weight: f32) {
        let overwrite = std::mem::replace(&mut self.fresh, false);
        let cursor = Cursor::new(&self.layout);
        let mut adder = Adder { cursor, gradients, weight, overwrite, flat: &mut self.flat };
        module.visit(&mut adder);
        adder.cursor.finish();
    }

    /// What this rank has accumulated since the last reduction.
    pub fn local(&self) -> LocalGradients<'_> {
        LocalGradients { layout: &self.layout, values: if self.fresh { None } else { Some(&self.flat) } }
    }

    /// Sums the accumulated gradients over all ranks, bucket by bucket; the next accumulation starts from zero.
    ///
    /// A rank that accumulated nothing contributes zeros.
    ///
    /// # Errors
    /// When a collective fails.
    ///
    /// # Collective
    /// Must be called by all ranks.
    pub fn reduce(&mut self) -> Result<SyncedGradients<'_>, CollectiveError> {
        if self.fresh {
            self.flat.fill(0.0);
        }
        self.fresh = true;
        for bucket in self.plan.buckets() {
            self.communicator.all_reduce_sum(&mut self.flat[bucket.elements.clone()])?;
        }
        Ok(SyncedGradients { layout: &self.layout, values: &mut self.flat })
    }

    /// Where each parameter's gradient lies.
    pub fn layout(&self) -> &ParameterLayout {
        &self.layout
    }

    /// The buckets.
    pub fn plan(&self) -> &BucketPlan {
        &self.plan
    }
}

/// Gradients of one rank, not yet summed over the others: good for checks, not for an update.
#[derive(Clone, Copy, Debug)]
pub struct LocalGradients<'a> {
    layout: &'a ParameterLayout,
    /// `None` when nothing was accumulated.
    values: Option<&'a [f32]>,
}

impl LocalGradients<'_> {
    /// Whether no element is NaN or infinite.
    pub fn is_finite(&self) -> bool {
        self.largest().1.is_finite()
    }

    /// Index in the layout of the parameter with the largest magnitude, and that magnitude.
    ///
    /// A NaN counts as larger than infinity. Without any gradient it is `(0, 0.0)`.
    pub fn largest(&self) -> (u32, f32) {
        let mut largest = (0, 0);
        for (index, entry) in self.layout.entries().iter().enumerate() {
            // Without the sign bit, the bits of floats are ordered like their magnitudes, NaN above infinity.
            let magnitude = |value: &f32| value.to_bits() & (u32::MAX >> 1);
            let values = self.values.map_or(&[][..], |values| &values[entry.range()]);
            let bits = values.iter().map(magnitude).max().unwrap_or(0);
            if bits > largest.1 {
                largest = (index as u32, bits);
            }
        }
        (largest.0, f32::from_bits(largest.1))
    }
}

/// Gradients summed over all ranks.
///
/// Only [`GradientReducer::reduce`] makes one: an optimizer that takes it cannot be given gradients that differ between ranks.
#[derive(Debug)]
pub struct SyncedGradients<'a> {
    layout: &'a ParameterLayout,
    values: &'a mut [f32],
}

impl SyncedGradients<'_> {
    /// The gradients of all parameters, flat, as the layout says.
    pub fn as_slice(&self) -> &[f32] {
        self.values
    }

    /// Where each parameter's gradient lies.
    pub fn layout(&self) -> &ParameterLayout {
        self.layout
    }

    /// L2 norm over all parameters, added up in double precision.
    pub fn norm(&self) -> f64 {
        // Eight running sums, because one would wait for the last addition each time.
        let mut lanes = [0.0_f64; 8];
        for values in self.values.chunks(lanes.len()) {
            for (lane, &value) in lanes.iter_mut().zip(values) {
                *lane += f64::from(value) * f64::from(value);
            }
        }
        lanes.iter().sum::<f64>().sqrt()
    }

    /// Multiplies all gradients by `factor`; the same on every rank, or replicas drift apart.
    pub fn scale(&mut self, factor: f32) {
        self.values.iter_mut().for_each(|value| *value *= factor);
    }

    /// Whether no element is NaN or infinite: finite parts of several ranks can overflow in the sum.
    pub fn is_finite(&self) -> bool {
        self.values.iter().all(|value| value.is_finite())
    }
}

struct Adder<'a> {
    cursor: Cursor<'a>,
    gradients: Gradients,
    weight: f32,
    overwrite: bool,
    flat: &'a mut [f32],
}

impl ModuleVisitor for Adder<'_> {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.cursor.enter(name);
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.cursor.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(entry) = self.cursor.take() else {
            return;
        };
        let flat = &mut self.flat[entry.range()];
        let weight = self.weight;
        match param.val().grad_remove(&mut self.gradients) {
            Some(gradient) => with_values(gradient, entry, |values| {
                if self.overwrite {
                    flat.iter_mut().zip(values).for_each(|(sum, value)| *sum = weight * value);
                } else {
                    flat.iter_mut().zip(values).for_each(|(sum, value)| *sum += weight * value);
                }
            }),
            None if self.overwrite => flat.fill(0.0),
            None => {}
        }
    }
}
