//! Names by what differs.
//!
//! In: the settings of several things. Out: for each, the words that tell it from the others.
//! Invariant: what all have in common is in no name.

use std::collections::{BTreeMap, BTreeSet};

pub(super) type Settings<'a> = BTreeMap<&'a str, &'a str>;

/// Settings whose values speak for themselves, as they are read; others come after them, with their names.
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

/// The settings that are not the same everywhere.
pub(super) fn differing<'a>(all: &[Settings<'a>]) -> BTreeSet<&'a str> {
    let keys = all.iter().flat_map(|one| one.keys().copied());
    keys.filter(|key| all.iter().any(|one| one.get(key) != all[0].get(key)))
        .collect()
}

/// These settings in words; nothing where it has none of them.
pub(super) fn words(settings: &Settings<'_>, keys: &BTreeSet<&str>) -> String {
    let plain = PLAIN.iter().filter(|key| keys.contains(*key));
    let named = keys.iter().filter(|key| !PLAIN.contains(key));
    let known: Vec<(&str, &str)> = plain
        .chain(named)
        .filter_map(|key| Some((*key, *settings.get(key)?)))
        .collect();
    let has_more = known.len() > 1;
    let word = |(key, value): &(&str, &str)| match *key {
        // Without compression nothing needs to be said, unless it is all there is to say.
        "compress" if *value == "none" => (!has_more).then(|| "no compression".to_owned()),
        key if PLAIN.contains(&key) => Some((*value).to_owned()),
        key => Some(format!("{} {value}", key.replace('_', " "))),
    };
    known.iter().filter_map(word).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_what_differs_and_the_method_comes_first() {
        let all = [
            Settings::from([
                ("model", "resnet20"),
                ("sync", "allreduce"),
                ("compress", "none"),
            ]),
            Settings::from([
                ("model", "resnet20"),
                ("sync", "allreduce"),
                ("compress", "bf16"),
            ]),
            Settings::from([
                ("model", "resnet20"),
                ("sync", "local-sgd"),
                ("compress", "none"),
                ("every", "8"),
            ]),
        ];
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
