//! A whole step of a device as one recording, which is replayed: a small network's step is hundreds of launches, each of which costs the
//! processor more than the GPU.
//!
//! In: a model, what its training keeps on the device, a batch like those to come. Out: steps of that shape.
//! Invariant: what a replay reads and writes stays where it lies: images, labels, the update's scalars, parameters, moments and norm statistics.

use std::sync::Arc;

use burn::tensor::{Device, FloatDType, Int, Tensor, TensorData};
use datasets::{DeviceBatch, ImageShape, Targets};
use distributed::replica::{ParameterLayout, replace, tensors};
use gpu::CapturedStep;
use layers::PassContext;
use layers::backend::overwrite;

use super::super::Clip;
use super::on_device::clipped;
use crate::model::ImageClassifier;
use crate::model::loss::Loss;
use crate::step::optimizer::{DeviceOptimizer, ORDER};

/// Before a step is recorded: by then its kernels are chosen and compiled.
const STEPS_BEFORE: usize = 3;

/// Of the last steps' images.
#[derive(Debug, Default)]
pub(super) struct Shapes {
    last: [usize; 4],
    num_alike: usize,
}

/// How a step is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Plain,
    /// Recorded, then replayed.
    Record,
    Replay,
}

impl Shapes {
    /// How the next step, on this batch, is made where one on images of the shape `recorded` can be replayed.
    pub(super) fn next(&mut self, batch: &DeviceBatch, recorded: Option<[usize; 4]>) -> Way {
        let ImageShape {
            height,
            width,
            channels,
        } = batch.shape;
        self.next_of([batch.num_samples(), height, width, channels], recorded)
    }

    fn next_of(&mut self, shape: [usize; 4], recorded: Option<[usize; 4]>) -> Way {
        self.num_alike = if shape == self.last {
            self.num_alike + 1
        } else {
            1
        };
        self.last = shape;
        match recorded {
            Some(recorded) if recorded == shape => Way::Replay,
            _ if self.num_alike > STEPS_BEFORE => Way::Record,
            _ => Way::Plain,
        }
    }
}

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
    /// Of the update, as the optimizer orders them.
    scalars: Vec<Tensor<1>>,
    /// Parameters and moments.
    flat: Vec<Tensor<1>>,
    statistics: Vec<Tensor<1>>,
    statistics_layout: ParameterLayout,
    /// The results, and what must be kept until they are there.
    recorded: CapturedStep<(Made, Vec<Tensor<1>>)>,
}

impl RecordedStep {
    /// Records a step on such a batch; model and training are as before, but lie where the recording changes them. `None` where the device
    /// records nothing.
    ///
    /// # Shapes
    /// `images`: `[N, H, W, C]`; `labels`: `[N]`.
    pub(super) fn record<M: ImageClassifier>(
        model: &mut M,
        optimizer: &mut DeviceOptimizer,
        (clip, loss): (Option<Clip>, Arc<dyn Loss>),
        (images, labels): (Tensor<4>, Tensor<1, Int>),
    ) -> Option<Self> {
        let shape = images.dims();
        let (images, labels) = (
            copied(images.inner().flatten(0, 3)),
            copied(labels.inner().float()),
        );
        let device = images.device();
        let scalars: Vec<_> = optimizer
            .clone()
            .next_scalars(0.0)
            .into_iter()
            .map(|value| scalar(value, &device))
            .collect();
        let statistics_layout = ParameterLayout::state(model);
        let statistics: Vec<_> = tensors(model, &statistics_layout, ORDER)
            .into_iter()
            .map(copied)
            .collect();
        let flat: Vec<_> = optimizer.flat().into_iter().map(copied).collect();
        optimizer.go_on_in(&flat);
        let kept = || flat.iter().chain(&statistics).cloned();
        let before: Vec<_> = kept().map(copied).collect();
        wait(&device);

        let step = {
            let (optimizer, images, labels, scalars) = (
                optimizer.clone(),
                images.clone(),
                labels.clone(),
                scalars.clone(),
            );
            let (model, statistics, layout) =
                (model.clone(), statistics.clone(), statistics_layout.clone());
            move || {
                let model = placed(model.clone(), &optimizer, &layout, &statistics);
                let labels: Tensor<1, Int> = Tensor::from_inner(labels.clone().int());
                let num_samples = labels.dims()[0];
                let images = Tensor::from_inner(images.clone().reshape(shape));
                let logits = PassContext::default()
                    .scope(|| model.forward(images))
                    .cast(FloatDType::F32);
                let loss_sum = loss.sum(logits.clone(), Targets::of(labels));
                let mean = loss_sum.clone().mul_scalar(1.0 / num_samples as f64);
                let gradient = optimizer.gradient(&model, mean.backward());
                let (clipped, zero) = clipped(gradient.clone(), clip);
                let mut next = optimizer.clone();
                next.update_by(|index, tensor| tensor * scalars[index].clone(), clipped);
                let of_optimizer = optimizer.flat().into_iter().zip(next.flat());
                let of_norms = statistics
                    .iter()
                    .cloned()
                    .zip(tensors(&model, &layout, ORDER));
                let written = of_optimizer
                    .chain(of_norms)
                    .map(|(at, new)| overwrite(&at, new))
                    .collect();
                (
                    Made {
                        logits: logits.inner(),
                        loss_sum: loss_sum.inner(),
                        zero,
                        gradient,
                    },
                    written,
                )
            }
        };
        let Some(recorded) = CapturedStep::capture(&device, step) else {
            // What it was to write may be spoiled.
            let (flat, statistics) = before.split_at(flat.len());
            optimizer.go_on_in(flat);
            *model = placed(model.clone(), optimizer, &statistics_layout, statistics);
            return None;
        };
        let restored: Vec<_> = kept()
            .zip(before)
            .map(|(at, value)| overwrite(&at, value))
            .collect();
        wait(&device);
        drop(restored);
        *model = placed(model.clone(), optimizer, &statistics_layout, &statistics);
        Some(Self {
            images,
            shape,
            labels,
            scalars,
            flat,
            statistics,
            statistics_layout,
            recorded,
        })
    }

