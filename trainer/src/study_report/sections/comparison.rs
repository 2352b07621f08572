//! Lockstep beside other frameworks on the same job.
//!
//! In: comparisons. Out: bars and a table. Invariant: a framework without a number is named with the reason.

use super::{Facts, MOST_SERIES};
use crate::study_report::chart::{Axis, Bar, BarPlot, Kind, LinePlot, Plot, Point, Series, Unit};
use crate::study_report::document::{Block, Cell, Figure, Table};
use crate::study_report::measurements::{median, range};
use crate::study_report::sources::{Comparison, ComparisonRow};
use serde_json::Value;
use std::collections::BTreeMap;

pub(super) fn blocks(facts: &Facts<'_>) -> Vec<Block> {
    let comparisons = &facts.sources.comparisons;
    comparisons.iter().enumerate().flat_map(|(index, comparison)| one(comparison, index, comparisons.len())).collect()
}

fn one(comparison: &Comparison, index: usize, num_comparisons: usize) -> Vec<Block> {
    let prefix = if num_comparisons > 1 { format!("comparison-{}", index + 1) } else { "comparison".to_owned() };
    let job: Vec<String> =
        comparison.job.iter().map(|(key, value)| format!("{} {}", key.replace('_', " "), plain(value))).collect();
    let machine = &comparison.machine;
    let mut blocks = vec![Block::Paragraph(format!(
        "Every framework did the same job on {} ({} processors): {}.",
        machine.cpu_model,
        machine.cpu_count,
        job.join(", ")
    ))];
    let mut facets: BTreeMap<(&str, &str, u64), Vec<&ComparisonRow>> = BTreeMap::new();
    for row in &comparison.rows {
        facets.entry((&row.model, &row.dtype, row.ranks)).or_default().push(row);
    }
    for (number, ((model, dtype, ranks), rows)) in facets.iter().enumerate() {
        let title = format!("{model} {dtype}, {ranks} {}", if *ranks == 1 { "rank" } else { "ranks" });
        let figure = bars(&format!("{prefix}-{}", number + 1), &title, rows, &job);
        blocks.extend(figure.map(|figure| Block::Figure(Box::new(figure))));
    }
    blocks.push(Block::Table(table(&prefix, &comparison.rows)));
    let mut differing: Vec<String> =
        comparison.rows.iter().filter(|row| row.loss_agrees == Some(false)).map(ComparisonRow::name).collect();
    differing.sort();
    differing.dedup();
    if !differing.is_empty() {
        blocks.push(Block::Warning(format!(
            "Losses that are not ours within rounding, so that the job was not quite the same: {}.",
            differing.join(", ")
        )));
    }
    blocks.extend(courses(comparison, &prefix).into_iter().map(|figure| Block::Figure(Box::new(figure))));
    blocks
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn speeds(row: &ComparisonRow) -> Vec<f64> {
    row.images_per_second.iter().flatten().copied().filter(|speed| speed.is_finite()).collect()
}

fn speed(row: &ComparisonRow) -> Option<f64> {
    row.images_per_second_median.or_else(|| median(&speeds(row)))
}

fn bars(id: &str, title: &str, rows: &[&ComparisonRow], job: &[String]) -> Option<Figure> {
    let mut sorted: Vec<&ComparisonRow> = rows.to_vec();
    sorted.sort_by(|a, b| speed(b).unwrap_or(0.0).total_cmp(&speed(a).unwrap_or(0.0)));
    let mut data = Table::new(id, title, &["framework", "images/s, median", "least", "most", "gap"]);
    let mut plotted = Vec::new();
    for row in sorted {
        let how = [row.launcher.as_str(), row.communication.as_str()]
            .iter()
            .filter(|word| !word.is_empty())
            .copied()
            .collect::<Vec<_>>()
            .join(", ");
        let label = if how.is_empty() { row.name() } else { format!("{} ({how})", row.name()) };
        let (speed, range) = (speed(row), range(&speeds(row)));
        let gap = match speed {
            None => Some(format!("no number: {}", row.gap.as_deref().unwrap_or("not said why"))),
            Some(_) => None,
        };
        data.push(vec![
            Cell::text(label.clone()),
            Cell::number(speed, 1),
            Cell::number(range.map(|range| range.0), 1),
            Cell::number(range.map(|range| range.1), 1),
            gap.clone().map_or(Cell::Missing, Cell::Text),
        ]);
        plotted.push(Bar {
            label,
            values: speed.into_iter().collect(),
            range,
            gap,
            is_ours: row.framework == "Lockstep",
        });
    }
    plotted.iter().any(|bar| bar.gap.is_none()).then(|| Figure {
        id: id.to_owned(),
        title: title.to_owned(),
        caption: format!(
            "Images/s of all ranks, global samples over the slowest rank's time; bars are medians of the blocks, whiskers their least and most. Lockstep in colour. The job, with its warm-up: {}.",
            job.join(", ")
        ),
        plot: Plot::Bars(BarPlot { x: Axis::from_zero("images/s, all ranks"), parts: Vec::new(), rows: plotted }),
        data,
    })
}

fn table(id: &str, rows: &[ComparisonRow]) -> Table {
    let columns = [
        "framework",
        "model",
        "format",
        "launcher",
        "communication",
        "ranks",
        "threads",
        "images/s, median",
        "least",
        "most",
        "ratio to Lockstep",
        "speedup",
        "efficiency, %",
        "memory of a rank, MiB",
        "loss after 2",
        "loss after 5",
        "losses agree",
        "why there is no number",
    ];
    let mut table = Table::new(id, "Frameworks on the same job", &columns);
    for row in rows {
        let range = range(&speeds(row));
        let text = |text: &str| if text.is_empty() { Cell::Missing } else { Cell::text(text) };
        table.push(vec![
            Cell::text(row.name()),
            text(&row.model),
            text(&row.dtype),
            text(&row.launcher),
            text(&row.communication),
            Cell::count(row.ranks),
            Cell::count(row.threads),
            Cell::number(speed(row), 1),
            Cell::number(range.map(|range| range.0), 1),
            Cell::number(range.map(|range| range.1), 1),
            Cell::number(row.ratio_to_lockstep, 2),
            Cell::number(row.speedup, 2),
            Cell::number(row.efficiency.map(|share| 100.0 * share), 1),
            Cell::mebibytes(row.peak_memory_bytes_rank),
            Cell::number(row.loss_after_2, 4),
            Cell::number(row.loss_after_5, 4),
            row.loss_agrees.map_or(Cell::Missing, |agrees| Cell::text(if agrees { "yes" } else { "no" })),
            row.gap.as_deref().map_or(Cell::Missing, Cell::text),
        ]);
    }
    table
}

fn courses(comparison: &Comparison, prefix: &str) -> Vec<Figure> {
    let mut data = Table::new("", "", &["framework", "epoch", "elapsed, s", "test accuracy"]);
    let mut series = [Vec::new(), Vec::new()];
    for (style, course) in comparison.accuracy.iter().take(MOST_SERIES).enumerate() {
        let points = |x: fn(&crate::study_report::sources::EpochPoint) -> Option<f64>| {
            course
                .epochs
                .iter()
                .filter_map(|epoch| Some(Point::new(x(epoch)?, epoch.test_top1?)))
                .collect::<Vec<Point>>()
        };
        let name = format!("{} {}", course.framework, course.model);
        for (series, points) in
            series.iter_mut().zip([points(|epoch| Some(epoch.epoch)), points(|epoch| epoch.elapsed_s)])
        {
            series.push(Series { name: name.clone(), style, kind: Kind::Measured, lines: vec![points] });
        }
        for epoch in &course.epochs {
            data.push(vec![
                Cell::text(name.clone()),
                Cell::number(epoch.epoch, 0),
                Cell::number(epoch.elapsed_s, 1),
                Cell::number(epoch.test_top1, 4),
            ]);
        }
    }
    let [by_epoch, by_time] = series;
    [("epoch", "Test accuracy by epoch", by_epoch), ("seconds", "Test accuracy by wall time", by_time)]
        .into_iter()
        .filter(|(_, _, series)| series.iter().any(|series| series.lines.iter().any(|line| !line.is_empty())))
        .map(|(label, title, series)| Figure {
            id: format!("{prefix}-accuracy-{label}"),
            title: title.to_owned(),
            caption: "Share of the test images whose likeliest class is right, after each epoch of every framework's own training.".to_owned(),
            plot: Plot::Lines(LinePlot { x: if label == "epoch" { Axis::whole(label) } else { Axis::from_zero(label) }, y: Axis::from_zero("top-1 accuracy").in_unit(Unit::Share), series, band: None }),
            data: Table { id: format!("{prefix}-accuracy-{label}"), title: title.to_owned(), ..data.clone() },
        })
        .collect()
}
