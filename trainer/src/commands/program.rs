//! The program of a model family: parses flags, joins the world, runs one command, exits.
//!
//! In: the program's arguments. Out: its exit code.

use std::process::ExitCode;

use crate::commands::{
    bench::bench,
    doctor::doctor,
    eval::eval,
    man::{completions, man},
    netbench::netbench,
    predict::predict,
    predict_scaling::predict_scaling,
    report::{report, watch},
    shard::shard,
    train::{config, train},
    verify::verify,
    verify_run::verify_run,
};
use crate::config::Family;
use crate::config::cli::{CliOf, CommandOf};
use crate::model::family::ModelFamily;
use crate::world::launch::{Start, launch, start_others};

/// Runs the typed command with models of the family `F`. `verify` checks the device with residual
/// networks in every program. If a flag of `F` has the name of a general flag, only reports the
/// conflict.
///
/// Call this function once, at the start of `main`: it installs the signal handlers.
pub fn program<F: ModelFamily>() -> ExitCode {
    if let Err(taken) = Family::expect_own_names::<F::Args>() {
        return launch(Start::World, |_| Err::<(), _>(taken.into()));
    }
    match CliOf::<F::Args>::typed().into_command() {
        CommandOf::Train(args) => launch(Start::World, |world| {
            train::<F>(&args.into_args()?, world).map(drop)
        }),
        CommandOf::Eval(args) => launch(Start::World, |world| {
            eval::<F>(&args.into_args()?, world).map(drop)
        }),
        CommandOf::Predict(args) => launch(Start::Alone, |world| {
            predict::<F>(&args, world).map(|predictions| predictions.exit_code())
        }),
        CommandOf::Bench(args) => {
            launch(Start::World, |world| bench::<F>(&args.into_args()?, world))
        }
        CommandOf::Config(args) => {
            launch(Start::Apart, |world| config::<F>(&args.into_args()?, world))
        }
        CommandOf::Netbench(args) => launch(Start::World, |world| netbench(&args, world)),
        CommandOf::PredictScaling(args) => launch(Start::World, |world| {
            predict_scaling::<F>(&args.into_args()?, world)
        }),
        CommandOf::Verify(args) => launch(Start::Alone, |world| verify(&args, world)),
        CommandOf::VerifyRun(args) => launch(Start::World, |world| verify_run::<F>(&args, world)),
        CommandOf::Report(args) => launch(Start::Alone, |world| report(&args, world)),
        CommandOf::Watch(args) => launch(Start::Alone, |world| watch(&args, world)),
        CommandOf::Shard(args) => launch(Start::Alone, |world| shard(&args, world)),
        CommandOf::Doctor(args) => launch(Start::AnyWorld, |world| doctor(&args, world)),
        CommandOf::Completions(args) => launch(Start::Alone, |_| completions::<F>(&args)),
        CommandOf::Man(args) => launch(Start::Alone, |_| man::<F>(&args)),
        CommandOf::Launch(args) => start_others(|| args.run()),
        CommandOf::Slurm(command) => start_others(|| command.run()),
        CommandOf::Study(args) => start_others(|| args.run()),
        CommandOf::Compare(args) => start_others(|| args.run()),
        CommandOf::Hosts(command) => start_others(|| command.run()),
    }
}
