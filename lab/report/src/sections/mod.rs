//! The sections of a report.
//!
//! In: [`Facts`]. Out: sections, each only if it has contents.
//! Invariant: every figure states what was measured, over what, and after which warm-up.

mod comparison;
mod curves;
mod network;
mod predictions;
mod results;
mod run_speeds;
mod runs;
mod speed;
mod steps;
mod studies;
mod training;

use super::document::{Cell, Section, number, number_ids};
use super::sources::{Run, Sources};
use records::{Measurement, Spread};
use std::collections::{BTreeMap, BTreeSet};

/// Everything that the sections read.
#[derive(Debug)]
pub(crate) struct Facts<'a> {
    sources: &'a Sources,
    measurements: Vec<Measurement>,
    target_accuracy: Option<f64>,
    is_target_given: bool,
}

/// Settings by name.
type Settings<'a> = BTreeMap<&'a str, &'a str>;

/// Options of a run by `section.key`.
type Options = BTreeMap<String, String>;

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

type Add = fn(&Facts<'_>, &mut Section);

/// Sections by id and heading, in reading order.
const SECTIONS: [(&str, &str, Add); 13] = [
    ("summary", "Summary", results::summary),
    ("curves", "Loss and accuracy", training::curves),
    ("classes", "Accuracy by class", training::classes),
    (
        "time-to-accuracy",
        "Time to accuracy",
        training::time_to_accuracy,
    ),
    ("scaling", "Throughput and efficiency", speed::throughput),
    ("comparison", "Other frameworks", comparison::add),
    ("step-time", "Step time", steps::step_time),
    ("network", "Network", network::add),
    ("predictions", "Predicted and measured", predictions::add),
    ("staleness", "Staleness", steps::staleness),
    ("differences", "Differences between runs", runs::differences),
    ("runs", "Runs and how to repeat them", runs::manifests),
    ("records", "Records of the studies", studies::attempts),
];

/// Runs that differ in nothing but the seed.
#[derive(Debug)]
pub(super) struct Group<'a> {
    /// Differences from the other groups.
    name: String,
    runs: Vec<&'a Run>,
}

impl Group<'_> {
    fn num_seeds(&self) -> usize {
        let seeds = self.runs.iter().filter_map(|run| run.setting("run.seed"));
        seeds.collect::<BTreeSet<&str>>().len()
    }

    /// Returns the mean over the runs, and the deviation if every run has another seed.
    fn mean(&self, value: impl Fn(&Run) -> Option<f64>) -> Option<(f64, Option<f64>)> {
        let values = self.runs.iter().filter_map(|run| value(run));
        let (mean, deviation) = records::mean_and_deviation(&values.collect::<Vec<f64>>())?;
        let has_deviation = self.num_seeds() == self.runs.len();
        Some((mean, deviation.filter(|_| has_deviation)))
    }
}

/// Returns sentences with the result.
pub(super) fn sentences(facts: &Facts<'_>) -> Vec<String> {
    results::sentences(facts)
}

/// Returns all sections that have contents.
pub(super) fn sections(facts: &Facts<'_>) -> Vec<Section> {
    let mut sections = Vec::new();
    for (id, heading, add) in SECTIONS {
        let mut section = Section::new(id, heading);
        add(facts, &mut section);
        if !section.contents.is_empty() {
            sections.push(section);
        }
    }
    number_ids(&mut sections);
    sections
}

