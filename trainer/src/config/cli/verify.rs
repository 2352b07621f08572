//! Flags of `trainer verify` and `trainer verify-run`.

#![allow(
    rustdoc::invalid_html_tags,
    rustdoc::broken_intra_doc_links,
    reason = "the comments here are texts of --help"
)]

use super::ComputeArgs;
use clap::Args;
use std::path::PathBuf;

/// Flags of `trainer verify`.
#[derive(Debug, Clone, Default, Args)]
pub struct VerifyArgs {
    /// Shorter checks: a smaller training, fewer steps [default: off]
    #[arg(long)]
    pub quick: bool,

    /// Checks to make, comma-separated, such as golden,ranks [default: all]
    #[arg(long, value_name = "CHECK,...", value_delimiter = ',')]
    pub only: Option<Vec<String>>,

    /// Folder of the files outside the program; see the book [default: none, checks are skipped]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,

    /// File for the result, JSON [default: none]
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Device and threads.
    #[command(flatten)]
    pub compute: ComputeArgs,
}

/// Flags of `trainer verify-run`.
#[derive(Debug, Clone, Default, Args)]
pub struct VerifyRunArgs {
    /// Output directory of the run, finished or stopped
    #[arg(value_name = "RUN")]
    pub run: PathBuf,

    /// Steps of the first epoch to repeat [default: 20, or the epoch if it is shorter]
    #[arg(long, value_name = "STEPS")]
    pub steps: Option<u64>,

    /// Current folder of the images [default: as the run]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
}
