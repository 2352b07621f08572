//! The replica of a rank that trains alone on its device: gradients, parameters and moments stay
//! there, flat; scores are read a step later.
//!
//! In: scores, losses. Out: a model with updated parameters; the scores of the step before.
//! Invariant: a step that may be skipped is known to be finite before its update. Any other step
//! that is not finite ends the run before something is saved, since saving waits for all results.

mod captured;
mod optimizer;
mod placement;

use std::sync::Arc;

use anyhow::{Result, anyhow};
use burn::module::Module;
use burn::tensor::{Device, Tensor, TensorData};
use datasets::MicroBatch;
use distributed::gradients::locate_non_finite;
use distributed::replica::{ParameterLayout, take_gradients};
use distributed::watchdog::Phase;
use distributed::{CollectiveError, ROOT};

use self::captured::Capture;
use self::optimizer::DeviceOptimizer;
use self::placement::{FlatPlacement, ORDER};
use super::config::{Clip, Step, StepConfig};
use crate::measure::metrics::ScoreSums;
use crate::measure::timer::Timer;
use crate::model::floats;
use crate::step::readback::Readback;
use crate::task::{BatchOf, PassSize, Scores, Task, UnreadPass};

/// Steps whose results may be unread: the next one is queued while the device computes one.
pub(super) const MOST_UNREAD: usize = 1;

/// The gradients, scores and parameters of one rank that no other rank waits for.
#[derive(Debug)]
pub(super) struct DeviceReplica {
    pub(super) optimizer: DeviceOptimizer,
    capture: Option<Capture>,
    /// Results of the forward passes of the step under way.
    pub(super) outputs: Vec<Output>,
    sum: Option<Tensor<1>>,
    /// The last step's gradient, if it was kept.
    kept: Option<Tensor<1>>,
    /// The last step, until its update is queued too.
    unread: Option<UnreadStep>,
    readback: Readback<Results, Result<Scored>>,
    /// Scores that were read and not returned.
    read: Option<ScoreSums>,
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
    step: u64,
    outputs: Vec<Output>,
    /// As [`clipped`] makes it.
    zero: Tensor<1>,
    gradient: Tensor<1>,
}

/// A step's results that the device may still be computing.
struct Results {
    step: u64,
    passes: Vec<UnreadPass>,
    zero: TensorData,
    gradient: Tensor<1>,
}

struct Scored {
    sums: ScoreSums,
    /// The value that was not finite, if there was one.
    fault: Option<CollectiveError>,
}

impl DeviceReplica {
    /// Returns a replica at rest with the parameters of `model`.
    ///
    /// # Errors
    /// If the device has no such optimizer.
    pub(super) fn new<T: Task>(
        task: &Arc<T>,
        config: &StepConfig,
        model: &T::Model,
        device: &Device,
    ) -> Result<Self> {
        let layout = ParameterLayout::new(model);
        let optimizer = DeviceOptimizer::new(config.optimizer, &layout, model, device);
        let optimizer = optimizer.ok_or_else(|| {
            let got = config.optimizer;
            anyhow!("optimizer: expected SGD or AdamW on a device, got {got:?}")
        })?;
        let task = Arc::clone(task);
        let placement = optimizer.placement().clone();
        Ok(Self {
            capture: Capture::new(config, device),
            optimizer,
            outputs: Vec::new(),
            sum: None,
            kept: None,
            unread: None,
            readback: Readback::start(move |results: Results| results.read(&*task, &placement)),
            read: None,
            unused: None,
        })
    }

    /// Replays a captured step, if one fits. Returns true if this was the step.
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

    pub(super) fn is_captured(&self) -> bool {
        self.capture.as_ref().is_some_and(Capture::is_in_use)
    }

    pub(super) fn backward<M: Module>(&mut self, model: &M, loss: Option<Tensor<1>>, step: &Step) {
        let Some(loss) = loss else { return };
        let placement = self.optimizer.placement();
        let gradients = take_gradients(model, placement.layout(), ORDER, loss.backward());
        self.unused.get_or_insert_with(|| {
            let indices = 0..gradients.len();
            indices
                .filter(|&index| gradients[index].is_none())
                .collect()
        });
        let mut gradient = placement.joined(gradients);
        if step.loss_scale != 1 {
            // A power of two: nothing is rounded.
            gradient = gradient / f64::from(step.loss_scale);
        }
        self.sum = Some(match self.sum.take() {
            Some(sum) => sum + gradient,
            None => gradient,
        });
    }

