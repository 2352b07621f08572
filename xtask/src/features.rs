//! What `cargo xtask test` checks of the cargo features that need other features of the crates below them: burn's own training loop on
//! ranks, Parquet files, layers and whole runs on burn's other backend of the processor, and that our kernels of GPUs compile.
//!
//! In: the features `burn-train`, `parquet`, `ndarray` and `wgpu`, an mpirun. Out: the verdict of a stage. Invariant: a target folder of its own,
//! where burn is compiled anew, once: all commands but `check` ask for the same packages and features.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::cargo::{self, Mpi};
use crate::mpi_suite::Suite;
use crate::suite::launcher::Launcher;
use crate::suite::{Check, Ended, check, conclude, empty_folder, run_all};
use cluster::failure::{Failure, Outcome};
use cluster::mpirun::Mpirun;
use cluster::process;

const PACKAGES: [&str; 5] = [
    "trainer",
    "lockstep-burn-train",
    "lockstep-burn-resnet",
    "lockstep-datasets",
    "lockstep-layers",
];
const FEATURES: &str = "lockstep-burn-train/burn-train,trainer/parquet,trainer/ndarray,lockstep-burn-resnet/ndarray,lockstep-layers/ndarray";
const EXAMPLE: &str = "burn_loop";
const OWN_LOOP: &str = "own_loop";

const CHECKS: [Check<Suite>; 2] = [
    check(
        "burn's loop on two ranks trains what it trains on one, and root alone speaks and writes",
        two_ranks_are_one,
    ),
    check(
        "a loop of one's own learns on two ranks, which hold the same parameters, and root alone speaks",
        own_loop_learns,
    ),
];

/// Runs the tests on threads, then the example under mpirun.
pub(crate) fn run(mpi: Mpi, mpirun: Option<&Mpirun>, only: Option<&str>) -> Outcome {
    each_package_shares_the_build()?;
    let target = cargo::target_folder().join("features");
    cargo::begin_folder(&target, |_| Ok(()))?;
    let command = |subcommand: &str, further: &[&str]| {
        let mut command = cargo::command(&[subcommand]);
        command
            .args(mpi.features())
            .args(PACKAGES.iter().flat_map(|name| ["--package", name]));
        command
            .args(["--features", FEATURES])
            .args(further)
            .env("CARGO_TARGET_DIR", &target);
        command
    };
    // None of these is a unit test; the programs of unit tests take minutes to compile.
    process::run(command(
        "test",
        &["--test", "*", "--", "second_opinion", "parquet"],
    ))?;
    process::run(command("test", &["--test", EXAMPLE]))?;
    process::run(command("test", &["--test", "corpus", "--", "inputs"]))?;
    let mut on_gpus = cargo::command(&[
        "check",
        "--package",
        "lockstep-layers",
        "--package",
        "trainer",
    ]);
    on_gpus
        .args(mpi.features())
        .args([
            "--features",
            "lockstep-layers/wgpu,trainer/wgpu",
            "--all-targets",
        ])
        .env("CARGO_TARGET_DIR", &target);
    process::run(on_gpus)?;
    let example = cargo::executable(
        command("build", &["--example", EXAMPLE, "--example", OWN_LOOP]),
        EXAMPLE,
        false,
    )?;
    let suite = Suite::new(mpirun.cloned(), example, empty_folder("features-suite")?);
    let failed = run_all(&suite, mpirun.is_some(), only, CHECKS.iter());
    conclude(suite.folder(), &failed)
}

/// Fails if a package selected alone gives another crate other features than the workspace does, for
/// burn would then be compiled a second time. The list in `xtask/workspace-hack/Cargo.toml` prevents it.
fn each_package_shares_the_build() -> Outcome {
    let of_workspace = dependencies(&["--workspace"])?;
    for package in PACKAGES.iter().chain(&["lockstep-distributed"]) {
        let alone = dependencies(&["--package", package])?;
        if let Some(other) = alone.difference(&of_workspace).next() {
            return Err(Failure::Failed(format!(
                "cargo test -p {package}: compiles `{other}` again (expected the features of the workspace). \
                 Add the missing features to xtask/workspace-hack/Cargo.toml"
            )));
        }
    }
    Ok(())
}

