//! What a report tells, one part a file.
//!
//! In: [`Facts`]. Out: sections, each only if there is something to tell.
//! Invariant: every figure says under itself what was measured, over what, and after which warm-up.

mod accuracy;
mod comparison;
mod curves;
mod memory;
mod network;
mod predictions;
mod records;
mod repeat;
mod scaling;
mod step_time;
mod summary;

use super::document::{Block, Section};
use super::measurements::{self, Measurement};
use super::sources::{Run, Sources};

/// What all parts look at.
#[derive(Debug)]
pub struct Facts<'a> {
    sources: &'a Sources,
    measurements: Vec<Measurement>,
    /// Share 0..1.
    target_accuracy: Option<f64>,
}

/// What a run's speed means, unless a study says it.
const RUN_SPEED: &str =
    "images/s: global samples of all ranks over the slowest rank's time in steps; evaluation and checkpoints left out.";

/// What a run's warm-up is, unless a study says it.
const RUN_WARM_UP: &str = "Warm-up: the steps of --warmup-steps are left out.";

/// Most series that still look different from each other.
const MOST_SERIES: usize = 7;

impl<'a> Facts<'a> {
    /// Looks at the sources. `target_accuracy` wins over what a study names.
    pub fn new(sources: &'a Sources, target_accuracy: Option<f64>) -> Self {
        let of_studies = sources.studies.iter().find_map(|study| study.target_accuracy);
        Self { sources, measurements: measurements::all(sources), target_accuracy: target_accuracy.or(of_studies) }
    }

    /// How speeds were counted, for captions.
    fn speed_words(&self) -> String {
        let mut words: Vec<String> = Vec::new();
        for study in &self.sources.studies {
            let text = format!(
                "Warm-up: {}. images/s: {}.",
                study.warmup.trim_end_matches('.'),
                study.images_per_second_means.trim_end_matches('.')
            );
            let says_it = !study.warmup.is_empty() || !study.images_per_second_means.is_empty();
            if says_it && !words.contains(&text) {
                words.push(text);
            }
        }
        if words.is_empty() { format!("{RUN_WARM_UP} {RUN_SPEED}") } else { words.join(" ") }
    }

    /// Runs under the names of their groups, in order: repetitions of a cell come together.
    fn run_groups(&self) -> Vec<(String, Vec<&'a Run>)> {
        let mut groups: Vec<(String, Vec<&Run>)> = Vec::new();
        for run in &self.sources.runs {
            let name = run.group.as_ref().unwrap_or(&run.label);
            match groups.iter_mut().find(|(other, members)| {
                other == name && members.iter().all(|member| member.group == run.group && run.group.is_some())
            }) {
                Some((_, members)) => members.push(run),
                None => groups.push((name.clone(), vec![run])),
            }
        }
        groups
    }
}

/// All parts that have something to tell, in reading order.
pub(super) fn sections(facts: &Facts<'_>) -> Vec<Section> {
    let part = |id, heading, blocks: Vec<Block>| Section { id, heading, blocks };
    let sections = vec![
        part("summary", "Summary", summary::blocks(facts)),
        part("scaling", "Throughput and efficiency", scaling::blocks(facts)),
        part("comparison", "Other frameworks", comparison::blocks(facts)),
        part("time-to-accuracy", "Time to accuracy", accuracy::blocks(facts)),
        part("curves", "Loss and accuracy", curves::blocks(facts)),
        part("step-time", "Where a step's time goes", step_time::blocks(facts)),
        part("network", "Network", network::blocks(facts)),
        part("predictions", "Predicted and measured", predictions::blocks(facts)),
        part("staleness", "Staleness", step_time::staleness(facts)),
        part("memory", "Memory", memory::blocks(facts)),
        part("differences", "What differs", repeat::differences(facts)),
        part("runs", "Runs and how to repeat them", repeat::blocks(facts)),
        part("records", "The studies' records", records::blocks(facts)),
    ];
    sections.into_iter().filter(|section| !section.blocks.is_empty()).collect()
}
