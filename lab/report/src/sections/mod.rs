//! The sections of a report.
//!
//! In: [`Facts`]. Out: sections, each only if it has contents.
//! Invariant: every figure states what was measured, over what, and after which warm-up.

mod comparison;
mod network;
mod predictions;
mod runs;
mod speed;
mod steps;
mod studies;
mod training;

use super::document::{Content, Section};
use super::measurements::{self, Measurement, Settings};
use super::sources::{Run, Sources};
use records::Spread;
use std::collections::BTreeSet;

/// Everything that the sections read.
#[derive(Debug)]
pub(crate) struct Facts<'a> {
    sources: &'a Sources,
    measurements: Vec<Measurement>,
    target_accuracy: Option<f64>,
    /// Warning about studies with other targets than the one used.
    ignored_targets: Option<String>,
}

/// Definition of a run's speed and warm-up, where no study defines them.
const RUN_SPEED: &str = "Warm-up: the steps of --warmup-steps are excluded. images/s: global samples of all ranks over the step time of the slowest rank, without evaluation and checkpoints.";

/// Settings whose values need no name; they come first, in this order.
const PLAIN: [&str; 8] = [
    "data",
    "model",
    "dtype",
    "network",
    "sync",
    "reduction",
    "compress",
    "launcher",
];

/// Bars in one figure.
const MOST_BARS: usize = 24;

impl<'a> Facts<'a> {
    pub(crate) fn new(sources: &'a Sources, target_accuracy: Option<f64>) -> Self {
        let studies = sources.studies.iter();
        let named =
            studies.filter_map(|study| Some((&study.plan.name, study.plan.target_accuracy?)));
        let named: Vec<(&String, f64)> = named.collect();
        let target = target_accuracy.or(named.first().map(|(_, target)| *target));
        let others = named.iter().filter(|(_, other)| Some(*other) != target);
        let ignored: Vec<String> = others
            .map(|(study, other)| format!("{other} of {study}"))
            .collect();
        let ignored_targets = match (target_accuracy, named.first()) {
            (None, Some((study, target))) if !ignored.is_empty() => Some(format!(
                "runs are compared with the target accuracy {target} of {study}, not with {}; choose one with --target-accuracy, or write one report per target",
                ignored.join(", ")
            )),
            _ => None,
        };
        Self {
            sources,
            measurements: measurements::all(sources),
            target_accuracy: target,
            ignored_targets,
        }
    }

    /// Returns how speeds were measured, for captions.
    fn speed_words(&self) -> String {
        let mut sentences: Vec<String> = Vec::new();
        for study in &self.sources.studies {
            let warmup = study.plan.warmup.trim_end_matches('.');
            let speed = study.plan.images_per_second_means.trim_end_matches('.');
            let sentence = format!("Warm-up: {warmup}. images/s: {speed}.");
            let has_speed = !warmup.is_empty() || !speed.is_empty();
            if has_speed && !sentences.contains(&sentence) {
                sentences.push(sentence);
            }
        }
        if sentences.is_empty() {
            RUN_SPEED.to_owned()
        } else {
            sentences.join(" ")
        }
    }

    /// Returns true if cells of the same name may be of several studies.
    fn has_several_studies(&self) -> bool {
        self.sources.studies.len() > 1
    }

    /// Returns the name of a measurement among all measurements.
    fn name_of(&self, one: &Measurement) -> String {
        match one.setting("study") {
            study if self.has_several_studies() && !study.is_empty() => {
                format!("{}, study {study}", one.id)
            }
            _ => one.id.clone(),
        }
    }

    /// Returns the runs in groups: the repetitions of one cell of one study are a group.
    fn run_groups(&self) -> Vec<Vec<&'a Run>> {
        let mut groups: Vec<Vec<&Run>> = Vec::new();
        for run in &self.sources.runs {
            let is_its =
                |group: &&mut Vec<&Run>| run.group.is_some() && group[0].group == run.group;
            match groups.iter_mut().find(is_its) {
                Some(group) => group.push(run),
                None => groups.push(vec![run]),
            }
        }
        groups
    }

    /// Returns the measurement of the cell that a run repeats.
    fn measurement_of(&self, run: &Run) -> Option<&Measurement> {
        let group = run.group.as_ref()?;
        let mut measurements = self.measurements.iter();
        measurements.find(|one| one.id == group.cell && one.is_of_study(group.study))
    }
}

/// Returns all sections that have contents, in reading order.
pub(super) fn sections(facts: &Facts<'_>) -> Vec<Section> {
    let all: [(&str, &str, Vec<Content>); 14] = [
        ("summary", "Summary", studies::summary(facts)),
        (
            "scaling",
            "Throughput and efficiency",
            speed::throughput(facts),
        ),
        (
            "comparison",
            "Other frameworks",
            comparison::contents(facts),
        ),
        (
            "time-to-accuracy",
            "Time to accuracy",
            training::time_to_accuracy(facts),
        ),
        ("curves", "Loss and accuracy", training::curves(facts)),
        ("classes", "Accuracy by class", training::classes(facts)),
        ("step-time", "Step time", steps::step_time(facts)),
        ("network", "Network", network::contents(facts)),
        (
            "predictions",
            "Predicted and measured",
            predictions::contents(facts),
        ),
        ("staleness", "Staleness", steps::staleness(facts)),
        ("memory", "Memory", speed::memory(facts)),
        (
            "differences",
            "Differences between runs",
            runs::differences(facts),
        ),
        (
            "runs",
            "Runs and how to repeat them",
            runs::manifests(facts),
        ),
        (
            "records",
            "Records of the studies",
            studies::attempts(facts),
        ),
    ];
    let filled = all
        .into_iter()
        .filter(|(.., contents)| !contents.is_empty());
    filled
        .map(|(id, heading, contents)| Section {
            id,
            heading,
            contents,
        })
        .collect()
}

