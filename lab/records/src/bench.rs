//! The speed of a step: what `trainer bench --json` prints.

use crate::Seconds;
use crate::number::{nan_if_null, nans_if_null};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What `--json` prints.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BenchResult {
    /// Name of the network.
    pub model: String,
    /// Number format of activations and their gradients.
    pub dtype: String,
    /// Whose kernels: fused or stock.
    pub kernels: String,
    /// Backend and device.
    pub device: String,
    /// Ranks.
    pub ranks: usize,
    /// Compute threads of each rank.
    pub threads: usize,
    /// Samples of one rank in one pass.
    pub batch_size_per_rank: usize,
    /// Passes of a step, where they are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grad_accum_steps: Option<usize>,
    /// Samples of one step over all ranks.
    pub global_batch_size: usize,
    /// Further options that change a step, under the names that a study has for them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub options: BTreeMap<String, String>,
    /// Measured steps.
    pub steps: usize,
    /// Steps before them.
    pub warmup_steps: usize,
    /// Begin and end of the measured steps on root, seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured_unix_s: Option<[f64; 2]>,
    /// Global samples over the slowest rank's time.
    pub images_per_second: f64,
    /// Median of the slowest rank's steps.
    pub step_milliseconds_median: f64,
    /// Fastest of them.
    pub step_milliseconds_min: f64,
    /// Slowest of them.
    pub step_milliseconds_max: f64,
    /// The slowest rank's seconds by phase over the measured steps.
    pub seconds: Seconds,
    /// Seconds in which a rank waits for collectives over the measured steps, mean over the ranks; 0 of a rank that meets nobody.
    pub waiting_seconds: f64,
    /// Root's seconds in our own kernels over the measured steps, by kind; the rest of a step is tape, dispatch, burn's own
    /// operations and communication.
    pub kernel_seconds: BTreeMap<String, f64>,
    /// The same kernels called on root as in a step, but with nothing between them and in buffers of their own, by kind; empty where they
    /// are not ours.
    pub kernels_alone: BTreeMap<String, KernelAlone>,
    /// How often a step reads or writes a layer's output, or as many bytes of other activations; 0 where the kernels are not ours.
    pub activation_walks: f64,
    /// What root's GPU ran in a few further steps; absent on processors.
    pub device_kernels: Option<DeviceKernels>,
    /// Fresh pages a step on root, from the system.
    pub minor_faults_per_step: f64,
    /// Largest memory of any rank's process.
    pub peak_memory_bytes: u64,
    /// Memory of all ranks' processes together, each at its largest.
    pub peak_memory_bytes_total: u64,
    /// Bytes that root's device holds for tensors after the last step; absent where it does not tell.
    pub device_memory_bytes: Option<u64>,
    /// Energy of the machines' processors (RAPL) in the measured steps, for each image; absent (null) where it cannot be read.
    pub joules_per_image: Option<f64>,
    /// Mean loss of the last step on root, to compare with other programs.
    #[serde(deserialize_with = "nan_if_null")]
    pub loss_mean: f64,
    /// Mean loss over all ranks of every step, those of the warm-up first.
    #[serde(deserialize_with = "nans_if_null")]
    pub losses: Vec<f64>,
    /// Bytes of gradients that root sent in a step.
    pub bytes_sent_per_step: u64,
    /// What compression left out, as a share of the gradient's L2 norm.
    pub compression_error: f64,
    /// How the ranks' gradients or parameters become one, as `predict-scaling --methods` names it.
    pub method: String,
    /// How gradients reach the other ranks.
    pub gradients: String,
    /// The communication library.
    pub communication: String,
}

/// The kernels of one kind in a step, alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct KernelAlone {
    /// Wall time, seconds.
    pub seconds_per_step: f64,
    /// Bytes of activations that they read and write.
    pub bytes_per_step: u64,
}

/// What was observed, a step's share of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceKernels {
    /// Steps that were observed.
    pub steps: usize,
    /// Kernels that a step launches, copies and fills of memory not counted.
    pub launches_per_step: f64,
    /// Time in kernels, seconds, by the device's clock.
    pub seconds_per_step: f64,
    /// Time between the first and the last kernel in which none ran, seconds: launches, waiting, copies.
    pub idle_seconds_per_step: f64,
    /// Launches a step that the device did not time.
    pub untimed_per_step: f64,
    /// The longest first.
    pub kernels: Vec<KernelShare>,
}

/// All launches of one name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelShare {
    /// As cubecl names it, without its type parameters.
    pub name: String,
    /// How often a step launches it.
    pub launches_per_step: f64,
    /// Its time, seconds.
    pub seconds_per_step: f64,
}
