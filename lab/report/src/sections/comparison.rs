//! Lockstep compared with other frameworks on the same job.
//!
//! In: comparisons. Out: bars and tables. Invariant: a framework without a number is named with the reason.

use super::{Facts, MOST_SERIES};
use crate::chart::{Axis, Bar, BarPlot, Kind, LinePlot, Plot, Point, Series, Unit};
use crate::document::{Block, Cell, Figure, Table};
use crate::measurements::range;
use records::{Comparison, ComparisonRow, Course, CourseEpoch, Estimate};
use std::collections::BTreeMap;

/// The job that all frameworks do.
const JOB: &str = "SGD with momentum 0.9 and weight decay 1e-4 on all parameters, at 0.01; the same initial weights and batches for all, random pixels and labels";

pub(super) fn blocks(facts: &Facts<'_>) -> Vec<Block> {
    let comparisons = &facts.sources.comparisons;
    let mut blocks = Vec::new();
    for (index, comparison) in comparisons.iter().enumerate() {
        let prefix = match comparisons.len() {
            1 => "comparison".to_owned(),
            _ => format!("comparison-{}", index + 1),
        };
        blocks.extend(one(comparison, &prefix));
    }
    blocks
}

fn one(comparison: &Comparison, prefix: &str) -> Vec<Block> {
    let mut job: Vec<String> = comparison
        .job
        .iter()
        .map(|(key, value)| format!("{} {value}", key.replace('_', " ")))
        .collect();
    job.push(JOB.to_owned());
    let job = job.join(", ");
    let machine = &comparison.machine;
    let mut blocks = vec![Block::Paragraph(format!(
        "Every framework did the same job on {} ({} CPUs): {job}.",
        machine.cpu_model.as_deref().unwrap_or_default(),
        machine.cpu_count,
    ))];
    let mut facets: BTreeMap<(&str, &str, u64, &str), Vec<&ComparisonRow>> = BTreeMap::new();
    for row in &comparison.rows {
        let network = row.launcher.strip_prefix("hosts:").unwrap_or_default();
        let facet = (row.model.as_str(), row.dtype.as_str(), row.ranks, network);
        facets.entry(facet).or_default().push(row);
    }
    for (number, ((model, dtype, ranks, network), rows)) in facets.iter().enumerate() {
        let ranks = records::counted(*ranks as usize, "rank");
        let mut title = format!("{model} {dtype}, {ranks}");
        if !network.is_empty() {
            title.push_str(&format!(", {network}"));
        }
        let figure = bars(&format!("{prefix}-{}", number + 1), &title, rows, &job);
        blocks.extend(figure.map(|figure| Block::Figure(Box::new(figure))));
    }
    let rows: Vec<&ComparisonRow> = facets.into_values().flatten().collect();
    if !rows.is_empty() {
        blocks.push(Block::Table(table(prefix, &rows)));
    }
    let sweep = sweep(prefix, &comparison.sweep);
    if !sweep.rows.is_empty() {
        blocks.push(Block::Table(sweep));
    }
    let is_differing = |row: &&&ComparisonRow| row.loss_agrees == Some(false);
    let mut differing: Vec<String> = rows
        .iter()
        .filter(is_differing)
        .map(|row| row_name(row))
        .collect();
    differing.sort();
    differing.dedup();
    if !differing.is_empty() {
        blocks.push(Block::Warning(format!(
            "The losses differ from Lockstep's by more than rounding, so the job was not the same: {}.",
            differing.join(", ")
        )));
    }
    blocks.extend(courses(comparison, prefix));
    blocks
}

/// Returns the framework with its version, mode and setting.
fn row_name(row: &ComparisonRow) -> String {
    let name = in_words([&row.framework, &row.version, &row.variant]);
    match setting(row) {
        setting if setting.is_empty() => name,
        setting => format!("{name} ({setting})"),
    }
}

fn setting(row: &ComparisonRow) -> String {
    let words: Vec<String> = row
        .setting
        .iter()
        .map(|(name, option)| format!("{name} {option}"))
        .collect();
    words.join(", ")
}

/// Returns the framework with what it trained, and what differs between the trainings.
fn course_name(course: &Course, all: &[Course]) -> String {
    let mut name = in_words([&course.framework, &course.model, &course.dtype]);
    if all
        .iter()
        .any(|other| other.num_epochs != course.num_epochs)
    {
        name.push_str(&format!(", epochs {}", course.num_epochs));
    }
    if all.iter().any(|other| other.data_dir != course.data_dir) {
        name.push_str(&format!(", {}", course.data_dir));
    }
    name
}

fn in_words(parts: [&str; 3]) -> String {
    let known: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    known.join(" ")
}

