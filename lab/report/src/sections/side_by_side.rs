//! Settings side by side at one number of ranks: methods by network, formats by model, batches.
//!
//! In: measurements of studies, predictions. Out: bars, for what no line over several numbers of ranks shows.
//! Invariant: bars are medians, whiskers the least and the most of the repetitions; what is predicted is hollow.

use super::naming::{self, Settings};
use super::{Facts, predictions, scaling, scores};
use crate::chart::{Axis, Bar, BarPlot, Plot};
use crate::document::{Cell, Figure, Table};
use crate::measurements::{Measurement, range};
use std::collections::{BTreeMap, BTreeSet};

/// Bars in one figure.
const MOST_BARS: usize = 24;

/// Settings by which bars are grouped, if they differ: the first that leaves something to tell within a group.
const GROUPING: [&str; 6] = [
    "network",
    "model",
    "dtype",
    "global_batch_size",
    "batch_size_per_rank",
    "threads",
];

/// A measurement in its place.
#[derive(Clone, Debug, PartialEq)]
struct Place<'a> {
    one: &'a Measurement,
    /// The bars with the same stand together; empty where all do.
    group: String,
    name: String,
    /// The same for one name in all groups.
    style: usize,
}

/// Figures of the measurements that are not among the drawn ones, with those they are to be compared with.
pub(super) fn figures(facts: &Facts<'_>, drawn: &[&Measurement]) -> Vec<Figure> {
    let parts: Vec<Vec<Place<'_>>> = comparable(&facts.measurements, drawn)
        .iter()
        .flat_map(|members| {
            placed(members)
                .chunks(MOST_BARS)
                .map(<[_]>::to_vec)
                .collect::<Vec<_>>()
        })
        .collect();
    parts
        .iter()
        .enumerate()
        .map(|(index, part)| figure(facts, part, index + 1))
        .collect()
}

/// What one study measured at one number of ranks, several settings at least, of which lines show not all.
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
    groups
        .into_values()
        .filter(|group| group.len() > 1 && !group.iter().all(is_drawn))
        .collect()
}

/// Groups in the order of their first members, members in theirs.
fn placed<'a>(members: &[&'a Measurement]) -> Vec<Place<'a>> {
    let lines: Vec<Settings<'_>> = members.iter().map(|one| one.line()).collect();
    let differing = naming::differing(&lines);
    let grouping = GROUPING
        .iter()
        .filter(|key| differing.contains(*key))
        .map(|key| (BTreeSet::from([*key]), differing_within(&lines, key)))
        .find(|(_, names)| !names.is_empty());
    // Where one thing alone differs, there are no groups.
    let (of_group, of_name) = grouping.unwrap_or_else(|| (BTreeSet::new(), differing));
    let mut names: Vec<String> = Vec::new();
    let mut groups: Vec<(String, Vec<Place<'a>>)> = Vec::new();
    for (one, line) in members.iter().zip(&lines) {
        let (group, name) = (
            naming::words(line, &of_group),
            naming::words(line, &of_name),
        );
        let style = names
            .iter()
            .position(|other| *other == name)
            .unwrap_or_else(|| {
                names.push(name.clone());
                names.len() - 1
            });
        let place = Place {
            one,
            group,
            name,
            style: if of_group.is_empty() { 0 } else { style },
        };
        match groups.iter_mut().find(|(other, _)| *other == place.group) {
            Some((_, places)) => places.push(place),
            None => groups.push((place.group.clone(), vec![place])),
        }
    }
    groups.into_iter().flat_map(|(_, places)| places).collect()
}

/// The settings that differ among some that agree in this one.
fn differing_within<'a>(lines: &[Settings<'a>], key: &str) -> BTreeSet<&'a str> {
    let mut groups: BTreeMap<Option<&&str>, Vec<Settings<'a>>> = BTreeMap::new();
    for line in lines {
        groups.entry(line.get(key)).or_default().push(line.clone());
    }
    groups
        .values()
        .flat_map(|group| naming::differing(group))
        .collect()
}

