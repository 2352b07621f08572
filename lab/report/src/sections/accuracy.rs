//! How long it takes to reach an accuracy.
//!
//! In: runs, a target. Out: a table, one of repetitions put together, and two figures against the batch size where there are several.
//! Invariant: an accuracy counts from the end of the epoch after which it was measured, with evaluation and checkpoints up to there; a
//! run that never stood at it is named and drawn as such.

use super::Facts;
use super::naming::{self, Settings};
use crate::chart::{Axis, Kind, LinePlot, Plot, Point, Series};
use crate::document::{Block, Cell, Figure, Table};
use crate::measurements::{median, meeting_of, range, settings_of, work_of};
use crate::sources::Run;
use records::EpochRecord;
use std::collections::{BTreeMap, BTreeSet};

/// How far a run was at the end of an epoch.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Reached {
    epochs: u64,
    steps: u64,
    images: Option<f64>,
    /// Since the start of the first epoch.
    seconds: Option<f64>,
}

/// A run that was evaluated.
struct Course<'a> {
    run: &'a Run,
    global_batch_size: Option<f64>,
    /// At the target, if it ever was.
    reached: Option<Reached>,
    ended: Reached,
    best: f64,
    last: f64,
}

/// What goes up: file's name, title, axis, its value.
type Cost = (
    &'static str,
    &'static str,
    &'static str,
    fn(&Reached) -> Option<f64>,
);

const COSTS: [Cost; 2] = [
    ("time-to-accuracy-by-batch", "Wall time", "seconds", |at| {
        at.seconds
    }),
    (
        "epochs-to-accuracy-by-batch",
        "Epochs",
        "epochs trained",
        |at| Some(at.epochs as f64),
    ),
];

/// The ends of all epochs.
fn ends(run: &Run) -> Vec<Reached> {
    let end = |(epoch, at): (&records::EpochRecord, Option<(f64, f64)>)| Reached {
        epochs: epoch.number(),
        steps: epoch.step,
        images: at.map(|at| at.0),
        seconds: at.map(|at| at.1),
    };
    run.epochs.iter().zip(run.progress()).map(end).collect()
}

/// The end of the first epoch after which the accuracy was at least `target`.
fn reached(run: &Run, target: f64) -> Option<Reached> {
    let first = run
        .epochs
        .iter()
        .position(|epoch| epoch.evaluated_top1().is_some_and(|top1| top1 >= target))?;
    ends(run).get(first).copied()
}

fn course(run: &Run, target: f64) -> Option<Course<'_>> {
    let accuracies = || run.epochs.iter().filter_map(EpochRecord::evaluated_top1);
    let (best, last) = (accuracies().reduce(f64::max)?, accuracies().next_back()?);
    let global_batch_size = run
        .setting("batch.global-batch-size")
        .and_then(|batch| batch.parse().ok());
    Some(Course {
        run,
        global_batch_size,
        reached: reached(run, target),
        ended: *ends(run).last()?,
        best,
        last,
    })
}

pub(super) fn blocks(facts: &Facts<'_>) -> Vec<Block> {
    let Some(target) = facts.target_accuracy else {
        return Vec::new();
    };
    let courses: Vec<Course<'_>> = facts
        .sources
        .runs
        .iter()
        .filter_map(|run| course(run, target))
        .collect();
    if courses.is_empty() {
        return Vec::new();
    }
    let percent = percent(target);
    let missed = courses.iter().filter(|course| course.reached.is_none());
    let mut blocks: Vec<Block> = missed
        .map(|course| Block::Warning(missed_words(course, percent)))
        .collect();
    let figures = COSTS
        .iter()
        .filter_map(|cost| figure(&courses, percent, *cost));
    blocks.extend(figures.map(|figure| Block::Figure(Box::new(figure))));
    blocks.extend(together(facts, target).map(Block::Table));
    blocks.push(Block::Table(table(&courses, percent)));
    blocks
}

/// Two decimals at most: 0.14 times 100 has sixteen.
fn percent(share: f64) -> f64 {
    (1e4 * share).round() / 1e2
}

fn missed_words(course: &Course<'_>, percent: f64) -> String {
    format!(
        "{} did not reach {percent} % in {}; its best was {} %.",
        course.run.label,
        records::counted(course.ended.epochs as usize, "epoch"),
        self::percent(course.best)
    )
}

