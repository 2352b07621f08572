//! Predictions compared with measurements.
//!
//! In: predictions, measurements. Out: a figure around the line of equality, tables.
//! Invariant: a prediction is compared with the cell that it names, or with the only measurement of its settings; a gap
//! is relative to the measurement. A prediction for one repetition counts only if it was made before that repetition
//! started.

use super::{Facts, spread_cells};
use crate::chart::{Axis, Kind, LinePlot, MOST_SERIES, Plot, Point, Series};
use crate::document::{Content, Figure, NamedRow, Table, mebibytes, number, percent, row};
use crate::measurements::{Measurement, Repetition};
use crate::sources::{Predictions, Round};
use records::{PredictionRecord, PublishedFigure, Spread, is_in_time};
use std::collections::BTreeSet;

/// A prediction within this share of the measurement is near.
const NEAR: f64 = 0.1;

/// A prediction with its file and the measurement that it stands for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Matched<'f> {
    pub(super) file: &'f Predictions,
    pub(super) prediction: &'f PredictionRecord,
    pub(super) measured: Option<&'f Measurement>,
}

/// Returns all predictions.
pub(super) fn matched<'f>(facts: &'f Facts<'_>) -> Vec<Matched<'f>> {
    let of_file = |file: &'f Predictions| {
        file.file.predictions.iter().map(move |prediction| {
            let measured = only_match(facts, file, prediction);
            Matched {
                file,
                prediction,
                measured,
            }
        })
    };
    facts.sources.predictions.iter().flat_map(of_file).collect()
}

/// Returns the measurement of the named cell, else the only one with the same settings. A prediction inside a study
/// stands for that study's cells.
fn only_match<'f>(
    facts: &'f Facts<'_>,
    file: &Predictions,
    prediction: &PredictionRecord,
) -> Option<&'f Measurement> {
    let is_it = |one: &&Measurement| {
        let is_of_cell = match &prediction.cell {
            Some(cell) => one.id == *cell,
            None => agrees(one, file, prediction),
        };
        is_of_cell && file.study.is_none_or(|number| one.is_of_study(number))
    };
    let mut matches = facts.measurements.iter().filter(is_it);
    let first = matches.next()?;
    matches.next().is_none().then_some(first)
}

fn agrees(one: &Measurement, file: &Predictions, prediction: &PredictionRecord) -> bool {
    let same = |key: &str, value: &str| {
        let setting = one.setting(key);
        setting == value || setting.is_empty() && value == "none"
    };
    let same_threads =
        |threads: usize| one.setting("threads").is_empty() || same("threads", &threads.to_string());
    // A single rank sends nothing, whatever the method.
    let same_method = prediction.ranks == 1
        || prediction.method.is_empty()
        || records::method(&one.settings).as_ref() == Some(&prediction.method);
    let batch = prediction.batch_size_per_rank.to_string();
    let mut reported = [&one.settings, &one.reported_work].into_iter();
    one.ranks == prediction.ranks
        && same("model", &file.file.model)
        && same("dtype", &file.file.dtype)
        && file.file.threads.is_none_or(same_threads)
        && same("network", &file.file.network.name)
        && same("sync", &prediction.sync)
        && same("compress", prediction.compress.as_deref().unwrap_or("none"))
        && same("batch_size_per_rank", &batch)
        && same_method
        && reported.all(|settings| records::is_of_work(settings, &file.file.work))
}

/// Prediction and measurement of one repetition.
struct Pair<'f> {
    prediction: &'f PredictionRecord,
    measured: &'f Repetition,
}

impl Pair<'_> {
    /// Returns the gap in percent of the measured speed.
    fn gap(&self) -> Option<f64> {
        Some(gap(self.prediction.images_per_second?, self.measured.speed))
    }

    /// Returns the gap of a prediction that ignores communication.
    fn gap_without_communication(&self) -> Option<f64> {
        let compute_ms = self
            .prediction
            .compute_ms
            .filter(|compute_ms| *compute_ms > 0.0)?;
        let speed = self.prediction.images_per_second? * self.prediction.step_ms? / compute_ms;
        Some(gap(speed, self.measured.speed))
    }

    /// Returns the gap in percent of the measured waiting; `None` for a rank without communication.
    fn gap_of_waiting(&self) -> Option<f64> {
        let is_on_own_server = self.prediction.server_placement.as_deref() == Some("own");
        if self.prediction.ranks == 1 && !is_on_own_server {
            return None;
        }
        let measured = self
            .measured
            .waiting_ms
            .filter(|waiting_ms| *waiting_ms > 0.0)?;
        Some(gap(self.prediction.waiting_ms?, measured))
    }
}

