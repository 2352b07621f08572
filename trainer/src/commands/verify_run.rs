//! `trainer verify-run`: repeats the first steps of a run and compares the bits.
//!
//! In: a run's directory. Out: a line, and a separate exit code if a hash differs.
//! Invariant: the run's files are only read.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use records::{Manifest, counted, quoted};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::train::train;
use crate::config::cli::{TrainArgs, VerifyRunArgs};
use crate::config::{ConfigError, Family, SyncMethod, TrainConfig, invalid};
use crate::measure::gather::found_by_root;
use crate::measure::report::{ConsoleLook, Reporter};
use crate::run::directory::{HASHES, RUN_TOML, session_path};
use crate::run::step_hashes;
use crate::step::sync_plan::{averages_early, staleness};
use crate::task::Task;
use crate::tools::check::{Check, Verdict};
use crate::tools::verify_run::{Recording, compare};
use crate::world::ranks::World;

/// Exit code if a hash differs.
const DIFFERENT: u8 = 3;

/// Facts of the run that root reads for all ranks.
#[derive(Serialize, Deserialize)]
struct Original {
    options: String,
    recording: Recording,
}

/// Repeats a run's first steps and compares them. Returns 0 if all hashes are equal, otherwise 3.
/// Collective: all ranks.
///
/// # Errors
/// If the run recorded no hashes, had another number of ranks or independent ranks, or a step
/// fails.
pub fn verify_run<T: Task>(args: &VerifyRunArgs, world: &World) -> Result<ExitCode> {
    let communicator = &*world.communicator;
    let Original { options, recording } = found_by_root(communicator, || original(&args.run))?;
    let mut flags = TrainArgs::default();
    flags.data.data_dir.clone_from(&args.data_dir);
    let config = TrainConfig::resolve_over(
        &options,
        &Family::of::<T>(),
        &flags,
        communicator.world_size(),
    )?;
    let num_steps = num_steps(args, &recording)?;
    expect_repeatable(
        &config,
        &recording.manifest,
        communicator.world_size(),
        &args.run,
    )?;
    // A stop would average the parameters after the last step. The run did not average them there.
    let further = u64::from(averages_early(
        &config.sync.method,
        config.num_workers(),
        num_steps - 1,
    ));
    let scratch = world
        .is_root()
        .then(tempfile::tempdir)
        .transpose()
        .context("a temporary directory")?;
    let directory = scratch
        .as_ref()
        .map_or(PathBuf::from("."), |scratch| scratch.path().join("run"));
    let quiet = World {
        communicator: Arc::clone(&world.communicator),
        unwatched: Arc::clone(&world.unwatched),
        rank_status: Arc::clone(&world.rank_status),
        // The first check for a stop comes before the first step.
        stop: world.stop.or_after_looks(num_steps + further),
        reporter: Reporter::new(false),
        is_only_rank: world.is_only_rank,
    };
    world.reporter.note(&format!(
        "repeating {} of {} ...",
        counted(num_steps as usize, "step"),
        args.run.display()
    ));
    train::<T>(&repetition(&config, &directory), &quiet)?;
    let (is_different, lines): (bool, Vec<String>) = found_by_root(communicator, || {
        let mut again = Recording {
            manifest: read_json(&directory.join("manifest.json"))?,
            hashes: step_hashes::read(&directory.join(HASHES))?,
        };
        let got = again.hashes.len() as u64;
        ensure!(
            got >= num_steps,
            "verify-run: stopped by a signal (expected {}, got {got}). Start it again.",
            counted(num_steps as usize, "step")
        );
        // Ignore options that the repetition leaves out, and `--resume`, which run.toml does not
        // contain.
        let hashes = [false, true].map(|resume| config.clone().resuming(resume).hash());
        let was = &recording.manifest.config_hash;
        again.manifest.config_hash = if hashes.contains(was) {
            was.clone()
        } else {
            config.hash()
        };
        let claim = "every loss and every parameter of the first steps has the run's bits";
        let check = Check::new("repetition", claim, compare);
        let checked = check.run(|compare| Ok(compare(&recording, &again, num_steps as usize)));
        let is_different = checked.finding.verdict == Verdict::Fail;
        Ok((is_different, checked.lines(ConsoleLook::of_stdout())))
    })?;
    world.reporter.notes(&lines);
    Ok(if is_different {
        ExitCode::from(DIFFERENT)
    } else {
        ExitCode::SUCCESS
    })
}

fn original(run: &Path) -> Result<Original> {
    // A later session renames the files of the first session.
    let of_first = |name: &str| {
        let first = session_path(&run.join(name), 1);
        if first.exists() {
            first
        } else {
            run.join(name)
        }
    };
    let options = of_first(RUN_TOML);
    ensure!(
        options.exists(),
        "RUN: {} has no {RUN_TOML} (expected the directory of a run)",
        run.display()
    );
    let options =
        records::file::read_to_string(&options).with_context(|| options.display().to_string())?;
    let hashes = run.join(HASHES);
    ensure!(
        hashes.exists(),
        "RUN: {} has no {HASHES}: runs of independent ranks, runs with --update device and runs killed in their first steps have none. Train again.",
        run.display()
    );
    let manifest = read_json::<Manifest>(&of_first("manifest.json"))?;
    Ok(Original {
        options,
        recording: Recording {
            manifest,
            hashes: step_hashes::read(&hashes)?,
        },
    })
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let text = records::file::read_to_string(path).with_context(|| path.display().to_string())?;
    serde_json::from_str(&text).with_context(|| path.display().to_string())
}

fn num_steps(args: &VerifyRunArgs, recording: &Recording) -> Result<u64, ConfigError> {
    let recorded = recording.hashes.len() as u64;
    let num_steps = args.steps.unwrap_or(recorded);
    if (1..=recorded).contains(&num_steps) {
        return Ok(num_steps);
    }
    let expected = format!("1 to {recorded}, the steps whose hashes the run recorded");
    Err(invalid("--steps", expected, num_steps))
}

fn expect_repeatable(
    config: &TrainConfig,
    manifest: &Manifest,
    world_size: usize,
    run: &Path,
) -> Result<()> {
    let method = &config.sync.method;
    ensure!(
        staleness(method).is_none(),
        "verify-run: the ranks of --sync {} are independent (expected ranks that wait for each other)",
        method.kind()
    );
    let ranks = manifest.launch.ranks;
    ensure!(
        ranks == world_size || matches!(method, SyncMethod::Exact { .. }),
        "verify-run: wrong number of ranks (expected {} as in the run, got {world_size}); only --reduction exact has the same bits on any number. Start it with `{} launch -n {ranks} -- verify-run {}`.",
        counted(ranks, "rank"),
        manifest.program(),
        quoted(run)
    );
    Ok(())
}

/// Returns the flags of the run for another directory. Omits options that only cost time or write
/// further files.
fn repetition(config: &TrainConfig, directory: &Path) -> TrainArgs {
    let mut args = config.to_args();
    args.run.output_dir = Some(directory.to_owned());
    args.run.tensorboard = None;
    args.run.tensorboard_every = None;
    // Local SGD averages before every checkpoint.
    if !matches!(config.sync.method, SyncMethod::LocalSgd { .. }) {
        args.run.checkpoint_every_steps = None;
    }
    args.sync.trace = None;
    args
}
