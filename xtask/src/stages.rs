//! `cargo xtask test`: all checks, cheapest first.
//!
//! In: the workspace. Out: output of the tools, a table of stages, a last line `N passed, N
//! failed`. Invariant: a failed stage does not prevent the others, and the table names each skipped
//! stage.

use std::cell::OnceCell;
use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use When::{All, Always, Named};
use clap::Args;
use cluster::failure::{Failure, Outcome, failed};
use cluster::guard::Guarded;
use cluster::mpirun::Mpirun;
use cluster::options::Installing;
use cluster::process;

use crate::at;
use crate::cargo::{self, Mpi};
use crate::mpi_choice::{self, MpiChoice};
use crate::setup::{self, Found};
use crate::suite::start::Programs;
use crate::suite::{Checked, Stop};
use crate::{book, mpi_suite, report_suite, slurm_cluster, slurm_suite, tidy};

struct Stage {
    name: &'static str,
    when: When,
    about: &'static str,
    /// Function of the stage; without one, `checks.sh` runs it.
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

/// Stages in order. Those in [`FIRST`] run before all others. Then those with a function, which
/// start processes that often wait, run while those of the script compile and compute.
#[rustfmt::skip]
const STAGES: [Stage; 20] = [
    of_script("fmt", Always, "rustfmt"),
    stage("tidy", Always, "rules of this workspace", |_| Ok(tidy::run(&[])?)),
    of_script("clippy", Always, "lints"),
    of_script("test", Always, "tests of all crates"),
    of_script("doc", Always, "documentation"),
    of_script("deny", All, "licences, sources, versions and known bugs of all crates, by cargo-deny"),
    of_script("nccl", All, "cargo feature nccl; needs neither CUDA nor a GPU"),
    of_script("corpus", All, "inputs of the fuzz targets, changed ten times as often as in test"),
    of_script("memory", All, "tests of the kernels under AddressSanitizer"),
    of_script("arm", All, "kernels on aarch64; without qemu-user and a cross linker only compiled"),
    of_script("bits", All, "same bits with a C library that rounds differently, and on an emulated CPU without AVX-512"),
    of_script("features", All, "cargo features parquet and ndarray, burn-train (also under mpirun); compiles burn again"),
    stage("cuda", Named, "CUDA build without LLVM, about 40 minutes on 2 cores; kernels for a V100, A100 and H100; two ranks with emulated GPUs", cuda),
    of_script("wgpu", Named, "GPU kernels and captured steps on Mesa's Vulkan for CPUs, about 20 minutes on 2 cores"),
    stage("mpi", Always, "1 to 4 ranks under mpirun", mpi),
    stage("book", Always, "commands of the guide pages, each page in an empty folder", book),
    stage("report", Always, "page of `trainer report` in Chromium, event files in TensorBoard", report),
    stage("mpich", All, "stage mpi, built and started with MPICH in target/mpich", mpich),
    stage("slurm", All, "jobs on a Slurm cluster of two nodes on this machine; needs root or sudo", slurm),
    stage("chaos", All, "`cargo xtask chaos`", chaos),
];
const FIRST: [&str; 3] = ["fmt", "tidy", "test"];

const fn of_script(name: &'static str, when: When, about: &'static str) -> Stage {
    Stage {
        name,
        when,
        about,
        run: None,
    }
}

const fn stage(
    name: &'static str,
    when: When,
    about: &'static str,
    run: fn(&Context<'_>) -> Checked,
) -> Stage {
    Stage {
        run: Some(run),
        ..of_script(name, when, about)
    }
}

/// Longest time of a stage of the script; then it ends with all its processes.
const LIMIT: Duration = Duration::from_secs(45 * 60);

/// Flags of `cargo xtask test`.
#[derive(Debug, Args)]
#[command(after_help = details())]
pub(crate) struct TestArgs {
    /// Run the long stages and checks as well, as for a release
    #[arg(long)]
    all: bool,
    /// Stages to run
    #[arg(long, value_name = "STAGE,…", value_delimiter = ',', value_parser = STAGES.each_ref().map(|stage| stage.name))]
    only: Vec<String>,
    /// Text in the claims of the checks to run, or in the name of a page; for mpi, report, book and
    /// slurm
    #[arg(long, value_name = "TEXT")]
    claim: Option<String>,
    #[command(flatten)]
    mpi: MpiChoice,
    #[command(flatten)]
    installing: Installing,
}

/// Returns the text after the help.
fn details() -> String {
    let mut text = "Stages:\n".to_owned();
    for stage in &STAGES {
        let mark = match stage.when {
            Always => " ",
            All => "*",
            Named => "-",
        };
        text.push_str(&format!("{mark} {:<9} {}\n", stage.name, stage.about));
    }
    text + "\
* Only with --all, or named by --only; also the check of 2,000 steps in mpi. - Only if named.
--all and --only report install a browser and TensorBoard if allowed, --all and --only book modules
of Python. fmt, tidy and test run first.
Then the suites mpi, book, report, mpich, slurm and chaos run one after another, while the other stages
compile and compute.
--mpi mpich builds and starts all stages with MPICH.
MPICC=/nonexistent LOCKSTEP_NO_INSTALL=1 checks the workspace as on a machine without MPI."
}

/// Flags and findings that a stage uses.
struct Context<'a> {
    args: &'a TestArgs,
    found: Found,
    programs: OnceCell<Outcome<Programs>>,
}

impl Context<'_> {
    /// Returns the programs of the suites, built once.
    fn programs(&self) -> Checked<&Programs> {
        let build = || Programs::build(Mpi::of(&self.found));
        let programs = self.programs.get_or_init(build);
        let failed = |failure: &Failure| Stop::Failed(failure.to_string());
        programs.as_ref().map_err(failed)
    }