fn table(courses: &[Course<'_>], percent: f64) -> Table {
    let row = |course: &Course<'_>| {
        let (at, ended) = (course.reached, course.ended);
        vec![
            ("run", Cell::text(course.run.label.clone())),
            ("global batch", Cell::number(course.global_batch_size, 0)),
            (
                "ranks",
                Cell::count(course.run.ranks().map(|ranks| ranks as u64)),
            ),
            (
                "reached",
                Cell::text(if at.is_some() { "yes" } else { "no" }),
            ),
            (
                "seconds to it",
                Cell::number(at.and_then(|at| at.seconds), 1),
            ),
            ("epochs to it", Cell::count(at.map(|at| at.epochs))),
            ("steps to it", Cell::count(at.map(|at| at.steps))),
            ("images to it", Cell::number(at.and_then(|at| at.images), 0)),
            ("best accuracy, %", Cell::number(100.0 * course.best, 2)),
            ("epochs in all", Cell::count(ended.epochs)),
            ("steps in all", Cell::count(ended.steps)),
            ("seconds in all", Cell::number(ended.seconds, 1)),
        ]
    };
    Table::of(
        "time-to-accuracy",
        format!("Time to an accuracy of {percent} %"),
        courses.iter().map(row),
    )
}

/// Repetitions of a cell in one row, where there are several; accuracies have a deviation where each has a seed of its own.
fn together(facts: &Facts<'_>, target: f64) -> Option<Table> {
    let row = |runs: Vec<&Run>| {
        let courses: Vec<Course<'_>> = runs
            .into_iter()
            .filter_map(|run| course(run, target))
            .collect();
        let reached: Vec<Reached> = courses.iter().filter_map(|course| course.reached).collect();
        let seconds: Vec<f64> = reached.iter().filter_map(|at| at.seconds).collect();
        let middle = median(&seconds);
        let ends = range(&seconds).or(middle.map(|middle| (middle, middle)));
        let epochs: Vec<f64> = reached.iter().map(|at| at.epochs as f64).collect();
        let last: Vec<f64> = courses.iter().map(|course| 100.0 * course.last).collect();
        let seeds: BTreeSet<&str> = courses
            .iter()
            .filter_map(|course| course.run.setting("run.seed"))
            .collect();
        let Some((mean, Some(deviation))) = records::mean_and_deviation(&last) else {
            return None;
        };
        Some(vec![
            (
                "cell",
                Cell::text(
                    courses[0]
                        .run
                        .group
                        .as_ref()
                        .map(|group| group.cell.clone())
                        .unwrap_or_default(),
                ),
            ),
            ("runs", Cell::count(courses.len() as u64)),
            ("seeds", Cell::count(seeds.len() as u64)),
            ("reached", Cell::count(reached.len() as u64)),
            ("seconds to it, median", Cell::number(middle, 1)),
            ("least", Cell::number(ends.map(|ends| ends.0), 1)),
            ("most", Cell::number(ends.map(|ends| ends.1), 1)),
            ("epochs to it, median", Cell::number(median(&epochs), 1)),
            ("last accuracy, %, mean", Cell::number(mean, 2)),
            (
                "standard deviation",
                Cell::number(Some(deviation).filter(|_| seeds.len() == courses.len()), 2),
            ),
        ])
    };
    let percent = percent(target);
    let title = format!(
        "Repetitions together: time to {percent} % of those that reached it, accuracy at the last test"
    );
    let table = Table::of(
        "time-to-accuracy-together",
        title,
        facts.run_groups().into_iter().filter_map(row),
    );
    (!table.rows.is_empty()).then_some(table)
}

/// Costs by batch size of runs that are alike but for it.
type ByBatch = BTreeMap<u64, Vec<f64>>;

