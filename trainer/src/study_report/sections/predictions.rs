//! What was predicted beside what was measured.
//!
//! In: predictions, measurements. Out: a figure with the line of equality and ten percent around it, tables.
//! Invariant: a prediction is compared with the cell it names, or with the only one of its setting; a gap is in percent of the measured.

use super::Facts;
use crate::study_report::chart::{Axis, Kind, LinePlot, Plot, Point, Series};
use crate::study_report::document::{Block, Cell, Figure, Table};
use crate::study_report::measurements::{Measurement, range};
use crate::study_report::sources::{Predicted, PredictionFile};

const BAND: f64 = 0.1;

/// All predictions, each with the cell it stands for, as far as that is known.
pub(super) fn all<'a>(facts: &Facts<'a>) -> Vec<(&'a PredictionFile, Predicted)> {
    let with_cell = |file: &'a PredictionFile, prediction: &Predicted| {
        let cell = prediction.cell.clone().or_else(|| only_match(facts, file, prediction).map(|one| one.id.clone()));
        (file, Predicted { cell, ..prediction.clone() })
    };
    let files = facts.sources.predictions.iter();
    files.flat_map(|file| file.predictions.iter().map(move |prediction| with_cell(file, prediction))).collect()
}

/// The measurement whose settings are those of a prediction, if there is exactly one.
fn only_match<'a>(facts: &'a Facts<'_>, file: &PredictionFile, prediction: &Predicted) -> Option<&'a Measurement> {
    let agrees = |one: &&Measurement| {
        let same =
            |key: &str, value: &str| one.setting(key) == value || (one.setting(key).is_empty() && value == "none");
        one.ranks == prediction.ranks
            && same("model", &file.model)
            && same("dtype", &file.dtype)
            && same("network", &file.network.name)
            && same("sync", &prediction.sync)
            && same("compress", prediction.compress.as_deref().unwrap_or("none"))
            && same("batch_size_per_rank", &prediction.batch_size_per_rank.to_string())
    };
    let mut matches = facts.measurements.iter().filter(agrees);
    matches.next().filter(|_| matches.next().is_none())
}

pub(super) fn blocks(facts: &Facts<'_>) -> Vec<Block> {
    let all = all(facts);
    let mut pairs: Vec<(&PredictionFile, &Predicted, &Measurement)> = Vec::new();
    for (file, prediction) in &all {
        let measured = facts.measurements.iter().find(|one| Some(&one.id) == prediction.cell.as_ref());
        pairs.extend(measured.map(|measured| (*file, prediction, measured)));
    }
    let mut blocks = Vec::new();
    if !pairs.is_empty() {
        let (figure, table) = compared(facts, &pairs);
        blocks.push(Block::Figure(Box::new(figure)));
        blocks.push(Block::Table(table));
    }
    if !all.is_empty() {
        blocks.push(Block::FoldedTable(format!("All {} predictions", all.len()), predicted_table(&all)));
    }
    if let Some(table) = published(facts) {
        blocks.push(Block::Table(table));
    }
    blocks
}

