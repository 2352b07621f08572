//! What was predicted beside what was measured.
//!
//! In: predictions, measurements. Out: a figure with the line of equality and ten percent around it, tables.
//! Invariant: a prediction is compared with the cell it names, or with the only one of its setting; a gap is in percent of the measured.

use super::scores::{BAND, Scores, late, middle, repetitions};
use super::{Facts, MOST_SERIES};
use crate::chart::{Axis, Kind, LinePlot, Plot, Point, Series};
use crate::document::{Block, Cell, Figure, Table};
use crate::measurements::{Measurement, range};
use crate::sources::Predictions;
use records::{PredictionRecord, PublishedFigure};
use std::collections::BTreeSet;

/// A prediction, its file, and the measurement it stands for, as far as that is known.
pub(super) type Matched<'f> = (
    &'f Predictions,
    &'f PredictionRecord,
    Option<&'f Measurement>,
);

pub(super) fn all<'f>(facts: &'f Facts<'_>) -> Vec<Matched<'f>> {
    let of_file = |file: &'f Predictions| {
        file.file
            .predictions
            .iter()
            .map(move |prediction| (file, prediction, only_match(facts, file, prediction)))
    };
    facts.sources.predictions.iter().flat_map(of_file).collect()
}

/// The measurement of the cell that a prediction names, else the one whose settings are its own, if there is exactly one. What lies in a
/// study stands for the study's own cells.
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
    matches.next().filter(|_| matches.next().is_none())
}

fn agrees(one: &Measurement, file: &Predictions, prediction: &PredictionRecord) -> bool {
    let same = |key: &str, value: &str| {
        one.setting(key) == value || (one.setting(key).is_empty() && value == "none")
    };
    // Where a study leaves the threads out they are unknown.
    let same_threads =
        |threads: usize| one.setting("threads").is_empty() || same("threads", &threads.to_string());
    // One rank alone sends nothing, whatever the method.
    let same_method = prediction.ranks == 1
        || prediction.method.is_empty()
        || records::method(&one.settings).as_ref() == Some(&prediction.method);
    one.ranks == prediction.ranks
        && same("model", &file.file.model)
        && same("dtype", &file.file.dtype)
        && file.file.threads.is_none_or(same_threads)
        && same("network", &file.file.network.name)
        && same("sync", &prediction.sync)
        && same("compress", prediction.compress.as_deref().unwrap_or("none"))
        && same(
            "batch_size_per_rank",
            &prediction.batch_size_per_rank.to_string(),
        )
        && same_method
        && [&one.settings, &one.told]
            .iter()
            .all(|told| records::is_of_work(told, &file.file.work))
}

pub(super) fn blocks(facts: &Facts<'_>) -> Vec<Block> {
    let all = all(facts);
    let pairs: Vec<(&Predictions, &PredictionRecord, &Measurement)> = all
        .iter()
        .filter_map(|(file, prediction, measured)| Some((*file, *prediction, (*measured)?)))
        .collect();
    let mut blocks = Vec::new();
    if !pairs.is_empty() {
        blocks.extend(compared(facts, &pairs));
    }
    if !all.is_empty() {
        blocks.push(Block::FoldedTable(
            format!("All {} predictions", all.len()),
            predicted_table(&all),
        ));
    }
    if let Some(table) = published(facts) {
        blocks.push(Block::Table(table));
    }
    blocks
}

/// What points with the same look have in common: method and network, or one of them where those were too many.
fn grouping(
    pairs: &[(&Predictions, &PredictionRecord, &Measurement)],
) -> fn(&Predictions, &PredictionRecord) -> String {
    let ways: [fn(&Predictions, &PredictionRecord) -> String; 3] = [
        |file, prediction| match (method(prediction), file.file.network.name.as_str()) {
            (method, "") => method,
            (method, network) => format!("{method}, {network}"),
        },
        |_, prediction| method(prediction),
        |file, _| file.file.network.name.clone(),
    ];
    let num_groups = |way: fn(&Predictions, &PredictionRecord) -> String| {
        pairs
            .iter()
            .map(|(file, prediction, _)| way(file, prediction))
            .collect::<BTreeSet<_>>()
            .len()
    };
    ways.into_iter()
        .find(|way| num_groups(*way) <= MOST_SERIES)
        .unwrap_or(|_, _| "predictions".to_owned())
}

/// How the ranks synchronise, in words.
fn method(prediction: &PredictionRecord) -> String {
    match prediction.compress.as_deref() {
        None | Some("none") => prediction.sync.clone(),
        Some(compress) => format!("{}, {compress}", prediction.sync),
    }
}

