//! The mapping from the tensors of a network to those of a file.
//!
//! In: PyTorch's names of a network's tensors, and the paths of a file's tensors. Out: the path for
//! each name.
//! Invariant: all paths that are taken are under one prefix, and the order in the file does not
//! matter.
//!
//! A path is the dictionary keys, object attributes and module names on the way to a tensor. So a
//! dictionary `state_dict`, Lightning's `model.`, a `backbone.` and the wrapper `module.` are the
//! same here: a prefix.

use std::collections::{BTreeMap, HashMap, HashSet};

/// The modules that PyTorch's wrappers put around others: `DataParallel`, `torch.compile`, FSDP and
/// activation checkpointing.
const WRAPPERS: [&str; 4] = [
    "module",
    "_orig_mod",
    "_fsdp_wrapped_module",
    "_checkpoint_wrapped_module",
];

/// The published code's name for shortcut B, and the name used here.
const SHORTCUT: (&str, &str) = ("shortcut", "downsample");

/// The keys under which programs keep the network, the most common first. The last ones are those
/// of a trained network next to its average.
const USUAL: [&str; 7] = [
    "state_dict",
    "model_state_dict",
    "model_state",
    "net",
    "model",
    "encoder_q",
    "online_network",
];

/// The counters that PyTorch and its tools add to a network: of batches, averaged models,
/// operations.
const COUNTERS: [&str; 4] = [
    "num_batches_tracked",
    "n_averaged",
    "total_ops",
    "total_params",
];

/// The tensors of a file for a network.
#[derive(Debug, PartialEq)]
pub(super) struct Match {
    /// The place in the file of each name of the network.
    pub(super) places: Vec<Option<usize>>,
    /// The keys before the names, without wrappers; empty at the top.
    pub(super) prefix: String,
    /// The places of the other tensors under the prefix, without counters.
    pub(super) unused: Vec<usize>,
}

/// A place that contains tensors of the network.
#[derive(Clone, Copy)]
struct Candidate<'a> {
    /// The number of names that are there.
    count: usize,
    /// The number of leading modules that these names lack.
    depth: usize,
    prefix: &'a str,
}

/// Finds the prefix in `paths` that has the most of `names`.
///
/// The first `depth` modules of each name hold the whole network. A file may lack them, just as it
/// may lack a struct around one of several networks.
///
/// # Errors
/// The prefixes, if several have all names, hold different tensors by `is_same`, and none is
/// common.
pub(super) fn matching(
    names: &[&str],
    depth: usize,
    paths: &[&str],
    is_same: impl Fn(usize, usize) -> bool,
) -> Result<Match, Vec<String>> {
    let plain = plain(names, paths);
    // If two paths differ only in wrappers, the shorter one counts. Of equal ones the last counts,
    // as in Python.
    let mut by_name: HashMap<&str, usize> = HashMap::new();
    for (index, name) in plain.iter().enumerate() {
        let place = by_name.entry(name.as_str()).or_insert(index);
        if paths[index].len() <= paths[*place].len() {
            *place = index;
        }
    }
    let candidates = candidates(names, depth, &by_name);
    let Some(first) = candidates.first() else {
        let none = vec![None; names.len()];
        return Ok(Match {
            places: none,
            prefix: String::new(),
            unused: (0..paths.len()).collect(),
        });
    };
    let places = |candidate: &Candidate<'_>| -> Vec<Option<usize>> {
        let path = |name: &str| match candidate.prefix {
            "" => after(name, candidate.depth).to_owned(),
            prefix => format!("{prefix}.{}", after(name, candidate.depth)),
        };
        names
            .iter()
            .map(|name| by_name.get(path(name).as_str()).copied())
            .collect()
    };
    let found = places(first);
    let is_another = |other: &Candidate<'_>| {
        let differ = |(a, b): (&Option<usize>, &Option<usize>)| match (a, b) {
            (Some(a), Some(b)) => a != b && !is_same(*a, *b),
            (a, b) => a != b,
        };
        rank(other.prefix) == rank(first.prefix) && places(other).iter().zip(&found).any(differ)
    };
    if first.count == names.len() && candidates[1..].iter().any(is_another) {
        return Err(candidates
            .iter()
            .map(|candidate| candidate.prefix.to_owned())
            .collect());
    }
    let prefix = first.prefix.to_owned();
    let taken: HashSet<usize> = found.iter().copied().flatten().collect();
    let is_under = |name: &str| {
        prefix.is_empty()
            || name
                .strip_prefix(&prefix)
                .is_some_and(|rest| rest.starts_with('.'))
    };
    let is_counter = |name: &str| COUNTERS.contains(&name.rsplit('.').next().unwrap_or(name));
    let unused = (0..paths.len()).filter(|index| {
        let name = plain[*index].as_str();
        !taken.contains(index) && is_under(name) && !is_counter(name)
    });
    Ok(Match {
        unused: unused.collect(),
        places: found,
        prefix,
    })
}

