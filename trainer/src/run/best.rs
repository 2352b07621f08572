//! Chooses the best model of a run, and ends a run without a better one.
//!
//! In: `--monitor`, `--patience`, the evaluated split, the program's loss and metrics. Out: a
//! [`BestRule`].
//! Invariant: every rank decides by the bits of root.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use distributed::Communicator;
use records::{Best, Evaluation};

use crate::config::Monitor;
use crate::measure::gather::from_root;
use crate::run::checkpoint::Progress;
use crate::task::Goal;

/// Rule by which evaluations are compared.
#[derive(Clone, Debug)]
pub struct BestRule {
    /// The split and the figure, such as `val-top1`.
    pub monitor: String,
    goal: Goal,
    /// Number of evaluations without a better one after which the run ends.
    patience: Option<u64>,
}

impl BestRule {
    /// Returns the rule of a run that evaluates `split` in its epochs, and a warning if `monitor`
    /// names another split. Without `--monitor` the rule is `goal`. `metrics` names the figures
    /// besides the loss, each with true if lower is better.
    ///
    /// # Errors
    /// If the run does not have the metric, or `monitor` names the test split of a run
    /// that has a val split.
    pub fn new(
        monitor: Option<&Monitor>,
        patience: Option<u64>,
        split: &str,
        goal: Goal,
        metrics: &BTreeMap<String, bool>,
    ) -> Result<(Self, Option<String>)> {
        let goal = match monitor.map(|monitor| &monitor.figure) {
            None => {
                ensure!(
                    goal.figure == "loss" || metrics.contains_key(&goal.figure),
                    "Task::goal: expected loss or a metric of the task, got {}",
                    goal.figure
                );
                goal
            }
            Some(figure) if figure == "loss" => Goal::min("loss"),
            Some(figure) => {
                let lower_is_better = *metrics.get(figure).with_context(|| {
                    let names = ["loss"]
                        .into_iter()
                        .chain(metrics.keys().map(String::as_str));
                    let known: Vec<String> = names.map(|name| format!("{split}-{name}")).collect();
                    format!(
                        "--monitor: unknown figure (expected one of {}, got {}-{figure})",
                        known.join(", "),
                        monitor
                            .and_then(|monitor| monitor.split.as_deref())
                            .unwrap_or(split)
                    )
                })?;
                Goal {
                    figure: figure.clone(),
                    lower_is_better,
                }
            }
        };
        let figure = &goal.figure;
        let named = monitor
            .and_then(|monitor| monitor.split.as_deref())
            .filter(|named| *named != split);
        ensure!(
            named != Some("test"),
            "--monitor: the test split chooses nothing in a run with a val split (expected val-{figure}, got test-{figure}). Remove the val split or monitor it"
        );
        let warning = named.map(|named| {
            format!("--monitor {named}-{figure}: there is no {named} split, so {split}-{figure} is used. --val-fraction makes a val split")
        });
        Ok((
            Self {
                monitor: format!("{split}-{figure}"),
                goal,
                patience,
            },
            warning,
        ))
    }

    /// Returns true if a lower figure is better.
    pub fn lower_is_better(&self) -> bool {
        self.goal.lower_is_better
    }

    /// Returns the figure of an evaluation, the same on all ranks; NaN if the task lacks it.
    /// Collective: all ranks.
    pub fn figure(&self, scores: &Evaluation, communicator: &dyn Communicator) -> Result<f64> {
        let value = scores.value(&self.goal.figure).unwrap_or(f64::NAN);
        // Sums of f64 may differ in the last bit from rank to rank, which would decide a tie
        // differently.
        let of_root = from_root(communicator, &value.to_le_bytes())?;
        Ok(of_root.try_into().map_or(value, f64::from_le_bytes))
    }

    /// Notes the figure of an epoch. Returns true if it is the best so far; a figure that is not
    /// finite never is.
    pub fn note(&self, progress: &mut Progress, value: f64) -> bool {
        let is_better = |best: &Best| {
            if self.goal.lower_is_better {
                value < best.value
            } else {
                value > best.value
            }
        };
        let is_best = value.is_finite() && progress.best.as_ref().is_none_or(is_better);
        if is_best {
            progress.best = Some(Best {
                epoch: progress.epoch,
                monitor: self.monitor.clone(),
                value,
            });
            progress.evaluations_since_best = 0;
        } else {
            progress.evaluations_since_best += 1;
        }
        is_best
    }

