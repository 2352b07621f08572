//! Whether all ranks are about to train the same thing.
//!
//! In: one rank's version, configuration and data. Out: an error on all ranks that names the one that differs from root.
//! Invariant: compared before the first step, so that no rank trains on other data or with other flags.

use anyhow::{Result, bail};
use datasets::DatasetSplits;
use distributed::{Communicator, ROOT};

use crate::config::TrainConfig;
use crate::data;

/// Compares version, configuration and checksums of the data with root's.
///
/// # Errors
/// When a rank differs; all ranks return the same error.
///
/// # Collective
/// Must be called by all ranks.
pub fn check(config: &TrainConfig, data: &DatasetSplits, communicator: &dyn Communicator) -> Result<()> {
    if communicator.world_size() == 1 {
        return Ok(());
    }
    data::share_checksums(Some(data), communicator)?;
    let own = [
        ("version", env!("CARGO_PKG_VERSION").to_owned()),
        ("configuration", config.hash()),
        ("train images", data.train.len().to_string()),
        ("test images", data.test.len().to_string()),
        ("train split", data.train.checksum()),
        ("test split", data.test.checksum()),
    ];
    let packed: Vec<&str> = own.iter().map(|(_, value)| value.as_str()).collect();
    let all = communicator.all_gather(packed.join("\n").as_bytes())?;
    let root = String::from_utf8_lossy(&all[ROOT]).into_owned();
    for (rank, bytes) in all.iter().enumerate() {
        let theirs = String::from_utf8_lossy(bytes).into_owned();
        for (((what, _), expected), got) in own.iter().zip(root.lines()).zip(theirs.lines()) {
            if expected != got {
                bail!(
                    "start: {what} of rank {rank} differs from root's: expected {expected}, got {got}; start all ranks with the same program, flags and data"
                );
            }
        }
    }
    Ok(())
}
