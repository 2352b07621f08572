//! The flags that a trainer supports, from its help.
//!
//! In: a trainer. Out: refusals of unknown flags.
//! Invariant: checked before the first run, so that a misspelt key costs no time.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::cell::{Cell, NOT_HERE};
use super::file::{Kind, StudyFile};
use cluster::failure::{Outcome, failed, usage};
use cluster::process;

/// Refuses flags that the trainer does not support.
pub(crate) fn check(file: &StudyFile, trainer: &Path, cells: &[&Cell]) -> Outcome {
    let mut known: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for cell in cells.iter().filter(|cell| cell.peer().is_none()) {
        let command = records::name(cell.kind);
        if !known.contains_key(&command) {
            known.insert(command.clone(), self::known(trainer, &command)?);
        }
        let known = &known[&command];
        let flags = cell.arguments.iter().filter(|word| word.starts_with("--"));
        let mut flags = flags.map(|word| word.split('=').next().unwrap_or_default());
        let Some(unknown) = flags.find(|flag| known.iter().all(|known| known != flag)) else {
            continue;
        };
        // A key is shown as it is written in the file.
        let key = unknown.trim_start_matches('-');
        let has_underscores = file.text.contains(&key.replace('-', "_"));
        let key = |flag: &str| match has_underscores {
            true => flag.replace('-', "_"),
            false => flag.to_owned(),
        };
        let is_of_train = cell.kind == Kind::Bench
            && self::known(trainer, "train")?
                .iter()
                .any(|flag| flag == unknown);
        let unknown = unknown.trim_start_matches('-');
        let remedy = match (is_of_train, &nearest(unknown, known)[..]) {
            (true, _) => "set kind = \"train\" in its [[matrix]]".to_owned(),
            (_, []) => format!("`trainer {command} --help` lists its flags"),
            (_, names) => {
                let names: Vec<String> = names.iter().map(|name| key(name)).collect();
                format!("did you mean {}?", names.join(" or "))
            }
        };
        return Err(usage!(
            "{}: {}: unknown key for {command}: {remedy}",
            file.path,
            key(unknown)
        ));
    }
    Ok(())
}

/// Returns the flags with a name like that of an unknown one, the nearest first.
fn nearest<'k>(unknown: &str, known: &'k [String]) -> Vec<&'k str> {
    let names = known.iter().map(|flag| flag.trim_start_matches('-'));
    let names = names.filter(|name| !NOT_HERE.contains(&name.replace('-', "_").as_str()));
    let distances = names.map(|name| (strsim::damerau_levenshtein(unknown, name), name));
    let near: BTreeSet<(usize, &str)> = distances
        .filter(|(distance, _)| *distance <= unknown.len().div_ceil(3))
        .collect();
    near.into_iter().take(3).map(|(_, name)| name).collect()
}

/// Returns the flags of a command of the trainer.
pub(crate) fn known(trainer: &Path, command: &str) -> Outcome<Vec<String>> {
    let help = process::answer(trainer, &[command, "--help"]).ok_or_else(|| {
        let trainer = trainer.display();
        failed!("`{trainer} {command} --help` failed: rebuild the trainer")
    })?;
    Ok(flags_in(&help))
}

/// Returns the long flags in a help text, each on its own line.
fn flags_in(help: &str) -> Vec<String> {
    let flag = |line: &str| {
        let word = line
            .split_whitespace()
            .find(|word| word.starts_with("--"))?;
        let name: String = word
            .chars()
            .take_while(|c| c.is_ascii_alphanumeric() || *c == '-')
            .collect();
        line.trim_start().starts_with('-').then_some(name)
    };
    help.lines().filter_map(flag).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flags_of_a_help_text_are_found() {
        let help = "Options:\n      --steps <STEPS>\n          Steps, see --other\n      --download[=<BOOL>]\n  -h, --help\n";
        assert_eq!(flags_in(help), ["--steps", "--download", "--help"]);
    }

    #[test]
    fn an_unknown_key_is_answered_with_the_nearest_ones() {
        let known = [
            "--learning-rate",
            "--resume",
            "--epochs",
            "--epochs",
            "--seed",
        ];
        let known = known.map(str::to_owned);
        for (unknown, expected) in [
            ("learning-rte", &["learning-rate"][..]),
            ("epoch", &["epochs"]),
            ("resum", &[]),
            ("colour", &[]),
        ] {
            assert_eq!(nearest(unknown, &known), expected, "{unknown}");
        }
    }
}
