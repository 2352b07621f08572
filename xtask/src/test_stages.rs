//! `cargo xtask test`: everything that is checked, cheapest first.
//!
//! In: the workspace. Out: the tools' own output, a table of stages, a last line `N passed, N failed`.
//! Invariant: a failing stage does not keep the others from running; what is skipped is said aloud.

use std::time::Instant;

use clap::Args;

use crate::cargo::{self, Mpi};
use crate::kernel_stages;
use crate::mpi_choice::{self, MpiChoice};
use crate::mpi_suite;
use crate::probe::Found;
use crate::report_suite;
use crate::setup;
use crate::slurm_cluster;
use crate::slurm_suite;
use crate::tidy;
use jobs::failure::{Failure, Outcome};
use jobs::options::Installing;
use jobs::process;

const DETAILS: &str = "\
Stages in order: fmt, tidy, clippy, test, doc, nccl, memory, arm, mpi, mpich, report, slurm.
The nccl stage checks and tests what the cargo feature nccl adds; it needs neither CUDA nor a GPU.
The memory stage runs the kernels' tests under AddressSanitizer; arm compiles them for aarch64, and runs them where
qemu-user and a cross linker are installed.
The mpi stage runs on 1 to 4 ranks under mpirun; without mpirun only its launcher checks run, and that is said aloud.
With --mpi mpich the stages are built with MPICH, in target/mpich, and started with its mpirun; MPICH is installed beside the
other MPI where that is allowed. The mpich stage is the mpi stage so. It runs with --mpich or --only mpich.
The report stage opens the page of `trainer report` in a headless Chromium; with --report or --only report a missing one is
installed.
The slurm stage starts a small Slurm cluster of two nodes on this machine, trains, stops, preempts and kills jobs there, and
stops it again, within ten minutes. It runs with --slurm or --only slurm, and needs root or sudo without a password.
MPICC=/nonexistent LOCKSTEP_NO_INSTALL=1 checks the workspace as on a machine without MPI.";

/// Flags of `cargo xtask test`.
#[derive(Debug, Args)]
#[command(after_help = DETAILS)]
pub(crate) struct TestArgs {
    /// Only these stages.
    #[arg(long, value_name = "STAGE,…")]
    only: Option<String>,
    /// Of mpi, report and slurm only the checks that claim this.
    #[arg(long, value_name = "TEXT")]
    claim: Option<String>,
    #[command(flatten)]
    mpi: MpiChoice,
    #[command(flatten)]
    more: More,
    #[command(flatten)]
    installing: Installing,
}

/// What runs only when it is asked for.
#[derive(Debug, Clone, Copy, Default, Args)]
struct More {
    /// Also the stage mpich.
    #[arg(long)]
    mpich: bool,
    /// Install what the stage report needs.
    #[arg(long)]
    report: bool,
    /// Also the stage slurm.
    #[arg(long)]
    slurm: bool,
}

impl More {
    /// Whether a stage runs that is not named by `--only`.
    fn has(self, stage: &str) -> bool {
        match stage {
            "mpich" => self.mpich,
            "slurm" => self.slurm,
            _ => false,
        }
    }
}

/// What a stage may need to know.
struct Context<'a> {
    args: &'a TestArgs,
    found: Found,
    mpi: Mpi,
}

struct Stage {
    name: &'static str,
    run: fn(&Context<'_>) -> Verdict,
}

enum Verdict {
    Passed,
    Skipped(String),
    Failed(String),
}

struct Row {
    name: &'static str,
    verdict: Verdict,
    seconds: f64,
}

const STAGES: [Stage; 12] = [
    Stage { name: "fmt", run: format },
    Stage { name: "tidy", run: |_| tidy::run().into() },
    Stage { name: "clippy", run: lints },
    Stage { name: "test", run: |context| over_workspace(context, "test", &[]).into() },
    Stage { name: "doc", run: documentation },
    Stage { name: "nccl", run: nccl },
    Stage { name: "memory", run: |_| or_skipped(kernel_stages::sanitized()) },
    Stage { name: "arm", run: |_| or_skipped(kernel_stages::on_arm()) },
    Stage { name: "mpi", run: mpi },
    Stage { name: "mpich", run: mpich },
    Stage { name: "report", run: report },
    Stage { name: "slurm", run: slurm },
];

/// The stages that run only when asked for.
const ASKED_FOR: [&str; 2] = ["mpich", "slurm"];

impl TestArgs {
    /// All stages but those to be asked for.
    pub(crate) fn all(installing: Installing) -> Self {
        TestArgs { only: None, claim: None, mpi: MpiChoice::default(), more: More::default(), installing }
    }

