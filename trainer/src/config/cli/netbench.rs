//! Flags of `trainer netbench`.

#![allow(rustdoc::invalid_html_tags, rustdoc::broken_intra_doc_links, reason = "the comments here are texts of --help")]

use crate::config::choices::ReductionChoice;
use clap::Args;
use std::path::PathBuf;

/// Flags of `trainer netbench`.
#[derive(Debug, Clone, Default, Args)]
pub struct NetbenchArgs {
    /// Sizes to measure, comma-separated, in bytes, KiB or MiB [default: powers of 4 from 1 to 64MiB]
    #[arg(long, value_name = "SIZES", value_delimiter = ',')]
    pub sizes: Option<Vec<String>>,

    /// Leave out larger sizes of the default, in bytes, KiB or MiB [default: 64MiB]
    #[arg(long, value_name = "SIZE")]
    pub max_bytes: Option<String>,

    /// Time of a point whose median is not known to 5 % before, seconds [default: 1]
    #[arg(long, value_name = "SECONDS")]
    pub seconds_per_point: Option<f64>,

    /// Most pairs of nodes, or on one node of ranks, that send to each other; of more, a random choice [default: 28]
    #[arg(long, value_name = "PAIRS")]
    pub pairs: Option<usize>,

    /// Numbers of ranks for the collectives, from rank 0, comma-separated [default: all ranks]
    #[arg(long, value_name = "RANKS", value_delimiter = ',')]
    pub ranks: Option<Vec<usize>>,

    /// Algorithms of all-reduce to measure, comma-separated; mpi is the library's own [default: all but nccl, which sums on GPUs]
    #[arg(long, value_enum, value_name = "KINDS", value_delimiter = ',')]
    pub reductions: Option<Vec<ReductionChoice>>,

    /// Write all points, the fit and the circumstances into this file, which bench --simulate-network takes if its name ends in .json [default: none]
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Longest that a rank may wait for another before all stop, seconds [default: 120]
    #[arg(long, value_name = "SECONDS")]
    pub timeout: Option<u64>,

    /// Print the same as one JSON object as the last line [default: off]
    #[arg(long)]
    pub json: bool,
}
