//! `trainer report`: one page, figures and tables of runs, studies and comparisons.
//!
//! In: flags. Out: a directory. Invariant: an output that cannot be written is refused before anything is read.

use anyhow::{Error, Result};
use report::{Refusal, Request};

use crate::config::cli::ReportArgs;
use crate::config::{ConfigError, in_range};
use crate::world::ranks::World;

/// Writes the report.
///
/// # Errors
/// When an input is of no known kind or cannot be read, or the output directory holds something else.
pub fn report(args: &ReportArgs, world: &World) -> Result<()> {
    let target = |target| {
        in_range(
            "--target-accuracy",
            target,
            "above 0 and at most 1, as 0.8 for 80 %",
            |target| target > 0.0 && target <= 1.0,
        )
    };
    let request = Request {
        inputs: args.inputs.clone(),
        output: args.output.clone().unwrap_or("report".into()),
        title: args.title.clone(),
        target_accuracy: args.target_accuracy.map(target).transpose()?,
    };
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
