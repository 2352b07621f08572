//! Whether all ranks are about to train the same thing.
//!
//! In: one rank's version, configuration and data. Out: an error on all ranks that names the one that differs from root.
//! Invariant: compared before the first step, so that no rank trains on other data or with other flags.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use datasets::DatasetSplits;
use distributed::{Communicator, ROOT};

use crate::config::TrainConfig;
use crate::model::data;
use crate::world::switches;

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
    data::share_checksums(&[&data.train, &data.test], config.data.data_dir.as_deref(), communicator)?;
    let own = [
        ("configuration", config.hash()),
        ("train images", data.train.len().to_string()),
        ("test images", data.test.len().to_string()),
        ("train split", data.train.checksum()),
        ("test split", data.test.checksum()),
    ];
    compare(own.map(|(what, value)| (what.to_owned(), value)).to_vec(), communicator)
}

/// Compares the program's version, its switches and these facts, as (what, value), with root's; a fact that only one of the two has differs.
///
/// # Errors
/// When a rank differs; all ranks return the same error.
///
/// # Collective
/// Must be called by all ranks.
pub fn compare(own: Vec<(String, String)>, communicator: &dyn Communicator) -> Result<()> {
    let version = ("version".to_owned(), env!("CARGO_PKG_VERSION").to_owned());
    let switches = ("LOCKSTEP_ variables".to_owned(), switches::in_words());
    let own: BTreeMap<String, String> = own.into_iter().chain([version, switches]).collect();
    let all = communicator.all_gather(&serde_json::to_vec(&own)?)?;
    let facts = |rank: usize| -> Result<BTreeMap<String, String>> {
        serde_json::from_slice(&all[rank]).with_context(|| format!("start: what rank {rank} says of itself"))
    };
    let root = facts(ROOT)?;
    for rank in 0..all.len() {
        let theirs = facts(rank)?;
        let unequal = root.keys().chain(theirs.keys()).find(|what| root.get(*what) != theirs.get(*what));
        if let Some(what) = unequal {
            let told = |facts: &BTreeMap<String, String>| facts.get(what).map_or("none".to_owned(), String::clone);
            bail!(
                "start: {what} of rank {rank} differs from root's: expected {}, got {}; start all ranks with the same program, flags and data",
                told(&root),
                told(&theirs)
            );
        }
    }
    Ok(())
}
