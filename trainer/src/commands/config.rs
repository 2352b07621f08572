//! `trainer config`: the configuration that `train` would run with the same flags.

use anyhow::Result;

use crate::config::cli::TrainArgs;
use crate::config::{Family, TrainConfig};
use crate::model::family::ModelFamily;
use crate::world::ranks::World;

/// Prints the resolved configuration as TOML that `--config` takes.
///
/// # Errors
/// When the flags contradict each other, or standard output takes no more.
pub fn config<F: ModelFamily>(args: &TrainArgs, world: &World) -> Result<()> {
    let config = TrainConfig::resolve_for(&Family::of::<F>(), args, world.communicator.world_size())?;
    world.reporter.result(config.to_toml().trim_end())
}
