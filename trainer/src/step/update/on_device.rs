//! A rank that trains alone on a device: gradients and parameters stay there, and results are read a step later.
//!
//! In: the passes of a step. Out: a changed model; the scores of the step before.
//! Invariant: where a step may be skipped it is known to be finite before its update; elsewhere one that is not ends the run before
//! anything is saved, since whoever saves waits first.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;

use anyhow::{Result, anyhow};
use burn::module::Module;
use burn::tensor::{Device, Tensor, TensorData};
use datasets::{DeviceBatch, ImageBatch, Targets};
use distributed::{
    CollectiveError, ROOT, gradients::locate_non_finite, reduction::Traffic,
    replica::ParameterLayout, watchdog::Phase,
};

use super::super::{Clip, StepConfig};
use super::recorded::{Made, RecordedStep, Shapes, Way};
use super::{Finished, MicroStep, Output, Replica, Step, StepPlan, SyncMode, Update};
use crate::measure::metrics::ScoreSums;
use crate::measure::timer::Timer;
use crate::model::loss::Loss;
use crate::model::{ImageClassifier, UnreadScore, floats};
use crate::step::optimizer::{DeviceOptimizer, OptimizerState};
use crate::step::readback::Readback;

/// Steps whose results are not read yet: while the device computes one, the next is given to it.
const MOST_UNREAD: usize = 1;

/// What a device keeps of the training on it.
#[derive(Debug)]
pub(super) struct OnDevice {
    optimizer: DeviceOptimizer,
    layout: ParameterLayout,
    clip: Option<Clip>,
    /// Of the step under way: what its forward passes gave, and the sum of its gradients.
    outputs: Vec<Output>,
    gradient: Option<Tensor<1>>,
    /// Of the last step, if that was to keep it.
    kept: Option<Tensor<1>>,
    readback: Readback<Results, Result<Scored>>,
    /// In the order of the readback.
    unread: VecDeque<Unread>,
    /// Of steps whose results were read before their turn.
    early: Option<ScoreSums>,
    loss: Arc<dyn Loss>,
    /// Whether this device, and this training, may replay steps.
    records: bool,
    shapes: Shapes,
    recorded: Option<(RecordedStep, Latest)>,
}

/// Where a training stands that steps of both kinds change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Latest {
    /// In the tensors of the recording alone.
    Recording,
    /// In the model and the optimizer alone.
    Model,
    Both,
}

/// A step that may turn out not to be finite.
#[derive(Debug)]
struct Unread {
    step: u64,
    gradient: Tensor<1>,
}

/// A step's results that the device may still be computing.
struct Results {
    scores: Vec<UnreadScore>,
    zero: TensorData,
}

/// A step's results.
struct Scored {
    sums: ScoreSums,
    is_gradient_finite: bool,
}

impl OnDevice {
    /// Over the parameters of `model`, on the plain `device`.
    ///
    /// # Errors
    /// When the optimizer updates in main memory alone.
    pub(super) fn new<M: Module>(config: &StepConfig, model: &M, device: &Device) -> Result<Self> {
        let layout = ParameterLayout::new(model);
        let optimizer = DeviceOptimizer::new(config.optimizer, &layout, model, device);
        let optimizer = optimizer.ok_or_else(|| {
            anyhow!(
                "optimizer: expected SGD or AdamW on a device, got {:?}",
                config.optimizer
            )
        })?;
        Ok(Self {
            optimizer,
            layout,
            clip: config.clip,
            outputs: Vec::new(),
            gradient: None,
            kept: None,
            readback: Readback::start(Results::read),
            unread: VecDeque::new(),
            early: None,
            loss: Arc::clone(&config.loss),
            // A device without memory of its own launches no kernels that could be recorded.
            records: !layers::backend::Switches::current().no_capture
                && config.loss.is_recordable()
                && device.memory_pool_usage().is_some(),
            shapes: Shapes::default(),
            recorded: None,
        })
    }

    /// Gives the update to the device.
    fn update<M: Module>(
        &mut self,
        model: &mut M,
        learning_rate: f64,
        gradient: Tensor<1>,
        timer: &Timer,
    ) {
        let _optimizer = timer.enter(Phase::Optimizer);
        self.optimizer.update(learning_rate, gradient);
        *model = self.optimizer.place(model.clone());
    }