fn compared(facts: &Facts<'_>, pairs: &[(&PredictionFile, &Predicted, &Measurement)]) -> (Figure, Table) {
    let mut table = Table::new(
        "predicted-and-measured",
        "Predicted and measured throughput",
        &["measurement", "prediction", "ranks", "predicted, images/s", "measured, images/s", "least", "most", "gap, %"],
    );
    let mut groups: Vec<Series> = Vec::new();
    let mut ends = (f64::INFINITY, 0.0_f64);
    let mut gaps = Vec::new();
    for (file, prediction, measured) in pairs {
        let (Some(predicted), Some(speed)) = (prediction.images_per_second, measured.speed()) else { continue };
        let gap = 100.0 * (predicted - speed) / speed;
        gaps.push(gap.abs());
        ends = (ends.0.min(predicted).min(speed), ends.1.max(predicted).max(speed));
        let range = range(&measured.speeds);
        table.push(vec![
            Cell::text(measured.id.clone()),
            Cell::text(file.label.clone()),
            Cell::count(prediction.ranks as u64),
            Cell::number(predicted, 1),
            Cell::number(speed, 1),
            Cell::number(range.map(|range| range.0), 1),
            Cell::number(range.map(|range| range.1), 1),
            Cell::number(gap, 1),
        ]);
        let name = [prediction.sync.as_str(), file.network.name.as_str()]
            .iter()
            .filter(|word| !word.is_empty())
            .copied()
            .collect::<Vec<_>>()
            .join(", ");
        let point = Point { x: predicted, y: speed, range };
        match groups.iter_mut().find(|group| group.name == name) {
            Some(group) => group.lines[0].push(point),
            None => groups.push(Series { name, style: groups.len(), kind: Kind::Scattered, lines: vec![vec![point]] }),
        }
    }
    let within = gaps.iter().filter(|gap| **gap <= 100.0 * BAND).count();
    let line = [ends.0 * 0.9, ends.1 * 1.1].map(|at| Point::new(at, at)).to_vec();
    groups.insert(
        0,
        Series { name: "predicted = measured".to_owned(), style: 0, kind: Kind::Reference, lines: vec![line] },
    );
    let caption = format!(
        "{within} of {} predictions are within 10 % of the measured speed, the shaded band. Points are medians of the repetitions, bars their least and most. {}",
        gaps.len(),
        facts.speed_words()
    );
    let axis = |label: &str| {
        if ends.1 / ends.0.max(f64::MIN_POSITIVE) > 8.0 { Axis::logarithmic(label) } else { Axis::linear(label) }
    };
    let plot =
        LinePlot { x: axis("predicted, images/s"), y: axis("measured, images/s"), series: groups, band: Some(BAND) };
    let figure = Figure {
        id: "predicted-and-measured".to_owned(),
        title: "Predicted and measured throughput".to_owned(),
        caption,
        plot: Plot::Lines(plot),
        data: table.clone(),
    };
    (figure, table)
}

fn predicted_table(all: &[(&PredictionFile, Predicted)]) -> Table {
    let columns = [
        "prediction",
        "network",
        "sync",
        "compress",
        "scaling",
        "batch per rank",
        "ranks",
        "images/s",
        "step, ms",
        "speedup",
        "efficiency, %",
        "communication, ms",
        "exposed, ms",
        "bucket, MiB",
        "best bucket, MiB",
        "images/s with it",
    ];
    let mut table = Table::new("predictions", "Predictions (none of these figures is measured)", &columns);
    for (file, one) in all {
        table.push(vec![
            Cell::text(file.label.clone()),
            Cell::text(file.network.name.clone()),
            Cell::text(
                [Some(one.sync.clone()), one.reduction.clone()].into_iter().flatten().collect::<Vec<_>>().join(" "),
            ),
            Cell::text(one.compress.clone().unwrap_or_default()),
            Cell::text(one.scaling.clone()),
            Cell::count(one.batch_size_per_rank),
            Cell::count(one.ranks as u64),
            Cell::number(one.images_per_second, 1),
            Cell::number(one.step_ms, 2),
            Cell::number(one.speedup, 2),
            Cell::number(one.efficiency.map(|share| 100.0 * share), 1),
            Cell::number(one.communication_ms, 2),
            Cell::number(one.exposed_ms, 2),
            Cell::mebibytes(one.bucket_bytes),
            Cell::mebibytes(one.best_bucket_bytes),
            Cell::number(one.best_images_per_second, 1),
        ]);
    }
    table
}

fn published(facts: &Facts<'_>) -> Option<Table> {
    let columns = ["source", "what", "ranks", "published efficiency, %", "predicted efficiency, %", "why they differ"];
    let mut table = Table::new("published", "Published efficiencies and our predictions of them", &columns);
    let percent = |share: Option<f64>| Cell::number(share.map(|share| 100.0 * share), 1);
    for one in facts.sources.predictions.iter().flat_map(|file| &file.published) {
        table.push(vec![
            Cell::text(one.source.clone()),
            Cell::text(one.what.clone()),
            Cell::count(one.ranks),
            percent(one.published_efficiency),
            percent(one.predicted_efficiency),
            Cell::text(one.explanation.clone()),
        ]);
    }
    (!table.rows.is_empty()).then_some(table)
}