impl<'a> Facts<'a> {
    pub(crate) fn new(sources: &'a Sources, target_accuracy: Option<f64>) -> Self {
        let studies = sources.studies.iter();
        let of_study = studies.clone().find_map(|study| study.plan.target_accuracy);
        let of_studies = studies.zip(1..).flat_map(|(study, number): (_, usize)| {
            Measurement::of_study(&study.plan, &study.attempts, &number.to_string())
        });
        Self {
            sources,
            measurements: of_studies
                .chain(run_speeds::measurements(&sources.runs))
                .collect(),
            target_accuracy: target_accuracy.or(of_study),
            is_target_given: target_accuracy.is_some(),
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
        match sentences.is_empty() {
            true => RUN_SPEED.to_owned(),
            false => sentences.join(" "),
        }
    }

    /// Returns true if cells of the same name may be of several studies.
    fn has_several_studies(&self) -> bool {
        self.sources.studies.len() > 1
    }

    /// Returns the name of a cell of a study among all.
    fn cell_name(&self, cell: &str, study: &str) -> String {
        match self.has_several_studies() && !study.is_empty() {
            true => format!("{cell}, study {study}"),
            false => cell.to_owned(),
        }
    }

    /// Returns the runs in groups: the repetitions of one cell of one study, and runs outside
    /// studies with the same options besides the seed.
    fn groups(&self) -> Vec<Group<'a>> {
        let mut groups: Vec<(Option<Options>, Vec<&'a Run>)> = Vec::new();
        for run in &self.sources.runs {
            let options = run.group.is_none().then(|| runs::options(run));
            let options = options
                .filter(|options| !options.is_empty())
                .map(|mut options| {
                    options.remove("run.seed");
                    options
                });
            let is_its = |(other, runs): &&mut (Option<_>, Vec<&Run>)| match &run.group {
                Some(_) => runs[0].group == run.group,
                None => options.is_some() && *other == options,
            };
            match groups.iter_mut().find(is_its) {
                Some((_, group)) => group.push(run),
                None => groups.push((options, vec![run])),
            }
        }
        let settings = |(_, runs): &(_, Vec<&Run>)| {
            let cell = self
                .measurement_of(runs[0])
                .filter(|_| runs[0].group.is_some());
            cell.map(distinguishing).unwrap_or_default()
        };
        let settings: Vec<Settings<'_>> = groups.iter().map(settings).collect();
        let names = names(&settings, |index| {
            let runs = &groups[index].1;
            match &runs[0].group {
                Some(group) => self.cell_name(&group.cell, &group.study.to_string()),
                None if runs.len() == 1 => runs[0].label.clone(),
                None => format!("{} and {} more", runs[0].label, runs.len() - 1),
            }
        });
        let named = names.into_iter().zip(groups);
        named
            .map(|(name, (_, runs))| Group { name, runs })
            .collect()
    }

    /// Returns what distinguishes a measurement from those of the same kind in its study.
    fn name_of(&self, measurement: &Measurement) -> String {
        let is_its = |one: &&Measurement| {
            ["study", "kind"]
                .iter()
                .all(|key| one.setting(key) == measurement.setting(key))
        };
        let all: Vec<&Measurement> = self.measurements.iter().filter(is_its).collect();
        let settings: Vec<Settings<'_>> = all.iter().map(|one| distinguishing(one)).collect();
        let study = measurement.setting("study");
        let mut names = names(&settings, |index| all[index].id.clone());
        let index = all.iter().position(|one| *one == measurement);
        self.cell_name(&names.swap_remove(index.unwrap_or_default()), study)
    }

    /// Returns the measurement of a run outside studies, or of the cell that a run repeats.
    fn measurement_of(&self, run: &Run) -> Option<&Measurement> {
        let group = run.group.as_ref();
        let study = group.map_or(String::new(), |group| group.study.to_string());
        let id = group.map_or(&run.label, |group| &group.cell);
        let mut measurements = self.measurements.iter();
        measurements.find(|one| one.id == *id && one.setting("study") == study)
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

/// Returns the settings that distinguish a measurement from others of its study.
fn distinguishing(measurement: &Measurement) -> Settings<'_> {
    let mut settings = measurement.line();
    settings.insert("ranks", measurement.setting("ranks"));
    settings
}

/// Names items by the settings that differ, or by `whole` if those do not distinguish them.
fn names(settings: &[Settings<'_>], whole: impl Fn(usize) -> String) -> Vec<String> {
    let mut keys = differing(settings);
    if keys.contains("network") {
        // These follow from a network of emulated hosts.
        keys.retain(|key| !["launcher", "hosts"].contains(key));
    }
    let short: Vec<String> = settings.iter().map(|one| words(one, &keys)).collect();
    let distinct: BTreeSet<&String> = short.iter().filter(|name| !name.is_empty()).collect();
    match distinct.len() == settings.len() && settings.len() > 1 {
        true => short,
        false => (0..settings.len()).map(whole).collect(),
    }
}

/// Returns the usual short form of a commit.
fn short(commit: &str) -> &str {
    let is_hash = commit.len() > 12 && commit.chars().take(40).all(|c| c.is_ascii_hexdigit());
    if is_hash { &commit[..12] } else { commit }
}

/// Returns median, least and most of a spread as cells.
fn spread_cells(spread: Option<Spread>, decimals: usize) -> [Cell; 3] {
    let range = spread.and_then(|spread| spread.range()).unzip();
    [spread.map(|spread| spread.median), range.0, range.1].map(|value| number(value, decimals))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::{RunGroup, StudyFolder};

    #[test]
    fn targets_of_further_studies_are_named_where_they_do_not_count() {
        let study = |(name, target): (&str, f64)| {
            let mut study = StudyFolder::default();
            study.plan.name = name.to_owned();
            study.plan.target_accuracy = Some(target);
            study
        };
        let sources = Sources {
            studies: [("a", 0.1), ("b", 0.1), ("c", 0.9)].map(study).into(),
            ..Sources::default()
        };
        let remarks = |given: Option<f64>| {
            let facts = Facts::new(&sources, given);
            format!("{:?}", sections(&facts))
                .matches("target accuracy")
                .count()
        };
        let facts = Facts::new(&sources, None);
        assert_eq!(facts.target_accuracy, Some(0.1));
        let expected = "c: runs are compared with the target accuracy 0.1, not with 0.9";
        assert!(format!("{:?}", sections(&facts)).contains(expected));
        assert_eq!((remarks(None), remarks(Some(0.9))), (1, 0));
    }

    #[test]
    fn runs_of_one_cell_are_repetitions_and_those_of_another_study_are_not() {
        let run = |(label, study): (&str, Option<usize>)| Run {
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
        let sources = Sources {
            runs: runs.map(run).into(),
            ..Sources::default()
        };
        let groups = Facts::new(&sources, None).groups().into_iter();
        let labels = |group: Group<'_>| group.runs.iter().map(|run| run.label.as_str()).collect();
        let labels: Vec<String> = groups.map(labels).collect();
        assert_eq!(labels, ["ac", "b", "d", "e"]);
    }

    #[test]
    fn runs_that_differ_in_nothing_but_the_seed_are_one_group() {
        let run = |(label, seed, rate): (&str, &str, &str)| {
            let settings = [("run.seed", seed), ("optimizer.learning-rate", rate)];
            let settings = settings.map(|(key, value)| (key.to_owned(), value.to_owned()));
            Run {
                label: label.to_owned(),
                settings: vec![settings.into()],
                ..Run::default()
            }
        };
        let runs = [("a", "0", "0.1"), ("b", "0", "0.2"), ("c", "1", "0.1")];
        let sources = Sources {
            runs: runs.map(run).into(),
            ..Sources::default()
        };
        let groups = Facts::new(&sources, None).groups().into_iter();
        let groups = groups.map(|group| (group.name.clone(), group.num_seeds()));
        let expected = [("a and 1 more".to_owned(), 2), ("b".to_owned(), 1)];
        assert_eq!(groups.collect::<Vec<_>>(), expected);
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