    /// Runs all stages but those to be asked for, or those of `--only`.
    pub(crate) fn run(&self) -> Outcome {
        let stages = chosen(self.only.as_deref(), self.more)?;
        self.mpi.go_on_with(self.installing)?;
        let found = setup::run(self.installing)?;
        let mpi = if found.can_build_mpi() { Mpi::With } else { Mpi::Without };
        let context = Context { args: self, found, mpi };
        let rows: Vec<Row> = stages
            .into_iter()
            .map(|stage| {
                println!("\n== {} ==", stage.name);
                let start = Instant::now();
                let verdict = (stage.run)(&context);
                Row { name: stage.name, verdict, seconds: start.elapsed().as_secs_f64() }
            })
            .collect();
        println!("\n{}", table(&rows));
        let num_failed = rows.iter().filter(|row| matches!(row.verdict, Verdict::Failed(_))).count();
        let num_passed = rows.iter().filter(|row| matches!(row.verdict, Verdict::Passed)).count();
        println!("{num_passed} passed, {num_failed} failed");
        if num_failed == 0 { Ok(()) } else { Err(Failure::Failed(format!("{num_failed} stages failed, see above"))) }
    }
}

fn chosen(only: Option<&str>, more: More) -> Outcome<Vec<&'static Stage>> {
    let Some(only) = only else {
        let is_wanted = |stage: &&Stage| !ASKED_FOR.contains(&stage.name) || more.has(stage.name);
        return Ok(STAGES.iter().filter(is_wanted).collect());
    };
    let names: Vec<&str> = only.split(',').collect();
    if let Some(unknown) = names.iter().find(|name| STAGES.iter().all(|stage| stage.name != **name)) {
        let known: Vec<&str> = STAGES.iter().map(|stage| stage.name).collect();
        return Err(Failure::Usage(format!(
            "--only: unknown stage `{unknown}`, expected some of: {}",
            known.join(",")
        )));
    }
    Ok(STAGES.iter().filter(|stage| names.contains(&stage.name) || more.has(stage.name)).collect())
}

fn table(rows: &[Row]) -> String {
    let mut text = format!("{:<8} {:>9}  result\n", "stage", "seconds");
    for Row { name, verdict, seconds } in rows {
        let verdict = match verdict {
            Verdict::Passed => "passed".to_owned(),
            Verdict::Skipped(reason) => format!("skipped: {reason}"),
            Verdict::Failed(reason) => format!("FAILED: {reason}"),
        };
        text.push_str(&format!("{name:<8} {seconds:>9.1}  {verdict}\n"));
    }
    text
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
    over_workspace(context, "clippy", &["--all-targets", "--", "-D", "warnings"]).into()
}

fn documentation(context: &Context<'_>) -> Verdict {
    let mut command = cargo::command(&["doc", "--no-deps", "--workspace"]);
    command.args(context.mpi.test_features()).env("RUSTDOCFLAGS", "-D warnings");
    process::run(command).into()
}

/// Apart from the other stages: with this feature among theirs, everybody who builds without it would build twice.
fn nccl(context: &Context<'_>) -> Verdict {
    const LINTS: [&str; 8] = ["--features", "nccl", "--lib", "--test", "nccl", "--", "-D", "warnings"];
    if setup::has_component(context.args.installing, "clippy", "clippy")
        && let Err(failure) = over_workspace(context, "clippy", &LINTS)
    {
        return Verdict::Failed(failure.to_string());
    }
    over_workspace(context, "test", &["--features", "nccl", "--test", "nccl"]).into()
}

fn over_workspace(context: &Context<'_>, subcommand: &str, further: &[&str]) -> Outcome {
    let mut command = cargo::command(&[subcommand, "--workspace"]);
    command.args(context.mpi.test_features()).args(further);
    process::run(command)
}

fn or_skipped(outcome: Result<Outcome, kernel_stages::Reason>) -> Verdict {
    outcome.map_or_else(Verdict::Skipped, Verdict::from)
}

