//! Predictions compared with measurements.
//!
//! In: predictions, measurements. Out: a figure around the line of equality, tables.
//! Invariant: a prediction is compared with the cell that it names, or with the only measurement of
//! its settings. A gap is relative to the measurement.

use super::{Facts, short, spread_cells};
use crate::chart::{Axis, Kind, MOST_SERIES, Point, Series};
use crate::document::{NamedRow, Section, mebibytes, number, percent, row};
use crate::sources::Predictions;
use records::{AttemptRecord, Measurement, PredictionRecord, PublishedFigure, Spread};
use std::collections::BTreeMap;

/// A prediction within this share of the measurement is near.
const NEAR: f64 = 0.1;

/// A prediction with the measurement that it stands for.
pub(super) struct Forecast<'f> {
    predictions: &'f Predictions,
    /// Prediction of the file with the median speed.
    pub(super) record: &'f PredictionRecord,
    measured: Option<&'f Measurement>,
    /// Attempts with their prediction, which may be for one repetition only.
    pairs: Vec<Pair<'f>>,
    /// Predictions that were made after their repetition began, or for which this is unknown.
    num_late: usize,
}

type Pair<'f> = (&'f PredictionRecord, &'f AttemptRecord);

/// Returns all predictions.
pub(super) fn forecasts<'f>(facts: &'f Facts<'_>) -> Vec<Forecast<'f>> {
    let of_file = |predictions: &'f Predictions| {
        let records = predictions.file().predictions.iter().enumerate();
        records.map(move |(index, record)| {
            let measured = only_match(facts, predictions, record);
            let mut pairs = Vec::new();
            let mut num_late = 0;
            for file in &predictions.files {
                let Some((measured, record)) = measured.zip(file.predictions.get(index)) else {
                    continue;
                };
                let attempts = measured.predicted(&file.created, record);
                let mut numbers = measured.attempts.iter().map(|one| Some(one.repetition));
                let is_measured = numbers.any(|number| number == record.repetition);
                num_late += usize::from(attempts.is_empty() && is_measured);
                pairs.extend(attempts.into_iter().map(|attempt| (record, attempt)));
            }
            Forecast {
                predictions,
                record,
                measured,
                pairs,
                num_late,
            }
        })
    };
    let predictions = facts.sources.predictions.iter();
    predictions.flat_map(of_file).collect()
}

/// Returns the only measurement that a prediction stands for. A prediction inside a study stands
/// for that study's cells.
fn only_match<'f>(
    facts: &'f Facts<'_>,
    predictions: &Predictions,
    record: &PredictionRecord,
) -> Option<&'f Measurement> {
    let study = predictions.study.map(|study| study.to_string());
    let is_it = |one: &&Measurement| {
        let is_in_study = study
            .as_ref()
            .is_none_or(|study| one.setting("study") == study);
        is_in_study && one.is_predicted_by(predictions.file(), record)
    };
    let mut matches = facts.measurements.iter().filter(is_it);
    let first = matches.next()?;
    matches.next().is_none().then_some(first)
}

impl Forecast<'_> {
    /// Returns true if the forecast stands for this very measurement.
    pub(super) fn is_of(&self, measurement: &Measurement) -> bool {
        self.measured
            .is_some_and(|one| std::ptr::eq(one, measurement))
    }

    /// Returns the median over the attempts of a value of prediction and attempt.
    fn median(&self, value: impl Fn(&Pair<'_>) -> Option<f64>) -> Option<f64> {
        median(self.pairs.iter().filter_map(value))
    }

    /// Returns a predicted value.
    pub(super) fn value(&self, value: fn(&PredictionRecord) -> Option<f64>) -> Option<f64> {
        self.median(|(record, _)| value(record))
    }

    /// Returns the gaps in percent: of the speed, of a speed without communication, of the waiting.
    fn gaps(&self) -> [Option<f64>; 3] {
        let gap = |predicted: f64, measured: f64| 100.0 * (predicted - measured) / measured;
        let positive = |value: Option<f64>| value.filter(|value| *value > 0.0);
        let speed = |(record, attempt): &Pair<'_>| {
            Some(gap(record.images_per_second?, attempt.images_per_second()?))
        };
        let without_communication = |(record, attempt): &Pair<'_>| {
            let longer = record.step_ms? / positive(record.compute_ms)?;
            let predicted = record.images_per_second? * longer;
            Some(gap(predicted, attempt.images_per_second()?))
        };
        let waiting = |(record, attempt): &Pair<'_>| {
            // One rank communicates only with servers on separate ranks.
            let is_alone = record.ranks == 1 && record.server_placement.as_deref() != Some("own");
            let measured = positive(waiting_ms(attempt)).filter(|_| !is_alone)?;
            Some(gap(record.waiting_ms?, measured))
        };
        [
            self.median(speed),
            self.median(without_communication),
            self.median(waiting),
        ]
    }
}

