//! Hashes of the first steps of a run, in `hashes.jsonl`.
//!
//! Invariant: each value has 16 hexadecimal digits.

use serde::{Deserialize, Serialize};

/// One line of `hashes.jsonl`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepHashes {
    /// Number of the step, from 0.
    pub step: u64,
    /// Bits of each rank's sum of losses, as `f64`.
    pub losses: Vec<String>,
    /// Hash of each rank's parameters after the step.
    pub parameters: Vec<String>,
    /// Hash of each parameter of root after the step, in module order.
    pub tensors: Vec<String>,
    /// Names of the parameters; in the file's first line only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
}
