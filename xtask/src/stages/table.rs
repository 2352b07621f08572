//! Stages of `cargo xtask test`, in order.

use std::fs;
use std::path::Path;
use std::time::Duration;

use cluster::failure::Failure;
use cluster::guard::Guarded;
use cluster::mpirun::Mpirun;
use cluster::process;

use super::{Context, Lane, Stage, TestArgs, When, this_program};
use crate::at;
use crate::cargo::{self, Mpi};
use crate::suite::{Checked, Stop};
use crate::{cuda, mpi_choice, mpi_suite, report_suite};
use crate::{slurm_cluster, slurm_suite, tidy};

/// Longest time of a stage; then it ends with all its processes.
const LIMIT: Duration = Duration::from_secs(45 * 60);

pub(super) const STAGES: [Stage; 18] = [
    stage("fmt", Lane::First, When::Always, "rustfmt", None),
    stage(
        "tidy",
        Lane::First,
        When::Always,
        "rules of this workspace",
        Some(|_| Ok(tidy::run()?)),
    ),
    stage("clippy", Lane::Compute, When::Always, "lints", None),
    stage(
        "test",
        Lane::First,
        When::Always,
        "tests of all crates",
        None,
    ),
    stage("doc", Lane::Compute, When::Always, "documentation", None),
    stage(
        "deny",
        Lane::Compute,
        When::All,
        "licences, sources, versions and known bugs of all crates, by cargo-deny",
        None,
    ),
    stage(
        "nccl",
        Lane::Compute,
        When::All,
        "cargo feature nccl; needs neither CUDA nor a GPU",
        None,
    ),
    stage(
        "corpus",
        Lane::Compute,
        When::All,
        "inputs of the fuzz targets, changed ten times as often as in test",
        None,
    ),
    stage(
        "memory",
        Lane::Compute,
        When::All,
        "tests of the kernels under AddressSanitizer",
        None,
    ),
    stage(
        "arm",
        Lane::Compute,
        When::All,
        "kernels on aarch64; without qemu-user and a cross linker only compiled",
        None,
    ),
    stage(
        "bits",
        Lane::Compute,
        When::All,
        "same bits with a C library that rounds differently, and on an emulated CPU without AVX-512",
        None,
    ),
    stage(
        "features",
        Lane::Compute,
        When::All,
        "cargo features parquet and ndarray, burn-train (also under mpirun); compiles burn again",
        None,
    ),
    stage(
        "cuda",
        Lane::Suite,
        When::Named,
        "CUDA build without LLVM, about 25 minutes on 2 cores; computes on a GPU if there is one",
        Some(|_| cuda::check()),
    ),
    stage(
        "mpi",
        Lane::Suite,
        When::Always,
        "1 to 4 ranks under mpirun",
        Some(mpi),
    ),
    stage(
        "report",
        Lane::Suite,
        When::Always,
        "page of `trainer report` in Chromium, event files in TensorBoard",
        Some(report),
    ),
    stage(
        "mpich",
        Lane::Suite,
        When::All,
        "stage mpi, built and started with MPICH in target/mpich",
        Some(mpich),
    ),
    stage(
        "slurm",
        Lane::Suite,
        When::All,
        "jobs on a Slurm cluster of two nodes on this machine; needs root or sudo",
        Some(slurm),
    ),
    stage(
        "chaos",
        Lane::Suite,
        When::All,
        "`cargo xtask chaos`",
        Some(chaos),
    ),
];

const fn stage(
    name: &'static str,
    lane: Lane,
    when: When,
    about: &'static str,
    run: Option<fn(&Context<'_>) -> Checked>,
) -> Stage {
    Stage {
        name,
        lane,
        when,
        about,
        run,
    }
}

/// Runs a function of the script, with its output in a file or on the terminal.
pub(super) fn script(args: &TestArgs, mpi: Mpi, name: &str, log: Option<&Path>) -> Checked {
    const SKIPPED: i32 = 77;
    let reason = cargo::target_folder().join(format!("skipped-{name}.txt"));
    let mut command = cargo::script(name);
    command.env("REASON", &reason);
    command.env("FEATURES", mpi.features().join(" "));
    if !args.installing.no_install {
        command.env("MAY_INSTALL", "1");
    }
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

/// Returns the text after the help.
pub(super) fn details() -> String {
    let mut text = "Stages:\n".to_owned();
    for stage in &STAGES {
        let mark = match stage.when {
            When::Always => " ",
            When::All => "*",
            When::Named => "-",
        };
        text.push_str(&format!("{mark} {:<9} {}\n", stage.name, stage.about));
    }
    text + "\
* Only with --all, or named by --only; also the check of 2,000 steps in mpi. - Only if named.
--all and --only report install a browser and TensorBoard if allowed. fmt, tidy and test run first.
Then the suites mpi, report, mpich, slurm and chaos run one after another, while the other stages
compile and compute.
--mpi mpich builds and starts all stages with MPICH.
MPICC=/nonexistent LOCKSTEP_NO_INSTALL=1 checks the workspace as on a machine without MPI."
}

pub(super) fn names() -> [&'static str; STAGES.len()] {
    STAGES.each_ref().map(|stage| stage.name)
}

fn claim<'a>(context: &'a Context<'_>) -> Option<&'a str> {
    context.args.claim.as_deref()
}

/// Skips a stage without mpirun and an MPI to build with.
fn has_mpi<'a>(context: &'a Context<'_>) -> Checked<&'a Mpirun> {
    let text = "no mpirun with an MPI to build with";
    let mpirun = context.found.launcher();
    mpirun.ok_or_else(|| Stop::Skipped(text.to_owned()))
}

fn mpi(context: &Context<'_>) -> Checked {
    let mpirun = context.found.launcher();
    let is_thorough = context.args.all || context.args.claim.is_some();
    mpi_suite::run(context.programs()?, mpirun, is_thorough, claim(context))?;
    has_mpi(context).map(drop)
}

/// Runs the stage mpi with MPICH in a separate process, as builds with different MPIs must not mix.
fn mpich(context: &Context<'_>) -> Checked {
    let prepared = mpi_choice::prepare_for("mpich", context.args.installing);
    prepared.map_err(|failure: Failure| Stop::Skipped(failure.to_string()))?;
    let mut words = context.args.words("mpi");
    words.extend(["--mpi", "mpich"].map(str::to_owned));
    Ok(process::run(this_program(words))?)
}

fn report(context: &Context<'_>) -> Checked {
    let args = context.args;
    let may_install = (args.all || args.is_named("report")) && !args.installing.no_install;
    let trainer = &context.programs()?.trainer;
    report_suite::run(trainer, claim(context), may_install)
}

fn slurm(context: &Context<'_>) -> Checked {
    let mpirun = has_mpi(context)?;
    if let Some(reason) = slurm_cluster::lacking(context.args.installing) {
        return Err(Stop::Skipped(reason));
    }
    let trainer = &context.programs()?.trainer;
    Ok(slurm_suite::run(trainer, mpirun, claim(context))?)
}

fn chaos(context: &Context<'_>) -> Checked {
    has_mpi(context)?;
    let mut words = vec!["chaos".to_owned()];
    if context.args.installing.no_install {
        words.push("--no-install".to_owned());
    }
    Ok(process::run(this_program(words))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_names_every_stage_and_marks_the_long_ones() {
        let details = details();
        assert!(details.contains("\n* slurm "), "{details}");
        for stage in &STAGES {
            assert!(details.contains(&format!(" {:<9} {}", stage.name, stage.about)));
        }
    }
}
