//! `trainer config`: the configuration that `train` would run with the same flags.

use anyhow::Result;
use distributed::Communicator;

use crate::cli::TrainArgs;
use crate::config::TrainConfig;
use crate::report::Reporter;

/// Prints the resolved configuration as TOML that `--config` takes.
///
/// # Errors
/// When the flags contradict each other.
pub fn config(args: &TrainArgs, communicator: &dyn Communicator) -> Result<()> {
    let config = TrainConfig::resolve(args, communicator.world_size())?;
    Reporter::new(communicator.rank() == distributed::ROOT, None).note(config.to_toml().trim_end());
    Ok(())
}