    /// Skips a stage without mpirun and an MPI to build with.
    fn mpirun(&self) -> Checked<&Mpirun> {
        let text = "no mpirun with an MPI to build with";
        let mpirun = self.found.launcher();
        mpirun.ok_or_else(|| Stop::Skipped(text.to_owned()))
    }

    fn claim(&self) -> Option<&str> {
        self.args.claim.as_deref()
    }

    /// Returns true if a stage may install what few people need.
    fn may_install(&self, stage: &str) -> bool {
        (self.args.all || self.args.is_named(stage)) && !self.args.installing.no_install
    }
}

/// Result of a stage.
struct Row {
    name: &'static str,
    result: Checked,
    seconds: f64,
}

impl TestArgs {
    pub(crate) fn run(&self) -> Outcome {
        self.mpi.restart_with(self.installing)?;
        let context = Context {
            args: self,
            found: setup::run(self.installing)?,
            programs: OnceCell::new(),
        };
        let mut rows = rows(&context, &self.stages());
        rows.sort_by_key(|row| STAGES.iter().position(|stage| stage.name == row.name));
        println!("\n{:<8} {:>9}  result", "stage", "seconds");
        let mut num_failed = 0;
        for row in &rows {
            let result = match &row.result {
                Ok(()) => "passed".to_owned(),
                Err(Stop::Skipped(reason)) => format!("skipped: {reason}"),
                Err(Stop::Failed(reason)) => {
                    num_failed += 1;
                    format!("FAILED: {reason}")
                }
            };
            println!("{:<8} {:>9.1}  {result}", row.name, row.seconds);
        }
        let num_passed = rows.iter().filter(|row| row.result.is_ok()).count();
        println!("\n{num_passed} passed, {num_failed} failed");
        match num_failed {
            0 => Ok(()),
            _ => Err(failed!("{num_failed} stages failed")),
        }
    }

