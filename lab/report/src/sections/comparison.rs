//! Lockstep compared with other frameworks on the same job.
//!
//! In: comparisons. Out: bars, tables, accuracies.
//! Invariant: a framework without a speed is listed with the reason.

use super::curves::{self, Curve, Moment};
use super::{Facts, short, spread_cells};
use crate::chart::{Axis, Bar, Kind, MOST_SERIES, Unit};
use crate::document::{NamedRow, Section, mebibytes, number, percent, row};
use records::{AttemptRecord, Comparison, ComparisonRow, Course, CourseEpoch, Spread};
use std::collections::BTreeMap;

/// Job of all frameworks.
const JOB: &str = "SGD with momentum 0.9 and weight decay 1e-4 on all parameters, at 0.01; the same initial weights and batches for all, random pixels and labels";

const UNKNOWN: &str = "reason not recorded";

pub(super) fn add(facts: &Facts<'_>, section: &mut Section) {
    for comparison in &facts.sources.comparisons {
        add_one(comparison, section);
    }
}

fn add_one(comparison: &Comparison, section: &mut Section) {
    let job = comparison.job.iter();
    let job = job.map(|(key, value)| format!("{} {value}", key.replace('_', " ")));
    let job = job.chain([JOB.to_owned()]).collect::<Vec<_>>().join(", ");
    let machine = &comparison.machine;
    section.text(format!(
        "Every framework did the same job on {} ({}) since {}, Lockstep at commit {}: {job}.",
        machine.cpu_model.as_deref().unwrap_or_default(),
        records::counted(machine.cpu_count as usize, "CPU"),
        comparison.created,
        short(&comparison.commit),
    ));
    let caption = format!(
        "images/s of all ranks: global samples over the time of the slowest rank. Bars are medians of the rounds, whiskers their least and most; Lockstep is coloured. The job, with its warm-up: {job}."
    );
    let mut facets: BTreeMap<(&str, &str, u64, &str), Vec<&ComparisonRow>> = BTreeMap::new();
    for row in &comparison.rows {
        facets.entry(row.job()).or_default().push(row);
    }
    for ((model, dtype, ranks, network), rows) in &facets {
        let ranks = records::counted(*ranks as usize, "rank");
        let title = in_words(", ", [&format!("{model} {dtype}"), &ranks, network]);
        let bars = bars(rows);
        if bars.iter().any(|bar| bar.gap.is_none()) {
            let words = ["comparison-bars", &title, &caption];
            section.bars(words, "images/s, all ranks", &[], &bars);
        }
    }
    let rows = facets.values().flatten();
    let title = "Frameworks on the same job";
    section.table("comparison", title, rows.map(|row| of_row(row)));
    let others = comparison.sweep.iter().filter(|row| !row.is_ours());
    let title = "Settings that were tried, one run each";
    section.table("comparison-settings", title, others.map(of_sweep));
    let differing = comparison.rows.iter();
    let differing = differing.filter(|row| row.loss_agrees == Some(false));
    let mut differing: Vec<String> = differing.map(row_name).collect();
    differing.sort();
    differing.dedup();
    if !differing.is_empty() {
        section.warn(format!(
            "Losses differ from Lockstep's by more than rounding, so the job was not the same: {}.",
            differing.join(", ")
        ));
    }
    courses(comparison, section);
}

fn in_words<const N: usize>(separator: &str, parts: [&str; N]) -> String {
    let known: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    known.join(separator)
}

/// Returns the framework with its version, mode and setting.
fn row_name(row: &ComparisonRow) -> String {
    let name = in_words(" ", [&row.framework, &row.version, &row.variant]);
    match setting(row) {
        setting if setting.is_empty() => name,
        setting => format!("{name} ({setting})"),
    }
}

fn setting(row: &ComparisonRow) -> String {
    let words = row.setting.iter();
    let words = words.map(|(name, option)| format!("{name} {option}"));
    words.collect::<Vec<_>>().join(", ")
}

