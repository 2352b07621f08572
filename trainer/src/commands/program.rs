//! The program of a task: parses flags, joins the world, runs one command, exits.
//!
//! In: the program's arguments. Out: its exit code.

use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::commands::{
    bench::bench,
    doctor::doctor,
    eval::eval,
    man::{completions, man},
    netbench::netbench,
    predict::{Predictions, predict},
    predict_scaling::predict_scaling,
    report::{report, watch},
    shard::shard,
    train::{config, train},
    verify::verify,
    verify_run::verify_run,
};
use crate::config::Family;
use crate::config::cli::{CliOf, CommandOf, PredictArgs};
use crate::model::family::ModelFamily;
use crate::task::{Classification, Task};
use crate::world::launch::{Start, launch, start_others};
use crate::world::ranks::World;

/// Runs the typed command with image classifiers of the family `F`. `verify` checks the device with
/// residual networks in every program. If a flag of `F` has the name of a general flag, only
/// reports the conflict.
///
/// Call this function once, at the start of `main`: it installs the signal handlers.
pub fn program<F: ModelFamily>() -> ExitCode {
    run::<Classification<F>>(predict::<F>)
}

/// Runs the typed command with the task `T`, as [`program`] does with image classifiers. A task has
/// no `predict`.
pub fn task_program<T: Task>() -> ExitCode {
    run::<T>(|_, _| {
        bail!(
            "predict: expected a program of image classifiers, got one of the task {}; load the checkpoint in a program of your own",
            T::NAME
        )
    })
}

fn run<T: Task>(predict: fn(&PredictArgs, &World) -> Result<Predictions>) -> ExitCode {
    if let Err(taken) = Family::expect_own_names::<T::Args>() {
        return launch(Start::World, |_| Err::<(), _>(taken.into()));
    }
    match CliOf::<T::Args>::typed(T::HAS_IMAGES).into_command() {
        CommandOf::Train(args) => launch(Start::World, |world| {
            train::<T>(&args.into_args()?, world).map(drop)
        }),
        CommandOf::Eval(args) => launch(Start::World, |world| {
            eval::<T>(&args.into_args()?, world).map(drop)
        }),
        CommandOf::Predict(args) => launch(Start::Alone, |world| {
            predict(&args, world).map(|predictions| predictions.exit_code())
        }),
        CommandOf::Bench(args) => {
            launch(Start::World, |world| bench::<T>(&args.into_args()?, world))
        }
        CommandOf::Config(args) => {
            launch(Start::Apart, |world| config::<T>(&args.into_args()?, world))
        }
        CommandOf::Netbench(args) => launch(Start::World, |world| netbench(&args, world)),
        CommandOf::PredictScaling(args) => launch(Start::World, |world| {
            predict_scaling::<T>(&args.into_args()?, world)
        }),
        CommandOf::Verify(args) => launch(Start::Alone, |world| verify(&args, world)),
        CommandOf::VerifyRun(args) => launch(Start::World, |world| verify_run::<T>(&args, world)),
        CommandOf::Report(args) => launch(Start::Alone, |world| report(&args, world)),
        CommandOf::Watch(args) => launch(Start::Alone, |world| watch(&args, world)),
        CommandOf::Shard(args) => launch(Start::Alone, |world| shard(&args, world)),
        CommandOf::Doctor(args) => launch(Start::AnyWorld, |world| doctor(&args, world)),
        CommandOf::Completions(args) => launch(Start::Alone, |_| completions::<T>(&args)),
        CommandOf::Man(args) => launch(Start::Alone, |_| man::<T>(&args)),
        CommandOf::Launch(args) => start_others(|| args.run()),
        CommandOf::Slurm(command) => start_others(|| command.run()),
        CommandOf::Study(args) => start_others(|| args.run()),
        CommandOf::Compare(args) => start_others(|| args.run()),
        CommandOf::Hosts(command) => start_others(|| command.run()),
    }
}
