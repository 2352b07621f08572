//! The system's package managers: what our needs are called there, and installing with apt-get.
//!
//! In: which of our needs are missing. Out: the exact command, run where it may be run.
//! Invariant: only apt-get is ever run by us; for the others, which are not part of our tests, the command is advice.

use std::path::Path;
use std::process::{Command, Stdio};

use cluster::failure::Outcome;
use cluster::probe;
use cluster::process;

/// Something that the system provides.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Need {
    CCompiler,
    MpiDevelopment,
    Mpirun,
    /// MPICH with its launcher and headers, also beside another MPI.
    Mpich,
    Libclang,
    /// Controller, node daemons and clients of a small cluster, with the PMIx by which it starts MPI programs.
    Slurm,
    /// A Chromium that runs headless.
    Browser,
}

/// A package manager of this machine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Installer {
    AptGet,
    Dnf,
    Zypper,
    Pacman,
    Brew,
}

/// How we may act as root.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Privilege {
    Root,
    Sudo,
    None,
}

impl Installer {
    pub(crate) fn find() -> Option<Self> {
        let known = [
            Installer::AptGet,
            Installer::Dnf,
            Installer::Zypper,
            Installer::Pacman,
            Installer::Brew,
        ];
        known
            .into_iter()
            .find(|installer| probe::program(installer.program()).is_some())
    }

    fn program(self) -> &'static str {
        match self {
            Installer::AptGet => "apt-get",
            Installer::Dnf => "dnf",
            Installer::Zypper => "zypper",
            Installer::Pacman => "pacman",
            Installer::Brew => "brew",
        }
    }

    fn package(self, need: Need) -> &'static [&'static str] {
        match (self, need) {
            (Installer::AptGet, Need::CCompiler) => &["gcc", "libc6-dev"],
            (Installer::AptGet, Need::MpiDevelopment) => &["libopenmpi-dev"],
            (Installer::AptGet, Need::Mpirun) => &["openmpi-bin"],
            (Installer::AptGet, Need::Mpich) => &["mpich", "libmpich-dev"],
            (Installer::Dnf | Installer::Zypper, Need::Mpich) => &["mpich", "mpich-devel"],
            (Installer::Pacman | Installer::Brew, Need::Mpich) => &["mpich"],
            (Installer::AptGet, Need::Libclang) => &["libclang-dev"],
            // Slurm opens libpmix.so by the name that only the development package has.
            (Installer::AptGet, Need::Slurm) => &["slurm-wlm", "munge", "libpmix-dev"],
            (
                Installer::AptGet
                | Installer::Dnf
                | Installer::Zypper
                | Installer::Pacman
                | Installer::Brew,
                Need::Browser,
            ) => &["chromium"],
            (Installer::Dnf | Installer::Zypper | Installer::Pacman, Need::CCompiler) => &["gcc"],
            (Installer::Dnf, Need::MpiDevelopment) => &["openmpi-devel"],
            (Installer::Dnf, Need::Mpirun) => &["openmpi"],
            (Installer::Dnf | Installer::Zypper, Need::Libclang) => &["clang-devel"],
            (Installer::Dnf, Need::Slurm) => {
                &["slurm-slurmctld", "slurm-slurmd", "munge", "pmix-devel"]
            }
            (Installer::Zypper, Need::Slurm) => &["slurm", "slurm-node", "munge", "pmix-devel"],
            (Installer::Pacman, Need::Slurm) => &["slurm-llnl", "munge", "openpmix"],
            (Installer::Brew, Need::Slurm) => &[],
            (Installer::Zypper, Need::MpiDevelopment) => &["openmpi4-devel"],
            (Installer::Zypper, Need::Mpirun) => &["openmpi4"],
            (Installer::Pacman, Need::MpiDevelopment | Need::Mpirun) => &["openmpi"],
            (Installer::Pacman, Need::Libclang) => &["clang"],
            (Installer::Brew, Need::CCompiler) => &["gcc"],
            (Installer::Brew, Need::MpiDevelopment | Need::Mpirun) => &["open-mpi"],
            (Installer::Brew, Need::Libclang) => &["llvm"],
        }
    }

    fn packages(self, needs: &[Need]) -> Vec<&'static str> {
        let mut packages: Vec<&str> = needs
            .iter()
            .flat_map(|need| self.package(*need))
            .copied()
            .collect();
        packages.dedup();
        packages
    }

    /// What a person would type.
    pub(crate) fn advice(self, needs: &[Need]) -> String {
        let packages = self.packages(needs).join(" ");
        match self {
            Installer::AptGet => format!("sudo apt-get install --no-install-recommends {packages}"),
            // Both put their MPI beside the PATH, for environment modules to add.
            Installer::Dnf => {
                format!("sudo dnf install {packages} && module load mpi/openmpi-x86_64")
            }
            Installer::Zypper => {
                format!("sudo zypper install {packages} && module load gnu-openmpi")
            }
            Installer::Pacman => format!("sudo pacman -S --needed {packages}"),
            Installer::Brew => format!("brew install {packages}"),
        }
    }
}