/// One cost against the batch size, where there are several and one of them was enough.
// tidy: long function because a figure's lines, words and table are made from the same runs
fn figure(courses: &[Course<'_>], percent: f64, (id, what, axis, cost): Cost) -> Option<Figure> {
    let settings: Vec<BTreeMap<String, String>> =
        courses.iter().map(|course| alike(course.run)).collect();
    let borrowed: Vec<Settings<'_>> = settings
        .iter()
        .map(|one| {
            one.iter()
                .map(|(key, value)| (key.as_str(), value.as_str()))
                .collect()
        })
        .collect();
    let differing = naming::differing(&borrowed);
    // The lines, then what ended before.
    let mut lines: BTreeMap<(String, bool), ByBatch> = BTreeMap::new();
    for (course, settings) in courses.iter().zip(&borrowed) {
        let Some(batch) = course.global_batch_size else {
            continue;
        };
        let name = naming::words(settings, &differing);
        let line = lines.entry((name, course.reached.is_none())).or_default();
        line.entry(batch as u64)
            .or_default()
            .extend(cost(&course.reached.unwrap_or(course.ended)));
    }
    let mut batches: Vec<f64> = lines
        .values()
        .flat_map(|line| line.keys())
        .map(|batch| *batch as f64)
        .collect();
    batches.sort_by(f64::total_cmp);
    batches.dedup();
    if batches.len() < 2 || lines.keys().all(|(_, is_missed)| *is_missed) {
        return None;
    }
    let title = format!("{what} to an accuracy of {percent} %");
    let mut data = Table::new(
        id,
        title,
        &["series", "global batch", axis, "least", "most", "runs"],
    );
    let mut names: Vec<&str> = lines.keys().map(|(name, _)| name.as_str()).collect();
    names.dedup();
    let mut series = Vec::new();
    for ((name, is_missed), line) in &lines {
        let end = if *is_missed {
            "ended without it"
        } else {
            "reached it"
        };
        let words = if name.is_empty() {
            end.to_owned()
        } else {
            format!("{name}, {end}")
        };
        let mut points = Vec::new();
        for (batch, costs) in line {
            let Some(middle) = median(costs) else {
                continue;
            };
            let range = range(costs);
            let (low, high) = range.unwrap_or((middle, middle));
            points.push(Point {
                x: *batch as f64,
                y: middle,
                range,
            });
            data.push(vec![
                Cell::text(words.clone()),
                Cell::count(*batch),
                Cell::number(middle, 2),
                Cell::number(low, 2),
                Cell::number(high, 2),
                Cell::count(costs.len() as u64),
            ]);
        }
        let place = names.iter().position(|other| other == name).unwrap_or(0);
        // Its marker is a cross, whatever the line.
        let (style, kind) = if *is_missed {
            (5, Kind::Scattered)
        } else {
            (place, Kind::Measured)
        };
        series.push(Series {
            name: words,
            style,
            kind,
            lines: vec![points],
        });
    }
    let has_missed = lines.keys().any(|(_, is_missed)| *is_missed);
    let crosses = if has_missed {
        " Crosses are runs that ended without it, where they ended."
    } else {
        ""
    };
    Some(Figure {
        caption: format!(
            "Until the end of the first epoch after which the accuracy was measured at or above the target, evaluation and checkpoints included, no warm-up left out. Points are medians of the runs of a batch size, bars their least and most.{crosses}"
        ),
        plot: Plot::Lines(LinePlot {
            x: Axis::of_counts("global batch, samples", &batches),
            y: Axis::from_zero(axis),
            series,
            band: None,
        }),
        data,
    })
}

/// What must be equal for two runs to be compared by their batches alone.
fn alike(run: &Run) -> BTreeMap<String, String> {
    let mut settings = settings_of(run);
    settings.extend(work_of(run).into_iter().chain(meeting_of(run)));
    settings.retain(|key, _| !["global_batch_size", "batch_size_per_rank"].contains(&key.as_str()));
    settings.extend(
        run.ranks()
            .map(|ranks| ("ranks".to_owned(), ranks.to_string())),
    );
    settings.extend(
        run.group
            .as_ref()
            .map(|group| ("study".to_owned(), group.study.to_string())),
    );
    settings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::{RunGroup, Sources};
    use records::{EpochRecord, Evaluation};

    /// Ten test images; every epoch takes 3 s, 10 images and 5 steps.
    fn run(batch: usize, sync: &str, correct: &[Option<u64>]) -> Run {
        let epoch = |(epoch, correct): (usize, &Option<u64>)| EpochRecord {
            epoch: epoch as u64,
            step: (epoch as u64 + 1) * 5,
            train_num_samples: 10,
            test: correct.map(|correct| Evaluation {
                top1: correct as f64 / 10.0,
                num_samples: 10,
                ..Evaluation::default()
            }),
            seconds_total: 3.0,
            ..EpochRecord::default()
        };
        let epochs = correct.iter().enumerate().map(epoch).collect();
        let settings = [
            ("batch.global-batch-size", batch.to_string()),
            ("model.model", sync.to_owned()),
        ];
        let settings = settings.map(|(key, value)| (key.to_owned(), value)).into();
        Run {
            label: format!("{sync} {batch}"),
            epochs,
            settings,
            ..Run::default()
        }
    }

    #[test]
    fn the_target_counts_from_the_end_of_the_first_epoch_at_it() {
        let run = run(10, "a", &[Some(3), None, Some(7), Some(9)]);
        assert_eq!(
            reached(&run, 0.7),
            Some(Reached {
                epochs: 3,
                steps: 15,
                images: Some(30.0),
                seconds: Some(9.0)
            })
        );
        assert_eq!(reached(&run, 0.2).map(|at| at.epochs), Some(1));
        assert_eq!(reached(&run, 0.95), None);
        assert_eq!(reached(&Run::default(), 0.1), None);
    }

    #[test]
    fn a_run_that_never_reached_the_target_is_named_and_drawn_where_it_ended() {
        let runs = vec![
            run(10, "a", &[Some(3), Some(7)]),
            run(20, "a", &[Some(3), Some(4), Some(5)]),
        ];
        let sources = Sources {
            runs,
            ..Sources::default()
        };
        let blocks = blocks(&Facts::new(&sources, Some(0.7)));
        let Block::Warning(words) = &blocks[0] else {
            panic!("{blocks:?}")
        };
        assert_eq!(
            words,
            "a 20 did not reach 70 % in 3 epochs; its best was 50 %."
        );
        let rows: Vec<Vec<String>> = blocks
            .iter()
            .filter_map(|block| {
                if let Block::Figure(figure) = block {
                    Some(&figure.data.rows)
                } else {
                    None
                }
            })
            .flatten()
            .map(|row| row.iter().take(3).map(Cell::raw).collect())
            .collect();
        let expected = [
            ["reached it", "10", "6"],
            ["ended without it", "20", "9"],
            ["reached it", "10", "2"],
            ["ended without it", "20", "3"],
        ];
        assert_eq!(rows, expected);
    }

    #[test]
    fn repetitions_come_together_with_the_spread_of_their_last_accuracies() {
        let of_cell = |cell: &str, seed: &str, run: Run| {
            let settings = run
                .settings
                .iter()
                .map(|(key, value)| (key.clone(), value.clone()));
            let settings = settings
                .chain([("run.seed".to_owned(), seed.to_owned())])
                .collect();
            Run {
                group: Some(RunGroup {
                    cell: cell.to_owned(),
                    study: 0,
                }),
                settings,
                ..run
            }
        };
        let runs = vec![
            of_cell("x", "0", run(10, "a", &[Some(8), Some(7)])),
            of_cell("y", "0", run(20, "a", &[Some(8)])),
            of_cell("x", "1", run(10, "a", &[Some(3), Some(5)])),
            of_cell("x", "2", run(10, "a", &[Some(6)])),
            of_cell("z", "0", run(10, "a", &[Some(6)])),
            of_cell("z", "0", run(10, "a", &[Some(6)])),
        ];
        let sources = Sources {
            runs,
            ..Sources::default()
        };
        let table = together(&Facts::new(&sources, None), 0.7).unwrap();
        let rows: Vec<Vec<String>> = table
            .rows
            .iter()
            .map(|row| row.iter().map(Cell::raw).collect())
            .collect();
        let of_one_seed = ["z", "2", "1", "0", "", "", "", "", "60", ""];
        assert_eq!(
            rows,
            [
                ["x", "3", "3", "1", "3", "3", "3", "1", "60", "10"],
                of_one_seed
            ]
        );
    }

    #[test]
    fn runs_that_differ_in_more_than_their_batch_are_on_lines_of_their_own() {
        let reaching = [Some(7)];
        let runs = [
            run(10, "a", &reaching),
            run(20, "a", &reaching),
            run(10, "b", &reaching),
            run(10, "a", &reaching),
        ];
        let courses: Vec<Course<'_>> = runs.iter().filter_map(|run| course(run, 0.7)).collect();
        let rows = figure(&courses, 70.0, COSTS[0]).unwrap().data.rows;
        let told: Vec<[String; 3]> = rows
            .iter()
            .map(|row| [row[0].raw(), row[1].raw(), row[5].raw()])
            .collect();
        let expected = [
            ["a, reached it", "10", "2"],
            ["a, reached it", "20", "1"],
            ["b, reached it", "10", "1"],
        ];
        assert_eq!(told, expected.map(|row| row.map(str::to_owned)));
    }
}
