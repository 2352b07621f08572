//! The results of a step, as the caller gets them.
//!
//! In: the outcome and the scores of a step. Out: both, for the log and the next decision.
//! Invariant: a skipped step has no scores.

use super::loss_scale::LossScale;
use crate::measure::metrics::ScoreSums;

/// The end of a step.
#[derive(Clone, Debug)]
pub struct StepEnd {
    /// True if the ranks agreed to stop after the step; identical on all ranks. If the device
    /// updates, a request comes a step late.
    pub stop: bool,
    /// Samples of all ranks, if the ranks sent headers; otherwise 0.
    pub num_samples: u64,
    /// If the device updates, the results of the step before, unless
    /// [`wait`](super::Stepper::wait) returned them.
    pub results: Option<StepResults>,
}

/// The results of a step.
#[derive(Clone, Debug)]
pub struct StepResults {
    /// Number of the step, from 0 over the whole run.
    pub step: u64,
    /// Identical on all ranks.
    pub outcome: StepOutcome,
    /// Scores of this rank; `None` for a skipped step, or without samples on this rank.
    pub scores: Option<ScoreSums>,
}

/// The outcome of a step.
#[derive(Clone, Debug, PartialEq)]
pub enum StepOutcome {
    /// The parameters changed.
    Updated,
    /// A loss or gradient was not finite, for this reason; nothing changed.
    Skipped(String),
    /// Scaled gradients overflowed; only the loss scale changed, which is halved to this value. The
    /// losses count.
    Overflowed(LossScale),
}

impl StepEnd {
    /// Returns the scores that became known with the step.
    pub fn scores(self) -> Option<ScoreSums> {
        self.results?.scores
    }
}

impl StepResults {
    pub(super) fn new(step: u64, outcome: StepOutcome, scores: Option<ScoreSums>) -> Self {
        let counts = !matches!(outcome, StepOutcome::Skipped(_));
        Self {
            step,
            outcome,
            scores: if counts { scores } else { None },
        }
    }
}
