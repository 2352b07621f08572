//! `cargo xtask dist`: what a release gives to its users.
//!
//! In: the workspace, an MPI to build with. Out: `target/dist` with a tarball for each way to build the program, without MPI and with it,
//! and their checksums; with `--crates` the packages of the crates that can be published. Nothing is uploaded.
//! Invariant: the same commit and compiler give the same lists and file dates; what a program needs is read from the program, which has no
//! path of the machine that built it.

mod bill;
mod crates;
mod dependencies;
mod licences;
mod tarball;

use std::fs;
use std::path::Path;
use std::process::Command;

use clap::Args;

use crate::at::at;
use crate::cargo::{self, Mpi};
use crate::setup;
use cluster::failure::{Failure, Outcome};
use cluster::options::Installing;
use cluster::process;

/// Whose programs are packed: built, tested and run there.
const TARGET: &str = "x86_64-unknown-linux-gnu";
const CHECKSUMS: &str = "SHA256SUMS";

const DETAILS: &str = "\
Builds the trainer in the profile dist (15 to 20 minutes on 2 cores when new), once without MPI and once with the MPI that mpicc
names, and packs each as target/dist/lockstep-VERSION-x86_64-linux[-mpi].tar.gz: the program, completions for shells, man pages,
the licences of all crates inside, and a bill of materials (CycloneDX 1.5). SHA256SUMS has the checksums. It prints which glibc and
which libraries each program needs, read from its symbols: build on an old system to serve many.";

/// Flags of `cargo xtask dist`.
#[derive(Debug, Args)]
#[command(after_help = DETAILS)]
pub(crate) struct DistArgs {
    /// Only the tarball of the program without MPI.
    #[arg(long)]
    without_mpi: bool,
    /// How the program is built; dev, with paths of this machine, only to try the packing.
    #[arg(long, value_name = "NAME", default_value = "dist", value_parser = ["dist", "dev"])]
    profile: String,
    /// Instead package the crates that can be published.
    #[arg(long, conflicts_with = "without_mpi")]
    crates: bool,
    /// Build each package as it would be published; compiles burn anew.
    #[arg(long, requires = "crates")]
    verify: bool,
    #[command(flatten)]
    installing: Installing,
}

impl DistArgs {
    pub(crate) fn run(&self) -> Outcome {
        if self.crates {
            return crates::package(self.verify);
        }
        if !cfg!(all(
            target_arch = "x86_64",
            target_os = "linux",
            target_env = "gnu"
        )) {
            return Err(Failure::Usage(format!(
                "dist: programs are packed on {TARGET} only, this is another machine"
            )));
        }
        let found = setup::run(self.installing)?;
        if !self.without_mpi && Mpi::of(&found) == Mpi::Without {
            return Err(Failure::Failed(
                "dist: no MPI to build with, expected mpicc and libclang: `cargo xtask setup` installs or names them, \
                 --without-mpi leaves that tarball out"
                    .to_owned(),
            ));
        }
        let folder = cargo::target_folder().join("dist");
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).map_err(at(&folder))?;
        let mut tarballs = vec![tarball::make(&folder, Mpi::Without, &self.profile)?];
        if !self.without_mpi {
            tarballs.push(tarball::make(&folder, Mpi::With, &self.profile)?);
        }
        sum(&folder, &tarballs)
    }
}

/// The file by which `sha256sum --check` judges a download.
fn sum(folder: &Path, tarballs: &[String]) -> Outcome {
    let mut command = Command::new("sha256sum");
    let output = command
        .args(tarballs)
        .current_dir(folder)
        .output()
        .map_err(|error| process::cannot_start(&command, &error))?;
    if !output.status.success() {
        return Err(Failure::Failed(format!("sha256sum: {}", output.status)));
    }
    let path = folder.join(CHECKSUMS);
    fs::write(&path, &output.stdout).map_err(at(&path))?;
    print!(
        "{}\n{}",
        path.display(),
        String::from_utf8_lossy(&output.stdout)
    );
    Ok(())
}
