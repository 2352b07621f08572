//! How a step ended.
//!
//! In: what the ranks agreed on, this rank's scores. Out: the same outcome on all ranks.

use crate::measure::metrics::ScoreSums;
use crate::step::loss_scale::LossScale;

/// How a step ended.
#[derive(Clone, Debug)]
pub struct StepEnd {
    /// Whether the ranks agreed to stop after it; equal on all.
    pub stop: bool,
    /// Outcome of the step; identical on all ranks.
    pub outcome: StepOutcome,
    /// What this rank has scored, and not told before. Where the device updates, that is of an earlier step, while this one may
    /// still be under way: [`Stepper::wait`](super::Stepper::wait) waits for it. Nothing for a step that was skipped, or had no sample on this rank.
    pub scores: Option<ScoreSums>,
}

/// What became of a step.
#[derive(Clone, Debug, PartialEq)]
pub enum StepOutcome {
    /// The parameters changed.
    Updated,
    /// A loss or gradient was not finite, as these words tell; nothing changed.
    Skipped(String),
    /// Scaled gradients overflowed; nothing changed but the loss scale, which is halved to this. Its losses count.
    Overflowed(LossScale),
}
