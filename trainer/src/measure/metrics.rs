//! Scores and speed of steps, as exchanged between ranks and as printed.
//!
//! In: sums over samples, times of steps. Out: means, extremes and variation.
//! Invariant: ranks exchange sums, and means are computed here. An accuracy is a share 0..1 and is
//! recorded with its exact count. A speed is images of all ranks divided by wall-clock seconds.

use distributed::gradients::Traffic;
use records::{Evaluation, Seconds, ThroughputStats, mean_and_deviation, median};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::AddAssign;
use std::time::Duration;

/// Sums over samples.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct ScoreSums {
    /// Sum of the losses, nats.
    pub loss_sum: f64,
    /// Number of samples.
    pub num_samples: u64,
    /// Samples whose most likely class was correct.
    pub top1_correct: u64,
    /// Samples whose class was among the five most likely.
    pub top5_correct: u64,
}

impl ScoreSums {
    /// Returns the mean loss, nats; NaN without samples.
    pub fn loss_mean(&self) -> f64 {
        self.loss_sum / self.num_samples as f64
    }

    /// Returns the share of correct samples, 0..1; NaN without samples.
    pub fn top1(&self) -> f64 {
        self.top1_correct as f64 / self.num_samples as f64
    }

    /// Returns the share of samples whose class is among the five most likely, 0..1; NaN without
    /// samples.
    pub fn top5(&self) -> f64 {
        self.top5_correct as f64 / self.num_samples as f64
    }

    /// Returns the means, together with custom metrics; `None` without samples.
    pub fn evaluation(&self, metrics: BTreeMap<String, f64>) -> Option<Evaluation> {
        (self.num_samples > 0).then(|| Evaluation {
            loss: self.loss_mean(),
            top1: self.top1(),
            top5: self.top5(),
            num_samples: self.num_samples,
            top1_correct: self.top1_correct,
            top5_correct: self.top5_correct,
            metrics,
        })
    }
}

impl AddAssign for ScoreSums {
    fn add_assign(&mut self, other: Self) {
        self.loss_sum += other.loss_sum;
        self.num_samples += other.num_samples;
        self.top1_correct += other.top1_correct;
        self.top5_correct += other.top5_correct;
    }
}

/// Traffic of a rank's gradients over some steps.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepTraffic {
    pub num_steps: u64,
    /// Bytes and errors of compression over all steps.
    pub total: Traffic,
}

/// Data of a step's printed line.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepLine {
    /// Epoch, from 0.
    pub epoch: u64,
    /// Step in the epoch, from 0.
    pub step_in_epoch: u64,
    /// Number of steps in the epoch.
    pub steps_per_epoch: u64,
    /// Scores of the last step with known results.
    pub scores: ScoreSums,
    pub learning_rate: f64,
    pub duration: Duration,
    /// Time by phase.
    pub seconds: Seconds,
    /// Samples of the step over all ranks.
    pub global_num_samples: u64,
    /// Time left in the run; `None` if unknown.
    pub time_left: Option<Duration>,
}

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
    // A coarse clock may measure 0 for a step.
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

/// Returns the record of an epoch of 10 images in 5 steps.
#[cfg(test)]
pub(crate) fn record(epoch: u64, test_top1_correct: Option<u64>) -> records::EpochRecord {
    let evaluation = |top1_correct| {
        let sums = ScoreSums {
            loss_sum: 5.0,
            num_samples: 10,
            top1_correct,
            top5_correct: 9,
        };
        sums.evaluation(BTreeMap::new())
    };
    records::EpochRecord {
        epoch,
        step: (epoch + 1) * 5,
        train_loss: Some(0.5),
        train_top1: Some(0.6),
        train_top5: Some(0.9),
        train_num_samples: 10,
        train_top1_correct: 6,
        train_top5_correct: 9,
        test: test_top1_correct.and_then(evaluation),
        learning_rate: 0.05,
        images_per_second: 5.0,
        seconds_total: 3.0,
        seconds: Seconds {
            forward: 0.5,
            backward: 1.0,
            ..Seconds::default()
        },
        num_steps: Some(5),
        peak_memory_bytes: 200 << 20,
        num_ranks: 1,
        ..records::EpochRecord::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use records::EpochRecord;

    #[test]
    fn an_epoch_without_evaluation_writes_null_and_is_read_back() {
        let line = serde_json::to_string(&record(0, None)).unwrap();
        assert!(line.contains("\"val\":null,\"test\":null"), "{line}");
        assert_eq!(
            serde_json::from_str::<EpochRecord>(&line).unwrap(),
            record(0, None)
        );
    }

    #[test]
    fn sums_add_up_to_means_of_at_least_one_sample() {
        let mut sums = ScoreSums::default();
        assert_eq!(sums.evaluation(BTreeMap::new()), None);
        sums += ScoreSums {
            loss_sum: 1.5,
            num_samples: 2,
            top1_correct: 1,
            top5_correct: 2,
        };
        sums += ScoreSums {
            loss_sum: 0.5,
            num_samples: 2,
            top1_correct: 0,
            top5_correct: 2,
        };
        assert_eq!(
            (sums.loss_mean(), sums.top1(), sums.top5()),
            (0.5, 0.25, 1.0)
        );
    }

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
