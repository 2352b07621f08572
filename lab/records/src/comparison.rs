//! A comparison with other frameworks: cells of a study with a framework.
//!
//! In: a [`Study`] and its attempts. Out: [`Comparison`].
//! Invariant: a throughput counts only if its losses agree with Lockstep's on the same job. Ratios
//! and speedups are taken within a round, between measurements that began within an hour.

use crate::measurement::{self, ratios};
use crate::number::nans_if_null;
use crate::{AttemptRecord, Estimate, Machine, Status, Study, StudyCell, median, text};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// Frameworks by their name in a study file, with their name in tables.
const TITLES: [(&str, &str); 6] = [
    ("lockstep", OURS),
    ("pytorch", "PyTorch DDP"),
    ("horovod", "Horovod"),
    ("tensorflow", "TensorFlow"),
    ("mxnet", "MXNet"),
    ("jax", "JAX"),
];

/// Lockstep's name in tables.
pub const OURS: &str = "Lockstep";

/// The networks with images of 224 pixels and 1,000 classes.
pub const IMAGENET: [&str; 5] = ["resnet18", "resnet34", "resnet50", "resnet101", "resnet152"];

/// The last loss that is compared is the loss after this many updates.
pub const LAST_COMPARED_UPDATE: usize = 5;

/// Quiet rounds from which on the disturbed rounds are left out: so many have an interval.
const ENOUGH_QUIET: usize = 6;

/// Updates after which losses are compared, and their relative tolerances in f32 and in bf16.
///
/// Other orders of summation differ in the last bits of each step: resnet44's losses differ by up
/// to 8e-5 after 2 and 5e-4 after 5 updates. Other samples, weights, rates or momentum differ by
/// hundredths. A missing weight decay would not be found: its part in five steps is too small.
const SMALL_TOLERANCES: [(usize, [f64; 2]); 2] =
    [(2, [5e-4, 5e-3]), (LAST_COMPARED_UPDATE, [3e-3, 2e-2])];

/// ImageNet's networks amplify last bits a thousandfold in one update: PyTorch's own three ways to
/// compute ResNet-50 in f32 differ by up to 8e-3 after one update, and by 3e-6 before. With batches
/// of 8 images, direct and Winograd convolutions differ by up to 2.5e-2 after five updates.
const IMAGENET_TOLERANCES: [(usize, [f64; 2]); 2] =
    [(0, [1e-4, 5e-3]), (LAST_COMPARED_UPDATE, [5e-2, 5e-2])];

/// All frameworks on the same jobs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Comparison {
    /// Start in UTC, RFC 3339.
    pub created: String,
    /// Commit of Lockstep's program.
    pub commit: String,
    /// Machine of the measurements.
    pub machine: Machine,
    /// Common properties of all jobs, by name.
    pub job: Vec<(String, String)>,
    /// One row for each framework and job.
    pub rows: Vec<ComparisonRow>,
    /// Runs that searched each framework's best setting.
    pub sweep: Vec<ComparisonRow>,
    /// Trainings on images.
    pub accuracy: Vec<Course>,
}

/// One framework in one setting on one job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ComparisonRow {
    /// Name in tables.
    pub framework: String,
    /// Version of the framework.
    pub version: String,
    /// Execution mode that the framework reports.
    pub variant: String,
    /// Options other than the framework's own defaults, by name.
    pub setting: BTreeMap<String, String>,
    /// Name of the option that a search varied; empty in the rounds of a comparison.
    pub tried: String,
    /// Network.
    pub model: String,
    /// Number format.
    pub dtype: String,
    /// Launcher of the ranks, or the emulated network.
    pub launcher: String,
    /// Library that carries the gradients.
    pub communication: String,
    /// Ranks.
    pub ranks: u64,
    /// Compute threads of each rank.
    pub threads: u64,
    /// Attempts of the rounds that count, ascending.
    pub rounds: Vec<AttemptRecord>,
    /// Reason why rounds are missing.
    pub gap: Option<String>,
    /// Speed over Lockstep's.
    pub ratio: Option<Estimate>,
    /// Speed over the framework's own single rank.
    pub speedup: Option<Estimate>,
    /// True if the losses agree with Lockstep's; `None` if either has none.
    pub loss_agrees: Option<bool>,
    /// True if the speed is comparable.
    pub counts: bool,
}

