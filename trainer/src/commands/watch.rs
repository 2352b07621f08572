//! `trainer watch`: a run as it stands, on the terminal.
//!
//! In: a run's directory or job. Out: a page drawn anew every second; once, as text, where there is no terminal, or at the run's end.
//! Invariant: the run's files are read only.

use std::io::{IsTerminal, stdout};
use std::process::ExitCode;

use anyhow::{Result, anyhow};

use crate::commands::report::as_usage;
use crate::config::cli::WatchArgs;
use crate::world::ranks::World;

/// Exit code where the run was watched until its end and that was another than it should be, or did not come.
const NOT_FINISHED: u8 = 3;

/// Shows the run. The code is 0, but 3 where the end is waited for and the run has not finished: it was stopped, is dead, or goes on.
///
/// # Errors
/// When there is no such run, or its files or the terminal cannot be read.
pub fn watch(args: &WatchArgs, world: &World) -> Result<ExitCode> {
    let directory = cluster::directory_of_run(&args.run).map_err(|failure| anyhow!("{failure}"))?;
    let (on_terminal, is_to_end) = (stdout().is_terminal(), || world.stop.is_raised());
    let has_finished = match (args.once, args.until_end) {
        (false, until_end) if on_terminal => {
            report::live::watch(&directory, until_end, is_to_end).map_err(as_usage)?
        }
        (_, true) => report::live::wait(&directory, is_to_end).map_err(as_usage)?,
        (..) => false,
    };
    if args.once || args.until_end || !on_terminal {
        world.reporter.result(
            &report::live::snapshot(&directory, report::live::CADENCE).map_err(as_usage)?,
        )?;
    }
    Ok(if args.until_end && !has_finished {
        ExitCode::from(NOT_FINISHED)
    } else {
        ExitCode::SUCCESS
    })
}
