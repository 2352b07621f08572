//! Throughput, efficiency and memory of all measurements.
//!
//! In: measurements, predictions. Out: two figures over the ranks for each network, number format and kind of scaling;
//! bars for settings at one number of ranks; one table of everything; bars of memory.
//! Invariant: points are medians; ranges of speeds are the least and most of the repetitions, ranges of efficiencies
//! the interval of the ratios of single repetitions, which contains the spread of the reference.
//! Source: Hoefler & Belli 2015, Scientific Benchmarking of Parallel Computing Systems, rules 1 and 5.

use super::predictions::{self, Matched};
use super::{Facts, MOST_BARS, differing, parts, spread_cells, suffix, words};
use crate::chart::{Axis, Bar, BarPlot, Kind, LinePlot, MOST_SERIES, Plot, Point, Series, Unit};
use crate::document::{Content, Figure, NamedRow, Table, number, percent, row};
use crate::measurements::{Measurement, Settings};
use crate::sources::Run;
use records::{Estimate, Spread};
use std::collections::{BTreeMap, BTreeSet};

/// Settings that divide a crowded figure, first to last.
const DIVIDING: [&str; 7] = [
    "network",
    "batch_size_per_rank",
    "sync",
    "compress",
    "launcher",
    "threads",
    "reduction",
];

/// Settings that group bars: the first one that leaves differences within a group.
const GROUPING: [&str; 6] = [
    "network",
    "model",
    "dtype",
    "global_batch_size",
    "batch_size_per_rank",
    "threads",
];

/// Name of a line without others.
const MEASURED: &str = "measured";

const SPEED: &str = "images/s, all ranks";

pub(super) fn throughput(facts: &Facts<'_>) -> Vec<Content> {
    let facets = facets(&facts.measurements);
    let predictions = predictions::matched(facts);
    let mut figures = Vec::new();
    for (index, facet) in facets.iter().enumerate() {
        figures.extend(over_ranks(
            facts,
            &predictions,
            facet,
            &suffix(index, facets.len()),
        ));
    }
    let groups = comparable(&facts.measurements, &facets.concat());
    let places: Vec<Vec<Place<'_>>> = groups.iter().map(|group| placed(group)).collect();
    let chunks: Vec<&[Place<'_>]> = places
        .iter()
        .flat_map(|group| group.chunks(MOST_BARS))
        .collect();
    for (index, part) in chunks.iter().enumerate() {
        figures.push(side_by_side(
            facts,
            &predictions,
            part,
            &suffix(index, chunks.len()),
        ));
    }
    let mut contents: Vec<Content> = figures.into_iter().map(Content::Figure).collect();
    let rows = facts
        .measurements
        .iter()
        .map(|one| of_measurement(facts, one));
    let table = Table::new("throughput", "Throughput of all measurements", rows);
    contents.extend(Content::table(table));
    contents
}

/// Returns the measurements of each pair of figures: the same model, format and scaling on several numbers of ranks.
fn facets(all: &[Measurement]) -> Vec<Vec<&Measurement>> {
    let mut groups: BTreeMap<_, Vec<&Measurement>> = BTreeMap::new();
    for one in all.iter().filter(|one| one.scaling != "none") {
        let key = (one.setting("model"), one.setting("dtype"), &one.scaling);
        groups.entry(key).or_default().push(one);
    }
    let divided = groups
        .into_values()
        .flat_map(|group| divided(group, &DIVIDING));
    divided
        .filter(|group| group.iter().any(|one| one.ranks != group[0].ranks))
        .collect()
}

/// Divides a group by further settings until its lines fit into one figure.
fn divided<'a>(group: Vec<&'a Measurement>, keys: &[&str]) -> Vec<Vec<&'a Measurement>> {
    let lines: BTreeSet<_> = group.iter().map(|one| one.line()).collect();
    let [key, rest @ ..] = keys else {
        return vec![group];
    };
    if lines.len() <= MOST_SERIES {
        return vec![group];
    }
    let mut parts: BTreeMap<&str, Vec<&Measurement>> = BTreeMap::new();
    for one in group {
        parts.entry(one.setting(key)).or_default().push(one);
    }
    parts
        .into_values()
        .flat_map(|part| divided(part, rest))
        .collect()
}

