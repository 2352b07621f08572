//! Lockstep's program: parse, join the world, run one command, leave together.

use std::process::ExitCode;

use clap::Parser;
use trainer::commands::{
    bench::bench, completions::completions, config::config, doctor::doctor, eval::eval, man::man, netbench::netbench,
    predict::predict, predict_scaling::predict_scaling, report::report, train::train, verify::verify,
};
use trainer::config::cli::{Cli, Command};
use trainer::world::launch::{launch, launch_alone, launch_in_any_world, start_others};

fn main() -> ExitCode {
    match Cli::parse().into_command() {
        Command::Train(args) => launch(|world| train(&args, world).map(drop)),
        Command::Eval(args) => launch(|world| eval(&args, world).map(drop)),
        Command::Predict(args) => launch(|world| predict(&args, world).map(drop)),
        Command::Bench(args) => launch(|world| bench(&args, world)),
        Command::Config(args) => launch(|world| config(&args, world)),
        Command::Netbench(args) => launch(|world| netbench(&args, world)),
        Command::PredictScaling(args) => launch(|world| predict_scaling(&args, world)),
        Command::Verify(args) => launch(|world| verify(&args, world)),
        Command::Report(args) => launch_alone(|world| report(&args, world)),
        Command::Doctor(args) => launch_in_any_world(|world| doctor(&args, world)),
        Command::Completions(args) => launch_alone(|_| completions(&args)),
        Command::Man(args) => launch_alone(|_| man(&args)),
        Command::Launch(args) => start_others(|| args.run()),
        Command::Slurm(command) => start_others(|| command.run()),
        Command::Study(args) => start_others(|| args.run()),
        Command::Compare(args) => start_others(|| args.run()),
        Command::Hosts(command) => start_others(|| command.run()),
    }
}
