//! How long it takes to reach an accuracy.
//!
//! In: runs, a target. Out: a table, and a figure against the batch size where there are several.
//! Invariant: an accuracy counts from the end of the epoch after which it was measured, with evaluation and checkpoints up to there.

use super::Facts;
use crate::study_report::chart::{Axis, Kind, LinePlot, Plot, Point, Series};
use crate::study_report::document::{Block, Cell, Figure, Table};
use crate::study_report::measurements::{median, range};
use crate::study_report::sources::Run;

/// Where a run first stood at an accuracy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Reached {
    /// Epochs trained.
    pub(super) epochs: u64,
    /// Images trained.
    pub(super) images: f64,
    /// Since the start of the first epoch.
    pub(super) seconds: f64,
}

/// The first epoch after which the test accuracy was at least `target`.
pub(super) fn reached(run: &Run, target: f64) -> Option<Reached> {
    let at =
        run.epochs.iter().zip(run.progress()).find(|(epoch, _)| epoch.test_top1.is_some_and(|top1| top1 >= target))?;
    let (epoch, (images, seconds)) = at;
    Some(Reached { epochs: epoch.epoch + 1, images, seconds })
}

pub(super) fn blocks(facts: &Facts<'_>) -> Vec<Block> {
    let Some(target) = facts.target_accuracy else { return Vec::new() };
    // Two decimals at most: 0.14 times 100 has sixteen.
    let percent = (1e4 * target).round() / 1e2;
    let columns = ["run", "global batch", "ranks", "reached", "seconds", "epochs", "images", "best accuracy, %"];
    let mut table = Table::new("time-to-accuracy", format!("Time to a test accuracy of {percent} %"), &columns);
    let mut by_batch: Vec<(f64, Vec<f64>)> = Vec::new();
    let evaluated = facts.sources.runs.iter().filter(|run| run.epochs.iter().any(|epoch| epoch.test_top1.is_some()));
    for run in evaluated {
        let at = reached(run, target);
        let batch: Option<f64> = run.setting("batch.global-batch-size").and_then(|batch| batch.parse().ok());
        let best = run.epochs.iter().filter_map(|epoch| epoch.test_top1).fold(0.0, f64::max);
        table.push(vec![
            Cell::text(run.label.clone()),
            Cell::number(batch, 0),
            Cell::count(run.ranks().map(|ranks| ranks as u64)),
            Cell::text(if at.is_some() { "yes" } else { "no" }),
            Cell::number(at.map(|at| at.seconds), 1),
            Cell::count(at.map(|at| at.epochs)),
            Cell::number(at.map(|at| at.images), 0),
            Cell::number(100.0 * best, 2),
        ]);
        if let (Some(at), Some(batch)) = (at, batch) {
            match by_batch.iter_mut().find(|(other, _)| *other == batch) {
                Some((_, seconds)) => seconds.push(at.seconds),
                None => by_batch.push((batch, vec![at.seconds])),
            }
        }
    }
    if table.rows.is_empty() {
        return Vec::new();
    }
    by_batch.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut blocks = Vec::new();
    if by_batch.len() > 1 {
        let points: Vec<Point> = by_batch
            .iter()
            .filter_map(|(batch, seconds)| Some(Point { x: *batch, y: median(seconds)?, range: range(seconds) }))
            .collect();
        let mut data = Table::new("time-to-accuracy-by-batch", "", &["global batch", "seconds, median", "runs"]);
        for (point, (_, seconds)) in points.iter().zip(&by_batch) {
            data.push(vec![Cell::number(point.x, 0), Cell::number(point.y, 2), Cell::count(seconds.len() as u64)]);
        }
        let batches: Vec<f64> = by_batch.iter().map(|(batch, _)| *batch).collect();
        blocks.push(Block::Figure(Box::new(Figure {
            id: "time-to-accuracy-by-batch".to_owned(),
            title: format!("Wall time to a test accuracy of {percent} %"),
            caption: "Until the end of the first epoch after which the accuracy was measured at or above the target, evaluation and checkpoints included, no warm-up left out. Runs that did not reach it are not drawn. Points are medians of the runs of a batch size, bars their least and most.".to_owned(),
            plot: Plot::Lines(LinePlot {
                x: Axis::of_counts("global batch, samples", &batches),
                y: Axis::from_zero("seconds"),
                series: vec![Series { name: "runs that reached it".to_owned(), style: 0, kind: Kind::Measured, lines: vec![points] }],
                band: None,
            }),
            data,
        })));
    }
    blocks.push(Block::Table(table));
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::tests::record;

    #[test]
    fn the_target_counts_from_the_end_of_the_first_epoch_at_it() {
        // Ten test images; every epoch takes 3 s and 10 images.
        let epochs = vec![record(0, Some(3)), record(1, None), record(2, Some(7)), record(3, Some(9))];
        let run = Run { epochs, ..Run::default() };
        assert_eq!(reached(&run, 0.7), Some(Reached { epochs: 3, images: 30.0, seconds: 9.0 }));
        assert_eq!(reached(&run, 0.2).map(|at| at.epochs), Some(1));
        assert_eq!(reached(&run, 0.95), None);
        assert_eq!(reached(&Run::default(), 0.1), None);
    }
}