/// Summarises the rounds around the median that counts.
fn speed(row: &ComparisonRow) -> Option<Spread> {
    let speeds = row.rounds.iter();
    Some(Spread {
        median: row.speed()?,
        ..Spread::of(speeds.filter_map(AttemptRecord::images_per_second))?
    })
}

/// Returns the bars of a job, the fastest first; bars that do not count come last.
fn bars(rows: &[&ComparisonRow]) -> Vec<Bar> {
    let median = |row: &ComparisonRow| row.speed().unwrap_or(0.0);
    let mut sorted = rows.to_vec();
    sorted.sort_by(|a, b| {
        let by_speed = median(b).total_cmp(&median(a));
        b.counts.cmp(&a.counts).then(by_speed)
    });
    let bar = |row: &ComparisonRow| {
        let way = in_words(", ", [&row.launcher, &row.communication]);
        let mut label = row_name(row);
        if !way.is_empty() {
            label.push_str(&format!(" ({way})"));
        }
        let speed = speed(row);
        if !row.counts && speed.is_some() {
            label.push_str(" – does not count: losses differ or are unknown");
        }
        let reason = row.gap.as_deref().unwrap_or(UNKNOWN);
        Bar {
            gap: speed.is_none().then(|| format!("no speed: {reason}")),
            style: row.is_ours().then_some(0),
            ..Bar::of(label, speed)
        }
    };
    sorted.into_iter().map(bar).collect()
}

fn of_row(row: &ComparisonRow) -> NamedRow {
    let [median, least, most] = spread_cells(speed(row), 1);
    let peak = row.peak_memory_bytes();
    let beyond_import = row.most(|result| {
        let peak = result["peak_memory_bytes"].as_u64()?;
        let import = result["import_memory_bytes"].as_u64().unwrap_or(0);
        Some(peak.saturating_sub(import))
    });
    row![
        "framework" => row_name(row),
        "model" => &row.model,
        "format" => &row.dtype,
        "launcher" => &row.launcher,
        "communication" => &row.communication,
        "ranks" => row.ranks,
        "threads" => row.threads,
        "rounds" => row.rounds.len(),
        "images/s, median" => median,
        "least" => least,
        "most" => most,
        "ratio to Lockstep (95 %)" => row.ratio.map(|ratio| ratio.shown(2)),
        "speedup (95 %)" => row.speedup.map(|speedup| speedup.shown(2)),
        "efficiency, %" => percent(row.speedup.map(|speedup| speedup.median / row.ranks as f64), 1),
        "memory of a rank, MiB" => mebibytes(peak),
        "without the import, MiB" => mebibytes(beyond_import),
        "loss after 2" => number(row.loss_after(2), 4),
        "loss after 5" => number(row.loss_after(5), 4),
        "losses agree" => row.loss_agrees,
        "counts" => row.counts,
        "disturbed rounds" => row.num_disturbed(),
        "failure" => row.gap.as_ref(),
    ]
}

fn of_sweep(row: &ComparisonRow) -> NamedRow {
    let setting = setting(row);
    row![
        "framework" => &row.framework,
        "model" => &row.model,
        "format" => &row.dtype,
        "ranks" => row.ranks,
        "tried" => &row.tried,
        "setting" => Some(setting).filter(|setting| !setting.is_empty()).unwrap_or("defaults".to_owned()),
        "images/s" => number(row.speed(), 1),
        "losses agree" => row.loss_agrees,
        "failure" => row.gap.as_ref(),
    ]
}

