//! Measured runs, grouped by their settings.
//!
//! In: files of `bench --json`, directories of studies; predictions. Out: [`Measured`] groups with
//! speedups.
//! Invariant: a speed is compared only with the speed of one rank on the same work.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use records::{AttemptRecord, Measurement, PredictionFile, Study, WORK, count_all_passes, median};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::karp_flatt;

/// Settings that differ within a group, or that describe only the launch.
///
/// The batch size that stays constant as ranks are added is part of a group.
const NO_PART_OF_A_GROUP: [&str; 5] = [
    "ranks",
    "launcher",
    "communication",
    "global_batch_size",
    "batch_size_per_rank",
];

/// Runs that differ only in their number of ranks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Common settings.
    pub settings: BTreeMap<String, String>,
    /// Runs, sorted by number of ranks.
    pub runs: Vec<Run>,
}

/// Measurements on one number of ranks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    pub ranks: usize,
    /// Samples in a step of one rank.
    pub batch_size_per_rank: usize,
    /// Median over the repetitions.
    pub images_per_second: f64,
    pub repetitions: usize,
    pub disturbed: bool,
    /// Comparison with one rank, if one rank was measured.
    pub scaled: Option<Scaled>,
    /// Predicted over measured images/s, minus 1; the median over the repetitions.
    pub gap: Option<f64>,
}

/// Speed on several ranks compared with one rank.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scaled {
    /// Speed divided by the speed of one rank.
    pub speedup: f64,
    /// Speedup divided by the number of ranks.
    pub efficiency: f64,
    /// Karp and Flatt's serial share for work of a fixed size.
    ///
    /// `None` for one rank, or if the work grows with the ranks.
    pub serial_fraction: Option<f64>,
}

/// Predictions. With the name of a study, a prediction applies only to cells of the study.
type Predictions = Vec<(Option<String>, PredictionFile)>;

/// Reads measured runs, and compares them with `predictions` and with the predictions in a study.
///
/// Calls `warn` for prediction files that cannot be read.
///
/// # Errors
/// If a file cannot be read, or has no run.
pub fn read(
    paths: &[impl AsRef<Path>],
    predictions: &[PredictionFile],
    warn: impl Fn(&str),
) -> Result<Vec<Measured>> {
    let mut all = Vec::new();
    let mut predictions: Predictions = predictions
        .iter()
        .map(|file| (None, file.clone()))
        .collect();
    for path in paths {
        let path = path.as_ref();
        let name = path.display().to_string();
        let found = match path.is_dir() {
            true => study(path)?,
            false => bench_lines(path)?,
        };
        ensure!(
            !found.is_empty(),
            "{name}: expected lines of `trainer bench --json` or a study with runs that counted, got none"
        );
        all.extend(found);
        let files = std::fs::read_dir(path.join("predictions"))
            .into_iter()
            .flatten();
        for file in files.flatten().map(|entry| entry.path()) {
            if file.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            match json(&file, "a file of predict-scaling --output") {
                Ok(file) => predictions.push((Some(name.clone()), file)),
                Err(error) => warn(&format!("{error:#}, so that it is left out")),
            }
        }
    }
    Ok(groups(&all, &predictions))
}

fn json<T: DeserializeOwned>(path: &Path, expected: &str) -> Result<T> {
    let read = || -> Result<T> {
        let value = serde_json::from_slice(&records::file::read(path)?)?;
        Ok(records::from_value(value)?)
    };
    let read = read();
    read.with_context(|| format!("cannot read {}, expected {expected}", path.display()))
}

/// Returns the results of `bench` in a file. Lines with equal settings are repetitions.
fn bench_lines(path: &Path) -> Result<Vec<Measurement>> {
    const SIZES: [&str; 4] = [
        "method",
        "ranks",
        "batch_size_per_rank",
        "global_batch_size",
    ];
    let mut all: Vec<Measurement> = Vec::new();
    let bytes =
        records::file::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    // A line torn by a crash may contain any bytes.
    let text = String::from_utf8_lossy(&bytes);
    for line in text.lines().filter(|line| line.starts_with('{')) {
        let result = serde_json::from_str(line).unwrap_or_default();
        let mut attempt = AttemptRecord {
            result,
            ..AttemptRecord::default()
        };
        if attempt.images_per_second().is_none() {
            continue;
        }
        let mut settings = attempt.work();
        let value = |key: &str| Some((key.to_owned(), records::text(&attempt.result[key])?));
        settings.extend(WORK.iter().chain(&SIZES).filter_map(|key| value(key)));
        count_all_passes(&mut settings);
        let known = all.iter_mut().find(|one| one.settings == settings);
        match known {
            Some(known) => {
                attempt.repetition = known.attempts.len() as u64;
                known.attempts.push(attempt);
            }
            None => all.push(Measurement {
                attempts: vec![attempt],
                ..Measurement::of_settings(settings)
            }),
        }
    }
    Ok(all)
}