/// Returns the milliseconds per step that a rank waits for collectives, mean over the ranks.
fn waiting_ms(attempt: &AttemptRecord) -> Option<f64> {
    let of = |key: &str| attempt.result[key].as_f64();
    Some(of("waiting_seconds")? / of("steps")? * 1e3)
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    Spread::of(values).map(|spread| spread.median)
}

/// Describes the gaps of all cells.
fn gap_words(gaps: &[[Option<f64>; 3]], num_late: usize) -> String {
    let of = |which: usize| gaps.iter().filter_map(move |gaps| gaps[which]);
    let absolute = |which: usize| median(of(which).map(f64::abs));
    let near = |which: usize| {
        let near = of(which).filter(|gap| gap.abs() <= 100.0 * NEAR).count();
        format!("{near} of {}", of(which).count())
    };
    let mut words = match absolute(0) {
        None => "No prediction has a measurement.".to_owned(),
        Some(gap) => format!(
            "{} predictions are within 10 % of the measured speed, between the outer grey lines; the median absolute gap is {gap:.1} %. Points are medians of the repetitions, bars their least and most; a gap is the median over the repetitions.",
            near(0)
        ),
    };
    if let Some(gap) = absolute(1) {
        let near = near(1);
        words.push_str(&format!(
            " Predicted without communication: {near} within 10 %, {gap:.1} %."
        ));
    }
    if let (Some(gap), Some(absolute)) = (median(of(2)), absolute(2)) {
        words.push_str(&format!(" Waiting, mean over the ranks: the median gap is {gap:+.0} %, its absolute value {absolute:.0} %."));
    }
    if num_late > 0 {
        words.push_str(&format!(" Excluded because they were made after their run started, or its start is unknown: {num_late}."));
    }
    words
}

pub(super) fn add(facts: &Facts<'_>, section: &mut Section) {
    let all = forecasts(facts);
    if all.iter().any(|one| one.measured.is_some()) {
        compare(facts, &all, section);
    }
    let title = format!(
        "All {} predictions; none of these values is measured",
        all.len()
    );
    section.folded_table("predictions", title, all.iter().map(of_forecast));
    let predictions = facts.sources.predictions.iter();
    let published = predictions.flat_map(|one| &one.file().published);
    section.table(
        "published",
        "Plausibility check: published efficiencies, and the model's predictions under the stated assumptions",
        published.map(of_published),
    );
}

fn compare(facts: &Facts<'_>, all: &[Forecast<'_>], section: &mut Section) {
    let mut rows: Vec<NamedRow> = Vec::new();
    let mut points: BTreeMap<&str, Vec<Point>> = BTreeMap::new();
    let mut all_gaps = Vec::new();
    for one in all {
        let Some(measured) = one.measured else {
            continue;
        };
        let speed_of = |(_, attempt): &Pair<'_>| attempt.images_per_second();
        let predicted = one.value(|record| record.images_per_second);
        let Some((predicted, speed)) = predicted.zip(one.median(speed_of)) else {
            continue;
        };
        let gaps = one.gaps();
        let [gap, without_communication, waiting] = gaps.map(|gap| number(gap, 1));
        all_gaps.push(gaps);
        let [_, least, most] = spread_cells(measured.speed(), 1);
        rows.push(row![
            "measurement" => &measured.id,
            "prediction" => &one.predictions.label,
            "ranks" => one.record.ranks,
            "predicted, images/s" => number(predicted, 1),
            "measured, images/s" => number(speed, 1),
            "least" => least,
            "most" => most,
            "gap, %" => gap,
            "gap without communication, %" => without_communication,
            "waiting predicted, ms" => number(one.value(|record| record.waiting_ms), 1),
            "measured, ms" => number(one.median(|(_, attempt)| waiting_ms(attempt)), 1),
            "gap of waiting, %" => waiting,
        ]);
        points.entry(&one.record.method).or_default().push(Point {
            x: predicted,
            y: speed,
            range: measured.speed().and_then(|speed| speed.range()),
        });
    }
    let words = gap_words(&all_gaps, all.iter().map(|one| one.num_late).sum());
    let values = points
        .values()
        .flatten()
        .flat_map(|point| [point.x, point.y]);
    let low = values.clone().fold(f64::INFINITY, f64::min);
    let high = values.fold(0.0, f64::max);
    if rows.is_empty() {
        return section.text(words);
    }
    let line = |factor: f64| {
        let ends = [0.9 * low, 1.1 * high];
        ends.map(|at| Point::new(at, factor * at)).to_vec()
    };
    let mut series = vec![Series {
        name: "predicted = measured, within 10 %".to_owned(),
        style: 0,
        kind: Kind::Reference,
        lines: vec![line(1.0), line(1.0 + NEAR), line(1.0 - NEAR)],
    }];
    if points.len() > MOST_SERIES {
        let all = points.into_values().flatten().collect();
        points = BTreeMap::from([("predictions", all)]);
    }
    let points = points.into_iter().enumerate();
    series.extend(
        points
            .map(|(style, (method, points))| Series::line(method, style, Kind::Scattered, points)),
    );
    let axis = match high > 8.0 * low {
        true => Axis::logarithmic,
        false => Axis::linear,
    };
    let id = "predicted-and-measured";
    let title = "Predicted and measured throughput";
    section.lines(
        [id, title, &format!("{words} {}", facts.speed_words())],
        axis("predicted, images/s"),
        axis("measured, images/s"),
        series,
    );
    section.table(id, title, rows);
}

