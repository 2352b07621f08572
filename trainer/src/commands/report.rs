//! `trainer report` and `trainer watch`: shows the files of runs as a page or on the terminal.
//!
//! In: flags. Out: a directory with the page, figures and tables; a text on the terminal.
//! Invariant: files of runs are only read. An output that cannot be written is rejected first.

use std::io::{IsTerminal, stdout};
use std::process::ExitCode;

use anyhow::{Error, Result, anyhow};
use records::counted;
use report::{Refusal, Request};

use crate::config::cli::WatchArgs;
use crate::config::invalid;
use crate::world::ranks::World;

/// Writes the report page with its figures and tables.
///
/// # Errors
/// If an input is of an unknown kind or cannot be read, or the output directory has other files.
pub fn report(request: &Request, world: &World) -> Result<()> {
    let size = report::write(request).map_err(as_usage)?;
    world.reporter.note(&format!(
        "report of {} with {} and {} written to {}",
        counted(size.num_sections, "section"),
        counted(size.num_figures, "figure"),
        counted(size.num_tables, "table"),
        request.output.join("index.html").display()
    ));
    Ok(())
}

/// Converts a refusal to a usage error of its flag.
fn as_usage(error: Error) -> Error {
    match error.downcast::<Refusal>() {
        Ok(Refusal {
            option,
            expected,
            got,
        }) => invalid(option, expected, got).into(),
        Err(error) => error,
    }
}

/// Exit code of `--until-end` if the run has not finished.
const NOT_FINISHED: u8 = 3;

/// Shows the run. Returns 3 if `--until-end` was typed and the run has not finished: it was
/// stopped, has died, or still runs.
///
/// # Errors
/// If the run does not exist, or its files or the terminal cannot be read.
pub fn watch(args: &WatchArgs, world: &World) -> Result<ExitCode> {
    let directory = cluster::directory_of_run(&args.run).map_err(|failure| anyhow!("{failure}"))?;
    let on_terminal = stdout().is_terminal();
    let is_to_end = || world.stop.is_raised();
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
