//! How near predictions came.
//!
//! In: predictions, measurements. Out: gaps in percent of the measured, of each cell and of all.
//! Invariant: a prediction for a repetition counts only if it was there before that began; nothing of the measured run corrects it. Beside it
//! stands one that knows nothing of communication.

use crate::measurements::{Measurement, Repetition, median};
use crate::sources::{Predictions, Round};
use records::{PredictionRecord, is_in_time};

/// A prediction within this share of the measured is near.
pub(super) const BAND: f64 = 0.1;

/// What was predicted and measured in one repetition.
pub(super) struct Pair<'f> {
    pub(super) prediction: &'f PredictionRecord,
    /// Measured, images/s.
    pub(super) speed: f64,
    /// Measured, milliseconds a step.
    pub(super) waiting_ms: Option<f64>,
}

impl Pair<'_> {
    /// In percent of the measured speed.
    fn gap(&self) -> Option<f64> {
        Some(percent(self.prediction.images_per_second?, self.speed))
    }

    /// The same of a prediction that knows one rank's step and nothing of others. Older files have it by its efficiency, where the work of a
    /// rank is fixed, or only without waiting.
    fn gap_without_communication(&self) -> Option<f64> {
        let step_ms = self.prediction.step_ms?;
        let by_efficiency = || {
            self.prediction
                .efficiency
                .map(|efficiency| efficiency * step_ms)
        };
        let without_waiting =
            || Some(step_ms - self.prediction.waiting_ms.or(self.prediction.exposed_ms)?);
        let computed_ms = self
            .prediction
            .compute_ms
            .or_else(by_efficiency)
            .or_else(without_waiting)?;
        let predicted = self.prediction.images_per_second? * step_ms / computed_ms;
        (computed_ms > 0.0).then(|| percent(predicted, self.speed))
    }

    /// In percent of the measured waiting; none of a rank that meets nobody, for which older files tell the time that its calls take.
    fn waiting_gap(&self) -> Option<f64> {
        if self.prediction.ranks == 1 && self.prediction.server_placement.as_deref() != Some("own")
        {
            return None;
        }
        let measured = self.waiting_ms.filter(|waiting_ms| *waiting_ms > 0.0)?;
        Some(percent(self.prediction.waiting_ms?, measured))
    }
}

fn percent(predicted: f64, measured: f64) -> f64 {
    100.0 * (predicted - measured) / measured
}

/// The repetitions that a prediction stands for: that which it was made for, if it was there before that began; all of the cell where
/// it was made for none.
pub(super) fn repetitions<'f>(
    file: &'f Predictions,
    prediction: &'f PredictionRecord,
    measured: &'f Measurement,
) -> Vec<Pair<'f>> {
    let pair = |prediction: &'f PredictionRecord, index: usize| {
        let waiting_ms = measured
            .repetitions
            .get(index)
            .and_then(|repetition| repetition.waiting_ms);
        Some(Pair {
            prediction,
            speed: *measured.speeds.get(index)?,
            waiting_ms,
        })
    };
    if file.rounds.is_empty() {
        return (0..measured.speeds.len())
            .filter_map(|index| pair(prediction, index))
            .collect();
    }
    let of_round = |round: &'f Round| {
        let is_its = |one: &Repetition| {
            Some(one.number) == round.prediction.repetition
                && is_in_time(&round.created, Some(&one.started))
        };
        pair(
            &round.prediction,
            measured.repetitions.iter().position(is_its)?,
        )
    };
    file.rounds.iter().filter_map(of_round).collect()
}

/// What is predicted for a cell: the middle of the predictions that count, if it has some for single repetitions.
pub(super) fn counted(
    (file, prediction, measured): (&Predictions, &PredictionRecord, &Measurement),
    value: impl Fn(&PredictionRecord) -> Option<f64>,
) -> Option<f64> {
    match file.rounds.is_empty() {
        true => value(prediction),
        false => middle(&repetitions(file, prediction, measured), |pair| {
            value(pair.prediction)
        }),
    }
}

/// How many predictions for repetitions that were measured came too late, or it is not known when those began.
pub(super) fn late(file: &Predictions, measured: &Measurement) -> usize {
    let is_late = |round: &&Round| {
        let its = measured
            .repetitions
            .iter()
            .find(|one| Some(one.number) == round.prediction.repetition);
        its.is_some_and(|one| !is_in_time(&round.created, Some(&one.started)))
    };
    file.rounds.iter().filter(is_late).count()
}

