//! `trainer report`: one page, figures and tables of runs, studies and comparisons.
//!
//! In: flags. Out: a directory. Invariant: an output that cannot be written is refused before anything is read.

use anyhow::{Error, Result};
use report::Refusal;

use crate::config::cli::ReportArgs;
use crate::config::{ConfigError, report_request};
use crate::world::ranks::World;

/// Writes the report.
///
/// # Errors
/// When an input is of no known kind or cannot be read, or the output directory holds something else.
pub fn report(args: &ReportArgs, world: &World) -> Result<()> {
    let request = report_request(args)?;
    let size = report::write(&request).map_err(as_usage)?;
    world.reporter.note(&format!(
        "report of {} sections with {} figures and {} tables written to {}",
        size.num_sections,
        size.num_figures,
        size.num_tables,
        request.output.join("index.html").display()
    ));
    Ok(())
}

/// A refusal is wrong usage of a flag.
pub(crate) fn as_usage(error: Error) -> Error {
    match error.downcast::<Refusal>() {
        Ok(Refusal {
            option,
            expected,
            got,
        }) => ConfigError::Invalid {
            option,
            expected,
            got,
        }
        .into(),
        Err(error) => error,
    }
}