    /// Updates the parameters with the mean gradient.
    ///
    /// # Errors
    /// If the step may be skipped and something was not finite in it.
    pub(super) fn update<M: Module>(
        &mut self,
        model: &mut M,
        step: &Step,
        clip: Option<Clip>,
        timer: &Timer,
    ) -> Result<()> {
        let Some(gradient) = self.sum.take() else {
            return Ok(());
        };
        let (mean, zero) = clipped(gradient.clone(), clip);
        self.kept = step.context.keeps_gradients.then(|| mean.clone());
        self.unread = Some(UnreadStep {
            step: step.context.step,
            outputs: std::mem::take(&mut self.outputs),
            zero,
            gradient,
        });
        if step.can_skip {
            self.settle(timer)?;
        }
        let _optimizer = timer.enter(Phase::Optimizer);
        self.optimizer.update(step.context.learning_rate, mean);
        *model = self.optimizer.place(model.clone());
        Ok(())
    }

    /// Has the last step read, and waits until at most `most_unread` steps are unread. Returns the
    /// scores that were read.
    ///
    /// # Errors
    /// If something in a step was not finite; its scores are returned next.
    pub(super) fn receive(
        &mut self,
        most_unread: usize,
        timer: &Timer,
    ) -> Result<Option<ScoreSums>> {
        let _backward = timer.enter(Phase::Backward);
        if let Some(unread) = self.unread.take() {
            let outputs = unread.outputs.into_iter();
            self.readback.send(Results {
                step: unread.step,
                passes: outputs
                    .map(|output| UnreadPass::new(output.read, output.loss_sum, output.size))
                    .collect(),
                zero: unread.zero.into_data(),
                gradient: unread.gradient,
            });
        }
        while self.readback.num_unanswered() > most_unread
            && let Some(scored) = self.readback.receive()
        {
            let Scored { sums, fault } = scored?;
            *self.read.get_or_insert_default() += sums;
            if let Some(fault) = fault {
                return Err(fault.into());
            }
        }
        Ok(self.read.take())
    }

    /// Waits until no thread reads from the device; the scores are returned by the next
    /// [`receive`](Self::receive).
    fn settle(&mut self, timer: &Timer) -> Result<()> {
        self.read = self.receive(0, timer)?;
        Ok(())
    }

    /// Gives `model` what replays have changed, and returns all scores that were not returned.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub(super) fn wait<M: Module>(
        &mut self,
        model: &mut M,
        timer: &Timer,
    ) -> Result<Option<ScoreSums>> {
        if let Some(capture) = &mut self.capture {
            capture.update_model(model, &self.optimizer);
        }
        self.receive(0, timer)
    }

    /// Replaces the parameters by those of `model`, and the state by a saved one.
    pub(super) fn restore<M: Module>(&mut self, model: &M, state: &super::config::OptimizerState) {
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
}

impl Results {
    fn read<T: Task>(self, task: &T, placement: &FlatPlacement) -> Result<Scored> {
        let mut scores = Scores::default();
        for pass in self.passes {
            pass.add_to(task, &mut scores)?;
        }
        let sums = scores.sums;
        let is_gradient_finite = floats(self.zero)?.iter().all(|zero| zero.is_finite());
        let fault = if !sums.loss_sum.is_finite() {
            Some(CollectiveError::NonFinite {
                step: self.step,
                ranks: vec![ROOT],
                parameter: None,
                value: f32::NAN,
            })
        } else if !is_gradient_finite {
            let gradient = placement.read(&self.gradient);
            Some(locate_non_finite(
                self.step,
                ROOT,
                &gradient,
                placement.layout(),
            ))
        } else {
            None
        };
        Ok(Scored { sums, fault })
    }
}

/// Returns `gradient` within the limit; and zero, `[1]`, or NaN if a value or the norm is not
/// finite.
fn clipped(gradient: Tensor<1>, clip: Option<Clip>) -> (Tensor<1>, Tensor<1>) {
    let zero = (gradient.clone() * 0.0).sum();
    let limit = match clip {
        None => return (gradient, zero),
        Some(Clip::Value(limit)) => return (gradient.clamp(-limit, limit), zero),
        Some(Clip::Norm(limit)) => limit,
    };
    let norm = (gradient.clone() * gradient.clone()).sum().sqrt();
    let factor = (norm.clone().recip() * limit).clamp_max(1.0);
    (gradient * factor, zero + norm * 0.0)
}