fn gap(predicted: f64, measured: f64) -> f64 {
    100.0 * (predicted - measured) / measured
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    Spread::of(values).map(|spread| spread.median)
}

impl<'f> Matched<'f> {
    /// Returns the repetitions that the prediction stands for: all of the cell, or for a prediction per repetition
    /// those that started after it was made.
    fn pairs(&self) -> Vec<Pair<'f>> {
        let Some(measured) = self.measured else {
            return Vec::new();
        };
        if self.file.rounds.is_empty() {
            let pair = |measured| Pair {
                prediction: self.prediction,
                measured,
            };
            return measured.repetitions.iter().map(pair).collect();
        }
        let pair = |round: &'f Round| {
            let measured = repetition_of(round, measured)?;
            let is_usable = is_in_time(&round.created, Some(&measured.started));
            is_usable.then_some(Pair {
                prediction: &round.prediction,
                measured,
            })
        };
        self.file.rounds.iter().filter_map(pair).collect()
    }

    /// Returns the number of predictions that were made too late, or for which this is unknown.
    fn num_late(&self) -> usize {
        let is_late = |round: &&Round| {
            let measured = self
                .measured
                .and_then(|measured| repetition_of(round, measured));
            measured.is_some_and(|one| !is_in_time(&round.created, Some(&one.started)))
        };
        self.file.rounds.iter().filter(is_late).count()
    }

    /// Returns a predicted value: the median over the repetitions of predictions per repetition.
    pub(super) fn value(&self, value: impl Fn(&PredictionRecord) -> Option<f64>) -> Option<f64> {
        if self.file.rounds.is_empty() {
            return value(self.prediction);
        }
        median(
            self.pairs()
                .iter()
                .filter_map(|pair| value(pair.prediction)),
        )
    }
}

fn repetition_of<'f>(round: &Round, measured: &'f Measurement) -> Option<&'f Repetition> {
    let mut repetitions = measured.repetitions.iter();
    repetitions.find(|one| Some(one.number) == round.prediction.repetition)
}

/// Gaps of all cells, percent.
#[derive(Default)]
struct Scores {
    gaps: Vec<f64>,
    without_communication: Vec<f64>,
    waiting: Vec<f64>,
    num_late: usize,
}

