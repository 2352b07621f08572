//! The memory of a rank.
//!
//! In: runs and measurements. Out: bars and their table. Invariant: the largest resident memory of any rank's process.

use super::Facts;
use crate::chart::{Axis, Bar, BarPlot, Plot};
use crate::document::{Block, Cell, Figure, Table};
use crate::measurements::{median, range};
use crate::sources::Run;

/// Bars in one figure.
const MOST_BARS: usize = 24;

const MIB: f64 = (1 << 20) as f64;

pub(super) fn blocks(facts: &Facts<'_>) -> Vec<Block> {
    let mut rows: Vec<(String, Vec<f64>)> = facts
        .measurements
        .iter()
        .map(|one| (facts.name_of(one), one.memory_bytes.clone()))
        .collect();
    let is_measured = |run: &Run| match run.group {
        Some(_) => facts.measurement_of(run).is_some(),
        None => facts
            .measurements
            .iter()
            .any(|one| one.id == run.label && one.setting("study").is_empty()),
    };
    for run in facts.sources.runs.iter().filter(|run| !is_measured(run)) {
        rows.push((
            run.label.clone(),
            run.peak_memory_bytes()
                .map(|bytes| bytes as f64)
                .into_iter()
                .collect(),
        ));
    }
    rows.retain(|(_, values)| !values.is_empty());
    let parts: Vec<&[(String, Vec<f64>)]> = rows.chunks(MOST_BARS).collect();
    let part = |(number, part): (usize, &&[(String, Vec<f64>)])| {
        Block::Figure(Box::new(figure(part, number + 1)))
    };
    parts.iter().enumerate().map(part).collect()
}

fn figure(rows: &[(String, Vec<f64>)], number: usize) -> Figure {
    let columns = ["measurement", "MiB, median", "least", "most"];
    let mut data = Table::new(
        format!("memory-{number}"),
        "Largest memory of a rank",
        &columns,
    );
    let mut bars = Vec::new();
    for (label, bytes) in rows {
        let mebibytes: Vec<f64> = bytes.iter().map(|bytes| bytes / MIB).collect();
        let range = range(&mebibytes);
        let middle = median(&mebibytes);
        data.push(vec![
            Cell::text(label.clone()),
            Cell::number(middle, 1),
            Cell::number(range.map(|range| range.0), 1),
            Cell::number(range.map(|range| range.1), 1),
        ]);
        bars.push(Bar {
            label: label.clone(),
            values: middle.into_iter().collect(),
            range,
            is_ours: true,
            ..Bar::default()
        });
    }
    let caption = "Peak resident memory of the rank that needed most, as the operating system tells it, program and data included; medians of the repetitions, whiskers their least and most.".to_owned();
    Figure {
        caption,
        plot: Plot::Bars(BarPlot {
            x: Axis::from_zero("MiB"),
            parts: Vec::new(),
            rows: bars,
        }),
        data,
    }
}
