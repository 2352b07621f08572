//! `cargo xtask setup`: finds missing tools on this machine and installs them if allowed.
//!
//! In: the machine. Out: [`Found`] after the installation, and a report.
//! Invariant: without MPI everything builds and trains on one process, and the report names that.

use clap::Args;
use cluster::failure::{Failure, Outcome};
use cluster::options::Installing;
use cluster::probe;

use crate::mpi_choice::MpiChoice;
use crate::packages::{self, APT_GET, Installer, Need, Privilege};
use crate::probe::Found;

const DETAILS: &str = "\
Looks for a C compiler, an MPI to build with (mpicc and mpi.h, of any MPI), mpirun, and libclang.
On Debian and Ubuntu, apt-get installs missing packages, as root or by sudo without a password;
elsewhere setup prints the exact command. Without MPI, training works on one process.
LOCKSTEP_NO_INSTALL=1 has the effect of --no-install, also for the other commands.
MPICC, MPIRUN, MPI_PKG_CONFIG and LIBCLANG_PATH name an MPI, its launcher or a libclang in unusual
places. --mpi mpich installs MPICH next to another MPI, and prints the variables to use it.";

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
        self.mpi.restart_with(self.installing)?;
        run(self.installing).map(drop)
    }
}

/// Looks for tools, installs missing ones if allowed, looks again, and reports.
pub(crate) fn run(installing: Installing) -> Outcome<Found> {
    let mut found = Found::look();
    let needs = missing(&found);
    if !needs.is_empty() {
        provide(&needs, installing);
        found = Found::look();
    }
    report(&found);
    if found.c_compiler.is_none() {
        let text = "no C compiler, which Rust links with: install one (for example gcc) and repeat";
        return Err(Failure::Failed(text.to_owned()));
    }
    Ok(found)
}

fn missing(found: &Found) -> Vec<Need> {
    // A cluster may start jobs only by its scheduler.
    let has_launcher = found.mpirun.is_some() || probe::program("srun").is_some();
    let needs = [
        (found.c_compiler.is_some(), Need::CCompiler),
        (found.mpi.is_some(), Need::MpiDevelopment),
        (has_launcher, Need::Mpirun),
        (found.libclang.is_some(), Need::Libclang),
    ];
    let missing = needs.into_iter().filter(|(exists, _)| !exists);
    missing.map(|(_, need)| need).collect()
}

/// Installs packages if allowed; otherwise prints the command.
pub(crate) fn provide(needs: &[Need], installing: Installing) {
    let Some(installer) = Installer::find() else {
        println!("missing: {needs:?}, and no known package manager: install them by hand");
        return;
    };
    let advice = installer.advice(needs);
    if installing.no_install {
        println!("missing; --no-install forbids this command:\n  {advice}");
    } else if *installer != APT_GET || Privilege::find() == Privilege::None {
        println!("missing; please run:\n  {advice}");
    } else {
        println!("installing: {advice}");
        if let Err(failure) = packages::install(needs) {
            println!("{failure}; continuing without; please run:\n  {advice}");
        }
    }
}

fn report(found: &Found) {
    let path = |path: &Option<std::path::PathBuf>| {
        let path = path.as_ref();
        path.map(|path| path.display().to_string())
    };
    for (tool, value) in [
        ("C compiler", path(&found.c_compiler)),
        ("MPI", found.mpi.clone()),
        ("mpirun", found.mpirun.as_ref().map(ToString::to_string)),
        ("libclang", path(&found.libclang)),
    ] {
        println!("{tool:<12}{}", value.as_deref().unwrap_or("missing"));
    }
    if !found.can_build_mpi() {
        println!("continuing without MPI: training works on one process");
    } else if found.mpirun.is_none() {
        println!("the trainer is built with MPI, but only srun can start several ranks");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_absent_is_missing_in_a_fixed_order_and_any_mpi_counts() {
        let needs = missing(&Found::default());
        assert_eq!(needs.first(), Some(&Need::CCompiler));
        assert!(needs.contains(&Need::MpiDevelopment) && needs.contains(&Need::Libclang));
        let found = Found {
            mpi: Some("/opt/mpich/bin/mpicc".into()),
            libclang: Some("/opt/llvm/lib".into()),
            ..Found::default()
        };
        assert!(found.can_build_mpi() && !missing(&found).contains(&Need::MpiDevelopment));
    }
}
