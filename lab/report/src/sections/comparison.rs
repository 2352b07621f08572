//! Lockstep beside other frameworks on the same job.
//!
//! In: comparisons. Out: bars and a table. Invariant: a framework without a number is named with the reason.

use super::{Facts, MOST_SERIES};
use crate::chart::{Axis, Bar, BarPlot, Kind, LinePlot, Plot, Point, Series, Unit};
use crate::document::{Block, Cell, Figure, Table};
use crate::measurements::{median, range};
use crate::sources::{course_name, row_name, setting};
use records::{Comparison, ComparisonRow, Course, CourseEpoch, Estimate};
use serde_json::Value;
use std::collections::BTreeMap;

pub(super) fn blocks(facts: &Facts<'_>) -> Vec<Block> {
    let comparisons = &facts.sources.comparisons;
    let one = |(index, comparison)| {
        let prefix = if comparisons.len() > 1 {
            format!("comparison-{}", index + 1)
        } else {
            "comparison".to_owned()
        };
        one(comparison, &prefix, &rows_of_last(comparisons, index))
    };
    comparisons.iter().enumerate().flat_map(one).collect()
}

/// The rows of all comparisons that differ in their launchers alone, such as those over several networks, at the last of them: one table.
/// Each with what started its comparison, as a single rank needs no network; in the order of networks, formats and ranks.
fn rows_of_last(comparisons: &[Comparison], index: usize) -> Vec<(String, &ComparisonRow)> {
    /// What must be the same.
    fn job(of: &Comparison) -> (Vec<(&String, &Value)>, &str, Option<&str>, u64) {
        let job = of
            .job
            .iter()
            .filter(|(key, _)| *key != "launcher")
            .collect();
        (
            job,
            &of.commit,
            of.machine.cpu_model.as_deref(),
            of.machine.cpu_count,
        )
    }
    let launcher = |of: &Comparison| of.job.get("launcher").map(plain).unwrap_or_default();
    let is_alike = |&other: &usize| {
        let [one, other] = [index, other].map(|index| &comparisons[index]);
        std::ptr::eq(one, other) || (launcher(one) != launcher(other) && job(one) == job(other))
    };
    if (index + 1..comparisons.len()).any(|other| is_alike(&other)) {
        return Vec::new();
    }
    let alike = (0..=index)
        .filter(is_alike)
        .map(|index| &comparisons[index]);
    let mut rows: Vec<_> = alike
        .flat_map(|of| of.rows.iter().map(move |row| (launcher(of), row)))
        .collect();
    rows.sort_by_key(|(_, row)| (row.model.as_str(), row.dtype.as_str(), row.ranks));
    rows
}

/// One comparison, with a table of these rows.
fn one(comparison: &Comparison, prefix: &str, rows: &[(String, &ComparisonRow)]) -> Vec<Block> {
    let job: Vec<String> = comparison
        .job
        .iter()
        .map(|(key, value)| format!("{} {}", key.replace('_', " "), plain(value)))
        .collect();
    let machine = &comparison.machine;
    let mut blocks = vec![Block::Paragraph(format!(
        "Every framework did the same job on {} ({} processors): {}.",
        machine.cpu_model.as_deref().unwrap_or_default(),
        machine.cpu_count,
        job.join(", ")
    ))];
    let mut facets: BTreeMap<(&str, &str, u64), Vec<&ComparisonRow>> = BTreeMap::new();
    for row in &comparison.rows {
        facets
            .entry((&row.model, &row.dtype, row.ranks))
            .or_default()
            .push(row);
    }
    for (number, ((model, dtype, ranks), rows)) in facets.iter().enumerate() {
        let title = format!(
            "{model} {dtype}, {}",
            records::counted(*ranks as usize, "rank")
        );
        let figure = bars(&format!("{prefix}-{}", number + 1), &title, rows, &job);
        blocks.extend(figure.map(|figure| Block::Figure(Box::new(figure))));
    }
    if !rows.is_empty() {
        blocks.push(Block::Table(table(prefix, rows)));
    }
    blocks.extend(
        Some(sweep(prefix, &comparison.sweep))
            .filter(|table| !table.rows.is_empty())
            .map(Block::Table),
    );
    let mut differing: Vec<String> = comparison
        .rows
        .iter()
        .filter(|row| row.loss_agrees == Some(false))
        .map(row_name)
        .collect();
    differing.sort();
    differing.dedup();
    if !differing.is_empty() {
        blocks.push(Block::Warning(format!(
            "Losses that are not ours within rounding, so that the job was not quite the same: {}.",
            differing.join(", ")
        )));
    }
    blocks.extend(courses(comparison, prefix));
    blocks
}

