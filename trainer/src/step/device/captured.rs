//! A whole step of a device, captured once and replayed: a small network's step is hundreds of
//! launches, each of which costs the CPU more than the GPU.
//!
//! In: a model, its optimizer on the device, batches. Out: steps of the captured shape.
//! Invariant: whatever a replay reads and writes stays where it lies: images, labels, the update's
//! scalars, parameters, moments and norm statistics.

use std::sync::Arc;

use anyhow::Result;
use burn::tensor::{Device, FloatDType, Int, Tensor, TensorData};
use datasets::{DeviceBatch, ImageBatch, Targets};
use distributed::replica::{ParameterLayout, replace, take_gradients, tensors};
use distributed::watchdog::Phase;
use gpu::CapturedStep;
use layers::PassContext;
use layers::backend::{Switches, overwrite};

use super::optimizer::DeviceOptimizer;
use super::placement::ORDER;
use super::{DeviceReplica, Output, UnreadStep, clipped};
use crate::measure::timer::Timer;
use crate::model::ImageClassifier;
use crate::model::loss::Loss;
use crate::step::config::{Clip, Step, StepConfig};

/// Steps of one shape before a step is captured: by then its kernels are chosen and compiled.
const STEPS_BEFORE: usize = 3;

/// The captured step of a training, if there is one, and the conditions to use it.
#[derive(Debug)]
pub(super) struct Capture {
    clip: Option<Clip>,
    loss: Arc<dyn Loss>,
    /// False once the device or the batches turned out not to allow it.
    is_possible: bool,
    shapes: Shapes,
    captured: Option<CapturedTraining>,
}

impl Capture {
    /// Returns `None` if the process, the loss or the device does not allow it.
    pub(super) fn new(config: &StepConfig, device: &Device) -> Option<Self> {
        // A device without its own memory launches no kernels.
        let is_possible = !Switches::current().no_capture
            && config.loss.is_recordable()
            && device.memory_pool_usage().is_some();
        is_possible.then(|| Self {
            clip: config.clip,
            loss: Arc::clone(&config.loss),
            is_possible,
            shapes: Shapes::default(),
            captured: None,
        })
    }

    pub(super) fn is_in_use(&self) -> bool {
        self.captured.is_some()
    }

    /// Forgets the captured step, because model and optimizer are replaced.
    pub(super) fn reset(&mut self) {
        self.captured = None;
        self.shapes = Shapes::default();
    }

    /// Runs the step as a replay, and captures it first if its shape has come often enough. Returns
    /// false if the step must run otherwise.
    pub(super) fn replay<M: ImageClassifier>(
        &mut self,
        model: &mut M,
        replica: &mut DeviceReplica,
        batches: &[DeviceBatch],
        step: &Step,
        timer: &Timer,
    ) -> Result<bool> {
        let is_replayed = self.try_replay(model, replica, batches, step, timer)?;
        if !is_replayed {
            self.update_model(model, &replica.optimizer);
            if let Some(captured) = &mut self.captured {
                captured.latest = Latest::Model;
            }
        }
        Ok(is_replayed)
    }

    fn try_replay<M: ImageClassifier>(
        &mut self,
        model: &mut M,
        replica: &mut DeviceReplica,
        batches: &[DeviceBatch],
        step: &Step,
        timer: &Timer,
    ) -> Result<bool> {
        let can_replay = self.is_possible
            && !step.can_skip
            && step.loss_scale == 1
            && !step.context.keeps_gradients
            && step.num_own > 0
            && model.is_recordable();
        let [batch] = batches else {
            return Ok(false);
        };
        let shape = batch.shape;
        let shape = [
            batch.num_samples(),
            shape.height,
            shape.width,
            shape.channels,
        ];
        let captured_shape = self.captured.as_ref().map(|captured| captured.shape);
        let has_settled = can_replay && self.shapes.has_settled(shape);
        let fits = captured_shape == Some(shape);
        if !can_replay || !(fits || has_settled) {
            return Ok(false);
        }
        let _forward = timer.enter(Phase::Forward);
        let ImageBatch { images, targets } = batch.clone().into_images();
        if targets.mixed.is_some() {
            self.is_possible = false;
        } else if !fits {
            self.update_model(model, &replica.optimizer);
            // Ahead of the capture, as it takes as much memory.
            self.captured = None;
            // No thread may read while the device captures.
            replica.settle(timer)?;
            let loss = Arc::clone(&self.loss);
            let labels = targets.labels.clone();
            self.captured = CapturedTraining::capture(
                model,
                &mut replica.optimizer,
                self.clip,
                loss,
                images.clone(),
                labels,
            );
            self.is_possible = self.captured.is_some();
        }
        let captured = match &mut self.captured {
            Some(captured) if self.is_possible => captured,
            _ => {
                self.update_model(model, &replica.optimizer);
                self.captured = None;
                return Ok(false);
            }
        };
        captured.enter(model, &mut replica.optimizer);
        let scalars = replica.optimizer.next_scalars(step.context.learning_rate);
        let made = captured.replay(images, targets.labels, scalars);
        let output = Output {
            logits: made.logits,
            loss_sum: made.loss_sum,
            labels: batch.labels.clone(),
        };
        replica.unread = Some(UnreadStep {
            step: step.context.step,
            outputs: vec![output],
            zero: made.zero,
            gradient: made.gradient,
        });
        Ok(true)
    }

