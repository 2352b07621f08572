//! `cargo xtask setup`: finds what is missing on this machine and installs it where it may.
//!
//! In: the machine. Out: [`Found`] after the installation, and a report a person can act on.
//! Invariant: without MPI everything still builds and trains on one process; that is said aloud, never silent.

use clap::Args;

use crate::cargo;
use crate::mpi_choice::MpiChoice;
use crate::packages::{self, Installer, Need, Privilege};
use crate::probe::Found;
use cluster::failure::{Failure, Outcome};
use cluster::options::Installing;
use cluster::probe;
use cluster::process;

const DETAILS: &str = "\
Looked for: a C compiler, an MPI to build with (mpicc and mpi.h, of any MPI), mpirun, libclang.
On Debian and Ubuntu the missing packages are installed with apt-get, as root or by sudo without a password;
elsewhere the exact command is printed. Without MPI training works on one process.
LOCKSTEP_NO_INSTALL=1 does the same as --no-install, also for the other commands.
MPICC, MPIRUN, MPI_PKG_CONFIG and LIBCLANG_PATH point to an MPI, its launcher or a libclang in unusual places. --mpi mpich
installs MPICH beside the MPI that is there, and prints the variables that build with it and start with it.";

/// Flags of `cargo xtask setup`.
#[derive(Debug, Args)]
#[command(after_help = DETAILS)]
pub(crate) struct SetupArgs {
    #[command(flatten)]
    mpi: MpiChoice,
    #[command(flatten)]
    installing: Installing,
}

impl SetupArgs {
    pub(crate) fn run(&self) -> Outcome {
        self.mpi.go_on_with(self.installing)?;
        run(self.installing).map(drop)
    }
}

/// Looks, installs where that is allowed, looks again, and reports.
pub(crate) fn run(installing: Installing) -> Outcome<Found> {
    let mut found = Found::look();
    let needs = missing(&found);
    if !needs.is_empty() {
        provide(&needs, installing);
        found = Found::look();
    }
    report(&found);
    if found.c_compiler.is_none() {
        let text = "no C compiler found, and Rust links with one: install it (for example gcc), then run this again";
        return Err(Failure::Failed(text.to_owned()));
    }
    Ok(found)
}

/// Whether cargo has this component of the toolchain, added by rustup where that is allowed.
pub(crate) fn has_component(installing: Installing, component: &str, subcommand: &str) -> bool {
    let is_there = || process::answer(cargo::program(), &[subcommand, "--version"]).is_some();
    if is_there() {
        return true;
    }
    if !installing.no_install && probe::program("rustup").is_some() {
        let mut command = std::process::Command::new("rustup");
        command.args(["component", "add", component]);
        return process::run(command).is_ok() && is_there();
    }
    false
}

fn missing(found: &Found) -> Vec<Need> {
    let candidates = [
        (found.c_compiler.is_none(), Need::CCompiler),
        (found.mpi.is_none(), Need::MpiDevelopment),
        // A cluster that starts jobs by its scheduler alone has an MPI and no mpirun; nothing is missing there.
        (
            found.mpirun.is_none() && probe::program("srun").is_none(),
            Need::Mpirun,
        ),
        (found.libclang.is_none(), Need::Libclang),
    ];
    candidates
        .into_iter()
        .filter(|(is_missing, _)| *is_missing)
        .map(|(_, need)| need)
        .collect()
}

/// Installs these where that is allowed; what stands in the way is said.
pub(crate) fn provide(needs: &[Need], installing: Installing) {
    let Some(installer) = Installer::find() else {
        println!(
            "missing: {needs:?}, and no package manager known to us: ask for an MPI with its headers and libclang"
        );
        return;
    };
    let advice = installer.advice(needs);
    let privilege = Privilege::find();
    if installing.no_install {
        println!("missing, and installing is forbidden here; the command would be:\n  {advice}");
    } else if installer != Installer::AptGet || privilege == Privilege::None {
        println!("missing, and not ours to install here; please run:\n  {advice}");
    } else {
        println!("installing: {advice}");
        if let Err(failure) = packages::install(needs, privilege) {
            println!(
                "the installation did not succeed ({failure}); going on without; please run:\n  {advice}"
            );
        }
    }
}

fn report(found: &Found) {
    let line = |what: &str, value: Option<String>| {
        println!(
            "{:<12}{}",
            what,
            value.unwrap_or_else(|| "missing".to_owned())
        );
    };
    line(
        "C compiler",
        found
            .c_compiler
            .as_ref()
            .map(|path| path.display().to_string()),
    );
    line("MPI", found.mpi.clone());
    line("mpirun", found.mpirun.as_ref().map(ToString::to_string));
    line(
        "libclang",
        found
            .libclang
            .as_ref()
            .map(|path| path.display().to_string()),
    );
    if !found.can_build_mpi() {
        println!("going on without MPI: training works, on one process");
    } else if found.mpirun.is_none() {
        println!(
            "the trainer is built with MPI, but only the cluster's own launcher (srun) can start several ranks"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nothing() -> Found {
        Found {
            c_compiler: None,
            mpi: None,
            mpirun: None,
            libclang: None,
        }
    }

    #[test]
    fn everything_absent_is_missing_in_a_fixed_order() {
        let needs = missing(&nothing());
        assert_eq!(needs.first(), Some(&Need::CCompiler));
        assert!(needs.contains(&Need::MpiDevelopment) && needs.contains(&Need::Libclang));
    }

    #[test]
    fn an_mpi_of_any_make_counts_as_present() {
        let found = Found {
            mpi: Some("/opt/mpich/bin/mpicc".into()),
            libclang: Some("/opt/llvm/lib".into()),
            ..nothing()
        };
        assert!(found.can_build_mpi());
        assert!(!missing(&found).contains(&Need::MpiDevelopment));
    }
}