fn plain(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

fn speeds(row: &ComparisonRow) -> Vec<f64> {
    row.images_per_second
        .iter()
        .flatten()
        .copied()
        .filter(|speed| speed.is_finite())
        .collect()
}

fn speed(row: &ComparisonRow) -> Option<f64> {
    row.images_per_second_median
        .or_else(|| median(&speeds(row)))
}

fn bars(id: &str, title: &str, rows: &[&ComparisonRow], job: &[String]) -> Option<Figure> {
    let mut sorted: Vec<&ComparisonRow> = rows.to_vec();
    let is_uncounted = |row: &ComparisonRow| row.counts == Some(false);
    sorted.sort_by(|a, b| {
        let by_speed = speed(b).unwrap_or(0.0).total_cmp(&speed(a).unwrap_or(0.0));
        is_uncounted(a).cmp(&is_uncounted(b)).then(by_speed)
    });
    let mut data = Table::new(
        id,
        title,
        &["framework", "images/s, median", "least", "most", "gap"],
    );
    let mut plotted = Vec::new();
    for row in sorted {
        let how = [row.launcher.as_str(), row.communication.as_str()]
            .iter()
            .filter(|word| !word.is_empty())
            .copied()
            .collect::<Vec<_>>()
            .join(", ");
        let mut label = if how.is_empty() {
            row_name(row)
        } else {
            format!("{} ({how})", row_name(row))
        };
        let (speed, range) = (speed(row), range(&speeds(row)));
        if is_uncounted(row) && speed.is_some() {
            label.push_str(" – does not count: losses differ or are unknown");
        }
        let gap = match speed {
            None => Some(format!(
                "no number: {}",
                row.gap.as_deref().unwrap_or("not said why")
            )),
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
            ..Bar::default()
        });
    }
    plotted.iter().any(|bar| bar.gap.is_none()).then(|| Figure {
        caption: format!(
            "Images/s of all ranks, global samples over the slowest rank's time; bars are medians of the rounds, whiskers their least and most. Lockstep in colour. The job, with its warm-up: {}.",
            job.join(", ")
        ),
        plot: Plot::Bars(BarPlot { x: Axis::from_zero("images/s, all ranks"), parts: Vec::new(), rows: plotted }),
        data,
    })
}