fn figure(facts: &Facts<'_>, places: &[Place<'_>], number: usize) -> Figure {
    let members: Vec<&Measurement> = places.iter().map(|place| place.one).collect();
    let ranks = members[0].ranks;
    let id = format!("side-by-side-{number}");
    let words = scaling::shared_words(&members);
    let mut title = format!("Throughput of {}: {words}", records::counted(ranks, "rank"));
    if facts.has_several_studies() {
        title.push_str(&format!(", study {}", members[0].setting("study")));
    }
    let columns = [
        "group",
        "bar",
        "measurement",
        "images/s, median",
        "least",
        "most",
        "repetitions",
        "predicted, images/s",
    ];
    let mut data = Table::new(id, title, &columns);
    let predictions = predictions::all(facts);
    let mut rows = Vec::new();
    for place in places {
        let of_it = predictions
            .iter()
            .find(|(_, _, measured)| measured.is_some_and(|one| std::ptr::eq(one, place.one)));
        let predicted = of_it.and_then(|(file, prediction, _)| {
            scores::counted((file, prediction, place.one), |one| one.images_per_second)
        });
        let (speed, range) = (place.one.speed(), range(&place.one.speeds));
        data.push(vec![
            Cell::text(place.group.clone()),
            Cell::text(place.name.clone()),
            Cell::text(place.one.id.clone()),
            Cell::number(speed, 1),
            Cell::number(range.map(|range| range.0), 1),
            Cell::number(range.map(|range| range.1), 1),
            Cell::count(place.one.speeds.len() as u64),
            Cell::number(predicted, 1),
        ]);
        rows.push(Bar {
            group: place.group.clone(),
            label: place.name.clone(),
            values: speed.into_iter().collect(),
            range,
            predicted,
            is_ours: true,
            style: place.style,
            ..Bar::default()
        });
    }
    let has_predicted = rows.iter().any(|row| row.predicted.is_some());
    Figure {
        caption: caption(facts, &members, has_predicted),
        plot: Plot::Bars(BarPlot {
            x: Axis::from_zero("images/s, all ranks"),
            parts: Vec::new(),
            rows,
        }),
        data,
    }
}

fn caption(facts: &Facts<'_>, members: &[&Measurement], has_predicted: bool) -> String {
    let mut words =
        "Bars are medians of the repetitions, whiskers their least and most.".to_owned();
    if has_predicted {
        words.push_str(" Hollow bars are predictions.");
    }
    let mut alone: Vec<f64> = members
        .iter()
        .filter(|one| one.ranks > 1)
        .filter_map(|one| one.reference(&facts.measurements))
        .filter(|base| base.ranks == 1)
        .filter_map(Measurement::speed)
        .collect();
    alone.dedup();
    if let [speed] = alone[..] {
        words.push_str(&format!(
            " One rank alone: {} images/s.",
            records::rate(speed)
        ));
    }
    words.push_str(&scaling::disturbed_words(members));
    format!("{words} {}", facts.speed_words())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(ranks: usize, settings: &[(&str, &str)]) -> Measurement {
        let own = settings
            .iter()
            .copied()
            .chain([("study", "1"), ("kind", "bench")]);
        let settings = own
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect();
        Measurement {
            ranks,
            settings,
            scaling: "weak".to_owned(),
            speeds: vec![100.0],
            ..Measurement::default()
        }
    }

    fn methods_by_network() -> Vec<Measurement> {
        [
            (1, "machine", "plain", "allreduce"),
            (2, "machine", "mpirun", "allreduce"),
            (2, "slow", "hosts", "allreduce"),
            (2, "slow", "hosts", "ring"),
            (2, "fast", "hosts", "allreduce"),
            (2, "fast", "hosts", "ring"),
        ]
        .map(|(ranks, network, launcher, sync)| {
            measured(
                ranks,
                &[("network", network), ("launcher", launcher), ("sync", sync)],
            )
        })
        .into()
    }

    #[test]
    fn methods_stand_by_network_and_keep_their_look_in_every_group() {
        let all = methods_by_network();
        let groups = comparable(&all, &[&all[0], &all[1]]);
        assert_eq!(groups.len(), 1, "one rank alone is beside nothing");
        let places = placed(&groups[0]);
        let told: Vec<(&str, &str, usize)> = places
            .iter()
            .map(|place| (place.group.as_str(), place.name.as_str(), place.style))
            .collect();
        // The launcher follows from the network, so that it is in no name.
        let expected = [
            ("machine", "allreduce", 0),
            ("slow", "allreduce", 0),
            ("slow", "ring", 1),
            ("fast", "allreduce", 0),
            ("fast", "ring", 1),
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn what_differs_in_one_thing_alone_has_no_groups() {
        let all = [
            measured(2, &[("dtype", "f32")]),
            measured(2, &[("dtype", "bf16")]),
        ];
        let places = placed(&all.iter().collect::<Vec<_>>());
        let told: Vec<(&str, &str)> = places
            .iter()
            .map(|place| (place.group.as_str(), place.name.as_str()))
            .collect();
        assert_eq!(told, [("", "f32"), ("", "bf16")]);
    }

    #[test]
    fn what_lines_show_already_and_what_belongs_to_no_study_is_not_shown_again() {
        let all = methods_by_network();
        assert!(comparable(&all, &all.iter().collect::<Vec<_>>()).is_empty());
        let runs: Vec<Measurement> = all
            .into_iter()
            .map(|mut one| {
                one.settings.remove("study");
                one
            })
            .collect();
        assert!(comparable(&runs, &[]).is_empty());
    }
}