    /// Gives `model` what replays have changed.
    pub(super) fn update_model<M: ImageClassifier>(
        &mut self,
        model: &mut M,
        optimizer: &DeviceOptimizer,
    ) {
        if let Some(captured) = &mut self.captured
            && captured.latest == Latest::Captured
        {
            *model = captured.place(model.clone(), optimizer);
            captured.latest = Latest::Both;
        }
    }
}

/// The place of the newest parameters, moments and norm statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Latest {
    /// The tensors of the captured step.
    Captured,
    /// The model and the optimizer.
    Model,
    Both,
}

/// The shape of the last steps' images.
#[derive(Debug, Default)]
struct Shapes {
    last: [usize; 4],
    num_alike: usize,
}

impl Shapes {
    /// Takes the shape of the next step's images. Returns true if it has come often enough for a
    /// capture.
    fn has_settled(&mut self, shape: [usize; 4]) -> bool {
        if shape != self.last {
            self.last = shape;
            self.num_alike = 0;
        }
        self.num_alike += 1;
        self.num_alike > STEPS_BEFORE
    }
}

/// The results of a step, in tensors that no other step uses.
#[derive(Clone, Debug)]
struct Made {
    logits: Tensor<2>,
    loss_sum: Tensor<1>,
    /// As [`clipped`] makes it.
    zero: Tensor<1>,
    gradient: Tensor<1>,
}

/// A captured step and the tensors that it reads and writes.
#[derive(Debug)]
struct CapturedTraining {
    /// Flat, since a device may pad the rows of a matrix.
    images: Tensor<1>,
    shape: [usize; 4],
    /// In f32.
    labels: Tensor<1>,
    /// Scalars of the update, in the optimizer's order.
    scalars: Vec<Tensor<1>>,
    /// Parameters and moments.
    flat: Vec<Tensor<1>>,
    statistics: Vec<Tensor<1>>,
    layout: ParameterLayout,
    /// The results, and what must be kept until they are there.
    graph: CapturedStep<(Made, Vec<Tensor<1>>)>,
    latest: Latest,
}

