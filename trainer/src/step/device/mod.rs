//! The replica of a rank on its device: gradients, parameters and moments stay there, flat; scores
//! are read a step later.
//!
//! In: scores, losses. Out: a model with updated parameters; the results of the step before.
//! Invariant: every rank makes one sum per step and reads the same [`Facts`] after the same step,
//! so all ranks stop, skip or fail together. The device keeps its values in a step that is skipped,
//! and picks the next step's scalars by the outcome, which the host reads later. Any other step
//! that is not finite ends the run before something is saved, since saving waits for all results.

mod captured;
mod half_sum;
mod optimizer;
mod parameter_sums;
mod placement;
mod sum;

use std::collections::VecDeque;
use std::sync::Arc;

use anyhow::{Result, anyhow, ensure};
use burn::module::Module;
use burn::tensor::{Device, FloatDType, Tensor, TensorData};
use datasets::MicroBatch;
use distributed::gradients::{ReductionState, Traffic, locate_non_finite};
use distributed::replica::take_gradients;
use distributed::watchdog::Phase;
use distributed::{CollectiveError, Communicator};

use self::captured::Capture;
use self::optimizer::DeviceOptimizer;
pub(super) use self::placement::{FlatPlacement, ORDER};
use self::sum::DeviceSum;
use super::config::{Agreed, OptimizerState, Step, StepConfig};
use crate::config::ReductionChoice;
use crate::measure::metrics::ScoreSums;
use crate::measure::timer::Timer;
use crate::model::floats;
use crate::step::readback::Readback;
use crate::task::{BatchOf, PassSize, Scores, Task, UnreadPass};

/// Steps whose results may be unread: the next one is queued while the device computes one.
pub(super) const MOST_UNREAD: usize = 1;

/// Values after the gradient in the tensor that is summed over ranks: loss, samples, stop request.
const TAIL: usize = 3;

/// The gradients, scores and parameters of one rank, which stay on its device.
#[derive(Debug)]
pub(super) struct DeviceReplica {
    pub(super) optimizer: DeviceOptimizer,
    capture: Option<Capture>,
    sum: DeviceSum,
    communicator: Arc<dyn Communicator>,
    /// Scalars of the step under way.
    scalars: Vec<Tensor<1>>,
    /// Results of the forward passes of the step under way.
    pub(super) outputs: Vec<Output>,
    /// This rank's gradient with its tail, added up over micro-steps.
    own: Option<Tensor<1>>,
    /// The last step's gradient, if it was kept.
    kept: Option<Tensor<1>>,
    /// The last step, until its update is queued too.
    unread: Option<UnreadStep>,
    /// Steps whose results are being read or were read.
    sent: VecDeque<SentStep>,
    readback: Readback<Results, Result<Answer>>,
    /// Results that were read.
    answers: VecDeque<Answer>,
    /// True if a rank requested a stop in a step that was read since the last step ended.
    stop: bool,
    /// Bytes that this rank sent in the step under way.
    traffic: Traffic,
    /// Parameters without a gradient in the first backward pass, as indices in the layout.
    unused: Option<Vec<usize>>,
}

/// The results of a forward pass, detached.
#[derive(Debug)]
pub(super) struct Output {
    /// As [`Task::to_read`] returned them.
    pub(super) read: Vec<Tensor<1>>,
    pub(super) loss_sum: Tensor<1>,
    pub(super) size: PassSize,
}

/// A step that may turn out not to be finite.
#[derive(Debug)]
struct UnreadStep {
    sent: SentStep,
    outputs: Vec<Output>,
    /// As [`update`] returns them.
    facts: Tensor<1>,
}

/// A step that was sent, which explains a value that is not finite.
#[derive(Debug)]
struct SentStep {
    step: u64,
    /// Samples of all ranks, as this rank knows them.
    num_global: Option<usize>,
    /// This rank's gradient with its tail.
    own: Tensor<1>,
}

/// A step whose results were received.
#[derive(Debug)]
pub(super) struct Received {
    pub(super) step: u64,
    pub(super) scores: Option<ScoreSums>,
    /// The value that was not finite.
    pub(super) non_finite: Option<CollectiveError>,
}

/// A step's results that the device may still be computing.
struct Results {
    passes: Vec<UnreadPass>,
    facts: TensorData,
}

#[derive(Debug)]
struct Answer {
    scores: ScoreSums,
    facts: Facts,
}

/// Facts of a step over all ranks, equal on all of them.
#[derive(Clone, Copy, Debug)]
struct Facts {
    loss_sum: f32,
    num_samples: f32,
    /// Number of ranks' passes that request a stop.
    stop: f32,
    /// 0, or NaN if the gradient or its norm is not finite.
    zero: f32,
}

impl Facts {
    fn are_finite(&self) -> bool {
        self.loss_sum.is_finite() && self.zero.is_finite()
    }
}