/// Returns the framework with the model it trained, and what differs between the trainings.
fn course_name(course: &Course, all: &[Course]) -> String {
    let mut name = in_words(" ", [&course.framework, &course.model, &course.dtype]);
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

/// Draws test accuracies; lists frameworks without any with the reason.
fn courses(comparison: &Comparison, section: &mut Section) {
    let all = &comparison.accuracy;
    let moments = |course: &Course| -> Vec<Moment> {
        let moment = |epoch: &CourseEpoch| {
            Some(Moment {
                at: [Some(epoch.epoch as f64), None, epoch.elapsed_s],
                value: epoch.test_top1?,
            })
        };
        course.epochs.iter().filter_map(moment).collect()
    };
    let mut curves: Vec<Curve> = Vec::new();
    for course in all {
        let name = course_name(course, all);
        let moments = moments(course);
        if moments.is_empty() {
            let reason = course.gap.as_deref().unwrap_or(UNKNOWN);
            section.warn(format!("{name}: no accuracy: {reason}"));
        } else if let Some(curve) = curves.iter_mut().find(|curve| curve.name == name) {
            curve.runs.push(moments);
        } else {
            curves.push(Curve {
                name,
                style: curves.len(),
                kind: Kind::Evaluated,
                runs: vec![moments],
            });
        }
    }
    for curves in curves.chunks(MOST_SERIES) {
        let caption = "Top-1 accuracy on the test images after each epoch of every framework's own training. Images are decoded before the clock starts.";
        let words = ["comparison-accuracy", "Test accuracy", caption];
        let y = |values: &mut dyn Iterator<Item = f64>| {
            Axis::showing("top-1 accuracy", Unit::Share, values)
        };
        curves::draw(section, words, y, curves, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::Content;

    fn row(framework: &str, speeds: &[f64], counts: bool) -> ComparisonRow {
        let round = |speed: &f64| AttemptRecord {
            result: serde_json::json!({
                "images_per_second": speed,
                "peak_memory_bytes": 5 << 20,
                "import_memory_bytes": 2 << 20,
            }),
            ..AttemptRecord::default()
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
    fn rows_that_do_not_count_come_last_and_are_marked() {
        let rows = [
            row("fast", &[900.0], false),
            row("none", &[], false),
            row("Lockstep", &[99.0, 101.0], true),
        ];
        let all: Vec<&ComparisonRow> = rows.iter().collect();
        let labels: Vec<String> = bars(&all).into_iter().map(|bar| bar.label).collect();
        let uncounted = "fast – does not count: losses differ or are unknown";
        assert_eq!(labels, ["Lockstep", uncounted, "none"]);
        let shown = |row: &ComparisonRow, column: &str| {
            let cells = of_row(row);
            let cell = cells.into_iter().find(|(name, _)| name == column);
            cell.unwrap().1.shown()
        };
        let counts = rows.each_ref().map(|row| shown(row, "counts"));
        assert_eq!(counts, ["no", "no", "yes"]);
        let of_lockstep = ["rounds", "memory of a rank, MiB", "without the import, MiB"];
        assert_eq!(
            of_lockstep.map(|column| shown(&rows[2], column)),
            ["2", "5.0", "3.0"]
        );
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
    fn every_course_is_drawn_or_listed_with_the_reason() {
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
        let mut accuracy: Vec<Course> = (0..=MOST_SERIES)
            .map(|number| course(number.to_string()))
            .collect();
        accuracy.push(Course {
            epochs: Vec::new(),
            gap: Some("no bf16".to_owned()),
            ..course("MXNet".to_owned())
        });
        let mut section = Section::new("", "");
        let comparison = Comparison {
            accuracy,
            ..Comparison::default()
        };
        courses(&comparison, &mut section);
        let found = section.contents.iter().map(|content| match content {
            Content::Figure(figure) => format!("{} {}", figure.id, figure.data().rows.len()),
            Content::Warning(text) => text.clone(),
            other => panic!("{other:?}"),
        });
        let expected = [
            "MXNet resnet20 bf16: no accuracy: no bf16".to_owned(),
            format!("comparison-accuracy-by-epochs {MOST_SERIES}"),
            format!("comparison-accuracy-by-time {MOST_SERIES}"),
            "comparison-accuracy-by-epochs 1".to_owned(),
            "comparison-accuracy-by-time 1".to_owned(),
        ];
        assert_eq!(found.collect::<Vec<_>>(), expected);
    }
}
