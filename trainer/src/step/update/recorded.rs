//! A whole step of a device as one recording, which is replayed: a small network's step is hundreds of launches, each of which costs the
//! processor more than the GPU.
//!
//! In: a model, what its training keeps on the device, a batch like those to come. Out: steps of that shape.
//! Invariant: what a replay reads and writes stays where it lies: images, labels, learning rate, parameters, velocities and norm statistics.

use std::sync::Arc;

use burn::tensor::{Device, Int, Tensor, TensorData};
use datasets::Targets;
use distributed::{ParameterLayout, replace, tensors};
use layers::{PassContext, Recorded, overwrite};

use super::super::Clip;
use super::on_device::clipped;
use crate::model::ImageClassifier;
use crate::model::loss::Loss;
use crate::step::optimizer::{DeviceSgd, ORDER};

/// What a step makes, in tensors of its own.
#[derive(Clone, Debug)]
pub(super) struct Made {
    pub(super) logits: Tensor<2>,
    pub(super) loss_sum: Tensor<1>,
    /// As [`clipped`] makes it.
    pub(super) zero: Tensor<1>,
    pub(super) gradient: Tensor<1>,
}

/// A recording.
#[derive(Debug)]
pub(super) struct RecordedStep {
    /// Flat, since rows of a matrix may lie apart on a device.
    images: Tensor<1>,
    shape: [usize; 4],
    /// In f32.
    labels: Tensor<1>,
    learning_rate: Tensor<1>,
    /// Parameters and velocities.
    flat: [Tensor<1>; 2],
    statistics: Vec<Tensor<1>>,
    statistics_layout: ParameterLayout,
    /// The results, and what must be kept until they are there.
    recorded: Recorded<(Made, Vec<Tensor<1>>)>,
}

impl RecordedStep {
    /// Records a step on such a batch; model and training are as before, but lie where the recording changes them. `None` where the device
    /// records nothing.
    ///
    /// # Shapes
    /// `images`: `[N, H, W, C]`; `labels`: `[N]`.
    pub(super) fn record<M: ImageClassifier>(
        model: &mut M,
        sgd: &mut DeviceSgd,
        (clip, loss): (Option<Clip>, Arc<dyn Loss>),
        (images, labels): (Tensor<4>, Tensor<1, Int>),
    ) -> Option<Self> {
        let shape = images.dims();
        let (images, labels) = (copied(images.inner().flatten(0, 3)), copied(labels.inner().float()));
        let device = images.device();
        let learning_rate = scalar(0.0, &device);
        let statistics_layout = ParameterLayout::state(model);
        let statistics: Vec<_> = tensors(model, &statistics_layout, ORDER).into_iter().map(copied).collect();
        sgd.go_on_in(sgd.flat().map(|flat| copied(flat.clone())));
        let kept = || sgd.flat().into_iter().chain(&statistics).cloned();
        let before: Vec<_> = kept().map(copied).collect();
        wait(&device);

        let step = {
            let (sgd, images, labels, learning_rate) =
                (sgd.clone(), images.clone(), labels.clone(), learning_rate.clone());
            let (model, statistics, layout) = (model.clone(), statistics.clone(), statistics_layout.clone());
            move || {
                let model = placed(model.clone(), &sgd, &layout, &statistics);
                let labels: Tensor<1, Int> = Tensor::from_inner(labels.clone().int());
                let num_samples = labels.dims()[0];
                let images = Tensor::from_inner(images.clone().reshape(shape));
                let logits = PassContext::default().during(|| model.forward(images));
                let loss_sum = loss.sum(logits.clone(), Targets::of(labels));
                let mean = loss_sum.clone().mul_scalar(1.0 / num_samples as f64);
                let gradient = sgd.gradient(&model, mean.backward());
                let (clipped, zero) = clipped(gradient.clone(), clip);
                let mut next = sgd.clone();
                next.update_by(|direction| direction * learning_rate.clone(), clipped);
                let of_sgd = sgd.flat().into_iter().zip(next.flat().map(Tensor::clone));
                let of_norms = statistics.iter().zip(tensors(&model, &layout, ORDER));
                let written = of_sgd.chain(of_norms).map(|(at, new)| overwrite(at, new)).collect();
                (Made { logits: logits.inner(), loss_sum: loss_sum.inner(), zero, gradient }, written)
            }
        };
        let Some(recorded) = Recorded::record(&device, step) else {
            // What it was to write may be spoiled.
            let [parameters, velocities, statistics @ ..] = &before[..] else { return None };
            sgd.go_on_in([parameters.clone(), velocities.clone()]);
            *model = placed(model.clone(), sgd, &statistics_layout, statistics);
            return None;
        };
        let restored: Vec<_> = kept().zip(before).map(|(at, value)| overwrite(&at, value)).collect();
        wait(&device);
        drop(restored);
        *model = placed(model.clone(), sgd, &statistics_layout, &statistics);
        let flat = sgd.flat().map(Tensor::clone);
        Some(Self { images, shape, labels, learning_rate, flat, statistics, statistics_layout, recorded })
    }

    /// Whether this batch is of the shape.
    pub(super) fn fits(&self, images: &Tensor<4>) -> bool {
        images.dims() == self.shape
    }

    /// Makes the step.
    pub(super) fn replay(&mut self, images: Tensor<4>, labels: Tensor<1, Int>, learning_rate: f64) -> Made {
        let device = self.images.device();
        let given = [
            overwrite(&self.images, images.inner().flatten(0, 3)),
            overwrite(&self.labels, labels.inner().float()),
            overwrite(&self.learning_rate, scalar(learning_rate, &device)),
        ];
        let (made, _) = self.recorded.replay();
        drop(given);
        Made {
            logits: copied(made.logits.clone()),
            loss_sum: copied(made.loss_sum.clone()),
            zero: copied(made.zero.clone()),
            gradient: copied(made.gradient.clone()),
        }
    }

    /// Goes on from what other steps made of model and training, which from now on lie where the recording changes them.
    pub(super) fn take<M: ImageClassifier>(&self, model: &mut M, sgd: &mut DeviceSgd) {
        let of_sgd = self.flat.iter().zip(sgd.flat().map(Tensor::clone));
        let of_norms = self.statistics.iter().zip(tensors(model, &self.statistics_layout, ORDER));
        let taken: Vec<_> = of_sgd.chain(of_norms).map(|(at, new)| overwrite(at, new)).collect();
        wait(&self.images.device());
        drop(taken);
        sgd.go_on_in(self.flat.clone());
        *model = self.place(model.clone(), sgd);
    }

    /// `model` with what the replays made of it.
    pub(super) fn place<M: ImageClassifier>(&self, model: M, sgd: &DeviceSgd) -> M {
        placed(model, sgd, &self.statistics_layout, &self.statistics)
    }
}

/// `model` on these parameters and norm statistics.
fn placed<M: ImageClassifier>(model: M, sgd: &DeviceSgd, layout: &ParameterLayout, statistics: &[Tensor<1>]) -> M {
    replace(sgd.place(model), layout, ORDER, statistics.to_vec())
}

/// The same values in memory of their own.
fn copied<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
    tensor.mul_scalar(1.0)
}

fn scalar(value: f64, device: &Device) -> Tensor<1> {
    Tensor::from_data(TensorData::new(vec![value as f32], [1]), device)
}

/// Until all is computed that the device was given.
fn wait(device: &Device) {
    // What fails there fails again where a result is read, and is told there.
    drop(device.sync());
}
