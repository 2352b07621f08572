//! Where a step meets the other ranks: sums of gradients, averages of parameters, servers.
//!
//! In: this rank's buckets. Out: new parameters. Invariant: what was prepared from some buckets takes effect only when all are there.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use burn::module::ParamId;
use burn::tensor::TensorData;
use distributed::{CollectiveError, GradientCollector, ROOT, StepAgreement, StepHeader};
use layers::GradientHook;

use super::{StepEnd, Stepper};
use crate::clock::{Phase, PhaseClock};
use crate::config::UpdateKind;
use crate::model::ImageClassifier;
use crate::readback::Readback;
use crate::synchronizer::Togetherness;

impl<M: ImageClassifier> Stepper<M> {
    /// Takes every bucket's sum, or parameters, as it comes.
    pub(super) fn finish_together(
        &mut self,
        learning_rate: f64,
        clock: &mut PhaseClock,
    ) -> Result<Option<StepAgreement>> {
        let start = Instant::now();
        let clips = self.config.clip_norm.is_some();
        let yields_parameters = self.synchronizer.client().is_some();
        let mut updating = Duration::ZERO;
        let agreement = self.reducer.finish(|bucket| {
            let start = Instant::now();
            match (yields_parameters, clips) {
                (true, _) => self.optimizer.take_parameters(bucket),
                (false, false) => self.optimizer.update(learning_rate, bucket),
                (false, true) => {}
            }
            updating += start.elapsed();
        })?;
        clock.add_since(Phase::Communication, start + updating);
        self.traffic.total += self.reducer.report().traffic;
        for (bucket, times) in self.reducer.report().buckets.iter().enumerate() {
            clock.add_bucket(bucket, times.start, times.end);
        }

        let start = Instant::now();
        if let Some(clip_norm) = self.config.clip_norm {
            let mut gradients = self.reducer.synced();
            let norm = gradients.norm();
            if norm > clip_norm {
                gradients.scale((clip_norm / norm) as f32);
            }
            gradients.buckets().iter().for_each(|bucket| self.optimizer.update(learning_rate, bucket));
        }
        self.optimizer.commit();
        clock.add_since(Phase::Optimizer, start - updating);
        Ok(agreement)
    }

    /// Ends a step that failed, if a loss or gradient that is not finite is all that failed and such steps are left out. The norm
    /// statistics are the caller's to put back.
    ///
    /// # Errors
    /// `error`, where the step cannot be left out.
    pub(super) fn leave_out(&mut self, error: anyhow::Error) -> Result<StepEnd> {
        let is_loss = match error.downcast_ref() {
            Some(CollectiveError::NonFinite { parameter, .. }) => parameter.is_none(),
            _ => return Err(error),
        };
        let overflowed = !is_loss && self.loss_scale.note_overflow();
        if !overflowed && !self.config.skips_non_finite {
            return Err(error);
        }
        Ok(StepEnd { stop: false, skipped: Some(error.to_string()), overflowed })
    }

    /// Adds what a fixed loss scale may have to do with a gradient that is not finite.
    pub(super) fn blame_scale(&self, error: anyhow::Error) -> anyhow::Error {
        match (error.downcast_ref(), self.loss_scale.factor()) {
            (Some(CollectiveError::NonFinite { parameter: Some(_), .. }), factor) if factor > 1 => error.context(
                format!("gradients times a fixed loss scale of {factor}; try a smaller one, or --loss-scale dynamic"),
            ),
            _ => error,
        }
    }

    /// Updates with this rank's own gradients, unless it had no sample or one of them is not finite, which all learn when they
    /// meet.
    pub(super) fn finish_alone(
        &mut self,
        learning_rate: f64,
        has_samples: bool,
        header: &mut StepHeader,
        clock: &mut PhaseClock,
    ) {
        let start = Instant::now();
        let is_finite = self.reducer.finish_alone(|bucket| self.optimizer.update_alone(learning_rate, bucket));
        header.finite &= is_finite;
        self.has_met_non_finite |= !header.finite;
        header.finite = !self.has_met_non_finite;
        if has_samples && is_finite {
            self.optimizer.commit();
        }
        clock.add_since(Phase::Optimizer, start);
    }

