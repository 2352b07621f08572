//! Progress of training: time to an accuracy, curves, accuracy by class.
//!
//! In: runs, a target. Out: figures and tables.
//! Invariant: an accuracy counts from the end of the epoch after which it was measured, with all evaluations and
//! checkpoints before it; a run that never reached the target is named and drawn as such.

use super::{Facts, differing, parts, suffix, words};
use crate::chart::{Axis, Kind, LinePlot, MOST_SERIES, Plot, Point, Series, Unit};
use crate::document::{Cell, Content, Figure, NamedRow, Table, number, percent, row};
use crate::measurements::{Settings, settings_of, synchronisation_of, work_of};
use crate::sources::Run;
use records::{ClassScore, EpochRecord, EvaluationByClass, Spread};
use std::collections::{BTreeMap, BTreeSet};

/// Rows of a table of classes, and the most classes of a shown confusion matrix.
const MOST_CLASSES: usize = 20;

/// Progress of a run at the end of an epoch.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Progress {
    epochs: u64,
    steps: u64,
    images: Option<f64>,
    /// Seconds since the start of the first epoch.
    seconds: Option<f64>,
}

/// An evaluated run.
struct EvaluatedRun<'a> {
    run: &'a Run,
    global_batch_size: Option<u64>,
    /// Progress when the target was reached.
    reached: Option<Progress>,
    ended: Progress,
    best: f64,
    last: f64,
}

impl<'a> EvaluatedRun<'a> {
    /// Returns `None` if the run was never evaluated.
    fn new(run: &'a Run, target: f64) -> Option<Self> {
        let accuracies: Vec<f64> = run
            .epochs
            .iter()
            .filter_map(EpochRecord::evaluated_top1)
            .collect();
        let batch = run.setting("batch.global-batch-size");
        Some(Self {
            run,
            global_batch_size: batch.and_then(|batch| batch.parse().ok()),
            reached: reached(run, target),
            ended: *progress(run).last()?,
            best: accuracies.iter().copied().reduce(f64::max)?,
            last: *accuracies.last()?,
        })
    }
}

/// Returns the progress at the end of every epoch.
fn progress(run: &Run) -> Vec<Progress> {
    let end = |(epoch, at): (&EpochRecord, Option<(f64, f64)>)| Progress {
        epochs: epoch.number(),
        steps: epoch.step,
        images: at.map(|(images, _)| images),
        seconds: at.map(|(_, seconds)| seconds),
    };
    run.epochs.iter().zip(run.progress()).map(end).collect()
}

/// Returns the progress at the end of the first epoch whose accuracy was at least `target`.
fn reached(run: &Run, target: f64) -> Option<Progress> {
    let is_enough = |epoch: &EpochRecord| epoch.evaluated_top1().is_some_and(|top1| top1 >= target);
    let first = run.epochs.iter().position(is_enough)?;
    progress(run).get(first).copied()
}

/// Formats a share as a percentage of at most two decimals, without zeros at the end.
fn shown(share: f64) -> String {
    format!("{} %", (1e4 * share).round() / 1e2)
}

pub(super) fn time_to_accuracy(facts: &Facts<'_>) -> Vec<Content> {
    let Some(target) = facts.target_accuracy else {
        return Vec::new();
    };
    let runs = facts.sources.runs.iter();
    let runs: Vec<EvaluatedRun<'_>> = runs
        .filter_map(|run| EvaluatedRun::new(run, target))
        .collect();
    let missed = runs.iter().filter(|run| run.reached.is_none());
    let mut contents: Vec<Content> = missed
        .map(|one| {
            let epochs = records::counted(one.ended.epochs as usize, "epoch");
            let label = &one.run.label;
            Content::Warning(format!(
                "{label} did not reach {} in {epochs}; its best was {}.",
                shown(target),
                shown(one.best)
            ))
        })
        .collect();
    let seconds = by_batch(&runs, target, "time", "Wall time", "seconds", |at| {
        at.seconds
    });
    let epochs = by_batch(&runs, target, "epochs", "Epochs", "epochs trained", |at| {
        Some(at.epochs as f64)
    });
    contents.extend([seconds, epochs].into_iter().flatten().map(Content::Figure));
    let together = Table::new(
        "time-to-accuracy-together",
        format!(
            "Repetitions together: time to {} where reached, accuracy at the last evaluation",
            shown(target)
        ),
        facts
            .run_groups()
            .iter()
            .filter_map(|runs| together(runs, target)),
    );
    let single = Table::new(
        "time-to-accuracy",
        format!("Time to an accuracy of {}", shown(target)),
        runs.iter().map(of_evaluated_run),
    );
    contents.extend([together, single].into_iter().filter_map(Content::table));
    contents
}

