//! What one run measured.
//!
//! In: the line of `trainer bench --json`, or the files of a peer's ranks. Out: [`Block`].
//! Invariant: images/s are the global samples over the slowest rank's time; a loss is the mean over all ranks.

use std::path::Path;

use records::{Block, PeerResult};
use serde::de::DeserializeOwned;
use serde_json::Value;

use cluster::json;

/// What a run says of its framework.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct About {
    pub(super) version: String,
    pub(super) variant: String,
    pub(super) communication: String,
}

/// What our trainer printed last.
pub(super) fn of_ours(log: &str) -> Result<(About, Block), String> {
    let line = log
        .lines()
        .rev()
        .find(|line| line.trim_start().starts_with('{'))
        .unwrap_or_default();
    let told: Value = json::first(line).map_err(|error| format!("its JSON line: {error}"))?;
    let text = |key: &str| told[key].as_str().unwrap_or_default().to_owned();
    let block = Block {
        images_per_second: told["images_per_second"]
            .as_f64()
            .ok_or("it told no images_per_second")?,
        losses: numbers(&told["losses"])
            .ok_or("it told no losses: build the trainer of this version")?,
        peak_memory_bytes_rank: told["peak_memory_bytes"].as_u64().unwrap_or(0),
        peak_memory_bytes_total: told["peak_memory_bytes_total"].as_u64().unwrap_or(0),
        measured_unix_s: serde_json::from_value(told["measured_unix_s"].clone())
            .unwrap_or_default(),
        ..Block::default()
    };
    // The library says much of itself after its name and version.
    let library = text("communication")
        .split(',')
        .next()
        .unwrap_or_default()
        .to_owned();
    let is_alone = told["ranks"].as_u64() == Some(1);
    let communication = if is_alone {
        "none".to_owned()
    } else {
        format!("{}, {library}", text("gradients"))
    };
    let about = About {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        variant: format!("{} kernels", text("kernels")),
        communication,
    };
    Ok((about, block))
}

/// What the ranks of a peer wrote; `global_samples` are those of all ranks over the measured steps.
pub(super) fn of_peer(
    folder: &Path,
    ranks: usize,
    global_samples: usize,
) -> Result<(About, Block), String> {
    let told: Vec<PeerResult> = (0..ranks)
        .map(|rank| read(&folder.join(format!("rank-{rank}.json"))))
        .collect::<Result<_, _>>()?;
    let servers = ["scheduler", "server"].iter();
    let servers =
        servers.filter_map(|role| read::<PeerResult>(&folder.join(format!("{role}.json"))).ok());
    let seconds = told
        .iter()
        .filter_map(|rank| rank.seconds)
        .fold(f64::NAN, f64::max);
    if seconds.is_nan() || seconds <= 0.0 {
        return Err(format!("{}: the ranks told no seconds", folder.display()));
    }
    let num_losses = told.iter().map(|rank| rank.losses.len()).min().unwrap_or(0);
    let mean =
        |step: usize| told.iter().map(|rank| rank.losses[step]).sum::<f64>() / told.len() as f64;
    let largest = told.iter().max_by_key(|rank| rank.peak_memory_bytes);
    let block = Block {
        images_per_second: global_samples as f64 / seconds,
        losses: (0..num_losses).map(mean).collect(),
        peak_memory_bytes_rank: largest.map_or(0, |rank| rank.peak_memory_bytes),
        peak_memory_bytes_total: told.iter().map(|rank| rank.peak_memory_bytes).sum::<u64>()
            + servers.map(|server| server.peak_memory_bytes).sum::<u64>(),
        import_memory_bytes_rank: largest.map_or(0, |rank| rank.import_memory_bytes),
        measured_unix_s: told
            .iter()
            .filter_map(|rank| rank.measured_unix_s)
            .reduce(|a, b| [a[0].min(b[0]), a[1].max(b[1])]),
        ..Block::default()
    };
    Ok((about_peer(&told[0]), block))
}

/// What a peer's rank says of its framework.
pub(super) fn about_peer(told: &PeerResult) -> About {
    let PeerResult {
        version,
        variant,
        communication,
        ..
    } = told.clone();
    About {
        version,
        variant,
        communication,
    }
}

/// A record from its file.
pub(super) fn read<T: DeserializeOwned>(path: &Path) -> Result<T, String> {
    let text = records::file::read_to_string(path)
        .map_err(|error| format!("{}: {error}", path.display()))?;
    let value =
        serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?;
    // A loss that is none is null in its list, which stays.
    records::from_value(value).map_err(|error| format!("{}: {error}", path.display()))
}

/// A list of numbers; one that is not finite comes as null and stays one that equals none.
fn numbers(value: &Value) -> Option<Vec<f64>> {
    Some(
        value
            .as_array()?
            .iter()
            .map(|number| number.as_f64().unwrap_or(f64::NAN))
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::fs;

    #[test]
    fn our_line_is_found_behind_the_notes() {
        let log = "resnet20 …\n{\"images_per_second\": 9.5, \"losses\": [3.0, null], \"ranks\": 1, \"kernels\": \"fused\"}\n";
        let (about, block) = of_ours(log).unwrap();
        assert_eq!(
            (about.variant.as_str(), about.communication.as_str()),
            ("fused kernels", "none")
        );
        assert_eq!(
            (block.images_per_second, block.loss_after(0)),
            (9.5, Some(3.0))
        );
        assert!(block.loss_after(1).unwrap().is_nan() && block.loss_after(2).is_none());
        assert!(of_ours("nothing\n").is_err());
    }

    #[test]
    fn the_slowest_rank_decides_and_losses_are_means_of_all() {
        let folder = tempfile::tempdir().unwrap();
        for (rank, seconds, loss) in [(0, 2.0, 3.0), (1, 4.0, 5.0)] {
            let measured = [10.0 + f64::from(rank), 20.0 + f64::from(rank)];
            let told = json!({ "seconds": seconds, "losses": [loss], "peak_memory_bytes": 100 + rank, "import_memory_bytes": 50 + rank,
                "measured_unix_s": measured, "version": "1" });
            fs::write(
                folder.path().join(format!("rank-{rank}.json")),
                told.to_string(),
            )
            .unwrap();
        }
        fs::write(
            folder.path().join("server.json"),
            "{\"peak_memory_bytes\": 7}",
        )
        .unwrap();
        let (about, block) = of_peer(folder.path(), 2, 400).unwrap();
        let missing = of_peer(folder.path(), 3, 400);
        assert_eq!(
            (block.images_per_second, block.losses.as_slice()),
            (100.0, &[4.0][..])
        );
        assert_eq!(
            (block.peak_memory_bytes_rank, block.peak_memory_bytes_total),
            (101, 208)
        );
        assert_eq!(
            (block.import_memory_bytes_rank, block.measured_unix_s),
            (51, Some([10.0, 21.0]))
        );
        assert_eq!(about.version, "1");
        assert!(missing.unwrap_err().contains("rank-2.json"));
    }
}
