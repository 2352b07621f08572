//! Flags of `trainer report`.

#![allow(rustdoc::invalid_html_tags, rustdoc::broken_intra_doc_links, reason = "the comments here are texts of --help")]

use clap::Args;
use std::path::PathBuf;

/// Flags of `trainer report`.
#[derive(Debug, Clone, Default, Args)]
pub struct ReportArgs {
    /// Directories of runs, studies and comparisons, files of predictions, of netbench --output and of --trace, in any mixture.
    #[arg(required = true, value_name = "DIR")]
    pub inputs: Vec<PathBuf>,

    /// Directory for index.html, figures and tables; an earlier report there is replaced [default: report]
    #[arg(long, value_name = "DIR")]
    pub output: Option<PathBuf>,

    /// Heading of the report [default: that of the study, else "Lockstep report"]
    #[arg(long, value_name = "TEXT")]
    pub title: Option<String>,

    /// Tell how long runs took to reach this test accuracy, 0..1 [default: what a study names, else not told]
    #[arg(long, value_name = "SHARE")]
    pub target_accuracy: Option<f64>,
}
