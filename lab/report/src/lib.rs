//! Reports of studies: what `trainer report` writes.
//!
//! In: directories of runs, studies and comparisons, files of predictions, networks and traces. Out: one HTML file that needs nothing
//! else, and beside it figures as SVG, tables as CSV, JSON and LaTeX.
//! Invariant: every number comes from a file and is in the report's files again with all its digits; nothing is fetched, nothing runs
//! in the page.

mod chart;
mod document;
mod files;
mod html;
pub mod live;
mod measurements;
mod sections;
mod sources;
mod tables;

use anyhow::Result;
use document::Document;
use sections::Facts;
use sources::Sources;
use std::path::PathBuf;
use std::time::SystemTime;

/// What a report is asked to tell.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Request {
    /// Directories and files of any kind.
    pub inputs: Vec<PathBuf>,
    /// Where the report is written: a directory that is absent, empty or an earlier report.
    pub output: PathBuf,
    /// Its heading, if it was given.
    pub title: Option<String>,
    /// Accuracy whose time is told, share 0..1; wins over what a study names.
    pub target_accuracy: Option<f64>,
}

/// An input or output that a report cannot take.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{option}: expected {expected}, got {got}")]
pub struct Refusal {
    /// The flag, or the place of an argument.
    pub option: &'static str,
    /// What it takes.
    pub expected: String,
    /// What it was given.
    pub got: String,
}

/// How much a report has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Sections that have something to tell.
    pub num_sections: usize,
    /// Figures.
    pub num_figures: usize,
    /// Tables.
    pub num_tables: usize,
}

/// Reads the inputs and writes the report of them. An output that cannot be written is refused before anything is read.
///
/// # Errors
/// A [`Refusal`] if an input is none, or something else is at the output; when one cannot be read or written.
pub fn write(request: &Request) -> Result<Size> {
    files::check_free(&request.output)?;
    let document = document(request)?;
    let (num_figures, num_tables) = files::write(&document, &request.output)?;
    Ok(Size {
        num_sections: document.sections.len(),
        num_figures,
        num_tables,
    })
}

fn document(request: &Request) -> Result<Document> {
    let sources = Sources::read(&request.inputs)?;
    let facts = Facts::new(&sources, request.target_accuracy);
    let title = match (&request.title, &sources.studies[..]) {
        (Some(title), _) => title.clone(),
        (None, [study]) if !study.plan.title.is_empty() => study.plan.title.clone(),
        (None, _) => "Lockstep report".to_owned(),
    };
    Ok(Document {
        title,
        created: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        inputs: request
            .inputs
            .iter()
            .map(|path| path.display().to_string())
            .collect(),
        sections: sections::sections(&facts),
    })
}
