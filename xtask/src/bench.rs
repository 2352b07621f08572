//! `cargo xtask bench`: how fast the parts are on this machine.
//!
//! In: a subject and how to compute. Out: tables on standard output.
//! Invariant: builds come before the first measurement, so that none runs beside a compiler of ours.

use crate::arguments::{Arguments, Command, Flag};
use crate::cargo::{self, Mpi};
use crate::failure::Outcome;
use crate::process;
use crate::setup::{self, NO_INSTALL};

pub(crate) const COMMAND: Command = Command {
    name: "bench",
    summary: "Measure the kernels one by one, then the training step they make up.",
    details: "\
Every kernel and shape with its time, GFLOP/s (direct convolution's operations), share of the multiply-add peak measured in
the same run, and GB/s; then `trainer bench` with the share of each kind of kernel in the step and what is outside them.
Run it on an idle machine. Example: cargo xtask bench kernels --threads 1 --dtype bf16",
    subjects: &["kernels"],
    parts: &[],
    object: None,
    flags: &[
        Flag { name: "--model", value: Some("NAME"), help: "network of the step (default resnet20)" },
        Flag { name: "--batch", value: Some("N"), help: "images of a step (default 128)" },
        Flag { name: "--threads", value: Some("N"), help: "compute threads (default 1)" },
        Flag { name: "--dtype", value: Some("DTYPE"), help: "f32 or bf16 (default f32)" },
        Flag { name: "--convolution", value: Some("ALGORITHM"), help: "auto or direct (default auto)" },
        Flag { name: "--cpu", value: Some("SET"), help: "auto, avx512, avx2 or portable (default auto)" },
        NO_INSTALL,
    ],
    passed_on: None,
    run,
};

fn run(arguments: Arguments) -> Outcome {
    let batch = arguments.count("--batch")?.unwrap_or(128).to_string();
    let threads = arguments.count("--threads")?.unwrap_or(1).to_string();
    let of = |flag: &str, default: &str| arguments.value(flag).unwrap_or(default).to_owned();
    let common = [
        ["--threads".to_owned(), threads],
        ["--dtype".to_owned(), of("--dtype", "f32")],
        ["--convolution".to_owned(), of("--convolution", "auto")],
        ["--cpu".to_owned(), of("--cpu", "auto")],
    ]
    .concat();
    let found = setup::run(&arguments)?;
    let mpi = if found.can_build_mpi() { Mpi::With } else { Mpi::Without };

    let build = cargo::command(&["build", "--release", "-p", "kernels", "--example", "kernels"]);
    let kernels = cargo::executable(build, "kernels", false)?;
    let mut build = cargo::command(&["build", "--release", "-p", "trainer"]);
    build.args(mpi.trainer_features());
    let trainer = cargo::executable(build, "trainer", false)?;

    let mut command = std::process::Command::new(kernels);
    command.args(["--batch", &batch]).args(&common);
    process::run(command)?;
    let mut command = std::process::Command::new(trainer);
    command.args(["bench", "--device", "flex", "--steps", "12", "--model", &of("--model", "resnet20")]);
    command.args(["--batch-size-per-rank", &batch]).args(&common);
    process::run(command)
}
