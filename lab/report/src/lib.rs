//! Reports of runs, studies and comparisons: `trainer report` and `trainer watch`.
//!
//! In: directories of runs and studies, files of predictions, networks and traces. Out: one HTML
//! file without external resources. The same directory has its figures as SVG and its tables as
//! CSV and LaTeX.
//! Invariant: every number comes from a file and has all its digits in the report's files. The page
//! fetches nothing and runs no script.

mod chart;
mod document;
mod files;
mod html;
pub mod live;
mod sections;
mod sources;

use anyhow::Result;
use document::Document;
use sections::Facts;
use sources::Sources;
use std::path::PathBuf;
use std::time::SystemTime;

/// Flags of `trainer report`.
#[derive(Debug, Clone, Default, PartialEq, clap::Args)]
pub struct Request {
    /// Runs, studies and comparisons; files of predictions, netbench and traces
    #[arg(required = true, value_name = "DIR")]
    pub inputs: Vec<PathBuf>,

    /// Directory for index.html, figures and tables; an earlier report is replaced [default:
    /// report]
    #[arg(
        long,
        value_name = "DIR",
        default_value = "report",
        hide_default_value = true
    )]
    pub output: PathBuf,

    /// Heading of the report [default: that of the study, else "Lockstep report"]
    #[arg(long, value_name = "TEXT")]
    pub title: Option<String>,

    /// Val, else test, accuracy whose time is shown, 0..1 [default: that of the study, else none]
    #[arg(long, value_name = "SHARE")]
    pub target_accuracy: Option<f64>,
}

/// An input or output that a report cannot use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{option}: expected {expected}, got {got}")]
pub struct Refusal {
    /// Flag or name of the argument.
    pub option: &'static str,
    /// Expected value.
    pub expected: String,
    /// Value found.
    pub got: String,
}

/// Number of items of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Sections.
    pub num_sections: usize,
    /// Figures.
    pub num_figures: usize,
    /// Tables.
    pub num_tables: usize,
}

/// Reads the inputs and writes their report. Checks the output directory before reading anything.
///
/// # Errors
/// A [`Refusal`] if an input is of no known kind, the output directory has other files, or the
/// target is no share; I/O errors.
pub fn write(request: &Request) -> Result<Size> {
    if let Some(target) = request.target_accuracy
        && !(target > 0.0 && target <= 1.0)
    {
        return Err(Refusal {
            option: "--target-accuracy",
            expected: "above 0 and at most 1, as 0.8 for 80 %".to_owned(),
            got: target.to_string(),
        }
        .into());
    }
    files::check_free(&request.output)?;
    let sources = Sources::read(&request.inputs)?;
    let facts = Facts::new(&sources, request.target_accuracy);
    let title = match (&request.title, &sources.studies[..]) {
        (Some(title), _) => title.clone(),
        (None, [study]) if !study.plan.title.is_empty() => study.plan.title.clone(),
        (None, _) => "Lockstep report".to_owned(),
    };
    let inputs = request.inputs.iter().map(|path| path.display().to_string());
    let document = Document {
        title,
        created: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        inputs: inputs.collect(),
        results: sections::sentences(&facts),
        sections: sections::sections(&facts),
    };
    files::write(&document, &request.output)
}
