//! What a report tells, one part a file.
//!
//! In: [`Facts`]. Out: sections, each only if there is something to tell.
//! Invariant: every figure says under itself what was measured, over what, and after which warm-up.

mod accuracy;
mod classes;
mod comparison;
mod curves;
mod memory;
mod naming;
mod network;
mod predictions;
mod records;
mod repeat;
mod scaling;
mod scores;
mod side_by_side;
mod step_time;
mod summary;

use super::document::{Block, Section};
use super::measurements::{self, Measurement};
use super::sources::{Run, Sources};

/// What all parts look at.
#[derive(Debug)]
pub(crate) struct Facts<'a> {
    sources: &'a Sources,
    measurements: Vec<Measurement>,
    target_accuracy: Option<f64>,
    /// That studies name other targets than the one that counts, in words.
    ignored_targets: Option<String>,
}

/// What a run's speed means, unless a study says it.
const RUN_SPEED: &str = "images/s: global samples of all ranks over the slowest rank's time in steps; evaluation and checkpoints left out.";

/// What a run's warm-up is, unless a study says it.
const RUN_WARM_UP: &str = "Warm-up: the steps of --warmup-steps are left out.";

/// Most series that still look different from each other.
const MOST_SERIES: usize = 7;

impl<'a> Facts<'a> {
    /// Looks at the sources. `target_accuracy` wins over what a study names.
    pub(crate) fn new(sources: &'a Sources, target_accuracy: Option<f64>) -> Self {
        let named = sources
            .studies
            .iter()
            .filter_map(|study| Some((&study.plan.name, study.plan.target_accuracy?)));
        let (first, others) = (named.clone().next(), named.skip(1));
        let ignored: Vec<String> = others
            .filter(|(_, target)| {
                target_accuracy.is_none() && first.is_some_and(|(_, first)| first != *target)
            })
            .map(|(study, target)| format!("{target} of {study}"))
            .collect();
        let words = |(study, target)| {
            format!(
                "runs are held against the target accuracy {target} of {study}, not against {}; --target-accuracy chooses one, or make a report of each",
                ignored.join(", ")
            )
        };
        Self {
            sources,
            measurements: measurements::all(sources),
            target_accuracy: target_accuracy.or(first.map(|(_, target)| target)),
            ignored_targets: first.map(words).filter(|_| !ignored.is_empty()),
        }
    }

    /// How speeds were counted, for captions.
    fn speed_words(&self) -> String {
        let mut words: Vec<String> = Vec::new();
        for study in &self.sources.studies {
            let text = format!(
                "Warm-up: {}. images/s: {}.",
                study.plan.warmup.trim_end_matches('.'),
                study.plan.images_per_second_means.trim_end_matches('.')
            );
            let says_it =
                !study.plan.warmup.is_empty() || !study.plan.images_per_second_means.is_empty();
            if says_it && !words.contains(&text) {
                words.push(text);
            }
        }
        if words.is_empty() {
            format!("{RUN_WARM_UP} {RUN_SPEED}")
        } else {
            words.join(" ")
        }
    }

    /// Whether cells of one name may be of several studies.
    fn has_several_studies(&self) -> bool {
        self.sources.studies.len() > 1
    }

    /// What a measurement is called where it stands beside all others.
    fn name_of(&self, one: &Measurement) -> String {
        match one.setting("study") {
            study if self.has_several_studies() && !study.is_empty() => {
                format!("{}, study {study}", one.id)
            }
            _ => one.id.clone(),
        }
    }

    /// Runs in groups, in order: repetitions of one cell of one study come together.
    fn run_groups(&self) -> Vec<Vec<&'a Run>> {
        let mut groups: Vec<Vec<&Run>> = Vec::new();
        for run in &self.sources.runs {
            match groups
                .iter_mut()
                .find(|members| run.group.is_some() && members[0].group == run.group)
            {
                Some(members) => members.push(run),
                None => groups.push(vec![run]),
            }
        }
        groups
    }

    /// The measurement of the cell that a run repeats.
    fn measurement_of(&self, run: &Run) -> Option<&Measurement> {
        let group = run.group.as_ref()?;
        self.measurements
            .iter()
            .find(|one| one.id == group.cell && one.is_of_study(group.study))
    }
}

/// All parts that have something to tell, in reading order.
pub(super) fn sections(facts: &Facts<'_>) -> Vec<Section> {
    let part = |id, heading, blocks: Vec<Block>| Section {
        id,
        heading,
        blocks,
    };
    let sections = vec![
        part("summary", "Summary", summary::blocks(facts)),
        part(
            "scaling",
            "Throughput and efficiency",
            scaling::blocks(facts),
        ),
        part("comparison", "Other frameworks", comparison::blocks(facts)),
        part(
            "time-to-accuracy",
            "Time to accuracy",
            accuracy::blocks(facts),
        ),
        part("curves", "Loss and accuracy", curves::blocks(facts)),
        part("classes", "Accuracy by class", classes::blocks(facts)),
        part(
            "step-time",
            "Where a step's time goes",
            step_time::blocks(facts),
        ),
        part("network", "Network", network::blocks(facts)),
        part(
            "predictions",
            "Predicted and measured",
            predictions::blocks(facts),
        ),
        part("staleness", "Staleness", step_time::staleness(facts)),
        part("memory", "Memory", memory::blocks(facts)),
        part("differences", "What differs", repeat::differences(facts)),
        part("runs", "Runs and how to repeat them", repeat::blocks(facts)),
        part("records", "The studies' records", records::blocks(facts)),
    ];
    sections
        .into_iter()
        .filter(|section| !section.blocks.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::{RunGroup, StudyFolder};

    #[test]
    fn targets_of_further_studies_are_named_where_they_do_not_count() {
        let study = |name: &str, target: f64| {
            let mut study = StudyFolder::default();
            (study.plan.name, study.plan.target_accuracy) = (name.to_owned(), Some(target));
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
            words.contains("accuracy 0.1 of a, not against 0.9 of c;"),
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
        let runs = vec![
            run("a", Some(1)),
            run("b", Some(2)),
            run("c", Some(1)),
            run("d", None),
            run("e", None),
        ];
        let sources = Sources {
            runs,
            ..Sources::default()
        };
        let groups = Facts::new(&sources, None).run_groups();
        let labels: Vec<Vec<&str>> = groups
            .iter()
            .map(|group| group.iter().map(|run| run.label.as_str()).collect())
            .collect();
        assert_eq!(labels, [vec!["a", "c"], vec!["b"], vec!["d"], vec!["e"]]);
    }
}
