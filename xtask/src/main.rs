//! `cargo xtask`: the automation of this workspace. This file is the table of contents.
//!
//! In: the command line. Out: exit code 0, 1 (something failed) or 2 (the command line is wrong).
//! Invariant: beside the standard library only clap, readers of TOML and JSON, and `jobs`, so that the first command of a fresh clone
//! starts within half a minute.
#![allow(clippy::print_stdout, clippy::print_stderr)] // Talking to the developer is what this program is for.

mod at;
mod bench;
mod book;
mod cargo;
mod chaos;
mod ci;
#[cfg(test)]
mod containers;
mod cuda;
mod deny;
mod dist;
mod features;
mod gpu_check;
mod kernel_stages;
mod mpi_choice;
mod mpi_suite;
mod needs;
mod packages;
mod probe;
mod processor_stage;
mod report_suite;
mod setup;
mod slurm_cluster;
mod slurm_suite;
mod suite;
mod tensorboard;
mod test_stages;
mod tidy;
mod train;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use cluster::failure::Outcome;

/// The automation of this workspace.
#[derive(Debug, Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    arg_required_else_help = true
)]
struct Program {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Find what is missing on this machine and install it where that is allowed.
    Setup(setup::SetupArgs),
    /// Set up, build the trainer, and train.
    Train(train::TrainArgs),
    /// Measure the kernels one by one, then the training step they make up.
    #[command(subcommand)]
    Bench(bench::BenchCommand),
    /// Prove that the trainer computes rightly on a GPU and measure it beside PyTorch, or pack this for a GPU machine.
    GpuCheck(gpu_check::GpuCheckArgs),
    /// Set up and run the checks of a working day; with --all those of a release, too.
    Test(test_stages::TestArgs),
    /// Start or stop a small Slurm cluster of two nodes on this machine.
    #[command(subcommand)]
    Cluster(slurm_cluster::ClusterCommand),
    /// Let faults befall a training run at random, again and again, and compare its end with an undisturbed one.
    Chaos(chaos::ChaosArgs),
    /// Check the rules of this workspace that no compiler checks.
    Tidy(tidy::TidyArgs),
    /// Write the book's reference anew, and build the book where mdbook is installed.
    Book,
    /// Pack the programs of a release, or the crates; nothing is uploaded.
    Dist(dist::DistArgs),
    /// Run all checks as `test` does, or check the CUDA build.
    Ci(ci::CiArgs),
}

fn main() -> ExitCode {
    match run(&Program::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::from(failure.exit_code())
        }
    }
}

fn run(command: &Command) -> Outcome {
    match command {
        Command::Setup(args) => args.run(),
        Command::Train(args) => args.run(),
        Command::Bench(command) => command.run(),
        Command::GpuCheck(args) => args.run(),
        Command::Test(args) => args.run(),
        Command::Cluster(command) => command.run(),
        Command::Chaos(args) => args.run(),
        Command::Tidy(args) => args.run(),
        Command::Book => book::run(),
        Command::Dist(args) => args.run(),
        Command::Ci(args) => args.run(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definitions_of_all_commands_fit_together() {
        Program::command().debug_assert();
    }
}
