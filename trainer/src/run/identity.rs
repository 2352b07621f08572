//! Whether all ranks are about to train the same thing.
//!
//! In: one rank's version, configuration and data. Out: an error on all ranks that names the one that differs from root.
//! Invariant: compared before the first step, so that no rank trains on other data or with other flags.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use datasets::{DatasetSplits, ImageDataset, Split};
use distributed::{Communicator, ROOT};

use crate::config::{CpuKind, TrainConfig, instruction_set};
use crate::measure::report::Reporter;
use crate::model::data;
use crate::world::switches;

/// Compares the data's sizes and checksums with root's, and warns of unlike processors.
/// Collective: all ranks.
///
/// # Errors
/// When a rank differs; all ranks return the same error.
pub fn check(
    config: &TrainConfig,
    data: &DatasetSplits,
    communicator: &dyn Communicator,
    reporter: &Reporter,
) -> Result<()> {
    if communicator.world_size() == 1 {
        return Ok(());
    }
    let splits = Split::ALL.map(|split| (split, data.get(split)));
    let there: Vec<&Arc<dyn ImageDataset>> =
        splits.iter().filter_map(|(_, samples)| *samples).collect();
    data::share_checksums(&there, config.data.folder(), communicator)?;
    let facts = splits.into_iter().flat_map(|(split, samples)| {
        let checksum = samples.map_or(String::new(), |samples| samples.checksum());
        let len = samples.map_or(0, |samples| samples.len());
        [
            (format!("{split} images"), len.to_string()),
            (format!("{split} split"), checksum),
        ]
    });
    compare(facts.collect(), communicator)?;
    match config.compute.cpu {
        Some(cpu) => warn_of_other_instructions(cpu, communicator, reporter),
        None => Ok(()),
    }
}

/// Warns where ranks would compute by other instructions than root does: the last bits of sums depend on them.
fn warn_of_other_instructions(
    cpu: CpuKind,
    communicator: &dyn Communicator,
    reporter: &Reporter,
) -> Result<()> {
    let own = instruction_set(Some(cpu)).map_or_else(
        |error| error.to_string(),
        |isa| format!("{isa:?}").to_lowercase(),
    );
    let all = communicator.all_gather(own.as_bytes())?;
    if let Some(rank) = (0..all.len()).find(|&rank| all[rank] != all[ROOT]) {
        reporter.warn(&format!(
            "rank {rank} computes by {}, root by {own}: a repetition on other processors will differ in the last bits; --cpu avx2 makes them alike",
            String::from_utf8_lossy(&all[rank])
        ));
    }
    Ok(())
}

/// Compares the program's version and commit, its switches and these facts, as (what, value), with root's; a fact that only one of the two has differs.
/// Collective: all ranks.
///
/// # Errors
/// When a rank differs; all ranks return the same error.
pub fn compare(own: Vec<(String, String)>, communicator: &dyn Communicator) -> Result<()> {
    let version = ("version".to_owned(), env!("CARGO_PKG_VERSION").to_owned());
    let commit = ("commit".to_owned(), env!("LOCKSTEP_COMMIT").to_owned());
    let switches = ("LOCKSTEP_ variables".to_owned(), switches::in_words());
    let own: BTreeMap<String, String> =
        own.into_iter().chain([version, commit, switches]).collect();
    let all = communicator.all_gather(&serde_json::to_vec(&own)?)?;
    let facts = |rank: usize| -> Result<BTreeMap<String, String>> {
        serde_json::from_slice(&all[rank]).with_context(|| {
            format!(
                "start: rank {rank} does not say what it runs: expected all ranks to run the same program and command"
            )
        })
    };
    let root = facts(ROOT)?;
    for rank in 0..all.len() {
        let theirs = facts(rank)?;
        // Another program may have other options, too: that it is another one is what counts.
        let program = ["version", "commit"].into_iter();
        let mut names = program.chain(root.keys().chain(theirs.keys()).map(String::as_str));
        let unequal = names.find(|what| root.get(*what) != theirs.get(*what));
        if let Some(what) = unequal {
            bail!(
                "start: {what} of rank {rank} differs from root's: expected {}, got {}; start all ranks with the same program, flags and data",
                told(&root, what),
                told(&theirs, what)
            );
        }
    }
    Ok(())
}

fn told<'a>(facts: &'a BTreeMap<String, String>, what: &str) -> &'a str {
    facts
        .get(what)
        .map(String::as_str)
        .filter(|value| !value.is_empty())
        .unwrap_or("none")
}
