//! Evaluations: in metrics.jsonl and summary.json; by class in evaluation.json and eval --json.
//!
//! Invariant: the key or `split` names the split; each accuracy is a share 0..1 and has an exact
//! count.

use crate::number::{nan_if_null, nans_of_names};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Scores of a model on a whole split.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Evaluation {
    /// Mean loss, by default cross entropy in nats.
    #[serde(deserialize_with = "nan_if_null")]
    pub loss: f64,
    /// Share of correct answers, 0..1; absent if the task has no classes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top1: Option<f64>,
    /// Share of samples whose label is among the first five answers, 0..1; absent as `top1`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top5: Option<f64>,
    /// Evaluated samples.
    pub num_samples: u64,
    /// Count behind `top1`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top1_correct: Option<u64>,
    /// Count behind `top5`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top5_correct: Option<u64>,
    /// Other metrics by name; null if a value is not finite.
    #[serde(
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "nans_of_names"
    )]
    pub metrics: BTreeMap<String, f64>,
}

impl Evaluation {
    /// Returns a score by name: `loss`, `top1`, `top5` or a metric.
    pub fn value(&self, figure: &str) -> Option<f64> {
        match figure {
            "loss" => Some(self.loss),
            "top1" if self.top1.is_some() => self.top1,
            "top5" if self.top5.is_some() => self.top5,
            name => self.metrics.get(name).copied(),
        }
    }
}

/// Best evaluation of a run; the earliest of equals.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// Epoch of the model.
    pub epoch: u64,
    /// Split and score by which the best epoch is chosen, such as `val-top1`, `val-loss` or
    /// `test-top1`.
    pub monitor: String,
    /// Value of that score; an accuracy is a share 0..1.
    pub value: f64,
}

/// Evaluation on the test split at the end of a run with a val split.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FinalTest {
    /// Epoch of the evaluated model, which was best on the val split.
    pub epoch: u64,
    /// Scores.
    #[serde(flatten)]
    pub scores: Evaluation,
}

/// An evaluation by class.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct EvaluationByClass {
    /// Evaluated split: `train`, `val`, `test`, or the name given as `--eval-split`.
    pub split: String,
    /// Epoch of the evaluated model; absent (null) in eval.
    pub epoch: Option<u64>,
    /// Name of the data set with the split.
    pub dataset: String,
    /// SHA-256 of the split in hexadecimal.
    pub dataset_checksum: String,
    /// Scores over all classes.
    #[serde(flatten)]
    pub scores: Evaluation,
    /// Classes in label order.
    #[serde(default)]
    pub classes: Vec<ClassScore>,
    /// Samples by class (rows) and answer (columns); absent (null) above 2,048 classes and
    /// without classes.
    pub confusion_matrix: Option<Vec<Vec<u64>>>,
}

/// Scores of one class.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ClassScore {
    /// Name of the class.
    pub name: String,
    /// Samples of the class.
    pub num_samples: u64,
    /// Correct answers.
    pub correct: u64,
    /// Up to three wrong answers, most frequent first.
    #[serde(default)]
    pub confused_with: Vec<Confusion>,
}

/// Wrong answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Confusion {
    /// Answered class.
    pub name: String,
    /// Samples with this answer.
    pub count: u64,
}

/// Most classes of a [confusion matrix](EvaluationByClass::confusion_matrix).
const MOST_CLASSES_OF_A_MATRIX: usize = 2048;

const MOST_CONFUSIONS: usize = 3;

impl ClassScore {
    /// Returns the share of correct answers, 0..1; `None` without samples.
    pub fn accuracy(&self) -> Option<f64> {
        (self.num_samples > 0).then(|| self.correct as f64 / self.num_samples as f64)
    }
}