    fn stages(&self) -> Vec<&'static Stage> {
        let is_chosen = |stage: &&Stage| match (self.only.is_empty(), stage.when) {
            (false, _) => self.is_named(stage.name),
            (true, when) => when == Always || when == All && self.all,
        };
        STAGES.iter().filter(is_chosen).collect()
    }

    fn is_named(&self, name: &str) -> bool {
        self.only.iter().any(|named| named == name)
    }

    /// Returns the arguments of the stage mpich in a separate process.
    fn words_with_mpich(&self) -> Vec<&str> {
        let mut words = vec!["test", "--only", "mpi", "--mpi", "mpich"];
        words.extend(self.all.then_some("--all"));
        words.extend(self.claim.iter().flat_map(|claim| ["--claim", claim]));
        words.extend(self.installing.no_install.then_some("--no-install"));
        words
    }
}

/// Runs the stages and returns their rows in the order of their ends.
fn rows(context: &Context<'_>, stages: &[&'static Stage]) -> Vec<Row> {
    let mpi = Mpi::of(&context.found);
    let may_install = !context.args.installing.no_install;
    let row = |stage: &&'static Stage| {
        println!("\n== {} ==", stage.name);
        row(stage.name, || match stage.run {
            Some(run) => run(context),
            None => script(stage.name, may_install, mpi, None),
        })
    };
    // First, because two stages at a time cannot install packages.
    if stages.iter().any(|stage| stage.name == "wgpu") {
        setup::provide_vulkan(context.args.installing);
    }
    let is_first = |stage: &&&Stage| FIRST.contains(&stage.name);
    let mut rows: Vec<Row> = stages.iter().filter(is_first).map(row).collect();
    let others = stages.iter().filter(|stage| !is_first(stage)).copied();
    let (suites, computing): (Vec<_>, Vec<_>) = others.partition(|stage| stage.run.is_some());
    if computing.is_empty() || suites.is_empty() {
        rows.extend(computing.iter().chain(&suites).map(row));
        return rows;
    }
    // Cargo builds in a folder for one process at a time, and nothing may change a folder while
    // xtask copies it. A failure here repeats in the stage.
    let _ = context.programs();
    if suites.iter().any(|stage| stage.name == "mpich") {
        let _ = mpi_choice::prepare_for("mpich", context.args.installing);
    }
    let (sender, ended) = channel();
    let compute = move |stage: &'static Stage| {
        let log = cargo::target_folder().join(format!("stage-{}.txt", stage.name));
        let run = || script(stage.name, may_install, mpi, Some(&log));
        let row = self::row(stage.name, run);
        (row, fs::read(&log).unwrap_or_default())
    };
    // The output of a computing stage is printed between two suites.
    let shown = |(row, text): (Row, Vec<u8>)| {
        println!("\n== {} ==\n{}", row.name, String::from_utf8_lossy(&text));
        row
    };
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut stages = computing.into_iter();
            stages.try_for_each(|stage| sender.send(compute(stage)))
        });
        for suite in &suites {
            rows.push(row(suite));
            rows.extend(ended.try_iter().map(shown));
        }
        rows.extend(ended.iter().map(shown));
    });
    rows
}

fn row(name: &'static str, run: impl FnOnce() -> Checked) -> Row {
    let start = Instant::now();
    let result = run();
    Row {
        name,
        result,
        seconds: start.elapsed().as_secs_f64(),
    }
}

/// Runs a function of `checks.sh`, with its output in a file or on the terminal.
pub(crate) fn script(name: &str, may_install: bool, mpi: Mpi, log: Option<&Path>) -> Checked {
    const SKIPPED: i32 = 77;
    let reason = cargo::target_folder().join(format!("skipped-{name}.txt"));
    let mut command = cargo::script("checks.sh");
    command.arg(name).env("REASON", &reason);
    command.env("FEATURES", mpi.features().join(" "));
    command.env("MAY_INSTALL", if may_install { "1" } else { "" });
    let code = match log {
        Some(log) => Guarded::start(&command, log)?.finish(LIMIT)?,
        None => {
            let status = command.status();
            status
                .map_err(|error| process::cannot_start(&command, &error))?
                .code()
        }
    };
    match code {
        Some(0) => Ok(()),
        Some(SKIPPED) => {
            let text = fs::read_to_string(&reason).map_err(at(&reason))?;
            Err(Stop::Skipped(text.trim().to_owned()))
        }
        _ => Err(Stop::Failed(format!("`checks.sh {name}` failed: {code:?}"))),
    }
}

