//! The configuration of `report`.
//!
//! In: its flags. Out: plain values. Invariant: there is something to report on; the target is a share.

use super::error::ConfigError;
use super::resolve::in_range;
use crate::cli::ReportArgs;
use std::path::PathBuf;

/// What `trainer report` writes.
#[derive(Debug, Clone, PartialEq)]
pub struct ReportConfig {
    /// Directories and files of any kind.
    pub inputs: Vec<PathBuf>,
    /// Where the report is written.
    pub output: PathBuf,
    /// Its heading, if it was given.
    pub title: Option<String>,
    /// Accuracy whose time is told, share 0..1.
    pub target_accuracy: Option<f64>,
}

impl ReportConfig {
    /// Decides the report.
    ///
    /// # Errors
    /// A [`ConfigError`] naming the option and the remedy.
    pub fn resolve(args: &ReportArgs) -> Result<Self, ConfigError> {
        let expected = || "above 0 and at most 1, as 0.8 for 80 %".to_owned();
        let target = args
            .target_accuracy
            .map(|target| in_range("--target-accuracy", target, expected(), |target| target > 0.0 && target <= 1.0));
        Ok(Self {
            inputs: args.inputs.clone(),
            output: args.output.clone().unwrap_or_else(|| PathBuf::from("report")),
            title: args.title.clone(),
            target_accuracy: target.transpose()?,
        })
    }
}
