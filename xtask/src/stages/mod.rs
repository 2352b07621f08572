//! `cargo xtask test`: all checks, cheapest first.
//!
//! In: the workspace. Out: output of the tools, a table of stages, a last line `N passed, N
//! failed`. Invariant: a failed stage does not prevent the others, and the table names each skipped
//! stage.

mod table;

use std::cell::OnceCell;
use std::ffi::OsStr;
use std::fs;
use std::process::Command;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Instant;

use clap::Args;
use cluster::failure::{Failure, Outcome};
use cluster::options::Installing;

use crate::cargo::{self, Mpi};
use crate::mpi_choice::{self, MpiChoice};
use crate::probe::Found;
use crate::setup;
use crate::suite::start::Programs;
use crate::suite::{Checked, Stop};
use table::STAGES;

/// Flags of `cargo xtask test`.
#[derive(Debug, Args)]
#[command(after_help = table::details())]
pub(crate) struct TestArgs {
    /// Run the long stages and checks as well, as for a release
    #[arg(long)]
    all: bool,
    /// Stages to run
    #[arg(long, value_name = "STAGE,…", value_delimiter = ',', value_parser = table::names())]
    only: Vec<String>,
    /// Text in the claims of the checks to run; for mpi, report and slurm
    #[arg(long, value_name = "TEXT")]
    claim: Option<String>,
    #[command(flatten)]
    mpi: MpiChoice,
    #[command(flatten)]
    installing: Installing,
}

/// Flags and findings that a stage uses.
struct Context<'a> {
    args: &'a TestArgs,
    found: Found,
    mpi: Mpi,
    programs: OnceCell<Outcome<Programs>>,
}

struct Stage {
    name: &'static str,
    lane: Lane,
    when: When,
    about: &'static str,
    /// Function of the stage; without one, the script runs it.
    run: Option<fn(&Context<'_>) -> Checked>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum When {
    Always,
    /// With `--all`, or named by `--only`.
    All,
    /// Named by `--only`.
    Named,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Lane {
    /// Before all others.
    First,
    /// A function of the script that compiles and computes, while the suites run.
    Compute,
    /// Starts processes that often wait.
    Suite,
}

/// Result of a stage.
struct Row {
    name: &'static str,
    result: Checked,
    seconds: f64,
}

impl Row {
    fn of(name: &'static str, run: impl FnOnce() -> Checked) -> Self {
        let start = Instant::now();
        let result = run();
        Row {
            name,
            result,
            seconds: start.elapsed().as_secs_f64(),
        }
    }

    fn line(&self) -> String {
        let result = match &self.result {
            Ok(()) => "passed".to_owned(),
            Err(Stop::Skipped(reason)) => format!("skipped: {reason}"),
            Err(Stop::Failed(reason)) => format!("FAILED: {reason}"),
        };
        format!("{:<8} {:>9.1}  {result}", self.name, self.seconds)
    }
}

impl TestArgs {
    pub(crate) fn run(&self) -> Outcome {
        self.mpi.restart_with(self.installing)?;
        let found = setup::run(self.installing)?;
        let mpi = Mpi::of(&found);
        let context = Context {
            args: self,
            found,
            mpi,
            programs: OnceCell::new(),
        };
        let rows = rows(&context, &self.stages());
        println!("\n{:<8} {:>9}  result", "stage", "seconds");
        for row in &rows {
            println!("{}", row.line());
        }
        let num_passed = rows.iter().filter(|row| row.result.is_ok()).count();
        let is_failed = |row: &&Row| matches!(row.result, Err(Stop::Failed(_)));
        let num_failed = rows.iter().filter(is_failed).count();
        println!("\n{num_passed} passed, {num_failed} failed");
        match num_failed {
            0 => Ok(()),
            _ => Err(Failure::Failed(format!("{num_failed} stages failed"))),
        }
    }

    fn stages(&self) -> Vec<&'static Stage> {
        let is_chosen = |stage: &&Stage| match (self.only.is_empty(), stage.when) {
            (false, _) => self.is_named(stage.name),
            (true, When::Always) => true,
            (true, When::All) => self.all,
            (true, When::Named) => false,
        };
        STAGES.iter().filter(is_chosen).collect()
    }

    fn is_named(&self, name: &str) -> bool {
        self.only.iter().any(|named| named == name)
    }

    /// Returns the arguments of a stage in a separate process.
    fn words(&self, name: &str) -> Vec<String> {
        let mut words = vec!["test", "--only", name];
        if self.all {
            words.push("--all");
        }
        if let Some(claim) = &self.claim {
            words.extend(["--claim", claim]);
        }
        if self.installing.no_install {
            words.push("--no-install");
        }
        words.into_iter().map(str::to_owned).collect()
    }
}

impl Context<'_> {
    /// Returns the programs of the suites, built once.
    fn programs(&self) -> Checked<&Programs> {
        let programs = self.programs.get_or_init(|| Programs::build(self.mpi));
        let failed = |failure: &Failure| Stop::Failed(failure.to_string());
        programs.as_ref().map_err(failed)
    }
}

