//! `trainer completions`: what a shell needs to complete this program's commands and flags.
//!
//! In: a shell. Out: its script on standard output. Invariant: it comes out of the definitions by which the flags are read.

use std::io::{self, Write};

use anyhow::{Context, Result};
use clap_complete::aot;
use cluster::output::unless_reader_left;

use crate::config::cli::{CliOf, CompletionsArgs, Shell};
use crate::model::family::ModelFamily;

/// Prints the script.
///
/// # Errors
/// When standard output takes no more.
pub fn completions<F: ModelFamily>(args: &CompletionsArgs) -> Result<()> {
    let shell = match args.shell {
        Shell::Bash => aot::Shell::Bash,
        Shell::Zsh => aot::Shell::Zsh,
        Shell::Fish => aot::Shell::Fish,
    };
    let mut script = Vec::new();
    let mut definitions = CliOf::<F::Args>::definitions();
    let program = definitions.get_name().to_owned();
    aot::generate(shell, &mut definitions, program, &mut script);
    unless_reader_left(io::stdout().write_all(&script)).context("completions: standard output")
}
