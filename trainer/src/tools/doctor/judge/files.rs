//! The data set and the output directory.

use super::{named, on_all, unlike_root};
use crate::measure::report::{bytes, grouped};
use crate::tools::doctor::diagnosis::Row;
use crate::tools::doctor::facts::{DataFacts, RankFacts};
use crate::tools::doctor::storage::OutputFacts;

/// Room for a run's checkpoints and log: below it too little, and below the other none.
const LITTLE_BYTES: u64 = 2 << 30;
const NO_BYTES: u64 = 200 << 20;

/// The same images everywhere.
pub(super) fn data_set(ranks: &[RankFacts]) -> Row {
    const NAME: &str = "data set";
    let failed: Vec<&RankFacts> = ranks.iter().filter(|rank| rank.data.is_err()).collect();
    if let Some(error) = failed.first().and_then(|rank| rank.data.as_ref().err()) {
        return Row::fail(
            NAME,
            format!("{}: {error}", named(failed.iter().copied())),
            "put the data at the same path on every node, name it with --data-dir, or let train --download fetch it",
        );
    }
    let root = ranks.first().and_then(|rank| rank.data.as_ref().ok());
    let Some(root) = root else {
        return Row::ok(NAME, "none");
    };
    let words = |data: &DataFacts| {
        let digits = |hash: &str| hash.chars().take(12).collect::<String>();
        let splits = data.splits.iter().map(|split| {
            let (name, images) = (&split.name, grouped(split.num_images as u64));
            format!(
                ", {images} {name} images (sha256 {})",
                digits(&split.checksum)
            )
        });
        format!("{}{}", data.name, splits.collect::<String>())
    };
    let differing = unlike_root(ranks, |rank| &rank.data);
    if let Some(Ok(other)) = differing.first().map(|rank| &rank.data) {
        return Row::fail(
            NAME,
            format!(
                "{}: {}; root: {}",
                named(differing.iter().copied()),
                words(other),
                words(root)
            ),
            "copy root's data to the other nodes: ranks that train on other images train another model",
        );
    }
    Row::ok(NAME, format!("{}{}", words(root), on_all(ranks)))
}

fn of_root(ranks: &[RankFacts]) -> Option<&OutputFacts> {
    ranks.first()?.output.as_ref()
}

/// Root can write, and has room.
pub(super) fn output(ranks: &[RankFacts]) -> Row {
    const NAME: &str = "output";
    const ELSEWHERE: &str = "choose another --output-dir";
    let Some(output) = of_root(ranks) else {
        return Row::ok(NAME, "not examined");
    };
    let speed = match &output.write_bytes_per_s {
        Ok(speed) => speed,
        Err(error) => {
            return Row::fail(
                NAME,
                format!("{}: cannot be written: {error}", output.directory),
                "choose an --output-dir that root's user may write to",
            );
        }
    };
    let free = match &output.free_bytes {
        Ok(free) => *free,
        Err(error) => {
            return Row::warn(
                NAME,
                format!("{}: free space unknown: {error}", output.directory),
                ELSEWHERE,
            );
        }
    };
    let found = format!(
        "{}: {} free, writes {:.0} MB/s in 1 MiB files",
        output.directory,
        bytes(free),
        speed / 1e6
    );
    let remedy = format!(
        "{ELSEWHERE}, or make room on the file system of {}",
        output.examined
    );
    match free {
        _ if free < NO_BYTES => Row::fail(
            NAME,
            format!("{found}, expected {}", bytes(LITTLE_BYTES)),
            remedy,
        ),
        _ if free < LITTLE_BYTES => Row::warn(
            NAME,
            format!("{found}, expected {}", bytes(LITTLE_BYTES)),
            remedy,
        ),
        _ => Row::ok(NAME, found),
    }
}

/// Every node has the directory.
pub(super) fn seen_by_all_nodes(ranks: &[RankFacts], num_nodes: usize) -> Row {
    const NAME: &str = "shared output";
    let blind: Vec<&RankFacts> = ranks
        .iter()
        .filter(|rank| rank.sees_output == Some(false))
        .collect();
    if !blind.is_empty() {
        return Row::warn(
            NAME,
            format!("root's directory is not seen by {}", named(blind)),
            "only root writes, so a run works; to resume with another node as root, use a file system that all nodes share",
        );
    }
    match (
        num_nodes,
        ranks.iter().any(|rank| rank.sees_output.is_some()),
    ) {
        (1, _) => Row::ok(NAME, "one node"),
        (_, true) => Row::ok(NAME, format!("seen by all {num_nodes} nodes")),
        (_, false) => Row::ok(NAME, "not looked for, as it cannot be written"),
    }
}

/// Two jobs on one directory can be told apart.
pub(super) fn locks(ranks: &[RankFacts]) -> Row {
    const NAME: &str = "file locks";
    match of_root(ranks) {
        Some(OutputFacts {
            write_bytes_per_s: Err(_),
            ..
        })
        | None => Row::ok(NAME, "not tried"),
        Some(OutputFacts {
            locks: Err(error), ..
        }) => Row::warn(
            NAME,
            format!(
                "do not work in the output directory ({error}): two jobs on it cannot be told apart"
            ),
            "give every job an --output-dir of its own; Lustre: mount with -o flock, NFS: version 4",
        ),
        Some(_) => Row::ok(NAME, "a second owner is refused"),
    }
}
