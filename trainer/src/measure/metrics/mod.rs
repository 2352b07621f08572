//! The numbers of a run: of a step, of an epoch and at the end, as they are printed and written.
//!
//! In: sums over all ranks. Out: records for `metrics.jsonl` and `summary.json`.
//! Invariant: sums travel between ranks, means are made here once; an accuracy is a share 0..1 and its exact count
//! stands beside it.

mod results;

pub use results::{StepSketch, throughput};

use distributed::reduction::Traffic;
use records::{EpochRecord, Evaluation, GradientNoise, Seconds};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::AddAssign;
use std::time::Duration;

/// Sums over samples: what ranks exchange.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct ScoreSums {
    /// Sum of the losses, nats.
    pub loss_sum: f64,
    /// Samples.
    pub num_samples: u64,
    /// Samples whose likeliest class was right.
    pub top1_correct: u64,
    /// Samples whose class was among the five likeliest.
    pub top5_correct: u64,
}

impl ScoreSums {
    /// Mean loss, nats; NaN without samples.
    pub fn loss_mean(&self) -> f64 {
        self.loss_sum / self.num_samples as f64
    }

    /// Share of the samples that are right, 0..1; NaN without samples.
    pub fn top1(&self) -> f64 {
        self.top1_correct as f64 / self.num_samples as f64
    }

    /// Share of the samples that are among the five likeliest, 0..1; NaN without samples.
    pub fn top5(&self) -> f64 {
        self.top5_correct as f64 / self.num_samples as f64
    }

    /// The means over these samples, with the metrics of the same; `None` without samples.
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

/// What a rank sent for gradients over some steps.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepTraffic {
    /// Steps.
    pub num_steps: u64,
    /// Bytes and what compression left out, altogether.
    pub total: Traffic,
}

/// One step as it is printed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepLine {
    /// From 0.
    pub epoch: u64,
    /// From 0 inside the epoch.
    pub step_in_epoch: u64,
    /// Steps of the epoch.
    pub steps_per_epoch: u64,
    /// Sums over the samples of the step, or since the last line.
    pub scores: ScoreSums,
    /// Learning rate of the step.
    pub learning_rate: f64,
    /// Time of the whole step.
    pub duration: Duration,
    /// Time of its phases.
    pub seconds: Seconds,
    /// Samples of the step over all ranks.
    pub global_num_samples: u64,
    /// Time that the rest of the run takes, where that is known.
    pub time_left: Option<Duration>,
}

/// What an epoch took, beside its scores.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EpochCost {
    /// From 0.
    pub epoch: u64,
    /// Steps done since the start of the run.
    pub step: u64,
    /// Rate of the last step.
    pub learning_rate: f64,
    /// Training speed over all ranks.
    pub images_per_second: f64,
    /// Time of the epoch with everything in it.
    pub total: Duration,
    /// Root's time by phase.
    pub seconds: Seconds,
    /// Steps of which that is.
    pub num_steps: u64,
    /// Largest resident memory of a rank, bytes.
    pub peak_memory_bytes: u64,
    /// What root sent.
    pub traffic: StepTraffic,
    /// Ranks that trained.
    pub num_ranks: usize,
    /// Steps of the run so far that were skipped because a loss or gradient was not finite.
    pub skipped_steps: u64,
    /// Factor on the loss, if it is scaled.
    pub loss_scale: Option<u32>,
    /// Steps of the run so far that were left out because scaled gradients overflowed.
    pub overflowed_steps: u64,
    /// Of all machines' processors in steps, if they tell.
    pub joules_per_image: Option<f64>,
    /// Of the epoch's gradients, if it is measured.
    pub gradient_noise: Option<GradientNoise>,
}

impl EpochCost {
    /// Makes the means of an epoch that was not evaluated; without samples, as where every step was left out, there are none.
    pub fn record(self, train: ScoreSums) -> EpochRecord {
        let counted = Some(train).filter(|train| train.num_samples > 0);
        EpochRecord {
            epoch: self.epoch,
            step: self.step,
            train_loss: counted.map(|train| train.loss_mean()),
            train_top1: counted.map(|train| train.top1()),
            train_top5: counted.map(|train| train.top5()),
            train_num_samples: train.num_samples,
            train_top1_correct: train.top1_correct,
            train_top5_correct: train.top5_correct,
            val: None,
            test: None,
            images_per_second: self.images_per_second,
            learning_rate: self.learning_rate,
            seconds: self.seconds,
            num_steps: Some(self.num_steps),
            seconds_total: self.total.as_secs_f64(),
            peak_memory_bytes: self.peak_memory_bytes,
            exposed_communication_share: self.seconds.communication
                / self.seconds.step_total().max(f64::MIN_POSITIVE),
            bytes_sent_per_step: self.traffic.total.bytes_sent / self.traffic.num_steps.max(1),
            compression_error: self.traffic.total.relative_error(),
            num_ranks: self.num_ranks,
            skipped_steps: self.skipped_steps,
            loss_scale: self.loss_scale,
            overflowed_steps: self.overflowed_steps,
            joules_per_image: self.joules_per_image,
            gradient_noise: self.gradient_noise,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn cost(epoch: u64) -> EpochCost {
        EpochCost {
            epoch,
            step: (epoch + 1) * 5,
            learning_rate: 0.05,
            images_per_second: 5.0,
            total: Duration::from_secs(3),
            seconds: Seconds {
                forward: 0.5,
                backward: 1.0,
                ..Seconds::default()
            },
            num_steps: 5,
            peak_memory_bytes: 200 << 20,
            traffic: StepTraffic::default(),
            num_ranks: 1,
            skipped_steps: 0,
            loss_scale: None,
            overflowed_steps: 0,
            joules_per_image: None,
            gradient_noise: None,
        }
    }

    pub(crate) fn record(epoch: u64, test_top1_correct: Option<u64>) -> EpochRecord {
        let sums = |top1_correct| ScoreSums {
            loss_sum: 5.0,
            num_samples: 10,
            top1_correct,
            top5_correct: 9,
        };
        let test = test_top1_correct.and_then(|correct| sums(correct).evaluation(BTreeMap::new()));
        EpochRecord {
            test,
            ..cost(epoch).record(sums(6))
        }
    }

    #[test]
    fn an_epoch_has_means_and_exact_counts() {
        let record = record(3, Some(7));
        assert_eq!(
            (
                record.train_loss,
                record.train_top1,
                record.images_per_second
            ),
            (Some(0.5), Some(0.6), 5.0)
        );
        let test = record.test.unwrap();
        assert_eq!((test.top1, test.top1_correct, test.top5), (0.7, 7, 0.9));
    }

    #[test]
    fn an_epoch_without_evaluation_writes_null() {
        let line = serde_json::to_string(&record(0, None)).unwrap();
        assert!(line.contains("\"val\":null,\"test\":null"), "{line}");
        assert_eq!(
            serde_json::from_str::<EpochRecord>(&line).unwrap(),
            record(0, None)
        );
    }

    #[test]
    fn an_epoch_without_a_counted_sample_has_no_means_and_is_read_back() {
        assert_eq!(ScoreSums::default().evaluation(BTreeMap::new()), None);
        let record = cost(0).record(ScoreSums::default());
        assert_eq!(
            (record.train_loss, record.train_top1, record.train_top5),
            (None, None, None)
        );
        assert_eq!(record.train_num_samples, 0);
        let line = serde_json::to_string(&record).unwrap();
        assert_eq!(serde_json::from_str::<EpochRecord>(&line).unwrap(), record);
    }

    #[test]
    fn sums_add_up() {
        let mut sums = ScoreSums::default();
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
}
