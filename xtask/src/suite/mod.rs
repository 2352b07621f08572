//! Runner of the suites with real processes: checks, and commands with a deadline.
//!
//! In: a [`Suite`], checks. Out: one line for each check, and an error that names the failed
//! claims. Invariant: the folder of a suite stays if a check failed; otherwise the suite leaves
//! nothing.

pub(crate) mod checkpoints;
pub(crate) mod disk;
pub(crate) mod run;
pub(crate) mod start;
pub(crate) mod study;
pub(crate) mod tasks;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use cluster::failure::{Failure, Outcome, failed};
use cluster::process::{Finished, Running};

use crate::at;
pub(crate) use start::Suite;

/// A claim, and the function that checks it.
pub(crate) type Check = (&'static str, fn(&Suite) -> Checked);

pub(crate) type Checked<T = ()> = Result<T, Stop>;

/// Reason why a check ended early.
#[derive(Debug)]
pub(crate) enum Stop {
    Failed(String),
    /// This machine lacks something that the check needs.
    Skipped(String),
}

impl From<String> for Stop {
    fn from(text: String) -> Self {
        Stop::Failed(text)
    }
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Stop::Failed(failure.to_string())
    }
}

/// Runs the checks whose claims contain `only`. A failed check runs a second time, as a busy
/// machine may miss a deadline.
pub(crate) fn run<'c>(
    mut suite: Suite,
    only: Option<&str>,
    checks: impl IntoIterator<Item = &'c Check>,
) -> Outcome {
    let mut failed = Vec::new();
    for (claim, check) in checks {
        if only.is_some_and(|text| !claim.contains(text)) || holds(&suite, claim, *check) {
            continue;
        }
        println!("again: {claim}");
        if !holds(&suite, claim, *check) {
            failed.push(*claim);
        }
    }
    if failed.is_empty() {
        suite.stop_cluster()?;
        return fs::remove_dir_all(&suite.folder).map_err(at(&suite.folder));
    }
    Err(failed!(
        "{}; output in {}",
        failed.join("; "),
        suite.folder.display()
    ))
}

fn holds(suite: &Suite, claim: &str, check: fn(&Suite) -> Checked) -> bool {
    let start = Instant::now();
    let result = check(suite);
    let seconds = start.elapsed().as_secs_f64();
    match result {
        Ok(()) => println!("ok      {seconds:>6.1} s  {claim}"),
        Err(Stop::Skipped(reason)) => println!("skipped: {reason}: {claim}"),
        Err(Stop::Failed(text)) => {
            println!("FAILED  {seconds:>6.1} s  {claim}\n{text}");
            return false;
        }
    }
    true
}

/// Returns an error unless `is_expected`.
pub(crate) fn expect(is_expected: bool, message: impl Into<String>) -> Checked {
    if is_expected {
        Ok(())
    } else {
        Err(Stop::Failed(message.into()))
    }
}

/// A command that ended.
pub(crate) struct Ended {
    /// The command as a shell would read it.
    line: String,
    finished: Finished,
}

impl Ended {
    /// Waits for the end of a command; `limit` counts from its start.
    pub(crate) fn finish(line: String, running: Running<'_>, limit: Duration) -> Checked<Self> {
        let finished = running.finish(limit)?;
        Ok(Ended { line, finished })
    }

    pub(crate) fn text(&self) -> &str {
        &self.finished.text
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.finished.elapsed
    }

    pub(crate) fn succeeded(&self) -> bool {
        self.finished.code == Some(0)
    }

    /// Returns an error with the command's output unless `is_expected`.
    pub(crate) fn expect(&self, is_expected: bool, expected: &str) -> Checked {
        let code = self.finished.code;
        let got = code.map_or("a signal or its deadline".to_owned(), |code| {
            format!("exit code {code}")
        });
        let seconds = self.elapsed().as_secs_f64();
        let Ended { line, finished } = self;
        let text = &finished.text;
        expect(
            is_expected,
            format!(
                "$ {line}\nexpected {expected}, got {got} after {seconds:.1} s; output:\n{text}"
            ),
        )
    }

    pub(crate) fn expect_code(&self, code: i32) -> Checked {
        self.expect(
            self.finished.code == Some(code),
            &format!("exit code {code}"),
        )
    }

    pub(crate) fn expect_success(&self) -> Checked {
        self.expect_code(0)
    }

    pub(crate) fn expect_failure(&self) -> Checked {
        self.expect(!self.succeeded(), "an exit code other than 0")
    }

    /// Expects each of these texts in the output.
    pub(crate) fn expect_text(&self, parts: &[&str]) -> Checked {
        parts.iter().try_for_each(|part| {
            self.expect(
                self.text().contains(part),
                &format!("`{part}` in the output"),
            )
        })
    }

    /// Expects that one rank reported the error.
    pub(crate) fn expect_one_message(&self) -> Checked {
        let num = self.text().matches("error (rank").count();
        self.expect(num == 1, &format!("one error message, not {num}"))
    }

    /// Returns true if MPI crashed before the program printed anything.
    ///
    /// Open MPI under srun on several nodes sometimes calls a null pointer in `MPI_Init` if a
    /// peer's first message comes too early (open-mpi/ompi#12495 and #13559). The trainer's pause
    /// after its start makes the crash rare; a second start is the only remedy.
    pub(crate) fn crashed_in_start(&self) -> bool {
        is_crash_in_start(self.text())
    }
}

fn is_crash_in_start(text: &str) -> bool {
    let is_of_slurm = |line: &str| line.starts_with("srun: ") || line.starts_with("slurmstepd");
    text.contains("Segmentation fault") && text.lines().all(is_of_slurm)
}

/// Reads a file that a check needs.
pub(crate) fn read(file: &Path) -> Checked<String> {
    Ok(fs::read_to_string(file).map_err(at(file))?)
}

/// Expects two equal parameter hashes.
pub(crate) fn same(what: &str, expected: &str, got: &str) -> Checked {
    expect(
        expected == got,
        format!("{what}: expected parameter hash {expected}, got {got}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_crash_before_any_output_of_the_trainer_is_one_of_the_start() {
        let crash = "srun: error: n1: task 0: Segmentation fault (core dumped)\nsrun: error: n2: task 1: Killed\n";
        assert!(is_crash_in_start(crash));
        assert!(!is_crash_in_start(&format!("model resnet8\n{crash}")));
        assert!(!is_crash_in_start("srun: error: n1: task 0: Aborted\n"));
    }
}
