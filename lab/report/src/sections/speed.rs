//! Throughput and efficiency of all measurements.
//!
//! In: measurements, predictions. Out: figures over the ranks, bars for settings at one number of
//! ranks, one table of everything.
//! Invariant: points are medians. Ranges of speeds are the least and most of the repetitions.
//! Ranges of efficiencies are the interval of the ratios of single repetitions, which contains the
//! spread of the reference.
//! Source: Hoefler & Belli 2015, Scientific Benchmarking of Parallel Computing Systems, rules 1 and
//! 5.

use super::predictions::{Forecast, forecasts};
use super::{Facts, Settings, differing, spread_cells, words};
use crate::chart::{Axis, Bar, Kind, MOST_SERIES, Point, Series, Steps, Unit};
use crate::document::{NamedRow, Section, mebibytes, number, percent, row};
use records::{Estimate, Measurement, Spread};
use std::collections::{BTreeMap, BTreeSet};

/// Settings that group bars: the first one that leaves differences within a group.
const GROUPING: [&str; 6] = [
    "network",
    "model",
    "dtype",
    "global_batch_size",
    "batch_size_per_rank",
    "threads",
];

/// Settings that a title names, if a figure has one value of them.
const TITLE: [&str; 6] = [
    "model",
    "dtype",
    "sync",
    "network",
    "batch_size_per_rank",
    "global_batch_size",
];

const SPEED: &str = "images/s, all ranks";

pub(super) fn throughput(facts: &Facts<'_>, section: &mut Section) {
    let forecasts = forecasts(facts);
    let mut drawn: Vec<&Measurement> = Vec::new();
    let scaled = facts
        .measurements
        .iter()
        .filter(|one| one.scaling != "none");
    let groups = grouped(scaled, |one| {
        (one.setting("model"), one.setting("dtype"), &one.scaling)
    });
    let facets = groups
        .into_iter()
        .flat_map(|group| match lines(&group).len() {
            0..=MOST_SERIES => vec![group],
            _ => grouped(group.into_iter(), |one| one.setting("network")),
        });
    for facet in facets {
        if facet.iter().any(|one| one.ranks != facet[0].ranks) {
            for lines in lines(&facet).chunks(MOST_SERIES) {
                over_ranks(facts, &forecasts, &facet, lines, section);
            }
            drawn.extend(facet);
        }
    }
    let in_studies = facts
        .measurements
        .iter()
        .filter(|one| !one.setting("study").is_empty());
    let comparable = grouped(in_studies, |one| {
        let kind = (one.setting("study"), one.setting("kind"));
        (kind, one.scaling.as_str(), one.ranks)
    });
    for group in comparable {
        let is_drawn = |one: &&Measurement| drawn.iter().any(|other| std::ptr::eq(*other, *one));
        if group.len() > 1 && !group.iter().all(is_drawn) {
            side_by_side(facts, &forecasts, &group, section);
        }
    }
    let all = &facts.measurements;
    let rows = all.iter().map(|one| of_measurement(facts, one));
    // The summary has the speed of a single run.
    let rows = rows.filter(|_| all.len() > 1);
    section.table("throughput", "Throughput of all measurements", rows);
}

/// Returns the measurements in groups of equal keys, in the order of the keys.
fn grouped<'a, K: Ord>(
    all: impl Iterator<Item = &'a Measurement>,
    key: impl Fn(&'a Measurement) -> K,
) -> Vec<Vec<&'a Measurement>> {
    let mut groups: BTreeMap<K, Vec<&Measurement>> = BTreeMap::new();
    for one in all {
        groups.entry(key(one)).or_default().push(one);
    }
    groups.into_values().collect()
}

/// Returns the lines of a facet, each once.
fn lines<'a>(facet: &[&'a Measurement]) -> Vec<Settings<'a>> {
    // Single ranks are drawn as the beginning of the lines whose reference they are.
    let has_several = facet.iter().any(|one| one.ranks > 1);
    let facet = facet.iter().filter(|one| one.ranks > 1 || !has_several);
    let lines: BTreeSet<Settings<'a>> = facet.map(|one| one.line()).collect();
    lines.into_iter().collect()
}

/// Returns the measurements of a line, fewest ranks first.
fn members<'a>(
    facts: &'a Facts<'_>,
    facet: &[&'a Measurement],
    line: &Settings<'_>,
) -> Vec<&'a Measurement> {
    let on_line = facet.iter().copied().filter(|one| one.line() == *line);
    let mut members: Vec<&Measurement> = on_line.collect();
    // The settings of a single rank name no synchronisation.
    if members.iter().all(|one| one.ranks > 1) {
        let reference = members[0].reference(&facts.measurements);
        members.extend(reference.filter(|one| one.ranks == 1));
    }
    members.sort_by_key(|one| one.ranks);
    members
}

