//! `trainer report`: one page, figures and tables of runs, studies and comparisons.
//!
//! In: flags. Out: a directory. Invariant: an output that cannot be written is refused before anything is read.

use anyhow::Result;

use crate::cli::ReportArgs;
use crate::config::ReportConfig;
use crate::ranks::World;
use crate::study_report;

/// Writes the report.
///
/// # Errors
/// When an input is of no known kind or cannot be read, or the output directory holds something else.
pub fn report(args: &ReportArgs, world: &World) -> Result<()> {
    let config = ReportConfig::resolve(args)?;
    study_report::check_free(&config.output)?;
    let document = study_report::document(&config)?;
    let (num_figures, num_tables) = study_report::write(&document, &config.output)?;
    world.reporter.note(&format!(
        "report of {} sections with {num_figures} figures and {num_tables} tables written to {}",
        document.sections.len(),
        config.output.join("index.html").display()
    ));
    Ok(())
}
