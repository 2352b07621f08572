//! The measured step of a rank: what `trainer bench --profile-output` writes.
//!
//! Invariant: the parts of a step add up to `step_s`.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What such a file says of itself.
pub const PROFILE_SCHEMA: &str = "lockstep.profile/1";

/// A parameter and its gradient.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ParameterRecord {
    /// Name in the module.
    pub name: String,
    /// Shape.
    pub shape: Vec<usize>,
    /// Seconds from the start of the backward pass until its gradient is there.
    pub ready_s: f64,
}

/// A layer's share of the backward pass.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerSeconds {
    /// Name of its module.
    pub name: String,
    /// Seconds from the last gradient of the layer behind it until its own last one.
    pub seconds: f64,
}

/// A gradient bucket.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BucketRecord {
    /// Seconds from the start of the backward pass until it is full.
    pub ready_s: f64,
    /// Bytes of gradients.
    pub bytes: u64,
}

/// One rank's step, and what it was measured on. Times are seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProfileFile {
    /// `lockstep.profile/1`.
    pub schema: String,
    /// Start in UTC, RFC 3339.
    pub created: String,
    /// Commit of the program, or "unknown".
    pub commit: String,
    /// Processor.
    pub cpu_model: String,
    /// Processors the rank might use.
    pub cpu_count: usize,
    /// Name of the network.
    pub model: String,
    /// Number format of activations.
    pub dtype: String,
    /// Whose kernels.
    pub kernels: String,
    /// Backend and device.
    pub device: String,
    /// Ranks that ran.
    pub ranks: usize,
    /// Compute threads of each.
    pub threads: usize,
    /// Samples of one rank's step.
    pub batch_size_per_rank: usize,
    /// Further options of the rank's work, under the names that a study has for them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub options: BTreeMap<String, String>,
    /// Measured steps.
    pub steps: usize,
    /// Mean of a step without waiting for other ranks.
    pub step_s: f64,
    /// Standard deviation of a step's time, from the mean difference of a step from the one before, so that no drift is in it.
    pub step_spread_s: f64,
    /// Forward pass.
    pub forward_s: f64,
    /// Backward pass.
    pub backward_s: f64,
    /// Optimizer.
    pub optimizer_s: f64,
    /// Waiting for images.
    pub input_s: f64,
    /// What is none of these.
    pub other_s: f64,
    /// Limit of a bucket.
    pub bucket_cap_bytes: u64,
    /// In the order of their reduction.
    pub buckets: Vec<BucketRecord>,
    /// In module order.
    pub parameters: Vec<ParameterRecord>,
    /// Seconds in our own kernels by kind.
    pub kernel_seconds: BTreeMap<String, f64>,
}

impl ProfileFile {
    /// The backward pass by layer, in the order in which it goes through them.
    pub fn layers(&self) -> Vec<LayerSeconds> {
        let mut parameters: Vec<&ParameterRecord> = self.parameters.iter().collect();
        parameters.sort_by(|a, b| a.ready_s.total_cmp(&b.ready_s));
        let mut layers: Vec<LayerSeconds> = Vec::new();
        let mut before_s = 0.0;
        for parameter in parameters {
            let name = parameter
                .name
                .rsplit_once('.')
                .map_or(parameter.name.as_str(), |(module, _)| module);
            let seconds = parameter.ready_s - before_s;
            before_s = parameter.ready_s;
            match layers.iter_mut().find(|layer| layer.name == name) {
                Some(layer) => layer.seconds += seconds,
                None => layers.push(LayerSeconds {
                    name: name.to_owned(),
                    seconds,
                }),
            }
        }
        layers
    }
}