fn mpi(context: &Context<'_>) -> Verdict {
    let mpirun = context.found.mpirun.as_ref().filter(|_| context.mpi == Mpi::With);
    match (mpi_suite::run(context.mpi, mpirun, context.args.claim.as_deref()), mpirun) {
        (Err(failure), _) => Verdict::Failed(failure.to_string()),
        (Ok(()), Some(_)) => Verdict::Passed,
        (Ok(()), None) => {
            Verdict::Skipped("no mpirun with an MPI to build with; the launcher checks passed".to_owned())
        }
    }
}

/// The stage before with MPICH, by this program again: what is built with one MPI is not mixed with the other.
fn mpich(context: &Context<'_>) -> Verdict {
    if let Some(reason) = mpi_choice::lacking("mpich", context.args.installing) {
        return Verdict::Skipped(reason);
    }
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return Verdict::Failed(format!("this program: {error}")),
    };
    let mut command = std::process::Command::new(program);
    command.args(["test", "--only", "mpi", mpi_choice::FLAG, "mpich"]);
    command.args(context.args.claim.as_deref().into_iter().flat_map(|text| ["--claim", text]));
    command.args(context.args.installing.no_install.then_some("--no-install"));
    process::run(command).into()
}

fn report(context: &Context<'_>) -> Verdict {
    let args = context.args;
    let is_named = args.only.as_deref().is_some_and(|only| only.split(',').any(|name| name == "report"));
    match report_suite::lacking(args.installing, is_named || args.more.report) {
        Some(reason) => Verdict::Skipped(reason),
        None => report_suite::run(context.mpi, args.claim.as_deref()).into(),
    }
}

fn slurm(context: &Context<'_>) -> Verdict {
    let Some(mpirun) = context.found.mpirun.as_ref().filter(|_| context.mpi == Mpi::With) else {
        return Verdict::Skipped("no mpirun with an MPI to build with".to_owned());
    };
    match slurm_cluster::lacking(context.args.installing) {
        Some(reason) => Verdict::Skipped(reason),
        None => slurm_suite::run(context.mpi, mpirun, context.args.claim.as_deref()).into(),
    }
}

impl From<Outcome> for Verdict {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Ok(()) => Verdict::Passed,
            Err(failure) => Verdict::Failed(failure.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(only: &str) -> Vec<&'static str> {
        chosen(Some(only), More::default()).unwrap().iter().map(|stage| stage.name).collect()
    }

    #[test]
    fn chosen_stages_keep_their_order() {
        assert_eq!(names("doc,fmt"), ["fmt", "doc"]);
    }

    #[test]
    fn mpich_and_the_cluster_are_run_only_when_asked_for() {
        let more = |has: bool| More { mpich: has, slurm: has, report: false };
        let has_slurm = |only, has: bool| chosen(only, more(has)).unwrap().iter().any(|stage| stage.name == "slurm");
        assert!(!has_slurm(None, false) && !has_slurm(Some("mpi"), false));
        assert!(has_slurm(None, true) && has_slurm(Some("mpi"), true) && has_slurm(Some("slurm"), false));
        assert_eq!(chosen(None, more(true)).unwrap().len(), STAGES.len());
    }

    #[test]
    fn an_unknown_stage_is_refused_with_the_known_ones() {
        let Err(failure) = chosen(Some("fmt,lint"), More::default()) else { panic!("`lint` is no stage") };
        assert_eq!(failure.exit_code(), 2);
        assert!(failure.to_string().contains("`lint`") && failure.to_string().contains("clippy"));
    }

    #[test]
    fn the_help_names_the_stages_in_their_order() {
        let names: Vec<&str> = STAGES.iter().map(|stage| stage.name).collect();
        assert!(DETAILS.contains(&names.join(", ")));
    }

    #[test]
    fn the_table_shows_seconds_and_reasons() {
        let rows = [
            Row { name: "fmt", verdict: Verdict::Passed, seconds: 1.26 },
            Row { name: "mpi", verdict: Verdict::Skipped("no mpirun".to_owned()), seconds: 0.0 },
        ];
        let text = table(&rows);
        assert!(text.contains("fmt            1.3  passed\n"), "{text}");
        assert!(text.contains("skipped: no mpirun"));
    }
}
