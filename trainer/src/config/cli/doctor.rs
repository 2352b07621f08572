//! Flags of `trainer doctor`.

#![allow(rustdoc::invalid_html_tags, rustdoc::broken_intra_doc_links, reason = "the comments here are texts of --help")]

use super::{ComputeArgs, DataArgs};
use clap::Args;
use std::path::PathBuf;

/// Flags of `trainer doctor`.
#[derive(Debug, Clone, Default, Args)]
pub struct DoctorArgs {
    /// Directory that runs would be written to; nothing is left in it [default: runs]
    #[arg(long, value_name = "DIR")]
    pub output_dir: Option<PathBuf>,

    /// Longest that a rank may wait for others that make no progress before all stop, seconds [default: 30]
    #[arg(long, value_name = "SECONDS")]
    pub timeout: Option<u64>,

    /// Print one JSON object as the last line: verdict, rows, and what every rank found [default: off]
    #[arg(long)]
    pub json: bool,

    /// Which images.
    #[command(flatten)]
    pub data: DataArgs,
    /// Device and threads.
    #[command(flatten)]
    pub compute: ComputeArgs,
}