fn of_forecast(forecast: &Forecast<'_>) -> NamedRow {
    let one = forecast.record;
    let file = forecast.predictions.file();
    let reduction = one.reduction.as_deref().unwrap_or_default();
    row![
        "prediction" => &forecast.predictions.label,
        "network" => &file.network.name,
        "its source" => &file.network.source,
        "latency, us" => number(file.network.alpha_s * 1e6, 2),
        "bandwidth, MB/s" => number(file.network.bytes_per_second / 1e6, 1),
        "model" => &file.model,
        "format" => &file.dtype,
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
        "created" => &file.created,
        "commit" => short(&file.commit),
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
    use records::PredictionFile;
    use serde_json::json;

    #[test]
    fn a_prediction_in_a_study_stands_for_a_cell_of_that_study() {
        for (study, expected) in [(Some(1), Some("1")), (Some(2), Some("2")), (None, None)] {
            let record = PredictionRecord {
                cell: Some("same".to_owned()),
                ..PredictionRecord::default()
            };
            let file = PredictionFile {
                predictions: vec![record],
                ..PredictionFile::default()
            };
            let sources = Sources {
                predictions: vec![Predictions {
                    study,
                    files: vec![file],
                    ..Predictions::default()
                }],
                ..Sources::default()
            };
            let measurement = |study: &str| Measurement {
                id: "same".to_owned(),
                settings: [("study".to_owned(), study.to_owned())].into(),
                ..Measurement::default()
            };
            let facts = Facts {
                measurements: ["1", "2"].map(measurement).into(),
                ..Facts::new(&sources, None)
            };
            let measured = forecasts(&facts)[0].measured;
            assert_eq!(measured.map(|one| one.setting("study")), expected);
        }
    }

    #[test]
    fn a_repetition_is_compared_with_the_prediction_that_was_made_before_it_started() {
        let file = |(repetition, created, speed): (u64, &str, f64)| PredictionFile {
            created: created.to_owned(),
            predictions: vec![PredictionRecord {
                cell: Some("a".to_owned()),
                images_per_second: Some(speed),
                step_ms: Some(100.0),
                compute_ms: Some(50.0),
                waiting_ms: Some(20.0),
                ranks: 2,
                repetition: Some(repetition),
                ..PredictionRecord::default()
            }],
            ..PredictionFile::default()
        };
        let files = [
            (1, "2026-01-01T00:00:59Z", 110.0),
            (2, "2026-01-01T00:01:59Z", 220.0),
            // After the start of the run.
            (3, "2026-01-01T00:03:01Z", 300.0),
        ];
        let sources = Sources {
            predictions: vec![Predictions {
                files: files.map(file).into(),
                ..Predictions::default()
            }],
            ..Sources::default()
        };
        let attempt = |number: u64| AttemptRecord {
            repetition: number,
            started: Some(format!("2026-01-01T00:0{number}:00Z")),
            result: json!({
                "images_per_second": 100 * number, "waiting_seconds": 0.25, "steps": 10,
            }),
            ..AttemptRecord::default()
        };
        let measurement = Measurement {
            id: "a".to_owned(),
            attempts: [1, 2, 3].map(attempt).into(),
            ..Measurement::default()
        };
        let facts = Facts {
            measurements: vec![measurement],
            ..Facts::new(&sources, None)
        };
        let mut forecasts = forecasts(&facts);
        let forecast = &mut forecasts[0];
        assert_eq!(forecast.num_late, 1);
        assert_eq!(forecast.value(|one| one.images_per_second), Some(165.0));
        let gaps = forecast.gaps();
        let expected = [10.0, 120.0, -20.0].map(Some);
        let is_near = |(gap, expected): (Option<f64>, Option<f64>)| {
            (gap.unwrap() - expected.unwrap()).abs() < 1e-9
        };
        assert!(gaps.into_iter().zip(expected).all(is_near), "{gaps:?}");
        let words = gap_words(&[gaps], 1);
        assert!(words.contains("the median gap is -20 %"), "{words}");
        assert!(words.ends_with("start is unknown: 1."), "{words}");
        assert!(!gap_words(&[], 3).contains("NaN"));
        let alone = PredictionRecord {
            ranks: 1,
            ..forecast.record.clone()
        };
        for pair in &mut forecast.pairs {
            pair.0 = &alone;
        }
        assert_eq!(forecast.gaps()[2], None, "one rank does not wait");
    }
}
