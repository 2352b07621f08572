//! A step of a rank that trains alone on a device: gradients and parameters stay there, and results are read a step later.
//!
//! In: the uploaded samples of one step, the learning rate. Out: a changed model; the sums of the step before.
//! Invariant: where a step may be left out it is known to be finite before its update; elsewhere one that is not ends the run before
//! anything is saved, since whoever saves settles first.

use std::collections::VecDeque;
use std::time::Instant;

use anyhow::{Context, Result};
use burn::tensor::{Device, Tensor, TensorData};
use datasets::{DeviceBatch, LoadedStep};
use distributed::{CollectiveError, ParameterLayout, ROOT, blame, replace, take_gradients, tensors, watchdog};

use super::micro::Forward;
use super::{StepEnd, StepPosition, Stepper};
use crate::clock::{Phase, PhaseClock};
use crate::metrics::ScoreSums;
use crate::model::{ImageClassifier, UnreadScore, floats};
use crate::optimizer::{DeviceSgd, SgdConfig};
use crate::readback::Readback;

/// Steps whose results are not read yet: while the device computes one, the next is given to it.
const MOST_UNREAD: usize = 1;

/// What a device keeps of the training on it.
#[derive(Debug)]
pub(super) struct OnDevice {
    pub(super) sgd: DeviceSgd,
    readback: Readback<Results, Result<Scored>>,
    /// In the order of the readback.
    unread: VecDeque<Unread>,
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
    pub(super) fn new<M: ImageClassifier>(
        sgd: SgdConfig,
        layout: &ParameterLayout,
        model: &M,
        device: &Device,
    ) -> Self {
        let sgd = DeviceSgd::new(sgd, layout, model, device);
        Self { sgd, readback: Readback::start(Results::read), unread: VecDeque::new() }
    }
}

impl Results {
    fn new(forwards: Vec<Forward>, zero: Tensor<1>) -> Self {
        let scores = forwards.into_iter().map(|forward| forward.score());
        Self { scores: scores.collect(), zero: zero.into_data() }
    }

    fn read(self) -> Result<Scored> {
        let mut sums = ScoreSums::default();
        for score in self.scores {
            sums += score.read()?;
        }
        Ok(Scored { sums, is_gradient_finite: floats(self.zero)?.iter().all(|zero| zero.is_finite()) })
    }
}

impl Scored {
    /// What was not finite in the step, if anything was.
    fn fault(&self, unread: Unread, layout: &ParameterLayout) -> Result<Option<CollectiveError>> {
        let step = unread.step;
        if !self.sums.loss_sum.is_finite() {
            let (ranks, value) = (vec![ROOT], f32::NAN);
            return Ok(Some(CollectiveError::NonFinite { step, ranks, parameter: None, value }));
        }
        if self.is_gradient_finite {
            return Ok(None);
        }
        let gradient = floats(unread.gradient.into_data())?;
        Ok(Some(blame(step, ROOT, &gradient[..layout.num_elements()], layout)))
    }
}

impl<M: ImageClassifier> Stepper<M> {
    /// [`step`](Self::step) on the device.
    pub(super) fn step_on_device(
        &mut self,
        at: StepPosition,
        loaded: LoadedStep<DeviceBatch>,
        learning_rate: f64,
        stop: bool,
        sums: &mut ScoreSums,
        clock: &mut PhaseClock,
    ) -> Result<StepEnd> {
        let norm_statistics = self.may_skip().then(|| tensors(&self.model, &self.state_layout));
        let end = StepEnd { stop, ..StepEnd::default() };
        self.traffic.num_steps += 1;
        let (mut forwards, mut gradient) = (Vec::new(), None);
        for batch in loaded.micro_batches.into_iter().filter(|batch| !batch.labels.is_empty()) {
            let (forward, own) = self.micro_step_on_device(batch, loaded.global_num_samples, clock)?;
            forwards.push(forward);
            gradient = Some(match gradient {
                Some(sum) => sum + own,
                None => own,
            });
        }
        let Some(gradient) = gradient else { return Ok(end) };
        let (clipped, zero) = clipped(gradient.clone(), self.config.clip_norm);
        let unread = Unread { step: at.step, gradient };

        if let Some(norm_statistics) = norm_statistics {
            let start = Instant::now();
            let scored = Results::new(forwards, zero).read()?;
            clock.add_since(Phase::Backward, start);
            if let Some(error) = scored.fault(unread, self.reducer.layout())? {
                let end = self.leave_out(error.into())?;
                self.model = replace(self.model.clone(), &self.state_layout, norm_statistics);
                if end.overflowed {
                    *sums += scored.sums;
                }
                return Ok(end);
            }
            self.update_on_device(learning_rate, clipped, clock)?;
            self.loss_scale.note_good_step();
            *sums += scored.sums;
            return Ok(end);
        }
        self.update_on_device(learning_rate, clipped, clock)?;
        let on_device = self.on_device()?;
        on_device.unread.push_back(unread);
        // Only now is all of the step with the device, so that it has work while the step before is waited for.
        on_device.readback.send(Results::new(forwards, zero));
        self.receive(MOST_UNREAD, sums, clock)?;
        Ok(end)
    }

