//! Scores of a step or an epoch, as ranks exchange them and as they are printed.
//!
//! In: sums over samples. Out: means.
//! Invariant: ranks exchange sums, and means are computed here. An accuracy is a share 0..1, and
//! its exact count is recorded with it.

mod results;

pub use results::{StepSketch, throughput};

use distributed::gradients::Traffic;
use records::{Evaluation, Seconds};
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

    /// Returns the share of samples whose class is among the five likeliest, 0..1; NaN without
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

/// A step as it is printed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepLine {
    /// From 0.
    pub epoch: u64,
    /// From 0 inside the epoch.
    pub step_in_epoch: u64,
    /// Steps of the epoch.
    pub steps_per_epoch: u64,
    /// Scores of the last step whose results are known.
    pub scores: ScoreSums,
    pub learning_rate: f64,
    pub duration: Duration,
    /// Time by phase.
    pub seconds: Seconds,
    /// Samples of the step over all ranks.
    pub global_num_samples: u64,
    /// Time left in the run, if it is known.
    pub time_left: Option<Duration>,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use records::EpochRecord;

    /// The record of an epoch of 10 images in 5 steps.
    pub(crate) fn record(epoch: u64, test_top1_correct: Option<u64>) -> EpochRecord {
        let evaluation = |top1_correct| {
            let sums = ScoreSums {
                loss_sum: 5.0,
                num_samples: 10,
                top1_correct,
                top5_correct: 9,
            };
            sums.evaluation(BTreeMap::new())
        };
        EpochRecord {
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
            ..EpochRecord::default()
        }
    }

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
}