    /// Forgets a best evaluation that another figure or split has chosen, and returns a warning
    /// about it.
    pub fn forget_other(&self, progress: &mut Progress) -> Option<String> {
        progress.forget_best(
            |best| best.monitor != self.monitor,
            &format!("{} chooses now", self.monitor),
        )
    }

    /// Returns true if `--patience` ends the run.
    pub fn is_exhausted(&self, progress: &Progress) -> bool {
        self.patience
            .is_some_and(|patience| progress.evaluations_since_best >= patience)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use distributed::communicator::SingleCommunicator;

    fn rule(monitor: Option<&str>, split: &str, goal: Goal) -> Result<(BestRule, Option<String>)> {
        let monitor: Option<Monitor> = monitor.map(|text| text.parse().unwrap());
        let metrics = [("top1".to_owned(), false), ("cost".to_owned(), true)];
        BestRule::new(monitor.as_ref(), Some(2), split, goal, &metrics.into())
    }

    #[test]
    fn the_best_is_that_of_the_monitored_figure_and_patience_counts_evaluations_since_it() {
        let scores = |loss, top1, cost| Evaluation {
            loss,
            top1: Some(top1),
            metrics: [("cost".to_owned(), cost)].into(),
            ..Evaluation::default()
        };
        // Loss, top-1, cost of five epochs.
        let course = [
            (3.0, 0.5, f64::NAN),
            (2.0, 0.5, 7.0),
            (2.5, 0.6, 8.0),
            (2.0, 0.4, 6.0),
            (2.1, 0.3, 9.0),
        ];
        for (monitor, goal, name, best, exhausted) in [
            (
                None,
                Goal::max("top1"),
                "val-top1",
                (2, 0.6),
                vec![false, false, false, false, true],
            ),
            (
                None,
                Goal::min("loss"),
                "val-loss",
                (1, 2.0),
                vec![false, false, false, true, true],
            ),
            (
                Some("val-cost"),
                Goal::min("loss"),
                "val-cost",
                (3, 6.0),
                vec![false; 5],
            ),
        ] {
            let (rule, _) = rule(monitor, "val", goal).unwrap();
            let mut progress = Progress::default();
            let mut seen = Vec::new();
            for (loss, top1, cost) in course {
                let scores = scores(loss, top1, cost);
                let figure = rule.figure(&scores, &SingleCommunicator::new()).unwrap();
                rule.note(&mut progress, figure);
                progress.begin_next_epoch();
                seen.push(rule.is_exhausted(&progress));
            }
            let got = progress.best.clone().unwrap();
            assert_eq!((got.monitor.as_str(), (got.epoch, got.value)), (name, best));
            assert_eq!(seen, exhausted, "{name}");
            assert_eq!(rule.forget_other(&mut progress), None);
        }
    }

    #[test]
    fn a_monitor_of_an_absent_split_is_a_warning_and_of_test_in_a_run_with_val_an_error() {
        let (rule_of_test, warning) = rule(Some("val-loss"), "test", Goal::max("top1")).unwrap();
        assert_eq!(rule_of_test.monitor, "test-loss");
        assert!(
            warning
                .unwrap()
                .contains("there is no val split, so test-loss is used")
        );
        assert!(
            rule(Some("test-loss"), "val", Goal::max("top1"))
                .unwrap_err()
                .to_string()
                .contains("expected val-loss")
        );
        let unknown = rule(Some("val-cots"), "val", Goal::max("top1"))
            .unwrap_err()
            .to_string();
        assert!(
            unknown.contains("(expected one of val-loss, val-cost, val-top1, got val-cots)"),
            "{unknown}"
        );
        let best = Best {
            epoch: 3,
            monitor: "test-top1".to_owned(),
            value: 0.5,
        };
        let mut progress = Progress {
            best: Some(best),
            ..Progress::default()
        };
        assert!(
            rule_of_test
                .forget_other(&mut progress)
                .unwrap()
                .contains("test-top1 0.5000 after epoch 4")
        );
        assert_eq!(progress.best, None);
    }
}