/// Training of one framework on images.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Course {
    /// Name in tables.
    pub framework: String,
    /// Network.
    pub model: String,
    /// Number format.
    pub dtype: String,
    /// Compute threads.
    pub threads: u64,
    /// Epochs of the job.
    pub num_epochs: u64,
    /// Seed of the initial weights, the order and the augmentation.
    pub seed: u64,
    /// Folder of the images.
    pub data_dir: String,
    /// Epochs, ascending.
    pub epochs: Vec<CourseEpoch>,
    /// Reason for missing epochs.
    pub gap: Option<String>,
}

/// Epoch of another framework's training.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CourseEpoch {
    /// Number of the epoch, from 1.
    pub epoch: u64,
    /// Mean training loss, nats.
    pub train_loss: Option<f64>,
    /// Share of correct answers on the test images, 0..1.
    pub test_top1: Option<f64>,
    /// Seconds of training and evaluation since all images were decoded.
    pub elapsed_s: Option<f64>,
    /// Training images over the seconds of the epoch without its evaluation.
    pub images_per_second: Option<f64>,
}

/// Output of a rank or server of another framework.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PeerResult {
    /// Version of the framework.
    pub version: String,
    /// Execution mode.
    pub variant: String,
    /// Library that carries the gradients.
    pub communication: String,
    /// Seconds of the measured steps.
    pub seconds: Option<f64>,
    /// Losses of this rank in all steps, nats.
    #[serde(deserialize_with = "nans_if_null")]
    pub losses: Vec<f64>,
    /// Peak memory, bytes.
    pub peak_memory_bytes: u64,
    /// Bytes after the import of the framework.
    pub import_memory_bytes: u64,
    /// Start and end of the measured steps, seconds since 1970.
    pub measured_unix_s: Option<[f64; 2]>,
    /// Epochs of a training on images.
    pub epochs: Vec<CourseEpoch>,
}

impl Comparison {
    /// Returns the comparison in a study, if cells of the study name a framework.
    pub fn of(study: &Study, attempts: &[AttemptRecord]) -> Option<Self> {
        let cells: Vec<&StudyCell> = study
            .cells
            .iter()
            .filter(|cell| cell.settings.contains_key("framework"))
            .collect();
        let first = cells.first()?;
        let rows = |is_tried: bool| {
            let benches = cells
                .iter()
                .filter(|cell| cell.kind == "bench" && cell.tried.is_empty() != is_tried);
            let mut rows: Vec<ComparisonRow> = benches
                .map(|cell| ComparisonRow::of(cell, attempts))
                .collect();
            judge(&mut rows);
            rows
        };
        const COMMON: [&str; 4] = ["batch_size_per_rank", "steps", "warmup_steps", "threads"];
        let common = COMMON
            .iter()
            .map(|key| ((*key).to_owned(), first.setting(key)))
            .filter(|(_, value)| !value.is_empty());
        let rounds = ("rounds".to_owned(), first.repetitions.to_string());
        let trainings = cells.iter().filter(|cell| cell.kind == "train");
        Some(Comparison {
            created: study.created.clone().unwrap_or_default(),
            commit: study.commit.clone().unwrap_or_default(),
            machine: study.machine.clone(),
            job: common.chain([rounds]).collect(),
            rows: rows(false),
            sweep: rows(true),
            accuracy: trainings
                .flat_map(|cell| Course::all(cell, attempts))
                .collect(),
        })
    }
}

/// Returns the attempts of a cell that count, and the reason why a repetition has none.
fn counted<'a>(
    cell: &StudyCell,
    attempts: &'a [AttemptRecord],
) -> (Vec<&'a AttemptRecord>, Option<String>) {
    let of_cell: Vec<&AttemptRecord> = attempts.iter().filter(|one| one.cell == cell.id).collect();
    let counted = measurement::counted(cell, attempts);
    let is_counted = |number: u64| counted.iter().any(|one| one.repetition == number);
    let gap = of_cell
        .iter()
        .rfind(|one| one.status == Status::Failed && !is_counted(one.repetition))
        .map(|one| {
            let why = one.why.clone();
            why.unwrap_or_else(|| "reason not recorded".to_owned())
        });
    (counted, gap)
}

