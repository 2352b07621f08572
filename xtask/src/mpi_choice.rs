//! `--mpi`: one of several MPIs on this machine, such as MPICH next to Open MPI.
//!
//! In: its name. Out: this program again, with variables that lead the build scripts and the search
//! for a launcher to that MPI, and cargo to a separate folder. Invariant: builds with different
//! MPIs never mix; a compiler or launcher is known by its own output.

use std::env;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

use clap::Args;
use cluster::failure::{Outcome, failed};
use cluster::mpirun::{Make, Mpirun};
use cluster::options::Installing;
use cluster::probe;
use cluster::process;

use crate::cargo;
use crate::setup::{self, Need};
use crate::stages::this_program;

/// Flag of commands that build with MPI.
#[derive(Debug, Default, Args)]
pub(crate) struct MpiChoice {
    /// MPI to use if several are installed
    #[arg(long = "mpi", id = "mpi", value_name = "NAME", value_parser = ["mpich", "openmpi"])]
    name: Option<String>,
}

impl MpiChoice {
    /// Replaces this process by one with the chosen MPI, if that is not the default one.
    pub(crate) fn restart_with(&self, installing: Installing) -> Outcome {
        let Some(name) = &self.name else {
            return Ok(());
        };
        let Some(choice) = prepare_for(name, installing)? else {
            return Ok(());
        };
        let variables = [
            ("MPICC", choice.compiler.as_os_str()),
            ("MPIRUN", choice.mpirun.program.as_os_str()),
            ("CARGO_TARGET_DIR", choice.folder.as_os_str()),
        ];
        let shown = variables.map(|(name, value)| format!("{name}={}", process::quoted(value)));
        println!("with {}:\nexport {}", choice.mpirun, shown.join(" "));
        // With these variables, the chosen MPI is the default one.
        let mut command = this_program(env::args_os().skip(1));
        let error = command.envs(variables).exec();
        Err(process::cannot_start(&command, &error))
    }
}

/// An MPI to build with and to start with.
pub(crate) struct Choice {
    compiler: PathBuf,
    mpirun: Mpirun,
    folder: PathBuf,
}

/// Finds an MPI; installs it if it is missing and that is allowed. Unless it is the default one,
/// prepares a folder for its builds from what is compiled already, except for the bindings of MPI:
/// their build script does not notice another compiler.
pub(crate) fn prepare_for(name: &str, installing: Installing) -> Outcome<Option<Choice>> {
    let (make, needs): (_, &[Need]) = match name {
        "mpich" => (Make::Mpich, &[Need::Mpich]),
        _ => (Make::OpenMpi, &[Need::MpiDevelopment, Need::Mpirun]),
    };
    let choice = find(name, make).or_else(|| {
        setup::provide(needs, installing);
        find(name, make)
    });
    let missing = || failed!("no {name} with mpicc and mpirun, see above");
    let choice = choice.ok_or_else(missing)?;
    let is_default = setup::mpicc().as_ref() == Some(&choice.compiler)
        && Mpirun::find().as_ref() == Some(&choice.mpirun);
    if is_default {
        return Ok(None);
    }
    let mut command = cargo::script("checks.sh");
    command.arg("begin_folder").arg(&choice.folder);
    command.arg("mpi-sys").env("MPICC", &choice.compiler);
    process::run(command)?;
    Ok(Some(choice))
}

fn find(name: &str, make: Make) -> Option<Choice> {
    // Debian adds the MPI's name to the program's; Fedora and openSUSE have a folder.
    let find = |variable: &str, program: &str| {
        let names = [
            program.to_owned(),
            format!("{program}.{name}"),
            format!("/usr/lib64/{name}/bin/{program}"),
            format!("/usr/lib64/mpi/gcc/{name}/bin/{program}"),
        ];
        let named = env::var_os(variable).and_then(probe::program);
        let found = names.into_iter().filter_map(probe::program);
        named.into_iter().chain(found)
    };
    let mut compilers = find("MPICC", "mpicc");
    let mut launchers = find("MPIRUN", "mpirun").filter_map(Mpirun::at);
    Some(Choice {
        compiler: compilers.find(|compiler| make_of(compiler) == Some(make))?,
        mpirun: launchers.find(|found| found.make == make)?,
        folder: cargo::target_folder().join(name),
    })
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
