//! `trainer watch`: a run as it stands, on the terminal.
//!
//! In: a run's directory or job. Out: a page drawn anew every second; once, as text, where there is no terminal, or at the run's end.
//! Invariant: the run's files are read only.

use std::io::{IsTerminal, stdout};

use anyhow::{Result, anyhow};

use crate::commands::report::as_usage;
use crate::config::cli::WatchArgs;
use crate::world::ranks::World;

/// Shows the run.
///
/// # Errors
/// When there is no such run, or its files or the terminal cannot be read.
pub fn watch(args: &WatchArgs, world: &World) -> Result<()> {
    let directory = jobs::directory_of_run(&args.run).map_err(|failure| anyhow!("{failure}"))?;
    let (on_terminal, is_to_end) = (stdout().is_terminal(), || world.stop.is_raised());
    match (args.once, args.until_end) {
        (false, until_end) if on_terminal => report::live::watch(&directory, until_end, is_to_end).map_err(as_usage)?,
        (_, true) => report::live::wait(&directory, is_to_end).map_err(as_usage)?,
        (..) => {}
    }
    if args.once || args.until_end || !on_terminal {
        world.reporter.note(&report::live::snapshot(&directory).map_err(as_usage)?);
    }
    Ok(())
}
