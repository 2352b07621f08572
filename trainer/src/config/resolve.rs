//! Decides every option of a run: fills in the defaults, checks the ranges, refuses contradictions.
//!
//! In: flags as typed, the world size. Out: the same flags, of which each that has an effect is filled.
//! Invariant: no file is opened here, and but for [`expect_offered`] nothing depends on the machine, so that all ranks decide alike
//! and a saved configuration is read anywhere.

use super::checks::{Filled, invalid};
use super::error::ConfigError;
use super::family::ModelOption;
use super::sync::SyncConfig;
use crate::config::choices::{BatchNormKind, Resolution};
use crate::config::cli::TrainArgs;

/// Fills the gaps of `args`, section by section, and refuses what contradicts itself. What is of one start, as `--resume`, is left
/// alone, and so is the section of the model, which its family fills. `heeded`: the options that this family heeds.
pub(super) fn fill(
    args: &mut TrainArgs,
    heeded: &[ModelOption],
    world_size: usize,
) -> Result<(), ConfigError> {
    super::file::expect_writable(args)?;
    args.data.fill(&mut args.train_split)?;
    let dataset = args.data.dataset.filled();
    args.compute.fill(heeded)?;
    args.sync.fill(world_size, args.compute.device.filled())?;
    args.sync.expect_batch(&args.batch)?;
    let method = args.sync.method();
    args.batch
        .fill(dataset, &method, method.num_workers(world_size))?;
    args.optimizer.fill(args.compute.dtype())?;
    args.optimizer.expect_sync(args.sync.sync.filled())?;
    let sync = SyncConfig::of(&args.sync, args.compute.device.filled());
    args.optimizer
        .expect_update(sync.updates_on_device(world_size))?;
    args.sync
        .expect_loss_scale(args.optimizer.loss_scale.filled())?;
    args.run.fill(heeded)?;
    args.run.expect_sync(args.sync.sync.filled())?;
    let num_parts = args.batch.parts(&method, method.num_workers(world_size));
    let joins_norms = world_size > 1 && args.batch.batch_norm.filled() == BatchNormKind::Sync;
    args.run.expect_noise(
        &sync,
        num_parts,
        joins_norms,
        sync.updates_on_device(world_size),
    )?;
    args.train_split.fill(&args.data)?;
    args.train_split.expect_input(args.compute.input.filled())?;
    args.schedule.fill(
        dataset,
        args.data
            .resolution
            .as_ref()
            .is_some_and(Resolution::depends_on_epochs),
    )
}

/// Refuses what this program or this processor has not, paths without a name, which only a file can say, and those that the files of
/// a run cannot name.
pub(super) fn expect_offered(args: &TrainArgs) -> Result<(), ConfigError> {
    let TrainArgs {
        data, sync, run, ..
    } = args;
    for (option, path) in [
        ("--data-dir", &data.data_dir),
        ("--trace", &sync.trace),
        ("--weights", &run.weights),
        ("--output-dir", &run.output_dir),
        ("--tensorboard", &run.tensorboard),
    ] {
        if path
            .as_ref()
            .is_some_and(|path| path.as_os_str().is_empty())
        {
            let (expected, got) = (
                "a path, `.` for the present folder".to_owned(),
                "an empty one".to_owned(),
            );
            return Err(invalid(option, expected, got));
        }
    }
    // As the files of a run name them.
    for (option, path) in [
        ("--data-dir", &data.data_dir),
        ("--weights", &run.weights),
        ("--tensorboard", &run.tensorboard),
    ] {
        let whole = path
            .as_ref()
            .and_then(|path| std::path::absolute(path).ok());
        if let Some(path) = whole.filter(|path| path.to_str().is_none()) {
            let (expected, got) = (
                "a path in UTF-8, also of the folders above".to_owned(),
                path.display().to_string(),
            );
            return Err(invalid(option, expected, got));
        }
    }
    args.data.expect_offered()?;
    args.compute.expect_offered()?;
    args.sync.expect_offered(args.compute.device.filled())
}
