//! The forward pass of one micro-batch.
//!
//! In: an uploaded micro-batch. Out: its results, detached, and its summed loss to differentiate.
//! Invariant: a rank without samples computes on a placeholder whose gradients are dropped, where others wait for its statistics.

use anyhow::Result;
use burn::tensor::Tensor;
use datasets::{DeviceBatch, HostBatch, ImageBatch, ImageShape, Pixels};

use crate::model::loss::Loss;
use crate::model::{ImageClassifier, UnreadScore, expect_logits};

/// What a forward pass gave; nothing where there was none to make.
#[derive(Default)]
pub(super) struct Pass {
    /// Absent where the batch has no sample.
    pub(super) output: Option<Output>,
    /// `[1]`, to differentiate; that of a placeholder means nothing.
    pub(super) loss_sum: Option<Tensor<1>>,
}

/// The results of a forward pass, detached.
#[derive(Debug)]
pub(super) struct Output {
    logits: Tensor<2>,
    loss_sum: Tensor<1>,
    labels: Vec<u32>,
}

impl Output {
    /// Of what is detached.
    pub(super) fn new(logits: Tensor<2>, loss_sum: Tensor<1>, labels: Vec<u32>) -> Self {
        Self {
            logits,
            loss_sum,
            labels,
        }
    }

    /// To be read.
    pub(super) fn score(self) -> UnreadScore {
        UnreadScore::new(self.logits, self.loss_sum, self.labels)
    }
}

/// The results of one micro-batch, and its summed loss to differentiate, times `loss_factor` if there is one.
///
/// # Errors
/// When the logits have another shape than images and classes ask for.
pub(super) fn forward<M: ImageClassifier>(
    model: &M,
    batch: DeviceBatch,
    loss: &dyn Loss,
    loss_factor: Option<f64>,
) -> Result<(Output, Tensor<1>)> {
    let known = batch.labels.clone();
    let ImageBatch { images, targets } = batch.into_images();
    let logits = expect_logits(model.forward(images), &known)?;
    let loss_sum = loss.sum(logits.clone(), targets);
    let loss_sum = match loss_factor {
        Some(factor) => loss_sum.mul_scalar(factor),
        None => loss_sum,
    };
    Ok((
        Output {
            logits: logits.inner(),
            loss_sum: loss_sum.clone().inner(),
            labels: known,
        },
        loss_sum,
    ))
}

/// One black image, for a rank that has no sample but takes part in the collectives of a synchronised norm.
pub(super) fn placeholder(shape: ImageShape) -> HostBatch {
    let pixels = Pixels::Normalised(vec![0.0; shape.num_values()]);
    HostBatch {
        pixels,
        labels: vec![0],
        mixed: None,
        indices: vec![0],
        shape,
    }
}
