//! Where a run stands while it trains, `progress.json`, which root writes anew every few seconds.
//!
//! Invariant: times are seconds; what is not known is absent (null).

use std::time::Duration;

use crate::{RankSeconds, Seconds};
use serde::{Deserialize, Serialize};

/// Where a run stands.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunProgress {
    /// Start of the session that writes this, as its manifest has it.
    pub started: String,
    /// When this was written, UTC, RFC 3339.
    pub written: String,
    /// `training`, `evaluation`, `checkpoint` or `test`.
    pub phase: String,
    /// From 0.
    pub epoch: u64,
    /// Epochs of the whole run.
    pub epochs: u64,
    /// Steps done since the start of the run.
    pub step: u64,
    /// Steps of this epoch done.
    pub step_in_epoch: u64,
    /// Steps of an epoch.
    pub steps_per_epoch: u64,
    /// Steps that this session has done.
    pub session_steps: u64,
    /// What they took with everything between them.
    pub session_seconds: f64,
    /// Samples of a step over all ranks.
    pub global_batch_size: u64,
    /// Mean over root's samples of the last step whose results are known, nats.
    pub loss: Option<f64>,
    /// Share of them that are right, 0..1.
    pub top1: Option<f64>,
    /// Rate of the last step.
    pub learning_rate: f64,
    /// Over all ranks, in the steps since this file was written before.
    pub images_per_second: f64,
    /// Root's time by phase, in these steps.
    pub seconds: Seconds,
    /// Where every rank's time went in the last epoch of this session.
    pub ranks: Vec<RankSeconds>,
}

impl RunProgress {
    /// Steps of the whole run; `None` where that is no number.
    pub fn all_steps(&self) -> Option<u64> {
        self.epochs.checked_mul(self.steps_per_epoch)
    }

    /// Returns how long the rest takes at the speed of this session, evaluations and checkpoints included; `None` before its first step.
    pub fn time_left(&self) -> Option<Duration> {
        let num_left = self.all_steps()?.saturating_sub(self.step);
        Duration::try_from_secs_f64(num_left as f64 * self.seconds_per_step()?).ok()
    }

    /// Returns how long a step takes in this session, evaluations and checkpoints included; `None` before its first step.
    pub fn time_per_step(&self) -> Option<Duration> {
        Duration::try_from_secs_f64(self.seconds_per_step()?).ok()
    }

    fn seconds_per_step(&self) -> Option<f64> {
        (self.session_steps > 0).then(|| self.session_seconds / self.session_steps as f64)
    }
}
