//! `cargo xtask train`: from a fresh clone to a training run, in one command.
//!
//! In: nothing, or ranks and the trainer's own arguments. Out: the trainer's main job, in our place.
//! Invariant: two ranks where they can be had, so that the first run of a newcomer already is a distributed one.

use crate::arguments::{Arguments, Command, Flag};
use crate::cores;
use crate::failure::Outcome;
use crate::launch;
use crate::setup::{self, NO_INSTALL};

pub(crate) const COMMAND: Command = Command {
    name: "train",
    summary: "Set up, build the trainer in release, and train.",
    details: "\
Without arguments this trains the trainer's default model on its embedded data set, on 2 ranks where MPI can be had.
Example: cargo xtask train --ranks 4 -- --dataset cifar10 --epochs 10
`cargo xtask train -- --help` tells the trainer's own arguments.",
    subjects: &[],
    parts: &[],
    object: None,
    flags: &[
        Flag { name: "--ranks", value: Some("N"), help: "number of ranks (default 2; 1 on one core or without MPI)" },
        NO_INSTALL,
    ],
    passed_on: Some("trainer arguments"),
    run,
};

fn run(arguments: Arguments) -> Outcome {
    let asked = arguments.count("--ranks")?;
    let found = setup::run(&arguments)?;
    let can_launch = found.can_build_mpi() && found.mpirun.is_some();
    let ranks = asked.unwrap_or_else(|| default_ranks(can_launch, cores::available()));
    let mut words = vec!["train".to_owned()];
    words.extend(arguments.passed_on);
    launch::start(&found, ranks, Vec::new(), &words)
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
