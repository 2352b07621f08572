//! The first steps of a run as hashes, a line each of `hashes.jsonl`: what a repetition of the run is compared with.
//!
//! Invariant: all numbers are the bits of what they stand for, 16 hexadecimal digits each.

use serde::{Deserialize, Serialize};

/// One line of `hashes.jsonl`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepHashes {
    /// From 0.
    pub step: u64,
    /// Of every rank: the sum of its samples' losses, as a double; of what the step began with.
    pub losses: Vec<String>,
    /// Of every rank: hash of all its parameters after the step.
    pub parameters: Vec<String>,
    /// Of root: hash of each tensor of parameters after the step, in module order.
    pub tensors: Vec<String>,
    /// The tensors' names, in the file's first line alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
}