fn table(id: &str, rows: &[(String, &ComparisonRow)]) -> Table {
    let row = |(comparison, row): &(String, &ComparisonRow)| {
        let range = range(&speeds(row));
        let text = |text: &str| {
            if text.is_empty() {
                Cell::Missing
            } else {
                Cell::text(text)
            }
        };
        let truth = |truth: Option<bool>| {
            truth.map_or(Cell::Missing, |truth| {
                Cell::text(if truth { "yes" } else { "no" })
            })
        };
        let peak = row.peak_memory_bytes_rank;
        let beyond_import = peak
            .map(|bytes| bytes.saturating_sub(row.import_memory_bytes_rank.unwrap_or(0)) as f64);
        vec![
            ("framework", Cell::text(row_name(row))),
            ("model", text(&row.model)),
            ("format", text(&row.dtype)),
            ("comparison", text(comparison)),
            ("launcher", text(&row.launcher)),
            ("communication", text(&row.communication)),
            ("ranks", Cell::count(row.ranks)),
            ("threads", Cell::count(row.threads)),
            ("rounds", Cell::count(speeds(row).len() as u64)),
            ("images/s, median", Cell::number(speed(row), 1)),
            ("least", Cell::number(range.map(|range| range.0), 1)),
            ("most", Cell::number(range.map(|range| range.1), 1)),
            ("ratio to Lockstep (95 %)", estimate(row.ratio())),
            ("speedup (95 %)", estimate(row.speedup())),
            (
                "efficiency, %",
                Cell::number(row.efficiency.map(|share| 100.0 * share), 1),
            ),
            (
                "memory of a rank, MiB",
                Cell::mebibytes(peak.map(|bytes| bytes as f64)),
            ),
            (
                "of it beyond the import, MiB",
                Cell::mebibytes(beyond_import),
            ),
            ("loss after 2", Cell::number(row.loss_after_2, 4)),
            ("loss after 5", Cell::number(row.loss_after_5, 4)),
            ("losses agree", truth(row.loss_agrees)),
            ("counts", truth(row.counts)),
            ("disturbed rounds", Cell::count(row.disturbed_blocks)),
            (
                "what failed",
                row.gap.as_deref().map_or(Cell::Missing, Cell::text),
            ),
        ]
    };
    Table::of(id, "Frameworks on the same job", rows.iter().map(row))
}

fn estimate(estimate: Option<Estimate>) -> Cell {
    estimate.map_or(Cell::Missing, |estimate| Cell::Text(estimate.shown(2)))
}

/// The settings among which each framework's was chosen.
fn sweep(prefix: &str, rows: &[ComparisonRow]) -> Table {
    let row = |row: &ComparisonRow| {
        let setting = setting(row);
        vec![
            ("framework", Cell::text(row.framework.as_str())),
            ("model", Cell::text(row.model.as_str())),
            ("format", Cell::text(row.dtype.as_str())),
            ("ranks", Cell::count(row.ranks)),
            ("tried", Cell::text(row.tried.as_str())),
            (
                "setting",
                Cell::text(if setting.is_empty() {
                    "defaults"
                } else {
                    &setting
                }),
            ),
            ("images/s", Cell::number(speed(row), 1)),
            (
                "losses agree",
                row.loss_agrees.map_or(Cell::Missing, |agrees| {
                    Cell::text(if agrees { "yes" } else { "no" })
                }),
            ),
            (
                "what failed",
                row.gap.as_deref().map_or(Cell::Missing, Cell::text),
            ),
        ]
    };
    let others = rows.iter().filter(|row| row.framework != "Lockstep");
    Table::of(
        format!("{prefix}-settings"),
        "Settings that were tried, one run each",
        others.map(row),
    )
}

/// Test accuracies by epoch and by time, in as many figures as they need, a line a seed; a framework without any is named with the reason.
fn courses(comparison: &Comparison, prefix: &str) -> Vec<Block> {
    let is_drawn = |course: &&Course| course.epochs.iter().any(|epoch| epoch.test_top1.is_some());
    let (drawn, empty): (Vec<&Course>, Vec<&Course>) =
        comparison.accuracy.iter().partition(is_drawn);
    let mut by_name: Vec<(String, Vec<&Course>)> = Vec::new();
    for course in drawn {
        let name = course_name(course, &comparison.accuracy);
        match by_name.iter_mut().find(|(known, _)| *known == name) {
            Some((_, seeds)) => seeds.push(course),
            None => by_name.push((name, vec![course])),
        }
    }
    let parts: Vec<&[(String, Vec<&Course>)]> = by_name.chunks(MOST_SERIES).collect();
    let mut blocks = Vec::new();
    for (number, part) in parts.iter().enumerate() {
        let suffix = if parts.len() > 1 {
            format!("-{}", number + 1)
        } else {
            String::new()
        };
        blocks.extend(
            course_figures(part, prefix, &suffix)
                .into_iter()
                .map(|figure| Block::Figure(Box::new(figure))),
        );
    }
    blocks.extend(empty.into_iter().map(|course| {
        let gap = course.gap.as_deref().unwrap_or("not said why");
        Block::Warning(format!(
            "{}: no accuracy: {gap}",
            course_name(course, &comparison.accuracy)
        ))
    }));
    blocks
}