    /// Records a step on such a batch, in the place of what was recorded before.
    fn record<M: ImageClassifier>(
        &mut self,
        model: &mut M,
        images: &Tensor<4>,
        targets: &Targets,
        timer: &Timer,
    ) -> Result<()> {
        self.leave_recording(model);
        self.recorded = None;
        // No thread may read while the device records.
        self.early = self.receive(0, timer)?;
        let how = (self.clip, Arc::clone(&self.loss));
        let batch = (images.clone(), targets.labels.clone());
        let recorded = RecordedStep::record(model, &mut self.optimizer, how, batch);
        self.records = recorded.is_some();
        self.recorded = recorded.map(|step| (step, Latest::Both));
        Ok(())
    }

    /// Takes what replays changed into the model.
    fn catch_up<M: ImageClassifier>(&mut self, model: &mut M) {
        if let Some((step, latest @ Latest::Recording)) = &mut self.recorded {
            *model = step.place(model.clone(), &self.optimizer);
            *latest = Latest::Both;
        }
    }

    /// Before a step that is none of the recorded.
    fn leave_recording<M: ImageClassifier>(&mut self, model: &mut M) {
        self.catch_up(model);
        if let Some((_, latest)) = &mut self.recorded {
            *latest = Latest::Model;
        }
    }

    /// Has a step's results read, now that all of it is with the device, so that this has work while the step before is waited for; whose
    /// scores.
    fn leave_unread(
        &mut self,
        unread: Unread,
        results: Results,
        timer: &Timer,
    ) -> Result<Option<ScoreSums>> {
        self.unread.push_back(unread);
        self.readback.send(results);
        self.receive(MOST_UNREAD, timer)
    }

    /// Reads the results of steps until so many are unread; the scores of those that were read.
    fn receive(&mut self, most_unread: usize, timer: &Timer) -> Result<Option<ScoreSums>> {
        let _backward = timer.enter(Phase::Backward);
        let mut sums = self.early.take();
        while self.unread.len() > most_unread {
            let Some((unread, scored)) = self.unread.pop_front().zip(self.readback.receive())
            else {
                break;
            };
            let scored = scored?;
            if let Some(fault) = scored.fault(unread, &self.optimizer, &self.layout)? {
                return Err(fault.into());
            }
            *sums.get_or_insert_with(ScoreSums::default) += scored.sums;
        }
        Ok(sums)
    }
}

impl<M: ImageClassifier> Update<M> for OnDevice {
    fn replay(
        &mut self,
        model: &mut M,
        batches: &[DeviceBatch],
        step: &Step,
        timer: &Timer,
    ) -> Result<Option<Finished>> {
        let can_replay = !step.can_skip
            && step.loss_scale == 1
            && !step.context.keeps_gradients
            && step.num_own > 0;
        let recorded = self.recorded.as_ref().map(|(step, _)| step.shape());
        let way = match batches {
            [batch] if can_replay && self.records && model.is_recordable() => {
                self.shapes.next(batch, recorded)
            }
            _ => Way::Plain,
        };
        let (Way::Record | Way::Replay, [batch]) = (way, batches) else {
            self.leave_recording(model);
            return Ok(None);
        };
        let _forward = timer.enter(Phase::Forward);
        let ImageBatch { images, targets } = batch.clone().into_images();
        if targets.mixed.is_some() {
            self.records = false;
        } else if way == Way::Record {
            self.record(model, &images, &targets, timer)?;
        }
        let Some((recorded, latest)) = self.recorded.as_mut().filter(|_| self.records) else {
            self.leave_recording(model);
            return Ok(None);
        };
        if *latest == Latest::Model {
            recorded.take(model, &mut self.optimizer);
        }
        (*latest, self.kept) = (Latest::Recording, None);
        let Made {
            logits,
            loss_sum,
            zero,
            gradient,
        } = recorded.replay(
            images,
            targets.labels,
            self.optimizer.next_scalars(step.context.learning_rate),
        );
        let unread = Unread {
            step: step.context.step,
            gradient,
        };
        let output = Output::new(logits, loss_sum, batch.labels.clone());
        let scores = self.leave_unread(unread, Results::new(vec![output], zero), timer)?;
        Ok(Some(Finished {
            stop: step.context.stop,
            scores,
            ..Finished::default()
        }))
    }