fn title(cell: &StudyCell) -> String {
    let word = cell.setting("framework");
    let known = TITLES.iter().find(|(known, _)| *known == word);
    known.map_or(word.clone(), |(_, title)| (*title).to_owned())
}

impl ComparisonRow {
    /// Returns the row of a cell, not yet judged against others.
    pub fn of(cell: &StudyCell, attempts: &[AttemptRecord]) -> Self {
        let (counted, gap) = counted(cell, attempts);
        let number = |key: &str| cell.settings.get(key).and_then(Value::as_u64).unwrap_or(1);
        let last = counted.last().map_or(&Value::Null, |one| &one.result);
        let word = |key: &str| text(&last[key]).unwrap_or_default();
        let ranks = number("ranks");
        let variant = match word("kernels").as_str() {
            "" => word("variant"),
            kernels => format!("{kernels} kernels"),
        };
        // The library describes itself at length after its name and version.
        let communication = match word("gradients").as_str() {
            "" => word("communication"),
            _ if ranks == 1 => "none".to_owned(),
            gradients => {
                let library = word("communication");
                format!("{gradients}, {}", library.split(',').next().unwrap_or(""))
            }
        };
        let launcher = match cell.setting("launcher").as_str() {
            "hosts" => format!("hosts:{}", cell.setting("network")),
            launcher => launcher.to_owned(),
        };
        ComparisonRow {
            framework: title(cell),
            version: word("version"),
            variant,
            setting: cell.setting.clone(),
            tried: cell.tried.clone(),
            model: cell.setting("model"),
            dtype: cell.setting("dtype"),
            launcher,
            communication,
            ranks,
            threads: number("threads"),
            rounds: counted
                .into_iter()
                .filter(|one| one.images_per_second().is_some())
                .cloned()
                .collect(),
            gap,
            ..ComparisonRow::default()
        }
    }

    /// Returns whether the row is Lockstep's.
    pub fn is_ours(&self) -> bool {
        self.framework == OURS
    }

    /// Returns what rows must share to be compared: network, number format, ranks, and the emulated
    /// network between the hosts.
    pub fn job(&self) -> (&str, &str, u64, &str) {
        let network = self.launcher.strip_prefix("hosts:").unwrap_or_default();
        (&self.model, &self.dtype, self.ranks, network)
    }

    fn quiet_rounds(&self) -> impl Iterator<Item = &AttemptRecord> + Clone {
        let rounds = self.rounds.iter();
        rounds.filter(|round| round.status != Status::Disturbed)
    }

    /// Returns the number of rounds during which other programs used the CPUs.
    pub fn num_disturbed(&self) -> usize {
        self.rounds.len() - self.quiet_rounds().count()
    }

    /// Returns the median images/s of all rounds, without disturbed ones if enough are quiet.
    pub fn speed(&self) -> Option<f64> {
        match self.quiet_rounds().count() >= ENOUGH_QUIET {
            true => middle(self.quiet_rounds()),
            false => middle(self.rounds.iter()),
        }
    }

    /// Returns the largest value of any round.
    pub fn most(&self, of_round: impl Fn(&Value) -> Option<u64>) -> Option<u64> {
        let rounds = self.rounds.iter();
        rounds.filter_map(|round| of_round(&round.result)).max()
    }

    /// Returns the largest memory of a rank in any round, bytes.
    pub fn peak_memory_bytes(&self) -> Option<u64> {
        self.most(|result| result["peak_memory_bytes"].as_u64())
    }

    /// Returns the mean loss over all ranks of the first round after this many updates, nats.
    pub fn loss_after(&self, updates: usize) -> Option<f64> {
        loss_after(self.rounds.first()?, updates)
    }