impl DeviceReplica {
    /// Returns a replica at rest with the parameters of `model`.
    /// Collective: all ranks.
    ///
    /// # Errors
    /// If a collective fails.
    pub(super) fn new<T: Task>(
        task: &Arc<T>,
        config: &StepConfig,
        model: &T::Model,
        communicator: &Arc<dyn Communicator>,
        device: &Device,
    ) -> Result<Self> {
        let task = Arc::clone(task);
        let optimizer = DeviceOptimizer::new(config, model, device);
        Ok(Self {
            sum: DeviceSum::new(config, communicator, optimizer.placement())?,
            optimizer,
            capture: Capture::new(config, device),
            communicator: Arc::clone(communicator),
            scalars: Vec::new(),
            outputs: Vec::new(),
            own: None,
            kept: None,
            unread: None,
            sent: VecDeque::new(),
            readback: Readback::start(move |results: Results| results.read(&*task)),
            answers: VecDeque::new(),
            stop: false,
            traffic: Traffic::default(),
            unused: None,
        })
    }

    /// Replays a captured step, if one fits. Returns true if this was the step.
    /// Collective: all ranks, of which each may replay or not.
    pub(super) fn replay<T: Task>(
        &mut self,
        task: &Arc<T>,
        model: &mut T::Model,
        batches: &[MicroBatch<BatchOf<T>>],
        step: &Step,
        timer: &Timer,
    ) -> Result<bool> {
        self.kept = None;
        let Some(mut capture) = self.capture.take() else {
            return Ok(false);
        };
        let replayed = capture.replay(task, model, self, batches, step, timer);
        self.capture = Some(capture);
        replayed
    }

    /// Begins a step launch by launch.
    pub(super) fn begin(&mut self, step: &Step) {
        let scalars = self.next_scalars(step);
        self.scalars = self.optimizer.picked(&scalars);
    }

    /// Returns the next step's scalars, as [`DeviceOptimizer::next_scalars`] does, on the device.
    fn next_scalars(&mut self, step: &Step) -> Vec<Tensor<1>> {
        let is_unread = !self.sent.is_empty();
        let scalars = self.optimizer.next_scalars(step, is_unread).into_iter();
        let device = self.optimizer.placement().device();
        scalars.map(|values| uploaded(values, device)).collect()
    }

    pub(super) fn backward<M: Module>(&mut self, model: &M, loss: Option<Tensor<1>>, step: &Step) {
        let (Some(loss), Some(output)) = (loss, self.outputs.last()) else {
            return;
        };
        let loss_sum = output.loss_sum.clone();
        let tail = tail(loss_sum, output.size.num_samples, step.context.stop);
        let (own, unused) = own_gradient(&self.optimizer, model, loss, tail, &self.scalars);
        self.unused.get_or_insert(unused);
        self.own = Some(match self.own.take() {
            Some(sum) => sum + own,
            None => own,
        });
    }

    /// Updates the parameters with the mean gradient over all ranks.
    /// Collective: all ranks.
    ///
    /// # Errors
    /// If a collective failed.
    pub(super) fn update<M: Module>(
        &mut self,
        model: &mut M,
        step: &Step,
        timer: &Timer,
    ) -> Result<()> {
        let own = self.own.take().unwrap_or_else(|| {
            let placement = self.optimizer.placement();
            let zeros = |len| Tensor::zeros([len], placement.device());
            let mut parts = vec![zeros(placement.len())];
            parts.extend(tail(zeros(1), 0, step.context.stop));
            Tensor::cat(parts, 0)
        });
        let sum = self.summed(own.clone(), timer)?;
        let _optimizer = timer.enter(Phase::Optimizer);
        let scalars = std::mem::take(&mut self.scalars);
        let (mean, facts) = update(&mut self.optimizer, sum, &scalars, step.can_skip);
        self.kept = step.context.keeps_gradients.then_some(mean);
        let outputs = std::mem::take(&mut self.outputs);
        self.end(step, own, outputs, facts);
        *model = self.optimizer.place(model.clone());
        Ok(())
    }

    /// Keeps what is read of a step, after its update.
    fn end(&mut self, step: &Step, own: Tensor<1>, outputs: Vec<Output>, facts: Tensor<1>) {
        if let DeviceSum::Half(sum) = &mut self.sum
            && step.can_skip
        {
            sum.keep_if_updated(&self.optimizer);
        }
        self.unread = Some(UnreadStep::new(step, own, outputs, facts));
    }

    /// Returns the sum of a gradient with its tail over all ranks.
    /// Collective: all ranks.
    fn summed(&mut self, own: Tensor<1>, timer: &Timer) -> Result<Tensor<1>> {
        let _waiting = timer.enter(Phase::Waiting);
        let (sum, traffic) = self.sum.sum(own, timer)?;
        self.traffic = traffic;
        Ok(sum)
    }

