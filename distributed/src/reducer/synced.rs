//! Gradients as an optimizer may take them.
//!
//! In: reduced buckets. Out: views of them. Invariant: only a reduction makes a [`SyncedBucket`], so an optimizer that takes one
//! cannot be given gradients that differ between ranks.

use std::ops::Range;

use burn::module::Module;
use burn::optim::GradientsParams;

use crate::header::are_finite;
use crate::on_device::to_params;
use crate::replica::ParameterLayout;

/// One bucket of gradients, summed over all ranks.
#[derive(Debug)]
pub struct SyncedBucket {
    pub(super) index: usize,
    pub(super) elements: Range<usize>,
    pub(super) values: Vec<f32>,
}

impl SyncedBucket {
    /// Its elements' indices in the flat buffer of the layout.
    pub fn elements(&self) -> Range<usize> {
        self.elements.clone()
    }

    /// Its gradients.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Whether no element is NaN or infinite: finite parts of several ranks can overflow in the sum.
    pub fn is_finite(&self) -> bool {
        are_finite(&self.values)
    }
}

/// One bucket of one rank's own gradients, not summed over the others.
#[derive(Debug)]
pub struct LocalBucket<'a> {
    pub(super) elements: Range<usize>,
    pub(super) values: &'a [f32],
}

impl LocalBucket<'_> {
    /// Its elements' indices in the flat buffer of the layout.
    pub fn elements(&self) -> Range<usize> {
        self.elements.clone()
    }

    /// Its gradients.
    pub fn values(&self) -> &[f32] {
        self.values
    }
}

/// The gradients of all parameters, summed over all ranks.
#[derive(Debug)]
pub struct SyncedGradients<'a> {
    layout: &'a ParameterLayout,
    buckets: &'a mut [SyncedBucket],
}

impl<'a> SyncedGradients<'a> {
    pub(super) fn new(layout: &'a ParameterLayout, buckets: &'a mut [SyncedBucket]) -> Self {
        Self { layout, buckets }
    }

    /// The buckets, last parameters first.
    pub fn buckets(&self) -> &[SyncedBucket] {
        self.buckets
    }

    /// A copy, flat, as the layout says.
    pub fn to_flat(&self) -> Vec<f32> {
        let mut flat = vec![0.0; self.layout.num_elements()];
        for bucket in &*self.buckets {
            flat[bucket.elements()].copy_from_slice(&bucket.values);
        }
        flat
    }

    /// Where each parameter's gradient lies.
    pub fn layout(&self) -> &ParameterLayout {
        self.layout
    }

    /// For burn's optimizers, on the devices of the parameters of `module`.
    ///
    /// # Panics
    /// When `module` is not built like the one the reducer was made for.
    pub fn to_params<M: Module>(&self, module: &M) -> GradientsParams {
        to_params(module, self.layout, &self.to_flat())
    }

    /// L2 norm over all parameters, added up in double precision.
    pub fn norm(&self) -> f64 {
        self.buckets
            .iter()
            .map(|bucket| squares(&bucket.values))
            .sum::<f64>()
            .sqrt()
    }

    /// Multiplies all gradients by `factor`; the same on every rank, or replicas drift apart.
    pub fn scale(&mut self, factor: f32) {
        for bucket in &mut *self.buckets {
            bucket.values.iter_mut().for_each(|value| *value *= factor);
        }
    }

    /// Limits the size of every element to `limit`, 0 or more; the same on every rank.
    ///
    /// # Panics
    /// When `limit` is negative or NaN.
    pub fn clamp(&mut self, limit: f32) {
        for bucket in &mut *self.buckets {
            bucket
                .values
                .iter_mut()
                .for_each(|value| *value = value.clamp(-limit, limit));
        }
    }

    /// Whether no element is NaN or infinite.
    pub fn is_finite(&self) -> bool {
        self.buckets.iter().all(SyncedBucket::is_finite)
    }
}

pub(super) fn squares(values: &[f32]) -> f64 {
    // Eight running sums, because one would wait for the last addition each time.
    let mut lanes = [0.0_f64; 8];
    for values in values.chunks(lanes.len()) {
        for (lane, &value) in lanes.iter_mut().zip(values) {
            *lane += f64::from(value) * f64::from(value);
        }
    }
    lanes.iter().sum()
}
