//! `cargo xtask test`: everything that is checked, cheapest first.
//!
//! In: the workspace. Out: the tools' own output, a table of stages, a last line `N passed, N failed`.
//! Invariant: a failing stage does not keep the others from running; what is skipped is said aloud.

mod beside;
mod verdict;

use std::cell::OnceCell;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Instant;

use clap::Args;

use crate::cargo::{self, Mpi};
use crate::deny;
use crate::features;
use crate::kernel_stages;
use crate::mpi_choice::{self, MpiChoice};
use crate::mpi_suite;
use crate::probe::Found;
use crate::processor_stage;
use crate::report_suite;
use crate::setup;
use crate::slurm_cluster;
use crate::slurm_suite;
use crate::suite::Programs;
use crate::tidy;
use cluster::failure::{Failure, Outcome};
use cluster::options::Installing;
use cluster::process;

use verdict::{Row, Verdict, table};

const DETAILS: &str = "\
Stages in order: fmt, tidy, clippy, test, doc, deny, nccl, corpus, memory, arm, bits, features, mpi, report, mpich, slurm, chaos.
Only with --all, or named by --only: deny, nccl, corpus, memory, arm, bits, features, mpich, slurm, chaos, and of mpi the check of 2,000 steps.
fmt, tidy and test come first. Then the suites, mpi, report, mpich, slurm and chaos, whose processes often wait, run one after the
other; clippy, doc, deny, nccl, corpus, memory, arm, bits and features compile and compute beside them, and what they write is shown
when they end.
The deny stage checks licences, sources, versions and known faults of all crates by cargo-deny, where it is installed.
The nccl stage checks and tests what the cargo feature nccl adds; it needs neither CUDA nor a GPU.
The corpus stage changes each input of the fuzz targets ten times as often as the stage test does.
The memory stage runs the kernels' tests under AddressSanitizer; arm compiles them for aarch64, and runs them where
qemu-user and a cross linker are installed.
The bits stage trains with a C library that rounds otherwise and, where qemu-user is installed, on an emulated processor without
AVX-512: the parameters must be those that the test names.
The mpi stage runs on 1 to 4 ranks under mpirun; without mpirun only its launcher checks run, and that is said aloud.
The report stage opens the page of `trainer report` in a headless Chromium, which --all and --only report install.
With --mpi mpich the stages are built with MPICH, in target/mpich, and started with its mpirun; MPICH is installed beside the
other MPI where that is allowed. The mpich stage is the mpi stage so.
The features stage tests what the cargo features burn-train (also under mpirun), parquet and ndarray add, the last of which is a second
backend of burn, for a second opinion; it compiles burn anew.
The slurm stage starts a small Slurm cluster of two nodes on this machine, trains, stops, preempts and kills jobs there, and
stops it again, within ten minutes; it needs root or sudo without a password. The chaos stage is `cargo xtask chaos`.
MPICC=/nonexistent LOCKSTEP_NO_INSTALL=1 checks the workspace as on a machine without MPI.";

/// Flags of `cargo xtask test`.
#[derive(Debug, Args)]
#[command(after_help = DETAILS)]
pub(crate) struct TestArgs {
    /// Also the long stages and checks, as a release needs.
    #[arg(long)]
    all: bool,
    /// Only these stages.
    #[arg(long, value_name = "STAGE,…")]
    only: Option<String>,
    /// Of mpi, features, report and slurm only the checks that claim this.
    #[arg(long, value_name = "TEXT")]
    claim: Option<String>,
    #[command(flatten)]
    mpi: MpiChoice,
    #[command(flatten)]
    installing: Installing,
}

/// What a stage may need to know.
struct Context<'a> {
    args: &'a TestArgs,
    found: Found,
    mpi: Mpi,
    programs: OnceCell<Outcome<Programs>>,
}

struct Stage {
    name: &'static str,
    turn: Turn,
    /// Left out without `--all`.
    is_long: bool,
    run: fn(&Context<'_>) -> Verdict,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Turn {
    /// Before all others.
    First,
    /// One after the other in a process of its own each, beside the suites.
    Beside,
    /// Starts processes that often wait, for each other or for a deadline.
    Suite,
}

const fn stage(name: &'static str, turn: Turn, run: fn(&Context<'_>) -> Verdict) -> Stage {
    Stage {
        name,
        turn,
        is_long: false,
        run,
    }
}

const fn long(name: &'static str, turn: Turn, run: fn(&Context<'_>) -> Verdict) -> Stage {
    Stage {
        name,
        turn,
        is_long: true,
        run,
    }
}

