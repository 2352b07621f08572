//! One training step: micro-batches to gradients, agreement of all ranks, mean gradient, update.
//!
//! In: the loaded samples of one step, the learning rate. Out: a changed model and local sums for the metrics.
//! Invariant: between a step's first and last collective no rank leaves alone: the header carries every rank's stop wish and
//! finiteness, and all ranks draw the same conclusion from it.
//! Source: Li et al. 2020, PyTorch Distributed (2006.15704), for buckets; Goyal et al. 2017 (1706.02677), section 3, for the mean.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use burn::tensor::Device;
use datasets::{HostBatch, ImageShape, LoadedStep};
use distributed::{Communicator, GradientReducer, StepHeader, agree, broadcast_module, read, write};

use crate::clock::{Phase, PhaseClock};
use crate::metrics::ScoreSums;
use crate::model::{ImageClassifier, cross_entropy_sum, score};
use crate::norm_reducer::NormReducer;
use crate::optimizer::{Sgd, SgdConfig};

/// How a step is made, apart from model and data.
#[derive(Clone, Debug)]
pub struct StepConfig {
    /// The optimizer.
    pub sgd: SgdConfig,
    /// Share of the label's weight spread over all classes, in `[0, 1)`.
    pub label_smoothing: f64,
    /// Largest L2 norm of the mean gradient; a longer one is scaled down to it.
    pub clip_norm: Option<f64>,
    /// Norm statistics over all ranks instead of each rank's own.
    pub sync_batch_norm: bool,
    /// Largest size of a gradient bucket, in bytes.
    pub bucket_cap_bytes: usize,
}

/// Where a step stands in its run.
#[derive(Clone, Copy, Debug)]
pub struct StepPosition {
    /// Pass over the train split, from 0.
    pub epoch: u64,
    /// Optimizer update, from 0 over the whole run.
    pub step: u64,
}

/// A model in training on one rank.
#[derive(Debug)]
pub struct Stepper<M> {
    model: M,
    optimizer: Sgd,
    reducer: GradientReducer,
    norm_reducer: Option<Arc<NormReducer>>,
    communicator: Arc<dyn Communicator>,
    device: Device,
    config: StepConfig,
}

impl<M: ImageClassifier> Stepper<M> {
    /// Takes root's parameters and norm statistics on every rank and plans the buckets.
    ///
    /// `device` is the plain device; the model trains on its autodiff form.
    ///
    /// # Errors
    /// When the ranks' models differ in structure, or the model has no synchronised norm and one is asked for.
    ///
    /// # Collective
    /// Must be called by all ranks.
    pub fn new(model: M, config: StepConfig, communicator: Arc<dyn Communicator>, device: &Device) -> Result<Self> {
        let reducer = GradientReducer::new(&model, Arc::clone(&communicator), config.bucket_cap_bytes)?;
        let mut model = broadcast_module(model, &*communicator, 0)?;
        let norm_reducer = config.sync_batch_norm.then(|| Arc::new(NormReducer::new(Arc::clone(&communicator))));
        if let Some(norm_reducer) = &norm_reducer {
            model = model
                .with_statistics_reducer(Arc::clone(norm_reducer) as _)
                .context("batch norm sync: this model has no synchronised norm, expected one that overrides with_statistics_reducer; use --batch-norm local")?;
        }
        let optimizer = Sgd::new(config.sgd, reducer.layout(), read(&model, reducer.layout()));
        Ok(Self { model, optimizer, reducer, norm_reducer, communicator, device: device.clone().autodiff(), config })
    }

    /// The model as it stands.
    pub fn model(&self) -> &M {
        &self.model
    }

    /// The model, its training over.
    pub fn into_model(self) -> M {
        self.model
    }

    /// The optimizer with parameters and velocities.
    pub fn optimizer(&self) -> &Sgd {
        &self.optimizer
    }

    /// The bucket plan and parameter layout in use.
    pub fn reducer(&self) -> &GradientReducer {
        &self.reducer
    }

