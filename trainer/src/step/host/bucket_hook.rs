//! Gradients from a model's hooks to their buckets, during the backward pass.
//!
//! In: each parameter's gradient when it is final. Out: the same values in the parameter's bucket.
//! Invariant: after [`BucketHook::wait`] every gradient of the pass is in its bucket. Gradients
//! leave a device bucket by bucket.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn::module::ParamId;
use burn::tensor::TensorData;
use distributed::gradients::GradientCollector;
use layers::backend::GradientHook;
use layers::backend::{Joined, JoinedGradients};

use crate::step::readback::Readback;

/// The hook of a model, which fills the buckets.
#[derive(Debug)]
pub(in crate::step) enum BucketHook {
    /// The values are read at once, where they were computed.
    Inline(Arc<GradientCollector>),
    /// A thread waits for the device, while the backward pass is still being queued.
    Background {
        joined: JoinedGradients,
        readback: Mutex<Readback<Joined, ()>>,
    },
}

impl BucketHook {
    /// Returns a hook that reads at once, or `in_background`.
    pub(super) fn new(collector: Arc<GradientCollector>, in_background: bool) -> Self {
        if !in_background {
            return Self::Inline(collector);
        }
        let of_plan = Arc::clone(&collector);
        Self::Background {
            joined: JoinedGradients::new(move |parameter| of_plan.bucket_of(parameter)),
            readback: Mutex::new(Readback::start(move |joined| put_all(&collector, &joined))),
        }
    }

    /// Waits until all gradients that were taken are in their buckets.
    ///
    /// # Panics
    /// If the copy of one of them did.
    pub(super) fn wait(&self) {
        if let Self::Background { joined, readback } = self {
            let mut readback = lock(readback);
            for rest in joined.rest() {
                readback.send(rest);
            }
            while readback.receive().is_some() {}
        }
    }
}

impl GradientHook for BucketHook {
    fn on_gradient(&self, parameter: ParamId, gradient: TensorData) {
        match self {
            Self::Inline(collector) => collector.take(parameter, floats(&gradient)),
            Self::Background { .. } => {
                let parameters = vec![(parameter, gradient.num_elements())];
                self.on_gradients(Joined {
                    parameters,
                    values: gradient,
                });
            }
        }
    }

    fn joined(&self) -> Option<&JoinedGradients> {
        match self {
            Self::Inline(_) => None,
            Self::Background { joined, .. } => Some(joined),
        }
    }

    fn on_gradients(&self, gradients: Joined) {
        match self {
            Self::Inline(collector) => put_all(collector, &gradients),
            Self::Background { readback, .. } => lock(readback).send(gradients),
        }
    }
}

fn put_all(collector: &GradientCollector, joined: &Joined) {
    let mut values = floats(&joined.values);
    for &(parameter, len) in &joined.parameters {
        let (own, rest) = values.split_at(len);
        collector.take(parameter, own);
        values = rest;
    }
}

/// Returns the values, for which it waits.
fn floats(gradients: &TensorData) -> &[f32] {
    gradients
        .as_slice()
        .expect("gradients of parameters are f32, and their device works")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A poisoned lock means that a pass panicked; the job ends with that panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