impl Privilege {
    pub(crate) fn find() -> Self {
        if process::is_root() {
            Privilege::Root
        } else if process::answer("sudo", &["-n", "true"]).is_some() {
            Privilege::Sudo
        } else {
            Privilege::None
        }
    }
}

/// Installs with apt-get, refreshing its lists where they lack a package or have grown old.
pub(crate) fn install(needs: &[Need], privilege: Privilege) -> Outcome {
    let packages = Installer::AptGet.packages(needs);
    let install = || {
        let mut command = apt_get(privilege);
        command
            .args(["install", "--yes", "--no-install-recommends"])
            .args(&packages);
        process::run(if needs.contains(&Need::Slurm) {
            without_daemons(&command, privilege)
        } else {
            command
        })
    };
    let update = || {
        let mut command = apt_get(privilege);
        command.arg("update");
        process::run(command)
    };
    let lists_are_there = packages.iter().all(|package| has_candidate(package));
    if !lists_are_there {
        update()?;
        return install();
    }
    // Old lists name versions that the servers no longer have; new lists mend that.
    install().or_else(|_| update().and_then(|()| install()))
}

fn apt_get(privilege: Privilege) -> Command {
    let mut command = if privilege == Privilege::Sudo {
        let mut command = Command::new("sudo");
        command.args(["-n", "env", "DEBIAN_FRONTEND=noninteractive", "apt-get"]);
        command
    } else {
        let mut command = Command::new("apt-get");
        command.env("DEBIAN_FRONTEND", "noninteractive");
        command
    };
    // Another apt-get may be at work, as on a machine that has just been started.
    command.args(["-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=3"]);
    command
}

/// The command, while packages may start no daemon: what they start by themselves would outlive us, and has no configuration.
fn without_daemons(command: &Command, privilege: Privilege) -> Command {
    // The file is Debian's own question whether a daemon may start; somebody else's answer is left as it is.
    const SCRIPT: &str = "policy=/usr/sbin/policy-rc.d
        if [ -e $policy ]; then exec \"$@\"; fi
        trap 'rm -f $policy' EXIT
        printf '#!/bin/sh\\nexit 101\\n' >$policy && chmod 755 $policy && \"$@\"";
    let mut outer = as_root("sh", privilege);
    outer
        .args(["-c", SCRIPT, "sh"])
        .arg(command.get_program())
        .args(command.get_args());
    for (name, value) in command.get_envs() {
        outer.env(name, value.unwrap_or_default());
    }
    outer
}

/// A program started as root.
pub(crate) fn as_root(program: &str, privilege: Privilege) -> Command {
    if privilege != Privilege::Sudo {
        return Command::new(program);
    }
    let mut command = Command::new("sudo");
    command.args(["-n", program]);
    command
}

pub(crate) fn succeeds(command: &mut Command) -> bool {
    let silent = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    silent.status().is_ok_and(|status| status.success())
}

fn has_candidate(package: &str) -> bool {
    Path::new("/var/lib/apt/lists").is_dir()
        && process::answer("apt-cache", &["show", "--no-all-versions", package])
            .is_some_and(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Need; 4] = [
        Need::CCompiler,
        Need::MpiDevelopment,
        Need::Mpirun,
        Need::Libclang,
    ];

    #[test]
    fn the_advice_names_exactly_what_is_missing() {
        let needs = [Need::MpiDevelopment, Need::Mpirun, Need::Libclang];
        let expected =
            "sudo apt-get install --no-install-recommends libopenmpi-dev openmpi-bin libclang-dev";
        assert_eq!(Installer::AptGet.advice(&needs), expected);
        assert_eq!(
            Installer::AptGet.advice(&needs[1..2]),
            "sudo apt-get install --no-install-recommends openmpi-bin"
        );
    }

    #[test]
    fn a_package_that_meets_two_needs_is_named_once() {
        assert_eq!(
            Installer::Pacman.packages(&ALL),
            ["gcc", "openmpi", "clang"]
        );
        assert_eq!(Installer::Brew.packages(&ALL[1..]), ["open-mpi", "llvm"]);
    }

    #[test]
    fn slurm_is_installed_with_the_answer_that_no_daemon_may_start() {
        let mut command = apt_get(Privilege::Root);
        command.args(["install", "slurm-wlm"]);
        let line = process::shown(&without_daemons(&command, Privilege::Root));
        assert!(
            line.starts_with("DEBIAN_FRONTEND=noninteractive sh -c 'policy=/usr/sbin/policy-rc.d"),
            "{line}"
        );
        assert!(line.ends_with("install slurm-wlm"), "{line}");
    }

    #[test]
    fn sudo_is_never_asked_for_a_password() {
        let line = process::shown(apt_get(Privilege::Sudo).arg("update"));
        assert!(
            line.starts_with("sudo -n env DEBIAN_FRONTEND=noninteractive apt-get"),
            "{line}"
        );
    }
}
