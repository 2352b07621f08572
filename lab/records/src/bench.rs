//! Speed of a step, as printed by `trainer bench --json`.

use crate::Seconds;
use crate::number::{nan_if_null, nans_if_null};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Result of a benchmark.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BenchResult {
    /// Name of the network.
    pub model: String,
    /// Number format of activations and their gradients.
    pub dtype: String,
    /// Kernel implementation: fused or stock.
    pub kernels: String,
    /// Backend and device.
    pub device: String,
    /// Ranks.
    pub ranks: usize,
    /// Compute threads of each rank.
    pub threads: usize,
    /// Samples of one rank in one pass.
    pub batch_size_per_rank: usize,
    /// Passes of a step if there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grad_accum_steps: Option<usize>,
    /// Samples of one step over all ranks.
    pub global_batch_size: usize,
    /// Further options that change a step, by the names that studies use.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub options: BTreeMap<String, String>,
    /// Measured steps.
    pub steps: usize,
    /// Warm-up steps.
    pub warmup_steps: usize,
    /// Start and end of the measured steps on root, seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured_unix_s: Option<[f64; 2]>,
    /// Samples of all ranks over the slowest rank's time.
    pub images_per_second: f64,
    /// Median of the slowest rank's steps.
    pub step_milliseconds_median: f64,
    /// Fastest step of the slowest rank.
    pub step_milliseconds_min: f64,
    /// Slowest step of the slowest rank.
    pub step_milliseconds_max: f64,
    /// The slowest rank's seconds by phase over the measured steps.
    pub seconds: Seconds,
    /// Mean over the ranks of the seconds that a rank waited for collectives; 0 on one rank.
    pub waiting_seconds: f64,
    /// Root's seconds in fused kernels over the measured steps, by kind.
    pub kernel_seconds: BTreeMap<String, f64>,
    /// The same kernels called one after another on root, by kind; empty with stock kernels.
    pub kernels_alone: BTreeMap<String, KernelAlone>,
    /// Reads and writes of a whole activation per step; 0 with stock kernels.
    pub activation_walks: f64,
    /// Kernels of root's GPU in a few further steps; absent on CPUs.
    pub device_kernels: Option<DeviceKernels>,
    /// Page faults per step on root that needed no disk access.
    pub minor_faults_per_step: f64,
    /// Largest memory of any rank's process.
    pub peak_memory_bytes: u64,
    /// Sum of the largest memory of each rank's process.
    pub peak_memory_bytes_total: u64,
    /// Bytes of tensors on root's device after the last step; absent if unknown.
    pub device_memory_bytes: Option<u64>,
    /// CPU energy (RAPL) per image in the measured steps; absent (null) if it cannot be read.
    pub joules_per_image: Option<f64>,
    /// Mean loss of the last step on root.
    #[serde(deserialize_with = "nan_if_null")]
    pub loss_mean: f64,
    /// Mean loss over all ranks of every step, warm-up steps first.
    #[serde(deserialize_with = "nans_if_null")]
    pub losses: Vec<f64>,
    /// Bytes of gradients that root sent per step.
    pub bytes_sent_per_step: u64,
    /// Error of compression as a share of the gradient's L2 norm.
    pub compression_error: f64,
    /// Synchronisation method, as `predict-scaling --methods` names it.
    pub method: String,
    /// Path of the gradients to other ranks.
    pub gradients: String,
    /// Communication library.
    pub communication: String,
}

/// Kernels of one kind, called one after another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct KernelAlone {
    /// Wall time, seconds.
    pub seconds_per_step: f64,
    /// Bytes of activations read and written.
    pub bytes_per_step: u64,
}

/// Kernels of a GPU per observed step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceKernels {
    /// Observed steps.
    pub steps: usize,
    /// Kernels launched per step, without copies and fills.
    pub launches_per_step: f64,
    /// Seconds in kernels, by the device's clock.
    pub seconds_per_step: f64,
    /// Seconds between the first and the last kernel in which no kernel ran.
    pub idle_seconds_per_step: f64,
    /// Launches per step that the device did not time.
    pub untimed_per_step: f64,
    /// Time by kernel, longest first.
    pub kernels: Vec<KernelShare>,
}

/// Launches of one kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelShare {
    /// Name in cubecl, without type parameters.
    pub name: String,
    /// Launches per step.
    pub launches_per_step: f64,
    /// Seconds per step.
    pub seconds_per_step: f64,
}
