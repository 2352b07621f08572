//! The numbers at the end of a run.
//!
//! In: the times of steps. Out: the record for `summary.json`.
//! Invariant: a speed is images over all ranks by wall-clock seconds.

use super::EpochRecord;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Speed over the measured steps, images per second over all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ThroughputStats {
    /// All images / all seconds: not the mean of the steps' speeds, which favours fast steps.
    pub mean: f64,
    /// Standard deviation of the steps' speeds around their own mean (n - 1); 0 for one step.
    pub sigma: f64,
    /// Slowest step.
    pub min: f64,
    /// Fastest step.
    pub max: f64,
    /// Median time of a step, milliseconds.
    pub step_milliseconds_median: f64,
    /// Steps measured.
    pub num_steps: u64,
}

impl ThroughputStats {
    /// Statistics over steps of (images over all ranks, time); `None` without steps.
    pub fn of(steps: &[(u64, Duration)]) -> Option<Self> {
        if steps.is_empty() {
            return None;
        }
        let images: u64 = steps.iter().map(|(images, _)| images).sum();
        let seconds: f64 = steps.iter().map(|(_, duration)| duration.as_secs_f64()).sum();
        let speeds: Vec<f64> = steps.iter().map(|(images, time)| *images as f64 / time.as_secs_f64()).collect();
        let num_steps = speeds.len();
        let center = speeds.iter().sum::<f64>() / num_steps as f64;
        let squares: f64 = speeds.iter().map(|speed| (speed - center).powi(2)).sum();
        let mut times: Vec<Duration> = steps.iter().map(|(_, time)| *time).collect();
        times.sort();
        let median = (times[(num_steps - 1) / 2] + times[num_steps / 2]) / 2;
        Some(Self {
            mean: images as f64 / seconds,
            sigma: (squares / num_steps.saturating_sub(1).max(1) as f64).sqrt(),
            min: speeds.iter().copied().fold(f64::INFINITY, f64::min),
            max: speeds.iter().copied().fold(0.0, f64::max),
            step_milliseconds_median: median.as_secs_f64() * 1e3,
            num_steps: num_steps as u64,
        })
    }
}

/// The rank that the others waited for most: the one with the most own time, communication excluded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SlowestRank {
    /// Its rank.
    pub rank: usize,
    /// Its machine.
    pub node: String,
    /// Its own milliseconds a step, communication excluded.
    pub own_milliseconds_per_step: f64,
    /// Mean of that over all ranks.
    pub mean_milliseconds_per_step: f64,
}

/// Where the time of one rank's steps went, in seconds over all of them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RankSeconds {
    /// Its rank.
    pub rank: usize,
    /// Its machine.
    pub node: String,
    /// Steps, warm-up included.
    pub num_steps: u64,
    /// Waiting for data.
    pub data: f64,
    /// Logits and loss.
    pub forward: f64,
    /// Gradients.
    pub backward: f64,
    /// Collectives that the step waited for.
    pub communication: f64,
    /// Update.
    pub optimizer: f64,
    /// What is left of the steps.
    pub other: f64,
}

/// The whole run, as `summary.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Epochs done.
    pub epochs: u64,
    /// Steps done.
    pub steps: u64,
    /// Training images seen.
    pub images: u64,
    /// The last epoch.
    pub final_epoch: Option<EpochRecord>,
    /// Epoch with the best test accuracy, the earliest of equals.
    pub best_epoch: Option<u64>,
    /// Its accuracy, share 0..1.
    pub best_test_top1: Option<f64>,
    /// SHA-256 of all parameters in hexadecimal; equal runs have equal hashes.
    pub parameter_hash: String,
    /// Time of this start of the run with everything in it.
    pub seconds_total: f64,
    /// Training speed after the warmup steps, over all ranks.
    pub images_per_second: Option<ThroughputStats>,
    /// The slowest rank, if there are several.
    pub slowest_rank: Option<SlowestRank>,
    /// Where every rank's time went in this start of the run; absent in files of earlier versions.
    #[serde(default)]
    pub rank_seconds: Vec<RankSeconds>,
    /// Largest resident memory of a rank, bytes.
    pub peak_memory_bytes: u64,
    /// Updates that asynchronous parameter servers made, by how many others had made their parameters stale; absent elsewhere.
    #[serde(default)]
    pub staleness: Option<Vec<u64>>,
    /// Steps that were skipped because a loss or gradient was not finite.
    #[serde(default)]
    pub skipped_steps: u64,
    /// Whether the run was stopped before its last epoch.
    pub stopped_early: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_speed_is_all_images_by_all_seconds() {
        let steps = [(100, Duration::from_secs(1)), (100, Duration::from_secs(3)), (50, Duration::from_secs(1))];
        let stats = ThroughputStats::of(&steps).unwrap();
        assert_eq!((stats.mean, stats.max, stats.num_steps), (50.0, 100.0, 3));
        assert!((stats.min - 100.0 / 3.0).abs() < 1e-9);
        assert!((stats.sigma - 34.694).abs() < 1e-3, "{}", stats.sigma);
        assert_eq!(stats.step_milliseconds_median, 1000.0);
        assert_eq!(ThroughputStats::of(&[]), None);
        assert_eq!(ThroughputStats::of(&steps[..1]).unwrap().sigma, 0.0);
    }
}
