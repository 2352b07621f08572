//! Progress of training: time to an accuracy, curves, accuracy by class.
//!
//! In: runs, a target. Out: figures and tables.
//! Invariant: an accuracy counts from the end of the epoch after which it was measured, with all
//! evaluations and checkpoints before it. A run that never reached the target is named and drawn
//! separately.

use super::curves::{self, Curve, Moment};
use super::{Facts, Group, Settings, differing, run_speeds, spread_cells, words};
use crate::chart::{Axis, Kind, MOST_SERIES, Point, Series, Unit};
use crate::document::{Cell, Content, NamedRow, Section, Table, number, percent, row};
use crate::sources::Run;
use records::{ClassScore, EpochRecord, Spread};
use std::collections::{BTreeMap, BTreeSet};

/// Rows of a table of classes, and the most classes of a shown confusion matrix.
const MOST_CLASSES: usize = 20;

/// Runs without the target that are named.
const MOST_MISSED: usize = 3;

/// An evaluated run. Indices are those of epochs.
struct EvaluatedRun<'a> {
    run: &'a Run,
    /// First epoch whose accuracy was at least the target.
    reached: Option<usize>,
    best: f64,
}

impl<'a> EvaluatedRun<'a> {
    /// Returns `None` if the run was never evaluated.
    fn new(run: &'a Run, target: f64) -> Option<Self> {
        let top1 = |epoch: &EpochRecord| epoch.evaluated_top1();
        let accuracies = run.epochs.iter().filter_map(top1);
        let is_enough = |epoch: &EpochRecord| top1(epoch).is_some_and(|top1| top1 >= target);
        Some(Self {
            run,
            reached: run.epochs.iter().position(is_enough),
            best: accuracies.reduce(f64::max)?,
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
    let missed = runs.iter().filter(|one| one.reached.is_none());
    let missed: Vec<&EvaluatedRun<'_>> = missed.collect();
    for one in missed.iter().take(MOST_MISSED) {
        section.warn(format!(
            "{} did not reach {} in {}; its best was {}.",
            one.run.label,
            shown(target),
            records::counted(one.run.epochs.len(), "epoch"),
            shown(one.best)
        ));
    }
    if missed.len() > MOST_MISSED {
        let all = format!(
            "{} of {} runs did not reach the target.",
            missed.len(),
            runs.len()
        );
        section.warn(all);
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
    let groups = facts.groups().into_iter();
    let groups = groups.filter(|group| group.runs.len() > 1);
    section.table(
        "time-to-accuracy-together",
        format!("Repetitions together: time to {}", shown(target)),
        groups.map(|group| together(&group, target)),
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

/// Returns the row of several runs, with the cost where the target was reached.
fn together(group: &Group<'_>, target: f64) -> NamedRow {
    let runs = group.runs.iter();
    let runs: Vec<EvaluatedRun<'_>> = runs
        .filter_map(|run| EvaluatedRun::new(run, target))
        .collect();
    let reached = || runs.iter().filter_map(|one| Some((one, one.reached?)));
    let seconds = Spread::of(reached().filter_map(|(one, at)| one.seconds(at)));
    let epochs = Spread::of(reached().map(|(one, at)| one.run.epochs[at].number() as f64));
    let [median, least, most] = spread_cells(seconds, 1);
    row![
        "run" => &group.name,
        "runs" => runs.len(),
        "reached" => reached().count(),
        "seconds to it, median" => median,
        "least" => least,
        "most" => most,
        "epochs to it, median" => number(epochs.map(|epochs| epochs.median), 1),
    ]
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

/// Draws losses, accuracies, metrics and learning rates.
pub(super) fn curves(facts: &Facts<'_>, section: &mut Section) {
    let mut groups = facts.groups();
    groups.retain(|group| group.runs.iter().any(|run| !run.epochs.is_empty()));
    for groups in groups.chunks(MOST_SERIES) {
        let curve = |index: usize, word: &str, value: &dyn Fn(&EpochRecord) -> Option<f64>| {
            let group = &groups[index];
            let moments = |run: &&Run| -> Vec<Moment> {
                let epochs = run.epochs.iter().zip(run.progress());
                let moment = |(epoch, at): (&EpochRecord, Option<(f64, f64)>)| {
                    let (samples, seconds) = at.unzip();
                    Some(Moment {
                        at: [Some(epoch.number() as f64), samples, seconds],
                        value: value(epoch).filter(|value| value.is_finite())?,
                    })
                };
                epochs.filter_map(moment).collect()
            };
            let is_training = word == "train";
            Curve {
                name: match (groups.len(), is_training) {
                    (1, _) => word.to_owned(),
                    (_, true) => format!("{}, {word}", group.name),
                    (_, false) => group.name.clone(),
                },
                style: if groups.len() > 1 {
                    index
                } else {
                    is_training.into()
                },
                kind: if is_training {
                    Kind::Trained
                } else {
                    Kind::Evaluated
                },
                runs: group.runs.iter().map(moments).collect(),
            }
        };
        let splits = groups
            .iter()
            .flat_map(|group| &group.runs)
            .flat_map(|run| &run.epochs);
        let splits: BTreeSet<&str> = splits
            .filter_map(|epoch| Some(epoch.evaluation()?.0))
            .collect();
        let split = Vec::from_iter(splits).join(" or ");
        let thin = "Thin lines: mean over the samples of an epoch while it trained.";
        let words = match split.as_str() {
            "" => thin.to_owned(),
            split => format!("{thin} Markers: the {split} split after the epoch."),
        };
        let metrics = metrics(groups).into_iter().map(|name| (name, name));
        let known = [("loss", "Loss"), ("top1", "Accuracy")];
        for (figure, title) in known.into_iter().chain(metrics) {
            let pair = |index| {
                let trained = curve(index, "train", &|epoch| epoch.trained(figure));
                [
                    trained,
                    curve(index, &split, &|epoch| epoch.evaluated(figure)),
                ]
            };
            let mut all: Vec<Curve> = (0..groups.len()).flat_map(pair).collect();
            all.retain(|curve| curve.runs.iter().any(|run| !run.is_empty()));
            let (unit, target) = match figure {
                "top1" => (
                    Unit::Share,
                    facts.target_accuracy.filter(|_| !all.is_empty()),
                ),
                _ => (Unit::Plain, None),
            };
            let label = title.to_lowercase();
            let y = |values: &mut dyn Iterator<Item = f64>| Axis::showing(&label, unit, values);
            let words = [&file_name(title), title, &words];
            curves::draw(section, words, y, &all, target);
        }
        let rate = |epoch: &EpochRecord| Some(epoch.learning_rate);
        let rates: Vec<Curve> = (0..groups.len())
            .map(|index| curve(index, "", &rate))
            .collect();
        let words = [
            "learning-rate",
            "Learning rate",
            "Rate of the last step of the epoch.",
        ];
        if rates
            .iter()
            .any(|one| one.runs.iter().flatten().any(|rate| rate.value > 0.0))
        {
            curves::draw(
                section,
                words,
                |_| Axis::from_zero("learning rate"),
                &rates,
                None,
            );
        }
    }
}

/// Returns the metrics of evaluations besides loss and accuracy.
pub(super) fn metrics<'a>(groups: &[Group<'a>]) -> BTreeSet<&'a str> {
    let runs = groups.iter().flat_map(|group| group.runs.iter().copied());
    let scores = runs
        .flat_map(|run| &run.epochs)
        .filter_map(|epoch| Some(epoch.evaluation()?.1));
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

/// Lists the classes and confusions of every run outside studies, with the matrix of few classes.
pub(super) fn classes(facts: &Facts<'_>, section: &mut Section) {
    for run in facts.sources.runs.iter().filter(|run| run.group.is_none()) {
        let by_class = run.by_class.iter();
        for by_class in by_class.filter(|by_class| !by_class.classes.is_empty()) {
            let epoch = by_class.epoch.map_or(String::new(), |epoch| {
                format!(", model of epoch {}", epoch.saturating_add(1))
            });
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
            let table = Table::new(
                "confusion-matrix",
                "Confusion matrix, samples",
                rows.map(row),
            );
            section.contents.extend(table.map(|table| {
                Content::Table(Table {
                    is_shaded: true,
                    ..table
                })
            }));
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
    use super::super::results;
    use super::*;
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
        let [
            Content::Warning(words),
            Content::Table(_),
            Content::Table(table),
        ] = &contents[..]
        else {
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
    fn repetitions_come_together_with_the_spread_of_their_accuracies_the_best_first() {
        let runs = [
            ("x", "0", &[Some(8), Some(7)][..]),
            ("y", "0", &[Some(8)]),
            ("x", "1", &[Some(3), Some(5)]),
            ("x", "2", &[Some(6)]),
            ("z", "0", &[Some(5)]),
            ("z", "0", &[Some(5)]),
        ];
        let runs = runs.map(|(cell, seed, correct)| run(Some(cell), seed, correct));
        let rows = |add, columns: &[&str]| -> Vec<String> {
            let contents = contents(runs.clone().into(), add);
            let table = tables(&contents)[0];
            let places = columns
                .iter()
                .map(|name| table.columns.iter().position(|one| one == name));
            let places: Vec<usize> = places.map(Option::unwrap).collect();
            let rows = table.rows.iter();
            let row = |row: &Vec<Cell>| {
                places
                    .iter()
                    .map(|place| row[*place].shown())
                    .collect::<Vec<_>>()
                    .join(" ")
            };
            rows.map(row).collect()
        };
        let columns = ["run", "runs", "seeds", "accuracy, %", "± accuracy"];
        let expected = ["y – – 80.00 –", "x 3 3 60.00 10.00", "z 2 1 50.00 –"];
        assert_eq!(rows(results::summary, &columns), expected);
        let columns = [
            "run",
            "runs",
            "reached",
            "seconds to it, median",
            "epochs to it, median",
        ];
        let expected = ["x 3 1 3.0 1.0", "z 2 0 – –"];
        assert_eq!(rows(time_to_accuracy, &columns), expected);
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
