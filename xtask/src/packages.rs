//! Package managers: names of the packages, and installation by apt-get.
//!
//! In: missing needs. Out: the exact command, run if allowed.
//! Invariant: xtask runs only apt-get; for the others, which no test covers, the command is advice.

use std::path::Path;
use std::process::{Command, Stdio};

use cluster::failure::Outcome;
use cluster::probe;
use cluster::process;

/// Something that the system provides; the order is that of [`Installer::packages`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Need {
    CCompiler,
    MpiDevelopment,
    Mpirun,
    /// MPICH with launcher and headers, also next to another MPI.
    Mpich,
    Libclang,
    /// Controller, node daemons, clients, and the PMIx by which Slurm starts MPI programs.
    Slurm,
    Browser,
}

/// A package manager.
#[derive(Debug, PartialEq)]
pub(crate) struct Installer {
    pub(crate) program: &'static str,
    install: &'static str,
    packages: [&'static str; 7],
    /// Command after the installation.
    then: &'static str,
}

pub(crate) const APT_GET: Installer = Installer {
    program: "apt-get",
    install: "sudo apt-get install --no-install-recommends",
    packages: [
        "gcc libc6-dev",
        "libopenmpi-dev",
        "openmpi-bin",
        "mpich libmpich-dev",
        "libclang-dev",
        // Slurm opens libpmix.so by a name that only the development package has.
        "slurm-wlm munge libpmix-dev",
        "chromium",
    ],
    then: "",
};

const INSTALLERS: [Installer; 5] = [
    APT_GET,
    // dnf and zypper install MPI outside PATH; environment modules add it.
    Installer {
        program: "dnf",
        install: "sudo dnf install",
        packages: [
            "gcc",
            "openmpi-devel",
            "openmpi",
            "mpich mpich-devel",
            "clang-devel",
            "slurm-slurmctld slurm-slurmd munge pmix-devel",
            "chromium",
        ],
        then: " && module load mpi/openmpi-x86_64",
    },
    Installer {
        program: "zypper",
        install: "sudo zypper install",
        packages: [
            "gcc",
            "openmpi4-devel",
            "openmpi4",
            "mpich mpich-devel",
            "clang-devel",
            "slurm slurm-node munge pmix-devel",
            "chromium",
        ],
        then: " && module load gnu-openmpi",
    },
    Installer {
        program: "pacman",
        install: "sudo pacman -S --needed",
        packages: [
            "gcc",
            "openmpi",
            "openmpi",
            "mpich",
            "clang",
            "slurm-llnl munge openpmix",
            "chromium",
        ],
        then: "",
    },
    Installer {
        program: "brew",
        install: "brew install",
        packages: [
            "gcc", "open-mpi", "open-mpi", "mpich", "llvm", "", "chromium",
        ],
        then: "",
    },
];

impl Installer {
    pub(crate) fn find() -> Option<&'static Self> {
        INSTALLERS
            .iter()
            .find(|installer| probe::program(installer.program).is_some())
    }

    fn packages(&self, needs: &[Need]) -> Vec<&'static str> {
        let lists = needs.iter().map(|need| self.packages[*need as usize]);
        let mut packages: Vec<&str> = lists.flat_map(str::split_whitespace).collect();
        packages.dedup();
        packages
    }

    /// Returns the command that a person would type.
    pub(crate) fn advice(&self, needs: &[Need]) -> String {
        let packages = self.packages(needs).join(" ");
        format!("{} {packages}{}", self.install, self.then)
    }
}

/// A way to act as root.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Privilege {
    Root,
    Sudo,
    None,
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

/// Returns a command that runs as root, by sudo if this user is not root.
pub(crate) fn as_root(program: &str) -> Command {
    as_root_by(Privilege::find(), program)
}

fn as_root_by(privilege: Privilege, program: &str) -> Command {
    if privilege != Privilege::Sudo {
        return Command::new(program);
    }
    let mut command = Command::new("sudo");
    command.args(["-n", program]);
    command
}

/// Runs a command without output.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let status = command.stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// Installs with apt-get; updates its lists if they lack a package or are old.
pub(crate) fn install(needs: &[Need]) -> Outcome {
    let privilege = Privilege::find();
    let packages = APT_GET.packages(needs);
    let update = || process::run(apt_get(privilege, &["update"]));
    let words = [
        &["install", "--yes", "--no-install-recommends"],
        &packages[..],
    ]
    .concat();
    let install = || process::run(apt_get(privilege, &words));
    if !packages.iter().all(|package| has_candidate(package)) {
        update()?;
        return install();
    }
    // Old lists name versions that the servers no longer have.
    install().or_else(|_| update().and_then(|()| install()))
}

/// Returns a command that installs without starting daemons, which would outlive xtask without a
/// configuration. Debian asks `policy-rc.d`; an existing one stays.
fn apt_get(privilege: Privilege, words: &[&str]) -> Command {
    const SCRIPT: &str = "policy=/usr/sbin/policy-rc.d
        if ! [ -e $policy ]; then
            trap 'rm -f $policy' EXIT
            printf '#!/bin/sh\\nexit 101\\n' >$policy && chmod 755 $policy
        fi
        DEBIAN_FRONTEND=noninteractive apt-get \"$@\"";
    let mut command = as_root_by(privilege, "sh");
    command.args(["-c", SCRIPT, "sh"]);
    // Another apt-get may run on a machine that has just started.
    command.args(["-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=3"]);
    command.args(words);
    command
}

fn has_candidate(package: &str) -> bool {
    let words = ["show", "--no-all-versions", package];
    Path::new("/var/lib/apt/lists").is_dir()
        && process::answer("apt-cache", &words).is_some_and(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_advice_names_exactly_what_is_missing_and_each_package_once() {
        let needs = [Need::MpiDevelopment, Need::Mpirun, Need::Libclang];
        let expected =
            "sudo apt-get install --no-install-recommends libopenmpi-dev openmpi-bin libclang-dev";
        assert_eq!(APT_GET.advice(&needs), expected);
        let advice = INSTALLERS.map(|installer| installer.advice(&needs[..2]));
        assert_eq!(advice[3], "sudo pacman -S --needed openmpi");
        assert!(advice[1].ends_with("openmpi-devel openmpi && module load mpi/openmpi-x86_64"));
    }

    #[test]
    fn sudo_never_asks_for_a_password_and_no_daemon_starts() {
        let line = process::shown(&apt_get(Privilege::Sudo, &["update"]));
        assert!(
            line.starts_with("sudo -n sh -c 'policy=/usr/sbin/policy-rc.d"),
            "{line}"
        );
        assert!(line.ends_with(" update"), "{line}");
    }
}
