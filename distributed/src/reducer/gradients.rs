//! Reduced gradients for an optimizer.
//!
//! In: reduced buckets. Out: views of the buckets.
//! Invariant: only a reduction creates a [`SyncedBucket`], so an optimizer that takes one never
//! receives gradients that differ between ranks.

use std::ops::Range;
use std::sync::MutexGuard;

use burn::module::Module;
use burn::optim::GradientsParams;

use super::collector::State;
use crate::gradients::BucketPlan;
use crate::header::are_finite;
use crate::on_device::to_params;
use crate::replica::{ParameterEntry, ParameterLayout};

/// One bucket of gradients, summed over all ranks.
#[derive(Debug)]
pub struct SyncedBucket {
    pub(super) elements: Range<usize>,
    pub(super) values: Vec<f32>,
}

impl SyncedBucket {
    /// Returns the indices of the elements in the flat buffer of the layout.
    pub fn elements(&self) -> Range<usize> {
        self.elements.clone()
    }

    /// Returns the gradients.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Returns true if no element is NaN or infinite. The sum of finite values can overflow.
    pub fn is_finite(&self) -> bool {
        are_finite(&self.values)
    }
}

/// The gradients of all parameters, summed over all ranks.
#[derive(Debug)]
pub struct SyncedGradients<'a> {
    layout: &'a ParameterLayout,
    buckets: &'a mut [SyncedBucket],
    /// True for each parameter without a gradient, in the order of the layout. Empty if all have
    /// one.
    removed: Vec<bool>,
}

impl<'a> SyncedGradients<'a> {
    pub(super) fn new(layout: &'a ParameterLayout, buckets: &'a mut [SyncedBucket]) -> Self {
        Self {
            layout,
            buckets,
            removed: Vec::new(),
        }
    }

    /// Returns the buckets, last parameters first.
    pub fn buckets(&self) -> &[SyncedBucket] {
        self.buckets
    }

    /// Copies the gradients into one buffer in the order of the layout.
    pub fn to_flat(&self) -> Vec<f32> {
        let mut flat = vec![0.0; self.layout.num_elements()];
        for bucket in &*self.buckets {
            flat[bucket.elements()].copy_from_slice(&bucket.values);
        }
        flat
    }

    /// Returns the layout of the gradients.
    pub fn layout(&self) -> &ParameterLayout {
        self.layout
    }

    /// Copies the gradients to the devices of `module`'s parameters, for burn's optimizers.
    ///
    /// # Panics
    /// Panics if the structures of `module` and the reducer's module differ.
    pub fn to_params<M: Module>(&self, module: &M) -> GradientsParams {
        to_params(module, self.layout, &self.to_flat(), &self.removed)
    }

    /// Removes the gradients of all parameters but those that `keeps` accepts. They count as 0, and
    /// burn's optimizers leave the parameters unchanged. `keeps` must be the same on every rank.
    pub fn retain(&mut self, keeps: impl Fn(&ParameterEntry) -> bool) {
        let entries = self.layout.entries();
        self.removed = entries.iter().map(|entry| !keeps(entry)).collect();
        for bucket in &mut *self.buckets {
            let start = bucket.elements.start;
            for (entry, _) in entries.iter().zip(&self.removed).filter(|(_, gone)| **gone) {
                if bucket.elements.contains(&entry.offset) {
                    bucket.values[entry.offset - start..][..entry.len].fill(0.0);
                }
            }
        }
    }

    /// Returns the L2 norm over all parameters, computed in double precision.
    pub fn norm(&self) -> f64 {
        let buckets = self.buckets.iter();
        let sum: f64 = buckets.map(|bucket| squares(&bucket.values)).sum();
        sum.sqrt()
    }

    /// Multiplies all gradients by `factor`, which must be the same on every rank.
    pub fn scale(&mut self, factor: f32) {
        self.each_value(|value| *value *= factor);
    }

    /// Clamps the magnitude of every element to `limit`, which must be the same on every rank.
    ///
    /// # Panics
    /// Panics if `limit` is negative or NaN.
    pub fn clamp(&mut self, limit: f32) {
        self.each_value(|value| *value = value.clamp(-limit, limit));
    }

    fn each_value(&mut self, change: impl Fn(&mut f32)) {
        for bucket in &mut *self.buckets {
            bucket.values.iter_mut().for_each(&change);
        }
    }

    /// Returns true if no element is NaN or infinite.
    pub fn is_finite(&self) -> bool {
        self.buckets.iter().all(SyncedBucket::is_finite)
    }
}

/// Gradients of all parameters on one rank, without a sum over ranks.
#[derive(Debug)]
pub struct LocalGradients<'a> {
    plan: &'a BucketPlan,
    state: MutexGuard<'a, State>,
}

impl<'a> LocalGradients<'a> {
    pub(super) fn new(plan: &'a BucketPlan, state: MutexGuard<'a, State>) -> Self {
        Self { plan, state }
    }

    /// Returns the indices of the elements and the gradients of each bucket, last parameters first.
    pub fn buckets(&self) -> impl Iterator<Item = (Range<usize>, &[f32])> {
        let planned = self.plan.buckets().iter();
        let pairs = planned.zip(&self.state.buckets);
        pairs.map(|(planned, bucket)| (planned.elements.clone(), bucket.values.as_slice()))
    }

    /// Returns true if no element is NaN or infinite.
    pub fn is_finite(&self) -> bool {
        self.buckets().all(|(_, values)| are_finite(values))
    }

    /// Copies the gradients into one buffer in the order of the layout.
    pub fn to_flat(&self) -> Vec<f32> {
        let len = self.buckets().map(|(_, values)| values.len()).sum();
        let mut flat = vec![0.0; len];
        for (elements, values) in self.buckets() {
            flat[elements].copy_from_slice(values);
        }
        flat
    }
}

/// Sums the squares of `values` in double precision.
pub(super) fn squares(values: &[f32]) -> f64 {
    // Eight running sums avoid waiting for the previous addition.
    let mut lanes = [0.0_f64; 8];
    for values in values.chunks(lanes.len()) {
        for (lane, &value) in lanes.iter_mut().zip(values) {
            *lane += f64::from(value) * f64::from(value);
        }
    }
    lanes.iter().sum()
}