    /// Makes the replicas equal.
    pub(super) fn meet(&mut self, togetherness: Togetherness) -> Result<()> {
        if togetherness == Togetherness::ThenAverage {
            self.optimizer.average(&*self.communicator)?;
        }
        if let Some(client) = self.synchronizer.client() {
            for (index, bucket) in self.reducer.plan().buckets().iter().enumerate() {
                let (parameters, velocities) = client.fetch(index, bucket.elements.len())?;
                self.optimizer.restore_elements(bucket.elements.clone(), &parameters, &velocities);
            }
            // No rank goes on before all have fetched.
            self.communicator.barrier()?;
        }
        Ok(())
    }

    /// Root gives the servers, where there are any, its parameters and velocities.
    pub(super) fn tell_servers(&self) -> Result<()> {
        let Some(client) = self.synchronizer.client() else { return Ok(()) };
        if self.communicator.rank() == ROOT {
            for (index, bucket) in self.reducer.plan().buckets().iter().enumerate() {
                let elements = bucket.elements.clone();
                let (parameters, velocities) = (self.optimizer.parameters(), self.optimizer.velocities());
                client.restore(index, &parameters[elements.clone()], &velocities[elements])?;
                // Its answer comes after the server has taken them in.
                client.fetch(index, bucket.elements.len())?;
            }
        }
        // No rank asks a server before root has told it.
        Ok(self.communicator.barrier()?)
    }

    /// Ties the model to what it shares with the other ranks: norm statistics, and buckets for its gradients. One that is updated on
    /// its device shares nothing.
    pub(super) fn connect(&mut self) -> Result<()> {
        if self.on_device.is_some() {
            return Ok(());
        }
        let model = self.model.clone();
        self.model = match &self.norm_reducer {
            None => model,
            Some(norm_reducer) => model
                .with_statistics_reducer(Arc::clone(norm_reducer) as _)
                .context("batch norm sync: this model has no synchronised norm, expected one that overrides with_statistics_reducer; use --batch-norm local")?,
        };
        self.reducer.rename(&self.model);
        let sink = Arc::new(BucketSink::new(self.reducer.collector(), self.config.sync.update));
        let streaming = self.model.clone().with_gradient_hook(Arc::clone(&sink) as _);
        self.sink = streaming.is_some().then_some(sink);
        if let Some(model) = streaming {
            self.model = model;
        }
        Ok(())
    }
}

/// The buckets as a model's hooks see them.
#[derive(Debug)]
pub(super) enum BucketSink {
    /// Values are looked at where they were computed.
    Here(Arc<GradientCollector>),
    /// A thread waits for the device, while the backward pass is still being given to it.
    Beside(Mutex<Readback<(ParamId, TensorData), ()>>),
}

impl BucketSink {
    fn new(collector: Arc<GradientCollector>, update: UpdateKind) -> Self {
        match update {
            UpdateKind::Host => Self::Here(collector),
            UpdateKind::Device => Self::Beside(Mutex::new(Readback::start(move |(parameter, gradient)| {
                put(&collector, parameter, &gradient);
            }))),
        }
    }

    /// Returns when all gradients that were taken are in their buckets.
    ///
    /// # Panics
    /// As the copy of one of them did.
    pub(super) fn settle(&self) {
        if let Self::Beside(readback) = self {
            let mut readback = lock(readback);
            while readback.receive().is_some() {}
        }
    }
}

impl GradientHook for BucketSink {
    fn on_gradient(&self, parameter: ParamId, gradient: TensorData) {
        match self {
            Self::Here(collector) => put(collector, parameter, &gradient),
            Self::Beside(readback) => lock(readback).send((parameter, gradient)),
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
