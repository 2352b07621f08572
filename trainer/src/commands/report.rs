//! `trainer report`: one page, figures and tables of runs, studies and comparisons.
//!
//! In: flags. Out: a directory. Invariant: an output that cannot be written is refused before anything is read.

use anyhow::{Error, Result};
use report::{Refusal, Request};

use crate::cli::ReportArgs;
use crate::config::{ConfigError, ReportConfig};
use crate::ranks::World;

/// Writes the report.
///
/// # Errors
/// When an input is of no known kind or cannot be read, or the output directory holds something else.
pub fn report(args: &ReportArgs, world: &World) -> Result<()> {
    let ReportConfig { inputs, output, title, target_accuracy } = ReportConfig::resolve(args)?;
    report::check_free(&output).map_err(as_usage)?;
    let document = report::document(&Request { inputs, title, target_accuracy }).map_err(as_usage)?;
    let (num_figures, num_tables) = report::write(&document, &output).map_err(as_usage)?;
    world.reporter.note(&format!(
        "report of {} sections with {num_figures} figures and {num_tables} tables written to {}",
        document.sections.len(),
        output.join("index.html").display()
    ));
    Ok(())
}

/// A refusal is wrong usage of a flag.
fn as_usage(error: Error) -> Error {
    match error.downcast::<Refusal>() {
        Ok(Refusal { option, expected, got }) => ConfigError::Invalid { option, expected, got }.into(),
        Err(error) => error,
    }
}
