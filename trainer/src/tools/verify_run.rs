//! Comparison of a run's first steps with their repetition, bit by bit.
//!
//! In: hashes and manifests of a run and of its repetition. Out: a [`Finding`].
//! Invariant: the comparison is a function of its arguments.

use records::{Manifest, StepHashes, counted};
use serde::{Deserialize, Serialize};

use super::check::Finding;
use crate::measure::manifest::bearing_on_bits;

/// Manifest of a launch, and hashes of its first steps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Recording {
    /// Manifest of the launch.
    pub manifest: Manifest,
    /// Hashes of each step, from step 0.
    pub hashes: Vec<StepHashes>,
}

/// A step with different hashes.
#[derive(Debug, PartialEq)]
struct Difference {
    /// Step number, from 0.
    step: u64,
    /// Ranks whose loss before the step's update differs.
    losses: Vec<usize>,
    /// Ranks whose parameters after the step differ.
    parameters: Vec<usize>,
    /// Tensors of root that differ after the step, in module order.
    tensors: Vec<String>,
}

impl Difference {
    fn is_empty(&self) -> bool {
        self.losses.is_empty() && self.parameters.is_empty() && self.tensors.is_empty()
    }
}

/// Compares the first `num_steps` steps, or fewer if a recording has fewer.
pub fn compare(run: &Recording, repetition: &Recording, num_steps: usize) -> Finding {
    let launches = launches(&run.manifest, &repetition.manifest);
    let changed: String = launches
        .iter()
        .map(|words| format!("; changed launch: {words}"))
        .collect();
    let Some(difference) = first_difference(run, repetition, num_steps) else {
        return Finding::ok(format!(
            "equal: {} repeated, every loss and every parameter has the run's bits{changed}",
            counted(num_steps, "step")
        ));
    };
    let mut parts = Vec::new();
    if !difference.losses.is_empty() {
        parts.push(format!(
            "loss before its update on {}",
            ranks(&difference.losses)
        ));
    }
    if !difference.parameters.is_empty() {
        parts.push(format!(
            "parameters after it on {}",
            ranks(&difference.parameters)
        ));
    }
    if let Some((first, further)) = difference.tensors.split_first() {
        let more = match further.len() {
            0 => String::new(),
            number => format!(" and {number} more"),
        };
        parts.push(format!("tensor {first}{more}"));
    }
    let remedy = match launches.is_empty() {
        true => {
            "the launch is the one of the manifest, which does not record the bytes of --weights"
        }
        false => "restore the changed launch, then repeat",
    };
    let step = difference.step;
    let found = format!(
        "different from step {step} on, of {num_steps}: {}{changed}",
        parts.join(", ")
    );
    Finding::fail(found, remedy)
}

fn first_difference(
    run: &Recording,
    repetition: &Recording,
    num_steps: usize,
) -> Option<Difference> {
    let names = run.hashes.first().map_or(&[][..], |first| &first.names);
    let steps = run.hashes.iter().zip(&repetition.hashes).take(num_steps);
    let mut differences = steps.map(|(run, repetition)| difference(run, repetition, names));
    differences.find(|difference| !difference.is_empty())
}

fn difference(run: &StepHashes, repetition: &StepHashes, names: &[String]) -> Difference {
    let unequal = |run: &[String], repetition: &[String]| -> Vec<usize> {
        let places = 0..run.len().max(repetition.len());
        places
            .filter(|&place| run.get(place) != repetition.get(place))
            .collect()
    };
    let name = |place: usize| {
        names
            .get(place)
            .cloned()
            .unwrap_or_else(|| format!("tensor {place}"))
    };
    // With a different number of ranks, every rank has different samples.
    let has_same_ranks = run.losses.len() == repetition.losses.len();
    let of_ranks = |run, repetition| {
        if has_same_ranks {
            unequal(run, repetition)
        } else {
            Vec::new()
        }
    };
    Difference {
        step: run.step,
        losses: of_ranks(&run.losses, &repetition.losses),
        parameters: of_ranks(&run.parameters, &repetition.parameters),
        tensors: unequal(&run.tensors, &repetition.tensors)
            .into_iter()
            .map(name)
            .collect(),
    }
}

fn launches(run: &Manifest, repetition: &Manifest) -> Vec<String> {
    let facts = |manifest: &Manifest| {
        // The hash covers the version and the number of ranks.
        let options = ("hash of the options", manifest.config_hash.clone());
        bearing_on_bits(manifest)
            .into_iter()
            .chain([options])
            .collect::<Vec<_>>()
    };
    let was = facts(run);
    let is = facts(repetition);
    let differing = was.iter().zip(&is).filter(|(was, is)| was != is);
    let mut words: Vec<_> = differing
        .map(|((what, was), (_, is))| (*what, format!("{what} was {was}, is {is}")))
        .collect();
    if words
        .iter()
        .any(|(what, _)| ["version", "ranks"].contains(what))
    {
        words.retain(|(what, _)| *what != "hash of the options");
    }
    words.into_iter().map(|(_, words)| words).collect()
}

fn ranks(ranks: &[usize]) -> String {
    let numbers: Vec<String> = ranks.iter().map(usize::to_string).collect();
    let plural = if ranks.len() == 1 { "" } else { "s" };
    format!("rank{plural} {}", numbers.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::check::Verdict;

    fn recording() -> Recording {
        let hashes = (0..3).map(|step| StepHashes {
            step,
            losses: vec![format!("{step}a"), format!("{step}b")],
            parameters: vec!["e".to_owned(); 2],
            tensors: vec!["1".to_owned(), "2".to_owned()],
            names: if step == 0 {
                vec!["conv.weight".to_owned(), "fc.bias".to_owned()]
            } else {
                Vec::new()
            },
        });
        Recording {
            manifest: Manifest {
                commit: "old".to_owned(),
                ..Manifest::default()
            },
            hashes: hashes.collect(),
        }
    }

    #[test]
    fn equal_hashes_are_equal_whatever_the_launch() {
        let mut again = recording();
        again.manifest.commit = "new".to_owned();
        let finding = compare(&recording(), &again, 3);
        assert_eq!(finding.verdict, Verdict::Ok);
        let (equal, changed) = ("equal: 3 steps", "; changed launch: commit was old, is new");
        let found = finding.found;
        assert!(
            found.starts_with(equal) && found.ends_with(changed),
            "{found}"
        );
    }

    #[test]
    fn the_first_step_that_differs_is_named_with_its_ranks_and_tensors() {
        let mut again = recording();
        again.hashes[1].losses[1] = "other".to_owned();
        again.hashes[1].parameters.fill("other".to_owned());
        again.hashes[1].tensors[1] = "other".to_owned();
        again.hashes[2].losses.clear();
        let found = compare(&recording(), &again, 3).found;
        let expected = "different from step 1 on, of 3: loss before its update on rank 1, parameters after it on ranks 0, 1, tensor fc.bias";
        assert_eq!(found, expected);
        assert_eq!(first_difference(&recording(), &again, 1), None);
    }

    #[test]
    fn on_another_number_of_ranks_only_roots_tensors_count() {
        let mut again = recording();
        again
            .hashes
            .iter_mut()
            .for_each(|line| line.losses.truncate(1));
        assert_eq!(first_difference(&recording(), &again, 3), None);
        again.hashes[2].tensors[0] = "other".to_owned();
        let difference = first_difference(&recording(), &again, 3).unwrap();
        assert_eq!(
            (difference.step, difference.tensors),
            (2, vec!["conv.weight".to_owned()])
        );
    }
}
