//! Tools of this machine, found or installed; `cargo xtask setup` reports them.
//!
//! In: PATH, and the variables that the build scripts of the crate mpi read. Out: [`Found`].
//! Invariant: the search changes nothing; it follows the rules of the build scripts, or runs the
//! compiler. xtask installs only by apt-get; for the other package managers, which no test covers,
//! the command is advice. Without MPI everything builds and trains on one process.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::Args;
use cluster::failure::{Outcome, failed};
use cluster::mpirun::Mpirun;
use cluster::options::Installing;
use cluster::probe;
use cluster::process;

use crate::cargo;
use crate::mpi_choice::MpiChoice;

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
    let needs = found.missing();
    if !needs.is_empty() {
        provide(&needs, installing);
        found = Found::look();
    }
    found.report();
    if found.c_compiler.is_none() {
        return Err(failed!(
            "no C compiler, which Rust links with: install one (for example gcc) and repeat"
        ));
    }
    Ok(found)
}

/// Something that the system provides: a column of [`MANAGERS`].
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
    /// Mesa's Vulkan on the CPU.
    Vulkan,
}

/// Package managers: program, command before and after the packages, packages of each [`Need`].
///
/// On Debian, Slurm opens libpmix.so by a name that only the development package has. dnf and
/// zypper install MPI outside PATH; environment modules add it.
#[rustfmt::skip]
const MANAGERS: [(&str, &str, &str, [&str; 8]); 5] = [
    ("apt-get", "sudo apt-get install --no-install-recommends", "",
     ["gcc libc6-dev", "libopenmpi-dev", "openmpi-bin", "mpich libmpich-dev", "libclang-dev",
      "slurm-wlm munge libpmix-dev", "chromium", "mesa-vulkan-drivers"]),
    ("dnf", "sudo dnf install", " && module load mpi/openmpi-x86_64",
     ["gcc", "openmpi-devel", "openmpi", "mpich mpich-devel", "clang-devel",
      "slurm-slurmctld slurm-slurmd munge pmix-devel", "chromium", "mesa-vulkan-drivers"]),
    ("zypper", "sudo zypper install", " && module load gnu-openmpi",
     ["gcc", "openmpi4-devel", "openmpi4", "mpich mpich-devel", "clang-devel",
      "slurm slurm-node munge pmix-devel", "chromium", "libvulkan_lvp"]),
    ("pacman", "sudo pacman -S --needed", "",
     ["gcc", "openmpi", "openmpi", "mpich", "clang", "slurm-llnl munge openpmix", "chromium", "vulkan-swrast"]),
    ("brew", "brew install", "",
     ["gcc", "open-mpi", "open-mpi", "mpich", "llvm", "", "chromium", ""]),
];

/// Installs a Vulkan on the CPU if there is no Vulkan and if allowed.
pub(crate) fn provide_vulkan(installing: Installing) {
    let mut drivers = fs::read_dir("/usr/share/vulkan/icd.d")
        .into_iter()
        .flatten();
    if drivers.next().is_none() {
        provide(&[Need::Vulkan], installing);
    }
}

/// Installs packages if allowed; otherwise prints the command.
pub(crate) fn provide(needs: &[Need], installing: Installing) {
    let mut managers = MANAGERS.iter();
    let Some((name, install, then, columns)) =
        managers.find(|(name, ..)| probe::program(name).is_some())
    else {
        println!("missing: {needs:?}, and no known package manager: install them by hand");
        return;
    };
    let packages = packages(columns, needs);
    let advice = format!("{install} {}{then}", packages.join(" "));
    if installing.no_install {
        println!("missing; --no-install forbids this command:\n  {advice}");
    } else if *name != "apt-get" || !succeeds(&mut as_root("true")) {
        println!("missing; please run:\n  {advice}");
    } else {
        let mut command = cargo::script("checks.sh");
        command.arg("install").args(packages);
        if let Err(failure) = process::run(command) {
            println!("{failure}; continuing without; please run:\n  {advice}");
        }
    }
}

