//! Options of several commands: counts, installation, the path of the trainer.
//!
//! In: a word of the command line. Out: its value, or a refusal. Invariant: nothing is started or
//! written.

use std::path::{Path, PathBuf};

use clap::builder::FalseyValueParser;
use clap::{ArgAction, Args};

use crate::failure::{Outcome, at, failed, usage};
use crate::probe;

/// Reads a count from 1.
///
/// # Errors
/// What was expected; clap adds the flag.
pub fn count(text: &str) -> Result<usize, String> {
    text.trim()
        .parse()
        .ok()
        .filter(|&count| count > 0)
        .ok_or_else(|| "expected a whole number from 1".to_owned())
}

/// Permission to install packages.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct Installing {
    /// Install nothing, only report what is missing; also LOCKSTEP_NO_INSTALL=1 [default: off]
    #[arg(long, env = "LOCKSTEP_NO_INSTALL", hide_env = true, action = ArgAction::SetTrue, value_parser = FalseyValueParser::new())]
    pub no_install: bool,
}

/// Returns the value of a flag in the words of a command, as `--flag value` or `--flag=value`.
pub(crate) fn value_of<'w>(words: &'w [String], flag: &str) -> Option<&'w str> {
    let attached = words
        .iter()
        .find_map(|word| word.strip_prefix(flag)?.strip_prefix('='));
    attached.or_else(|| {
        words
            .iter()
            .skip_while(|word| *word != flag)
            .nth(1)
            .map(String::as_str)
    })
}

/// Returns the absolute path of the trainer: this program, or the named one.
pub fn trainer(named: Option<&Path>) -> Outcome<PathBuf> {
    let Some(path) = named else {
        return std::env::current_exe().map_err(|error| {
            failed!("the path of this program: {error}: name the program by --trainer PATH")
        });
    };
    let path = std::path::absolute(path).map_err(at(path))?;
    match probe::program(&path) {
        Some(path) => Ok(path),
        None => Err(usage!(
            "--trainer: {} is not an executable program. Name a built trainer, or remove the flag to start this program.",
            path.display()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Example {
        #[arg(short, value_parser = count)]
        number: Option<usize>,
        #[command(flatten)]
        installing: Installing,
    }

    #[test]
    fn a_count_of_zero_or_of_something_else_is_refused_with_its_flag() {
        assert_eq!(
            Example::try_parse_from(["x", "-n", "3"]).unwrap().number,
            Some(3)
        );
        for word in ["0", "-1", "two"] {
            let refusal = Example::try_parse_from(["x", "-n", word])
                .unwrap_err()
                .to_string();
            assert!(
                word == "-1" || refusal.contains("expected a whole number from 1"),
                "{refusal}"
            );
        }
    }

    #[test]
    fn a_flag_forbids_installing() {
        assert!(
            Example::try_parse_from(["x", "--no-install"])
                .unwrap()
                .installing
                .no_install
        );
    }

    #[test]
    fn unsaid_this_program_trains_and_a_named_one_must_be_there() {
        assert_eq!(trainer(None).unwrap(), std::env::current_exe().unwrap());
        assert_eq!(
            trainer(Some(Path::new("/bin/sh"))).unwrap(),
            Path::new("/bin/sh")
        );
        assert_eq!(
            trainer(Some(Path::new("/nonexistent/trainer")))
                .unwrap_err()
                .exit_code(),
            2
        );
    }
}
