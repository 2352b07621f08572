//! What one run measured.
//!
//! In: the line of `trainer bench --json`, or the files of a peer's ranks. Out: [`Block`].
//! Invariant: images/s are the global samples over the slowest rank's time; a loss is the mean over all ranks.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::json;

/// One measured block of one row.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Block {
    pub(super) images_per_second: f64,
    /// Of every step from the first on.
    pub(super) losses: Vec<f64>,
    pub(super) peak_memory_bytes_rank: u64,
    pub(super) peak_memory_bytes_total: u64,
    pub(super) quiet: Value,
    pub(super) is_disturbed: bool,
    pub(super) command: String,
}

/// What a run says of its framework.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct About {
    pub(super) version: String,
    pub(super) variant: String,
    pub(super) communication: String,
}

impl Block {
    /// The mean loss of the parameters after this many updates.
    pub(super) fn loss_after(&self, updates: usize) -> Option<f64> {
        self.losses.get(updates).copied()
    }

    pub(super) fn to_json(&self) -> Value {
        json!({
            "images_per_second": self.images_per_second,
            "losses": self.losses,
            "peak_memory_bytes_rank": self.peak_memory_bytes_rank,
            "peak_memory_bytes_total": self.peak_memory_bytes_total,
            "quiet": self.quiet,
            "disturbed": self.is_disturbed,
            "command": self.command,
        })
    }

    pub(super) fn from_json(value: &Value) -> Option<Self> {
        Some(Block {
            images_per_second: value["images_per_second"].as_f64()?,
            losses: numbers(&value["losses"])?,
            peak_memory_bytes_rank: value["peak_memory_bytes_rank"].as_u64()?,
            peak_memory_bytes_total: value["peak_memory_bytes_total"].as_u64()?,
            quiet: value["quiet"].clone(),
            is_disturbed: value["disturbed"].as_bool()?,
            command: value["command"].as_str()?.to_owned(),
        })
    }
}

/// What our trainer printed last.
pub(super) fn of_ours(log: &str) -> Result<(About, Block), String> {
    let line = log.lines().rev().find(|line| line.trim_start().starts_with('{')).unwrap_or_default();
    let told: Value = json::first(line).map_err(|error| format!("its JSON line: {error}"))?;
    let text = |key: &str| told[key].as_str().unwrap_or_default().to_owned();
    let block = Block {
        images_per_second: told["images_per_second"].as_f64().ok_or("it told no images_per_second")?,
        losses: numbers(&told["losses"]).ok_or("it told no losses: build the trainer of this version")?,
        peak_memory_bytes_rank: told["peak_memory_bytes"].as_u64().unwrap_or(0),
        peak_memory_bytes_total: told["peak_memory_bytes_total"].as_u64().unwrap_or(0),
        ..Block::default()
    };
    // The library says much of itself after its name and version.
    let library = text("communication").split(',').next().unwrap_or_default().to_owned();
    let is_alone = told["ranks"].as_u64() == Some(1);
    let communication = if is_alone { "none".to_owned() } else { format!("{}, {library}", text("gradients")) };
    let about = About {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        variant: format!("{} kernels", text("kernels")),
        communication,
    };
    Ok((about, block))
}

/// What the ranks of a peer wrote; `global_samples` are those of all ranks over the measured steps.
pub(super) fn of_peer(folder: &Path, ranks: usize, global_samples: usize) -> Result<(About, Block), String> {
    let told: Vec<Value> =
        (0..ranks).map(|rank| read(&folder.join(format!("rank-{rank}.json")))).collect::<Result<_, _>>()?;
    let servers = ["scheduler", "server"].iter().filter_map(|role| read(&folder.join(format!("{role}.json"))).ok());
    let memory = |value: &Value| value["peak_memory_bytes"].as_u64().unwrap_or(0);
    let seconds = told.iter().filter_map(|rank| rank["seconds"].as_f64()).fold(f64::NAN, f64::max);
    if seconds.is_nan() || seconds <= 0.0 {
        return Err(format!("{}: the ranks told no seconds", folder.display()));
    }
    let losses: Vec<Vec<f64>> = told.iter().filter_map(|rank| numbers(&rank["losses"])).collect();
    let num_losses = losses.iter().map(Vec::len).min().unwrap_or(0);
    let mean = |step: usize| losses.iter().map(|rank| rank[step]).sum::<f64>() / losses.len() as f64;
    let block = Block {
        images_per_second: global_samples as f64 / seconds,
        losses: (0..num_losses).map(mean).collect(),
        peak_memory_bytes_rank: told.iter().map(memory).max().unwrap_or(0),
        peak_memory_bytes_total: told.iter().map(memory).sum::<u64>()
            + servers.map(|server| memory(&server)).sum::<u64>(),
        ..Block::default()
    };
    Ok((about_peer(&told[0]), block))
}

/// What a peer's rank says of its framework.
pub(super) fn about_peer(told: &Value) -> About {
    let text = |key: &str| told[key].as_str().unwrap_or_default().to_owned();
    About { version: text("version"), variant: text("variant"), communication: text("communication") }
}

/// A JSON file.
pub(super) fn read(path: &Path) -> Result<Value, String> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))
}

/// A list of numbers; one that is not finite comes as null and stays one that equals none.
fn numbers(value: &Value) -> Option<Vec<f64>> {
    Some(value.as_array()?.iter().map(|number| number.as_f64().unwrap_or(f64::NAN)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_read_back_as_it_was_written() {
        let block = Block { images_per_second: 300.5, losses: vec![2.5, 2.25], is_disturbed: true, ..Block::default() };
        assert_eq!(Block::from_json(&block.to_json()), Some(block));
        assert_eq!(Block::from_json(&json!({ "images_per_second": 3 })), None);
    }

    #[test]
    fn our_line_is_found_behind_the_notes() {
        let log =
            "resnet20 …\n{\"images_per_second\": 9.5, \"losses\": [3.0, null], \"ranks\": 1, \"kernels\": \"fused\"}\n";
        let (about, block) = of_ours(log).unwrap();
        assert_eq!((about.variant.as_str(), about.communication.as_str()), ("fused kernels", "none"));
        assert_eq!((block.images_per_second, block.loss_after(0)), (9.5, Some(3.0)));
        assert!(block.loss_after(1).unwrap().is_nan() && block.loss_after(2).is_none());
        assert!(of_ours("nothing\n").is_err());
    }

    #[test]
    fn the_slowest_rank_decides_and_losses_are_means_of_all() {
        let folder = std::env::temp_dir().join(format!("lockstep-jobs-{}-ranks", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        for (rank, seconds, loss) in [(0, 2.0, 3.0), (1, 4.0, 5.0)] {
            let told = json!({ "seconds": seconds, "losses": [loss], "peak_memory_bytes": 100 + rank, "version": "1" });
            fs::write(folder.join(format!("rank-{rank}.json")), told.to_string()).unwrap();
        }
        fs::write(folder.join("server.json"), "{\"peak_memory_bytes\": 7}").unwrap();
        let (about, block) = of_peer(&folder, 2, 400).unwrap();
        let missing = of_peer(&folder, 3, 400);
        fs::remove_dir_all(folder).unwrap();
        assert_eq!((block.images_per_second, block.losses.as_slice()), (100.0, &[4.0][..]));
        assert_eq!((block.peak_memory_bytes_rank, block.peak_memory_bytes_total), (101, 208));
        assert_eq!(about.version, "1");
        assert!(missing.unwrap_err().contains("rank-2.json"));
    }
}