    /// Continues from a saved model (parameters and norm statistics) and saved velocities.
    pub fn restore(&mut self, model: M, velocities: &[f32]) {
        self.optimizer.restore(&read(&model, self.reducer.layout()), velocities);
        self.model = model;
        if let Some(norm_reducer) = &self.norm_reducer {
            let model = self.model.clone();
            if let Some(model) = model.with_statistics_reducer(Arc::clone(norm_reducer) as _) {
                self.model = model;
            }
        }
    }

    /// Makes one step and says whether any rank wants to stop after it.
    ///
    /// The gradient is the exact mean over the step's samples, whichever rank holds how many: each rank's loss is the sum over
    /// its samples divided by the global number of samples, and gradients are summed.
    ///
    /// # Errors
    /// A non-finite loss or gradient on any rank (before the update, on all ranks), or ranks that drifted apart.
    ///
    /// # Collective
    /// Must be called by all ranks, with the same position.
    pub fn step(
        &mut self,
        at: StepPosition,
        loaded: LoadedStep,
        learning_rate: f64,
        stop: bool,
        sums: &mut ScoreSums,
        clock: &mut PhaseClock,
    ) -> Result<bool> {
        let global_num_samples = loaded.global_num_samples;
        let mut local = ScoreSums::default();
        for batch in loaded.micro_batches {
            self.micro_step(batch, global_num_samples, &mut local, clock)?;
        }

        let start = Instant::now();
        let (largest_parameter, largest) = self.reducer.local().largest();
        let header = StepHeader {
            epoch: at.epoch,
            step: at.step,
            plan_hash: self.reducer.plan().hash(),
            stop,
            num_samples: local.num_samples,
            finite: local.loss_sum.is_finite() && self.reducer.local().is_finite(),
            largest,
            largest_parameter,
        };
        let agreement = agree(&*self.communicator, &header, self.reducer.layout())?;
        let mut gradients = self.reducer.reduce()?;
        // Finite parts can overflow in the sum; all ranks see the same sum, so all stop here.
        ensure!(
            gradients.is_finite(),
            "step {}: the mean gradient is not finite though every rank's part is; lower the learning rate",
            at.step
        );
        clock.add(Phase::Communication, start.elapsed());

        let start = Instant::now();
        if let Some(clip_norm) = self.config.clip_norm {
            let norm = gradients.norm();
            if norm > clip_norm {
                gradients.scale((clip_norm / norm) as f32);
            }
        }
        self.optimizer.step(learning_rate, &gradients);
        self.model = write(self.model.clone(), self.reducer.layout(), self.optimizer.parameters());
        clock.add(Phase::Optimizer, start.elapsed());

        *sums += local;
        Ok(agreement.stop)
    }

    /// Forward and backward of one micro-batch, its gradients added to the buckets.
    fn micro_step(
        &mut self,
        batch: HostBatch,
        global_num_samples: usize,
        local: &mut ScoreSums,
        clock: &mut PhaseClock,
    ) -> Result<()> {
        let counts = !batch.labels.is_empty();
        if let Some(norm_reducer) = &self.norm_reducer {
            norm_reducer.set_counts(counts);
        } else if !counts {
            return Ok(());
        }
        let batch = if counts { batch } else { placeholder(batch.shape) };

        let start = Instant::now();
        let labels = batch.labels.clone();
        let batch = batch.to_device(&self.device);
        let logits = self.model.forward(batch.images);
        let loss_sum = cross_entropy_sum(logits.clone(), batch.labels, self.config.label_smoothing);
        let scored = score(logits.inner(), loss_sum.clone().inner(), &labels)?;
        if counts {
            *local += scored;
        }
        clock.add(Phase::Forward, start.elapsed());

        let start = Instant::now();
        let gradients = loss_sum.mul_scalar(1.0 / global_num_samples as f64).backward();
        // A placeholder's backward pass is made for its collectives only: its gradients mean nothing, since the statistics
        // that they flow through do not contain it.
        if counts {
            self.reducer.accumulate(&self.model, gradients, 1.0);
        }
        clock.add(Phase::Backward, start.elapsed());
        Ok(())
    }
}

/// One black image, for a rank that has no sample but takes part in the collectives of a synchronised norm.
fn placeholder(shape: ImageShape) -> HostBatch {
    HostBatch { pixels: vec![0.0; shape.num_values()], labels: vec![0], indices: vec![0], shape }
}
