//! `--mpi`: one of several MPIs on this machine, such as MPICH beside Open MPI.
//!
//! In: its name. Out: this program again, with the variables that lead it, the build scripts and its own look for a launcher to that
//! MPI, and cargo to a folder of its own. Invariant: what is built with one MPI is never mixed with what is built with another; a
//! launcher or a compiler is known by what it says, not by its name.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command as Process;

use clap::Args;

use crate::cargo;
use crate::packages::Need;
use crate::setup;
use cluster::failure::{Failure, Outcome};
use cluster::mpirun::{Make, Mpirun};
use cluster::options::Installing;
use cluster::probe;
use cluster::process;

/// The flag.
#[derive(Debug, Default, Args)]
pub(crate) struct MpiChoice {
    /// Which MPI, where several are installed.
    #[arg(long = "mpi", id = "mpi", value_name = "NAME", value_parser = ["mpich", "openmpi"])]
    name: Option<String>,
}

/// As it is typed.
pub(crate) const FLAG: &str = "--mpi";

/// An MPI to build with and to start with.
struct Choice {
    compiler: PathBuf,
    mpirun: Mpirun,
}

impl MpiChoice {
    /// Where `--mpi` names an MPI that is not the usual one here, installs it if that is allowed and goes on as this program with it,
    /// which does not return.
    pub(crate) fn go_on_with(&self, installing: Installing) -> Outcome {
        let Some(name) = &self.name else {
            return Ok(());
        };
        let choice = Choice::provide(name, installing)?;
        if choice.is_usual() {
            return Ok(());
        }
        let folder = cargo::target_folder().join(name);
        let variables = choice.variables(&folder);
        prepare(&folder, &variables)?;
        let shown: Vec<String> = variables
            .iter()
            .map(|(name, value)| format!("{name}={}", process::quoted(value)))
            .collect();
        println!(
            "with {}, which are:\nexport {}",
            choice.mpirun,
            shown.join(" ")
        );
        let program = env::current_exe()
            .map_err(|error| Failure::Failed(format!("this program: {error}")))?;
        let mut command = Process::new(program);
        command
            .args(without_choice(env::args_os().skip(1)))
            .envs(variables);
        let error = command.exec();
        Err(process::cannot_start(&command, &error))
    }
}

/// Makes what building with this MPI begins with, from what is compiled already.
pub(crate) fn prepare_for(name: &str, installing: Installing) -> Outcome {
    let choice = Choice::provide(name, installing)?;
    let folder = cargo::target_folder().join(name);
    if choice.is_usual() {
        Ok(())
    } else {
        prepare(&folder, &choice.variables(&folder))
    }
}

/// Why this MPI cannot be used here, if it cannot; installs it where that is allowed.
pub(crate) fn lacking(name: &str, installing: Installing) -> Option<String> {
    Choice::provide(name, installing)
        .err()
        .map(|failure| failure.to_string())
}

impl Choice {
    fn provide(name: &str, installing: Installing) -> Outcome<Self> {
        let (make, needs) = match name {
            "mpich" => (Make::Mpich, &[Need::Mpich][..]),
            "openmpi" => (Make::OpenMpi, &[Need::MpiDevelopment, Need::Mpirun][..]),
            other => {
                return Err(Failure::Usage(format!(
                    "{}: expected mpich or openmpi, got `{other}`",
                    FLAG
                )));
            }
        };
        let found = Self::find(name, make).or_else(|| {
            setup::provide(needs, installing);
            Self::find(name, make)
        });
        found.ok_or_else(|| {
            Failure::Failed(format!(
                "no {name} with its mpicc and mpirun here, see above"
            ))
        })
    }

    fn find(name: &str, make: Make) -> Option<Self> {
        // Debian gives each a name of its own; Fedora and openSUSE a folder.
        let places = |program: &str| {
            let folders = ["/usr/lib64", "/usr/lib64/mpi/gcc"]
                .map(|above| format!("{above}/{name}/bin/{program}"));
            [
                vec![program.to_owned(), format!("{program}.{name}")],
                folders.to_vec(),
            ]
            .concat()
        };
        let compilers = env::var_os("MPICC")
            .into_iter()
            .chain(places("mpicc").into_iter().map(OsString::from));
        let launchers = env::var_os("MPIRUN")
            .into_iter()
            .chain(places("mpirun").into_iter().map(OsString::from));
        let compiler = compilers
            .filter_map(probe::program)
            .find(|compiler| made_for(compiler) == Some(make))?;
        let mpirun = launchers
            .filter_map(probe::program)
            .filter_map(Mpirun::at)
            .find(|found| found.make() == make)?;
        Some(Choice { compiler, mpirun })
    }

    /// What leads this program, the build scripts and cargo to it.
    fn variables<'a>(&'a self, folder: &'a Path) -> [(&'static str, &'a OsStr); 3] {
        [
            ("MPICC", self.compiler.as_os_str()),
            ("MPIRUN", self.mpirun.program().as_os_str()),
            ("CARGO_TARGET_DIR", folder.as_os_str()),
        ]
    }

    /// Whether it is what is found anyway.
    fn is_usual(&self) -> bool {
        let compiler = probe::program(env::var_os("MPICC").unwrap_or_else(|| "mpicc".into()));
        compiler.as_ref() == Some(&self.compiler) && Mpirun::find().as_ref() == Some(&self.mpirun)
    }
}

/// The make of the MPI whose header a compiler finds.
fn made_for(compiler: &Path) -> Option<Make> {
    let macros = process::answer(
        compiler,
        &["-E", "-dM", "-include", "mpi.h", "-x", "c", "/dev/null"],
    )?;
    let has = |name: &str| {
        macros
            .lines()
            .any(|line| line.split_whitespace().nth(1) == Some(name))
    };
    match (
        has("OMPI_MAJOR_VERSION"),
        has("MPICH_VERSION"),
        has("I_MPI_VERSION"),
    ) {
        (true, ..) => Some(Make::OpenMpi),
        (false, true, false) => Some(Make::Mpich),
        _ => Some(Make::Other),
    }
}

/// The words without `--mpi NAME`.
fn without_choice(mut words: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut kept = Vec::new();
    while let Some(word) = words.next() {
        if word == FLAG {
            words.next();
        } else if !word.to_string_lossy().starts_with(&format!("{}=", FLAG)) {
            kept.push(word);
        }
    }
    kept
}

/// What is compiled already serves any MPI, apart from the bindings and what stands on them: burn is not compiled again. The build
/// script of the bindings does not see that its compiler is another.
fn prepare(folder: &Path, variables: &[(&str, &OsStr)]) -> Outcome {
    cargo::begin_folder(folder, |unfinished| {
        let mut clean = cargo::command(&["clean", "--package", "mpi-sys"]);
        clean
            .envs(variables.iter().copied())
            .env("CARGO_TARGET_DIR", unfinished);
        process::run(clean)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_choice_is_left_out_of_what_goes_on() {
        let kept = |line: &str| {
            let words = without_choice(line.split_whitespace().map(OsString::from));
            words
                .iter()
                .map(|word| word.to_string_lossy())
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(
            kept("test --only mpi --mpi mpich --claim x"),
            "test --only mpi --claim x"
        );
        assert_eq!(kept("setup --mpi=mpich"), "setup");
    }
}
