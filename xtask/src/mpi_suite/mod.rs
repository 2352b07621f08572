//! The checks that need real processes: MPI's conformance, failures, launchers, training on 1 to 4 ranks.
//!
//! In: the programs that the other stages built, in the dev profile. Out: one line for each check.
//! Invariant: nothing waits for ever; each process has a deadline. What a failed check wrote stays in
//! `target/mpi-suite` to be read; otherwise nothing is left.

mod communicator;
mod storage;
mod synchronisation;
mod trainer;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::cargo::{self, Mpi};
use crate::cores;
use crate::failure::{Failure, Outcome};
use crate::mpirun::{self, Mpirun, Placement};
use crate::process::{self, Finished, Running};

/// What the checks work with.
struct Suite<'a> {
    mpirun: Option<&'a Mpirun>,
    /// The conformance program of the crate `distributed`.
    conformance: Option<PathBuf>,
    trainer: PathBuf,
    folder: PathBuf,
}

/// One check: its name is what it claims.
struct Check {
    claim: &'static str,
    needs_mpirun: bool,
    run: fn(&Suite<'_>) -> Result<(), String>,
}

/// Builds the programs and runs all checks that can be run here.
pub(crate) fn run(mpi: Mpi, mpirun: Option<&Mpirun>) -> Outcome {
    let conformance = match mpirun {
        Some(_) => {
            Some(cargo::executable(test_build(mpi, "test", &["--no-run", "--test", CONFORMANCE]), CONFORMANCE, true)?)
        }
        None => None,
    };
    // The program beside its own tests: built alone it would have other features of shared dependencies, and burn be
    // compiled again for it.
    let trainer = cargo::executable(test_build(mpi, "test", &["--no-run", "--test", PROGRAM]), "trainer", false)?;
    let folder = cargo::target_folder().join("mpi-suite");
    // The remains of an earlier failure.
    let _ = fs::remove_dir_all(&folder);
    let in_folder = |error| Failure::Failed(format!("{}: {error}", folder.display()));
    fs::create_dir_all(&folder).map_err(in_folder)?;
    let suite = Suite { mpirun, conformance, trainer, folder: folder.clone() };
    let checks =
        communicator::CHECKS.iter().chain(&trainer::CHECKS).chain(&synchronisation::CHECKS).chain(&storage::CHECKS);
    let failed = suite.run_all(checks);
    if failed.is_empty() {
        return fs::remove_dir_all(&folder).map_err(in_folder);
    }
    Err(Failure::Failed(format!("{}; what they wrote is in {}", failed.join("; "), folder.display())))
}

const CONFORMANCE: &str = "mpi_conformance";
/// A test of the trainer that starts the program.
const PROGRAM: &str = "program";

/// The whole workspace with the features of the other stages, so that nothing is compiled anew.
fn test_build(mpi: Mpi, subcommand: &str, further: &[&str]) -> Command {
    let mut command = cargo::command(&[subcommand, "--workspace"]);
    command.args(mpi.test_features()).args(further);
    command
}

impl Suite<'_> {
    /// Runs the checks and returns the claims that do not hold.
    fn run_all<'c>(&self, checks: impl Iterator<Item = &'c Check>) -> Vec<&'c str> {
        let mut failed = Vec::new();
        for check in checks {
            if check.needs_mpirun && self.mpirun.is_none() {
                println!("skipped: no mpirun: {}", check.claim);
                continue;
            }
            let start = Instant::now();
            let result = (check.run)(self);
            let seconds = start.elapsed().as_secs_f64();
            match result {
                Ok(()) => println!("ok      {seconds:>6.1} s  {}", check.claim),
                Err(text) => {
                    println!("FAILED  {seconds:>6.1} s  {}\n{text}", check.claim);
                    failed.push(check.claim);
                }
            }
        }
        failed
    }

    /// The program on this many ranks; the machine's cores may be fewer, or busy.
    fn on_ranks(&self, ranks: usize, program: &Path, arguments: &[String]) -> Result<Command, String> {
        let mpirun = self.mpirun.expect("a check that starts ranks says that it needs mpirun");
        let cores = cores::available();
        let placement = Placement { ranks, hosts: Vec::new(), cores, threads: Some(1), is_polite: true };
        let mut command = mpirun.command(&placement, program, arguments).map_err(|failure| failure.to_string())?;
        mpirun::forget_surrounding_job(&mut command);
        Ok(command)
    }

    /// The program alone, without a launcher.
    fn alone(&self, program: &Path, arguments: &[String]) -> Command {
        let mut command = Command::new(program);
        command.args(arguments);
        mpirun::forget_surrounding_job(&mut command);
        command
    }

    /// Runs the command to its end, at most this long; `name` is its log's.
    fn finish(&self, command: Command, name: &str, limit_s: u64) -> Result<Ended, String> {
        let line = process::shown(&command);
        let log = self.folder.join(format!("{name}.log"));
        let finished = Running::start(command, &log)?.finish(Duration::from_secs(limit_s))?;
        Ok(Ended { line, finished })
    }
}

/// A command that ended, with the line that started it for the messages.
struct Ended {
    line: String,
    finished: Finished,
}

impl Ended {
    fn expect(&self, is_expected: bool, expected: &str) -> Result<(), String> {
        if is_expected {
            return Ok(());
        }
        let Finished { code, text, elapsed } = &self.finished;
        let got = code.map_or("ended by a signal or at its deadline".to_owned(), |code| format!("exit code {code}"));
        Err(format!(
            "$ {}\nexpected {expected}, got {got} after {:.1} s; it wrote:\n{text}",
            self.line,
            elapsed.as_secs_f64()
        ))
    }

    fn expect_success(&self) -> Result<(), String> {
        self.expect(self.finished.code == Some(0), "exit code 0")
    }
}