/// Returns `paths` without wrappers and with `downsample` for a shortcut, unless the network has
/// such names itself.
fn plain(names: &[&str], paths: &[&str]) -> Vec<String> {
    let own: HashSet<&str> = names.iter().flat_map(|name| name.split('.')).collect();
    let wrappers: HashSet<&str> = WRAPPERS
        .into_iter()
        .filter(|wrapper| !own.contains(wrapper))
        .collect();
    let (theirs, ours) = SHORTCUT;
    let renames = !own.contains(theirs);
    let plain = |path: &&str| {
        let segments = path
            .split('.')
            .filter(|segment| !wrappers.contains(segment));
        let segments = segments.map(|segment| {
            if renames && segment == theirs {
                ours
            } else {
                segment
            }
        });
        segments.collect::<Vec<_>>().join(".")
    };
    paths.iter().map(plain).collect()
}

/// Returns the candidates with the most names, the most common first.
fn candidates<'a>(
    names: &[&str],
    depth: usize,
    by_name: &HashMap<&'a str, usize>,
) -> Vec<Candidate<'a>> {
    let mut candidates = Vec::new();
    for depth in 0..=depth {
        let inner: HashSet<&str> = names.iter().map(|name| after(name, depth)).collect();
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for &name in by_name.keys() {
            let ends = name
                .match_indices('.')
                .map(|(at, _)| (&name[..at], &name[at + 1..]))
                .chain([("", name)]);
            for (prefix, _) in ends.filter(|(_, name)| inner.contains(name)) {
                *counts.entry(prefix).or_default() += 1;
            }
        }
        candidates.extend(counts.into_iter().map(|(prefix, count)| Candidate {
            count,
            depth,
            prefix,
        }));
    }
    let most = candidates.iter().map(|candidate| candidate.count).max();
    candidates.retain(|candidate| Some(candidate.count) == most);
    candidates.sort_by_key(|candidate| {
        (
            rank(candidate.prefix),
            candidate.depth,
            candidate.prefix.len(),
        )
    });
    candidates
}

/// Returns the number of modules, from the outermost, that hold all tensors of these names.
pub fn shared_modules(names: &[&str]) -> usize {
    let Some((first, others)) = names.split_first() else {
        return 0;
    };
    let modules = first.split('.').count() - 1;
    others.iter().fold(modules, |depth, name| {
        let shared = first
            .split('.')
            .zip(name.split('.'))
            .take_while(|(a, b)| a == b)
            .count();
        depth.min(shared).min(name.split('.').count() - 1)
    })
}

/// Returns `name` without its first `depth` modules.
fn after(name: &str, depth: usize) -> &str {
    (0..depth).fold(name, |name, _| {
        name.split_once('.').map_or(name, |(_, rest)| rest)
    })
}

