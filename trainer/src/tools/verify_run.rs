//! Whether a repetition of a run's first steps has the run's bits, and what is known of why not.
//!
//! In: the hashes and manifests of both. Out: a [`Verdict`]. Invariant: a function of its arguments alone.

use records::{Manifest, StepHashes};
use serde::{Deserialize, Serialize};

use crate::measure::manifest::bearing_on_bits;

/// One launch and what its first steps gave.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Recording {
    pub manifest: Manifest,
    /// A line a step, from step 0 on.
    pub hashes: Vec<StepHashes>,
}

/// How run and repetition compare.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// The first step in which they differ.
    pub difference: Option<Difference>,
    /// In what the launches differ, in words.
    pub launches: Vec<String>,
}

/// The first step whose hashes differ.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// From 0.
    pub step: u64,
    /// Ranks whose loss differs: computed before the step's update.
    pub losses: Vec<usize>,
    /// Ranks whose parameters after the step differ.
    pub parameters: Vec<usize>,
    /// Root's tensors that differ then, in module order.
    pub tensors: Vec<String>,
}

/// Compares the first `num_steps` steps, or as many as both have.
pub fn compare(run: &Recording, repetition: &Recording, num_steps: usize) -> Verdict {
    let names = run.hashes.first().map_or(&[][..], |first| &first.names);
    let steps = run.hashes.iter().zip(&repetition.hashes).take(num_steps);
    let difference = steps
        .map(|(run, repetition)| difference(run, repetition, names))
        .find(|difference| {
            let Difference {
                losses,
                parameters,
                tensors,
                ..
            } = difference;
            !(losses.is_empty() && parameters.is_empty() && tensors.is_empty())
        });
    Verdict {
        difference,
        launches: launches(&run.manifest, &repetition.manifest),
    }
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
    // On another number of ranks each has other samples, and there is a hash for each rank.
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
        // Version and ranks are part of it.
        let options = ("hash of the options", manifest.config_hash.clone());
        bearing_on_bits(manifest)
            .into_iter()
            .chain([options])
            .collect::<Vec<_>>()
    };
    let (was, is) = (facts(run), facts(repetition));
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

/// What is said about it, of so many steps.
pub fn lines(verdict: &Verdict, num_steps: usize) -> Vec<String> {
    let mut lines = vec![match &verdict.difference {
        None => format!(
            "equal: {num_steps} steps repeated, every loss and every parameter has the run's bits"
        ),
        Some(Difference {
            step,
            losses,
            parameters,
            tensors,
        }) => {
            let mut parts = Vec::new();
            if !losses.is_empty() {
                parts.push(format!("loss before its update on {}", ranks(losses)));
            }
            if !parameters.is_empty() {
                parts.push(format!("parameters after it on {}", ranks(parameters)));
            }
            if let Some((first, further)) = tensors.split_first() {
                let further = if further.is_empty() {
                    String::new()
                } else {
                    format!(" and {} more", further.len())
                };
                parts.push(format!("tensor {first}{further}"));
            }
            format!(
                "different from step {step} on, of {num_steps}: {}",
                parts.join(", ")
            )
        }
    }];
    lines.extend(
        verdict
            .launches
            .iter()
            .map(|words| format!("not as it was: {words}")),
    );
    if verdict.difference.is_some() && verdict.launches.is_empty() {
        lines.push(
            "all that the manifest tells is as it was; it does not tell of the bytes of --weights"
                .to_owned(),
        );
    }
    lines
}

fn ranks(ranks: &[usize]) -> String {
    let numbers: Vec<String> = ranks.iter().map(usize::to_string).collect();
    format!(
        "rank{} {}",
        if ranks.len() == 1 { "" } else { "s" },
        numbers.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn equal_hashes_are_equal_whatever_the_launch_was() {
        let mut again = recording();
        again.manifest.commit = "new".to_owned();
        let verdict = compare(&recording(), &again, 3);
        assert_eq!(
            verdict,
            Verdict {
                difference: None,
                launches: vec!["commit was old, is new".to_owned()]
            }
        );
        assert!(lines(&verdict, 3)[0].starts_with("equal: 3 steps"));
    }

    #[test]
    fn the_first_step_that_differs_is_told_with_its_ranks_and_tensors() {
        let mut again = recording();
        again.hashes[1].losses[1] = "other".to_owned();
        again.hashes[1].parameters.fill("other".to_owned());
        again.hashes[1].tensors[1] = "other".to_owned();
        again.hashes[2].losses.clear();
        let verdict = compare(&recording(), &again, 3);
        assert_eq!(
            lines(&verdict, 3)[0],
            "different from step 1 on, of 3: loss before its update on rank 1, parameters after it on ranks 0, 1, tensor fc.bias"
        );
        assert_eq!(compare(&recording(), &again, 1).difference, None);
    }

    #[test]
    fn on_another_number_of_ranks_only_roots_tensors_count() {
        let mut again = recording();
        again
            .hashes
            .iter_mut()
            .for_each(|line| line.losses.truncate(1));
        assert_eq!(compare(&recording(), &again, 3).difference, None);
        again.hashes[2].tensors[0] = "other".to_owned();
        let difference = compare(&recording(), &again, 3).difference.unwrap();
        assert_eq!(
            (difference.step, difference.tensors),
            (2, vec!["conv.weight".to_owned()])
        );
    }
}
