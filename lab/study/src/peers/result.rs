//! The results of runs of a comparison.
//!
//! In: the files of a peer's ranks, the metrics of our training. Out: the `result` of an attempt.
//! Invariant: images/s are the global samples over the slowest rank's time; a loss is the mean over
//! all ranks.

use std::path::Path;

use cluster::failure::{Outcome, at};
use cluster::json;
use records::{CourseEpoch, EpochRecord, PeerResult};
use serde_json::{Value, json};

use super::leaves_a_core;
use crate::cell::Cell;
use crate::file::Kind;

/// Reads the files of all ranks.
pub(crate) fn peer_result(cell: &Cell, directory: &Path) -> Outcome<Value> {
    let ranks: Vec<PeerResult> = (0..cell.ranks)
        .map(|rank| json::read(&directory.join(format!("rank-{rank}.json"))))
        .collect::<Result<_, _>>()?;
    let first = &ranks[0];
    let mut communication = first.communication.clone();
    let mut server_bytes = 0;
    for role in cell.peer().map_or(&[][..], |peer| peer.roles(cell.ranks)) {
        let server: Outcome<PeerResult> = json::read(&directory.join(format!("{role}.json")));
        server_bytes += server.map_or(0, |server| server.peak_memory_bytes);
    }
    if server_bytes > 0 {
        let place = match leaves_a_core(cell) {
            true => "its own core",
            false => "the ranks' cores",
        };
        communication = format!("{communication} on {place}");
    }
    let mut result = json!({
        "version": first.version,
        "variant": first.variant,
        "communication": communication,
    });
    if cell.kind == Kind::Train {
        result["epochs"] = json!(first.epochs);
        return Ok(result);
    }
    let seconds = ranks
        .iter()
        .filter_map(|rank| rank.seconds)
        .fold(f64::NAN, f64::max);
    if seconds.is_nan() || seconds <= 0.0 {
        return Err(at(directory)("the ranks reported no seconds"));
    }
    let number = |key: &str| {
        cell.settings
            .get(key)
            .and_then(Value::as_f64)
            .unwrap_or(0.0)
    };
    let num_losses = ranks
        .iter()
        .map(|rank| rank.losses.len())
        .min()
        .unwrap_or(0);
    let mean = |step: usize| {
        let sum: f64 = ranks.iter().map(|rank| rank.losses[step]).sum();
        sum / ranks.len() as f64
    };
    let largest = ranks.iter().max_by_key(|rank| rank.peak_memory_bytes);
    let largest = largest.unwrap_or(first);
    let sum: u64 = ranks.iter().map(|rank| rank.peak_memory_bytes).sum();
    let measured = ranks
        .iter()
        .filter_map(|rank| rank.measured_unix_s)
        .reduce(|a, b| [a[0].min(b[0]), a[1].max(b[1])]);
    result["images_per_second"] = json!(number("global_batch_size") * number("steps") / seconds);
    result["losses"] = json!((0..num_losses).map(mean).collect::<Vec<f64>>());
    result["peak_memory_bytes"] = json!(largest.peak_memory_bytes);
    result["peak_memory_bytes_total"] = json!(sum + server_bytes);
    result["import_memory_bytes"] = json!(largest.import_memory_bytes);
    result["measured_unix_s"] = json!(measured);
    Ok(result)
}

/// Returns the epochs of our training in the form of the peers' records.
pub(crate) fn our_epochs(metrics: &Path) -> Outcome<Vec<CourseEpoch>> {
    let text = records::file::read_to_string(metrics).map_err(at(metrics))?;
    let mut epochs = Vec::new();
    let mut elapsed_s = 0.0;
    for line in text.lines() {
        let record: EpochRecord = serde_json::from_str(line).map_err(at(metrics))?;
        elapsed_s += record.seconds_total;
        let train_s = record.seconds_total - record.seconds.evaluation;
        epochs.push(CourseEpoch {
            epoch: record.number(),
            train_loss: record.train_loss,
            test_top1: record.test.and_then(|test| test.top1),
            elapsed_s: Some(elapsed_s),
            images_per_second: Some(record.train_num_samples as f64 / train_s),
        });
    }
    Ok(epochs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::study;
    use records::{Evaluation, Seconds};
    use std::fs;

    #[test]
    fn our_epochs_are_numbered_from_one_and_their_seconds_add_up() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("metrics.jsonl");
        assert!(our_epochs(&file).is_err());
        let line = |epoch| EpochRecord {
            epoch,
            train_loss: Some(1.5),
            test: Some(Evaluation {
                top1: Some(0.25),
                ..Evaluation::default()
            }),
            train_num_samples: 7000,
            seconds_total: 12.0,
            seconds: Seconds {
                evaluation: 2.0,
                ..Seconds::default()
            },
            ..EpochRecord::default()
        };
        let lines = [0, 1].map(|epoch| json!(line(epoch)).to_string());
        fs::write(&file, lines.join("\n")).unwrap();
        let epochs = our_epochs(&file).unwrap();
        let expected = |epoch: u64, elapsed_s: f64| CourseEpoch {
            epoch,
            train_loss: Some(1.5),
            test_top1: Some(0.25),
            elapsed_s: Some(elapsed_s),
            images_per_second: Some(700.0),
        };
        assert_eq!(epochs, [expected(1, 12.0), expected(2, 24.0)]);
    }

    #[test]
    fn the_slowest_rank_decides_and_losses_are_means_of_all() {
        let folder = tempfile::tempdir().unwrap();
        for (rank, seconds, loss) in [(0, 2.0, 3.0), (1, 4.0, 5.0)] {
            let measured = [10.0 + f64::from(rank), 20.0 + f64::from(rank)];
            let record = json!({ "seconds": seconds, "losses": [loss], "peak_memory_bytes": 100 + rank,
                "import_memory_bytes": 50 + rank, "measured_unix_s": measured, "version": "1" });
            let path = folder.path().join(format!("rank-{rank}.json"));
            fs::write(path, record.to_string()).unwrap();
        }
        fs::write(
            folder.path().join("server.json"),
            r#"{"peak_memory_bytes": 7}"#,
        )
        .unwrap();
        let text = "[[matrix]]\nframework = \"mxnet\"\nranks = [2, 3]\nbatch_size_per_rank = 50\nsteps = 4\nwarmup_steps = 2\n";
        let (_, cells) = study(text).unwrap();
        let result = peer_result(&cells[0], folder.path()).unwrap();
        assert_eq!(result["images_per_second"], 100.0);
        assert_eq!(result["losses"], json!([4.0]));
        assert_eq!(result["peak_memory_bytes"], 101);
        assert_eq!(result["peak_memory_bytes_total"], 208);
        assert_eq!(result["import_memory_bytes"], 51);
        assert_eq!(result["measured_unix_s"], json!([10.0, 21.0]));
        assert_eq!(result["version"], "1");
        let missing = peer_result(&cells[1], folder.path()).unwrap_err();
        let missing = missing.to_string();
        assert!(missing.contains("rank-2.json"), "{missing}");
    }
}
