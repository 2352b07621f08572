//! Flags of `trainer watch`.

use clap::Args;

/// Flags of `trainer watch`.
#[derive(Debug, Clone, Args)]
pub struct WatchArgs {
    /// Directory of a run, or the id of a Slurm job that `slurm submit` made.
    #[arg(value_name = "RUN")]
    pub run: String,

    /// Print the page once, as it is also where standard output is no terminal [default: off, until q is pressed]
    #[arg(long)]
    pub once: bool,

    /// End when the run has ended, and print the page then, with exit code 3 if it has not finished; waits without a page where standard output is no terminal [default: off]
    #[arg(long, conflicts_with = "once")]
    pub until_end: bool,
}
