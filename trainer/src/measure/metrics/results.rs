//! The speed of steps, for `summary.json`.
//!
//! In: times of steps. Out: means, extremes and variation.
//! Invariant: a speed is images over all ranks by wall-clock seconds.

use records::{ThroughputStats, mean_and_deviation, median};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Returns the speed of steps given as (images over all ranks, time); `None` without steps.
pub fn throughput(steps: &[(u64, Duration)]) -> Option<ThroughputStats> {
    if steps.is_empty() {
        return None;
    }
    let images: u64 = steps.iter().map(|(images, _)| images).sum();
    let seconds: f64 = steps
        .iter()
        .map(|(_, duration)| duration.as_secs_f64())
        .sum();
    // The clock may be too coarse for a step.
    let seconds_of = |time: &Duration| (*time).max(Duration::from_nanos(1)).as_secs_f64();
    let speeds: Vec<f64> = steps
        .iter()
        .map(|(images, time)| *images as f64 / seconds_of(time))
        .collect();
    let whole = steps.iter().map(|(images, _)| *images).max();
    let of_whole = steps
        .iter()
        .zip(&speeds)
        .filter(|((images, _), _)| Some(*images) == whole);
    let (whole_mean, whole_sigma) =
        mean_and_deviation(&of_whole.map(|(_, speed)| *speed).collect::<Vec<_>>())?;
    Some(ThroughputStats {
        whole_batch_variation: whole_sigma.unwrap_or(0.0) / whole_mean.max(f64::MIN_POSITIVE),
        mean: images as f64 / seconds.max(1e-9),
        sigma: mean_and_deviation(&speeds)?.1.unwrap_or(0.0),
        min: speeds.iter().copied().fold(f64::INFINITY, f64::min),
        max: speeds.iter().copied().fold(0.0, f64::max),
        step_milliseconds_median: median(&mut milliseconds(steps)),
        num_steps: speeds.len() as u64,
    })
}

/// Statistics of many steps.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StepSketch {
    /// Time of all steps.
    pub total: Duration,
    /// Speed; `None` without steps.
    pub speed: Option<ThroughputStats>,
    /// Shortest step, milliseconds; 0 without steps.
    pub milliseconds_min: f64,
    /// Longest step, milliseconds; 0 without steps.
    pub milliseconds_max: f64,
    /// Mean difference between consecutive steps, milliseconds: variation without drift.
    pub milliseconds_jitter: f64,
}

impl StepSketch {
    /// Returns the statistics of steps given as (images over all ranks, time).
    pub fn of(steps: &[(u64, Duration)]) -> Self {
        let times = milliseconds(steps);
        let differences: f64 = times.windows(2).map(|pair| (pair[1] - pair[0]).abs()).sum();
        Self {
            total: steps.iter().map(|(_, time)| *time).sum(),
            speed: throughput(steps),
            milliseconds_min: times.iter().copied().reduce(f64::min).unwrap_or(0.0),
            milliseconds_max: times.iter().copied().reduce(f64::max).unwrap_or(0.0),
            milliseconds_jitter: differences / times.len().saturating_sub(1).max(1) as f64,
        }
    }
}

fn milliseconds(steps: &[(u64, Duration)]) -> Vec<f64> {
    steps
        .iter()
        .map(|(_, time)| time.as_secs_f64() * 1e3)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_speed_is_all_images_by_all_seconds() {
        let steps = [
            (100, Duration::from_secs(1)),
            (100, Duration::from_secs(3)),
            (50, Duration::from_secs(1)),
        ];
        let stats = throughput(&steps).unwrap();
        assert_eq!((stats.mean, stats.max, stats.num_steps), (50.0, 100.0, 3));
        assert!((stats.min - 100.0 / 3.0).abs() < 1e-9);
        assert!((stats.sigma - 34.694).abs() < 1e-3, "{}", stats.sigma);
        assert_eq!(stats.step_milliseconds_median, 1000.0);
        assert_eq!(throughput(&[]), None);
        assert_eq!(throughput(&steps[..1]).unwrap().sigma, 0.0);
    }

    #[test]
    fn only_steps_of_the_whole_batch_count_in_their_variation() {
        let whole = [(100, Duration::from_secs(1)), (100, Duration::from_secs(1))];
        let steps = [&whole[..], &[(10, Duration::from_secs(1))]].concat();
        let [even, short] = [&whole[..], &steps].map(|steps| throughput(steps).unwrap());
        assert_eq!(
            (even.whole_batch_variation, short.whole_batch_variation),
            (0.0, 0.0)
        );
        assert!(short.sigma > 50.0, "{short:?}");
        let uneven =
            throughput(&[(100, Duration::from_secs(1)), (100, Duration::from_secs(3))]).unwrap();
        assert!(
            (uneven.whole_batch_variation - 0.5_f64.sqrt()).abs() < 1e-9,
            "{uneven:?}"
        );
    }

    #[test]
    fn a_sketch_keeps_time_extremes_and_jitter() {
        let steps: Vec<(u64, Duration)> = (0..=20)
            .map(|place| (10, Duration::from_millis(100 + place)))
            .collect();
        let sketch = StepSketch::of(&steps);
        assert_eq!(
            (sketch.milliseconds_min, sketch.milliseconds_max),
            (100.0, 120.0)
        );
        assert_eq!(sketch.total, Duration::from_millis(2310));
        assert!(
            (sketch.milliseconds_jitter - 1.0).abs() < 1e-9,
            "{sketch:?}"
        );
        let speed = sketch.speed.unwrap();
        assert_eq!(
            (speed.num_steps, speed.step_milliseconds_median),
            (21, 110.0)
        );
        assert_eq!(sketch.speed, throughput(&steps));
        assert_eq!(StepSketch::of(&[]), StepSketch::default());
    }

    #[test]
    fn a_step_that_the_clock_did_not_see_has_a_speed_that_can_be_written() {
        let stats = throughput(&[(8, Duration::ZERO)]).unwrap();
        assert!(
            [stats.mean, stats.sigma, stats.min, stats.max]
                .iter()
                .all(|speed| speed.is_finite()),
            "{stats:?}"
        );
    }
}
