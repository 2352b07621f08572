//! `cargo xtask train`: from a fresh clone to a training run, in one command.
//!
//! In: ranks and the trainer's arguments, all optional. Out: the trainer, which replaces this
//! process. Invariant: two ranks if possible, so that the first run of a newcomer is a distributed
//! one.

use std::os::unix::process::CommandExt;
use std::process::Command;

use clap::Args;
use cluster::cores;
use cluster::failure::{Outcome, failed};
use cluster::options::{self, Installing};
use cluster::process;

use crate::cargo::{self, Mpi};
use crate::setup;

const DETAILS: &str = "\
Without arguments, trains the default model on its embedded data set, on 2 ranks if there is an MPI.
Example: cargo xtask train --ranks 4 -- --dataset cifar10 --epochs 10
`cargo xtask train -- --help` prints the trainer's arguments.";

/// Flags of `cargo xtask train`.
#[derive(Debug, Args)]
#[command(after_help = DETAILS)]
pub(crate) struct TrainArgs {
    /// Number of ranks [default: 2; 1 on one core or without MPI]
    #[arg(long, value_name = "N", value_parser = options::count)]
    ranks: Option<usize>,
    #[command(flatten)]
    installing: Installing,
    /// Flags of `trainer train`, after `--`
    #[arg(value_name = "FLAGS", last = true)]
    words: Vec<String>,
}

impl TrainArgs {
    pub(crate) fn run(&self) -> Outcome {
        let found = setup::run(self.installing)?;
        let can_launch = found.launcher().is_some();
        let default = default_ranks(can_launch, cores::available());
        let ranks = self.ranks.unwrap_or(default);
        if ranks > 1 && !can_launch {
            return Err(failed!(
                "--ranks {ranks}: no MPI or no mpirun. Install what `cargo xtask setup` names, or start 1 rank"
            ));
        }
        let mut command = Command::new(cargo::trainer(Mpi::of(&found))?);
        command.args(["launch", "-n", &ranks.to_string(), "--", "train"]);
        let error = command.args(&self.words).exec();
        Err(process::cannot_start(&command, &error))
    }
}

fn default_ranks(can_launch: bool, cores: usize) -> usize {
    if can_launch { cores.min(2) } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_main_job_has_two_ranks_unless_the_machine_cannot() {
        assert_eq!(default_ranks(true, 64), 2);
        assert_eq!(default_ranks(true, 1), 1);
        assert_eq!(default_ranks(false, 64), 1);
    }
}