/// Draws speed and efficiency over the ranks.
fn over_ranks(
    facts: &Facts<'_>,
    predictions: &[Matched<'_>],
    facet: &[&Measurement],
    suffix: &str,
) -> [Figure; 2] {
    let lines = lines(facet);
    let keys = differing(&lines);
    let mut speeds = Vec::new();
    let mut efficiencies = Vec::new();
    for (style, line) in lines.iter().enumerate() {
        let name = match words(line, &keys) {
            name if name.is_empty() => MEASURED.to_owned(),
            name => name,
        };
        let members = members(facts, facet, line);
        let speed = members
            .iter()
            .filter_map(|one| Some(Point::of(one.ranks as f64, one.speed()?)));
        let efficiency = members.iter().filter_map(|one| efficiency(facts, one));
        speeds.push(Series::line(&name, style, Kind::Measured, speed.collect()));
        efficiencies.push(Series::line(
            &name,
            style,
            Kind::Measured,
            efficiency.collect(),
        ));
        let [speed, efficiency] = predicted(predictions, &members);
        if !speed.is_empty() {
            let name = if name == MEASURED {
                "predicted".to_owned()
            } else {
                format!("{name}, predicted")
            };
            speeds.push(Series::line(&name, style, Kind::Predicted, speed));
            efficiencies.push(Series::line(&name, style, Kind::Predicted, efficiency));
        }
    }
    let has_predicted = speeds.iter().any(|series| series.kind == Kind::Predicted);
    let ranks = || speeds.iter().flat_map(Series::points).map(|point| point.x);
    let x = Axis::of_counts("ranks", ranks());
    let ends = [
        ranks().fold(f64::INFINITY, f64::min),
        ranks().fold(1.0, f64::max),
    ];
    let ideal = |at: &dyn Fn(f64) -> f64| ends.map(|ranks| Point::new(ranks, at(ranks))).to_vec();
    let per_rank = facet.iter().filter_map(|one| {
        let base = one.reference(&facts.measurements)?;
        Some(base.speed()?.median / base.ranks as f64)
    });
    let mut per_rank: Vec<f64> = per_rank.collect();
    per_rank.sort_by(f64::total_cmp);
    per_rank.dedup();
    let lines = per_rank
        .into_iter()
        .map(|speed| ideal(&|ranks| speed * ranks))
        .collect();
    speeds.push(Series {
        name: "ideal".to_owned(),
        style: 0,
        kind: Kind::Reference,
        lines,
    });
    efficiencies.push(Series::line("ideal", 0, Kind::Reference, ideal(&|_| 1.0)));
    let title = shared_words(facet);
    let notes = notes(facts, facet, has_predicted);
    let figure = |id: &str, title: String, caption: &str, y: Axis, series: Vec<Series>| Figure {
        id: format!("{id}{suffix}"),
        title,
        caption: format!("{caption} {notes}"),
        plot: Plot::Lines(LinePlot {
            x: x.clone(),
            y,
            series,
        }),
    };
    let y = if x.is_logarithmic {
        Axis::logarithmic(SPEED)
    } else {
        Axis::from_zero(SPEED)
    };
    [
        figure(
            "throughput",
            format!("Throughput: {title}"),
            "A grey line is the speed of one rank times the number of ranks; lines of different work per rank have one each.",
            y,
            speeds,
        ),
        figure(
            "efficiency",
            format!("Efficiency: {title}"),
            "Efficiency is the speed per rank over that of one rank in the same repetition; without a single rank, over that of the fewest ranks. Bars are the 95 % confidence interval of the median, or least and most of fewer than six repetitions.",
            Axis::from_zero("efficiency").in_unit(Unit::Share),
            efficiencies,
        ),
    ]
}

fn efficiency(facts: &Facts<'_>, one: &Measurement) -> Option<Point> {
    let ranks = one.ranks as f64;
    let efficiencies: Vec<f64> = one
        .speedups(&facts.measurements)
        .into_iter()
        .map(|speedup| speedup / ranks)
        .collect();
    let estimate = Estimate::of(&efficiencies)?;
    let interval = estimate.interval.map(|[low, high]| (low, high));
    let range = interval.or_else(|| Spread::of(efficiencies)?.range());
    Some(Point {
        x: ranks,
        y: estimate.median,
        range,
    })
}

/// Returns the lines of a facet, each once.
fn lines<'a>(facet: &[&'a Measurement]) -> Vec<Settings<'a>> {
    let lines = |is_wanted: fn(usize) -> bool| -> Vec<Settings<'a>> {
        let lines = facet
            .iter()
            .filter(|one| is_wanted(one.ranks))
            .map(|one| one.line());
        BTreeSet::from_iter(lines).into_iter().collect()
    };
    // Single ranks are drawn as the beginning of the lines whose reference they are.
    match lines(|ranks| ranks > 1) {
        of_several if of_several.is_empty() => lines(|_| true),
        of_several => of_several,
    }
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