/// Returns the cells of a study, with the runs that count.
fn study(directory: &Path) -> Result<Vec<Measurement>> {
    let study: Study = json(&directory.join("study.json"), "the directory of a study")?;
    let lines = records::read_lines(&directory.join("records.jsonl"))?.into_iter();
    let attempts: Vec<AttemptRecord> = lines.filter_map(|line| line.record.ok()).collect();
    let name = directory.display().to_string();
    Ok(Measurement::of_study(&study, &attempts, &name))
}

fn groups(all: &[Measurement], predictions: &Predictions) -> Vec<Measured> {
    let mut groups: Vec<Measured> = Vec::new();
    for one in all {
        let mut settings = one.settings.clone();
        settings.retain(|key, _| !NO_PART_OF_A_GROUP.contains(&key.as_str()));
        let batch = one.kept_batch();
        settings.insert(batch.to_owned(), one.setting(batch).to_owned());
        let run = run(one, all, predictions);
        match groups.iter_mut().find(|group| group.settings == settings) {
            Some(group) => group.runs.push(run),
            None => groups.push(Measured {
                settings,
                runs: vec![run],
            }),
        }
    }
    for group in &mut groups {
        group.runs.sort_by_key(|run| run.ranks);
    }
    groups
}

fn run(one: &Measurement, all: &[Measurement], predictions: &Predictions) -> Run {
    let images_per_second = one.speed().map_or(0.0, |speed| speed.median);
    let base = one.reference(all).filter(|base| base.ranks == 1);
    let speedup = base.and_then(|base| match one.id.is_empty() {
        // Lines of `bench` do not record which of them were measured together.
        true => Some(images_per_second / base.speed()?.median),
        false if base == one => Some(1.0),
        false => Some(one.speedup(all)?.median),
    });
    let ranks = one.ranks;
    let is_strong = one.scaling == "strong";
    let scaled = speedup.map(|speedup| Scaled {
        speedup,
        efficiency: speedup / ranks as f64,
        serial_fraction: karp_flatt(speedup, ranks).filter(|_| is_strong),
    });
    Run {
        ranks,
        batch_size_per_rank: one.setting("batch_size_per_rank").parse().unwrap_or(0),
        images_per_second,
        repetitions: one.attempts.len(),
        disturbed: one.num_disturbed() > 0,
        scaled,
        gap: gap(one, images_per_second, predictions),
    }
}