fn of_evaluated_run(one: &EvaluatedRun<'_>) -> NamedRow {
    let at = one.reached;
    row![
        "run" => &one.run.label,
        "global batch" => one.global_batch_size,
        "ranks" => one.run.ranks(),
        "reached" => at.is_some(),
        "seconds to it" => number(at.and_then(|at| at.seconds), 1),
        "epochs to it" => at.map(|at| at.epochs),
        "steps to it" => at.map(|at| at.steps),
        "images to it" => number(at.and_then(|at| at.images), 0),
        "best accuracy, %" => percent(one.best, 2),
        "epochs in all" => one.ended.epochs,
        "steps in all" => one.ended.steps,
        "seconds in all" => number(one.ended.seconds, 1),
    ]
}

/// Returns the row of a cell with several runs. Accuracies have a deviation if every run had another seed.
fn together(runs: &[&Run], target: f64) -> Option<NamedRow> {
    let runs = runs.iter().filter_map(|run| EvaluatedRun::new(run, target));
    let runs: Vec<EvaluatedRun<'_>> = runs.collect();
    let reached = || runs.iter().filter_map(|one| one.reached);
    let seconds = Spread::of(reached().filter_map(|at| at.seconds));
    let epochs = Spread::of(reached().map(|at| at.epochs as f64));
    let last: Vec<f64> = runs.iter().map(|one| one.last).collect();
    let (mean, Some(deviation)) = records::mean_and_deviation(&last)? else {
        return None;
    };
    let seeds = runs.iter().filter_map(|one| one.run.setting("run.seed"));
    let seeds: BTreeSet<&str> = seeds.collect();
    let deviation = Some(deviation).filter(|_| seeds.len() == runs.len());
    Some(row![
        "cell" => runs[0].run.group.as_ref().map(|group| &group.cell),
        "runs" => runs.len(),
        "seeds" => seeds.len(),
        "reached" => reached().count(),
        "seconds to it, median" => number(seconds.map(|seconds| seconds.median), 1),
        "least" => number(seconds.map(|seconds| seconds.least), 1),
        "most" => number(seconds.map(|seconds| seconds.most), 1),
        "epochs to it, median" => number(epochs.map(|epochs| epochs.median), 1),
        "last accuracy, %, mean" => percent(mean, 2),
        "standard deviation" => percent(deviation, 2),
    ])
}

/// Draws a cost over the batch size; `None` if there are fewer than two sizes or no run reached the target.
fn by_batch(
    runs: &[EvaluatedRun<'_>],
    target: f64,
    id: &str,
    title: &str,
    axis: &str,
    cost: fn(&Progress) -> Option<f64>,
) -> Option<Figure> {
    let settings: Vec<BTreeMap<String, String>> = runs.iter().map(|one| line_of(one.run)).collect();
    fn borrowed(one: &BTreeMap<String, String>) -> Settings<'_> {
        one.iter()
            .map(|(key, value)| (key.as_str(), value.as_str()))
            .collect()
    }
    let settings: Vec<Settings<'_>> = settings.iter().map(borrowed).collect();
    let keys = differing(&settings);
    // Costs by line, by whether the target was missed, and by batch.
    let mut lines: BTreeMap<(String, bool), BTreeMap<u64, Vec<f64>>> = BTreeMap::new();
    for (one, settings) in runs.iter().zip(&settings) {
        let Some(batch) = one.global_batch_size else {
            continue;
        };
        let line = lines
            .entry((words(settings, &keys), one.reached.is_none()))
            .or_default();
        line.entry(batch)
            .or_default()
            .extend(cost(&one.reached.unwrap_or(one.ended)));
    }
    let batches: BTreeSet<u64> = lines
        .values()
        .flat_map(|line| line.keys().copied())
        .collect();
    let has_missed = lines.keys().any(|(_, is_missed)| *is_missed);
    if batches.len() < 2 || lines.keys().all(|(_, is_missed)| *is_missed) {
        return None;
    }
    let mut names: Vec<&str> = lines.keys().map(|(name, _)| name.as_str()).collect();
    names.dedup();
    let series = lines.iter().map(|((name, is_missed), line)| {
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
        let style = names.iter().position(|other| other == name).unwrap_or(0);
        // The sixth marker is a cross.
        let (style, kind) = if *is_missed {
            (5, Kind::Scattered)
        } else {
            (style, Kind::Measured)
        };
        let points = line.iter().filter_map(|(batch, costs)| {
            Some(Point::of(*batch as f64, Spread::of(costs.iter().copied())?))
        });
        Series::line(words, style, kind, points.collect())
    });
    let crosses = if has_missed {
        " Crosses are the ends of runs that never reached it."
    } else {
        ""
    };
    Some(Figure {
        id: format!("{id}-to-accuracy-by-batch"),
        title: format!("{title} to an accuracy of {}", shown(target)),
        caption: format!(
            "Until the end of the first epoch whose accuracy was at least the target, with evaluation, checkpoints and warm-up. Points are medians of the runs of a batch size, bars their least and most.{crosses}"
        ),
        plot: Plot::Lines(LinePlot {
            x: Axis::of_counts(
                "global batch, samples",
                batches.iter().map(|batch| *batch as f64),
            ),
            y: Axis::from_zero(axis),
            series: series.collect(),
        }),
    })
}

