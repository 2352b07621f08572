//! `--mpi`: one of several MPIs on this machine, such as MPICH next to Open MPI.
//!
//! In: its name. Out: this program again, with variables that lead the build scripts and the search
//! for a launcher to that MPI, and cargo to a separate folder. Invariant: builds with different
//! MPIs never mix; a compiler or launcher is known by its own output.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

use clap::Args;
use cluster::failure::{Failure, Outcome};
use cluster::mpirun::{Make, Mpirun};
use cluster::options::Installing;
use cluster::probe;
use cluster::process;

use crate::cargo;
use crate::packages::Need;
use crate::setup;
use crate::stages::this_program;

/// Flag of commands that build with MPI.
#[derive(Debug, Default, Args)]
pub(crate) struct MpiChoice {
    /// MPI to use if several are installed
    #[arg(long = "mpi", id = "mpi", value_name = "NAME", value_parser = ["mpich", "openmpi"])]
    name: Option<String>,
}

const FLAG: &str = "--mpi";

/// An MPI to build with and to start with.
struct Choice {
    compiler: PathBuf,
    mpirun: Mpirun,
    folder: PathBuf,
}

impl MpiChoice {
    /// Replaces this process by one with the chosen MPI, if that is not the default one.
    pub(crate) fn restart_with(&self, installing: Installing) -> Outcome {
        let Some(name) = &self.name else {
            return Ok(());
        };
        let choice = Choice::provide(name, installing)?;
        if choice.is_default() {
            return Ok(());
        }
        choice.prepare()?;
        let variables = choice.variables();
        let shown = variables.map(|(name, value)| format!("{name}={}", process::quoted(value)));
        println!("with {}:\nexport {}", choice.mpirun, shown.join(" "));
        let mut command = this_program(without_choice(env::args_os().skip(1)));
        let error = command.envs(variables).exec();
        Err(process::cannot_start(&command, &error))
    }
}

/// Prepares the folder for builds with an MPI from what is compiled already.
pub(crate) fn prepare_for(name: &str, installing: Installing) -> Outcome {
    let choice = Choice::provide(name, installing)?;
    match choice.is_default() {
        true => Ok(()),
        false => choice.prepare(),
    }
}

impl Choice {
    /// Finds an MPI; installs it if it is missing and that is allowed.
    fn provide(name: &str, installing: Installing) -> Outcome<Self> {
        let is_mpich = name == "mpich";
        let make = if is_mpich { Make::Mpich } else { Make::OpenMpi };
        if let Some(choice) = Self::find(name, make) {
            return Ok(choice);
        }
        let needs = match is_mpich {
            true => &[Need::Mpich][..],
            false => &[Need::MpiDevelopment, Need::Mpirun],
        };
        setup::provide(needs, installing);
        let missing = || Failure::Failed(format!("no {name} with mpicc and mpirun, see above"));
        Self::find(name, make).ok_or_else(missing)
    }

    fn find(name: &str, make: Make) -> Option<Self> {
        // Debian adds the MPI's name to the program's; Fedora and openSUSE have a folder.
        let find = |variable: &str, program: &str| {
            let names = [
                program.to_owned(),
                format!("{program}.{name}"),
                format!("/usr/lib64/{name}/bin/{program}"),
                format!("/usr/lib64/mpi/gcc/{name}/bin/{program}"),
            ];
            let names = env::var_os(variable)
                .into_iter()
                .chain(names.map(OsString::from));
            names.filter_map(probe::program).collect::<Vec<_>>()
        };
        let mut compilers = find("MPICC", "mpicc").into_iter();
        let mut launchers = find("MPIRUN", "mpirun").into_iter().filter_map(Mpirun::at);
        Some(Choice {
            compiler: compilers.find(|compiler| make_of(compiler) == Some(make))?,
            mpirun: launchers.find(|found| found.make() == make)?,
            folder: cargo::target_folder().join(name),
        })
    }

    fn variables(&self) -> [(&'static str, &OsStr); 3] {
        [
            ("MPICC", self.compiler.as_os_str()),
            ("MPIRUN", self.mpirun.program().as_os_str()),
            ("CARGO_TARGET_DIR", self.folder.as_os_str()),
        ]
    }

    /// Returns true if builds use this MPI without further variables.
    fn is_default(&self) -> bool {
        let compiler = probe::program(env::var_os("MPICC").unwrap_or_else(|| "mpicc".into()));
        compiler.as_ref() == Some(&self.compiler) && Mpirun::find().as_ref() == Some(&self.mpirun)
    }

    /// Fills the folder with what is compiled already, except for the bindings of MPI: their build
    /// script does not notice another compiler.
    fn prepare(&self) -> Outcome {
        let mut command = cargo::script("begin_folder");
        command.arg(&self.folder).arg("mpi-sys");
        command.envs([("MPICC", &self.compiler)]);
        process::run(command)
    }
}

/// Returns the make of the MPI whose header a compiler finds.
fn make_of(compiler: &Path) -> Option<Make> {
    let words = ["-E", "-dM", "-include", "mpi.h", "-x", "c", "/dev/null"];
    let macros = process::answer(compiler, &words)?;
    let has = |name: &str| {
        let mut names = macros.lines().map(|line| line.split_whitespace().nth(1));
        names.any(|found| found == Some(name))
    };
    Some(if has("OMPI_MAJOR_VERSION") {
        Make::OpenMpi
    } else if has("MPICH_VERSION") && !has("I_MPI_VERSION") {
        Make::Mpich
    } else {
        Make::Other
    })
}

/// Returns the words without `--mpi NAME`.
fn without_choice(mut words: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut kept = Vec::new();
    while let Some(word) = words.next() {
        if word == FLAG {
            words.next();
        } else if !word.to_string_lossy().starts_with("--mpi=") {
            kept.push(word);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_restarted_program_has_no_choice() {
        let kept = |line: &str| {
            let words = without_choice(line.split(' ').map(OsString::from));
            words.join(OsStr::new(" ")).into_string().unwrap()
        };
        assert_eq!(
            kept("test --only mpi --mpi mpich --claim x"),
            "test --only mpi --claim x"
        );
        assert_eq!(kept("setup --mpi=mpich"), "setup");
    }
}
