//! The numbers at the end of a run.
//!
//! In: the times of steps. Out: what `summary.json` says of them.
//! Invariant: a speed is images over all ranks by wall-clock seconds.

use records::ThroughputStats;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The speed of steps of (images over all ranks, time); `None` without steps.
pub fn throughput(steps: &[(u64, Duration)]) -> Option<ThroughputStats> {
    if steps.is_empty() {
        return None;
    }
    let images: u64 = steps.iter().map(|(images, _)| images).sum();
    let seconds: f64 = steps.iter().map(|(_, duration)| duration.as_secs_f64()).sum();
    // A clock may not see a step.
    let seconds_of = |time: &Duration| (*time).max(Duration::from_nanos(1)).as_secs_f64();
    let speeds: Vec<f64> = steps.iter().map(|(images, time)| *images as f64 / seconds_of(time)).collect();
    let num_steps = speeds.len();
    let center = speeds.iter().sum::<f64>() / num_steps as f64;
    let squares: f64 = speeds.iter().map(|speed| (speed - center).powi(2)).sum();
    Some(ThroughputStats {
        mean: images as f64 / seconds.max(1e-9),
        sigma: (squares / num_steps.saturating_sub(1).max(1) as f64).sqrt(),
        min: speeds.iter().copied().fold(f64::INFINITY, f64::min),
        max: speeds.iter().copied().fold(0.0, f64::max),
        step_milliseconds_median: Quantiles::of(&milliseconds(steps)).median,
        num_steps: num_steps as u64,
    })
}

/// What is kept of many steps.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StepSketch {
    /// Steps.
    pub num_steps: u64,
    /// Time of all of them.
    pub total: Duration,
    /// Their speed; `None` without steps.
    pub speed: Option<ThroughputStats>,
    /// Time of a step, milliseconds.
    pub milliseconds: Quantiles,
    /// Variance of that (n - 1), square milliseconds; 0 for one step.
    pub milliseconds_variance: f64,
    /// Mean difference of a step from the one before, milliseconds: what varies from step to step, without what drifts.
    pub milliseconds_jitter: f64,
}

impl StepSketch {
    /// The sketch of steps of (images over all ranks, time).
    pub fn of(steps: &[(u64, Duration)]) -> Self {
        let times = milliseconds(steps);
        let milliseconds = Quantiles::of(&times);
        let differences: f64 = times.windows(2).map(|pair| (pair[1] - pair[0]).abs()).sum();
        let mean = times.iter().sum::<f64>() / times.len().max(1) as f64;
        let squares: f64 = times.iter().map(|time| (time - mean).powi(2)).sum();
        Self {
            num_steps: steps.len() as u64,
            total: steps.iter().map(|(_, time)| *time).sum(),
            speed: throughput(steps),
            milliseconds,
            milliseconds_variance: squares / times.len().saturating_sub(1).max(1) as f64,
            milliseconds_jitter: differences / times.len().saturating_sub(1).max(1) as f64,
        }
    }
}

/// Values below which a share of all values lies, between the two nearest on a straight line; all 0 without values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Quantiles {
    /// The smallest.
    pub min: f64,
    /// Above 5 % of them.
    pub p5: f64,
    /// Above a quarter of them.
    pub p25: f64,
    /// Above a half of them.
    pub median: f64,
    /// Above three quarters of them.
    pub p75: f64,
    /// Above 95 % of them.
    pub p95: f64,
    /// The largest.
    pub max: f64,
}

impl Quantiles {
    fn of(values: &[f64]) -> Self {
        if values.is_empty() {
            return Self::default();
        }
        let mut values = values.to_vec();
        values.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let place = share * (values.len() - 1) as f64;
            let (below, above) = (values[place.floor() as usize], values[place.ceil() as usize]);
            below + (above - below) * place.fract()
        };
        Self { min: at(0.0), p5: at(0.05), p25: at(0.25), median: at(0.5), p75: at(0.75), p95: at(0.95), max: at(1.0) }
    }
}

fn milliseconds(steps: &[(u64, Duration)]) -> Vec<f64> {
    steps.iter().map(|(_, time)| time.as_secs_f64() * 1e3).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_speed_is_all_images_by_all_seconds() {
        let steps = [(100, Duration::from_secs(1)), (100, Duration::from_secs(3)), (50, Duration::from_secs(1))];
        let stats = throughput(&steps).unwrap();
        assert_eq!((stats.mean, stats.max, stats.num_steps), (50.0, 100.0, 3));
        assert!((stats.min - 100.0 / 3.0).abs() < 1e-9);
        assert!((stats.sigma - 34.694).abs() < 1e-3, "{}", stats.sigma);
        assert_eq!(stats.step_milliseconds_median, 1000.0);
        assert_eq!(throughput(&[]), None);
        assert_eq!(throughput(&steps[..1]).unwrap().sigma, 0.0);
    }

    #[test]
    fn a_sketch_keeps_count_extremes_spread_and_quantiles() {
        let steps: Vec<(u64, Duration)> = (0..=20).map(|place| (10, Duration::from_millis(100 + place))).collect();
        let sketch = StepSketch::of(&steps);
        let Quantiles { min, p5, p25, median, p75, p95, max } = sketch.milliseconds;
        assert_eq!([min, p5, p25, median, p75, p95, max], [100.0, 101.0, 105.0, 110.0, 115.0, 119.0, 120.0]);
        assert_eq!((sketch.num_steps, sketch.total), (21, Duration::from_millis(2310)));
        assert!(
            (sketch.milliseconds_variance - 38.5).abs() < 1e-9 && (sketch.milliseconds_jitter - 1.0).abs() < 1e-9,
            "{sketch:?}"
        );
        assert_eq!(sketch.speed, throughput(&steps));
        assert_eq!(StepSketch::of(&[]), StepSketch::default());
    }

    #[test]
    fn a_step_that_the_clock_did_not_see_has_a_speed_that_can_be_written() {
        let stats = throughput(&[(8, Duration::ZERO)]).unwrap();
        assert!([stats.mean, stats.sigma, stats.min, stats.max].iter().all(|speed| speed.is_finite()), "{stats:?}");
    }
}
