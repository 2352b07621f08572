//! The phases of a run in a rank's status.
//!
//! In: a phase. Out: its code and its name. Invariant: a code means the same phase on all ranks.

use std::fmt::{Display, Formatter};

/// The current activity of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Phase {
    /// Before the first step.
    Starting,
    /// Downloading, reading or hashing the data.
    Opening,
    /// Waiting for, or preparing, a batch.
    Data,
    /// Forward pass.
    Forward,
    /// Backward pass.
    Backward,
    /// Waiting for gradients of the other ranks.
    Waiting,
    /// Update of the parameters.
    Optimizer,
    /// Evaluation.
    Evaluation,
    /// Writing or reading a checkpoint.
    Checkpoint,
    /// Waiting for requests of other ranks, on a rank that only serves; no rank waits for it.
    Serving,
    /// After the last step.
    Ending,
}

impl Phase {
    const ALL: [Self; 11] = [
        Self::Starting,
        Self::Opening,
        Self::Data,
        Self::Forward,
        Self::Backward,
        Self::Waiting,
        Self::Optimizer,
        Self::Evaluation,
        Self::Checkpoint,
        Self::Serving,
        Self::Ending,
    ];

    pub(super) fn from_code(code: u64) -> Option<Self> {
        usize::try_from(code)
            .ok()
            .and_then(|code| Self::ALL.get(code))
            .copied()
    }
}

impl Display for Phase {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> std::fmt::Result {
        formatter.pad(&format!("{self:?}").to_lowercase())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_phase_has_its_code_and_name() {
        for (code, phase) in Phase::ALL.into_iter().enumerate() {
            assert_eq!(Phase::from_code(code as u64), Some(phase));
            assert_eq!(phase.to_string(), format!("{phase:?}").to_lowercase());
        }
        assert_eq!(Phase::from_code(Phase::ALL.len() as u64), None);
    }
}
