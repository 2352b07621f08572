//! The commands of the program, one per file.
//!
//! In: flags as typed, and the world of this process. Out: the printed or written results of each
//! command.

use std::path::PathBuf;

use anyhow::Result;

use crate::config::file_name;
use crate::world::ranks::World;

pub mod bench;
pub mod doctor;
pub mod eval;
pub mod man;
pub mod netbench;
pub mod predict;
pub mod predict_scaling;
pub mod program;
pub mod report;
pub mod shard;
pub mod train;
pub mod verify;
pub mod verify_run;

/// Returns the file of an output flag on root, and rejects a file that cannot be written.
fn output(option: &'static str, path: Option<&PathBuf>, world: &World) -> Result<Option<PathBuf>> {
    let path = file_name(option, path)?;
    if !world.is_root() {
        return Ok(None);
    }
    if let Some(path) = &path {
        records::file::check_replaceable(path)?;
    }
    Ok(path)
}