/// The middle over the repetitions.
pub(super) fn middle<'f>(
    pairs: &[Pair<'f>],
    value: impl Fn(&Pair<'f>) -> Option<f64>,
) -> Option<f64> {
    median(&pairs.iter().filter_map(value).collect::<Vec<_>>())
}

/// The gaps of all cells.
#[derive(Default)]
pub(super) struct Scores {
    gaps: Vec<f64>,
    without_communication: Vec<f64>,
    waiting: Vec<f64>,
    /// Predictions that are left out, see [`late`].
    pub(super) late: usize,
}

impl Scores {
    /// Counts a cell: its gaps, percent.
    pub(super) fn add(&mut self, repetitions: &[Pair<'_>]) -> [Option<f64>; 3] {
        let gaps = [
            middle(repetitions, Pair::gap),
            middle(repetitions, Pair::gap_without_communication),
            middle(repetitions, Pair::waiting_gap),
        ];
        let [gap, without_communication, waiting] = gaps;
        self.gaps.extend(gap);
        self.without_communication.extend(without_communication);
        self.waiting.extend(waiting);
        gaps
    }

    pub(super) fn words(&self) -> String {
        let within = |gaps: &[f64]| {
            format!(
                "{} of {}",
                gaps.iter().filter(|gap| gap.abs() <= 100.0 * BAND).count(),
                gaps.len()
            )
        };
        let unsigned = |gaps: &[f64]| {
            median(&gaps.iter().map(|gap| gap.abs()).collect::<Vec<_>>()).unwrap_or(f64::NAN)
        };
        let mut words = match self.gaps.is_empty() {
            true => "No prediction can be compared with what was measured.".to_owned(),
            false => format!(
                "{} predictions are within 10 % of the measured speed, the shaded band; the median gap without its sign is {:.1} %. Points are \
             medians of the repetitions, bars their least and most; a gap is the median of the repetitions' own.",
                within(&self.gaps),
                unsigned(&self.gaps)
            ),
        };
        if !self.without_communication.is_empty() {
            words.push_str(&format!(
                " Predicted without any communication: {} within 10 %, {:.1} %.",
                within(&self.without_communication),
                unsigned(&self.without_communication)
            ));
        }
        if let Some(signed) = median(&self.waiting) {
            words.push_str(&format!(
                " Of the waiting, mean over the ranks, the median gap is {signed:+.0} %, without its sign {:.0} %.",
                unsigned(&self.waiting)
            ));
        }
        if self.late > 0 {
            words.push_str(&format!(
                " Left out, as they were made after their run had begun, or its beginning is not known: {}.",
                self.late
            ));
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repetition_is_compared_with_the_prediction_that_was_there_before_it_began() {
        let round = |repetition: u64, created: &str, speed: f64| Round {
            created: created.to_owned(),
            prediction: PredictionRecord {
                images_per_second: Some(speed),
                step_ms: Some(100.0),
                compute_ms: Some(50.0),
                waiting_ms: Some(20.0),
                ranks: 2,
                repetition: Some(repetition),
                ..PredictionRecord::default()
            },
        };
        let began = |number: u64| Repetition {
            number,
            started: format!("2026-01-01T00:0{number}:00Z"),
            waiting_ms: Some(25.0),
        };
        let measured = Measurement {
            speeds: vec![100.0, 200.0, 300.0],
            repetitions: vec![began(1), began(2), began(3)],
            ..Measurement::default()
        };
        let rounds = vec![
            round(1, "2026-01-01T00:00:59Z", 110.0),
            round(2, "2026-01-01T00:01:59Z", 220.0),
            // Made after the run had begun.
            round(3, "2026-01-01T00:03:01Z", 300.0),
        ];
        let file = Predictions {
            rounds,
            ..Predictions::default()
        };
        let pairs = repetitions(&file, &file.rounds[0].prediction, &measured);
        assert_eq!(pairs.len(), 2);
        let mut scores = Scores::default();
        let [gap, without_communication, waiting] = scores.add(&pairs).map(|gap| gap.unwrap());
        assert!(
            (gap - 10.0).abs() < 1e-9
                && (without_communication - 120.0).abs() < 1e-9
                && (waiting + 20.0).abs() < 1e-9
        );
        assert!(
            scores.words().contains("the median gap is -20 %"),
            "{}",
            scores.words()
        );
        scores.late += late(&file, &measured);
        assert!(
            scores.words().ends_with("is not known: 1."),
            "{}",
            scores.words()
        );
        let counted = counted((&file, &file.rounds[2].prediction, &measured), |one| {
            one.images_per_second
        });
        assert_eq!(counted, Some(165.0), "the middle of both that were in time");
        let alone = PredictionRecord {
            ranks: 1,
            waiting_ms: Some(0.0),
            ..PredictionRecord::default()
        };
        assert_eq!(
            Pair {
                prediction: &alone,
                speed: 1.0,
                waiting_ms: Some(0.1)
            }
            .waiting_gap(),
            None
        );
        assert!(
            !Scores {
                late: 3,
                ..Scores::default()
            }
            .words()
            .contains("NaN")
        );
    }
}
