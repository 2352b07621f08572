//! What the suites of real processes share: checks that say what they claim, and programs that end or are ended.
//!
//! In: checks, a folder for what they write. Out: one line for each check, the claims that do not hold.
//! Invariant: what a failed check wrote stays in the folder to be read; otherwise nothing is left.

pub(crate) mod checkpoints;
pub(crate) mod launcher;
pub(crate) mod run;
pub(crate) mod study;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::at::at;
use crate::cargo::{self, Mpi};
use cluster::failure::{Failure, Outcome};
use cluster::process::{self, Finished, Running};

/// One check: its name is what it claims.
pub(crate) struct Check<S> {
    pub(crate) claim: &'static str,
    pub(crate) needs_mpirun: bool,
    pub(crate) run: fn(&S) -> Result<(), String>,
}

/// One that needs a launcher, as most do.
pub(crate) const fn check<S>(claim: &'static str, run: fn(&S) -> Result<(), String>) -> Check<S> {
    Check {
        claim,
        needs_mpirun: true,
        run,
    }
}

/// Runs the checks, those whose claim has the text of `only` if one is given, and returns the claims that do not hold. One that fails
/// is checked once more: on a busy machine a deadline may pass for nobody's fault. That it failed first is said.
pub(crate) fn run_all<'c, S: 'c>(
    suite: &S,
    has_mpirun: bool,
    only: Option<&str>,
    checks: impl Iterator<Item = &'c Check<S>>,
) -> Vec<&'c str> {
    let mut failed = Vec::new();
    for check in checks.filter(|check| only.is_none_or(|text| check.claim.contains(text))) {
        if check.needs_mpirun && !has_mpirun {
            println!("skipped: no mpirun: {}", check.claim);
            continue;
        }
        if !holds(suite, check) {
            println!("again: {}", check.claim);
            if !holds(suite, check) {
                failed.push(check.claim);
            }
        }
    }
    failed
}

fn holds<S>(suite: &S, check: &Check<S>) -> bool {
    let start = Instant::now();
    let result = (check.run)(suite);
    let seconds = start.elapsed().as_secs_f64();
    match &result {
        Ok(()) => println!("ok      {seconds:>6.1} s  {}", check.claim),
        Err(text) => println!("FAILED  {seconds:>6.1} s  {}\n{text}", check.claim),
    }
    result.is_ok()
}

/// Makes the folder anew; what lies there are the remains of an earlier failure.
pub(crate) fn empty_folder(name: &str) -> Outcome<PathBuf> {
    let folder = cargo::target_folder().join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).map_err(at(&folder))?;
    Ok(folder)
}

/// Removes the folder if every claim held.
pub(crate) fn conclude(folder: &Path, failed: &[&str]) -> Outcome {
    if failed.is_empty() {
        return fs::remove_dir_all(folder).map_err(at(folder));
    }
    Err(Failure::Failed(format!(
        "{}; what they wrote is in {}",
        failed.join("; "),
        folder.display()
    )))
}

/// What the suites start, in the dev profile.
pub(crate) struct Programs {
    pub(crate) trainer: PathBuf,
    /// The conformance program of the crate `distributed`, where there is a launcher for it.
    pub(crate) conformance: Option<PathBuf>,
}

const CONFORMANCE: &str = "mpi_conformance";

impl Programs {
    pub(crate) fn build(mpi: Mpi, with_conformance: bool) -> Outcome<Self> {
        let trainer = cargo::kept_trainer(mpi)?;
        let conformance = || {
            let mut build =
                cargo::command(&["test", "--workspace", "--no-run", "--test", CONFORMANCE]);
            build.args(mpi.features());
            cargo::executable(build, CONFORMANCE, true)
        };
        Ok(Programs {
            trainer,
            conformance: with_conformance.then(conformance).transpose()?,
        })
    }
}

/// A command that ended, with the line that started it for the messages.
pub(crate) struct Ended {
    pub(crate) line: String,
    pub(crate) finished: Finished,
}

impl Ended {
    /// Runs the command to its end, at most this long.
    pub(crate) fn of(command: Command, log: &Path, limit_s: u64) -> Result<Self, String> {
        let line = process::shown(&command);
        let finished = Running::start(command, log)?.finish(Duration::from_secs(limit_s))?;
        Ok(Ended { line, finished })
    }

    pub(crate) fn expect(&self, is_expected: bool, expected: &str) -> Result<(), String> {
        if is_expected {
            return Ok(());
        }
        let Finished {
            code,
            text,
            elapsed,
        } = &self.finished;
        let got = code.map_or("ended by a signal or at its deadline".to_owned(), |code| {
            format!("exit code {code}")
        });
        Err(format!(
            "$ {}\nexpected {expected}, got {got} after {:.1} s; it wrote:\n{text}",
            self.line,
            elapsed.as_secs_f64()
        ))
    }

    /// Whether MPI crashed before the program said a word.
    pub(crate) fn has_crashed_in_start(&self) -> bool {
        is_crash_in_start(&self.finished.text)
    }

    pub(crate) fn expect_success(&self) -> Result<(), String> {
        self.expect(self.finished.code == Some(0), "exit code 0")
    }
}

/// Compares the hashes of two runs.
pub(crate) fn same(what: &str, expected: &str, got: &str) -> Result<(), String> {
    if expected == got {
        Ok(())
    } else {
        Err(format!(
            "{what}: expected parameter hash {expected}, got {got}"
        ))
    }
}

/// Open MPI under srun on several nodes, on a busy machine, was seen to call a null pointer in `MPI_Init` when a peer's first message
/// came before it was ready for any (open-mpi/ompi#12495 and #13559 tell of it). The trainer waits a moment after its own start, which makes
/// it rare; there is nothing else to do about it but to start again. It is told from a crash of ours by nobody having said anything but srun.
fn is_crash_in_start(text: &str) -> bool {
    text.contains("Segmentation fault")
        && text.lines().all(|line| {
            ["srun: ", "slurmstepd"]
                .iter()
                .any(|by| line.starts_with(by))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_crash_before_any_words_of_ours_is_one_of_the_start() {
        let crash = "srun: error: n1: task 0: Segmentation fault (core dumped)\nsrun: error: n2: task 1: Killed\n";
        assert!(is_crash_in_start(crash));
        assert!(!is_crash_in_start(&format!("model resnet8\n{crash}")));
        assert!(!is_crash_in_start("srun: error: n1: task 0: Aborted\n"));
    }
}