/// Draws speed and efficiency over the ranks.
fn over_ranks(
    facts: &Facts<'_>,
    forecasts: &[Forecast<'_>],
    facet: &[&Measurement],
    lines: &[Settings<'_>],
    section: &mut Section,
) {
    let keys = differing(lines);
    let mut drawn: [Vec<Series>; 2] = Default::default();
    let mut all: Vec<&Measurement> = Vec::new();
    for (style, line) in lines.iter().enumerate() {
        let name = words(line, &keys);
        let members = members(facts, facet, line);
        let speed = |one: &&Measurement| Some(Point::of(one.ranks as f64, one.speed()?));
        let measured = [
            members.iter().filter_map(speed).collect(),
            members
                .iter()
                .filter_map(|one| efficiency(facts, one))
                .collect(),
        ];
        for (word, kind, points) in [
            ("measured", Kind::Measured, measured),
            ("predicted", Kind::Predicted, predicted(forecasts, &members)),
        ] {
            let name = match kind {
                _ if name.is_empty() => word.to_owned(),
                Kind::Measured => name.clone(),
                _ => format!("{name}, {word}"),
            };
            for (series, points) in drawn.iter_mut().zip(points) {
                series.push(Series::line(&name, style, kind, points));
            }
        }
        all.extend(members);
    }
    for series in &mut drawn {
        series.retain(|one| one.points().next().is_some());
    }
    let ranks = all.iter().map(|one| one.ranks as f64);
    let x = Axis::of_counts("ranks", ranks.clone());
    let Some(ends) = Spread::of(ranks) else {
        return;
    };
    let ideal = |per_rank: f64, is_efficiency: bool| {
        let value = |ranks: f64| {
            if is_efficiency {
                per_rank
            } else {
                per_rank * ranks
            }
        };
        [ends.least, ends.most]
            .map(|ranks| Point::new(ranks, value(ranks)))
            .to_vec()
    };
    let per_rank = all.iter().filter_map(|one| {
        let base = one.reference(&facts.measurements)?;
        Some(base.speed()?.median / base.ranks as f64)
    });
    let mut per_rank: Vec<f64> = per_rank.collect();
    per_rank.sort_by(f64::total_cmp);
    per_rank.dedup();
    let scaling = match facet[0].scaling.as_str() {
        "weak" => "weak, a fixed batch per rank",
        "strong" => "strong, a fixed global batch that is divided among the ranks",
        other => other,
    };
    let predicted = match drawn[0].iter().any(|one| one.kind == Kind::Predicted) {
        true => " Hollow markers on dashed lines are predictions.",
        false => "",
    };
    let notes = format!(
        "Scaling: {scaling}.{predicted}{} {}",
        disturbed_words(facet),
        facts.speed_words()
    );
    let title = shared_words(&all);
    let y = match x.steps {
        Steps::Linear => Axis::from_zero(SPEED),
        _ => Axis::logarithmic(SPEED),
    };
    let efficiency = Axis::from_zero("efficiency").in_unit(Unit::Share);
    let of_speed = "Medians of the repetitions. A grey line is the speed of one rank times the ranks; each work per rank has one.";
    let of_efficiency = "Speed per rank over that of one rank in the same repetition; without a single rank, over that of the fewest ranks. Bars are the 95 % confidence interval of the median, or least and most of fewer than six repetitions.";
    for (mut series, (id, quantity, words, y, per_rank)) in drawn.into_iter().zip([
        ("throughput", "Throughput", of_speed, y, per_rank),
        (
            "efficiency",
            "Efficiency",
            of_efficiency,
            efficiency,
            vec![1.0],
        ),
    ]) {
        let lines = per_rank.into_iter();
        series.push(Series {
            name: "ideal".to_owned(),
            style: 0,
            kind: Kind::Reference,
            lines: lines.map(|one| ideal(one, id == "efficiency")).collect(),
        });
        let title = format!("{quantity}: {title}");
        let caption = format!("{words} {notes}");
        section.lines([id, &title, &caption], x.clone(), y, series);
    }
}

fn efficiency(facts: &Facts<'_>, one: &Measurement) -> Option<Point> {
    let ranks = one.ranks as f64;
    let speedups = one.speedups(&facts.measurements).into_iter();
    let efficiencies: Vec<f64> = speedups.map(|speedup| speedup / ranks).collect();
    let estimate = Estimate::of(&efficiencies)?;
    let interval = estimate.interval.map(|[low, high]| (low, high));
    Some(Point {
        x: ranks,
        y: estimate.median,
        range: interval.or_else(|| Spread::of(efficiencies)?.range()),
    })
}

/// Returns the predicted speeds and efficiencies of some measurements.
fn predicted(forecasts: &[Forecast<'_>], members: &[&Measurement]) -> [Vec<Point>; 2] {
    let mut points: [Vec<Point>; 2] = Default::default();
    for member in members {
        for forecast in forecasts.iter().filter(|one| one.is_of(member)) {
            // The efficiency of another scaling is relative to another batch.
            let is_same = member.scaling == forecast.record.scaling;
            let values = [
                forecast.value(|record| record.images_per_second),
                forecast
                    .value(|record| record.efficiency)
                    .filter(|_| is_same),
            ];
            for (points, value) in points.iter_mut().zip(values) {
                points.extend(value.map(|value| Point::new(member.ranks as f64, value)));
            }
        }
    }
    points
}

fn disturbed_words(members: &[&Measurement]) -> String {
    match members.iter().map(|one| one.num_disturbed()).sum::<usize>() {
        0 => String::new(),
        number => format!(" {number} of the repetitions count although the machine was not quiet."),
    }
}

/// Returns the settings that all measurements of a figure share, for its title.
fn shared_words(members: &[&Measurement]) -> String {
    let lines = lines(members);
    let mut keys = BTreeSet::from(TITLE);
    keys.retain(|key| !differing(&lines).contains(key));
    let shared = words(&lines[0], &keys);
    match members[0].scaling.as_str() {
        "none" => shared,
        scaling => format!("{shared}, {scaling} scaling"),
    }
}

fn of_measurement(facts: &Facts<'_>, one: &Measurement) -> NamedRow {
    let all = &facts.measurements;
    let [median, least, most] = spread_cells(one.speed(), 1);
    let speedup = one.speedup(all);
    let interval = speedup.and_then(|speedup| speedup.interval);
    let ranks = one.ranks as f64;
    row![
        "measurement" => &one.id,
        "scaling" => &one.scaling,
        "batch per rank" => one.setting("batch_size_per_rank").parse::<u64>().ok(),
        "ranks" => one.ranks,
        "images/s, median" => median,
        "least" => least,
        "most" => most,
        "repetitions" => one.attempts.len(),
        "speedup" => number(speedup.map(|speedup| speedup.median), 2),
        "95 % interval" => interval.map(|[low, high]| format!("{low:.2} to {high:.2}")),
        "efficiency, %" => percent(speedup.map(|speedup| speedup.median / ranks), 1),
        "reference, ranks" => speedup.and(one.reference(all)).map(|base| base.ranks),
        "disturbed" => Some(one.num_disturbed()).filter(|number| *number > 0),
        "memory of a rank, MiB" => mebibytes(one.peak_memory_bytes()),
        "study" => one.setting("study").parse::<u64>().ok().filter(|_| facts.has_several_studies()),
    ]
}

/// Names measurements on one number of ranks by their differences, and orders their bars by group.
fn bars(forecasts: &[Forecast<'_>], members: &[&Measurement]) -> Vec<Bar> {
    let lines: Vec<Settings<'_>> = members.iter().map(|one| one.line()).collect();
    let differences = differing(&lines);
    let grouping = GROUPING.iter().find_map(|key| {
        let of_group = |one: &&Measurement| lines_with(&lines, key, one.line().get(key).copied());
        let within = members.iter().flat_map(|one| differing(&of_group(one)));
        let within: BTreeSet<&str> = within.collect();
        let is_useful = differences.contains(key) && !within.is_empty();
        is_useful.then(|| (BTreeSet::from([*key]), within))
    });
    let (of_group, of_name) = grouping.unwrap_or_else(|| (BTreeSet::new(), differences));
    let mut names: Vec<String> = Vec::new();
    let mut groups: Vec<String> = Vec::new();
    let mut bars: Vec<Bar> = Vec::new();
    for (one, line) in members.iter().zip(&lines) {
        let name = words(line, &of_name);
        let group = words(line, &of_group);
        let place = |known: &mut Vec<String>, word: &String| {
            known
                .iter()
                .position(|other| other == word)
                .unwrap_or_else(|| {
                    known.push(word.clone());
                    known.len() - 1
                })
        };
        // One name has the same colour in all groups.
        let style = place(&mut names, &name);
        place(&mut groups, &group);
        let forecast = forecasts.iter().find(|forecast| forecast.is_of(one));
        bars.push(Bar {
            group,
            predicted: forecast.and_then(|one| one.value(|record| record.images_per_second)),
            style: Some(if of_group.is_empty() { 0 } else { style }),
            ..Bar::of(name, one.speed())
        });
    }
    bars.sort_by_key(|bar| groups.iter().position(|group| *group == bar.group));
    bars
}

fn lines_with<'a>(lines: &[Settings<'a>], key: &str, value: Option<&str>) -> Vec<Settings<'a>> {
    let lines = lines.iter().filter(|line| line.get(key).copied() == value);
    lines.cloned().collect()
}

fn side_by_side(
    facts: &Facts<'_>,
    forecasts: &[Forecast<'_>],
    members: &[&Measurement],
    section: &mut Section,
) {
    let bars = bars(forecasts, members);
    let predicted = match bars.iter().any(|bar| bar.predicted.is_some()) {
        true => " Hollow bars are predictions.",
        false => "",
    };
    let of_several = members.iter().filter(|one| one.ranks > 1);
    let references = of_several.filter_map(|one| one.reference(&facts.measurements));
    let mut of_one: Vec<f64> = references
        .filter(|base| base.ranks == 1)
        .filter_map(|base| Some(base.speed()?.median))
        .collect();
    of_one.dedup();
    let of_one = match of_one[..] {
        [speed] => format!(" One rank: {} images/s.", records::rate(speed)),
        _ => String::new(),
    };
    let ranks = records::counted(members[0].ranks, "rank");
    let title = format!("Throughput of {ranks}: {}", shared_words(members));
    let title = facts.cell_name(&title, members[0].setting("study"));
    let caption = format!(
        "Bars are medians of the repetitions, whiskers their least and most.{predicted}{of_one}{} {}",
        disturbed_words(members),
        facts.speed_words()
    );
    section.bars(["side-by-side", &title, &caption], SPEED, &[], &bars);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::Content;
    use crate::sources::Sources;
    use records::AttemptRecord;
    use serde_json::json;

    fn measured(ranks: usize, settings: &[(&str, &str)]) -> Measurement {
        let of_study = [("study", "1"), ("kind", "bench")];
        let settings = settings.iter().chain(&of_study);
        let settings = settings.map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        Measurement {
            ranks,
            settings: settings.collect(),
            scaling: "weak".to_owned(),
            attempts: vec![AttemptRecord {
                result: json!({ "images_per_second": 1 }),
                ..AttemptRecord::default()
            }],
            ..Measurement::default()
        }
    }

    fn methods_by_network() -> Vec<Measurement> {
        let settings = [
            (1, "machine", "plain", "allreduce"),
            (2, "machine", "mpirun", "allreduce"),
            (2, "slow", "hosts", "allreduce"),
            (2, "slow", "hosts", "ring"),
            (2, "fast", "hosts", "allreduce"),
            (2, "fast", "hosts", "ring"),
        ];
        let measured = |(ranks, network, launcher, sync)| {
            measured(
                ranks,
                &[("network", network), ("launcher", launcher), ("sync", sync)],
            )
        };
        settings.map(measured).into()
    }

    #[test]
    fn methods_stand_by_network_and_keep_their_colour_in_every_group() {
        let all = methods_by_network();
        let bars = bars(&[], &all.iter().skip(1).collect::<Vec<_>>());
        let bars = bars
            .iter()
            .map(|bar| (bar.group.as_str(), bar.label.as_str(), bar.style));
        // The launcher follows from the network, so no name contains it.
        let expected = [
            ("machine", "allreduce", Some(0)),
            ("slow", "allreduce", Some(0)),
            ("slow", "ring", Some(1)),
            ("fast", "allreduce", Some(0)),
            ("fast", "ring", Some(1)),
        ];
        assert_eq!(bars.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn measurements_that_differ_in_one_setting_have_no_groups() {
        let two = ["f32", "bf16"].map(|dtype| measured(2, &[("dtype", dtype)]));
        let bars = bars(&[], &two.iter().collect::<Vec<_>>());
        let names = bars
            .iter()
            .map(|bar| (bar.group.as_str(), bar.label.as_str()));
        assert_eq!(names.collect::<Vec<_>>(), [("", "f32"), ("", "bf16")]);
    }

    #[test]
    fn measurements_that_lines_show_and_those_outside_studies_have_no_bars() {
        let figures = |measurements: &[Measurement]| -> Vec<String> {
            let sources = Sources::default();
            let facts = Facts {
                measurements: measurements.to_vec(),
                ..Facts::new(&sources, None)
            };
            let mut section = Section::new("", "");
            throughput(&facts, &mut section);
            let contents = section.contents.into_iter();
            let id = |content| match content {
                Content::Figure(figure) => Some(figure.id),
                _ => None,
            };
            contents.filter_map(id).collect()
        };
        let mut all = methods_by_network();
        assert_eq!(figures(&all), ["throughput", "efficiency"]);
        assert_eq!(figures(&all[1..]), ["side-by-side"]);
        for one in &mut all {
            one.settings.remove("study");
            one.scaling = "none".to_owned();
        }
        assert_eq!(figures(&all), [""; 0]);
    }
}
