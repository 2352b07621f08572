//! Gradients from a model's hooks to their buckets, while the backward pass goes on.
//!
//! In: each parameter's gradient when it is final. Out: the same values in the bucket of that parameter.
//! Invariant: after [`BucketHook::wait`] every gradient of the pass is in its bucket.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn::module::ParamId;
use burn::tensor::TensorData;
use distributed::GradientCollector;
use layers::GradientHook;

use crate::config::UpdateKind;
use crate::step::readback::Readback;

/// Where a model's hooks put gradients.
#[derive(Debug)]
pub(super) enum BucketHook {
    /// Values are looked at where they were computed.
    Inline(Arc<GradientCollector>),
    /// A thread waits for the device, while the backward pass is still being given to it.
    Background(Mutex<Readback<(ParamId, TensorData), ()>>),
}

impl BucketHook {
    /// Into the buckets of `collector`.
    pub(super) fn new(collector: Arc<GradientCollector>, update: UpdateKind) -> Self {
        match update {
            UpdateKind::Host => Self::Inline(collector),
            UpdateKind::Device => Self::Background(Mutex::new(Readback::start(move |(parameter, gradient)| {
                put(&collector, parameter, &gradient);
            }))),
        }
    }

    /// Returns when all gradients that were taken are in their buckets.
    ///
    /// # Panics
    /// As the copy of one of them did.
    pub(super) fn wait(&self) {
        if let Self::Background(readback) = self {
            let mut readback = lock(readback);
            while readback.receive().is_some() {}
        }
    }
}

impl GradientHook for BucketHook {
    fn on_gradient(&self, parameter: ParamId, gradient: TensorData) {
        match self {
            Self::Inline(collector) => put(collector, parameter, &gradient),
            Self::Background(readback) => lock(readback).send((parameter, gradient)),
        }
    }
}

fn put(collector: &GradientCollector, parameter: ParamId, gradient: &TensorData) {
    collector.take(parameter, gradient.as_slice().expect("gradients of parameters are f32, and their device works"));
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A poisoned lock means that a pass panicked; the job ends with that panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