const STAGES: [Stage; 17] = [
    stage("fmt", Turn::First, format),
    stage("tidy", Turn::First, |_| tidy::run().into()),
    stage("clippy", Turn::Beside, lints),
    stage("test", Turn::First, |context| {
        over_workspace(context, "test", &[]).into()
    }),
    stage("doc", Turn::Beside, documentation),
    long("deny", Turn::Beside, |_| or_skipped(deny::check())),
    long("nccl", Turn::Beside, nccl),
    long("corpus", Turn::Beside, |context| corpus(context).into()),
    long("memory", Turn::Beside, |_| {
        or_skipped(kernel_stages::sanitized())
    }),
    long("arm", Turn::Beside, |_| or_skipped(kernel_stages::on_arm())),
    long("bits", Turn::Beside, |context| {
        or_skipped(processor_stage::same_bits(context.mpi))
    }),
    long("features", Turn::Beside, cargo_features),
    stage("mpi", Turn::Suite, mpi),
    stage("report", Turn::Suite, report),
    long("mpich", Turn::Suite, mpich),
    long("slurm", Turn::Suite, slurm),
    long("chaos", Turn::Suite, chaos),
];

impl TestArgs {
    /// All stages, as a release needs.
    pub(crate) fn all(installing: Installing) -> Self {
        TestArgs {
            all: true,
            only: None,
            claim: None,
            mpi: MpiChoice::default(),
            installing,
        }
    }

    /// Runs all stages but the long ones, all, or those of `--only`.
    pub(crate) fn run(&self) -> Outcome {
        let stages = chosen(self.only.as_deref(), self.all)?;
        self.mpi.go_on_with(self.installing)?;
        let found = setup::run(self.installing)?;
        let mpi = Mpi::of(&found);
        let context = Context {
            args: self,
            found,
            mpi,
            programs: OnceCell::new(),
        };
        let rows = rows(&context, &stages);
        println!("\n{}", table(&rows));
        let num_failed = rows
            .iter()
            .filter(|row| matches!(row.verdict, Verdict::Failed(_)))
            .count();
        let num_passed = rows
            .iter()
            .filter(|row| matches!(row.verdict, Verdict::Passed))
            .count();
        println!("{num_passed} passed, {num_failed} failed");
        if num_failed == 0 {
            Ok(())
        } else {
            Err(Failure::Failed(format!(
                "{num_failed} stages failed, see above"
            )))
        }
    }

    /// What a stage in a process of its own is told beside its name.
    fn further(&self) -> Vec<&str> {
        let all: &[&str] = if self.all { &["--all"] } else { &[] };
        let claim = self.claim.as_deref().map(|text| ["--claim", text]);
        [
            all,
            claim.as_ref().map_or(&[], |words| words),
            self.no_install(),
        ]
        .concat()
    }

    fn no_install(&self) -> &[&str] {
        if self.installing.no_install {
            &["--no-install"]
        } else {
            &[]
        }
    }
}

/// Runs the stages, each in its turn; the rows stand in the order of the stages.
fn rows(context: &Context<'_>, stages: &[&'static Stage]) -> Vec<Row> {
    let of = |turn| {
        stages
            .iter()
            .copied()
            .filter(move |stage| stage.turn == turn)
            .collect::<Vec<_>>()
    };
    let [first, beside, suites] = [Turn::First, Turn::Beside, Turn::Suite].map(of);
    let mut rows: Vec<Row> = first.into_iter().map(|stage| row(context, stage)).collect();
    if beside.is_empty() || suites.is_empty() {
        rows.extend(
            [beside, suites]
                .concat()
                .into_iter()
                .map(|stage| row(context, stage)),
        );
    } else {
        // Cargo builds into a folder for one at a time, and what is copied must not change meanwhile. What fails here fails in its stage.
        let _ = context.programs();
        if suites.iter().any(|stage| stage.name == "mpich") {
            let _ = mpi_choice::prepare_for("mpich", context.args.installing);
        }
        rows.extend(in_two_lanes(context, beside, &suites));
    }
    rows.sort_by_key(|row| STAGES.iter().position(|stage| stage.name == row.name));
    rows
}

fn row(context: &Context<'_>, stage: &Stage) -> Row {
    println!("\n== {} ==", stage.name);
    let start = Instant::now();
    let verdict = (stage.run)(context);
    Row {
        name: stage.name,
        verdict,
        seconds: start.elapsed().as_secs_f64(),
    }
}

