//! The flags that a trainer supports, from its help.
//!
//! In: a trainer. Out: refusals of unknown flags.
//! Invariant: checked before the first run, so that a misspelt key costs no time.

use std::collections::BTreeMap;
use std::path::Path;

use super::cell::{Cell, NOT_HERE};
use super::file::StudyFile;
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
        let key = |flag: &str| flag.trim_start_matches('-').replace('-', "_");
        if let Some(unknown) = flags.find(|flag| known.iter().all(|known| known != flag)) {
            let keys = known.iter().map(|flag| key(flag));
            let keys: Vec<String> = keys
                .filter(|key| !NOT_HERE.contains(&key.as_str()))
                .collect();
            return Err(usage!(
                "{}: {}: unknown key for {command}: expected one of {}",
                file.path,
                key(unknown),
                keys.join(", ")
            ));
        }
    }
    Ok(())
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
}
