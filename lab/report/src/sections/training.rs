//! Progress of training: time to an accuracy, curves, accuracy by class.
//!
//! In: runs, a target. Out: figures and tables.
//! Invariant: an accuracy counts from the end of the epoch after which it was measured, with all
//! evaluations and checkpoints before it. A run that never reached the target is named and drawn
//! separately.

use super::{Facts, Settings, differing, run_speeds, words};
use crate::chart::{Axis, Kind, MOST_SERIES, Point, Series, Unit};
use crate::document::{Cell, NamedRow, Section, number, percent, row};
use crate::sources::Run;
use records::{ClassScore, EpochRecord, Measurement, Spread};
use std::collections::{BTreeMap, BTreeSet};

/// Rows of a table of classes, and the most classes of a shown confusion matrix.
const MOST_CLASSES: usize = 20;

/// An evaluated run. Indices are those of epochs.
struct EvaluatedRun<'a> {
    run: &'a Run,
    /// First epoch whose accuracy was at least the target.
    reached: Option<usize>,
    best: f64,
    last: f64,
}

impl<'a> EvaluatedRun<'a> {
    /// Returns `None` if the run was never evaluated.
    fn new(run: &'a Run, target: f64) -> Option<Self> {
        let top1 = |epoch: &EpochRecord| epoch.evaluated_top1();
        let accuracies = || run.epochs.iter().filter_map(top1);
        let is_enough = |epoch: &EpochRecord| top1(epoch).is_some_and(|top1| top1 >= target);
        Some(Self {
            run,
            reached: run.epochs.iter().position(is_enough),
            best: accuracies().reduce(f64::max)?,
            last: accuracies().next_back()?,
        })
    }

    /// Returns the seconds at the end of an epoch.
    fn seconds(&self, index: usize) -> Option<f64> {
        self.run.progress()[index].map(|(_, seconds)| seconds)
    }
}

/// Formats a share as a percentage of at most two decimals, without zeros at the end.
fn shown(share: f64) -> String {
    format!("{} %", (1e4 * share).round() / 1e2)
}

pub(super) fn time_to_accuracy(facts: &Facts<'_>, section: &mut Section) {
    let Some(target) = facts.target_accuracy else {
        return;
    };
    let evaluated = |run| EvaluatedRun::new(run, target);
    let runs: Vec<EvaluatedRun<'_>> = facts.sources.runs.iter().filter_map(evaluated).collect();
    for one in runs.iter().filter(|one| one.reached.is_none()) {
        section.warn(format!(
            "{} did not reach {} in {}; its best was {}.",
            one.run.label,
            shown(target),
            records::counted(one.run.epochs.len(), "epoch"),
            shown(one.best)
        ));
    }
    by_batch(
        section,
        &runs,
        target,
        ["time", "Wall time", "seconds"],
        EvaluatedRun::seconds,
    );
    by_batch(
        section,
        &runs,
        target,
        ["epochs", "Epochs", "epochs trained"],
        |one, at| Some(one.run.epochs[at].number() as f64),
    );
    let groups = facts.run_groups().into_iter();
    let groups = groups.map(|runs| runs.into_iter().filter_map(evaluated).collect::<Vec<_>>());
    section.table(
        "time-to-accuracy-together",
        format!(
            "Repetitions together: time to {} where reached, accuracy at the last evaluation",
            shown(target)
        ),
        groups.filter_map(|runs| together(&runs)),
    );
    section.table(
        "time-to-accuracy",
        format!("Time to an accuracy of {}", shown(target)),
        runs.iter().map(of_evaluated_run),
    );
}

fn of_evaluated_run(one: &EvaluatedRun<'_>) -> NamedRow {
    let epochs = &one.run.epochs;
    let end = epochs.len() - 1;
    let at = one.reached;
    let images = at.and_then(|at| one.run.progress()[at]);
    row![
        "run" => &one.run.label,
        "global batch" => one.run.global_batch_size(),
        "ranks" => one.run.ranks(),
        "reached" => at.is_some(),
        "seconds to it" => number(at.and_then(|at| one.seconds(at)), 1),
        "epochs to it" => at.map(|at| epochs[at].number()),
        "steps to it" => at.map(|at| epochs[at].step),
        "images to it" => number(images.map(|(images, _)| images), 0),
        "best accuracy, %" => percent(one.best, 2),
        "epochs in all" => epochs[end].number(),
        "steps in all" => epochs[end].step,
        "seconds in all" => number(one.seconds(end), 1),
    ]
}