fn speeds(row: &ComparisonRow) -> Vec<f64> {
    row.rounds
        .iter()
        .map(|round| round.images_per_second)
        .collect()
}

fn bars(id: &str, title: &str, rows: &[&ComparisonRow], job: &str) -> Option<Figure> {
    let mut sorted: Vec<&ComparisonRow> = rows.to_vec();
    let is_uncounted = |row: &ComparisonRow| !row.counts && row.speed().is_some();
    sorted.sort_by(|a, b| {
        let by_speed = b
            .speed()
            .unwrap_or(0.0)
            .total_cmp(&a.speed().unwrap_or(0.0));
        a.counts.cmp(&b.counts).reverse().then(by_speed)
    });
    let columns = ["framework", "images/s, median", "least", "most", "gap"];
    let mut data = Table::new(id, title, &columns);
    let mut plotted = Vec::new();
    for row in sorted {
        let how = [row.launcher.as_str(), row.communication.as_str()];
        let how: Vec<&str> = how.into_iter().filter(|word| !word.is_empty()).collect();
        let mut label = row_name(row);
        if !how.is_empty() {
            label.push_str(&format!(" ({})", how.join(", ")));
        }
        if is_uncounted(row) {
            label.push_str(" – does not count: losses differ or are unknown");
        }
        let range = range(&speeds(row));
        let reason = row.gap.as_deref().unwrap_or("reason not recorded");
        let gap = row
            .speed()
            .is_none()
            .then(|| format!("no number: {reason}"));
        data.push(vec![
            Cell::text(label.clone()),
            Cell::number(row.speed(), 1),
            Cell::number(range.map(|range| range.0), 1),
            Cell::number(range.map(|range| range.1), 1),
            gap.clone().map_or(Cell::Missing, Cell::Text),
        ]);
        plotted.push(Bar {
            label,
            values: row.speed().into_iter().collect(),
            range,
            gap,
            is_ours: row.is_ours(),
            ..Bar::default()
        });
    }
    if plotted.iter().all(|bar| bar.gap.is_some()) {
        return None;
    }
    Some(Figure {
        caption: format!(
            "Images/s of all ranks, global samples over the slowest rank's time; bars are medians of the rounds, whiskers their least and most. Lockstep in colour. The job, with its warm-up: {job}."
        ),
        plot: Plot::Bars(BarPlot {
            x: Axis::from_zero("images/s, all ranks"),
            parts: Vec::new(),
            rows: plotted,
        }),
        data,
    })
}

fn text(text: &str) -> Cell {
    match text {
        "" => Cell::Missing,
        text => Cell::text(text),
    }
}

fn truth(truth: Option<bool>) -> Cell {
    truth.map_or(Cell::Missing, |truth| {
        Cell::text(if truth { "yes" } else { "no" })
    })
}

fn estimate(estimate: Option<Estimate>) -> Cell {
    estimate.map_or(Cell::Missing, |estimate| Cell::Text(estimate.shown(2)))
}

fn table(id: &str, rows: &[&ComparisonRow]) -> Table {
    let row = |row: &&ComparisonRow| {
        let range = range(&speeds(row));
        let peak = row.most(|round| round.peak_memory_bytes_rank);
        let beyond_import = row.most(|round| {
            let import = round.import_memory_bytes_rank;
            round.peak_memory_bytes_rank.saturating_sub(import)
        });
        let mebibytes = |bytes: Option<u64>| Cell::mebibytes(bytes.map(|bytes| bytes as f64));
        let efficiency = row.efficiency().map(|share| 100.0 * share.median);
        let disturbed = row.rounds.iter().filter(|round| round.is_disturbed).count();
        vec![
            ("framework", Cell::text(row_name(row))),
            ("model", text(&row.model)),
            ("format", text(&row.dtype)),
            ("launcher", text(&row.launcher)),
            ("communication", text(&row.communication)),
            ("ranks", Cell::count(row.ranks)),
            ("threads", Cell::count(row.threads)),
            ("rounds", Cell::count(row.rounds.len() as u64)),
            ("images/s, median", Cell::number(row.speed(), 1)),
            ("least", Cell::number(range.map(|range| range.0), 1)),
            ("most", Cell::number(range.map(|range| range.1), 1)),
            ("ratio to Lockstep (95 %)", estimate(row.ratio)),
            ("speedup (95 %)", estimate(row.speedup)),
            ("efficiency, %", Cell::number(efficiency, 1)),
            ("memory of a rank, MiB", mebibytes(peak)),
            ("of it beyond the import, MiB", mebibytes(beyond_import)),
            ("loss after 2", Cell::number(row.loss_after(2), 4)),
            ("loss after 5", Cell::number(row.loss_after(5), 4)),
            ("losses agree", truth(row.loss_agrees)),
            ("counts", truth(Some(row.counts))),
            ("disturbed rounds", Cell::count(disturbed as u64)),
            (
                "what failed",
                row.gap.as_deref().map_or(Cell::Missing, Cell::text),
            ),
        ]
    };
    Table::of(id, "Frameworks on the same job", rows.iter().map(row))
}