/// The suites speak at once; the output of what ran beside them is shown whole between two of them.
fn in_two_lanes(
    context: &Context<'_>,
    beside: Vec<&'static Stage>,
    suites: &[&'static Stage],
) -> Vec<Row> {
    let (sender, ended) = channel();
    let further = context.args.further();
    let shown = |ended: beside::Ended| {
        println!("\n== {} ==\n{}", ended.row.name, ended.text);
        ended.row
    };
    thread::scope(|scope| {
        scope.spawn(move || {
            beside
                .into_iter()
                .try_for_each(|stage| sender.send(beside::run(stage.name, &further)))
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

fn chosen(only: Option<&str>, is_all: bool) -> Outcome<Vec<&'static Stage>> {
    let Some(only) = only else {
        return Ok(STAGES
            .iter()
            .filter(|stage| is_all || !stage.is_long)
            .collect());
    };
    let names: Vec<&str> = only.split(',').collect();
    if let Some(unknown) = names
        .iter()
        .find(|name| STAGES.iter().all(|stage| stage.name != **name))
    {
        let known: Vec<&str> = STAGES.iter().map(|stage| stage.name).collect();
        return Err(Failure::Usage(format!(
            "--only: unknown stage `{unknown}`, expected some of: {}",
            known.join(",")
        )));
    }
    Ok(STAGES
        .iter()
        .filter(|stage| names.contains(&stage.name))
        .collect())
}

fn format(context: &Context<'_>) -> Verdict {
    if !setup::has_component(context.args.installing, "rustfmt", "fmt") {
        return Verdict::Skipped("no rustfmt, `rustup component add rustfmt` adds it".to_owned());
    }
    process::run(cargo::command(&["fmt", "--all", "--", "--check"])).into()
}

fn lints(context: &Context<'_>) -> Verdict {
    if !setup::has_component(context.args.installing, "clippy", "clippy") {
        return Verdict::Skipped("no clippy, `rustup component add clippy` adds it".to_owned());
    }
    over_workspace(
        context,
        "clippy",
        &["--all-targets", "--", "-D", "warnings"],
    )
    .into()
}

fn documentation(context: &Context<'_>) -> Verdict {
    let mut command = cargo::command(&["doc", "--no-deps", "--workspace"]);
    command
        .args(context.mpi.features())
        .env("RUSTDOCFLAGS", "-D warnings");
    process::run(command).into()
}

/// Apart from the other stages: with this feature among theirs, everybody who builds without it would build twice.
fn nccl(context: &Context<'_>) -> Verdict {
    const LINTS: [&str; 8] = [
        "--features",
        "nccl",
        "--lib",
        "--test",
        "nccl",
        "--",
        "-D",
        "warnings",
    ];
    if setup::has_component(context.args.installing, "clippy", "clippy")
        && let Err(failure) = over_workspace(context, "clippy", &LINTS)
    {
        return Verdict::Failed(failure.to_string());
    }
    // The package alone: the unit tests of all others would be compiled again for this feature.
    let features = if context.mpi == Mpi::With {
        "mpi,nccl"
    } else {
        "nccl"
    };
    let of_package = [
        "test",
        "--package",
        "lockstep-distributed",
        "--features",
        features,
    ];
    let loader = cargo::command(&[&of_package[..], &["--lib", "--", "nccl::"]].concat());
    let tests = cargo::command(&[&of_package[..], &["--test", "nccl"]].concat());
    process::run(loader)
        .and_then(|()| process::run(tests))
        .into()
}

fn over_workspace(context: &Context<'_>, subcommand: &str, further: &[&str]) -> Outcome {
    let mut command = cargo::command(&[subcommand, "--workspace"]);
    command.args(context.mpi.features()).args(further);
    process::run(command)
}

fn or_skipped(outcome: Result<Outcome, kernel_stages::Reason>) -> Verdict {
    outcome.map_or_else(Verdict::Skipped, Verdict::from)
}

fn corpus(context: &Context<'_>) -> Outcome {
    let mut command = cargo::command(&["test", "--workspace", "--test", "corpus"]);
    command
        .args(context.mpi.features())
        .env("LOCKSTEP_FUZZ_CHANGES", "200");
    process::run(command)
}

fn mpi(context: &Context<'_>) -> Verdict {
    let mpirun = context
        .found
        .mpirun
        .as_ref()
        .filter(|_| context.mpi == Mpi::With);
    let programs = match context.programs() {
        Ok(programs) => programs,
        Err(failed) => return failed,
    };
    let claim = context.args.claim.as_deref();
    let is_thorough = context.args.all || claim.is_some();
    match (mpi_suite::run(programs, mpirun, is_thorough, claim), mpirun) {
        (Err(failure), _) => Verdict::Failed(failure.to_string()),
        (Ok(()), Some(_)) => Verdict::Passed,
        (Ok(()), None) => Verdict::Skipped(
            "no mpirun with an MPI to build with; the launcher checks passed".to_owned(),
        ),
    }
}

/// The stage before with MPICH, by this program again: what is built with one MPI is not mixed with the other.
fn mpich(context: &Context<'_>) -> Verdict {
    if let Some(reason) = mpi_choice::lacking("mpich", context.args.installing) {
        return Verdict::Skipped(reason);
    }
    let mut words = vec!["test", "--only", "mpi", mpi_choice::FLAG, "mpich"];
    words.extend(context.args.further());
    beside::again(&words).and_then(process::run).into()
}

fn cargo_features(context: &Context<'_>) -> Verdict {
    let mpirun = context
        .found
        .mpirun
        .as_ref()
        .filter(|_| context.mpi == Mpi::With);
    match (
        features::run(context.mpi, mpirun, context.args.claim.as_deref()),
        mpirun,
    ) {
        (Ok(()), None) => {
            Verdict::Skipped("no mpirun with an MPI to build with; on threads it passed".to_owned())
        }
        (outcome, _) => outcome.into(),
    }
}

fn report(context: &Context<'_>) -> Verdict {
    let args = context.args;
    let is_named = args
        .only
        .as_deref()
        .is_some_and(|only| only.split(',').any(|name| name == "report"));
    match (
        report_suite::lacking(args.installing, is_named || args.all),
        context.programs(),
    ) {
        (Some(reason), _) => Verdict::Skipped(reason),
        (None, Err(failed)) => failed,
        (None, Ok(programs)) => {
            let may_provide = (is_named || args.all) && !args.installing.no_install;
            report_suite::run(&programs.trainer, args.claim.as_deref(), may_provide).into()
        }
    }
}

fn slurm(context: &Context<'_>) -> Verdict {
    let Some(mpirun) = context
        .found
        .mpirun
        .as_ref()
        .filter(|_| context.mpi == Mpi::With)
    else {
        return Verdict::Skipped("no mpirun with an MPI to build with".to_owned());
    };
    match (
        slurm_cluster::lacking(context.args.installing),
        context.programs(),
    ) {
        (Some(reason), _) => Verdict::Skipped(reason),
        (None, Err(failed)) => failed,
        (None, Ok(programs)) => {
            slurm_suite::run(&programs.trainer, mpirun, context.args.claim.as_deref()).into()
        }
    }
}

fn chaos(context: &Context<'_>) -> Verdict {
    if context.found.mpirun.is_none() || context.mpi == Mpi::Without {
        return Verdict::Skipped("no mpirun with an MPI to build with".to_owned());
    }
    beside::again(&[&["chaos"], context.args.no_install()].concat())
        .and_then(process::run)
        .into()
}

impl Context<'_> {
    /// What the suites start, built once.
    fn programs(&self) -> Result<&Programs, Verdict> {
        let has_launcher = self.found.mpirun.is_some() && self.mpi == Mpi::With;
        let programs = self
            .programs
            .get_or_init(|| Programs::build(self.mpi, has_launcher));
        programs
            .as_ref()
            .map_err(|failure| Verdict::Failed(failure.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(only: &str) -> Vec<&'static str> {
        chosen(Some(only), false)
            .unwrap()
            .iter()
            .map(|stage| stage.name)
            .collect()
    }

    #[test]
    fn chosen_stages_keep_their_order() {
        assert_eq!(names("doc,fmt"), ["fmt", "doc"]);
    }

    #[test]
    fn long_stages_run_only_when_asked_for() {
        let has_slurm = |only, is_all| {
            chosen(only, is_all)
                .unwrap()
                .iter()
                .any(|stage| stage.name == "slurm")
        };
        assert!(
            !has_slurm(None, false) && has_slurm(None, true) && has_slurm(Some("slurm"), false)
        );
        assert!(!has_slurm(Some("mpi"), true), "only what is named");
        assert_eq!(chosen(None, true).unwrap().len(), STAGES.len());
        let missing = STAGES.iter().filter(|stage| stage.is_long).find(|stage| {
            !DETAILS
                .lines()
                .any(|line| line.starts_with("Only with --all") && line.contains(stage.name))
        });
        assert!(
            missing.is_none(),
            "{:?} is not told to be long",
            missing.map(|stage| stage.name)
        );
    }

    #[test]
    fn a_stage_beside_the_suites_is_told_the_claim_and_the_other_flags() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: TestArgs,
        }
        let words = ["--all", "--claim", "two words", "--no-install"];
        let Line { args } =
            clap::Parser::parse_from([&["test", "--only", "mpi,features"], &words[..]].concat());
        assert_eq!(args.further(), words);
        assert!(
            TestArgs {
                claim: None,
                all: false,
                installing: Installing::default(),
                ..args
            }
            .further()
            .is_empty()
        );
    }

    #[test]
    fn an_unknown_stage_is_refused_with_the_known_ones() {
        let Err(failure) = chosen(Some("fmt,lint"), false) else {
            panic!("`lint` is no stage")
        };
        assert_eq!(failure.exit_code(), 2);
        assert!(failure.to_string().contains("`lint`") && failure.to_string().contains("clippy"));
    }

    #[test]
    fn the_help_names_the_stages_in_their_order() {
        let names: Vec<&str> = STAGES.iter().map(|stage| stage.name).collect();
        assert!(DETAILS.contains(&names.join(", ")));
    }
}