    /// Returns whether all rounds have the losses of `ours`; `None` if either has none.
    pub fn agrees_with(&self, ours: &ComparisonRow) -> Option<bool> {
        let tolerances = match IMAGENET.contains(&self.model.as_str()) {
            true => IMAGENET_TOLERANCES,
            false => SMALL_TOLERANCES,
        };
        let expected = ours.rounds.first()?;
        if self.rounds.is_empty() {
            return None;
        }
        let format = usize::from(self.dtype == "bf16");
        let is_near = |round: &AttemptRecord| {
            tolerances.iter().all(|(updates, tolerances)| {
                let losses = loss_after(round, *updates).zip(loss_after(expected, *updates));
                // A difference of NaN is not near.
                losses.is_some_and(|(got, expected)| {
                    (got - expected).abs() <= tolerances[format] * expected.abs()
                })
            })
        };
        Some(self.rounds.iter().all(is_near))
    }

    fn is_same_job(&self, other: &ComparisonRow) -> bool {
        self.model == other.model && self.dtype == other.dtype
    }

    /// Estimates the speed over that of another row from the rounds that both have.
    fn over(&self, other: &ComparisonRow) -> Option<Estimate> {
        let quiet = ratios(self.quiet_rounds(), other.quiet_rounds());
        match quiet.len() >= ENOUGH_QUIET {
            true => Estimate::of(&quiet),
            false => Estimate::of(&ratios(self.rounds.iter(), other.rounds.iter())),
        }
    }
}

fn middle<'a>(rounds: impl Iterator<Item = &'a AttemptRecord>) -> Option<f64> {
    let mut speeds: Vec<f64> = rounds
        .filter_map(AttemptRecord::images_per_second)
        .collect();
    (!speeds.is_empty()).then(|| median(&mut speeds))
}

/// Returns a loss, NaN where JSON has null; `None` if the round has fewer steps.
fn loss_after(round: &AttemptRecord, updates: usize) -> Option<f64> {
    let loss = round.result["losses"].get(updates)?;
    Some(loss.as_f64().unwrap_or(f64::NAN))
}

/// Decides which rows count, and sets their ratios and speedups.
fn judge(rows: &mut [ComparisonRow]) {
    for index in 0..rows.len() {
        let row = &rows[index];
        let ours = ours_beside(row, rows);
        rows[index].loss_agrees = ours.and_then(|ours| row.agrees_with(ours));
    }
    for row in &mut *rows {
        row.counts = !row.rounds.is_empty() && row.loss_agrees == Some(true);
    }
    // By definition, not by measurement.
    let one = Some(Estimate {
        median: 1.0,
        interval: None,
    });
    for index in 0..rows.len() {
        let row = &rows[index];
        if !row.counts {
            continue;
        }
        let ratio = match ours_beside(row, rows) {
            Some(ours) if std::ptr::eq(ours, row) => one,
            ours => ours.and_then(|ours| row.over(ours)),
        };
        // On one rank Horovod is PyTorch.
        let single = match row.framework.as_str() {
            "Horovod" => "PyTorch DDP",
            own => own,
        };
        let single = rows.iter().find(|other| {
            other.framework == single && other.ranks == 1 && other.counts && other.is_same_job(row)
        });
        let speedup = match single {
            Some(single) if std::ptr::eq(single, row) => one,
            single => single.and_then(|single| row.over(single)),
        };
        rows[index].ratio = ratio;
        rows[index].speedup = speedup;
    }
}

/// Returns Lockstep's row on the same job over the same network.
fn ours_beside<'r>(row: &ComparisonRow, rows: &'r [ComparisonRow]) -> Option<&'r ComparisonRow> {
    let mut rows = rows.iter();
    rows.find(|other| other.is_ours() && other.job() == row.job())
}

