//! Checks that all ranks train the same model on the same data.
//!
//! In: version, configuration and data of one rank. Out: an error on all ranks that names the rank
//! that differs from root.
//! Invariant: compared before the first step.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use datasets::{Samples, Split, Splits};
use distributed::{Communicator, ROOT};

use crate::config::{CpuKind, TrainConfig, instruction_set};
use crate::measure::report::Reporter;
use crate::model::data;
use crate::world::switches;

/// Compares sizes and checksums of the data with root's, and warns of different instruction sets.
/// Collective: all ranks.
///
/// # Errors
/// If a rank differs, the same on all ranks.
pub fn check(
    config: &TrainConfig,
    data: &Splits<impl Samples>,
    communicator: &dyn Communicator,
    reporter: &Reporter,
) -> Result<()> {
    if communicator.world_size() == 1 {
        return Ok(());
    }
    let splits = Split::ALL.map(|split| (split, data.get(split)));
    let there: Vec<_> = splits.iter().filter_map(|(_, samples)| *samples).collect();
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

/// Warns if a rank computes with other instructions than root: the last bits of sums depend on
/// them.
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
            "rank {rank} computes with {}, root with {own}: a repetition on other CPUs will differ in the last bits. --cpu avx2 makes them equal",
            String::from_utf8_lossy(&all[rank])
        ));
    }
    Ok(())
}

/// Compares version and commit of the program, its `LOCKSTEP_` variables and these facts, given as
/// (name, value), with root's. A fact that only one of the two ranks has differs.
/// Collective: all ranks.
///
/// # Errors
/// If a rank differs, the same on all ranks.
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
                "start: the message of rank {rank} cannot be read. Start all ranks with the same program and command"
            )
        })
    };
    let root = facts(ROOT)?;
    for rank in 0..all.len() {
        if let Some([what, expected, got]) = first_difference(&root, &facts(rank)?) {
            bail!(
                "start: {what} of rank {rank} differs from root's: expected {expected}, got {got}; start all ranks with the same program, flags and data"
            );
        }
    }
    Ok(())
}

/// Returns the name of the first fact that differs, and its two values. Another program may have
/// other options, too, so its version comes first.
pub fn first_difference(
    expected: &BTreeMap<String, String>,
    got: &BTreeMap<String, String>,
) -> Option<[String; 3]> {
    let program = ["version", "commit"].into_iter();
    let mut names = program.chain(expected.keys().chain(got.keys()).map(String::as_str));
    let name = names.find(|name| expected.get(*name) != got.get(*name))?;
    let shown = |facts: &BTreeMap<String, String>| {
        let value = facts.get(name).filter(|value| !value.is_empty());
        value.cloned().unwrap_or("none".to_owned())
    };
    Some([name.to_owned(), shown(expected), shown(got)])
}
