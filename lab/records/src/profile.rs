//! Measured step of a rank, as written by `trainer bench --profile-output`.
//!
//! Invariant: the parts of a step add up to `step_s`.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Value of `schema`.
pub const PROFILE_SCHEMA: &str = "lockstep.profile/1";

/// Parameter and its gradient.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ParameterRecord {
    /// Name in the module.
    pub name: String,
    /// Shape.
    pub shape: Vec<usize>,
    /// Seconds from the start of the backward pass until the gradient is computed.
    pub ready_s: f64,
}

/// Time of a layer in the backward pass.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerSeconds {
    /// Name of the module.
    pub name: String,
    /// Seconds from the last gradient of the layer before until its own last gradient.
    pub seconds: f64,
}

/// Gradient bucket.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BucketRecord {
    /// Seconds from the start of the backward pass until the bucket is full.
    pub ready_s: f64,
    /// Bytes of gradients.
    pub bytes: u64,
}

/// Step of one rank and its circumstances.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProfileFile {
    /// `lockstep.profile/1`.
    pub schema: String,
    /// Start in UTC, RFC 3339.
    pub created: String,
    /// Commit of the program, or "unknown".
    pub commit: String,
    /// CPU.
    pub cpu_model: String,
    /// CPUs that the rank may use.
    pub cpu_count: usize,
    /// Name of the network.
    pub model: String,
    /// Number format of activations.
    pub dtype: String,
    /// Kernel implementation: fused or stock.
    pub kernels: String,
    /// Backend and device.
    pub device: String,
    /// Number of ranks.
    pub ranks: usize,
    /// Compute threads of each rank.
    pub threads: usize,
    /// Samples of one rank's step.
    pub batch_size_per_rank: usize,
    /// Further options of the rank's work, by the names that studies use.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub options: BTreeMap<String, String>,
    /// Measured steps.
    pub steps: usize,
    /// Mean time of a step without waiting for other ranks.
    pub step_s: f64,
    /// Standard deviation of a step's time without drift, from differences between neighbouring
    /// steps.
    pub step_spread_s: f64,
    /// Forward pass.
    pub forward_s: f64,
    /// Backward pass.
    pub backward_s: f64,
    /// Optimizer.
    pub optimizer_s: f64,
    /// Waiting for images.
    pub input_s: f64,
    /// Remainder.
    pub other_s: f64,
    /// Most bytes of a bucket.
    pub bucket_cap_bytes: u64,
    /// Buckets in the order of their reduction.
    pub buckets: Vec<BucketRecord>,
    /// Parameters in module order.
    pub parameters: Vec<ParameterRecord>,
    /// Seconds in fused kernels by kind.
    pub kernel_seconds: BTreeMap<String, f64>,
}

impl ProfileFile {
    /// Returns the time of each layer in the backward pass, in its order.
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