/// Returns the row of a cell with several runs. Accuracies have a deviation if every run had
/// another seed.
fn together(runs: &[EvaluatedRun<'_>]) -> Option<NamedRow> {
    let last: Vec<f64> = runs.iter().map(|one| one.last).collect();
    let (mean, deviation) = records::mean_and_deviation(&last)?;
    deviation?;
    let reached = || runs.iter().filter_map(|one| Some((one, one.reached?)));
    let seconds = Spread::of(reached().filter_map(|(one, at)| one.seconds(at)));
    let epochs = Spread::of(reached().map(|(one, at)| one.run.epochs[at].number() as f64));
    let seeds = runs.iter().filter_map(|one| one.run.setting("run.seed"));
    let seeds: BTreeSet<&str> = seeds.collect();
    let deviation = deviation.filter(|_| seeds.len() == runs.len());
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

/// Draws a cost over the batch size, if there are two sizes and a run reached the target. The words
/// are the beginning of the id, that of the title, and the vertical axis.
fn by_batch<'a>(
    section: &mut Section,
    runs: &[EvaluatedRun<'a>],
    target: f64,
    [id, title, axis]: [&str; 3],
    cost: fn(&EvaluatedRun<'a>, usize) -> Option<f64>,
) {
    let settings: Vec<BTreeMap<String, String>> = runs.iter().map(|one| line_of(one.run)).collect();
    let borrowed = settings.iter().map(|one| {
        let own = one.iter();
        own.map(|(key, value)| (key.as_str(), value.as_str()))
            .collect()
    });
    let settings: Vec<Settings<'_>> = borrowed.collect();
    let keys = differing(&settings);
    // Costs by line, by whether the target was missed, and by batch.
    let mut lines: BTreeMap<(String, bool), BTreeMap<u64, Vec<f64>>> = BTreeMap::new();
    for (one, settings) in runs.iter().zip(&settings) {
        let Some(batch) = one.run.global_batch_size() else {
            continue;
        };
        let key = (words(settings, &keys), one.reached.is_none());
        let costs = lines.entry(key).or_default().entry(batch).or_default();
        let end = one.run.epochs.len() - 1;
        costs.extend(cost(one, one.reached.unwrap_or(end)));
    }
    let batches = lines.values().flat_map(|line| line.keys().copied());
    let batches: BTreeSet<u64> = batches.collect();
    let num_missed = lines.keys().filter(|(_, is_missed)| *is_missed).count();
    if batches.len() < 2 || num_missed == lines.len() {
        return;
    }
    let names: BTreeSet<&String> = lines.keys().map(|(name, _)| name).collect();
    let series = lines.iter().map(|((name, is_missed), line)| {
        // The sixth marker is a cross.
        let (end, style, kind) = match is_missed {
            true => ("ended without it", 5, Kind::Scattered),
            false => {
                let style = names.iter().position(|other| *other == name);
                ("reached it", style.unwrap_or(0), Kind::Measured)
            }
        };
        let words = match name.as_str() {
            "" => end.to_owned(),
            name => format!("{name}, {end}"),
        };
        let points = line.iter().filter_map(|(batch, costs)| {
            let costs = Spread::of(costs.iter().copied())?;
            Some(Point::of(*batch as f64, costs))
        });
        Series::line(words, style, kind, points.collect())
    });
    let crosses = match num_missed {
        0 => "",
        _ => " Crosses are the ends of runs that never reached it.",
    };
    section.lines(
        [
            &format!("{id}-to-accuracy-by-batch"),
            &format!("{title} to an accuracy of {}", shown(target)),
            &format!(
                "Until the end of the first epoch whose accuracy was at least the target, with evaluation, checkpoints and warm-up. Points are medians of the runs of a batch size, bars their least and most.{crosses}"
            ),
        ],
        Axis::of_counts(
            "global batch, samples",
            batches.iter().map(|batch| *batch as f64),
        ),
        Axis::from_zero(axis),
        series.collect(),
    );
}

/// Returns everything that two runs must share to be compared by their batch sizes.
fn line_of(run: &Run) -> BTreeMap<String, String> {
    let mut settings = run_speeds::settings(run, run.ranks().unwrap_or(1));
    settings.remove("global_batch_size");
    settings.remove("batch_size_per_rank");
    let group = run.group.as_ref();
    settings.extend(group.map(|group| ("study".to_owned(), group.study.to_string())));
    settings
}

/// Draws loss and accuracy over epochs, images and time; repetitions of a cell share name and look.
pub(super) fn curves(facts: &Facts<'_>, section: &mut Section) {
    let mut groups = facts.run_groups();
    groups.retain(|runs| runs.iter().any(|run| !run.epochs.is_empty()));
    for groups in groups.chunks(MOST_SERIES) {
        let names = names(facts, groups);
        for (course, (id, title, x)) in [
            ("epochs", "epochs", Axis::whole("epochs trained")),
            ("images", "images", Axis::whole("images trained")),
            (
                "time",
                "wall time",
                Axis::from_zero("seconds, with evaluation and checkpoints"),
            ),
        ]
        .into_iter()
        .enumerate()
        {
            let point = |epoch: &EpochRecord, at: Option<(f64, f64)>, y: Option<f64>| {
                let (images, seconds) = at.unzip();
                let x = [Some(epoch.number() as f64), images, seconds][course]?;
                y.filter(|y| y.is_finite()).map(|y| Point::new(x, y))
            };
            let series = |y: &dyn Fn(&EpochRecord) -> Option<f64>| -> Vec<Series> {
                let line = |run: &&Run| -> Vec<Point> {
                    let epochs = run.epochs.iter().zip(run.progress());
                    epochs
                        .filter_map(|(epoch, at)| point(epoch, at, y(epoch)))
                        .collect()
                };
                let named = names.iter().zip(groups).enumerate();
                let series = named.map(|(style, (name, runs))| Series {
                    name: name.clone(),
                    style,
                    kind: Kind::Measured,
                    lines: runs
                        .iter()
                        .map(line)
                        .filter(|line| !line.is_empty())
                        .collect(),
                });
                series.filter(|one| !one.lines.is_empty()).collect()
            };
            let caption = |words: &str, series: &[Series]| {
                let repetitions = match series.iter().any(|one| one.lines.len() > 1) {
                    true => " One line per repetition.",
                    false => "",
                };
                format!("{words}{repetitions} Warm-up included.")
            };
            let losses = series(&|epoch| epoch.train_loss);
            section.lines(
                [
                    &format!("loss-by-{id}"),
                    &format!("Training loss by {title}"),
                    &caption(
                        "Mean over the samples of an epoch during training.",
                        &losses,
                    ),
                ],
                x.clone(),
                Axis::linear("mean loss of the epoch, nats"),
                losses,
            );
            let mut accuracies = series(&EpochRecord::evaluated_top1);
            let words = caption(
                "Top-1 accuracy on the val split, or on the test split of a run without one, wherever it was measured.",
                &accuracies,
            );
            let far = accuracies
                .iter()
                .flat_map(Series::points)
                .map(|point| point.x);
            if let (Some(far), Some(target)) = (far.reduce(f64::max), facts.target_accuracy) {
                let line = [0.0, far].map(|x| Point::new(x, target)).to_vec();
                accuracies.push(Series::line("target", 0, Kind::Reference, line));
            }
            section.lines(
                [
                    &format!("accuracy-by-{id}"),
                    &format!("Accuracy by {title}"),
                    &words,
                ],
                x.clone(),
                Axis::from_zero("top-1 accuracy").in_unit(Unit::Share),
                accuracies,
            );
            for metric in metrics(groups) {
                let values = series(&|epoch| {
                    let (_, scores) = epoch.evaluation()?;
                    scores.metrics.get(metric).copied()
                });
                let words = caption(
                    "A metric on the val split, or on the test split of a run without one, wherever it was measured.",
                    &values,
                );
                section.lines(
                    [
                        &format!("{}-by-{id}", file_name(metric)),
                        &format!("{metric} by {title}"),
                        &words,
                    ],
                    x.clone(),
                    Axis::linear(metric),
                    values,
                );
            }
        }
    }
}

/// Returns the metrics of evaluations besides loss and accuracy.
fn metrics<'a>(groups: &[Vec<&'a Run>]) -> BTreeSet<&'a str> {
    let epochs = groups.iter().flatten().flat_map(|run| &run.epochs);
    let scores = epochs.filter_map(|epoch| Some(epoch.evaluation()?.1));
    scores
        .flat_map(|scores| scores.metrics.keys())
        .map(String::as_str)
        .collect()
}