/// Runs the stages, lane by lane, and returns the rows in the order of the table.
fn rows(context: &Context<'_>, stages: &[&'static Stage]) -> Vec<Row> {
    let in_lane = |lane| -> Vec<&'static Stage> {
        let stages = stages.iter().copied();
        stages.filter(|stage| stage.lane == lane).collect()
    };
    let mut rows: Vec<Row> = in_lane(Lane::First)
        .into_iter()
        .map(|stage| row(context, stage))
        .collect();
    let computing = in_lane(Lane::Compute);
    let suites = in_lane(Lane::Suite);
    if computing.is_empty() || suites.is_empty() {
        let others = computing.into_iter().chain(suites);
        rows.extend(others.map(|stage| row(context, stage)));
    } else {
        // Cargo builds in a folder for one process at a time, and nothing may change a folder while
        // xtask copies it. A failure here repeats in the stage.
        let _ = context.programs();
        if suites.iter().any(|stage| stage.name == "mpich") {
            let _ = mpi_choice::prepare_for("mpich", context.args.installing);
        }
        rows.extend(in_two_lanes(context, computing, &suites));
    }
    rows.sort_by_key(|row| STAGES.iter().position(|stage| stage.name == row.name));
    rows
}

fn row(context: &Context<'_>, stage: &Stage) -> Row {
    println!("\n== {} ==", stage.name);
    Row::of(stage.name, || match stage.run {
        Some(run) => run(context),
        None => table::script(context.args, context.mpi, stage.name, None),
    })
}

/// Runs the suites, and computes in another thread. Prints the output of a computing stage between
/// two suites.
fn in_two_lanes(
    context: &Context<'_>,
    computing: Vec<&'static Stage>,
    suites: &[&'static Stage],
) -> Vec<Row> {
    let (sender, ended) = channel();
    let args = context.args;
    let mpi = context.mpi;
    let compute = move |stage: &Stage| {
        let log = cargo::target_folder().join(format!("stage-{}.txt", stage.name));
        let row = Row::of(stage.name, || {
            table::script(args, mpi, stage.name, Some(&log))
        });
        let text = fs::read(&log).unwrap_or_default();
        (row, String::from_utf8_lossy(&text).into_owned())
    };
    let shown = |(row, text): (Row, String)| {
        println!("\n== {} ==\n{text}", row.name);
        row
    };
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut stages = computing.into_iter();
            stages.try_for_each(|stage| sender.send(compute(stage)))
        });
        let mut rows = Vec::new();
        for stage in suites {
            rows.push(row(context, stage));
            rows.extend(ended.try_iter().map(shown));
        }
        rows.extend(ended.iter().map(shown));
        rows
    })
}

/// Returns a command that runs this program again. A build in another stage may have replaced the
/// file that this process was started from, so that `current_exe` would name a deleted file.
pub(crate) fn this_program(words: impl IntoIterator<Item: AsRef<OsStr>>) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.args(words);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: TestArgs,
    }

    fn parsed(line: &str) -> Result<TestArgs, clap::Error> {
        let line: Result<Line, _> = clap::Parser::try_parse_from(line.split(' '));
        line.map(|line| line.args)
    }

    fn names(line: &str) -> Vec<&'static str> {
        let stages = parsed(line).unwrap().stages();
        stages.iter().map(|stage| stage.name).collect()
    }

    #[test]
    fn chosen_stages_keep_their_order_and_long_ones_run_only_on_request() {
        assert_eq!(names("test --only doc,fmt"), ["fmt", "doc"]);
        assert_eq!(names("test --all").len(), STAGES.len() - 1);
        assert!(!names("test").contains(&"slurm"));
        assert_eq!(names("test --all --only slurm"), ["slurm"]);
        let error = parsed("test --only lint").unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains("clippy"), "{error}");
    }

    #[test]
    fn a_stage_in_a_separate_process_has_the_same_flags() {
        let words = |line: &str| parsed(line).unwrap().words("doc").join(" ");
        assert_eq!(
            words("test --only mpi --all --claim two --no-install"),
            "test --only doc --all --claim two --no-install"
        );
        assert_eq!(words("test"), "test --only doc");
    }
}