impl EvaluationByClass {
    /// Adds classes and matrix from the count of each (label, answer).
    #[must_use]
    pub fn with_counts(self, names: &[String], counts: &BTreeMap<(u32, u32), u64>) -> Self {
        let name = |class: u32| {
            names
                .get(class as usize)
                .cloned()
                .unwrap_or_else(|| class.to_string())
        };
        let class = |class: u32| {
            let row = || {
                counts
                    .range((class, 0)..=(class, u32::MAX))
                    .map(|(&(_, answer), &count)| (answer, count))
            };
            let mut wrong: Vec<(u32, u64)> = row().filter(|(answer, _)| *answer != class).collect();
            // Stable: of equal counts the lower class comes first.
            wrong.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
            let confusion = |(answer, count)| Confusion {
                name: name(answer),
                count,
            };
            ClassScore {
                name: name(class),
                num_samples: row().map(|(_, count)| count).sum(),
                correct: counts.get(&(class, class)).copied().unwrap_or(0),
                confused_with: wrong
                    .into_iter()
                    .take(MOST_CONFUSIONS)
                    .map(confusion)
                    .collect(),
            }
        };
        // A model may have further answers than the split has classes.
        let num_answers = counts
            .keys()
            .map(|(_, answer)| *answer as usize + 1)
            .max()
            .unwrap_or(0)
            .max(names.len());
        let row = |class: u32| {
            (0..num_answers as u32)
                .map(|answer| counts.get(&(class, answer)).copied().unwrap_or(0))
                .collect()
        };
        let classes = 0..names.len() as u32;
        let fits = (1..=MOST_CLASSES_OF_A_MATRIX).contains(&num_answers);
        Self {
            classes: classes.clone().map(class).collect(),
            confusion_matrix: fits.then(|| classes.map(row).collect()),
            ..self
        }
    }

    /// Returns the classes with samples, lowest accuracy first.
    pub fn worst_first(&self) -> Vec<&ClassScore> {
        let mut classes: Vec<&ClassScore> = self
            .classes
            .iter()
            .filter(|class| class.num_samples > 0)
            .collect();
        classes.sort_by(|a, b| {
            a.accuracy()
                .partial_cmp(&b.accuracy())
                .unwrap_or(std::cmp::Ordering::Equal)
        });
        classes
    }

    /// Returns confusions as (class, answer, samples), most frequent first.
    pub fn confusions<'a>(&'a self) -> Vec<(&'a str, &'a str, u64)> {
        let of_class = |class: &'a ClassScore| {
            let name = class.name.as_str();
            class
                .confused_with
                .iter()
                .map(move |confusion| (name, confusion.name.as_str(), confusion.count))
        };
        let mut all: Vec<_> = self.classes.iter().flat_map(of_class).collect();
        all.sort_by_key(|(.., count)| std::cmp::Reverse(*count));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_and_matrix_are_those_of_the_counts() {
        let counts = BTreeMap::from([((0, 0), 5), ((0, 2), 3), ((0, 1), 3), ((2, 0), 1)]);
        let names = ["cat", "dog", "owl"].map(str::to_owned);
        let by_class = EvaluationByClass::default().with_counts(&names, &counts);
        assert_eq!(
            by_class.confusion_matrix,
            Some(vec![vec![5, 3, 3], vec![0; 3], vec![1, 0, 0]])
        );
        let scores: Vec<_> = by_class
            .classes
            .iter()
            .map(|class| (class.num_samples, class.correct))
            .collect();
        assert_eq!(scores, [(11, 5), (0, 0), (1, 0)]);
        assert_eq!(
            by_class.confusions(),
            [("cat", "dog", 3), ("cat", "owl", 3), ("owl", "cat", 1)]
        );
        let worst: Vec<&str> = by_class
            .worst_first()
            .iter()
            .map(|class| class.name.as_str())
            .collect();
        assert_eq!(
            worst,
            ["owl", "cat"],
            "a class without samples has no accuracy"
        );
        let text = serde_json::to_string(&by_class).unwrap();
        assert_eq!(
            serde_json::from_str::<EvaluationByClass>(&text).unwrap(),
            by_class
        );
    }
}
