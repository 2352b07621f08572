//! Lockstep's program: parse, join the world, run one command, leave together.

use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use trainer::cli::{Cli, Command};
use trainer::{commands, launch};

fn main() -> ExitCode {
    let command = Cli::parse().into_command();
    launch::launch(|communicator, stop| match command {
        Command::Train(args) => commands::train::train(&args, Arc::clone(communicator), stop).map(drop),
        Command::Eval(args) => commands::eval::eval(&args, &**communicator).map(drop),
        Command::Predict(args) => commands::predict::predict(&args, &**communicator).map(drop),
        Command::Bench(args) => commands::bench::bench(&args, Arc::clone(communicator)).map(drop),
        Command::Config(args) => commands::config::config(&args, &**communicator),
    })
}
