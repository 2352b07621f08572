//! `trainer config`: the configuration that `train` would run with the same flags.

use anyhow::Result;
use distributed::{ROOT, launch::Launcher};

use crate::config::cli::TrainArgs;
use crate::config::{Family, TrainConfig};
use crate::model::family::ModelFamily;
use crate::world::ranks::World;

/// Prints the resolved configuration as TOML that `--config` takes, for as many ranks as the launcher has tasks; its first task prints.
///
/// # Errors
/// When the flags contradict each other, or standard output takes no more.
pub fn config<F: ModelFamily>(args: &TrainArgs, world: &World) -> Result<()> {
    let launcher = Launcher::detect_from_environment()?;
    let num_ranks = launcher
        .as_ref()
        .map_or(1, |launcher| launcher.num_tasks.max(1));
    let config = TrainConfig::resolve_for(&Family::of::<F>(), args, num_ranks)?;
    if launcher
        .and_then(|launcher| launcher.rank)
        .is_some_and(|rank| rank != ROOT)
    {
        return Ok(());
    }
    world.reporter.result(config.to_toml().trim_end())
}
