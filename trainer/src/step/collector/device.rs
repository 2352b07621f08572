//! Gradients that stay on the device, as one flat tensor; scores are read a step later.
//!
//! In: scores, losses. Out: the mean gradient on the device; the scores of the step before.
//! Invariant: a step that may be skipped is known to be finite before its update. Any other step that
//! is not finite ends the run before something is saved, since saving waits for all results.

use anyhow::Result;
use burn::module::Module;
use burn::tensor::{Tensor, TensorData};
use distributed::gradients::locate_non_finite;
use distributed::watchdog::Phase;
use distributed::{CollectiveError, ROOT};

use super::Output;
use crate::measure::metrics::ScoreSums;
use crate::measure::timer::Timer;
use crate::model::{UnreadScore, floats};
use crate::step::config::{Clip, Step};
use crate::step::optimizer::{MeanGradient, Placement};
use crate::step::readback::Readback;

/// Steps whose results may be unread: the next one is queued while the device computes one.
pub(super) const MOST_UNREAD: usize = 1;

/// The gradients and scores of one rank that no other rank waits for.
#[derive(Debug)]
pub(in crate::step) struct DeviceBuckets {
    placement: Placement,
    clip: Option<Clip>,
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

/// A step that may turn out not to be finite.
#[derive(Debug)]
pub(in crate::step) struct UnreadStep {
    pub(in crate::step) step: u64,
    pub(in crate::step) outputs: Vec<Output>,
    /// As [`clipped`] makes it.
    pub(in crate::step) zero: Tensor<1>,
    pub(in crate::step) gradient: Tensor<1>,
}

/// A step's results that the device may still be computing.
struct Results {
    step: u64,
    scores: Vec<UnreadScore>,
    zero: TensorData,
    gradient: Tensor<1>,
}

struct Scored {
    sums: ScoreSums,
    /// The value that was not finite, if there was one.
    fault: Option<CollectiveError>,
}

impl DeviceBuckets {
    pub(in crate::step) fn new(placement: Placement, clip: Option<Clip>) -> Self {
        let of_readback = placement.clone();
        Self {
            placement,
            clip,
            outputs: Vec::new(),
            sum: None,
            kept: None,
            unread: None,
            readback: Readback::start(move |results: Results| results.read(&of_readback)),
            read: None,
            unused: None,
        }
    }

    pub(super) fn begin(&mut self) {
        self.kept = None;
    }

    pub(super) fn backward<M: Module>(&mut self, model: &M, loss: Option<Tensor<1>>, step: &Step) {
        let Some(loss) = loss else { return };
        let gradients = self.placement.gradients(model, loss.backward());
        self.unused.get_or_insert_with(|| {
            let indices = 0..gradients.len();
            indices
                .filter(|&index| gradients[index].is_none())
                .collect()
        });
        let mut gradient = self.placement.joined(gradients);
        if step.loss_scale != 1 {
            // A power of two: nothing is rounded.
            gradient = gradient / f64::from(step.loss_scale);
        }
        self.sum = Some(match self.sum.take() {
            Some(sum) => sum + gradient,
            None => gradient,
        });
    }

    pub(super) fn finish(
        &mut self,
        step: &Step,
        timer: &Timer,
    ) -> Result<Option<MeanGradient<'_>>> {
        let Some(gradient) = self.sum.take() else {
            return Ok(None);
        };
        let (mean, zero) = clipped(gradient.clone(), self.clip);
        self.kept = step.context.keeps_gradients.then(|| mean.clone());
        self.unread = Some(UnreadStep {
            step: step.context.step,
            outputs: std::mem::take(&mut self.outputs),
            zero,
            gradient,
        });
        if step.can_skip {
            self.read = self.receive(0, timer)?;
        }
        Ok(Some(MeanGradient::Device(mean)))
    }

    /// Takes the results of a replayed step.
    pub(in crate::step) fn take_replayed(&mut self, replayed: UnreadStep) {
        self.kept = None;
        self.unread = Some(replayed);
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
            self.readback.send(Results {
                step: unread.step,
                scores: unread.outputs.into_iter().map(Output::score).collect(),
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
    pub(in crate::step) fn settle(&mut self, timer: &Timer) -> Result<()> {
        self.read = self.receive(0, timer)?;
        Ok(())
    }

    pub(super) fn take_gradients(&mut self) -> Option<Vec<f32>> {
        let gradient = self.kept.take()?;
        Some(self.placement.read(&gradient))
    }

    pub(super) fn unused_parameters(&self) -> Vec<&str> {
        let entries = self.placement.layout().entries();
        let unused = self.unused.iter().flatten();
        unused.map(|&index| entries[index].path.as_str()).collect()
    }
}

impl Results {
    fn read(self, placement: &Placement) -> Result<Scored> {
        let mut sums = ScoreSums::default();
        for score in self.scores {
            sums += score.read()?;
        }
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

/// Returns `gradient` within the limit; and zero, `[1]`, or NaN if a value or the norm is not finite.
pub(in crate::step) fn clipped(gradient: Tensor<1>, clip: Option<Clip>) -> (Tensor<1>, Tensor<1>) {
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