impl Course {
    /// Returns the trainings of a cell, one for each seed; one with the reason if none succeeded.
    fn all(cell: &StudyCell, attempts: &[AttemptRecord]) -> Vec<Self> {
        let (counted, gap) = counted(cell, attempts);
        let number = |key: &str| cell.settings.get(key).and_then(Value::as_u64).unwrap_or(0);
        let course = Course {
            framework: title(cell),
            model: cell.setting("model"),
            dtype: cell.setting("dtype"),
            threads: number("threads"),
            num_epochs: number("epochs"),
            seed: number("seed"),
            data_dir: cell.setting("data_dir"),
            ..Course::default()
        };
        if counted.is_empty() {
            return gap
                .map(|gap| Course {
                    gap: Some(gap),
                    ..course
                })
                .into_iter()
                .collect();
        }
        let one = |attempt: &&AttemptRecord| Course {
            seed: course.seed + attempt.repetition.saturating_sub(1),
            epochs: serde_json::from_value(attempt.result["epochs"].clone()).unwrap_or_default(),
            ..course.clone()
        };
        counted.iter().map(one).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A row of resnet20 whose losses begin with 3 and have these values after 2 and 5 updates.
    fn row(framework: &str, ranks: u64, speeds: &[f64], losses: [f64; 2]) -> ComparisonRow {
        let round = |(index, speed): (usize, &f64)| AttemptRecord {
            repetition: index as u64 + 1,
            result: serde_json::json!({
                "images_per_second": speed,
                "losses": [3.0, 3.0, losses[0], 2.0, 2.0, losses[1]],
            }),
            ..AttemptRecord::default()
        };
        ComparisonRow {
            framework: framework.to_owned(),
            model: "resnet20".to_owned(),
            dtype: "f32".to_owned(),
            ranks,
            rounds: speeds.iter().enumerate().map(round).collect(),
            ..ComparisonRow::default()
        }
    }

    const SAME: [f64; 2] = [2.5, 2.0];

    fn judged<const N: usize>(mut rows: [ComparisonRow; N]) -> [ComparisonRow; N] {
        judge(&mut rows);
        rows
    }

    fn near(estimate: Option<Estimate>, expected: f64) -> bool {
        estimate.is_some_and(|estimate| (estimate.median - expected).abs() < 1e-9)
    }

    #[test]
    fn ratio_and_speedup_are_taken_in_each_round() {
        let rows = judged([
            // The machine is three times as fast in the second round.
            row(OURS, 1, &[100.0, 300.0, 110.0], SAME),
            row(OURS, 2, &[200.0, 540.0, 220.0], SAME),
            row("JAX", 1, &[50.0, 150.0, 55.0], [2.5001, 2.001]),
            row("JAX", 2, &[80.0, 240.0], SAME),
            row("PyTorch DDP", 1, &[50.0], SAME),
            row("Horovod", 2, &[80.0], SAME),
        ]);
        assert_eq!(rows[1].speed(), Some(220.0));
        assert!(rows[1].counts && near(rows[1].speedup, 2.0));
        assert!(near(rows[3].ratio, (0.4 + 240.0 / 540.0) / 2.0));
        assert!(near(rows[3].speedup, 1.6));
        assert_eq!(
            rows[3].ratio.unwrap().interval,
            None,
            "two rounds are too few"
        );
        assert!(near(rows[5].speedup, 1.6), "Horovod on one rank is PyTorch");
    }

    #[test]
    fn imagenet_s_networks_agree_before_the_first_update_and_later_to_hundredths() {
        let of = |first: f64, last: f64| {
            let mut row = row("PyTorch DDP", 1, &[100.0], [2.5, last]);
            row.model = "resnet50".to_owned();
            row.rounds[0].result["losses"][0] = first.into();
            row
        };
        let ours = of(3.0, 2.0);
        for (first, last, agrees) in [
            (3.0002, 2.09, true),
            (3.001, 2.0, false),
            (3.0, 2.11, false),
        ] {
            assert_eq!(of(first, last).agrees_with(&ours), Some(agrees));
        }
    }

    #[test]
    fn disturbed_rounds_count_only_where_few_are_quiet_and_rounds_of_another_day_are_no_pair() {
        let mut rows = [
            row(OURS, 1, &[100.0; 7], SAME),
            row("JAX", 1, &[50.0, 50.0, 50.0, 50.0, 50.0, 50.0, 1.0], SAME),
        ];
        rows[1].rounds[6].status = Status::Disturbed;
        let ratio = |rows: &[ComparisonRow; 2]| judged(rows.clone())[1].ratio.unwrap();
        assert_eq!(ratio(&rows).interval, Some([0.5, 0.5]), "six quiet rounds");
        for (round, begin) in [(0, "2026-11-24T10:00:00Z"), (1, "2026-11-25T10:00:00Z")] {
            rows[0].rounds[round].started = Some("2026-11-24T10:00:00Z".to_owned());
            rows[1].rounds[round].started = Some(begin.to_owned());
        }
        assert_eq!(
            ratio(&rows).interval,
            Some([0.01, 0.5]),
            "the disturbed one is needed"
        );
        for (num_quiet, expected) in [(6, 100.0), (5, 60.0)] {
            let speeds = [vec![100.0; num_quiet], vec![20.0; num_quiet]].concat();
            let mut row = row(OURS, 1, &speeds, SAME);
            for round in &mut row.rounds[num_quiet..] {
                round.status = Status::Disturbed;
            }
            assert_eq!(row.speed(), Some(expected), "{num_quiet} quiet rounds");
        }
    }

    #[test]
    fn a_speed_of_other_work_does_not_count() {
        for losses in [[2.51, 2.0], [2.5, 2.1], [f64::NAN, 2.0]] {
            let rows = judged([
                row(OURS, 1, &[100.0], SAME),
                row("MXNet", 1, &[900.0], losses),
                row("MXNet", 2, &[9.0], losses),
            ]);
            assert_eq!(rows[1].loss_agrees, Some(false));
            assert_eq!(
                (rows[1].counts, rows[1].ratio, rows[2].speedup),
                (false, None, None)
            );
        }
        let alone = judged([row("MXNet", 1, &[900.0], SAME)]);
        assert_eq!((alone[0].loss_agrees, alone[0].counts), (None, false));
    }

    #[test]
    fn a_study_with_frameworks_is_a_comparison_with_its_gaps() {
        let value = serde_json::json!({
            "cells": [
                { "id": "a", "kind": "bench", "settings": { "framework": "lockstep", "model": "resnet20", "ranks": 2, "launcher": "mpirun", "steps": 4 } },
                { "id": "b", "kind": "bench", "settings": { "framework": "jax", "ranks": 2 }, "setting": { "xla": "on" } },
                { "id": "c", "kind": "train", "settings": { "framework": "jax", "epochs": 1, "seed": 7 } },
                { "id": "d", "kind": "bench", "settings": {} },
                { "id": "e", "kind": "bench", "settings": { "framework": "jax" }, "tried": "xla" },
            ],
        });
        let study: Study = serde_json::from_value(value).unwrap();
        let attempt = |cell: &str, status: &str, result: Value| -> AttemptRecord {
            let record = serde_json::json!({ "cell": cell, "repetition": 2, "attempt": 1, "status": status, "why": "no JAX", "result": result });
            serde_json::from_value(record).unwrap()
        };
        let ours = serde_json::json!({ "images_per_second": 9.5, "losses": [3.0, null], "kernels": "fused",
            "gradients": "shared memory", "communication": "Open MPI 4.1, and so on" });
        let epochs = serde_json::json!({ "epochs": [{ "epoch": 1, "test_top1": 0.5 }] });
        let attempts = [
            attempt("a", "disturbed", ours),
            attempt("b", "failed", Value::Null),
            attempt("c", "ok", epochs),
        ];
        let comparison = Comparison::of(&study, &attempts).unwrap();
        let ours = &comparison.rows[0];
        assert_eq!(ours.variant, "fused kernels");
        assert_eq!(ours.communication, "shared memory, Open MPI 4.1");
        assert!(ours.rounds[0].status == Status::Disturbed && ours.loss_after(1).unwrap().is_nan());
        assert_eq!(comparison.rows[1].gap.as_deref(), Some("no JAX"));
        assert_eq!(comparison.rows[1].setting["xla"], "on");
        assert_eq!((comparison.rows.len(), comparison.sweep.len()), (2, 1));
        let course = &comparison.accuracy[0];
        assert_eq!((course.seed, course.epochs[0].test_top1), (8, Some(0.5)));
        assert!(Comparison::of(&Study::default(), &attempts).is_none());
    }
}
