//! Lockstep's program: parse, join the world, run one command, leave together.

use std::process::ExitCode;

use clap::Parser;
use trainer::cli::{Cli, Command};
use trainer::commands::{bench::bench, config::config, eval::eval, predict::predict, train::train};
use trainer::launch::launch;

fn main() -> ExitCode {
    let command = Cli::parse().into_command();
    launch(|world| match command {
        Command::Train(args) => train(&args, world).map(drop),
        Command::Eval(args) => eval(&args, world).map(drop),
        Command::Predict(args) => predict(&args, world).map(drop),
        Command::Bench(args) => bench(&args, world),
        Command::Config(args) => config(&args, world),
    })
}