    fn route(&self) -> &'static str {
        match self.recorded {
            Some(_) if self.records => {
                "none, one rank, updated on the device, a step as one recording"
            }
            _ => "none, one rank, updated on the device",
        }
    }

    fn begin(&mut self, _: &M, step: &Step) -> StepPlan {
        // Alone it has all samples.
        StepPlan::of_own_samples(step, SyncMode::Local)
    }

    fn end_forward(&mut self, _: &mut M, output: Option<Output>) -> Result<()> {
        self.outputs.extend(output);
        Ok(())
    }

    fn backward(&mut self, model: &M, loss: Option<Tensor<1>>, step: &Step, _: &MicroStep) {
        let Some(loss) = loss else { return };
        let mut gradient = self.optimizer.gradient(model, loss.backward());
        if step.loss_scale != 1 {
            // A power of two: nothing is rounded.
            gradient = gradient / f64::from(step.loss_scale);
        }
        self.gradient = Some(match self.gradient.take() {
            Some(sum) => sum + gradient,
            None => gradient,
        });
    }

    fn finish(
        &mut self,
        model: &mut M,
        step: &Step,
        _: &StepPlan,
        timer: &Timer,
    ) -> Result<Finished> {
        let stop = step.context.stop;
        let outputs = std::mem::take(&mut self.outputs);
        let Some(gradient) = self.gradient.take() else {
            return Ok(Finished {
                stop,
                ..Finished::default()
            });
        };
        let (clipped, zero) = clipped(gradient.clone(), self.clip);
        self.kept = step.context.keeps_gradients.then(|| clipped.clone());
        let unread = Unread {
            step: step.context.step,
            gradient,
        };
        if step.can_skip {
            let scored = {
                let _backward = timer.enter(Phase::Backward);
                Results::new(outputs, zero).read()?
            };
            if let Some(fault) = scored.fault(unread, &self.optimizer, &self.layout)? {
                return Ok(Finished::not_finite(
                    fault,
                    Some(scored.sums),
                    Traffic::default(),
                    stop,
                ));
            }
            self.update(model, step.context.learning_rate, clipped, timer);
            return Ok(Finished {
                stop,
                scores: Some(scored.sums),
                ..Finished::default()
            });
        }
        self.update(model, step.context.learning_rate, clipped, timer);
        let scores = self.leave_unread(unread, Results::new(outputs, zero), timer)?;
        Ok(Finished {
            stop,
            scores,
            ..Finished::default()
        })
    }

    fn wait(&mut self, model: &mut M, timer: &Timer) -> Result<Option<ScoreSums>> {
        self.catch_up(model);
        self.receive(0, timer)
    }

    fn parameters(&self) -> Cow<'_, [f32]> {
        self.optimizer.parameters().into()
    }

    fn optimizer_state(&self) -> OptimizerState {
        self.optimizer.state()
    }

    fn restore(&mut self, model: &M, state: &OptimizerState) -> Result<()> {
        self.optimizer.restore(model, state);
        (self.recorded, self.shapes) = (None, Shapes::default());
        Ok(())
    }

    fn attach(&mut self, _: &M) -> Result<()> {
        Ok(())
    }

    fn gradients(&mut self) -> Option<Vec<f32>> {
        self.kept
            .take()
            .map(|gradient| self.optimizer.read(&gradient))
    }

    fn replica(&self) -> Option<&Replica> {
        None
    }

    fn unused_parameters(&self) -> Vec<&str> {
        self.optimizer.unused_parameters()
    }
}

impl Results {
    fn new(outputs: Vec<Output>, zero: Tensor<1>) -> Self {
        Self {
            scores: outputs.into_iter().map(Output::score).collect(),
            zero: zero.into_data(),
        }
    }

    fn read(self) -> Result<Scored> {
        let mut sums = ScoreSums::default();
        for score in self.scores {
            sums += score.read()?;
        }
        Ok(Scored {
            sums,
            is_gradient_finite: floats(self.zero)?.iter().all(|zero| zero.is_finite()),
        })
    }
}

impl Scored {
    /// What was not finite in the step, if anything was.
    fn fault(
        &self,
        unread: Unread,
        optimizer: &DeviceOptimizer,
        layout: &ParameterLayout,
    ) -> Result<Option<CollectiveError>> {
        let step = unread.step;
        if !self.sums.loss_sum.is_finite() {
            let (ranks, value) = (vec![ROOT], f32::NAN);
            return Ok(Some(CollectiveError::NonFinite {
                step,
                ranks,
                parameter: None,
                value,
            }));
        }
        if self.is_gradient_finite {
            return Ok(None);
        }
        Ok(Some(locate_non_finite(
            step,
            ROOT,
            &optimizer.read(&unread.gradient),
            layout,
        )))
    }
}

/// `gradient` with at most this L2 norm; and zero, `[1]`, or NaN where a value is not finite, or where the norm is not.
pub(super) fn clipped(gradient: Tensor<1>, clip: Option<Clip>) -> (Tensor<1>, Tensor<1>) {
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