/// Divides items among as few figures as possible, each with the suffix of its id.
fn parts<T>(items: &[T], most: usize) -> impl Iterator<Item = (String, &[T])> {
    let count = items.len().div_ceil(most);
    let chunks = items.chunks(most).enumerate();
    chunks.map(move |(index, part)| (suffix(index, count), part))
}

/// Returns the suffix of an id: empty for a single item, else `-1`, `-2`, ….
fn suffix(index: usize, count: usize) -> String {
    if count > 1 {
        format!("-{}", index + 1)
    } else {
        String::new()
    }
}

/// Returns the settings that are not the same everywhere.
fn differing<'a>(all: &[Settings<'a>]) -> BTreeSet<&'a str> {
    let keys = all.iter().flat_map(|one| one.keys().copied());
    keys.filter(|key| all.iter().any(|one| one.get(key) != all[0].get(key)))
        .collect()
}

/// Names some settings in words, to distinguish runs.
fn words(settings: &Settings<'_>, keys: &BTreeSet<&str>) -> String {
    let plain = PLAIN.iter().filter(|key| keys.contains(*key));
    let named = keys.iter().filter(|key| !PLAIN.contains(key));
    let known = plain
        .chain(named)
        .filter_map(|key| Some((*key, *settings.get(key)?)));
    let known: Vec<(&str, &str)> = known.collect();
    let is_only = known.len() == 1;
    let word = |(key, value): &(&str, &str)| match *key {
        "compress" if *value == "none" => is_only.then(|| "no compression".to_owned()),
        key if PLAIN.contains(&key) => Some((*value).to_owned()),
        key => Some(format!("{} {value}", key.replace('_', " "))),
    };
    known.iter().filter_map(word).collect::<Vec<_>>().join(", ")
}

/// Returns median, least and most of a spread as cells.
fn spread_cells(spread: Option<Spread>, decimals: usize) -> [super::document::Cell; 3] {
    let range = spread.and_then(|spread| spread.range()).unzip();
    [spread.map(|spread| spread.median), range.0, range.1]
        .map(|value| super::document::number(value, decimals))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::{RunGroup, StudyFolder};

    #[test]
    fn targets_of_further_studies_are_named_where_they_do_not_count() {
        let study = |name: &str, target: f64| {
            let mut study = StudyFolder::default();
            study.plan.name = name.to_owned();
            study.plan.target_accuracy = Some(target);
            study
        };
        let studies = vec![study("a", 0.1), study("b", 0.1), study("c", 0.9)];
        let sources = Sources {
            studies,
            ..Sources::default()
        };
        let facts = Facts::new(&sources, None);
        assert_eq!(facts.target_accuracy, Some(0.1));
        let words = facts.ignored_targets.unwrap();
        assert!(
            words.contains("accuracy 0.1 of a, not with 0.9 of c;"),
            "{words}"
        );
        assert_eq!(Facts::new(&sources, Some(0.9)).ignored_targets, None);
    }

    #[test]
    fn runs_of_one_cell_are_repetitions_and_those_of_another_study_are_not() {
        let run = |label: &str, study: Option<usize>| Run {
            label: label.to_owned(),
            group: study.map(|study| RunGroup {
                study,
                cell: "same".to_owned(),
            }),
            ..Run::default()
        };
        let runs = [
            ("a", Some(1)),
            ("b", Some(2)),
            ("c", Some(1)),
            ("d", None),
            ("e", None),
        ];
        let runs = runs.map(|(label, study)| run(label, study)).into();
        let sources = Sources {
            runs,
            ..Sources::default()
        };
        let groups = Facts::new(&sources, None).run_groups();
        let labels = |group: &Vec<&Run>| {
            group
                .iter()
                .map(|run| run.label.clone())
                .collect::<String>()
        };
        let labels: Vec<String> = groups.iter().map(labels).collect();
        assert_eq!(labels, ["ac", "b", "d", "e"]);
    }

    #[test]
    fn names_have_what_differs_and_the_method_comes_first() {
        let settings = |sync, compress| {
            Settings::from([
                ("model", "resnet20"),
                ("sync", sync),
                ("compress", compress),
            ])
        };
        let mut all = [
            settings("allreduce", "none"),
            settings("allreduce", "bf16"),
            settings("local-sgd", "none"),
        ];
        all[2].insert("every", "8");
        let keys = differing(&all);
        let names: Vec<String> = all.iter().map(|one| words(one, &keys)).collect();
        assert_eq!(
            names,
            ["allreduce", "allreduce, bf16", "local-sgd, every 8"]
        );
        assert_eq!(words(&all[0], &differing(&all[..2])), "no compression");
        assert_eq!(words(&all[0], &differing(&all[..1])), "");
    }
}