/// Returns the predicted speeds and efficiencies of some measurements.
fn predicted(predictions: &[Matched<'_>], members: &[&Measurement]) -> [Vec<Point>; 2] {
    let mut speeds = Vec::new();
    let mut efficiencies = Vec::new();
    for one in predictions {
        let is_it =
            |measured: &Measurement| members.iter().any(|member| std::ptr::eq(*member, measured));
        let Some(measured) = one.measured.filter(|measured| is_it(measured)) else {
            continue;
        };
        let Some(speed) = one.value(|prediction| prediction.images_per_second) else {
            continue;
        };
        let ranks = one.prediction.ranks as f64;
        speeds.push(Point::new(ranks, speed));
        // The efficiency of another scaling is relative to another batch.
        let scaling = match one.prediction.scaling.as_str() {
            "" => "weak",
            scaling => scaling,
        };
        if measured.scaling == scaling {
            let efficiency = one.value(|prediction| prediction.efficiency);
            efficiencies.extend(efficiency.map(|efficiency| Point::new(ranks, efficiency)));
        }
    }
    let mut series = [speeds, efficiencies];
    series
        .iter_mut()
        .for_each(|points| points.sort_by(|a, b| a.x.total_cmp(&b.x)));
    series
}

/// Returns what both figures of a facet have in their captions.
fn notes(facts: &Facts<'_>, facet: &[&Measurement], has_predicted: bool) -> String {
    let scaling = match facet[0].scaling.as_str() {
        "weak" => "weak, a fixed batch per rank",
        "strong" => "strong, a fixed global batch that is divided among the ranks",
        other => other,
    };
    let predicted = if has_predicted {
        " Hollow markers on dashed lines are predictions."
    } else {
        ""
    };
    format!(
        "Scaling: {scaling}. Points are medians of the repetitions.{predicted}{} {}",
        disturbed_words(facet),
        facts.speed_words()
    )
}

fn disturbed_words(members: &[&Measurement]) -> String {
    match members.iter().map(|one| one.num_disturbed()).sum::<usize>() {
        0 => String::new(),
        number => format!(" {number} of the repetitions count although the machine was not quiet."),
    }
}

/// Returns the settings that all measurements of a figure share, for its title.
fn shared_words(facet: &[&Measurement]) -> String {
    let shared = |key: &str| {
        let is_of_several = ["sync", "network", "launcher"].contains(&key);
        let mut values = facet
            .iter()
            .filter(|one| one.ranks > 1 || !is_of_several)
            .map(|one| one.setting(key));
        let first = values.next().filter(|value| !value.is_empty())?;
        values.all(|value| value == first).then(|| first.to_owned())
    };
    let known = ["model", "dtype", "sync", "network"]
        .iter()
        .filter_map(|key| shared(key));
    let mut parts: Vec<String> = known.filter(|value| value != "none").collect();
    let scaling = &facet[0].scaling;
    if scaling != "none" {
        parts.push(format!("{scaling} scaling"));
    }
    let batch = match scaling.as_str() {
        "strong" => shared("global_batch_size").map(|batch| format!("global batch {batch}")),
        _ => shared("batch_size_per_rank").map(|batch| format!("batch per rank {batch}")),
    };
    parts.extend(batch);
    parts.join(", ")
}

fn of_measurement(facts: &Facts<'_>, one: &Measurement) -> NamedRow {
    let all = &facts.measurements;
    let has_disturbed = all.iter().any(|one| one.num_disturbed() > 0);
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
        "repetitions" => one.repetitions.len(),
        "speedup" => number(speedup.map(|speedup| speedup.median), 2),
        "95 % interval" => interval.map(|[low, high]| format!("{low:.2} to {high:.2}")),
        "efficiency, %" => percent(speedup.map(|speedup| speedup.median / ranks), 1),
        "reference, ranks" => speedup.and(one.reference(all)).map(|base| base.ranks),
        "disturbed" => has_disturbed.then_some(one.num_disturbed()),
        "study" => one.setting("study").parse::<u64>().ok().filter(|_| facts.has_several_studies()),
    ]
}

