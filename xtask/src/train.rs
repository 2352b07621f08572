//! `cargo xtask train`: from a fresh clone to a training run, in one command.
//!
//! In: nothing, or ranks and the trainer's own arguments. Out: the trainer's main job, in our place.
//! Invariant: two ranks where they can be had, so that the first run of a newcomer already is a distributed one.

use std::os::unix::process::CommandExt;
use std::process::Command as Process;

use clap::Args;

use crate::cargo::{self, Mpi};
use crate::setup;
use cluster::cores;
use cluster::failure::{Failure, Outcome};
use cluster::options::{self, Installing};
use cluster::process;

const DETAILS: &str = "\
Without arguments this trains the trainer's default model on its embedded data set, on 2 ranks where MPI can be had.
Example: cargo xtask train --ranks 4 -- --dataset cifar10 --epochs 10
`cargo xtask train -- --help` tells the trainer's own arguments.";

/// Flags of `cargo xtask train`.
#[derive(Debug, Args)]
#[command(after_help = DETAILS)]
pub(crate) struct TrainArgs {
    /// Number of ranks [default: 2; 1 on one core or without MPI]
    #[arg(long, value_name = "N", value_parser = options::count)]
    ranks: Option<usize>,
    #[command(flatten)]
    installing: Installing,
    /// Flags of `trainer train`, after `--`.
    #[arg(value_name = "FLAGS", last = true)]
    words: Vec<String>,
}

impl TrainArgs {
    pub(crate) fn run(&self) -> Outcome {
        let found = setup::run(self.installing)?;
        let can_launch = found.can_build_mpi() && found.mpirun.is_some();
        let ranks = self
            .ranks
            .unwrap_or_else(|| default_ranks(can_launch, cores::available()));
        if ranks > 1 && !can_launch {
            return Err(Failure::Failed(format!(
                "{ranks} ranks need MPI and mpirun, and this machine lacks one of them: install what `cargo xtask setup` names, or start 1 rank"
            )));
        }
        let mut command = Process::new(cargo::trainer(Mpi::of(&found), "dev")?);
        command
            .args(["launch", "-n", &ranks.to_string(), "--", "train"])
            .args(&self.words);
        let error = command.exec();
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
