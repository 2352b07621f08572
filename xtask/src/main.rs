//! `cargo xtask`: the automation of this workspace. This file is the table of contents.
//!
//! In: the command line. Out: exit code 0, 1 (something failed) or 2 (the command line is wrong).
//! Invariant: beside the standard library only readers of TOML and JSON, so that the first command of a fresh clone starts within
//! seconds.
#![allow(clippy::print_stdout, clippy::print_stderr)] // Talking to the developer is what this program is for.

mod arguments;
mod bench;
mod cargo;
mod chaos;
mod ci;
mod compare;
#[cfg(test)]
mod containers;
mod cores;
mod cuda;
mod failure;
mod gpu_check;
mod guard;
mod hosts;
mod json;
mod kernel_stages;
mod launch;
mod machine;
mod mpi_choice;
mod mpi_suite;
mod mpirun;
mod packages;
mod probe;
mod process;
mod quiet;
mod report_suite;
mod restart;
mod run_directory;
mod setup;
mod slurm;
mod slurm_cluster;
mod slurm_suite;
mod study;
mod suite;
mod test_stages;
mod tidy;
mod train;

use std::process::ExitCode;

use arguments::Command;
use failure::{Failure, Outcome};

const COMMANDS: [Command; 14] = [
    setup::COMMAND,
    train::COMMAND,
    launch::COMMAND,
    slurm::COMMAND,
    bench::COMMAND,
    study::COMMAND,
    hosts::COMMAND,
    compare::COMMAND,
    gpu_check::COMMAND,
    test_stages::COMMAND,
    slurm_cluster::COMMAND,
    chaos::COMMAND,
    tidy::COMMAND,
    ci::COMMAND,
];

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::from(failure.exit_code())
        }
    }
}

fn run() -> Outcome {
    let mut words = Vec::new();
    for word in std::env::args_os().skip(1) {
        words.push(word.into_string().map_err(|word| {
            Failure::Usage(format!("argument {word:?} is not valid UTF-8: rename the path or give it by a link"))
        })?);
    }
    match words.split_first() {
        None => {
            print!("{}", overview());
            Ok(())
        }
        Some((first, _)) if ["--help", "-h", "help"].contains(&first.as_str()) => {
            print!("{}", overview());
            Ok(())
        }
        Some((first, rest)) => {
            let command = COMMANDS.iter().find(|command| command.name == first).ok_or_else(|| {
                let names: Vec<&str> = COMMANDS.iter().map(|command| command.name).collect();
                Failure::Usage(format!("unknown command `{first}`, expected one of: {}", names.join(", ")))
            })?;
            command.dispatch(rest)
        }
    }
}

fn overview() -> String {
    let mut text = String::from("Usage: cargo xtask COMMAND [arguments]\n\nCommands:\n");
    for command in &COMMANDS {
        text.push_str(&format!("  {:<11}{}\n", command.name, command.summary));
    }
    text.push_str("\n`cargo xtask COMMAND --help` tells the arguments of a command.\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_overview_names_every_command() {
        for command in &COMMANDS {
            assert!(overview().contains(&format!("  {}", command.name)), "{} is missing", command.name);
        }
    }
}