/// A measurement in a figure of bars.
#[derive(Clone, Debug, PartialEq)]
struct Place<'a> {
    one: &'a Measurement,
    /// Heading above the bars of a group; empty without groups.
    group: String,
    name: String,
    /// Colour, the same for one name in all groups.
    style: usize,
}

/// Returns groups of measurements of one study on one number of ranks that the figures over ranks do not show.
fn comparable<'a>(all: &'a [Measurement], drawn: &[&Measurement]) -> Vec<Vec<&'a Measurement>> {
    let mut groups: BTreeMap<_, Vec<&Measurement>> = BTreeMap::new();
    for one in all.iter().filter(|one| !one.setting("study").is_empty()) {
        let key = (
            one.setting("study"),
            one.setting("kind"),
            one.scaling.as_str(),
            one.ranks,
        );
        groups.entry(key).or_default().push(one);
    }
    let is_drawn = |one: &&Measurement| drawn.iter().any(|other| std::ptr::eq(*other, *one));
    let is_shown = |group: &Vec<&Measurement>| group.len() > 1 && !group.iter().all(is_drawn);
    groups.into_values().filter(is_shown).collect()
}

/// Names measurements by their differences and orders them by group.
fn placed<'a>(members: &[&'a Measurement]) -> Vec<Place<'a>> {
    let lines: Vec<Settings<'_>> = members.iter().map(|one| one.line()).collect();
    let differing = differing(&lines);
    let grouping = GROUPING
        .iter()
        .filter(|key| differing.contains(*key))
        .find_map(|key| {
            let within = differing_within(&lines, key);
            (!within.is_empty()).then(|| (BTreeSet::from([*key]), within))
        });
    let (of_group, of_name) = grouping.unwrap_or_else(|| (BTreeSet::new(), differing));
    let mut names: Vec<String> = Vec::new();
    let mut groups: Vec<Vec<Place<'a>>> = Vec::new();
    for (one, line) in members.iter().zip(&lines) {
        let group = words(line, &of_group);
        let name = words(line, &of_name);
        let known = names.iter().position(|other| *other == name);
        let style = known.unwrap_or_else(|| {
            names.push(name.clone());
            names.len() - 1
        });
        let style = if of_group.is_empty() { 0 } else { style };
        let place = Place {
            one,
            group,
            name,
            style,
        };
        match groups
            .iter_mut()
            .find(|group| group[0].group == place.group)
        {
            Some(group) => group.push(place),
            None => groups.push(vec![place]),
        }
    }
    groups.into_iter().flatten().collect()
}

/// Returns the settings that differ between some lines with the same value of `key`.
fn differing_within<'a>(lines: &[Settings<'a>], key: &str) -> BTreeSet<&'a str> {
    let mut groups: BTreeMap<Option<&&str>, Vec<Settings<'a>>> = BTreeMap::new();
    for line in lines {
        groups.entry(line.get(key)).or_default().push(line.clone());
    }
    groups.values().flat_map(|group| differing(group)).collect()
}

