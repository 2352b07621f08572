//! Errors between ranks.
//!
//! In: values that every rank has. Out: one error with the same text on every rank.
//! Invariant: errors depend only on gathered data, so all ranks fail together. Only `Aborted` and
//! failed calls of MPI, NCCL and the system may differ between ranks.

use std::fmt::Display;

use thiserror::Error;

use crate::ROOT;

/// Failure of a collective, or of an agreement by a collective.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
#[allow(
    missing_docs,
    reason = "the message of each variant says what its fields are"
)]
pub enum CollectiveError {
    /// A rank ended the job, panicked, or left while other ranks waited for it.
    #[error("job aborted by rank {rank}: {reason}")]
    Aborted { rank: usize, reason: String },
    /// A loss or gradient is NaN or infinite.
    #[error("step {}: non-finite loss or gradient on {} ({} is {value} there). Lower the learning rate, or check the data.", .step.saturating_add(1), list(.ranks), found(.parameter.as_deref()))]
    NonFinite {
        /// Index of the failed step, from 0.
        step: u64,
        /// Ranks with a non-finite value, ascending, at least one.
        ranks: Vec<usize>,
        /// Parameter of the non-finite gradient on the first of `ranks`. `None` for the loss.
        parameter: Option<String>,
        /// The non-finite value. For a gradient, the value with the largest magnitude.
        value: f32,
    },
    /// The watchdog needs a thread and a duplicate, but two threads may not use the communicator at
    /// once.
    #[error(
        "the watchdog needs a communicator that two threads may use at once, which {library} does not offer here. Without it a rank that stops keeps the others waiting."
    )]
    WatchdogNeedsThreads { library: String },
    /// Gradients cannot be reduced by NCCL. All ranks detect this before any rank calls NCCL.
    #[error("NCCL cannot be used on {}: {problem}. {remedy}, or remove --reduction nccl to stage gradients through host memory.", list(.ranks))]
    NcclUnavailable {
        /// Ranks with a problem, ascending, at least one.
        ranks: Vec<usize>,
        /// The expected and found state of the first of `ranks`.
        problem: String,
        remedy: String,
    },
    /// Any other failure, with the place, the expected and found values, and a remedy.
    #[error("{0}")]
    Failed(String),
}

impl CollectiveError {
    /// Returns the error of a buffer or message whose length on `rank` differs from the expected
    /// length. `rank` is the sender, or the first rank that differs from root.
    pub fn lengths(collective: &str, rank: usize, expected: usize, got: usize) -> Self {
        let unit = match collective {
            "receive" | "exchange" => "bytes in the message".to_owned(),
            _ => format!("elements as on rank {ROOT}"),
        };
        Self::Failed(format!(
            "{collective}: expected {expected} {unit}, got {got} (rank {rank})"
        ))
    }

    /// Returns the error of a communication thread that the system could not create.
    pub fn no_thread(error: impl Display) -> Self {
        Self::Failed(format!(
            "communication thread: {error}. Raise the limit of processes (ulimit -u, pids.max of the cgroup), or train with --overlap off."
        ))
    }
}

/// Returns the name of the non-finite value.
fn found(parameter: Option<&str>) -> String {
    parameter.map_or_else(
        || "loss".to_owned(),
        |name| format!("the largest gradient, in {name},"),
    )
}

/// Returns `rank 2` or `ranks 1, 3`.
pub(crate) fn list(ranks: &[usize]) -> String {
    let numbers: Vec<String> = ranks.iter().map(usize::to_string).collect();
    let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
    format!("{noun} {}", numbers.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_name_ranks_values_and_a_remedy() {
        let error = CollectiveError::NonFinite {
            step: 7,
            ranks: vec![1, 3],
            parameter: Some("conv1.weight".to_owned()),
            value: f32::NAN,
        };
        assert_eq!(
            error.to_string(),
            "step 8: non-finite loss or gradient on ranks 1, 3 (the largest gradient, in conv1.weight, is NaN there). \
             Lower the learning rate, or check the data."
        );
        assert_eq!(
            CollectiveError::lengths("barrier", 2, 4, 5).to_string(),
            "barrier: expected 4 elements as on rank 0, got 5 (rank 2)"
        );
        assert_eq!(
            CollectiveError::lengths("receive", 2, 4, 5).to_string(),
            "receive: expected 4 bytes in the message, got 5 (rank 2)"
        );
    }
}