/// The crates of others that a selection of packages compiles, each with its features.
fn dependencies(selection: &[&str]) -> Outcome<BTreeSet<String>> {
    let mut tree = cargo::command(&[
        "tree",
        "--locked",
        "--edges",
        "normal,dev",
        "--prefix",
        "none",
    ]);
    tree.args(["--format", "{p} {f}"]).args(selection);
    let output = tree
        .output()
        .map_err(|error| process::cannot_start(&tree, &error))?;
    if !output.status.success() {
        return Err(Failure::Failed(format!(
            "cargo tree: {}",
            String::from_utf8_lossy(&output.stderr)
        )));
    }
    let root = cargo::root().display().to_string();
    let text = String::from_utf8_lossy(&output.stdout);
    let lines = text
        .lines()
        .map(|line| line.trim_end_matches(" (*)").to_owned());
    Ok(lines.filter(|line| !line.contains(&root)).collect())
}

/// Each epoch is one step over all samples, so that both see the same global batches; slices are of two sizes. That both ranks hold the
/// same bits is what the example checks itself.
fn two_ranks_are_one(suite: &Suite) -> Result<(), String> {
    const WORDS: [&str; 3] = ["97", "97", "8"];
    let mut losses = Vec::new();
    let mut written = Vec::new();
    for ranks in [1, 2] {
        let folder = suite.folder().join(format!("{ranks}-ranks"));
        let mut arguments = vec![folder.display().to_string()];
        arguments.extend(WORDS.map(str::to_owned));
        let command = suite.on_ranks(ranks, suite.trainer(), &arguments)?;
        let ended = Ended::of(command, &suite.folder().join(format!("{ranks}.log")), 300)?;
        ended.expect_success()?;
        let text = &ended.finished.text;
        ended.expect(
            text.matches("training ended.").count() == 1,
            "one rank that speaks",
        )?;
        let loss = text.lines().find_map(|line| {
            line.strip_prefix("loss ")?
                .split(',')
                .next()?
                .parse::<f64>()
                .ok()
        });
        ended.expect(loss.is_some(), "a line `loss …`")?;
        losses.extend(loss);
        written.push(files(&folder, &folder));
    }
    if (losses[0] - losses[1]).abs() > 1e-5 * losses[0].abs() {
        return Err(format!(
            "loss after 8 steps: expected {} as on one rank, to 1e-5, got {}",
            losses[0], losses[1]
        ));
    }
    if written[0].is_empty() || written[0] != written[1] {
        return Err(format!(
            "files: expected {:?} as on one rank, got {:?}",
            written[0], written[1]
        ));
    }
    Ok(())
}

/// The example itself compares the ranks' parameters after each epoch, and fails if they differ.
fn own_loop_learns(suite: &Suite) -> Result<(), String> {
    let command = suite.on_ranks(2, &suite.trainer().with_file_name(OWN_LOOP), &[])?;
    let ended = Ended::of(command, &suite.folder().join("own-loop.log"), 300)?;
    ended.expect_success()?;
    let epochs = ended
        .finished
        .text
        .lines()
        .filter_map(|line| line.strip_prefix("epoch ")?.split_once(": loss "));
    let losses: Vec<f64> = epochs
        .filter_map(|(_, rest)| rest.split(',').next()?.parse().ok())
        .collect();
    ended.expect(
        losses.len() == 3,
        "a line for each of three epochs, of one rank",
    )?;
    ended.expect(losses[2] < losses[0], "a loss that falls")
}

/// The files below a folder, from there, in order. Which epoch was the best, whose checkpoint is kept, may differ by rounding.
fn files(folder: &Path, from: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return Vec::new();
    };
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .flat_map(|path| match path.is_dir() {
            true => files(&path, from),
            false => path
                .strip_prefix(from)
                .map(Path::to_owned)
                .into_iter()
                .collect(),
        })
        .filter(|path| !path.starts_with("checkpoint"))
        .collect();
    files.sort();
    files
}