fn gap(one: &Measurement, images_per_second: f64, predictions: &Predictions) -> Option<f64> {
    let mut gaps: Vec<f64> = Vec::new();
    for (study, file) in predictions {
        let is_its = study
            .as_ref()
            .is_none_or(|study| study == one.setting("study"));
        let mut records = file.predictions.iter();
        let record = records.find(|record| is_its && one.is_predicted_by(file, record));
        let Some((record, predicted)) = record.and_then(|one| Some((one, one.images_per_second?)))
        else {
            continue;
        };
        if record.repetition.is_none() {
            gaps.push(predicted / images_per_second - 1.0);
            break;
        }
        let attempts = one.predicted(&file.created, record).into_iter();
        let speeds = attempts.filter_map(AttemptRecord::images_per_second);
        gaps.extend(speeds.map(|speed| predicted / speed - 1.0));
    }
    (!gaps.is_empty()).then(|| median(&mut gaps))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(ranks: usize, speed: f64) -> String {
        format!(
            "{{\"model\":\"resnet20\",\"dtype\":\"f32\",\"threads\":1,\"ranks\":{ranks},\"batch_size_per_rank\":32,\
             \"global_batch_size\":{},\"method\":\"allreduce:ring\",\"images_per_second\":{speed}}}",
            32 * ranks
        )
    }

    #[test]
    fn results_of_bench_are_grouped_over_ranks_and_repetitions_of_equal_options() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("runs.txt");
        let with = |options: &str, speed: f64| {
            line(1, speed).replace('{', &format!("{{\"options\":{{{options}}},"))
        };
        let lines = [
            line(2, 180.0),
            "some words".to_owned(),
            line(1, 100.0),
            line(2, 200.0),
            line(2, 190.0),
            with("\"image_size\":\"64\"", 25.0),
        ];
        std::fs::write(&path, lines.join("\n")).unwrap();
        let groups = read(&[&path], &[], |_| ()).unwrap();
        let [plain, large] = &groups[..] else {
            panic!("{groups:?}")
        };
        assert_eq!(
            (plain.runs.len(), large.runs[0].images_per_second),
            (2, 25.0)
        );
        let two = &plain.runs[1];
        assert_eq!(
            (two.ranks, two.images_per_second, two.repetitions, two.gap),
            (2, 190.0, 3, None)
        );
        let scaled = two.scaled.unwrap();
        assert!((scaled.speedup - 1.9).abs() < 1e-12 && (scaled.efficiency - 0.95).abs() < 1e-12);
        assert_eq!(scaled.serial_fraction, None, "the work grows");
        for nothing in ["nothing".to_owned(), line(1, 0.0)] {
            std::fs::write(&path, nothing).unwrap();
            let error = read(&[&path], &[], |_| ()).unwrap_err().to_string();
            assert!(
                error.contains("expected lines of `trainer bench --json`"),
                "{error}"
            );
        }
    }

    #[cfg(unix)]
    #[test]
    fn named_pipes_and_devices_are_refused_and_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let pipe = |name: &str| {
            let path = directory.path().join(name);
            let mut command = std::process::Command::new("mkfifo");
            assert!(command.arg(&path).status().unwrap().success());
            path
        };
        let refused = |path: &Path| {
            let error = format!("{:#}", read(&[path], &[], |_| ()).unwrap_err());
            assert!(error.contains("expected a regular file"), "{error}");
        };
        refused(Path::new("/dev/zero"));
        refused(&pipe("runs.txt"));
        pipe("study.json");
        refused(directory.path());
    }

    #[test]
    fn a_study_is_compared_by_its_attempts_that_count_and_a_torn_prediction_is_a_warning() {
        let directory = tempfile::tempdir().unwrap();
        let cell = |id: &str, ranks: usize, network: &str| {
            serde_json::json!({
                "id": id,
                "kind": "bench",
                "settings": {
                    "ranks": ranks, "batch_size_per_rank": 32 / ranks, "global_batch_size": 32,
                    "network": network, "scaling": "strong",
                },
            })
        };
        let cells = [
            cell("one", 1, "none"),
            cell("two", 2, "1gbit"),
            cell("no", 2, "10gbit"),
        ];
        let write = |name: &str, bytes: &[u8]| {
            std::fs::write(directory.path().join(name), bytes).unwrap();
        };
        // In a record null equals absent.
        let plan = serde_json::json!({ "cells": cells, "warmup": null });
        write("study.json", plan.to_string().as_bytes());
        let record = |cell: &str, attempt: usize, status: &str, speed: f64| {
            format!(
                "{{\"cell\":\"{cell}\",\"repetition\":1,\"attempt\":{attempt},\"status\":\"{status}\",\
                 \"result\":{{\"images_per_second\":{speed}}}}}\n"
            )
        };
        let records = record("one", 1, "ok", 100.0)
            + &record("two", 1, "disturbed", 100.0)
            + &record("two", 2, "ok", 180.0)
            + &record("no", 1, "failed", 1.0)
            + "{\"cell\":\"tw";
        write("records.jsonl", &[records.as_bytes(), b"\xe2\x82"].concat());
        std::fs::create_dir(directory.path().join("predictions")).unwrap();
        write("predictions/torn.json", b"{");
        write(
            "predictions/two.json",
            b"{\"profile\":{\"spread_s\":null},\"predictions\":[{\"cell\":\"two\",\"images_per_second\":198}]}",
        );
        let warnings = std::cell::RefCell::new(Vec::new());
        let warn = |text: &str| warnings.borrow_mut().push(text.to_owned());
        let groups = read(&[directory.path()], &[], warn).unwrap();
        let warnings = warnings.into_inner();
        assert!(
            warnings.len() == 1 && warnings[0].contains("torn.json, expected a file of"),
            "{warnings:?}"
        );
        assert_eq!(
            (groups.len(), groups[1].settings["network"].as_str()),
            (2, "1gbit")
        );
        let two = &groups[1].runs[0];
        assert_eq!((two.images_per_second, two.disturbed), (180.0, false));
        let scaled = two.scaled.unwrap();
        assert!((scaled.efficiency - 0.9).abs() < 1e-12);
        assert!((scaled.serial_fraction.unwrap() - 1.0 / 9.0).abs() < 1e-12);
        assert!((two.gap.unwrap() - 0.1).abs() < 1e-12);
        assert_eq!(groups[0].runs[0].scaled.unwrap().speedup, 1.0);
    }
}