// tidy: long function because a figure's points, words and table are made from the same predictions
fn compared(
    facts: &Facts<'_>,
    pairs: &[(&Predictions, &PredictionRecord, &Measurement)],
) -> Vec<Block> {
    let mut rows = Vec::new();
    let mut groups: Vec<Series> = Vec::new();
    let group_of = grouping(pairs);
    let mut ends = (f64::INFINITY, 0.0_f64);
    let mut scores = Scores::default();
    for (file, prediction, measured) in pairs {
        let repetitions = repetitions(file, prediction, measured);
        scores.late += late(file, measured);
        let predicted = middle(&repetitions, |pair| pair.prediction.images_per_second);
        let speed = middle(&repetitions, |pair| Some(pair.speed));
        let (Some(predicted), Some(speed)) = (predicted, speed) else {
            continue;
        };
        let [gap, without_communication, waiting] = scores.add(&repetitions);
        ends = (
            ends.0.min(predicted).min(speed),
            ends.1.max(predicted).max(speed),
        );
        let range = range(&measured.speeds);
        rows.push(vec![
            ("measurement", Cell::text(measured.id.clone())),
            ("prediction", Cell::text(file.label.clone())),
            ("ranks", Cell::count(prediction.ranks as u64)),
            ("predicted, images/s", Cell::number(predicted, 1)),
            ("measured, images/s", Cell::number(speed, 1)),
            ("least", Cell::number(range.map(|range| range.0), 1)),
            ("most", Cell::number(range.map(|range| range.1), 1)),
            ("gap, %", Cell::number(gap, 1)),
            (
                "gap without communication, %",
                Cell::number(without_communication, 1),
            ),
            (
                "waiting predicted, ms",
                Cell::number(middle(&repetitions, |pair| pair.prediction.waiting_ms), 1),
            ),
            (
                "measured, ms",
                Cell::number(middle(&repetitions, |pair| pair.waiting_ms), 1),
            ),
            ("gap of waiting, %", Cell::number(waiting, 1)),
        ]);
        let name = group_of(file, prediction);
        let point = Point {
            x: predicted,
            y: speed,
            range,
        };
        match groups.iter_mut().find(|group| group.name == name) {
            Some(group) => group.lines[0].push(point),
            None => groups.push(Series {
                name,
                style: groups.len(),
                kind: Kind::Scattered,
                lines: vec![vec![point]],
            }),
        }
    }
    if groups.is_empty() {
        return vec![Block::Paragraph(scores.words())];
    }
    let line = [ends.0 * 0.9, ends.1 * 1.1]
        .map(|at| Point::new(at, at))
        .to_vec();
    groups.insert(
        0,
        Series {
            name: "predicted = measured".to_owned(),
            style: 0,
            kind: Kind::Reference,
            lines: vec![line],
        },
    );
    let caption = format!("{} {}", scores.words(), facts.speed_words());
    let axis = |label: &str| {
        if ends.1 / ends.0.max(f64::MIN_POSITIVE) > 8.0 {
            Axis::logarithmic(label)
        } else {
            Axis::linear(label)
        }
    };
    let plot = LinePlot {
        x: axis("predicted, images/s"),
        y: axis("measured, images/s"),
        series: groups,
        band: Some(BAND),
    };
    let table = Table::of(
        "predicted-and-measured",
        "Predicted and measured throughput",
        rows,
    );
    let figure = Figure {
        caption,
        plot: Plot::Lines(plot),
        data: table.clone(),
    };
    vec![Block::Figure(Box::new(figure)), Block::Table(table)]
}

fn predicted_table(all: &[Matched<'_>]) -> Table {
    let row = |(file, one, _): &Matched<'_>| {
        vec![
            ("prediction", Cell::text(file.label.clone())),
            ("network", Cell::text(file.file.network.name.clone())),
            (
                "sync",
                Cell::text(
                    [Some(one.sync.clone()), one.reduction.clone()]
                        .into_iter()
                        .flatten()
                        .collect::<Vec<_>>()
                        .join(" "),
                ),
            ),
            (
                "compress",
                Cell::text(one.compress.clone().unwrap_or_default()),
            ),
            ("scaling", Cell::text(one.scaling.clone())),
            (
                "batch per rank",
                Cell::count(one.batch_size_per_rank as u64),
            ),
            ("ranks", Cell::count(one.ranks as u64)),
            ("images/s", Cell::number(one.images_per_second, 1)),
            ("step, ms", Cell::number(one.step_ms, 2)),
            ("speedup", Cell::number(one.speedup, 2)),
            (
                "efficiency, %",
                Cell::number(one.efficiency.map(|share| 100.0 * share), 1),
            ),
            ("communication, ms", Cell::number(one.communication_ms, 2)),
            ("exposed, ms", Cell::number(one.exposed_ms, 2)),
            (
                "bucket, MiB",
                Cell::mebibytes(one.bucket_bytes.map(|bytes| bytes as f64)),
            ),
            (
                "best bucket, MiB",
                Cell::mebibytes(one.best_bucket_bytes.map(|bytes| bytes as f64)),
            ),
            (
                "images/s with it",
                Cell::number(one.best_images_per_second, 1),
            ),
        ]
    };
    Table::of(
        "predictions",
        "Predictions (none of these figures is measured)",
        all.iter().map(row),
    )
}

