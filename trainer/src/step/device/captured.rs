//! A step of a device, captured once and replayed: a small network's step is hundreds of launches,
//! each of which costs the CPU more than the GPU. One rank captures the whole step. Several capture
//! its two parts, around a sum that no capture can contain.
//!
//! In: a model, its optimizer on the device, batches. Out: steps of the captured shape.
//! Invariant: whatever a replay reads and writes stays where it lies: the batch, the update's
//! scalars, parameters, moments and norm statistics.

use std::sync::Arc;

use anyhow::Result;
use burn::module::Module;
use burn::tensor::{Device, Tensor};
use datasets::{MicroBatch, OnDevice};
use distributed::replica::{ParameterLayout, replace, tensors};
use distributed::watchdog::Phase;
use gpu::CapturedStep;
use layers::PassContext;
use layers::backend::{Computation, Switches, overwrite};

use super::optimizer::DeviceOptimizer;
use super::placement::ORDER;
use super::{DeviceReplica, Output, TAIL, own_gradient, tail, update, uploaded};
use crate::measure::timer::Timer;
use crate::step::config::{Step, StepConfig};
use crate::task::{BatchOf, PassSize, Task};

/// Steps of one shape before a step is captured: by then its kernels are chosen and compiled.
const STEPS_BEFORE: usize = 3;

/// The captured step of a training, if there is one, and the conditions to use it.
#[derive(Debug)]
pub(super) struct Capture {
    computation: Computation,
    /// False once the device or the batches turned out not to allow it.
    is_possible: bool,
    shapes: Shapes,
    captured: Option<CapturedTraining>,
}

