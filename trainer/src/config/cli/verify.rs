//! Flags of `trainer verify`.

#![allow(rustdoc::invalid_html_tags, rustdoc::broken_intra_doc_links, reason = "the comments here are texts of --help")]

use super::ComputeArgs;
use clap::Args;
use std::path::PathBuf;

/// Flags of `trainer verify`.
#[derive(Debug, Clone, Default, Args)]
pub struct VerifyArgs {
    /// Shorter checks: a smaller training, fewer steps [default: off]
    #[arg(long)]
    pub quick: bool,

    /// Make only these checks, comma-separated: known-answer, golden, ten-steps, learning, checkpoints, memory [default: all]
    #[arg(long, value_name = "CHECK,...", value_delimiter = ',')]
    pub only: Option<Vec<String>>,

    /// Folder with what stays outside the program: resnet20-12fca82f.th and test_batch.bin (known-answer), resnet8.safetensors (golden) [default: none; these checks are skipped]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,

    /// Write the checks into this file, as JSON [default: none]
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Device and threads.
    #[command(flatten)]
    pub compute: ComputeArgs,
}
