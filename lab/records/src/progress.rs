//! Progress of a run, `progress.json`, which root rewrites every few seconds.
//!
//! Invariant: times are seconds; unknown values are absent (null).

use std::time::Duration;

use crate::{RankSeconds, Seconds};
use serde::{Deserialize, Serialize};

/// Progress of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunProgress {
    /// Start of the writing session, as in its manifest.
    pub started: String,
    /// Time of writing, UTC, RFC 3339.
    pub written: String,
    /// `training`, `evaluation`, `checkpoint` or `test`.
    pub phase: String,
    /// Current epoch, from 0.
    pub epoch: u64,
    /// Epochs of the whole run.
    pub epochs: u64,
    /// Steps since the start of the run.
    pub step: u64,
    /// Completed steps of this epoch.
    pub step_in_epoch: u64,
    /// Steps of an epoch; 0 if unknown.
    pub steps_per_epoch: u64,
    /// Steps of this session.
    pub session_steps: u64,
    /// Wall time of these steps, with evaluations and checkpoints.
    pub session_seconds: f64,
    /// Samples of a step over all ranks.
    pub global_batch_size: u64,
    /// Root's mean loss in the last step with known results, nats.
    pub loss: Option<f64>,
    /// Share of correct answers in that step, 0..1.
    pub top1: Option<f64>,
    /// Learning rate of the last step.
    pub learning_rate: f64,
    /// Speed of all ranks in the steps since the file was last written.
    pub images_per_second: f64,
    /// Root's time by phase in these steps.
    pub seconds: Seconds,
    /// Time of every rank by phase in the last epoch of this session.
    pub ranks: Vec<RankSeconds>,
}

impl RunProgress {
    /// Returns the steps of the whole run; `None` on overflow.
    pub fn all_steps(&self) -> Option<u64> {
        self.epochs.checked_mul(self.steps_per_epoch)
    }

    /// Returns the time left at this session's speed, with evaluations and checkpoints; `None`
    /// before the first step, and if the steps of an epoch are unknown.
    pub fn time_left(&self) -> Option<Duration> {
        let all_steps = self.all_steps().filter(|steps| *steps > 0)?;
        let num_left = all_steps.saturating_sub(self.step);
        Duration::try_from_secs_f64(num_left as f64 * self.seconds_per_step()?).ok()
    }

    /// Returns the time per step of this session, with evaluations and checkpoints; `None` before
    /// the first step.
    pub fn time_per_step(&self) -> Option<Duration> {
        Duration::try_from_secs_f64(self.seconds_per_step()?).ok()
    }

    fn seconds_per_step(&self) -> Option<f64> {
        (self.session_steps > 0).then(|| self.session_seconds / self.session_steps as f64)
    }
}
