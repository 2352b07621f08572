//! `cargo xtask ci`: what a continuous-integration machine runs.
//!
//! In: the workspace. Out: as `cargo xtask test`, or the check of the CUDA build.

use crate::arguments::{Arguments, Command, Flag};
use crate::cuda;
use crate::failure::Outcome;
use crate::setup::NO_INSTALL;
use crate::test_stages;

pub(crate) const COMMAND: Command = Command {
    name: "ci",
    summary: "Run all checks as `test` does, or check the CUDA build.",
    details: "\
--cuda builds the trainer with burn's CUDA backend and without LLVM, which needs no network beyond the crates, into
target/cuda-offline (about 25 minutes on 2 cores), and starts it: with a GPU it must compute, without one it must
say so in a clear error.",
    subjects: &[],
    parts: &[],
    object: None,
    flags: &[Flag { name: "--cuda", value: None, help: "check the CUDA build instead" }, NO_INSTALL],
    passed_on: None,
    run,
};

fn run(arguments: Arguments) -> Outcome {
    if arguments.has("--cuda") { cuda::run(&arguments) } else { test_stages::run(&arguments) }
}