fn packages(columns: &[&'static str], needs: &[Need]) -> Vec<&'static str> {
    let lists = needs.iter().map(|need| columns[*need as usize]);
    let mut packages: Vec<&str> = lists.flat_map(str::split_whitespace).collect();
    packages.dedup();
    packages
}

/// Returns a command that runs as root, by sudo without a password if this user is not root.
pub(crate) fn as_root(program: &str) -> Command {
    if process::is_root() {
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

/// Tools that were found; `None` is missing.
#[derive(Debug, Default)]
pub(crate) struct Found {
    c_compiler: Option<PathBuf>,
    /// Compiler wrapper or variable by which MPI programs are compiled.
    mpi: Option<String>,
    mpirun: Option<Mpirun>,
    /// Generates the bindings of the crate mpi.
    libclang: Option<PathBuf>,
}

impl Found {
    pub(crate) fn look() -> Self {
        Found {
            c_compiler: ["cc", "gcc", "clang"].into_iter().find_map(probe::program),
            mpi: mpi(),
            mpirun: Mpirun::find(),
            libclang: libclang(),
        }
    }

    pub(crate) fn can_build_mpi(&self) -> bool {
        self.mpi.is_some() && self.libclang.is_some()
    }

    /// Returns mpirun if the programs can be built with an MPI.
    pub(crate) fn launcher(&self) -> Option<&Mpirun> {
        self.mpirun.as_ref().filter(|_| self.can_build_mpi())
    }

    fn missing(&self) -> Vec<Need> {
        // A cluster may start jobs only by its scheduler.
        let has_launcher = self.mpirun.is_some() || probe::program("srun").is_some();
        let needs = [
            (self.c_compiler.is_some(), Need::CCompiler),
            (self.mpi.is_some(), Need::MpiDevelopment),
            (has_launcher, Need::Mpirun),
            (self.libclang.is_some(), Need::Libclang),
        ];
        let missing = needs.into_iter().filter(|(exists, _)| !exists);
        missing.map(|(_, need)| need).collect()
    }

    fn report(&self) {
        let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
        for (tool, value) in [
            ("C compiler", path(&self.c_compiler)),
            ("MPI", self.mpi.clone()),
            ("mpirun", self.mpirun.as_ref().map(ToString::to_string)),
            ("libclang", path(&self.libclang)),
        ] {
            println!("{tool:<12}{}", value.as_deref().unwrap_or("missing"));
        }
        if !self.can_build_mpi() {
            println!("continuing without MPI: training works on one process");
        } else if self.mpirun.is_none() {
            println!("the trainer is built with MPI, but only srun can start several ranks");
        }
    }
}

/// Returns the compiler wrapper that the build scripts use.
pub(crate) fn mpicc() -> Option<PathBuf> {
    probe::program(env::var_os("MPICC").unwrap_or_else(|| "mpicc".into()))
}

fn mpi() -> Option<String> {
    for variable in ["MPI_PKG_CONFIG", "CRAY_MPICH_DIR"] {
        if let Some(value) = env::var_os(variable) {
            return Some(format!("{variable}={}", value.display()));
        }
    }
    let wrapper = mpicc()?;
    // A wrapper may exist without the header.
    let mut command = Command::new(&wrapper);
    command.args(["-E", "-include", "mpi.h", "-x", "c", "/dev/null"]);
    succeeds(&mut command).then(|| wrapper.display().to_string())
}

/// Finds a libclang whose compiler has its own headers; without them the bindings fail at stddef.h.
fn libclang() -> Option<PathBuf> {
    if let Some(path) = env::var_os("LIBCLANG_PATH") {
        return Some(PathBuf::from(path));
    }
    const FOLDERS: [&str; 4] = [
        "/usr/lib",
        "/usr/lib64",
        "/usr/local/lib",
        "/opt/homebrew/opt/llvm/lib",
    ];
    let mut folders: Vec<PathBuf> = FOLDERS.map(PathBuf::from).into();
    // Debian: /usr/lib/llvm-14/lib; Fedora: /usr/lib64/llvm18/lib.
    for parent in &FOLDERS[..2] {
        folders.extend(entries(parent, "llvm").map(|folder| folder.join("lib")));
    }
    let of_llvm = process::answer("llvm-config", &["--libdir"]);
    folders.extend(of_llvm.map(|line| PathBuf::from(line.trim())));
    let variable = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    folders.extend(env::split_paths(&variable));
    let find = |folder: &PathBuf| entries(folder, "libclang").find(|file| is_libclang(file));
    let library = folders.iter().find_map(find)?;
    let has_headers = |folder: &PathBuf| {
        let mut versions = entries(folder.join("clang"), "");
        versions.any(|version| version.join("include/stddef.h").is_file())
    };
    let is_complete = probe::program("clang").is_some() || folders.iter().any(has_headers);
    is_complete.then_some(library)
}

/// Returns true for a shared library named `libclang` rather than `libclang-cpp` or `libclangAST`.
fn is_libclang(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let is_shared = name.contains(".so") || name.ends_with(".dylib");
    let is_named = name.starts_with("libclang.") || name.starts_with("libclang-");
    is_shared && is_named && !name.starts_with("libclang-cpp")
}

/// Lists the entries of a folder with this start of their names, in order.
fn entries(folder: impl AsRef<Path>, start: &str) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(start))
        .map(|entry| entry.path())
        .collect();
    found.sort();
    found.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_absent_is_missing_in_a_fixed_order_and_any_mpi_counts() {
        let needs = Found::default().missing();
        assert_eq!(needs.first(), Some(&Need::CCompiler));
        assert!(needs.contains(&Need::MpiDevelopment) && needs.contains(&Need::Libclang));
        let found = Found {
            mpi: Some("/opt/mpich/bin/mpicc".into()),
            libclang: Some("/opt/llvm/lib".into()),
            ..Found::default()
        };
        assert!(found.can_build_mpi() && !found.missing().contains(&Need::MpiDevelopment));
    }

    #[test]
    fn the_advice_names_exactly_what_is_missing_and_each_package_once() {
        let needs = [Need::MpiDevelopment, Need::Mpirun, Need::Libclang];
        let named = MANAGERS.map(|(.., columns)| packages(&columns, &needs).join(" "));
        assert_eq!(named[0], "libopenmpi-dev openmpi-bin libclang-dev");
        assert_eq!(named[3], "openmpi clang");
    }

    #[test]
    fn libclang_is_neither_its_cpp_sister_nor_a_static_archive() {
        let is = |name: &str| is_libclang(&Path::new("/usr/lib").join(name));
        assert!(is("libclang-14.so.1") && is("libclang.so"));
        assert!(!is("libclang-cpp.so.14") && !is("libclangAST.a"));
    }
}