/// Returns everything that two runs must share to be compared by their batch sizes.
fn line_of(run: &Run) -> BTreeMap<String, String> {
    let mut settings = settings_of(run);
    settings.extend(work_of(run));
    settings.extend(synchronisation_of(run));
    settings.remove("global_batch_size");
    settings.remove("batch_size_per_rank");
    settings.extend(
        run.ranks()
            .map(|ranks| ("ranks".to_owned(), ranks.to_string())),
    );
    let group = run.group.as_ref();
    settings.extend(group.map(|group| ("study".to_owned(), group.study.to_string())));
    settings
}

/// Horizontal axes of curves: id, title, label.
const COURSES: [(&str, &str, &str); 3] = [
    ("epochs", "epochs", "epochs trained"),
    ("images", "images", "images trained"),
    (
        "time",
        "wall time",
        "seconds, with evaluation and checkpoints",
    ),
];

/// Draws loss and accuracy over epochs, images and time; repetitions of a cell share name and look.
pub(super) fn curves(facts: &Facts<'_>) -> Vec<Content> {
    let groups = facts.run_groups().into_iter();
    let groups: Vec<Vec<&Run>> = groups
        .filter(|runs| runs.iter().any(|run| !run.epochs.is_empty()))
        .collect();
    let mut contents = Vec::new();
    for (suffix, part) in parts(&groups, MOST_SERIES) {
        let names = names(facts, part);
        for course in 0..COURSES.len() {
            for is_accuracy in [false, true] {
                let figure = curve(facts, &names, part, course, is_accuracy, &suffix);
                contents.extend(figure.map(Content::Figure));
            }
        }
    }
    contents
}