impl Scores {
    /// Adds a cell and returns its gaps: of the speed, without communication, of the waiting.
    fn add(&mut self, pairs: &[Pair<'_>]) -> [Option<f64>; 3] {
        let gap = median(pairs.iter().filter_map(Pair::gap));
        let without = median(pairs.iter().filter_map(Pair::gap_without_communication));
        let waiting = median(pairs.iter().filter_map(Pair::gap_of_waiting));
        self.gaps.extend(gap);
        self.without_communication.extend(without);
        self.waiting.extend(waiting);
        [gap, without, waiting]
    }

    fn words(&self) -> String {
        let near = |gaps: &[f64]| {
            let near = gaps.iter().filter(|gap| gap.abs() <= 100.0 * NEAR).count();
            format!("{near} of {}", gaps.len())
        };
        let absolute = |gaps: &[f64]| median(gaps.iter().map(|gap| gap.abs()));
        let mut words = match absolute(&self.gaps) {
            None => "No prediction has a measurement.".to_owned(),
            Some(gap) => format!(
                "{} predictions are within 10 % of the measured speed, between the outer grey lines; the median absolute gap is {gap:.1} %. Points are medians of the repetitions, bars their least and most; a gap is the median over the repetitions.",
                near(&self.gaps)
            ),
        };
        if let Some(gap) = absolute(&self.without_communication) {
            let near = near(&self.without_communication);
            words.push_str(&format!(
                " Predicted without communication: {near} within 10 %, {gap:.1} %."
            ));
        }
        if let (Some(gap), Some(absolute)) = (
            median(self.waiting.iter().copied()),
            absolute(&self.waiting),
        ) {
            words.push_str(&format!(" Waiting, mean over the ranks: the median gap is {gap:+.0} %, its absolute value {absolute:.0} %."));
        }
        if self.num_late > 0 {
            words.push_str(&format!(" Excluded because they were made after their run started, or its start is unknown: {}.", self.num_late));
        }
        words
    }
}

pub(super) fn contents(facts: &Facts<'_>) -> Vec<Content> {
    let all = matched(facts);
    let with_measurement = |one: &Matched<'_>| one.measured.is_some();
    let mut contents = Vec::new();
    if all.iter().any(with_measurement) {
        contents.extend(compared(facts, &all));
    }
    let predictions = Table::new(
        "predictions",
        "Predictions (none of these values is measured)",
        all.iter().map(of_prediction),
    )
    .folded(format!("All {} predictions", all.len()));
    let published = facts
        .sources
        .predictions
        .iter()
        .flat_map(|one| &one.file.published);
    let published = Table::new(
        "published",
        "Plausibility check: published efficiencies, and the model's predictions under the stated assumptions",
        published.map(of_published),
    );
    contents.extend(
        [predictions, published]
            .into_iter()
            .filter_map(Content::table),
    );
    contents
}

/// Returns how to name groups of points: by method and network, or by one of them where there are too many.
fn grouping(all: &[Matched<'_>]) -> fn(&Matched<'_>) -> String {
    fn method(one: &Matched<'_>) -> String {
        match one.prediction.compress.as_deref() {
            None | Some("none") => one.prediction.sync.clone(),
            Some(compress) => format!("{}, {compress}", one.prediction.sync),
        }
    }
    fn network(one: &Matched<'_>) -> String {
        one.file.file.network.name.clone()
    }
    fn both(one: &Matched<'_>) -> String {
        match network(one) {
            network if network.is_empty() => method(one),
            network => format!("{}, {network}", method(one)),
        }
    }
    let ways: [fn(&Matched<'_>) -> String; 3] = [both, method, network];
    let num_groups =
        |way: fn(&Matched<'_>) -> String| all.iter().map(way).collect::<BTreeSet<_>>().len();
    let few = ways.into_iter().find(|way| num_groups(*way) <= MOST_SERIES);
    few.unwrap_or(|_| "predictions".to_owned())
}

fn compared(facts: &Facts<'_>, all: &[Matched<'_>]) -> Vec<Content> {
    let group_of = grouping(all);
    let mut rows: Vec<NamedRow> = Vec::new();
    let mut groups: Vec<Series> = Vec::new();
    let mut scores = Scores::default();
    for one in all {
        let Some(measured) = one.measured else {
            continue;
        };
        let pairs = one.pairs();
        scores.num_late += one.num_late();
        let predicted = median(
            pairs
                .iter()
                .filter_map(|pair| pair.prediction.images_per_second),
        );
        let speed = median(pairs.iter().map(|pair| pair.measured.speed));
        let (Some(predicted), Some(speed)) = (predicted, speed) else {
            continue;
        };
        let [gap, without_communication, waiting] = scores.add(&pairs);
        let [_, least, most] = spread_cells(measured.speed(), 1);
        let waiting_of =
            |value: fn(&Pair<'_>) -> Option<f64>| number(median(pairs.iter().filter_map(value)), 1);
        rows.push(row![
            "measurement" => &measured.id,
            "prediction" => &one.file.label,
            "ranks" => one.prediction.ranks,
            "predicted, images/s" => number(predicted, 1),
            "measured, images/s" => number(speed, 1),
            "least" => least,
            "most" => most,
            "gap, %" => number(gap, 1),
            "gap without communication, %" => number(without_communication, 1),
            "waiting predicted, ms" => waiting_of(|pair| pair.prediction.waiting_ms),
            "measured, ms" => waiting_of(|pair| pair.measured.waiting_ms),
            "gap of waiting, %" => number(waiting, 1),
        ]);
        let name = group_of(one);
        let range = measured.speed().and_then(|speed| speed.range());
        let point = Point {
            x: predicted,
            y: speed,
            range,
        };
        match groups.iter_mut().find(|group| group.name == name) {
            Some(group) => group.lines[0].push(point),
            None => groups.push(Series::line(
                name,
                groups.len(),
                Kind::Scattered,
                vec![point],
            )),
        }
    }
    if groups.is_empty() {
        return vec![Content::Paragraph(scores.words())];
    }
    let values = || {
        groups
            .iter()
            .flat_map(Series::points)
            .flat_map(|point| [point.x, point.y])
    };
    let low = values().fold(f64::INFINITY, f64::min);
    let high = values().fold(0.0, f64::max);
    let line = |factor: f64| {
        [0.9 * low, 1.1 * high]
            .map(|at| Point::new(at, factor * at))
            .to_vec()
    };
    let equality = Series {
        name: "predicted = measured, within 10 %".to_owned(),
        style: 0,
        kind: Kind::Reference,
        lines: vec![line(1.0), line(1.0 + NEAR), line(1.0 - NEAR)],
    };
    let is_wide = high > 8.0 * low;
    let axis = |label: &str| {
        if is_wide {
            Axis::logarithmic(label)
        } else {
            Axis::linear(label)
        }
    };
    let x = axis("predicted, images/s");
    let y = axis("measured, images/s");
    let mut series = vec![equality];
    series.extend(groups);
    let title = "Predicted and measured throughput";
    let figure = Figure {
        id: "predicted-and-measured".to_owned(),
        title: title.to_owned(),
        caption: format!("{} {}", scores.words(), facts.speed_words()),
        plot: Plot::Lines(LinePlot { x, y, series }),
    };
    let table = Table::new("predicted-and-measured", title, rows);
    std::iter::once(Content::Figure(figure))
        .chain(Content::table(table))
        .collect()
}

fn of_prediction(matched: &Matched<'_>) -> NamedRow {
    let one = matched.prediction;
    let reduction = one.reduction.as_deref().unwrap_or_default();
    row![
        "prediction" => &matched.file.label,
        "network" => &matched.file.file.network.name,
        "sync" => format!("{} {reduction}", one.sync).trim(),
        "compress" => one.compress.as_ref(),
        "scaling" => &one.scaling,
        "batch per rank" => one.batch_size_per_rank,
        "ranks" => one.ranks,
        "images/s" => number(one.images_per_second, 1),
        "step, ms" => number(one.step_ms, 2),
        "speedup" => number(one.speedup, 2),
        "efficiency, %" => percent(one.efficiency, 1),
        "communication, ms" => number(one.communication_ms, 2),
        "exposed, ms" => number(one.exposed_ms, 2),
        "bucket, MiB" => mebibytes(one.bucket_bytes),
        "best bucket, MiB" => mebibytes(one.best_bucket_bytes),
        "images/s with it" => number(one.best_images_per_second, 1),
    ]
}

fn of_published(one: &PublishedFigure) -> NamedRow {
    row![
        "source" => &one.source,
        "measurement" => &one.what,
        "ranks" => one.ranks,
        "published efficiency, %" => percent(one.published_efficiency, 1),
        "predicted efficiency, %" => percent(one.predicted_efficiency, 1),
        "assumptions" => &one.assumed,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::Sources;
    use std::collections::BTreeMap;

    fn settings(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    fn measured(id: &str, pairs: &[(&str, &str)]) -> Measurement {
        Measurement {
            id: id.to_owned(),
            settings: settings(pairs),
            ranks: 2,
            ..Measurement::default()
        }
    }

    #[test]
    fn a_prediction_stands_for_the_same_work_as_far_as_it_is_known() {
        let mut file = Predictions::default();
        file.file.work = settings(&[("kernels", "fused"), ("image_size", "64")]);
        let prediction = PredictionRecord {
            ranks: 2,
            batch_size_per_rank: 32,
            ..PredictionRecord::default()
        };
        for (own, reported, expected) in [
            (&[][..], &[][..], true),
            (&[("image_size", "64")], &[("kernels", "fused")], true),
            (&[("kernels", "stock")], &[], false),
            (&[], &[("image_size", "32")], false),
        ] {
            let one = Measurement {
                reported_work: settings(reported),
                ..measured("a", &[&[("batch_size_per_rank", "32")], own].concat())
            };
            assert_eq!(
                agrees(&one, &file, &prediction),
                expected,
                "{own:?} {reported:?}"
            );
        }
    }

    /// Returns the number of the measurement that the only prediction of a file stands for.
    fn found(
        measurements: Vec<Measurement>,
        study: Option<usize>,
        prediction: PredictionRecord,
    ) -> Option<usize> {
        let mut file = Predictions {
            study,
            ..Predictions::default()
        };
        file.file.threads = Some(1);
        file.file.predictions = vec![prediction];
        let sources = Sources {
            predictions: vec![file],
            ..Sources::default()
        };
        let facts = Facts {
            measurements,
            ..Facts::new(&sources, None)
        };
        let measured = matched(&facts)[0].measured?;
        facts
            .measurements
            .iter()
            .position(|one| std::ptr::eq(one, measured))
    }

    #[test]
    fn a_prediction_in_a_study_stands_for_a_cell_of_that_study() {
        let cells = || {
            ["1", "2"]
                .map(|study| measured("same", &[("study", study)]))
                .into()
        };
        let prediction = PredictionRecord {
            cell: Some("same".to_owned()),
            ..PredictionRecord::default()
        };
        for (study, expected) in [(Some(1), Some(0)), (Some(2), Some(1)), (None, None)] {
            assert_eq!(found(cells(), study, prediction.clone()), expected);
        }
    }

    #[test]
    fn without_a_cell_method_and_threads_decide() {
        for (threads, method, expected) in [
            ("1", "allreduce:halving-doubling", Some(1)),
            ("1", "allreduce:hierarchical", None),
            // Two measurements match.
            ("1", "", None),
            ("2", "allreduce:ring", None),
        ] {
            let cell = |(id, reduction)| {
                let common = [
                    ("sync", "allreduce"),
                    ("batch_size_per_rank", "32"),
                    ("threads", threads),
                ];
                measured(id, &[&common[..], &[("reduction", reduction)]].concat())
            };
            let cells = [("a", "ring"), ("b", "halving-doubling")].map(cell).into();
            let prediction = PredictionRecord {
                method: method.to_owned(),
                sync: "allreduce".to_owned(),
                ranks: 2,
                batch_size_per_rank: 32,
                ..PredictionRecord::default()
            };
            assert_eq!(
                found(cells, None, prediction),
                expected,
                "{threads} {method}"
            );
        }
    }

    #[test]
    fn a_repetition_is_compared_with_the_prediction_that_was_made_before_it_started() {
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
        let repetition = |number: u64| Repetition {
            number,
            started: format!("2026-01-01T00:0{number}:00Z"),
            speed: 100.0 * number as f64,
            waiting_ms: Some(25.0),
            ..Repetition::default()
        };
        let measured = Measurement {
            repetitions: [1, 2, 3].map(repetition).into(),
            ..Measurement::default()
        };
        let rounds = vec![
            round(1, "2026-01-01T00:00:59Z", 110.0),
            round(2, "2026-01-01T00:01:59Z", 220.0),
            // After the start of the run.
            round(3, "2026-01-01T00:03:01Z", 300.0),
        ];
        let file = Predictions {
            rounds,
            ..Predictions::default()
        };
        let prediction = &file.rounds[2].prediction;
        let matched = Matched {
            file: &file,
            prediction,
            measured: Some(&measured),
        };
        let mut scores = Scores::default();
        let gaps = scores.add(&matched.pairs()).map(Option::unwrap);
        let expected = [10.0, 120.0, -20.0];
        assert!(
            gaps.iter()
                .zip(expected)
                .all(|(gap, expected)| (gap - expected).abs() < 1e-9),
            "{gaps:?}"
        );
        assert!(
            scores.words().contains("the median gap is -20 %"),
            "{}",
            scores.words()
        );
        scores.num_late = matched.num_late();
        assert!(
            scores.words().ends_with("start is unknown: 1."),
            "{}",
            scores.words()
        );
        assert_eq!(matched.value(|one| one.images_per_second), Some(165.0));
        let only_late = Scores {
            num_late: 3,
            ..Scores::default()
        };
        assert!(!only_late.words().contains("NaN"));
        let single = PredictionRecord {
            ranks: 1,
            waiting_ms: Some(0.0),
            ..PredictionRecord::default()
        };
        let pair = Pair {
            prediction: &single,
            measured: &measured.repetitions[0],
        };
        assert_eq!(pair.gap_of_waiting(), None);
    }
}