/// Returns a name with letters, digits and `-` only.
fn file_name(name: &str) -> String {
    let plain = |letter: char| match letter.is_ascii_alphanumeric() {
        true => letter.to_ascii_lowercase(),
        false => '-',
    };
    name.chars().map(plain).collect()
}

/// Names groups by the differences of their cells, or by the cells if differences are ambiguous.
fn names(facts: &Facts<'_>, groups: &[Vec<&Run>]) -> Vec<String> {
    let cells = groups.iter().filter(|runs| runs[0].group.is_some());
    let cells = cells.filter_map(|runs| facts.measurement_of(runs[0]));
    let of_cells: Vec<_> = cells
        .map(|cell: &Measurement| {
            let mut settings = cell.line();
            settings.insert("ranks", cell.setting("ranks"));
            settings
        })
        .collect();
    let keys = differing(&of_cells);
    let short: Vec<String> = of_cells.iter().map(|one| words(one, &keys)).collect();
    let distinct: BTreeSet<&String> = short.iter().filter(|name| !name.is_empty()).collect();
    if distinct.len() == groups.len() && groups.len() > 1 {
        return short;
    }
    let whole = |runs: &Vec<&Run>| match &runs[0].group {
        Some(group) => facts.cell_name(&group.cell, &group.study.to_string()),
        None => runs[0].label.clone(),
    };
    groups.iter().map(whole).collect()
}