fn course_figures(by_name: &[(String, Vec<&Course>)], prefix: &str, suffix: &str) -> Vec<Figure> {
    let mut data = Table::new(
        "",
        "",
        &["framework", "seed", "epoch", "elapsed, s", "test accuracy"],
    );
    let mut series = [Vec::new(), Vec::new()];
    for (style, (name, seeds)) in by_name.iter().enumerate() {
        let lines = |x: fn(&CourseEpoch) -> Option<f64>| -> Vec<Vec<Point>> {
            let points = |course: &&Course| {
                course
                    .epochs
                    .iter()
                    .filter_map(|epoch| Some(Point::new(x(epoch)?, epoch.test_top1?)))
                    .collect()
            };
            seeds.iter().map(points).collect()
        };
        for (series, lines) in series.iter_mut().zip([
            lines(|epoch| Some(epoch.epoch as f64)),
            lines(|epoch| epoch.elapsed_s),
        ]) {
            series.push(Series {
                name: name.clone(),
                style,
                kind: Kind::Measured,
                lines,
            });
        }
        for (course, epoch) in seeds
            .iter()
            .flat_map(|course| course.epochs.iter().map(move |epoch| (course, epoch)))
        {
            data.push(vec![
                Cell::text(name.clone()),
                Cell::count(course.seed),
                Cell::count(epoch.epoch),
                Cell::number(epoch.elapsed_s, 1),
                Cell::number(epoch.test_top1, 4),
            ]);
        }
    }
    let [by_epoch, by_time] = series;
    [("epoch", "Test accuracy by epoch", by_epoch), ("seconds", "Test accuracy by time of training and evaluation", by_time)]
        .into_iter()
        .filter(|(_, _, series)| series.iter().any(|series| series.lines.iter().any(|line| !line.is_empty())))
        .map(|(label, title, series)| Figure {
            caption: "Share of the test images whose likeliest class is right, after each epoch of every framework's own training; a line a seed. Everybody decodes the images before the clock starts.".to_owned(),
            plot: Plot::Lines(LinePlot { x: if label == "epoch" { Axis::whole(label) } else { Axis::from_zero(label) }, y: Axis::from_zero("top-1 accuracy").in_unit(Unit::Share), series, band: None }),
            data: Table { id: format!("{prefix}-accuracy-{label}{suffix}"), title: title.to_owned(), ..data.clone() },
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(framework: &str, speed: Option<f64>, counts: bool) -> ComparisonRow {
        ComparisonRow {
            framework: framework.to_owned(),
            images_per_second_median: speed,
            counts: Some(counts),
            gap: speed.is_none().then(|| "not installed".to_owned()),
            ..ComparisonRow::default()
        }
    }

    #[test]
    fn what_does_not_count_stands_last_and_is_marked() {
        let mut rows = [
            row("fast", Some(900.0), false),
            row("none", None, false),
            row("Lockstep", Some(100.0), true),
        ];
        let figure = bars("id", "title", &rows.iter().collect::<Vec<_>>(), &[]).unwrap();
        let labels: Vec<String> = figure.data.rows.iter().map(|row| row[0].shown()).collect();
        assert_eq!(
            labels,
            [
                "Lockstep",
                "fast – does not count: losses differ or are unknown",
                "none"
            ]
        );
        rows[2].images_per_second = vec![Some(99.0), None, Some(101.0)];
        (
            rows[2].peak_memory_bytes_rank,
            rows[2].import_memory_bytes_rank,
        ) = (Some(5 << 20), Some(2 << 20));
        let table = table(
            "id",
            &rows
                .iter()
                .map(|row| (String::new(), row))
                .collect::<Vec<_>>(),
        );
        let counts = table
            .columns
            .iter()
            .position(|column| column == "counts")
            .unwrap();
        let shown: Vec<String> = table.rows.iter().map(|row| row[counts].shown()).collect();
        assert_eq!(shown, ["no", "no", "yes"]);
        let ours = [
            "rounds",
            "memory of a rank, MiB",
            "of it beyond the import, MiB",
        ]
        .map(|name| {
            table.rows[2][table
                .columns
                .iter()
                .position(|column| column == name)
                .unwrap()]
            .shown()
        });
        assert_eq!(ours, ["2", "5.0", "3.0"]);
    }

    #[test]
    fn comparisons_over_several_networks_are_one_table() {
        let over = |launcher: &str, batch: u64| Comparison {
            job: serde_json::Map::from_iter([
                ("launcher".to_owned(), launcher.into()),
                ("batch".to_owned(), batch.into()),
            ]),
            rows: [2, 1]
                .map(|ranks| ComparisonRow {
                    ranks,
                    ..ComparisonRow::default()
                })
                .into(),
            ..Comparison::default()
        };
        let all = ["hosts:1gbit 8", "plain 128", "hosts:10gbit 8", "plain 128"].map(|text| {
            text.split_once(' ')
                .map(|(launcher, batch)| over(launcher, batch.parse().unwrap()))
                .unwrap()
        });
        let of = |index| {
            let rows = rows_of_last(&all, index);
            rows.into_iter()
                .map(|(launcher, row)| format!("{launcher} {}", row.ranks))
                .collect::<Vec<_>>()
        };
        assert!(of(0).is_empty());
        assert_eq!(
            of(1),
            ["plain 1", "plain 2"],
            "twice the same is no other network"
        );
        assert_eq!(
            of(2),
            [
                "hosts:1gbit 1",
                "hosts:10gbit 1",
                "hosts:1gbit 2",
                "hosts:10gbit 2"
            ]
        );
        assert_eq!(of(3), of(1));
    }

    #[test]
    fn every_course_is_drawn_or_named_with_the_reason() {
        let epoch = CourseEpoch {
            epoch: 1,
            test_top1: Some(0.5),
            elapsed_s: Some(2.0),
            ..CourseEpoch::default()
        };
        let course = |framework: String| Course {
            framework,
            model: "resnet20".to_owned(),
            dtype: "bf16".to_owned(),
            epochs: vec![epoch],
            ..Course::default()
        };
        let mut accuracy: Vec<Course> = (0..MOST_SERIES + 1)
            .map(|number| course(number.to_string()))
            .collect();
        accuracy.push(Course {
            epochs: Vec::new(),
            gap: Some("no bf16".to_owned()),
            ..course("MXNet".to_owned())
        });
        let blocks = courses(
            &Comparison {
                accuracy,
                ..Comparison::default()
            },
            "comparison",
        );
        let (mut ids, mut names, mut warnings) = (Vec::new(), Vec::new(), Vec::new());
        for block in &blocks {
            match block {
                Block::Figure(figure) => {
                    ids.push(figure.data.id.as_str());
                    names.extend(figure.data.rows.iter().map(|row| row[0].shown()));
                }
                Block::Warning(text) => warnings.push(text.as_str()),
                _ => {}
            }
        }
        assert_eq!(
            ids,
            ["epoch-1", "seconds-1", "epoch-2", "seconds-2"]
                .map(|part| format!("comparison-accuracy-{part}"))
        );
        assert_eq!(names.len(), 2 * (MOST_SERIES + 1));
        assert!(
            names.contains(&format!("{MOST_SERIES} resnet20 bf16")),
            "{names:?}"
        );
        assert_eq!(warnings, ["MXNet resnet20 bf16: no accuracy: no bf16"]);
    }
}