/// Names groups by the differences of their cells, or by the cells if differences are ambiguous.
fn names(facts: &Facts<'_>, groups: &[Vec<&Run>]) -> Vec<String> {
    let settings = |runs: &Vec<&Run>| -> Option<Settings<'_>> {
        let measured = facts.measurement_of(runs[0])?;
        let mut settings = measured.line();
        settings.insert("ranks", measured.setting("ranks"));
        Some(settings)
    };
    let of_cells: Vec<Settings<'_>> = groups.iter().filter_map(settings).collect();
    let keys = differing(&of_cells);
    let short: Vec<String> = of_cells.iter().map(|one| words(one, &keys)).collect();
    let distinct: BTreeSet<&String> = short.iter().filter(|name| !name.is_empty()).collect();
    if distinct.len() == groups.len() && groups.len() > 1 {
        return short;
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

fn curve(
    facts: &Facts<'_>,
    names: &[String],
    groups: &[Vec<&Run>],
    course: usize,
    is_accuracy: bool,
    suffix: &str,
) -> Option<Figure> {
    let (course_id, course_title, x) = COURSES[course];
    let point = |epoch: &EpochRecord, at: Option<(f64, f64)>| {
        let (images, seconds) = at.unzip();
        let x = [Some(epoch.number() as f64), images, seconds][course]?;
        let y = if is_accuracy {
            epoch.evaluated_top1()
        } else {
            epoch.train_loss
        };
        y.filter(|y| y.is_finite()).map(|y| Point::new(x, y))
    };
    let line = |run: &&Run| -> Vec<Point> {
        let epochs = run.epochs.iter().zip(run.progress());
        epochs.filter_map(|(epoch, at)| point(epoch, at)).collect()
    };
    let mut series = Vec::new();
    for (style, (name, runs)) in names.iter().zip(groups).enumerate() {
        let lines: Vec<Vec<Point>> = runs
            .iter()
            .map(line)
            .filter(|line| !line.is_empty())
            .collect();
        if !lines.is_empty() {
            series.push(Series {
                name: name.clone(),
                style,
                kind: Kind::Measured,
                lines,
            });
        }
    }
    if series.is_empty() {
        return None;
    }
    let has_repetitions = series.iter().any(|series| series.lines.len() > 1);
    let far = series
        .iter()
        .flat_map(Series::points)
        .map(|point| point.x)
        .fold(0.0, f64::max);
    if let Some(target) = facts.target_accuracy.filter(|_| is_accuracy) {
        let line = vec![Point::new(0.0, target), Point::new(far, target)];
        series.push(Series::line("target", 0, Kind::Reference, line));
    }
    let (id, title, caption, y) = match is_accuracy {
        true => (
            "accuracy",
            "Accuracy",
            "Top-1 accuracy on the val split, or on the test split of a run without one, wherever it was measured.",
            Axis::from_zero("top-1 accuracy").in_unit(Unit::Share),
        ),
        false => (
            "loss",
            "Training loss",
            "Mean over the samples of an epoch during training.",
            Axis::linear("mean loss of the epoch, nats"),
        ),
    };
    let x = if course_id == "time" {
        Axis::from_zero(x)
    } else {
        Axis::whole(x)
    };
    let repetitions = if has_repetitions {
        " One line per repetition."
    } else {
        ""
    };
    Some(Figure {
        id: format!("{id}-by-{course_id}{suffix}"),
        title: format!("{title} by {course_title}"),
        caption: format!("{caption}{repetitions} Warm-up included."),
        plot: Plot::Lines(LinePlot { x, y, series }),
    })
}

/// Lists the classes and confusions of every run outside studies, with the matrix of few classes.
pub(super) fn classes(facts: &Facts<'_>) -> Vec<Content> {
    let runs = facts.sources.runs.iter().filter(|run| run.group.is_none());
    let evaluated = runs.filter_map(|run| Some((run, run.by_class.as_ref()?)));
    let evaluated: Vec<(&Run, &EvaluationByClass)> = evaluated
        .filter(|(_, by_class)| !by_class.classes.is_empty())
        .collect();
    let mut contents = Vec::new();
    for (index, (run, by_class)) in evaluated.iter().enumerate() {
        let suffix = suffix(index, evaluated.len());
        let epoch = by_class
            .epoch
            .map(|epoch| format!(", model of epoch {}", epoch.saturating_add(1)));
        let split = &by_class.split;
        let words = format!("{}: {split} split{}.", run.label, epoch.unwrap_or_default());
        contents.push(Content::Paragraph(words));
        let worst = by_class.worst_first();
        let title = match worst.len() {
            0..=MOST_CLASSES => "Classes, lowest accuracy first".to_owned(),
            all => format!(
                "The {MOST_CLASSES} of {} classes with the lowest accuracy",
                records::grouped(all as u64)
            ),
        };
        let rows = worst.into_iter().take(MOST_CLASSES).map(of_class);
        let confusions = by_class.confusions().into_iter().take(MOST_CLASSES);
        let confusion = |(class, answer, count): (&str, &str, u64)| row!["class" => class, "predicted as" => answer, "samples" => count];
        let tables = [
            Table::new(format!("classes{suffix}"), title, rows),
            Table::new(
                format!("confusions{suffix}"),
                "Most frequent confusions",
                confusions.map(confusion),
            ),
        ];
        contents.extend(tables.into_iter().filter_map(Content::table));
        contents.extend(matrix(by_class, &suffix).and_then(Content::table));
    }
    contents
}

fn of_class(class: &ClassScore) -> NamedRow {
    let confused = class.confused_with.first();
    row![
        "class" => &class.name,
        "samples" => class.num_samples,
        "correct" => class.correct,
        "accuracy, %" => percent(class.accuracy(), 2),
        "most often predicted as" => confused.map(|confused| &confused.name),
        "times" => confused.map(|confused| confused.count),
    ]
}

/// Returns the confusion matrix of at most [`MOST_CLASSES`] classes.
fn matrix(by_class: &EvaluationByClass, suffix: &str) -> Option<Table> {
    let matrix = by_class.confusion_matrix.as_ref()?;
    let num_answers = matrix.first()?.len();
    if matrix.len().max(num_answers) > MOST_CLASSES {
        return None;
    }
    let name = |class: usize| match by_class.classes.get(class) {
        Some(class) => class.name.clone(),
        None => class.to_string(),
    };
    let mut columns = vec!["class \\ prediction".to_owned()];
    columns.extend((0..num_answers).map(name));
    let mut table = Table::with_columns(
        format!("confusion-matrix{suffix}"),
        "Confusion matrix, samples",
        columns,
    );
    // A file of another program may have rows of different lengths.
    for (class, counts) in matrix
        .iter()
        .enumerate()
        .filter(|(_, counts)| counts.len() == num_answers)
    {
        let mut row = vec![Cell::from(name(class))];
        row.extend(counts.iter().map(|count| Cell::from(*count)));
        table.push(row);
    }
    Some(table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::{RunGroup, Sources};
    use records::Evaluation;

    /// Returns a run with ten test images, whose epochs take 3 s, 10 images and 5 steps.
    fn run(batch: usize, model: &str, correct: &[Option<u64>]) -> Run {
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
        let settings = [
            ("batch.global-batch-size", batch.to_string()),
            ("model.model", model.to_owned()),
        ];
        Run {
            label: format!("{model} {batch}"),
            epochs: correct.iter().enumerate().map(epoch).collect(),
            settings: settings.map(|(key, value)| (key.to_owned(), value)).into(),
            ..Run::default()
        }
    }

    fn sources(runs: Vec<Run>) -> Sources {
        Sources {
            runs,
            ..Sources::default()
        }
    }

    fn raw(table: &Table) -> Vec<Vec<String>> {
        table
            .rows
            .iter()
            .map(|row| row.iter().map(Cell::raw).collect())
            .collect()
    }

    #[test]
    fn the_target_counts_from_the_end_of_the_first_epoch_at_it() {
        let run = run(10, "a", &[Some(3), None, Some(7), Some(9)]);
        let expected = Progress {
            epochs: 3,
            steps: 15,
            images: Some(30.0),
            seconds: Some(9.0),
        };
        assert_eq!(reached(&run, 0.7), Some(expected));
        assert_eq!(reached(&run, 0.2).map(|at| at.epochs), Some(1));
        assert_eq!(reached(&run, 0.95), None);
        assert_eq!(reached(&Run::default(), 0.1), None);
    }

    #[test]
    fn a_run_that_never_reached_the_target_is_named_and_drawn_where_it_ended() {
        let runs = [
            (10, &[Some(3), Some(7)][..]),
            (20, &[Some(3), Some(4), Some(5)]),
        ];
        let sources = sources(runs.map(|(batch, correct)| run(batch, "a", correct)).into());
        let contents = time_to_accuracy(&Facts::new(&sources, Some(0.7)));
        let [
            Content::Warning(words),
            Content::Figure(time),
            Content::Figure(epochs),
            ..,
        ] = &contents[..]
        else {
            panic!("{contents:?}")
        };
        assert_eq!(
            words,
            "a 20 did not reach 70 % in 3 epochs; its best was 50 %."
        );
        let expected = [["reached it", "10", "6"], ["ended without it", "20", "9"]];
        assert_eq!(raw(&time.data()), expected);
        let expected = [["reached it", "10", "2"], ["ended without it", "20", "3"]];
        assert_eq!(raw(&epochs.data()), expected);
    }

    #[test]
    fn repetitions_come_together_with_the_spread_of_their_last_accuracies() {
        let of_cell = |(cell, seed, correct): (&str, &str, &[Option<u64>])| {
            let mut run = run(10, "a", correct);
            run.settings.insert("run.seed".to_owned(), seed.to_owned());
            run.group = Some(RunGroup {
                cell: cell.to_owned(),
                study: 0,
            });
            run
        };
        let runs = [
            ("x", "0", &[Some(8), Some(7)][..]),
            ("y", "0", &[Some(8)]),
            ("x", "1", &[Some(3), Some(5)]),
            ("x", "2", &[Some(6)]),
            ("z", "0", &[Some(6)]),
            ("z", "0", &[Some(6)]),
        ];
        let sources = sources(runs.map(of_cell).into());
        let groups = Facts::new(&sources, None).run_groups();
        let rows: Vec<NamedRow> = groups
            .iter()
            .filter_map(|runs| together(runs, 0.7))
            .collect();
        let shown = |row: &NamedRow| row.iter().map(|(_, cell)| cell.shown()).collect::<Vec<_>>();
        let rows: Vec<Vec<String>> = rows.iter().map(shown).collect();
        let of_one_seed = ["z", "2", "1", "0", "–", "–", "–", "–", "60.00", "–"];
        let of_x = [
            "x", "3", "3", "1", "3.0", "3.0", "3.0", "1.0", "60.00", "10.00",
        ];
        assert_eq!(rows, [of_x, of_one_seed]);
    }

    #[test]
    fn runs_that_differ_in_more_than_their_batch_are_on_separate_lines() {
        let runs = [(10, "a"), (20, "a"), (10, "b"), (10, "a")]
            .map(|(batch, model)| run(batch, model, &[Some(7)]));
        let runs: Vec<_> = runs
            .iter()
            .filter_map(|run| EvaluatedRun::new(run, 0.7))
            .collect();
        let figure = by_batch(&runs, 0.7, "time", "", "seconds", |at| at.seconds).unwrap();
        let lines: Vec<Vec<String>> = raw(&figure.data())
            .into_iter()
            .map(|row| row[..2].to_vec())
            .collect();
        assert_eq!(
            lines,
            [
                ["a, reached it", "10"],
                ["a, reached it", "20"],
                ["b, reached it", "10"]
            ]
        );
    }

    fn class_tables(num_classes: u32) -> Vec<(String, Vec<Vec<String>>)> {
        let names: Vec<String> = (0..num_classes).map(|class| format!("c{class}")).collect();
        let counts = |class| [((class, class), 10), ((class, 0), 10 + u64::from(class))];
        let counts: BTreeMap<(u32, u32), u64> = (0..num_classes).flat_map(counts).collect();
        let by_class = EvaluationByClass {
            split: "test".to_owned(),
            epoch: Some(3),
            ..EvaluationByClass::default()
        };
        let by_class = Some(by_class.with_counts(&names, &counts));
        let run = Run {
            label: "r".to_owned(),
            by_class,
            ..Run::default()
        };
        let contents = classes(&Facts::new(&sources(vec![run]), None));
        let [Content::Paragraph(words), tables @ ..] = &contents[..] else {
            panic!("{contents:?}")
        };
        assert_eq!(words, "r: test split, model of epoch 4.");
        let table = |content: &Content| match content {
            Content::Table(table) => (table.id.clone(), raw(table)),
            other => panic!("{other:?}"),
        };
        tables.iter().map(table).collect()
    }

    #[test]
    fn few_classes_have_a_matrix_and_of_many_the_worst_are_shown() {
        let few = class_tables(3);
        let ids: Vec<&str> = few.iter().map(|(id, _)| id.as_str()).collect();
        assert_eq!(ids, ["classes", "confusions", "confusion-matrix"]);
        assert_eq!(
            few[0].1[0],
            ["c2", "22", "10", "45.45454545454545", "c0", "12"]
        );
        assert_eq!(few[1].1[0], ["c2", "c0", "12"]);
        assert_eq!(few[2].1[2], ["c2", "12", "0", "10"]);
        let many = class_tables(1000);
        let sizes: Vec<(&str, usize)> = many
            .iter()
            .map(|(id, rows)| (id.as_str(), rows.len()))
            .collect();
        assert_eq!(sizes, [("classes", 20), ("confusions", 20)]);
        assert_eq!(many[0].1[0][0], "c999");
    }
}