    /// Has the last step read, and waits until at most `most_unread` steps are unread.
    fn read_back(&mut self, most_unread: usize) -> Result<()> {
        if let Some(unread) = self.unread.take() {
            let outputs = unread.outputs.into_iter();
            self.readback.send(Results {
                passes: outputs
                    .map(|output| UnreadPass::new(output.read, output.loss_sum, output.size))
                    .collect(),
                facts: unread.facts.into_data(),
            });
            self.sent.push_back(unread.sent);
        }
        while self.readback.num_unanswered() > most_unread
            && let Some(answer) = self.sum.receive(&mut self.readback)?
        {
            self.answers.push_back(answer?);
        }
        Ok(())
    }

    /// Waits until at most `most_unread` steps are unread. Returns the other one, if there is one.
    /// Collective: all ranks, with equal `most_unread`.
    ///
    /// # Errors
    /// If ranks diverged or a collective failed.
    pub(super) fn receive(
        &mut self,
        most_unread: usize,
        timer: &Timer,
    ) -> Result<Option<Received>> {
        let _backward = timer.enter(Phase::Backward);
        self.read_back(most_unread)?;
        let Some(Answer { scores, facts }) = self.answers.pop_front() else {
            return Ok(None);
        };
        let sent = self.sent.pop_front().expect("an answer has its step");
        self.stop |= facts.stop > 0.0;
        if !facts.are_finite() {
            // `check` reads a gradient, which waits for a sum in the queue. The watchdog knows of
            // this wait only here.
            self.read_back(0)?;
        }
        let non_finite = self.check(&sent, scores.loss_sum as f32, facts)?;
        Ok(Some(Received {
            step: sent.step,
            scores: (scores.num_samples > 0).then_some(scores),
            non_finite,
        }))
    }

    /// Returns the value of a step that was not finite, and checks that all ranks took the same
    /// step. `loss_sum` is this rank's.
    /// Collective: all ranks.
    fn check(
        &self,
        sent: &SentStep,
        loss_sum: f32,
        facts: Facts,
    ) -> Result<Option<CollectiveError>> {
        if !facts.are_finite() {
            let placement = self.optimizer.placement();
            let gradients = placement.read(&sent.own);
            let error = locate_non_finite(
                &*self.communicator,
                sent.step,
                loss_sum,
                &gradients,
                placement.layout(),
            )?;
            return Ok(Some(error));
        }
        // The sum of larger numbers is not exact.
        let expected = sent.num_global.filter(|expected| *expected < 1 << 24);
        ensure!(
            expected.is_none_or(|expected| facts.num_samples == expected as f32),
            "step {}: ranks diverged: expected {expected:?} samples on all ranks, got {}",
            sent.step + 1,
            facts.num_samples
        );
        Ok(None)
    }

    /// Notes that the device made no update in the last step that was received.
    pub(super) fn note_skip(&mut self) {
        self.optimizer.note_skip();
        if self.sent.is_empty() {
            self.kept = None;
        }
    }

    /// Gives `model` what replays have changed.
    pub(super) fn update_model<M: Module>(&mut self, model: &mut M) {
        if let Some(capture) = &mut self.capture {
            capture.update_model(model, &self.optimizer);
        }
    }

    /// Takes what the ranks agreed on in the steps that were read, and what this rank sent in the
    /// last one.
    pub(super) fn agreed(&mut self) -> Agreed {
        Agreed {
            stop: std::mem::take(&mut self.stop),
            num_samples: 0,
            traffic: std::mem::take(&mut self.traffic),
        }
    }

    /// Replaces the parameters by those of `model`, and the state by a saved one.
    pub(super) fn restore<M: Module>(&mut self, model: &M, state: &OptimizerState) {
        self.optimizer.restore(model, state);
        if let Some(capture) = &mut self.capture {
            capture.reset();
        }
    }

    pub(super) fn take_gradients(&mut self) -> Option<Vec<f32>> {
        let gradient = self.kept.take()?;
        Some(self.optimizer.placement().read(&gradient))
    }

    pub(super) fn unused_parameters(&self) -> Vec<&str> {
        let entries = self.optimizer.placement().layout().entries();
        let unused = self.unused.iter().flatten();
        unused.map(|&index| entries[index].path.as_str()).collect()
    }

    /// Returns the state of the sum between two steps.
    pub(super) fn reduction_state(&self) -> Option<ReductionState> {
        match &self.sum {
            DeviceSum::Half(sum) => Some(sum.state(self.optimizer.placement())),
            _ => None,
        }
    }

    pub(super) fn restore_reduction(&mut self, state: &ReductionState) {
        if let DeviceSum::Half(sum) = &mut self.sum {
            sum.restore(self.optimizer.placement(), state);
        }
    }

