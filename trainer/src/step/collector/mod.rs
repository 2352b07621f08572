//! The collector of a step's gradients and scores: buckets in main memory, or on the device.
//!
//! In: the results of each pass. Out: the step's mean gradient and this rank's scores.
//! Invariant: a gradient that is summed over ranks is returned only if it is finite on all of them.

mod bucket_hook;
mod device;
mod host;

use anyhow::Result;
use burn::module::Module;
use burn::tensor::Tensor;
use distributed::gradients::MicroStepConfig;

pub(super) use self::device::{DeviceBuckets, UnreadStep, clipped};
pub(super) use self::host::HostBuckets;
use super::config::{Agreed, Step};
use super::optimizer::MeanGradient;
use crate::measure::metrics::ScoreSums;
use crate::measure::timer::Timer;
use crate::model::UnreadScore;

/// The results of a forward pass with samples, detached.
#[derive(Debug)]
pub(super) struct Output {
    pub(super) logits: Tensor<2>,
    pub(super) loss_sum: Tensor<1>,
    pub(super) labels: Vec<u32>,
}

impl Output {
    fn score(self) -> UnreadScore {
        UnreadScore::new(self.logits, self.loss_sum, self.labels)
    }
}

/// Collects the gradients and scores of a step.
#[derive(Debug)]
pub(super) enum Collector {
    Host(Box<HostBuckets>),
    Device(Box<DeviceBuckets>),
}

impl Collector {
    pub(super) fn host(&self) -> Option<&HostBuckets> {
        match self {
            Self::Host(host) => Some(host),
            Self::Device(_) => None,
        }
    }

    pub(super) fn begin(&mut self, step: &Step) {
        match self {
            Self::Host(host) => host.begin(step),
            Self::Device(device) => device.begin(),
        }
    }

    /// Takes the results of a forward pass; the device is not waited for.
    pub(super) fn end_forward(&mut self, output: Output) -> Result<()> {
        match self {
            Self::Host(host) => host.end_forward(output),
            Self::Device(device) => {
                device.outputs.push(output);
                Ok(())
            }
        }
    }

    /// Differentiates `loss` and collects the gradients; `None` if this rank makes no pass.
    pub(super) fn backward<M: Module>(
        &mut self,
        model: &M,
        loss: Option<Tensor<1>>,
        step: &Step,
        micro_step: MicroStepConfig,
    ) {
        match self {
            Self::Host(host) => host.backward(model, loss, step, micro_step),
            Self::Device(device) => device.backward(model, loss, step),
        }
    }

    /// Returns the step's mean gradient, clipped; `None` if this rank makes no update.
    /// Collective: all ranks, if the step's mode [reduces](super::config::SyncMode::reduces).
    ///
    /// # Errors
    /// [`NonFinite`](distributed::CollectiveError::NonFinite) on all ranks, or a collective failed.
    pub(super) fn finish(
        &mut self,
        step: &Step,
        timer: &Timer,
    ) -> Result<Option<MeanGradient<'_>>> {
        match self {
            Self::Host(host) => host.finish(step, timer),
            Self::Device(device) => device.finish(step, timer),
        }
    }

    /// Returns what the ranks agreed on by [`finish`](Self::finish).
    pub(super) fn agreed(&self, step: &Step) -> Agreed {
        match self {
            Self::Host(host) => {
                let report = host.reducer.report();
                Agreed {
                    stop: report.stop,
                    traffic: report.traffic,
                }
            }
            Self::Device(_) => Agreed {
                stop: step.context.stop,
                ..Agreed::default()
            },
        }
    }

    /// Returns the scores of this rank that are known and were not returned before.
    ///
    /// # Errors
    /// If something was not finite in an earlier step that could not be skipped.
    pub(super) fn take_scores(&mut self, timer: &Timer) -> Result<Option<ScoreSums>> {
        match self {
            Self::Host(host) => Ok(host.scores()),
            Self::Device(device) => device.receive(device::MOST_UNREAD, timer),
        }
    }

    /// Waits for all results; returns the scores that [`take_scores`](Self::take_scores) has not.
    ///
    /// # Errors
    /// As [`take_scores`](Self::take_scores).
    pub(super) fn wait(&mut self, timer: &Timer) -> Result<Option<ScoreSums>> {
        match self {
            Self::Host(_) => Ok(None),
            Self::Device(device) => device.receive(0, timer),
        }
    }

    /// Returns the mean gradient of the last step, flat in module order, if it was kept.
    pub(super) fn take_gradients(&mut self) -> Option<Vec<f32>> {
        match self {
            Self::Host(host) => host.kept.take(),
            Self::Device(device) => device.take_gradients(),
        }
    }

    /// Returns the paths of the parameters that no backward pass of this rank has given a gradient.
    pub(super) fn unused_parameters(&self) -> Vec<&str> {
        match self {
            Self::Host(host) => host.reducer.unused_parameters(),
            Self::Device(device) => device.unused_parameters(),
        }
    }
}
