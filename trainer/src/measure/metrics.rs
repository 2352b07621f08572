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
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "SavedSums")]
pub struct ScoreSums {
    /// Sum of the losses, by default in nats.
    pub loss_sum: f64,
    /// Number of samples.
    pub num_samples: u64,
    /// Sum of the samples' weights, by which the loss is divided.
    pub weight: f64,
    /// Sums of the metrics by name, such as the number of correct answers, `top1_correct`.
    #[serde(flatten)]
    pub metrics: BTreeMap<String, f64>,
}

/// [`ScoreSums`] as read: without a weight each sample has the weight 1. JSON has null for a sum
/// that is not finite.
#[derive(Deserialize)]
struct SavedSums {
    loss_sum: f64,
    num_samples: u64,
    weight: Option<f64>,
    #[serde(flatten)]
    metrics: BTreeMap<String, Option<f64>>,
}

impl From<SavedSums> for ScoreSums {
    fn from(saved: SavedSums) -> Self {
        Self {
            loss_sum: saved.loss_sum,
            num_samples: saved.num_samples,
            weight: saved.weight.unwrap_or(saved.num_samples as f64),
            metrics: saved
                .metrics
                .into_iter()
                .map(|(name, sum)| (name, sum.unwrap_or(f64::NAN)))
                .collect(),
        }
    }
}

impl ScoreSums {
    /// Returns the mean loss; NaN without samples. Samples without weight have no loss.
    pub fn loss_mean(&self) -> f64 {
        if self.num_samples > 0 && self.weight == 0.0 {
            0.0
        } else {
            self.loss_sum / self.weight
        }
    }

    /// Adds the summed loss of `num_samples` samples of weight 1.
    pub fn add_losses(&mut self, loss_sum: f64, num_samples: usize) {
        self.loss_sum += loss_sum;
        self.num_samples += num_samples as u64;
        self.weight += num_samples as f64;
    }

    /// Adds to the sum of a metric.
    pub fn add(&mut self, metric: &str, value: f64) {
        match self.metrics.get_mut(metric) {
            Some(sum) => *sum += value,
            None => _ = self.metrics.insert(metric.to_owned(), value),
        }
    }

    /// Adds to one of several sums of a metric.
    pub fn add_to(&mut self, metric: &str, index: usize, value: f64) {
        // Names are sorted, so the digits keep the order of up to 10^8 sums.
        self.add(&format!("{metric}.{index:08}"), value);
    }

    /// Returns the sums of a metric by [`add_to`](Self::add_to), in order.
    pub fn of_metric(&self, metric: &str) -> Vec<f64> {
        let is_of_metric = |name: &str| {
            let index = name
                .strip_prefix(metric)
                .and_then(|rest| rest.strip_prefix('.'));
            index.is_some_and(|index| index.bytes().all(|byte| byte.is_ascii_digit()))
        };
        let own = self.metrics.iter();
        let own = own.filter(|(name, _)| is_of_metric(name));
        own.map(|(_, sum)| *sum).collect()
    }

    /// Returns the count of a metric, such as `top1_correct`, if the task has it.
    pub fn count(&self, metric: &str) -> Option<u64> {
        self.metrics.get(metric).map(|sum| *sum as u64)
    }

    /// Returns the share of correct samples, 0..1, if the task has answers and there are samples.
    pub fn top1(&self) -> Option<f64> {
        self.share("top1_correct")
    }

    fn share(&self, metric: &str) -> Option<f64> {
        let count = self.count(metric).filter(|_| self.num_samples > 0)?;
        Some(count as f64 / self.num_samples as f64)
    }

    /// Returns the means, together with other metrics; `None` without samples.
    pub fn evaluation(&self, metrics: BTreeMap<String, f64>) -> Option<Evaluation> {
        (self.num_samples > 0).then(|| Evaluation {
            loss: self.loss_mean(),
            top1: self.top1(),
            top5: self.share("top5_correct"),
            num_samples: self.num_samples,
            top1_correct: self.count("top1_correct"),
            top5_correct: self.count("top5_correct"),
            metrics,
        })
    }
}

impl AddAssign for ScoreSums {
    fn add_assign(&mut self, other: Self) {
        self.loss_sum += other.loss_sum;
        self.num_samples += other.num_samples;
        self.weight += other.weight;
        for (metric, sum) in &other.metrics {
            self.add(metric, *sum);
        }
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
#[derive(Debug, Clone, PartialEq)]
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

/// Returns the sums of samples of weight 1, with the numbers of correct answers of a classifier.
#[cfg(test)]
pub(crate) fn sums(loss_sum: f64, num_samples: u64, [top1, top5]: [u64; 2]) -> ScoreSums {
    let metrics = [("top1_correct", top1), ("top5_correct", top5)];
    ScoreSums {
        loss_sum,
        num_samples,
        weight: num_samples as f64,
        metrics: metrics
            .map(|(name, count)| (name.to_owned(), count as f64))
            .into(),
    }
}

/// Returns the record of an epoch of 10 images in 5 steps.
#[cfg(test)]
pub(crate) fn record(epoch: u64, test_top1_correct: Option<u64>) -> records::EpochRecord {
    let evaluation = |top1_correct| {
        let sums = sums(5.0, 10, [top1_correct, 9]);
        sums.evaluation(BTreeMap::new())
    };
    records::EpochRecord {
        epoch,
        step: (epoch + 1) * 5,
        train_loss: Some(0.5),
        train_top1: Some(0.6),
        train_top5: Some(0.9),
        train_num_samples: 10,
        train_top1_correct: Some(6),
        train_top5_correct: Some(9),
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
        sums += super::sums(1.5, 2, [1, 2]);
        sums += super::sums(0.5, 2, [0, 2]);
        assert_eq!(
            (sums.loss_mean(), sums.top1(), sums.share("top5_correct")),
            (0.5, Some(0.25), Some(1.0))
        );
    }

    #[test]
    fn many_sums_of_a_metric_keep_their_order_and_leave_out_those_of_a_longer_name() {
        let mut sums = ScoreSums::default();
        let expected: Vec<f64> = (0..1_200).map(f64::from).collect();
        for (index, value) in expected.iter().enumerate() {
            sums.add_to("f1", index, *value);
            sums.add_to("f1.macro", index, -1.0);
        }
        assert_eq!(sums.of_metric("f1"), expected);
    }

    #[test]
    fn saved_sums_need_no_weight_and_no_finite_metric() {
        let text = r#"{"loss_sum":1.5,"num_samples":2,"top1_correct":1,"top5_correct":2}"#;
        let read: ScoreSums = serde_json::from_str(text).unwrap();
        assert_eq!(read, super::sums(1.5, 2, [1, 2]));
        let mut sums = read;
        sums.add_to("psnr", 0, f64::INFINITY);
        let text = serde_json::to_string(&sums).unwrap();
        let read: ScoreSums = serde_json::from_str(&text).unwrap();
        assert!(read.of_metric("psnr")[0].is_nan(), "{text}");
        assert_eq!((read.loss_sum, read.top1()), (1.5, Some(0.5)));
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