/// Returns the table of the settings that were tried.
fn sweep(prefix: &str, rows: &[ComparisonRow]) -> Table {
    let row = |row: &ComparisonRow| {
        let setting = match setting(row) {
            setting if setting.is_empty() => "defaults".to_owned(),
            setting => setting,
        };
        vec![
            ("framework", text(&row.framework)),
            ("model", text(&row.model)),
            ("format", text(&row.dtype)),
            ("ranks", Cell::count(row.ranks)),
            ("tried", text(&row.tried)),
            ("setting", Cell::text(setting)),
            ("images/s", Cell::number(row.speed(), 1)),
            ("losses agree", truth(row.loss_agrees)),
            (
                "what failed",
                row.gap.as_deref().map_or(Cell::Missing, Cell::text),
            ),
        ]
    };
    let others = rows.iter().filter(|row| !row.is_ours());
    Table::of(
        format!("{prefix}-settings"),
        "Settings that were tried, one run each",
        others.map(row),
    )
}

/// Returns figures of test accuracy by epoch and by time, one line for each seed.
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
        let gap = course.gap.as_deref().unwrap_or("reason not recorded");
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
            caption: "Share of the test images whose likeliest class is right, after each epoch of every framework's own training; one line for each seed. All decode the images before the clock starts.".to_owned(),
            plot: Plot::Lines(LinePlot { x: if label == "epoch" { Axis::whole(label) } else { Axis::from_zero(label) }, y: Axis::from_zero("top-1 accuracy").in_unit(Unit::Share), series, band: None }),
            data: Table { id: format!("{prefix}-accuracy-{label}{suffix}"), title: title.to_owned(), ..data.clone() },
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use records::ComparedRound;

    fn row(framework: &str, speeds: &[f64], counts: bool) -> ComparisonRow {
        let round = |speed: &f64| ComparedRound {
            images_per_second: *speed,
            peak_memory_bytes_rank: 5 << 20,
            import_memory_bytes_rank: 2 << 20,
            ..ComparedRound::default()
        };
        ComparisonRow {
            framework: framework.to_owned(),
            rounds: speeds.iter().map(round).collect(),
            counts,
            gap: speeds.is_empty().then(|| "not installed".to_owned()),
            ..ComparisonRow::default()
        }
    }

    #[test]
    fn what_does_not_count_stands_last_and_is_marked() {
        let rows = [
            row("fast", &[900.0], false),
            row("none", &[], false),
            row("Lockstep", &[99.0, 101.0], true),
        ];
        let rows: Vec<&ComparisonRow> = rows.iter().collect();
        let figure = bars("id", "title", &rows, "").unwrap();
        let labels: Vec<String> = figure.data.rows.iter().map(|row| row[0].shown()).collect();
        let marked = "fast – does not count: losses differ or are unknown";
        assert_eq!(labels, ["Lockstep", marked, "none"]);
        let table = table("id", &rows);
        let shown = |row: usize, name: &str| {
            let column = table.columns.iter().position(|column| column == name);
            table.rows[row][column.unwrap()].shown()
        };
        assert_eq!(
            [0, 1, 2].map(|row| shown(row, "counts")),
            ["no", "no", "yes"]
        );
        let names = [
            "rounds",
            "memory of a rank, MiB",
            "of it beyond the import, MiB",
        ];
        assert_eq!(names.map(|name| shown(2, name)), ["2", "5.0", "3.0"]);
    }

    #[test]
    fn trainings_on_other_images_or_for_other_epochs_have_other_names() {
        let course = |data_dir: &str, num_epochs: u64| Course {
            framework: "JAX".to_owned(),
            dtype: "f32".to_owned(),
            data_dir: data_dir.to_owned(),
            num_epochs,
            ..Course::default()
        };
        for (all, expected) in [
            ([course("/dA", 2), course("/dA", 2)], ["JAX f32", "JAX f32"]),
            (
                [course("/dA", 2), course("/dB", 2)],
                ["JAX f32, /dA", "JAX f32, /dB"],
            ),
            (
                [course("/dA", 2), course("/dA", 3)],
                ["JAX f32, epochs 2", "JAX f32, epochs 3"],
            ),
        ] {
            assert_eq!(
                all.each_ref().map(|course| course_name(course, &all)),
                expected
            );
        }
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
