//! One micro-batch of a step: loss, scaled, and its gradients on their way.
//!
//! In: an uploaded micro-batch. Out: gradients in the reducer, sums for the metrics, the header announced.
//! Invariant: a rank without samples computes on a placeholder whose gradients are dropped, where others wait for its statistics.

use std::time::Instant;

use anyhow::Result;
use burn::tensor::Tensor;
use datasets::{DeviceBatch, HostBatch, ImageBatch, ImageShape, Pixels};
use distributed::{MicroStepConfig, StepHeader, watchdog};

use super::Stepper;
use crate::clock::{Phase, PhaseClock};
use crate::metrics::ScoreSums;
use crate::model::{ImageClassifier, UnreadScore, cross_entropy_sum};

/// One micro-batch's place in its step.
#[derive(Clone, Copy, Debug)]
pub(super) struct MicroStep {
    /// The loss is divided by it.
    pub(super) divisor: usize,
    pub(super) slab: usize,
    pub(super) is_last: bool,
    pub(super) announces: bool,
}

/// What a forward pass gave, off the tape.
pub(super) struct Forward {
    logits: Tensor<2>,
    loss_sum: Tensor<1>,
    labels: Vec<u32>,
}

impl Forward {
    /// To be read.
    pub(super) fn score(self) -> UnreadScore {
        UnreadScore::new(self.logits, self.loss_sum, self.labels)
    }
}

impl<M: ImageClassifier> Stepper<M> {
    /// Forward and backward of one micro-batch, its gradients on their way to the buckets.
    pub(super) fn micro_step(
        &mut self,
        batch: DeviceBatch,
        micro: MicroStep,
        header: &mut StepHeader,
        local: &mut ScoreSums,
        clock: &mut PhaseClock,
    ) -> Result<()> {
        let counts = !batch.labels.is_empty();
        if let Some(norm_reducer) = &self.norm_reducer {
            norm_reducer.set_counts(counts);
        }
        // Without samples there is a pass only where others wait for this rank's norm statistics.
        let computes = counts || self.norm_reducer.is_some();

        self.config.whereabouts.enter(watchdog::Phase::Forward);
        let start = Instant::now();
        let loss = match computes {
            true => {
                let batch = if counts { batch } else { placeholder(batch.shape).upload(&self.device) };
                let (forward, loss_sum) = self.forward(batch);
                let scored = forward.score().read()?;
                if counts {
                    *local += scored;
                }
                Some(loss_sum)
            }
            false => None,
        };
        if let (Some(statistics), true) = (&mut self.shard_statistics, counts) {
            self.model = statistics.end_shard(self.model.clone());
        }
        clock.add_since(Phase::Forward, start);

        self.config.whereabouts.enter(watchdog::Phase::Backward);
        let start = Instant::now();
        self.backward_start = start;
        if micro.announces {
            header.finite = local.loss_sum.is_finite();
            self.reducer.announce(*header);
        }
        if let Some(loss_sum) = loss {
            // A placeholder's gradients mean nothing, since the statistics that they flow through do not contain it.
            let scale = f64::from(self.loss_scale.factor());
            // A power of two, so dividing before the sum over the ranks gives the bits of dividing after it; and what
            // compression keeps back does not depend on the scale.
            let weight = (1.0 / scale) as f32;
            let how = MicroStepConfig { weight, slab: micro.slab, is_last: micro.is_last, is_void: !counts };
            self.reducer.begin_micro_step(how);
            let gradients = loss_sum.mul_scalar(scale / micro.divisor as f64).backward();
            if let Some(sink) = &self.sink {
                sink.settle();
            }
            self.reducer.accumulate(&self.model, gradients, 1.0);
        }
        clock.add_since(Phase::Backward, start);
        Ok(())
    }

    /// The results of one micro-batch, and its summed loss on the tape.
    pub(super) fn forward(&self, batch: DeviceBatch) -> (Forward, Tensor<1>) {
        let known = batch.labels.clone();
        let ImageBatch { images, labels } = batch.into_images();
        let logits = self.model.forward(images);
        let loss_sum = cross_entropy_sum(logits.clone(), labels, self.config.label_smoothing);
        (Forward { logits: logits.inner(), loss_sum: loss_sum.clone().inner(), labels: known }, loss_sum)
    }
}

/// One black image, for a rank that has no sample but takes part in the collectives of a synchronised norm.
fn placeholder(shape: ImageShape) -> HostBatch {
    let pixels = Pixels::Normalised(vec![0.0; shape.num_values()]);
    HostBatch { pixels, labels: vec![0], indices: vec![0], shape }
}
