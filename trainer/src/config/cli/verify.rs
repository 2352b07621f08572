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

    /// Make only these checks, comma-separated: known-answer, golden, ten-steps, ranks, nccl, learning, checkpoints, memory [default: all]
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

/// Flags of `trainer verify-run`.
#[derive(Debug, Clone, Default, Args)]
pub struct VerifyRunArgs {
    /// Output directory of the run, finished or stopped.
    #[arg(value_name = "RUN")]
    pub run: PathBuf,

    /// Steps to repeat, of its first epoch [default: 20, those that a run keeps hashes of, or the epoch if it is shorter]
    #[arg(long, value_name = "STEPS")]
    pub steps: Option<u64>,

    /// Where the images are now, if not where the run had them [default: as the run]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
}