    /// Reads the results of steps until so many are unread.
    pub(super) fn receive(&mut self, most_unread: usize, sums: &mut ScoreSums, clock: &mut PhaseClock) -> Result<()> {
        let start = Instant::now();
        let Some(on_device) = &mut self.on_device else { return Ok(()) };
        while on_device.unread.len() > most_unread {
            let Some((unread, scored)) = on_device.unread.pop_front().zip(on_device.readback.receive()) else { break };
            let scored = scored?;
            if let Some(error) = scored.fault(unread, self.reducer.layout())? {
                return Err(self.blame_scale(error.into()));
            }
            *sums += scored.sums;
        }
        clock.add_since(Phase::Backward, start);
        Ok(())
    }

    /// Forward and backward of one micro-batch: its results, and its share of the mean gradient.
    fn micro_step_on_device(
        &mut self,
        batch: DeviceBatch,
        divisor: usize,
        clock: &mut PhaseClock,
    ) -> Result<(Forward, Tensor<1>)> {
        self.config.whereabouts.enter(watchdog::Phase::Forward);
        let start = Instant::now();
        let (forward, loss_sum) = self.forward(batch);
        clock.add_since(Phase::Forward, start);

        self.config.whereabouts.enter(watchdog::Phase::Backward);
        let start = Instant::now();
        let scale = f64::from(self.loss_scale.factor());
        let gradients = loss_sum.mul_scalar(scale / divisor as f64).backward();
        let gradients = take_gradients(&self.model, self.reducer.layout(), gradients);
        let mut gradient = self.on_device()?.sgd.flat_gradient(gradients);
        if scale != 1.0 {
            // A power of two: nothing is rounded.
            gradient = gradient / scale;
        }
        clock.add_since(Phase::Backward, start);
        Ok((forward, gradient))
    }

    fn update_on_device(&mut self, learning_rate: f64, gradient: Tensor<1>, clock: &mut PhaseClock) -> Result<()> {
        self.config.whereabouts.enter(watchdog::Phase::Optimizer);
        let start = Instant::now();
        let model = self.model.clone();
        let on_device = self.on_device()?;
        on_device.sgd.update(learning_rate, gradient);
        self.model = on_device.sgd.place(model);
        clock.add_since(Phase::Optimizer, start);
        Ok(())
    }

    fn on_device(&mut self) -> Result<&mut OnDevice> {
        self.on_device.as_mut().context("step: expected one on the device, got one on the host")
    }
}

/// `gradient` with at most this L2 norm; and zero, `[1]`, or NaN where a value is not finite, or where the norm is not.
fn clipped(gradient: Tensor<1>, clip_norm: Option<f64>) -> (Tensor<1>, Tensor<1>) {
    let zero = (gradient.clone() * 0.0).sum();
    let Some(clip_norm) = clip_norm else { return (gradient, zero) };
    let norm = (gradient.clone() * gradient.clone()).sum().sqrt();
    let factor = (norm.clone().recip() * clip_norm).clamp_max(1.0);
    (gradient * factor, zero + norm * 0.0)
}