    /// Describes the route of the gradients to the other ranks.
    pub(super) fn gradient_route(&self) -> String {
        let is_captured = self.capture.as_ref().is_some_and(Capture::is_in_use);
        let recordings = match (is_captured, self.sum.is_capturable()) {
            (false, _) => "",
            (true, true) => ", a step as one recording",
            (true, false) => ", a step as two recordings",
        };
        format!("{}, updated on the device{recordings}", self.sum.route())
    }

    /// Returns the algorithm of the sum if the configuration leaves it open.
    pub(super) fn reduction(&self) -> ReductionChoice {
        self.sum.chosen()
    }

    /// Returns a warning if NCCL was expected to sum and does not.
    pub(super) fn warning(&self) -> Option<String> {
        self.sum.warning()
    }

    /// Ends the replica.
    /// Collective: all ranks.
    pub(super) fn finish(self) -> Result<()> {
        // A rank may close NCCL's connection only when no other rank uses it.
        Ok(self.communicator.barrier()?)
    }
}

impl UnreadStep {
    fn new(step: &Step, own: Tensor<1>, outputs: Vec<Output>, facts: Tensor<1>) -> Self {
        Self {
            sent: SentStep {
                step: step.context.step,
                num_global: step.num_global,
                own,
            },
            outputs,
            facts,
        }
    }
}

impl Results {
    fn read<T: Task>(self, task: &T) -> Result<Answer> {
        let mut scores = Scores::default();
        for pass in self.passes {
            pass.add_to(task, &mut scores)?;
        }
        let [loss_sum, num_samples, stop, zero] = floats(self.facts)?
            .try_into()
            .map_err(|facts: Vec<f32>| anyhow!("facts of a step: expected 4, got {facts:?}"))?;
        Ok(Answer {
            scores: scores.sums,
            facts: Facts {
                loss_sum,
                num_samples,
                stop,
                zero,
            },
        })
    }
}

/// Returns what follows the gradient of a pass: `[TAIL]` in all.
fn tail(loss_sum: Tensor<1>, num_samples: usize, stop: bool) -> Vec<Tensor<1>> {
    // Launches, as a captured step cannot contain uploads.
    let number = |value: f64| Tensor::full([1], value, &loss_sum.device());
    let numbers = [num_samples as f64, f64::from(u8::from(stop))].map(number);
    let loss_sum = loss_sum.sum().cast(FloatDType::F32);
    [vec![loss_sum], numbers.to_vec()].concat()
}

/// Differentiates a loss. Returns the gradient of all parameters with `tail`, and the parameters
/// without a gradient, as indices in the layout.
fn own_gradient<M: Module>(
    optimizer: &DeviceOptimizer,
    model: &M,
    mut loss: Tensor<1>,
    tail: Vec<Tensor<1>>,
    scalars: &[Tensor<1>],
) -> (Tensor<1>, Vec<usize>) {
    let placement = optimizer.placement();
    let scale = optimizer.loss_scale(scalars);
    if let Some(scale) = scale {
        loss = loss.cast(FloatDType::F32) * Tensor::from_inner(scale.clone());
    }
    let gradients = take_gradients(model, placement.layout(), ORDER, loss.backward());
    let indices = 0..gradients.len();
    let unused = indices.filter(|&index| gradients[index].is_none());
    let unused = unused.collect();
    let Some(scale) = scale else {
        return (placement.joined(gradients, tail), unused);
    };
    // One division for all. The scale is a power of two, so nothing is rounded.
    let tail = tail.into_iter().map(|value| value * scale.clone());
    let own = placement.joined(gradients, tail.collect());
    (own / scale.clone(), unused)
}

/// Updates parameters and moments with a sum over all ranks. Returns the mean gradient within the
/// limit, and the [`Facts`]. If the step can be skipped and is not finite, parameters and moments
/// stay.
fn update(
    optimizer: &mut DeviceOptimizer,
    sum: Tensor<1>,
    scalars: &[Tensor<1>],
    can_skip: bool,
) -> (Tensor<1>, Tensor<1>) {
    let len = optimizer.placement().len();
    let tail = sum.clone().slice(len..len + TAIL);
    let (mean, zero) = optimizer.clipped(sum.slice(0..len));
    let before = can_skip.then(|| optimizer.flat());
    optimizer.update(scalars, mean.clone());
    if let Some(before) = before {
        let loss_sum = tail.clone().slice(0..1);
        optimizer.keep_if_finite(before, [loss_sum, zero.clone()]);
    }
    (mean, Tensor::cat(vec![tail, zero], 0))
}

/// Returns a tensor of these values.
fn uploaded(values: Vec<f64>, device: &Device) -> Tensor<1> {
    let values: Vec<f32> = values.into_iter().map(|value| value as f32).collect();
    let len = values.len();
    Tensor::from_data(TensorData::new(values, [len]), device)
}
