//! `trainer verify-run`: whether the first steps of a run, made again here, have its bits.
//!
//! In: a run's directory. Out: lines, and exit code 3 if a hash differs.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use records::Manifest;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::train::train;
use crate::config::cli::{TrainArgs, VerifyRunArgs};
use crate::config::{ConfigError, Family, SyncMethod, TrainConfig};
use crate::measure::gather::found_by_root;
use crate::measure::report::Reporter;
use crate::model::family::ModelFamily;
use crate::run::directory::{HASHES, RUN_TOML, session_path};
use crate::run::step_hashes;
use crate::step::sync_plan::{averages_early, staleness};
use crate::tools::verify_run::{Recording, compare, lines};
use crate::world::ranks::World;

/// Exit code where a hash differs.
const DIFFERENT: u8 = 3;

/// The files of the run that root reads.
#[derive(Serialize, Deserialize)]
struct Original {
    options: String,
    recording: Recording,
}

/// Repeats a run's first steps and compares. The code is 0 if all hashes are equal, else 3.
/// Collective: all ranks.
///
/// # Errors
/// When the run has no hashes, had another number of ranks or ranks that ran independently, or a
/// step fails.
pub fn verify_run<F: ModelFamily>(args: &VerifyRunArgs, world: &World) -> Result<ExitCode> {
    let communicator = &*world.communicator;
    let Original { options, recording } = found_by_root(communicator, || original(&args.run))?;
    let mut flags = TrainArgs::default();
    flags.data.data_dir.clone_from(&args.data_dir);
    let config = TrainConfig::resolve_over(
        &options,
        &Family::of::<F>(),
        &flags,
        communicator.world_size(),
    )?;
    let num_steps = num_steps(args, &recording)?;
    expect_repeatable(&config, &recording.manifest, communicator.world_size())?;
    // A stop would average parameters after the last step; the run did not.
    let further = u64::from(averages_early(
        &config.sync.method,
        config.num_workers(),
        num_steps - 1,
    ));
    let scratch = world
        .is_root()
        .then(tempfile::tempdir)
        .transpose()
        .context("a temporary folder")?;
    let directory = scratch
        .as_ref()
        .map_or(PathBuf::from("."), |scratch| scratch.path().join("run"));
    let quiet = World {
        communicator: Arc::clone(&world.communicator),
        unwatched: Arc::clone(&world.unwatched),
        rank_status: Arc::clone(&world.rank_status),
        // It is read once before the first step.
        stop: world.stop.or_after_looks(num_steps + further),
        reporter: Reporter::new(false),
        is_only_rank: world.is_only_rank,
    };
    world.reporter.note(&format!(
        "repeating {num_steps} steps of {} ...",
        args.run.display()
    ));
    train::<F>(&repetition(&config, &directory), &quiet)?;
    let verdict = found_by_root(communicator, || {
        let mut again = Recording {
            manifest: read_json(&directory.join("manifest.json"))?,
            hashes: step_hashes::read(&directory.join(HASHES))?,
        };
        let got = again.hashes.len() as u64;
        ensure!(
            got >= num_steps,
            "verify-run: expected {num_steps} steps, got {got}, as a signal stopped it; start it again"
        );
        // What the repetition leaves out is no difference, nor is whether the run was started with
        // `--resume`, which its options do not tell.
        let hashes = [false, true].map(|resume| config.clone().resuming(resume).hash());
        let was = &recording.manifest.config_hash;
        again.manifest.config_hash = if hashes.contains(was) {
            was.clone()
        } else {
            config.hash()
        };
        Ok(compare(&recording, &again, num_steps as usize))
    })?;
    world.reporter.notes(&lines(&verdict, num_steps as usize));
    Ok(if verdict.difference.is_some() {
        ExitCode::from(DIFFERENT)
    } else {
        ExitCode::SUCCESS
    })
}

fn original(run: &Path) -> Result<Original> {
    // The files of the first session, which later ones rename.
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
        "verify-run: expected the directory of a run, got {}, which has no {RUN_TOML}",
        run.display()
    );
    let options =
        records::file::read_to_string(&options).with_context(|| options.display().to_string())?;
    let hashes = run.join(HASHES);
    ensure!(
        hashes.exists(),
        "verify-run: expected {HASHES} in {}, got none. Runs of independent ranks, with --update device, or killed in their first steps \
         have none: train again",
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
    let expected = format!("1 to {recorded}, as the run kept hashes of its first {recorded} steps");
    Err(ConfigError::Invalid {
        option: "--steps",
        expected,
        got: num_steps.to_string(),
    })
}

fn expect_repeatable(config: &TrainConfig, manifest: &Manifest, world_size: usize) -> Result<()> {
    let method = &config.sync.method;
    ensure!(
        staleness(method).is_none(),
        "verify-run: expected a run whose ranks wait for each other, got --sync {}",
        method.kind()
    );
    let ranks = manifest.launch.ranks;
    ensure!(
        ranks == world_size || matches!(method, SyncMethod::Exact { .. }),
        "verify-run: expected {ranks} ranks, as the run had, got {world_size}; start it as `trainer launch -n {ranks} -- verify-run`, \
         since only --reduction exact has the same bits on any number"
    );
    Ok(())
}

/// Returns the flags of the run for another directory, without output for others.
fn repetition(config: &TrainConfig, directory: &Path) -> TrainArgs {
    let mut args = config.to_args();
    args.run.output_dir = Some(directory.to_owned());
    (args.run.tensorboard, args.run.tensorboard_every) = (None, None);
    // With local SGD ranks average before they save.
    if !matches!(config.sync.method, SyncMethod::LocalSgd { .. }) {
        args.run.checkpoint_every_steps = None;
    }
    args.sync.trace = None;
    args
}