/// Lists the classes and confusions of every run outside studies, with the matrix of few classes.
pub(super) fn classes(facts: &Facts<'_>, section: &mut Section) {
    for run in facts.sources.runs.iter().filter(|run| run.group.is_none()) {
        let by_class = run.by_class.iter();
        for by_class in by_class.filter(|by_class| !by_class.classes.is_empty()) {
            let epoch = by_class.epoch.map(|epoch| epoch.saturating_add(1));
            let epoch = epoch.map(|epoch| format!(", model of epoch {epoch}"));
            let epoch = epoch.unwrap_or_default();
            section.text(format!("{}: {} split{epoch}.", run.label, by_class.split));
            let worst = by_class.worst_first();
            let title = match worst.len() {
                0..=MOST_CLASSES => "Classes, lowest accuracy first".to_owned(),
                all => format!(
                    "The {MOST_CLASSES} of {} classes with the lowest accuracy",
                    records::grouped(all as u64)
                ),
            };
            let worst = worst.into_iter().take(MOST_CLASSES);
            section.table("classes", title, worst.map(of_class));
            let confusions = by_class.confusions().into_iter().take(MOST_CLASSES);
            section.table(
                "confusions",
                "Most frequent confusions",
                confusions.map(|(class, answer, count)| {
                    row!["class" => class, "predicted as" => answer, "samples" => count]
                }),
            );
            let matrix = by_class.confusion_matrix.iter().flatten();
            let num_answers = matrix.clone().next().map_or(0, Vec::len);
            if by_class.classes.len().max(num_answers) > MOST_CLASSES {
                continue;
            }
            let name = |class: usize| {
                let class = by_class.classes.get(class).ok_or(class);
                class.map_or_else(|class| class.to_string(), |class| class.name.clone())
            };
            // A file of another program may have rows of different lengths.
            let rows = matrix
                .enumerate()
                .filter(|(_, counts)| counts.len() == num_answers);
            let row = |(class, counts): (usize, &Vec<u64>)| {
                let mut row = row!["class \\ prediction" => name(class)];
                let counts = counts.iter().enumerate();
                row.extend(counts.map(|(answer, count)| (name(answer), Cell::from(*count))));
                row
            };
            section.table(
                "confusion-matrix",
                "Confusion matrix, samples",
                rows.map(row),
            );
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{Content, Table};
    use crate::sources::{RunGroup, Sources};
    use records::{Evaluation, EvaluationByClass};

    /// Returns a run with ten test images, whose epochs take 3 s, 10 images and 5 steps.
    fn run(cell: Option<&str>, seed: &str, correct: &[Option<u64>]) -> Run {
        let epoch = |(epoch, correct): (u64, &Option<u64>)| EpochRecord {
            epoch,
            step: (epoch + 1) * 5,
            train_num_samples: 10,
            test: correct.map(|correct| Evaluation {
                top1: Some(correct as f64 / 10.0),
                ..Evaluation::default()
            }),
            seconds_total: 3.0,
            ..EpochRecord::default()
        };
        let settings = [("run.seed", seed), ("batch.global-batch-size", "8")];
        let settings = settings.map(|(key, value)| (key.to_owned(), value.to_owned()));
        Run {
            label: "r".to_owned(),
            group: cell.map(|cell| RunGroup {
                cell: cell.to_owned(),
                study: 1,
            }),
            epochs: (0..).zip(correct).map(epoch).collect(),
            settings: vec![settings.into()],
            ..Run::default()
        }
    }

    fn contents(runs: Vec<Run>, add: fn(&Facts<'_>, &mut Section)) -> Vec<Content> {
        let sources = Sources {
            runs,
            ..Sources::default()
        };
        let mut section = Section::new("", "");
        add(&Facts::new(&sources, Some(0.7)), &mut section);
        section.contents
    }

    fn tables(contents: &[Content]) -> Vec<&Table> {
        fn table(content: &Content) -> Option<&Table> {
            match content {
                Content::Table(table) => Some(table),
                _ => None,
            }
        }
        contents.iter().filter_map(table).collect()
    }

    #[test]
    fn the_target_counts_from_the_end_of_the_first_epoch_at_it_and_a_run_without_it_is_named() {
        let contents = contents(
            vec![
                run(None, "", &[Some(3), None, Some(7), Some(9)]),
                run(None, "", &[Some(3), Some(4), Some(5)]),
                Run::default(),
            ],
            time_to_accuracy,
        );
        let [Content::Warning(words), Content::Table(table)] = &contents[..] else {
            panic!("{contents:?}")
        };
        let expected = "r did not reach 70 % in 3 epochs; its best was 50 %.";
        assert_eq!(words, expected);
        let csv = table.to_csv();
        let expected = ["r,8,yes,9,3,15,30,90,4,20,12", "r,8,no,,,,,50,3,15,9"];
        assert_eq!(csv.lines().skip(1).collect::<Vec<_>>(), expected);
    }

    fn run_of_model(batch: usize, model: &str, correct: &[Option<u64>]) -> Run {
        let mut run = run(None, "", correct);
        let options = [
            ("batch.global-batch-size", batch.to_string()),
            ("model.model", model.to_owned()),
        ];
        run.settings[0].extend(options.map(|(key, value)| (key.to_owned(), value)));
        run
    }

    /// Returns the data of figures by id: series, batch and cost.
    fn by_batches(runs: Vec<Run>) -> Vec<(String, Vec<String>)> {
        let contents = contents(runs, time_to_accuracy);
        let figure = |content: &Content| match content {
            Content::Figure(figure) => {
                let csv = figure.data().to_csv();
                let lines = csv.lines().skip(1).map(str::to_owned);
                Some((figure.id.clone(), lines.collect()))
            }
            _ => None,
        };
        contents.iter().filter_map(figure).collect()
    }

    #[test]
    fn a_run_that_never_reached_the_target_is_drawn_where_it_ended() {
        let figures = by_batches(vec![
            run_of_model(10, "a", &[Some(3), Some(7)]),
            run_of_model(20, "a", &[Some(3), Some(4), Some(5)]),
        ]);
        for (figure, id, costs) in [(0, "time", [6, 9]), (1, "epochs", [2, 3])] {
            let [reached, missed] = costs;
            let expected = [
                format!("reached it,10,{reached}"),
                format!("ended without it,20,{missed}"),
            ];
            let (name, lines) = &figures[figure];
            assert_eq!(*name, format!("{id}-to-accuracy-by-batch"));
            assert_eq!(*lines, expected);
        }
    }

    #[test]
    fn runs_that_differ_in_more_than_their_batch_are_on_separate_lines() {
        let runs = [(10, "a"), (20, "a"), (10, "b"), (10, "a")];
        let runs = runs.map(|(batch, model)| run_of_model(batch, model, &[Some(7)]));
        let figures = by_batches(runs.into());
        let expected = [
            "\"a, reached it\",10,3,3,3",
            "\"a, reached it\",20,3,,",
            "\"b, reached it\",10,3,,",
        ];
        assert_eq!(figures[0].1, expected);
        let one_size = by_batches(vec![run_of_model(10, "a", &[Some(7)])]);
        assert!(one_size.is_empty(), "{one_size:?}");
    }

    #[test]
    fn repetitions_come_together_with_the_spread_of_their_last_accuracies() {
        let runs = [
            ("x", "0", &[Some(8), Some(7)][..]),
            ("y", "0", &[Some(8)]),
            ("x", "1", &[Some(3), Some(5)]),
            ("x", "2", &[Some(6)]),
            ("z", "0", &[Some(6)]),
            ("z", "0", &[Some(6)]),
        ];
        let runs = runs.map(|(cell, seed, correct)| run(Some(cell), seed, correct));
        let contents = contents(runs.into(), time_to_accuracy);
        let rows = tables(&contents)[0].rows.iter();
        let rows: Vec<String> = rows
            .map(|row| row.iter().map(Cell::shown).collect::<Vec<_>>().join(" "))
            .collect();
        let expected = [
            "x 3 3 1 3.0 3.0 3.0 1.0 60.00 10.00",
            "z 2 1 0 – – – – 60.00 –",
        ];
        assert_eq!(rows, expected);
    }

    fn class_tables(num_classes: u32) -> Vec<(String, Vec<String>)> {
        let names: Vec<String> = (0..num_classes).map(|class| format!("c{class}")).collect();
        let counts = |class| [((class, class), 10), ((class, 0), 10 + u64::from(class))];
        let counts: BTreeMap<(u32, u32), u64> = (0..num_classes).flat_map(counts).collect();
        let by_class = EvaluationByClass {
            split: "test".to_owned(),
            epoch: Some(3),
            ..EvaluationByClass::default()
        };
        let run = Run {
            by_class: Some(by_class.with_counts(&names, &counts)),
            ..run(None, "", &[])
        };
        let contents = contents(vec![run], classes);
        let Content::Paragraph(words) = &contents[0] else {
            panic!("{contents:?}")
        };
        assert_eq!(words, "r: test split, model of epoch 4.");
        let lines = |table: &Table| table.to_csv().lines().map(str::to_owned).collect();
        let tables = tables(&contents).into_iter();
        tables
            .map(|table| (table.id.clone(), lines(table)))
            .collect()
    }

    #[test]
    fn few_classes_have_a_matrix_and_of_many_the_worst_are_shown() {
        let few = class_tables(3);
        let ids: Vec<&str> = few.iter().map(|(id, _)| id.as_str()).collect();
        assert_eq!(ids, ["classes", "confusions", "confusion-matrix"]);
        assert_eq!(few[0].1[1], "c2,22,10,45.45454545454545,c0,12");
        assert_eq!(few[1].1[1], "c2,c0,12");
        assert_eq!(few[2].1[3], "c2,12,0,10");
        let many = class_tables(1000);
        let sizes = many.iter().map(|(id, lines)| (id.as_str(), lines.len()));
        let expected = [("classes", 21), ("confusions", 21)];
        assert_eq!(sizes.collect::<Vec<_>>(), expected);
        assert!(many[0].1[1].starts_with("c999,"));
    }
}