fn published(facts: &Facts<'_>) -> Option<Table> {
    let percent = |share: Option<f64>| Cell::number(share.map(|share| 100.0 * share), 1);
    let row = |one: &PublishedFigure| {
        vec![
            ("source", Cell::text(one.source.clone())),
            ("what", Cell::text(one.what.clone())),
            ("ranks", Cell::count(one.ranks)),
            ("published efficiency, %", percent(one.published_efficiency)),
            ("predicted efficiency, %", percent(one.predicted_efficiency)),
            ("assumed", Cell::text(one.assumed.clone())),
        ]
    };
    let table = Table::of(
        "published",
        "A check of plausibility: published efficiencies, and what the model makes of the assumptions beside them",
        facts
            .sources
            .predictions
            .iter()
            .flat_map(|one| &one.file.published)
            .map(row),
    );
    (!table.rows.is_empty()).then_some(table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::Sources;
    use std::collections::BTreeMap;

    fn measured(id: &str, settings: &[(&str, &str)]) -> Measurement {
        let settings = settings
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        Measurement {
            id: id.to_owned(),
            settings,
            ranks: 2,
            speeds: vec![1.0],
            ..Measurement::default()
        }
    }

    #[test]
    fn a_prediction_stands_for_the_same_work_alone_as_far_as_that_is_told() {
        let work = |pairs: &[(&str, &str)]| {
            pairs
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect::<BTreeMap<_, _>>()
        };
        let mut file = Predictions::default();
        file.file.work = work(&[("kernels", "fused"), ("image_size", "64")]);
        let prediction = PredictionRecord {
            ranks: 2,
            batch_size_per_rank: 32,
            ..PredictionRecord::default()
        };
        let one = |settings: &[(&str, &str)], told: &[(&str, &str)]| {
            let settings = [&[("batch_size_per_rank", "32")], settings].concat();
            Measurement {
                told: work(told),
                ..measured("a", &settings)
            }
        };
        let agree = |one: &Measurement| agrees(one, &file, &prediction);
        assert!(
            agree(&one(&[], &[])) && agree(&one(&[("image_size", "64")], &[("kernels", "fused")]))
        );
        assert!(
            !agree(&one(&[("kernels", "stock")], &[]))
                && !agree(&one(&[], &[("image_size", "32")]))
        );
    }

    /// The numbers of the measurements that one prediction of such a file stands for.
    fn found(
        measurements: Vec<Measurement>,
        study: Option<usize>,
        prediction: PredictionRecord,
    ) -> Option<usize> {
        let mut file = Predictions::default();
        (file.study, file.file.threads, file.file.predictions) = (study, Some(1), vec![prediction]);
        let sources = Sources {
            predictions: vec![file],
            ..Sources::default()
        };
        let facts = Facts {
            sources: &sources,
            measurements,
            target_accuracy: None,
            ignored_targets: None,
        };
        let measured = all(&facts)[0].2?;
        facts
            .measurements
            .iter()
            .position(|one| std::ptr::eq(one, measured))
    }

    #[test]
    fn a_studys_prediction_stands_for_its_own_cell() {
        let cells = || {
            vec![
                measured("same", &[("study", "1")]),
                measured("same", &[("study", "2")]),
            ]
        };
        let prediction = || PredictionRecord {
            cell: Some("same".to_owned()),
            ..PredictionRecord::default()
        };
        assert_eq!(found(cells(), Some(1), prediction()), Some(0));
        assert_eq!(found(cells(), Some(2), prediction()), Some(1));
        assert_eq!(found(cells(), None, prediction()), None, "it may be either");
    }

    #[test]
    fn without_a_cell_method_and_threads_decide() {
        let cells = |threads: &str| {
            let common = [
                ("sync", "allreduce"),
                ("batch_size_per_rank", "32"),
                ("threads", threads),
            ];
            let with =
                |id, reduction| measured(id, &[&common[..], &[("reduction", reduction)]].concat());
            vec![with("a", "ring"), with("b", "halving-doubling")]
        };
        let prediction = |method: &str| PredictionRecord {
            method: method.to_owned(),
            sync: "allreduce".to_owned(),
            ranks: 2,
            batch_size_per_rank: 32,
            ..PredictionRecord::default()
        };
        assert_eq!(
            found(cells("1"), None, prediction("allreduce:halving-doubling")),
            Some(1)
        );
        assert_eq!(
            found(cells("1"), None, prediction("allreduce:hierarchical")),
            None
        );
        assert_eq!(
            found(cells("1"), None, prediction("")),
            None,
            "there are two"
        );
        assert_eq!(found(cells("2"), None, prediction("allreduce:ring")), None);
    }
}