impl CapturedTraining {
    /// Captures a step on such a batch. Values of model and optimizer stay, but lie where the
    /// captured step changes them. Returns `None` if the device captures nothing.
    ///
    /// # Shapes
    /// `images`: `[N, H, W, C]`; `labels`: `[N]`.
    fn capture<M: ImageClassifier>(
        model: &mut M,
        optimizer: &mut DeviceOptimizer,
        clip: Option<Clip>,
        loss: Arc<dyn Loss>,
        images: Tensor<4>,
        labels: Tensor<1, Int>,
    ) -> Option<Self> {
        let shape = images.dims();
        let images = copied(images.inner().flatten(0, 3));
        let labels = copied(labels.inner().float());
        let device = images.device();
        // Counted on a copy: this is no update.
        let scalars = optimizer.clone().next_scalars(0.0).into_iter();
        let scalars: Vec<_> = scalars.map(|value| scalar(value, &device)).collect();
        let layout = ParameterLayout::state(model);
        let statistics = tensors(model, &layout, ORDER).into_iter();
        let statistics: Vec<_> = statistics.map(copied).collect();
        let flat: Vec<_> = optimizer.flat().into_iter().map(copied).collect();
        optimizer.replace_flat(&flat);
        let kept = || flat.iter().chain(&statistics).cloned();
        let before: Vec<_> = kept().map(copied).collect();
        wait(&device);

        let step = {
            let model = model.clone();
            let optimizer = optimizer.clone();
            let layout = layout.clone();
            let statistics = statistics.clone();
            let images = images.clone();
            let labels = labels.clone();
            let scalars = scalars.clone();
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
                let placement = optimizer.placement();
                let gradients = take_gradients(&model, placement.layout(), ORDER, mean.backward());
                let gradient = placement.joined(gradients);
                let (mean_gradient, zero) = clipped(gradient.clone(), clip);
                let mut next = optimizer.clone();
                next.update_by(
                    |index, tensor| tensor * scalars[index].clone(),
                    mean_gradient,
                );
                let old = optimizer.flat().into_iter().chain(statistics.clone());
                let new = next
                    .flat()
                    .into_iter()
                    .chain(tensors(&model, &layout, ORDER));
                let written = old.zip(new).map(|(at, new)| overwrite(&at, new));
                let made = Made {
                    logits: logits.inner(),
                    loss_sum: loss_sum.inner(),
                    zero,
                    gradient,
                };
                (made, written.collect())
            }
        };
        let Some(graph) = CapturedStep::capture(&device, step) else {
            // The tensors that the step was to write may be spoiled.
            let (flat, statistics) = before.split_at(flat.len());
            optimizer.replace_flat(flat);
            *model = placed(model.clone(), optimizer, &layout, statistics);
            return None;
        };
        let restored: Vec<_> = kept()
            .zip(before)
            .map(|(at, value)| overwrite(&at, value))
            .collect();
        wait(&device);
        drop(restored);
        *model = placed(model.clone(), optimizer, &layout, &statistics);
        Some(Self {
            images,
            shape,
            labels,
            scalars,
            flat,
            statistics,
            layout,
            graph,
            latest: Latest::Both,
        })
    }

    /// Runs the step, with these scalars of its update.
    fn replay(&mut self, images: Tensor<4>, labels: Tensor<1, Int>, scalars: Vec<f64>) -> Made {
        let device = self.images.device();
        let mut given = vec![
            overwrite(&self.images, images.inner().flatten(0, 3)),
            overwrite(&self.labels, labels.inner().float()),
        ];
        for (at, value) in self.scalars.iter().zip(scalars) {
            given.push(overwrite(at, scalar(value, &device)));
        }
        let (made, _) = self.graph.replay();
        drop(given);
        Made {
            logits: copied(made.logits.clone()),
            loss_sum: copied(made.loss_sum.clone()),
            zero: copied(made.zero.clone()),
            gradient: copied(made.gradient.clone()),
        }
    }

    /// Prepares a replay: takes what other steps made of model and optimizer, which from now on lie
    /// where the captured step changes them.
    fn enter<M: ImageClassifier>(&mut self, model: &mut M, optimizer: &mut DeviceOptimizer) {
        if self.latest == Latest::Model {
            let at = self.flat.iter().chain(&self.statistics);
            let statistics = tensors(model, &self.layout, ORDER);
            let new = optimizer.flat().into_iter().chain(statistics);
            let taken: Vec<_> = at.zip(new).map(|(at, new)| overwrite(at, new)).collect();
            wait(&self.images.device());
            drop(taken);
            optimizer.replace_flat(&self.flat);
            *model = self.place(model.clone(), optimizer);
        }
        self.latest = Latest::Captured;
    }

    /// Returns `model` with what the replays made of it.
    fn place<M: ImageClassifier>(&self, model: M, optimizer: &DeviceOptimizer) -> M {
        placed(model, optimizer, &self.layout, &self.statistics)
    }
}

/// Returns `model` on these parameters and norm statistics.
fn placed<M: ImageClassifier>(
    model: M,
    optimizer: &DeviceOptimizer,
    layout: &ParameterLayout,
    statistics: &[Tensor<1>],
) -> M {
    replace(optimizer.place(model), layout, ORDER, statistics.to_vec())
}

/// Copies a tensor to other memory.
fn copied<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
    tensor.mul_scalar(1.0)
}

fn scalar(value: f64, device: &Device) -> Tensor<1> {
    Tensor::from_data(TensorData::new(vec![value as f32], [1]), device)
}

/// Waits until the device has computed everything.
fn wait(device: &Device) {
    // A failure appears again when a result is read, and is reported there.
    drop(device.sync());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_has_settled_after_three_times_in_a_row() {
        let mut shapes = Shapes::default();
        let settled = "aaabaaaaabaabbbbaa".chars().map(|name| {
            let shape = [name as usize, 32, 32, 3];
            if shapes.has_settled(shape) { 'o' } else { '.' }
        });
        assert_eq!(settled.collect::<String>(), ".......oo......o..");
    }
}