impl Capture {
    /// Returns `None` if the process or the device does not allow it.
    pub(super) fn new(config: &StepConfig, device: &Device) -> Option<Self> {
        // A device without its own memory launches no kernels.
        let is_possible = !Switches::current().no_capture && device.memory_pool_usage().is_some();
        is_possible.then(|| Self {
            computation: config.computation,
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
    pub(super) fn replay<T: Task>(
        &mut self,
        task: &Arc<T>,
        model: &mut T::Model,
        replica: &mut DeviceReplica,
        batches: &[MicroBatch<BatchOf<T>>],
        step: &Step,
        timer: &Timer,
    ) -> Result<bool> {
        let is_replayed = self.try_replay(task, model, replica, batches, step, timer)?;
        if !is_replayed {
            self.update_model(model, &replica.optimizer);
            if let Some(captured) = &mut self.captured {
                captured.latest = Latest::Model;
            }
        }
        Ok(is_replayed)
    }

    fn try_replay<T: Task>(
        &mut self,
        task: &Arc<T>,
        model: &mut T::Model,
        replica: &mut DeviceReplica,
        batches: &[MicroBatch<BatchOf<T>>],
        step: &Step,
        timer: &Timer,
    ) -> Result<bool> {
        let can_replay = self.is_possible
            && !step.context.keeps_gradients
            && !step.context.stop
            && step.num_own > 0
            && task.is_recordable(model);
        let [MicroBatch { batch, .. }] = batches else {
            return Ok(false);
        };
        if !can_replay {
            return Ok(false);
        }
        let _forward = timer.enter(Phase::Forward);
        let Some(inputs) = batch.flat() else {
            self.is_possible = false;
            return Ok(false);
        };
        let scale = step.weight_factor.unwrap_or(1.0) / step.divisor as f64;
        let key = (batch.sizes(), scale);
        let captured_key = self.captured.as_ref().map(|captured| &captured.key);
        let fits = captured_key == Some(&key);
        let has_settled = self.shapes.has_settled(&key);
        if !(fits || has_settled) {
            return Ok(false);
        }
        if !fits {
            self.update_model(model, &replica.optimizer);
            // Ahead of the capture, as it takes as much memory.
            self.captured = None;
            // No thread may read while the device captures.
            replica.read_back(0)?;
            let steps = Captures {
                task,
                batch,
                inputs: &inputs,
                computation: self.computation,
                is_whole: replica.sum.is_capturable(),
            };
            let optimizer = &mut replica.optimizer;
            self.captured = CapturedTraining::capture(model, optimizer, steps, key, step);
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
        let scalars = replica.next_scalars(step);
        let mut given = captured.give(inputs, scalars);
        let made = match &mut captured.graphs {
            Graphs::Whole(graph) => {
                let (passed, facts, _) = graph.replay();
                (passed.copied(), copied(facts.clone()))
            }
            Graphs::Parts(parts) => {
                let passed = parts.passes.replay().0.copied();
                let sum = replica.summed(passed.own.clone(), timer)?;
                given.push(overwrite(&parts.sum, sum));
                (passed, copied(parts.update.replay().0.clone()))
            }
        };
        drop(given);
        let (passed, facts) = made;
        let output = Output {
            read: passed.read,
            loss_sum: passed.loss_sum,
            size: PassSize::of(&batches[0]),
        };
        replica.end(step, passed.own, vec![output], facts);
        Ok(true)
    }

    /// Gives `model` what replays have changed.
    pub(super) fn update_model<M: Module>(&mut self, model: &mut M, optimizer: &DeviceOptimizer) {
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

/// The sizes of a step's inputs, and the factor on its summed loss.
type Key = (Vec<usize>, f64);

/// The keys of the last steps.
#[derive(Debug, Default)]
struct Shapes {
    last: Key,
    num_alike: usize,
}

impl Shapes {
    /// Takes the key of the next step. Returns true if it has come often enough for a capture.
    fn has_settled(&mut self, key: &Key) -> bool {
        if *key != self.last {
            self.last = key.clone();
            self.num_alike = 0;
        }
        self.num_alike += 1;
        self.num_alike > STEPS_BEFORE
    }
}

/// The results of a step's passes.
#[derive(Clone, Debug)]
struct Passed {
    /// As [`Task::to_read`] returned them.
    read: Vec<Tensor<1>>,
    loss_sum: Tensor<1>,
    /// This rank's gradient with its tail.
    own: Tensor<1>,
}

impl Passed {
    /// Copies the results to tensors that no other step uses.
    fn copied(&self) -> Self {
        Self {
            read: self.read.iter().cloned().map(copied).collect(),
            loss_sum: copied(self.loss_sum.clone()),
            own: copied(self.own.clone()),
        }
    }
}

/// Tensors that a captured step writes, kept until they are written.
type Written = Vec<Tensor<1>>;

/// The captured step.
#[derive(Debug)]
enum Graphs {
    /// From the batch to the parameters; the tensor has the facts.
    Whole(Box<CapturedStep<(Passed, Tensor<1>, Written)>>),
    Parts(Box<Parts>),
}

/// The parts of a captured step before and after the sum over ranks.
#[derive(Debug)]
struct Parts {
    /// From the batch to this rank's gradient.
    passes: CapturedStep<(Passed, Written)>,
    /// The sum over all ranks, which `update` reads.
    sum: Tensor<1>,
    /// From the sum to the facts and the parameters.
    update: CapturedStep<(Tensor<1>, Written)>,
}

/// Inputs of a capture besides model and optimizer.
struct Captures<'a, T: Task> {
    task: &'a Arc<T>,
    batch: &'a BatchOf<T>,
    inputs: &'a [Tensor<1>],
    computation: Computation,
    /// True if one capture contains the whole step.
    is_whole: bool,
}

/// A step on tensors that stay where they are.
struct FixedStep<T: Task> {
    task: Arc<T>,
    model: T::Model,
    optimizer: DeviceOptimizer,
    computation: Computation,
    batch: BatchOf<T>,
    inputs: Vec<Tensor<1>>,
    layout: ParameterLayout,
    statistics: Vec<Tensor<1>>,
    /// The place of norm statistics after the forward pass: the same, unless the step can be
    /// skipped.
    new_statistics: Vec<Tensor<1>>,
    scalars: Vec<Tensor<1>>,
    weight_factor: Option<f64>,
    divisor: f64,
    num_samples: usize,
    can_skip: bool,
}

impl<T: Task> FixedStep<T> {
    /// Computes the gradient of the batch and changes the norm statistics.
    fn passes(&self) -> (Passed, Written) {
        let model = placed(
            self.model.clone(),
            &self.optimizer,
            &self.layout,
            &self.statistics,
        );
        let inputs = self.inputs.iter().cloned().map(Tensor::from_inner);
        let batch = self.batch.with_flat(inputs.collect());
        let (read, loss_sum) = PassContext::from(self.computation).scope(|| {
            let outputs = self
                .task
                .forward(&model, &batch)
                .expect("earlier steps of this shape have run");
            let loss_sum = self.task.loss_sum(&outputs, &batch);
            (self.task.to_read(&outputs, &batch), loss_sum)
        });
        let weighted = match self.weight_factor {
            Some(factor) => loss_sum.clone().mul_scalar(factor),
            None => loss_sum.clone(),
        };
        let mean = weighted.mul_scalar(1.0 / self.divisor);
        let loss_sum = loss_sum.inner();
        let tail = tail(loss_sum.clone(), self.num_samples, false);
        let scalars = self.optimizer.picked(&self.scalars);
        let (own, _) = own_gradient(&self.optimizer, &model, mean, tail, &scalars);
        let new = tensors(&model, &self.layout, ORDER);
        let statistics = self.new_statistics.iter().zip(new);
        let passed = Passed {
            read: read.into_iter().map(Tensor::inner).collect(),
            loss_sum,
            own,
        };
        let written = statistics.map(|(at, new)| overwrite(at, new));
        (passed, written.collect())
    }

    /// Changes the parameters by a gradient that was summed over all ranks; returns the facts. If
    /// the step can be skipped, it keeps norm statistics or takes the `new` ones.
    fn update(&self, sum: Tensor<1>, new: &[Tensor<1>]) -> (Tensor<1>, Written) {
        let mut optimizer = self.optimizer.clone();
        let scalars = optimizer.picked(&self.scalars);
        let (_, facts) = update(&mut optimizer, sum, &scalars, self.can_skip);
        let mut at = self.optimizer.flat();
        let mut after = optimizer.flat();
        if self.can_skip {
            at.extend(self.statistics.iter().cloned());
            after.extend(optimizer.if_updated(self.statistics.clone(), new.to_vec()));
        }
        let written = at.into_iter().zip(after);
        (
            facts,
            written.map(|(at, new)| overwrite(&at, new)).collect(),
        )
    }
}

/// A captured step and the tensors that it reads and writes.
#[derive(Debug)]
struct CapturedTraining {
    /// The batch, flat, since a device may pad the rows of a matrix.
    inputs: Vec<Tensor<1>>,
    key: Key,
    /// As [`DeviceReplica::next_scalars`] returns them.
    scalars: Vec<Tensor<1>>,
    /// Parameters and moments.
    flat: Vec<Tensor<1>>,
    statistics: Vec<Tensor<1>>,
    layout: ParameterLayout,
    graphs: Graphs,
    latest: Latest,
}

impl CapturedTraining {
    /// Captures a step on such a batch. Values of model and optimizer stay, but lie where the
    /// captured step changes them. Returns `None` if the device captures nothing.
    fn capture<T: Task>(
        model: &mut T::Model,
        optimizer: &mut DeviceOptimizer,
        captures: Captures<'_, T>,
        key: Key,
        step: &Step,
    ) -> Option<Self> {
        let inputs = captures.inputs.iter().cloned().map(Tensor::inner);
        let inputs: Vec<_> = inputs.map(copied).collect();
        let device = inputs.first()?.device();
        // Counted on a copy: this is no update.
        let scalars = optimizer.clone().next_scalars(step, true).into_iter();
        let scalars: Vec<_> = scalars.map(|values| uploaded(values, &device)).collect();
        let layout = ParameterLayout::state(model);
        let statistics = tensors(model, &layout, ORDER).into_iter();
        let statistics: Vec<_> = statistics.map(copied).collect();
        let new_statistics: Vec<_> = match step.can_skip {
            true => statistics.iter().cloned().map(copied).collect(),
            false => statistics.clone(),
        };
        let flat: Vec<_> = optimizer.flat().into_iter().map(copied).collect();
        optimizer.replace_flat(&flat);
        let kept = || flat.iter().chain(&statistics).cloned();
        let before: Vec<_> = kept().map(copied).collect();
        wait(&device);

        let fixed = || FixedStep {
            task: Arc::clone(captures.task),
            model: model.clone(),
            optimizer: optimizer.clone(),
            computation: captures.computation,
            batch: captures.batch.clone(),
            inputs: inputs.clone(),
            layout: layout.clone(),
            statistics: statistics.clone(),
            new_statistics: new_statistics.clone(),
            scalars: scalars.clone(),
            weight_factor: step.weight_factor,
            divisor: step.divisor as f64,
            num_samples: step.num_own,
            can_skip: step.can_skip,
        };
        let graphs = if captures.is_whole {
            whole(fixed(), &device)
        } else {
            parts([fixed(), fixed()], &device)
        };
        let Some(graphs) = graphs else {
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
            inputs,
            key,
            scalars,
            flat,
            statistics,
            layout,
            graphs,
            latest: Latest::Both,
        })
    }

    /// Gives the next replay its batch and the scalars of its update. Keep the result until it is
    /// queued.
    fn give(&self, inputs: Vec<Tensor<1>>, scalars: Vec<Tensor<1>>) -> Written {
        let given = self.inputs.iter().zip(inputs);
        let given = given.map(|(at, input)| overwrite(at, input.inner()));
        let mut given: Vec<_> = given.collect();
        let scalars = self.scalars.iter().zip(scalars);
        given.extend(scalars.map(|(at, values)| overwrite(at, values)));
        given
    }

    /// Prepares a replay: takes what other steps made of model and optimizer, which from now on lie
    /// where the captured step changes them.
    fn enter<M: Module>(&mut self, model: &mut M, optimizer: &mut DeviceOptimizer) {
        if self.latest == Latest::Model {
            let at = self.flat.iter().chain(&self.statistics);
            let statistics = tensors(model, &self.layout, ORDER);
            let new = optimizer.flat().into_iter().chain(statistics);
            let taken: Vec<_> = at.zip(new).map(|(at, new)| overwrite(at, new)).collect();
            wait(&self.inputs[0].device());
            drop(taken);
            optimizer.replace_flat(&self.flat);
            *model = self.place(model.clone(), optimizer);
        }
        self.latest = Latest::Captured;
    }

    /// Returns `model` with what the replays made of it.
    fn place<M: Module>(&self, model: M, optimizer: &DeviceOptimizer) -> M {
        placed(model, optimizer, &self.layout, &self.statistics)
    }
}

/// Captures a step of one rank.
fn whole<T: Task>(step: FixedStep<T>, device: &Device) -> Option<Graphs> {
    let graph = CapturedStep::capture(device, move || {
        let (passed, mut written) = step.passes();
        let (facts, of_update) = step.update(passed.own.clone(), &written);
        written.extend(of_update);
        (passed, facts, written)
    });
    graph.map(|graph| Graphs::Whole(Box::new(graph)))
}

/// Captures the parts of a step before and after the sum over ranks.
fn parts<T: Task>([before, after]: [FixedStep<T>; 2], device: &Device) -> Option<Graphs> {
    let len = after.optimizer.placement().len() + TAIL;
    let sum = copied(Tensor::<1>::zeros([len], device));
    wait(device);
    let passes = CapturedStep::capture(device, move || before.passes())?;
    let at = sum.clone();
    let update = CapturedStep::capture(device, move || {
        after.update(at.clone(), &after.new_statistics)
    })?;
    Some(Graphs::Parts(Box::new(Parts {
        passes,
        sum,
        update,
    })))
}

/// Returns `model` on these parameters and norm statistics.
fn placed<M: Module>(
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
            let key = (vec![name as usize, 32], 1.0);
            if shapes.has_settled(&key) { 'o' } else { '.' }
        });
        assert_eq!(settled.collect::<String>(), ".......oo......o..");
    }
}