fn side_by_side(
    facts: &Facts<'_>,
    predictions: &[Matched<'_>],
    places: &[Place<'_>],
    suffix: &str,
) -> Figure {
    let members: Vec<&Measurement> = places.iter().map(|place| place.one).collect();
    let study = match facts.has_several_studies() {
        true => format!(", study {}", members[0].setting("study")),
        false => String::new(),
    };
    let ranks = records::counted(members[0].ranks, "rank");
    let bar = |place: &Place<'_>| {
        let is_its = |one: &&Matched<'_>| {
            one.measured
                .is_some_and(|measured| std::ptr::eq(measured, place.one))
        };
        let prediction = predictions.iter().find(is_its);
        Bar {
            group: place.group.clone(),
            predicted: prediction.and_then(|one| one.value(|record| record.images_per_second)),
            style: Some(place.style),
            ..Bar::of(&place.name, place.one.speed())
        }
    };
    let bars: Vec<Bar> = places.iter().map(bar).collect();
    let has_predicted = bars.iter().any(|bar| bar.predicted.is_some());
    let predicted = if has_predicted {
        " Hollow bars are predictions."
    } else {
        ""
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
    Figure {
        id: format!("side-by-side{suffix}"),
        title: format!("Throughput of {ranks}: {}{study}", shared_words(&members)),
        caption: format!(
            "Bars are medians of the repetitions, whiskers their least and most.{predicted}{of_one}{} {}",
            disturbed_words(&members),
            facts.speed_words()
        ),
        plot: Plot::Bars(BarPlot {
            x: Axis::from_zero(SPEED),
            parts: Vec::new(),
            bars,
        }),
    }
}

/// Draws the largest memory of a rank in every measurement and run.
pub(super) fn memory(facts: &Facts<'_>) -> Vec<Content> {
    const MIB: f64 = (1 << 20) as f64;
    let of_measurements = facts.measurements.iter().map(|one| {
        let bytes = one
            .repetitions
            .iter()
            .filter_map(|repetition| repetition.memory_bytes);
        (
            facts.name_of(one),
            Spread::of(bytes.map(|bytes| bytes / MIB)),
        )
    });
    // Runs without a speed have no measurement.
    let is_measured = |run: &Run| match run.group {
        Some(_) => facts.measurement_of(run).is_some(),
        None => facts
            .measurements
            .iter()
            .any(|one| one.id == run.label && one.setting("study").is_empty()),
    };
    let other_runs = facts
        .sources
        .runs
        .iter()
        .filter(|run| !is_measured(run))
        .map(|run| {
            let mebibytes = run.peak_memory_bytes().map(|bytes| bytes as f64 / MIB);
            (run.label.clone(), Spread::of(mebibytes))
        });
    let known = of_measurements
        .chain(other_runs)
        .filter(|(_, spread)| spread.is_some());
    let bars: Vec<Bar> = known
        .map(|(label, spread)| Bar::of(label, spread))
        .collect();
    let figure = |(suffix, bars): (String, &[Bar])| {
        Content::Figure(Figure {
            id: format!("memory{suffix}"),
            title: "Largest memory of a rank".to_owned(),
            caption: "Peak resident memory of the process of the largest rank, as the operating system reports it: program, data and model. Medians of the repetitions; whiskers are their least and most.".to_owned(),
            plot: Plot::Bars(BarPlot { x: Axis::from_zero("MiB"), parts: Vec::new(), bars: bars.to_vec() }),
        })
    };
    parts(&bars, MOST_BARS).map(figure).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(ranks: usize, settings: &[(&str, &str)]) -> Measurement {
        let of_study = [("study", "1"), ("kind", "bench")];
        let settings = settings.iter().chain(&of_study);
        let settings = settings.map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        Measurement {
            ranks,
            settings: settings.collect(),
            scaling: "weak".to_owned(),
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
        let groups = comparable(&all, &[&all[0], &all[1]]);
        assert_eq!(groups.len(), 1, "a single measurement has no counterpart");
        let places = placed(&groups[0]);
        let places = places
            .iter()
            .map(|place| (place.group.as_str(), place.name.as_str(), place.style));
        // The launcher follows from the network, so no name contains it.
        let expected = [
            ("machine", "allreduce", 0),
            ("slow", "allreduce", 0),
            ("slow", "ring", 1),
            ("fast", "allreduce", 0),
            ("fast", "ring", 1),
        ];
        assert_eq!(places.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn measurements_that_differ_in_one_setting_have_no_groups() {
        let all = [
            measured(2, &[("dtype", "f32")]),
            measured(2, &[("dtype", "bf16")]),
        ];
        let places = placed(&all.iter().collect::<Vec<_>>());
        let names = places
            .iter()
            .map(|place| (place.group.as_str(), place.name.as_str()));
        assert_eq!(names.collect::<Vec<_>>(), [("", "f32"), ("", "bf16")]);
    }

    #[test]
    fn measurements_that_lines_show_and_those_outside_studies_have_no_bars() {
        let mut all = methods_by_network();
        assert!(comparable(&all, &all.iter().collect::<Vec<_>>()).is_empty());
        all.iter_mut()
            .for_each(|one| drop(one.settings.remove("study")));
        assert!(comparable(&all, &[]).is_empty());
    }
}
