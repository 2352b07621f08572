//! `cargo xtask`: the automation of this workspace. This file is the table of contents.
//!
//! In: the command line. Out: exit code 0, 1 (work failed) or 2 (wrong command line). Invariant:
//! apart from the standard library only clap, readers of TOML and JSON, `cluster` and `records`, so
//! that the first command of a fresh clone starts within half a minute.
#![allow(clippy::print_stdout, clippy::print_stderr)] // This program prints for the developer.

mod book;
mod cargo;
mod chaos;
mod mpi_choice;
mod mpi_suite;
mod packing;
mod report_suite;
mod setup;
mod slurm_cluster;
mod slurm_suite;
mod stages;
mod suite;
mod tidy;
mod train;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use cluster::failure::{Outcome, at};

/// Automation of this workspace.
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
    /// Find missing tools on this machine and install them if allowed.
    Setup(setup::SetupArgs),
    /// Set up, build the trainer, and train.
    Train(train::TrainArgs),
    /// Check the trainer on a GPU and compare its speed with PyTorch, or pack this for a GPU
    /// machine.
    GpuCheck(packing::GpuCheckArgs),
    /// Set up and run the daily checks; with --all those of a release.
    Test(stages::TestArgs),
    /// Start or stop a small Slurm cluster of two nodes on this machine.
    #[command(subcommand)]
    Cluster(slurm_cluster::ClusterCommand),
    /// Train with random faults, and compare the end with an undisturbed run.
    Chaos(chaos::ChaosArgs),
    /// Check the rules of this workspace that no compiler checks.
    Tidy(tidy::TidyArgs),
    /// Write the reference and the figures of the book, and build it if mdbook is installed.
    Book(book::BookArgs),
    /// Pack the programs of a release, or the crates; uploads nothing.
    Dist(packing::DistArgs),
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

/// Returns the paths in a folder, sorted.
fn entries(folder: &Path) -> Outcome<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).map_err(at(folder))?.flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    Ok(paths)
}

fn run(command: &Command) -> Outcome {
    match command {
        Command::Setup(args) => args.run(),
        Command::Train(args) => args.run(),
        Command::GpuCheck(args) => args.run(),
        Command::Test(args) => args.run(),
        Command::Cluster(command) => command.run(),
        Command::Chaos(args) => args.run(),
        Command::Tidy(args) => args.run(),
        Command::Book(args) => args.run(),
        Command::Dist(args) => args.run(),
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
