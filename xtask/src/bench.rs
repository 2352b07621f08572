//! `cargo xtask bench`: how fast the parts are on this machine.
//!
//! In: a subject and how to compute. Out: tables on standard output.
//! Invariant: builds come before the first measurement, so that none runs beside a compiler of ours.

use clap::{Args, Subcommand};

use crate::cargo::{self, Mpi};
use crate::setup;
use cluster::failure::Outcome;
use cluster::options::{self, Installing};
use cluster::process;

const DETAILS: &str = "\
Every kernel and shape with its time, GFLOP/s (direct convolution's operations), share of the multiply-add peak measured in
the same run, and GB/s; then `trainer bench` with the share of each kind of kernel in the step and what is outside them.
Run it on an idle machine. Example: cargo xtask bench kernels --threads 1 --dtype bf16";

/// What can be measured.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Every kernel and shape, then the training step that they make up.
    Kernels(KernelsArgs),
}

/// Flags of `cargo xtask bench kernels`.
#[derive(Debug, Args)]
#[command(after_help = DETAILS)]
pub(crate) struct KernelsArgs {
    /// Network of the step.
    #[arg(long, value_name = "NAME", default_value = "resnet20")]
    model: String,
    /// Images of a step.
    #[arg(long, value_name = "N", default_value = "128", value_parser = options::count)]
    batch: usize,
    /// Compute threads.
    #[arg(long, value_name = "N", default_value = "1", value_parser = options::count)]
    threads: usize,
    /// Of activations.
    #[arg(long, value_name = "DTYPE", default_value = "f32", value_parser = ["f32", "bf16"])]
    dtype: String,
    /// How convolutions are computed.
    #[arg(long, value_name = "ALGORITHM", default_value = "auto", value_parser = ["auto", "direct"])]
    convolution: String,
    /// Instruction set.
    #[arg(long, value_name = "SET", default_value = "auto", value_parser = ["auto", "avx512", "avx2", "portable"])]
    cpu: String,
    #[command(flatten)]
    installing: Installing,
}

impl BenchCommand {
    pub(crate) fn run(&self) -> Outcome {
        let BenchCommand::Kernels(args) = self;
        args.run()
    }
}

impl KernelsArgs {
    fn run(&self) -> Outcome {
        let (batch, threads) = (self.batch.to_string(), self.threads.to_string());
        let shared = [
            "--threads",
            &threads,
            "--dtype",
            &self.dtype,
            "--convolution",
            &self.convolution,
            "--cpu",
            &self.cpu,
        ];
        let found = setup::run(self.installing)?;
        let build = cargo::command(&[
            "build",
            "--release",
            "-p",
            "lockstep-kernels",
            "--example",
            "kernels",
        ]);
        let kernels = cargo::executable(build, "kernels", false)?;
        let trainer = cargo::trainer(Mpi::of(&found), "release")?;

        let mut command = std::process::Command::new(kernels);
        command.args(["--batch", &batch]).args(shared);
        process::run(command)?;
        let mut command = std::process::Command::new(trainer);
        command.args([
            "bench",
            "--device",
            "flex",
            "--steps",
            "12",
            "--model",
            &self.model,
        ]);
        command.args(["--batch-size-per-rank", &batch]).args(shared);
        process::run(command)
    }
}
