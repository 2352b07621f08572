//! `cargo xtask test`: everything that is checked, cheapest first.
//!
//! In: the workspace. Out: the tools' own output, a table of stages, a last line `N passed, N failed`.
//! Invariant: a failing stage does not keep the others from running; what is skipped is said aloud.

use std::time::Instant;

use crate::arguments::{Arguments, Command, Flag};
use crate::cargo::{self, Mpi};
use crate::failure::{Failure, Outcome};
use crate::kernel_stages;
use crate::mpi_choice::{self, MPI};
use crate::mpi_suite;
use crate::probe::Found;
use crate::process;
use crate::report_suite;
use crate::setup::{self, NO_INSTALL};
use crate::slurm_cluster;
use crate::slurm_suite;
use crate::tidy;

pub(crate) const COMMAND: Command = Command {
    name: "test",
    summary: "Set up and run all checks: format, tidy, lints, tests, documentation, NCCL, addresses, aarch64, MPI, MPICH, a browser, Slurm.",
    details: "\
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
MPICC=/nonexistent LOCKSTEP_NO_INSTALL=1 checks the workspace as on a machine without MPI.",
    subjects: &[],
    parts: &[],
    object: None,
    flags: &[
        Flag { name: "--only", value: Some("STAGE,…"), help: "only these stages" },
        Flag { name: CLAIM, value: Some("TEXT"), help: "of mpi, report and slurm only the checks that claim this" },
        MPI,
        Flag { name: MPICH, value: None, help: "also the stage mpich" },
        Flag { name: REPORT, value: None, help: "install what the stage report needs" },
        Flag { name: SLURM, value: None, help: "also the stage slurm" },
        NO_INSTALL,
    ],
    passed_on: None,
    run: |arguments| run(&arguments),
};

const CLAIM: &str = "--claim";
const MPICH: &str = "--mpich";
const REPORT: &str = "--report";
const SLURM: &str = "--slurm";

/// What a stage may need to know.
struct Context<'a> {
    arguments: &'a Arguments,
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

/// The stages that run only when asked for, with the flag that does so beside `--only`.
const ASKED_FOR: [(&str, &str); 2] = [("mpich", MPICH), ("slurm", SLURM)];

/// Runs all stages but those to be asked for, or those of `--only`.
pub(crate) fn run(arguments: &Arguments) -> Outcome {
    let stages = chosen(arguments.value("--only"), |flag| arguments.has(flag))?;
    mpi_choice::go_on_with(arguments)?;
    let found = setup::run(arguments)?;
    let mpi = if found.can_build_mpi() { Mpi::With } else { Mpi::Without };
    let context = Context { arguments, found, mpi };
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

fn chosen(only: Option<&str>, has: impl Fn(&str) -> bool) -> Outcome<Vec<&'static Stage>> {
    let is_wanted = |stage: &Stage| ASKED_FOR.iter().all(|(name, flag)| stage.name != *name || has(flag));
    let Some(only) = only else { return Ok(STAGES.iter().filter(|stage| is_wanted(stage)).collect()) };
    let mut names: Vec<&str> = only.split(',').collect();
    if let Some(unknown) = names.iter().find(|name| STAGES.iter().all(|stage| stage.name != **name)) {
        let known: Vec<&str> = STAGES.iter().map(|stage| stage.name).collect();
        return Err(Failure::Usage(format!(
            "--only: unknown stage `{unknown}`, expected some of: {}",
            known.join(",")
        )));
    }
    names.extend(ASKED_FOR.iter().filter(|(_, flag)| has(flag)).map(|(name, _)| *name));
    Ok(STAGES.iter().filter(|stage| names.contains(&stage.name)).collect())
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
    if !setup::has_component(context.arguments, "rustfmt", "fmt") {
        return Verdict::Skipped("no rustfmt, `rustup component add rustfmt` adds it".to_owned());
    }
    process::run(cargo::command(&["fmt", "--all", "--", "--check"])).into()
}

fn lints(context: &Context<'_>) -> Verdict {
    if !setup::has_component(context.arguments, "clippy", "clippy") {
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
    if setup::has_component(context.arguments, "clippy", "clippy")
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
    match (mpi_suite::run(context.mpi, mpirun, context.arguments.value(CLAIM)), mpirun) {
        (Err(failure), _) => Verdict::Failed(failure.to_string()),
        (Ok(()), Some(_)) => Verdict::Passed,
        (Ok(()), None) => {
            Verdict::Skipped("no mpirun with an MPI to build with; the launcher checks passed".to_owned())
        }
    }
}

/// The stage before with MPICH, by this program again: what is built with one MPI is not mixed with the other.
fn mpich(context: &Context<'_>) -> Verdict {
    if let Some(reason) = mpi_choice::lacking("mpich", context.arguments) {
        return Verdict::Skipped(reason);
    }
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return Verdict::Failed(format!("this program: {error}")),
    };
    let mut command = std::process::Command::new(program);
    command.args(["test", "--only", "mpi", MPI.name, "mpich"]);
    command.args(context.arguments.value(CLAIM).into_iter().flat_map(|text| [CLAIM, text]));
    command.args(context.arguments.has(NO_INSTALL.name).then_some(NO_INSTALL.name));
    process::run(command).into()
}

fn report(context: &Context<'_>) -> Verdict {
    let arguments = context.arguments;
    let is_named = arguments.value("--only").is_some_and(|only| only.split(',').any(|name| name == "report"));
    match report_suite::lacking(arguments, is_named || arguments.has(REPORT)) {
        Some(reason) => Verdict::Skipped(reason),
        None => report_suite::run(context.mpi, arguments.value(CLAIM)).into(),
    }
}

fn slurm(context: &Context<'_>) -> Verdict {
    let Some(mpirun) = context.found.mpirun.as_ref().filter(|_| context.mpi == Mpi::With) else {
        return Verdict::Skipped("no mpirun with an MPI to build with".to_owned());
    };
    match slurm_cluster::lacking(context.arguments) {
        Some(reason) => Verdict::Skipped(reason),
        None => slurm_suite::run(context.mpi, mpirun, context.arguments.value(CLAIM)).into(),
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
        chosen(Some(only), |_| false).unwrap().iter().map(|stage| stage.name).collect()
    }

    #[test]
    fn chosen_stages_keep_their_order() {
        assert_eq!(names("doc,fmt"), ["fmt", "doc"]);
    }

    #[test]
    fn mpich_and_the_cluster_are_run_only_when_asked_for() {
        let has_slurm = |only, has: bool| chosen(only, |_| has).unwrap().iter().any(|stage| stage.name == "slurm");
        assert!(!has_slurm(None, false) && !has_slurm(Some("mpi"), false));
        assert!(has_slurm(None, true) && has_slurm(Some("mpi"), true) && has_slurm(Some("slurm"), false));
        assert_eq!(chosen(None, |_| true).unwrap().len(), STAGES.len());
    }

    #[test]
    fn an_unknown_stage_is_refused_with_the_known_ones() {
        let Err(failure) = chosen(Some("fmt,lint"), |_| false) else { panic!("`lint` is no stage") };
        assert_eq!(failure.exit_code(), 2);
        assert!(failure.to_string().contains("`lint`") && failure.to_string().contains("clippy"));
    }

    #[test]
    fn the_help_names_the_stages_in_their_order() {
        let names: Vec<&str> = STAGES.iter().map(|stage| stage.name).collect();
        assert!(COMMAND.details.contains(&names.join(", ")));
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