/// Builds alone, as a build of 25 minutes would slow the suites.
fn cuda(context: &Context<'_>) -> Checked {
    let may_install = !context.args.installing.no_install;
    script("cuda", may_install, Mpi::of(&context.found), None)
}

fn mpi(context: &Context<'_>) -> Checked {
    let mpirun = context.found.launcher();
    let is_thorough = context.args.all || context.args.claim.is_some();
    mpi_suite::run(context.programs()?, mpirun, is_thorough, context.claim())?;
    context.mpirun().map(drop)
}

/// Runs the stage mpi with MPICH in a separate process, as builds with different MPIs must not mix.
fn mpich(context: &Context<'_>) -> Checked {
    let prepared = mpi_choice::prepare_for("mpich", context.args.installing);
    prepared.map_err(|failure| Stop::Skipped(failure.to_string()))?;
    Ok(process::run(this_program(context.args.words_with_mpich()))?)
}

fn report(context: &Context<'_>) -> Checked {
    let may_install = context.may_install("report");
    report_suite::run(&context.programs()?.trainer, context.claim(), may_install)
}

fn book(context: &Context<'_>) -> Checked {
    // The blocks whose modules are absent are skipped.
    let python = script(
        "guide_python",
        context.may_install("book"),
        Mpi::Without,
        None,
    );
    if let Err(Stop::Failed(text) | Stop::Skipped(text)) = python {
        println!("{text}");
    }
    let trainer = &context.programs()?.trainer;
    book::commands::run(trainer, context.found.launcher(), context.claim())
}

fn slurm(context: &Context<'_>) -> Checked {
    let mpirun = context.mpirun()?;
    if let Some(reason) = slurm_cluster::lacking(context.args.installing) {
        return Err(Stop::Skipped(reason));
    }
    let trainer = &context.programs()?.trainer;
    Ok(slurm_suite::run(trainer, mpirun, context.claim())?)
}

fn chaos(context: &Context<'_>) -> Checked {
    context.mpirun()?;
    let no_install = context.args.installing.no_install.then_some("--no-install");
    let words = ["chaos"].into_iter().chain(no_install);
    Ok(process::run(this_program(words))?)
}

/// Returns a command that runs this program again. A build in another stage may have replaced the
/// file that this process was started from: on Linux `current_exe` would then name a deleted file.
pub(crate) fn this_program(words: impl IntoIterator<Item: AsRef<OsStr>>) -> Command {
    let own = "/proc/self/exe";
    let program = match Path::new(own).exists() {
        true => Ok(own.into()),
        false => env::current_exe(),
    };
    let mut command = Command::new(program.unwrap_or_else(|_| own.into()));
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
        assert_eq!(names("test --all").len(), STAGES.len() - 2);
        assert!(!names("test").contains(&"slurm"));
        assert_eq!(names("test --all --only slurm"), ["slurm"]);
        let error = parsed("test --only lint").unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains("clippy"), "{error}");
    }

    #[test]
    fn a_stage_in_a_separate_process_has_the_same_flags() {
        let words = |line: &str| parsed(line).unwrap().words_with_mpich().join(" ");
        assert_eq!(
            words("test --only mpi --all --claim two --no-install"),
            "test --only mpi --mpi mpich --all --claim two --no-install"
        );
        assert_eq!(words("test"), "test --only mpi --mpi mpich");
    }

    #[test]
    fn the_help_marks_the_long_stages() {
        assert!(details().contains("\n* slurm "), "{}", details());
    }
}
