//! Profile of the measured step without waiting, for predictions of scaling.
//!
//! In: the slowest rank's times. Out: [`ProfileFile`].
//! Invariant: the parts add up to the mean step time. Measured runs report means, too.

use distributed::replica::ParameterLayout;
use records::{BenchResult, PROFILE_SCHEMA, ParameterRecord, ProfileFile, is_of_rank};
use simulate::step_of;

use crate::config::BenchConfig;
use crate::measure::gather::RankTimes;
use crate::measure::manifest::cpu_model;
use crate::step::sync_plan::bucket_cap_bytes;

/// Ratio of the standard deviation of normal numbers to the mean difference of two of them.
///
/// The ratio is half the root of pi (von Neumann et al. 1941, The mean square successive
/// difference). Differences exclude drift: drift affects all ranks of a machine alike and delays
/// none.
const OF_DIFFERENCES: f64 = 0.886_227;

/// Returns the profile of the slowest rank. `ready_s` has a time for each parameter of `layout`.
pub(super) fn of(
    result: &BenchResult,
    slowest: &RankTimes,
    ready_s: &[f64],
    layout: &ParameterLayout,
    config: &BenchConfig,
) -> ProfileFile {
    let steps = config.steps as f64;
    let mean_s = slowest.steps.total.as_secs_f64() / steps;
    let part = |seconds: f64| seconds / steps;
    let seconds = &slowest.seconds;
    // A single rank does not wait.
    let waiting_s = if result.ranks > 1 {
        part(seconds.communication)
    } else {
        0.0
    };
    let forward_s = part(seconds.forward);
    let backward_s = part(seconds.backward);
    let optimizer_s = part(seconds.optimizer);
    let input_s = part(seconds.data);
    let step_s = mean_s - waiting_s;
    // Gradients are sent during the last backward pass only.
    let passes = config.grad_accum_steps as f64;
    let before_last_s = backward_s * (passes - 1.0) / passes;
    let parameters = layout
        .entries()
        .iter()
        .zip(ready_s)
        .map(|(entry, ready_s)| ParameterRecord {
            name: entry.path.clone(),
            shape: entry.shape.clone(),
            ready_s: (before_last_s + ready_s).min(backward_s),
        });
    let mut file = ProfileFile {
        schema: PROFILE_SCHEMA.to_owned(),
        created: records::now(),
        commit: env!("LOCKSTEP_COMMIT").to_owned(),
        cpu_model: cpu_model(),
        cpu_count: std::thread::available_parallelism().map_or(1, usize::from),
        model: result.model.clone(),
        dtype: result.dtype.clone(),
        kernels: result.kernels.clone(),
        device: result.device.clone(),
        ranks: result.ranks,
        threads: result.threads,
        batch_size_per_rank: config.samples_per_rank(),
        options: result
            .options
            .clone()
            .into_iter()
            .filter(|(key, _)| is_of_rank(key))
            .collect(),
        steps: config.steps,
        step_s,
        step_spread_s: OF_DIFFERENCES * slowest.steps.milliseconds_jitter / 1e3,
        forward_s,
        backward_s,
        optimizer_s,
        input_s,
        other_s: (step_s - forward_s - backward_s - optimizer_s - input_s).max(0.0),
        bucket_cap_bytes: bucket_cap_bytes(&config.sync, layout.num_elements() * size_of::<f32>())
            as u64,
        buckets: Vec::new(),
        parameters: parameters.collect(),
        kernel_seconds: result
            .kernel_seconds
            .iter()
            .map(|(name, seconds)| (name.clone(), part(*seconds)))
            .collect(),
    };
    file.buckets = step_of(&file)
        .with_bucket_cap(file.bucket_cap_bytes)
        .buckets;
    file
}
