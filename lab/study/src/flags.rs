//! The flags that a trainer supports, from its help.
//!
//! In: a trainer. Out: refusals of unknown flags.
//! Invariant: checked before the first run, so that a misspelt key costs no time.

use std::path::Path;

use super::cell::{Cell, NOT_HERE};
use super::file::{Kind, StudyFile};
use super::plan;
use cluster::failure::{Failure, Outcome};
use cluster::process;

/// Refuses flags that the trainer does not support.
pub(crate) fn check(file: &StudyFile, trainer: &Path, cells: &[&Cell]) -> Outcome {
    for kind in Kind::ALL {
        let mut of_kind = cells
            .iter()
            .filter(|cell| cell.kind == kind && cell.peer().is_none())
            .peekable();
        if of_kind.peek().is_none() {
            continue;
        }
        let known = known(trainer, kind)?;
        for cell in of_kind {
            if let Some(unknown) =
                plan::flags_of(cell).find(|flag| !known.iter().any(|known| known == flag))
            {
                return Err(Failure::Usage(format!(
                    "{}: {}: unknown key for {}: expected one of {}",
                    file.path,
                    unknown.trim_start_matches('-').replace('-', "_"),
                    kind.name(),
                    known
                        .iter()
                        .map(|flag| flag.trim_start_matches('-').replace('-', "_"))
                        .filter(|key| !NOT_HERE.contains(&key.as_str()))
                        .collect::<Vec<_>>()
                        .join(", ")
                )));
            }
        }
    }
    Ok(())
}

/// Returns the flags of a command of the trainer.
pub(crate) fn known(trainer: &Path, kind: Kind) -> Outcome<Vec<String>> {
    let help = process::answer(trainer, &[kind.name(), "--help"]).ok_or_else(|| {
        Failure::Failed(format!(
            "`{} {} --help` failed: rebuild the trainer",
            trainer.display(),
            kind.name()
        ))
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
