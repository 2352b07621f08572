//! `trainer man`: a man page for each command.
//!
//! In: a directory. Out: `trainer.1`, `trainer-train.1`, … in it, by the name of the program.
//! Invariant: the pages come out of the definitions by which the flags are read.

use std::fs;

use anyhow::{Context, Result};

use crate::config::cli::{CliOf, ManArgs};
use crate::model::family::ModelFamily;

/// Writes the pages.
///
/// # Errors
/// When the directory cannot be made or written.
pub fn man<F: ModelFamily>(args: &ManArgs) -> Result<()> {
    let directory = &args.directory;
    let named = || format!("man pages: {}", directory.display());
    fs::create_dir_all(directory).with_context(named)?;
    clap_mangen::generate_to(CliOf::<F::Args>::definitions(), directory).with_context(named)
}
