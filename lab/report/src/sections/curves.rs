//! Loss and accuracy against epochs, images and wall time.
//!
//! In: the metrics of runs. Out: six figures for every seven runs. Invariant: repetitions of a cell share a name and look; names are
//! those of the cells, or what the cells of the figure have unlike each other.

use super::naming::{self, Settings};
use super::{Facts, MOST_SERIES};
use crate::chart::{Axis, Kind, LinePlot, Plot, Point, Series, Unit};
use crate::document::{Block, Cell, Figure, Table};
use crate::sources::Run;
use records::EpochRecord;
use std::collections::BTreeSet;

/// What goes to the right: file's name, title, axis.
const COURSES: [(&str, &str, &str); 3] = [
    ("epochs", "epochs", "epochs trained"),
    ("images", "images", "images trained"),
    (
        "time",
        "wall time",
        "seconds, with evaluation and checkpoints",
    ),
];

/// What goes up: file's name, title, axis.
const SCORES: [(&str, &str, &str); 2] = [
    ("loss", "Training loss", "mean loss of the epoch, nats"),
    ("accuracy", "Accuracy", "top-1 accuracy"),
];

pub(super) fn blocks(facts: &Facts<'_>) -> Vec<Block> {
    let groups: Vec<Vec<&Run>> = facts
        .run_groups()
        .into_iter()
        .filter(|runs| runs.iter().any(|run| !run.epochs.is_empty()))
        .collect();
    let parts: Vec<&[Vec<&Run>]> = groups.chunks(MOST_SERIES).collect();
    let mut blocks = Vec::new();
    for (number, part) in parts.iter().enumerate() {
        let suffix = if parts.len() > 1 {
            format!("-{}", number + 1)
        } else {
            String::new()
        };
        let part: Vec<(String, &[&Run])> = names(facts, part)
            .into_iter()
            .zip(part.iter().map(Vec::as_slice))
            .collect();
        for course in 0..COURSES.len() {
            for score in 0..SCORES.len() {
                blocks.extend(
                    figure(facts, &part, course, score, &suffix)
                        .map(|figure| Block::Figure(Box::new(figure))),
                );
            }
        }
    }
    blocks
}

/// What groups are called: by what their cells have unlike each other, where that tells all of them apart.
fn names(facts: &Facts<'_>, groups: &[Vec<&Run>]) -> Vec<String> {
    let settings = |runs: &Vec<&Run>| -> Option<Settings<'_>> {
        let measured = facts.measurement_of(runs[0])?;
        Some(
            measured
                .line()
                .into_iter()
                .chain([("ranks", measured.setting("ranks"))])
                .collect(),
        )
    };
    let of_cells: Vec<Settings<'_>> = groups.iter().filter_map(settings).collect();
    let differing = naming::differing(&of_cells);
    let short: BTreeSet<String> = of_cells
        .iter()
        .map(|one| naming::words(one, &differing))
        .collect();
    if short.len() == groups.len() && groups.len() > 1 && !short.contains("") {
        return of_cells
            .iter()
            .map(|one| naming::words(one, &differing))
            .collect();
    }
    let whole = |runs: &Vec<&Run>| match &runs[0].group {
        Some(group) if facts.has_several_studies() => {
            format!("{}, study {}", group.cell, group.study)
        }
        Some(group) => group.cell.clone(),
        None => runs[0].label.clone(),
    };
    groups.iter().map(whole).collect()
}

fn figure(
    facts: &Facts<'_>,
    groups: &[(String, &[&Run])],
    course: usize,
    score: usize,
    suffix: &str,
) -> Option<Figure> {
    let (course_id, course_title, x) = COURSES[course];
    let (score_id, score_title, y) = SCORES[score];
    let id = format!("{score_id}-by-{course_id}{suffix}");
    let title = format!("{score_title} by {course_title}");
    let mut data = Table::new(id, title, &["run", x, y]);
    let mut series = Vec::new();
    for (style, (name, runs)) in groups.iter().enumerate() {
        let lines: Vec<Vec<Point>> = runs
            .iter()
            .map(|run| points(run, course, score))
            .filter(|line| !line.is_empty())
            .collect();
        for point in lines.iter().flatten() {
            data.push(vec![
                Cell::text(name.clone()),
                Cell::number(point.x, 3),
                Cell::number(point.y, 5),
            ]);
        }
        if !lines.is_empty() {
            series.push(Series {
                name: name.clone(),
                style,
                kind: Kind::Measured,
                lines,
            });
        }
    }
    let far = series
        .iter()
        .flat_map(|one| one.lines.iter().flatten())
        .map(|point| point.x)
        .fold(0.0, f64::max);
    if let Some(target) = facts
        .target_accuracy
        .filter(|_| score_id == "accuracy" && !series.is_empty())
    {
        let line = vec![Point::new(0.0, target), Point::new(far, target)];
        series.push(Series {
            name: "target".to_owned(),
            style: 0,
            kind: Kind::Reference,
            lines: vec![line],
        });
    }
    let has_repetitions = series.iter().any(|series| series.lines.len() > 1);
    let repetitions = if has_repetitions {
        " Repetitions have a line each."
    } else {
        ""
    };
    let what = match score_id {
        "loss" => "Mean over the samples of an epoch while it was trained.",
        _ => {
            "Share of the val split, or of the test split in a run without one, whose likeliest class is right, where it was measured."
        }
    };
    let (x, y) = (
        if course_id == "time" {
            Axis::from_zero(x)
        } else {
            Axis::whole(x)
        },
        if score_id == "accuracy" {
            Axis::from_zero(y).in_unit(Unit::Share)
        } else {
            Axis::linear(y)
        },
    );
    (!series.is_empty()).then(|| Figure {
        caption: format!("{what}{repetitions} No warm-up is left out."),
        plot: Plot::Lines(LinePlot {
            x,
            y,
            series,
            band: None,
        }),
        data,
    })
}

fn points(run: &Run, course: usize, score: usize) -> Vec<Point> {
    let at = |(epoch, at): (&EpochRecord, Option<(f64, f64)>)| {
        let x = [
            Some(epoch.number() as f64),
            at.map(|at| at.0),
            at.map(|at| at.1),
        ][course]?;
        let y = if score == 0 {
            epoch.train_loss
        } else {
            epoch.evaluated_top1()
        };
        y.filter(|y| y.is_finite()).map(|y| Point::new(x, y))
    };
    run.epochs
        .iter()
        .zip(run.progress())
        .filter_map(at)
        .collect()
}
