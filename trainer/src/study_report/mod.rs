//! Reports of studies: what `trainer report` writes.
//!
//! In: directories of runs, studies and comparisons, files of predictions, networks and traces. Out: one HTML file that needs nothing
//! else, and beside it figures as SVG, tables as CSV, JSON and LaTeX.
//! Invariant: every number comes from a file and is in the report's files again with all its digits; nothing is fetched, nothing runs
//! in the page.

pub mod chart;
pub mod document;
mod files;
mod html;
mod measurements;
mod sections;
pub mod sources;
mod tables;

pub use files::{SCHEMA, check_free, write};
pub use sections::Facts;

use crate::config::ReportConfig;
use anyhow::Result;
use document::Document;
use sources::Sources;
use std::time::SystemTime;

/// Reads the inputs and makes the report of them.
///
/// # Errors
/// [`crate::config::ConfigError::Invalid`] if an input is none; when one cannot be read.
pub fn document(config: &ReportConfig) -> Result<Document> {
    let sources = Sources::read(&config.inputs)?;
    let facts = Facts::new(&sources, config.target_accuracy);
    let title = match (&config.title, &sources.studies[..]) {
        (Some(title), _) => title.clone(),
        (None, [study]) if !study.plan.title.is_empty() => study.plan.title.clone(),
        (None, _) => "Lockstep report".to_owned(),
    };
    Ok(Document {
        title,
        created: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        inputs: config.inputs.iter().map(|path| path.display().to_string()).collect(),
        sections: sections::sections(&facts),
    })
}