/// Returns the rank of a prefix, the most common first: for each key its place in the list.
fn rank(prefix: &str) -> Vec<usize> {
    let keys = prefix.split('.').filter(|key| !key.is_empty());
    keys.map(|key| {
        USUAL
            .iter()
            .position(|usual| *usual == key)
            .unwrap_or(USUAL.len())
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 3] = ["conv1.weight", "layer1.downsample.weight", "fc.weight"];

    fn found(names: &[&str], paths: &[String]) -> Result<Match, Vec<String>> {
        let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
        matching(names, shared_modules(names), &paths, |_, _| false)
    }

    /// Returns the names of a network under each prefix.
    fn under(prefixes: &[&str]) -> Vec<String> {
        prefixes
            .iter()
            .flat_map(|prefix| NAMES.iter().map(move |name| format!("{prefix}{name}")))
            .collect()
    }

    #[test]
    fn a_network_is_found_under_any_prefix() {
        for (prefix, expected) in [
            ("", ""),
            ("module.", ""),
            ("_orig_mod.module.", ""),
            ("state_dict.", "state_dict"),
            ("state_dict.module.encoder_q.", "state_dict.encoder_q"),
            ("model.backbone.", "model.backbone"),
        ] {
            let found = found(&NAMES, &under(&[prefix])).unwrap();
            assert_eq!(
                found,
                Match {
                    places: vec![Some(0), Some(1), Some(2)],
                    prefix: expected.to_owned(),
                    unused: vec![]
                }
            );
        }
        let wrapped_within = [
            "conv1.module.weight",
            "layer1.shortcut._orig_mod.weight",
            "fc.weight",
        ]
        .map(str::to_owned);
        assert_eq!(
            found(&NAMES, &wrapped_within).unwrap().places,
            [Some(0), Some(1), Some(2)]
        );
    }

    #[test]
    fn of_several_networks_the_usual_one_is_taken_or_all_are_named() {
        for (prefixes, expected) in [
            (["state_dict_ema.", "state_dict."], Some("state_dict")),
            (["ema.", ""], Some("")),
            (
                ["state_dict.encoder_k.", "state_dict.encoder_q."],
                Some("state_dict.encoder_q"),
            ),
            (["net.", "model."], Some("net")),
            (["teacher.", "student."], None),
        ] {
            let found = found(&NAMES, &under(&prefixes));
            match expected {
                Some(prefix) => assert_eq!(found.unwrap().prefix, prefix),
                None => assert_eq!(found.unwrap_err(), ["student", "teacher"]),
            }
        }
        let paths = under(&["a.", "b."]);
        let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
        assert_eq!(
            matching(&NAMES, 0, &paths, |_, _| true).unwrap().prefix,
            "a",
            "one network under two names"
        );
    }

    #[test]
    fn what_is_left_over_under_the_prefix_is_named_but_for_counters() {
        let mut paths = under(&["model."]);
        let others = [
            "model.aux.weight",
            "model.bn1.num_batches_tracked",
            "model.fc.total_ops",
            "optimizer.0.exp_avg",
            "n_averaged",
        ];
        paths.extend(others.map(str::to_owned));
        assert_eq!(found(&NAMES, &paths).unwrap().unused, [3]);
        let missing = found(&NAMES, &under(&[""])[..2]).unwrap();
        assert_eq!(missing.places, [Some(0), Some(1), None]);
    }

    #[test]
    fn modules_around_the_whole_network_may_be_missing_in_the_file_and_wrappers_may_be_fields() {
        let names = NAMES.map(|name| format!("inner.{name}"));
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        assert_eq!(
            found(&names, &under(&["state_dict."])).unwrap().places,
            [Some(0), Some(1), Some(2)]
        );
        assert_eq!(found(&names, &under(&["inner."])).unwrap().prefix, "");
        let fields = ["module.weight", "other.weight"];
        assert_eq!(
            found(&fields, &fields.map(str::to_owned)).unwrap().places,
            [Some(0), Some(1)]
        );
    }
}