    /// Of the images.
    pub(super) fn shape(&self) -> [usize; 4] {
        self.shape
    }

    /// Makes the step, with these scalars of its update.
    pub(super) fn replay(
        &mut self,
        images: Tensor<4>,
        labels: Tensor<1, Int>,
        scalars: Vec<f64>,
    ) -> Made {
        let device = self.images.device();
        let of_batch = [
            (&self.images, images.inner().flatten(0, 3)),
            (&self.labels, labels.inner().float()),
        ]
        .into_iter();
        let of_update = self
            .scalars
            .iter()
            .zip(scalars.into_iter().map(|value| scalar(value, &device)));
        let given: Vec<_> = of_batch
            .chain(of_update)
            .map(|(at, new)| overwrite(at, new))
            .collect();
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
    pub(super) fn take<M: ImageClassifier>(&self, model: &mut M, optimizer: &mut DeviceOptimizer) {
        let of_optimizer = self.flat.iter().zip(optimizer.flat());
        let of_norms = self
            .statistics
            .iter()
            .zip(tensors(model, &self.statistics_layout, ORDER));
        let taken: Vec<_> = of_optimizer
            .chain(of_norms)
            .map(|(at, new)| overwrite(at, new))
            .collect();
        wait(&self.images.device());
        drop(taken);
        optimizer.go_on_in(&self.flat);
        *model = self.place(model.clone(), optimizer);
    }

    /// `model` with what the replays made of it.
    pub(super) fn place<M: ImageClassifier>(&self, model: M, optimizer: &DeviceOptimizer) -> M {
        placed(model, optimizer, &self.statistics_layout, &self.statistics)
    }
}

/// `model` on these parameters and norm statistics.
fn placed<M: ImageClassifier>(
    model: M,
    optimizer: &DeviceOptimizer,
    layout: &ParameterLayout,
    statistics: &[Tensor<1>],
) -> M {
    replace(optimizer.place(model), layout, ORDER, statistics.to_vec())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_is_recorded_that_came_three_times_in_a_row_and_takes_the_place_of_another() {
        let mut shapes = Shapes::default();
        let mut recorded = None;
        let ways = "aaabaaaaabaabbbbaa".chars().map(|name| {
            let shape = [name as usize, 32, 32, 3];
            let way = shapes.next_of(shape, recorded);
            if way == Way::Record {
                recorded = Some(shape);
            }
            match way {
                Way::Plain => '.',
                Way::Record => 'o',
                Way::Replay => '>',
            }
        });
        assert_eq!(ways.collect::<String>(), ".......o>.>>...o..");
    }
}
