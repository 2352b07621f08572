//! `cargo xtask dist` and `cargo xtask gpu-check`: files for other machines, packed by scripts.
//!
//! In: the workspace, tools of this machine. Out: `target/dist`, `target/package` or
//! `target/gpu-check`. Invariant: nothing is uploaded.

use std::os::unix::process::CommandExt;
use std::path::{self, PathBuf};

use clap::Args;
use cluster::failure::{Outcome, failed, usage};
use cluster::options::Installing;
use cluster::process;

use crate::cargo::{self, Mpi};
use crate::setup;

const DIST: &str = "\
Builds the trainer in the profile dist (15 to 20 minutes on 2 cores if nothing is compiled yet), once
without MPI and once with the MPI of mpicc, and packs each as
target/dist/lockstep-VERSION-x86_64-linux[-mpi].tar.gz: the program, completions for shells, man pages,
the licences of all crates in it, and a bill of materials (CycloneDX 1.5). SHA256SUMS has the
checksums. NEEDS names the glibc and the libraries that a program needs: build on an old system.";

/// Flags of `cargo xtask dist`.
#[derive(Debug, Args)]
#[command(after_help = DIST)]
pub(crate) struct DistArgs {
    /// Make only the tarball without MPI
    #[arg(long)]
    without_mpi: bool,
    /// Package the published crates instead
    #[arg(long, conflicts_with = "without_mpi")]
    crates: bool,
    /// Build each package as it would be published; compiles burn again
    #[arg(long, requires = "crates")]
    verify: bool,
    #[command(flatten)]
    installing: Installing,
}

impl DistArgs {
    pub(crate) fn run(&self) -> Outcome {
        let mut command = cargo::script("dist.sh");
        if self.crates {
            command.arg("crates");
            command.args((!self.verify).then_some("--no-verify"));
            return process::run(command);
        }
        if !cfg!(all(target_arch = "x86_64", target_env = "gnu")) {
            return Err(usage!(
                "dist: programs are packed on x86-64 Linux with glibc only"
            ));
        }
        let found = setup::run(self.installing)?;
        command.args(["tarballs", &Mpi::Without.features().join(" ")]);
        if !self.without_mpi {
            if Mpi::of(&found) == Mpi::Without {
                return Err(failed!(
                    "dist: no MPI to build with (expected mpicc and libclang). Run `cargo xtask setup`, \
                            or add --without-mpi"
                ));
            }
            command.arg("mpi");
        }
        process::run(command)
    }
}

const GPU_CHECK: &str = "\
Builds the trainer for CUDA without LLVM, as `test --only cuda` does (about 25 minutes on 2 cores if
nothing is compiled yet), and packs it with the scripts of lab/peers/gpu into target/gpu-check. With a GPU
it runs them; otherwise copy the folder to a machine with one and run ./gpu-check.sh there: eight
minutes at most, four with --quick. With Open MPI here, the folder has its launcher and libraries, for
two processes on one GPU. docs/reference/gpu-check.md explains the output. --data-dir names a folder with
resnet20-12fca82f.th and CIFAR-10's test_batch.bin, for the check known-answer.";

/// Flags of `cargo xtask gpu-check`.
#[derive(Debug, Args)]
#[command(after_help = GPU_CHECK)]
pub(crate) struct GpuCheckArgs {
    /// Measure only ResNet-20
    #[arg(long)]
    quick: bool,
    /// Folder with published weights and images to pack
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    #[command(flatten)]
    installing: Installing,
}

impl GpuCheckArgs {
    pub(crate) fn run(&self) -> Outcome {
        let found = setup::run(self.installing)?;
        let mut command = cargo::script("checks.sh");
        command.arg("gpu_check");
        command.env("FEATURES", Mpi::of(&found).features().join(" "));
        command.arg(self.data_dir.as_ref().map_or("".into(), |folder| {
            path::absolute(folder).unwrap_or_else(|_| folder.clone())
        }));
        command.args(self.quick.then_some("--quick"));
        let error = command.exec();
        Err(process::cannot_start(&command, &error))
    }
}
