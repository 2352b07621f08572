//! `cargo xtask ci`: what a continuous-integration machine runs.
//!
//! In: the workspace. Out: as `cargo xtask test`, or the check of the CUDA build.

use clap::Args;

use crate::cuda;
use crate::test_stages::TestArgs;
use cluster::failure::Outcome;
use cluster::options::Installing;

const DETAILS: &str = "\
--cuda builds the trainer with burn's CUDA backend and without LLVM, which needs no network beyond the crates, into
target/cuda-offline (about 25 minutes on 2 cores), and starts it: with a GPU it must compute, without one it must
say so in a clear error.";

/// Flags of `cargo xtask ci`.
#[derive(Debug, Args)]
#[command(after_help = DETAILS)]
pub(crate) struct CiArgs {
    /// Check the CUDA build instead.
    #[arg(long)]
    cuda: bool,
    #[command(flatten)]
    installing: Installing,
}

impl CiArgs {
    pub(crate) fn run(&self) -> Outcome {
        if self.cuda {
            cuda::run(self.installing)
        } else {
            TestArgs::all(self.installing).run()
        }
    }
}
