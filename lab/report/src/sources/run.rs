//! The directory of a training run, finished or not.
//!
//! In: `run.toml`, `manifest.json` and those of earlier sessions, `metrics.jsonl`, `evaluation.json`, `summary.json`.
//! Out: [`Run`]. Invariant: each file may be absent or torn; a remark names it.

use super::{name, read_json, read_lines};
use anyhow::Result;
use records::{EpochRecord, EvaluationByClass, Manifest, Summary};
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, Default)]
pub(crate) struct Run {
    /// Name in the report.
    pub(crate) label: String,
    /// Cell that it repeats.
    pub(crate) group: Option<RunGroup>,
    pub(crate) directory: PathBuf,
    /// Text of `run.toml`.
    pub(crate) toml: String,
    /// Options by `section.key`.
    pub(crate) settings: BTreeMap<String, String>,
    /// Options of earlier sessions, the first session first.
    pub(crate) earlier_settings: Vec<BTreeMap<String, String>>,
    /// Manifests, the newest session first.
    pub(crate) manifests: Vec<Manifest>,
    pub(crate) epochs: Vec<EpochRecord>,
    /// Absent while the run trains, or if it was killed.
    pub(crate) summary: Option<Summary>,
    /// Best evaluation by class, or the final one of the test split.
    pub(crate) by_class: Option<EvaluationByClass>,
    /// Warnings for the reader.
    pub(crate) remarks: Vec<String>,
}

/// A cell of a study with repeated runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunGroup {
    /// Number of the study, from 1.
    pub(crate) study: usize,
    pub(crate) cell: String,
}

impl Run {
    /// Returns true if a directory looks like that of a run.
    pub(crate) fn is_in(directory: &Path) -> bool {
        let files = ["run.toml", "manifest.json", "metrics.jsonl"];
        files.iter().any(|file| directory.join(file).is_file())
    }

    /// # Errors
    /// When the metrics exist and cannot be read.
    pub(crate) fn read(directory: &Path) -> Result<Self> {
        let mut run = Self {
            label: name(directory),
            directory: directory.to_owned(),
            ..Self::default()
        };
        let options = directory.join("run.toml");
        match records::file::read_to_string(&options) {
            Ok(text) => run.toml = text,
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => run
                .remarks
                .push(format!("cannot read {}: {error}", options.display())),
        }
        match run.toml.parse() {
            Ok(table) => run.settings = flat(&table),
            Err(error) => {
                run.remarks.push(format!(
                    "run.toml cannot be read: {}",
                    toml::de::Error::message(&error)
                ));
            }
        }
        for session in 1.. {
            let manifest = directory.join(format!("manifest-{session}.json"));
            if !manifest.exists() {
                break;
            }
            let manifest = run.parsed(&manifest);
            run.manifests.extend(manifest);
            let options = directory.join(format!("run-{session}.toml"));
            let options = records::file::read_to_string(&options).ok();
            run.earlier_settings
                .extend(options.and_then(|text| Some(flat(&text.parse().ok()?))));
        }
        let manifest = run.parsed(&directory.join("manifest.json"));
        run.manifests.extend(manifest);
        run.manifests.reverse();
        let metrics = directory.join("metrics.jsonl");
        if metrics.exists() {
            let epochs: Vec<EpochRecord> = read_lines(&metrics, &mut run.remarks)?;
            // The last record of an epoch counts.
            let epochs = epochs.into_iter().map(|record| (record.epoch, record));
            run.epochs = BTreeMap::from_iter(epochs).into_values().collect();
        }
        let summary = directory.join("summary.json");
        if summary.exists() {
            run.summary = run.parsed(&summary);
        } else {
            run.remarks
                .push("no summary.json: the run still trains, or was killed".to_owned());
        }
        let by_class = directory.join("evaluation.json");
        if by_class.exists() {
            run.by_class = run.parsed(&by_class);
        }
        run.add_remarks();
        Ok(run)
    }

    /// Reads a file of JSON, or adds a remark.
    fn parsed<T: DeserializeOwned>(&mut self, path: &Path) -> Option<T> {
        read_json(path)
            .map_err(|error| self.remarks.push(format!("{error:#}")))
            .ok()
    }

    fn add_remarks(&mut self) {
        if let Some(index) = self.progress().iter().position(Option::is_none) {
            self.remarks.push(format!(
                "epoch {} is missing in metrics.jsonl, so images and seconds are unknown from there on",
                index + 1
            ));
        }
        if self.epochs.is_empty() {
            self.remarks.push("no epoch in metrics.jsonl".to_owned());
        }
        let ranks = self.by_session(|manifest| manifest.launch.ranks.to_string());
        if ranks.contains(',') {
            self.remarks.push(format!(
                "its sessions had different numbers of ranks: {ranks}; speeds are those of the last session"
            ));
        }
        if self
            .summary
            .as_ref()
            .is_some_and(|summary| summary.stopped_early)
        {
            self.remarks
                .push("stopped before its last epoch".to_owned());
        }
    }

    pub(crate) fn manifest(&self) -> Option<&Manifest> {
        self.manifests.first()
    }

    /// Lists a value of all sessions, the first session first, without repetition: `2, then 1`.
    pub(crate) fn by_session(&self, value: impl Fn(&Manifest) -> String) -> String {
        in_turn(self.manifests.iter().rev().map(value))
    }

    /// Lists every option's values in all sessions as [`by_session`](Self::by_session) does, without quotes.
    pub(crate) fn settings_by_session(&self) -> BTreeMap<String, String> {
        let sessions = || self.earlier_settings.iter().chain([&self.settings]);
        let keys: BTreeSet<&String> = sessions().flat_map(BTreeMap::keys).collect();
        let value = |settings: &BTreeMap<String, String>, key| {
            settings.get(key).map_or_else(
                || "unset".to_owned(),
                |value| value.trim_matches('"').to_owned(),
            )
        };
        keys.into_iter()
            .map(|key| {
                (
                    key.clone(),
                    in_turn(sessions().map(|settings| value(settings, key))),
                )
            })
            .collect()
    }

    /// Returns an option without quotes.
    pub(crate) fn setting(&self, key: &str) -> Option<&str> {
        self.settings.get(key).map(|value| value.trim_matches('"'))
    }

    /// Returns the ranks that trained the last epoch; before its end the ranks of the newest session, servers included.
    pub(crate) fn ranks(&self) -> Option<usize> {
        let recorded = self
            .epochs
            .last()
            .map(|epoch| epoch.num_ranks)
            .filter(|ranks| *ranks > 0);
        recorded.or_else(|| self.manifest().map(|manifest| manifest.launch.ranks))
    }

    /// Returns images/s of the last session; of its last measured epoch if it has not ended or ran no step.
    pub(crate) fn images_per_second(&self) -> Option<f64> {
        let of_session = self
            .summary
            .as_ref()
            .and_then(|summary| summary.images_per_second)
            .map(|stats| stats.mean);
        of_session
            .filter(|speed| *speed > 0.0)
            .or_else(|| self.of_last_epochs(EpochRecord::speed))
    }

    /// Returns a value of the newest epoch that has one and ran on as many ranks as the last epoch.
    pub(crate) fn of_last_epochs(&self, value: fn(&EpochRecord) -> Option<f64>) -> Option<f64> {
        let ranks = self.epochs.last()?.num_ranks;
        self.epochs
            .iter()
            .rev()
            .filter(|epoch| epoch.num_ranks == ranks)
            .find_map(value)
    }

    /// Returns the largest memory of a rank, bytes.
    pub(crate) fn peak_memory_bytes(&self) -> Option<u64> {
        let of_epochs = self
            .epochs
            .iter()
            .map(|epoch| epoch.peak_memory_bytes)
            .max();
        self.summary
            .as_ref()
            .map(|summary| summary.peak_memory_bytes)
            .max(of_epochs)
            .filter(|bytes| *bytes > 0)
    }

    /// Returns images and seconds at the end of every epoch; unknown after the first missing epoch.
    pub(crate) fn progress(&self) -> Vec<Option<(f64, f64)>> {
        let mut at = (0.0, 0.0);
        let step = |(index, epoch): (usize, &EpochRecord)| {
            at = (
                at.0 + epoch.train_num_samples as f64,
                at.1 + epoch.seconds_total,
            );
            (epoch.epoch == index as u64).then_some(at)
        };
        self.epochs.iter().enumerate().map(step).collect()
    }
}

/// Joins values, each once where several in a row are equal.
fn in_turn(values: impl Iterator<Item = String>) -> String {
    let mut values: Vec<String> = values.collect();
    values.dedup();
    values.join(", then ")
}

fn flat(table: &toml::Table) -> BTreeMap<String, String> {
    let mut settings = BTreeMap::new();
    for (section, keys) in table {
        match keys {
            toml::Value::Table(keys) => {
                settings.extend(
                    keys.iter()
                        .map(|(key, value)| (format!("{section}.{key}"), value.to_string())),
                );
            }
            value => {
                settings.insert(section.clone(), value.to_string());
            }
        }
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resumed_run_has_the_options_and_ranks_of_all_its_sessions() {
        let directory = tempfile::tempdir().unwrap();
        let session = |suffix: &str, ranks: usize, options: &str| {
            let launch = records::LaunchFacts {
                ranks,
                ..records::LaunchFacts::default()
            };
            let manifest = serde_json::to_string(&Manifest {
                launch,
                ..Manifest::default()
            })
            .unwrap();
            std::fs::write(
                directory.path().join(format!("manifest{suffix}.json")),
                manifest,
            )
            .unwrap();
            std::fs::write(directory.path().join(format!("run{suffix}.toml")), options).unwrap();
        };
        session("-1", 2, "[run]\nseed = 1\n[data]\ndataset = \"shapes\"\n");
        session(
            "-2",
            2,
            "[run]\nseed = 1\nresume = true\n[data]\ndataset = \"shapes\"\n",
        );
        session(
            "",
            1,
            "[run]\nseed = 1\nresume = true\n[data]\ndataset = \"shapes\"\n",
        );
        let run = Run::read(directory.path()).unwrap();
        let expected = [
            ("data.dataset", "shapes"),
            ("run.resume", "unset, then true"),
            ("run.seed", "1"),
        ];
        assert_eq!(
            run.settings_by_session(),
            expected
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into()
        );
        assert_eq!(
            run.by_session(|manifest| manifest.launch.ranks.to_string()),
            "2, then 1"
        );
        let remark = "its sessions had different numbers of ranks: 2, then 1; speeds are those of the last session";
        assert!(
            run.remarks.iter().any(|one| one == remark),
            "{:?}",
            run.remarks
        );
    }

    #[test]
    fn images_and_seconds_are_unknown_from_a_missing_epoch_on() {
        let directory = tempfile::tempdir().unwrap();
        let line = |epoch| {
            let record = EpochRecord {
                epoch,
                train_num_samples: 10,
                seconds_total: 3.0,
                ..EpochRecord::default()
            };
            serde_json::to_string(&record).unwrap()
        };
        let lines = [line(0), line(1), "{torn".to_owned(), line(3)];
        std::fs::write(directory.path().join("metrics.jsonl"), lines.join("\n")).unwrap();
        let run = Run::read(directory.path()).unwrap();
        assert_eq!(run.progress(), [Some((10.0, 3.0)), Some((20.0, 6.0)), None]);
        assert!(
            run.remarks
                .iter()
                .any(|remark| remark.starts_with("epoch 3 is missing")),
            "{:?}",
            run.remarks
        );
    }
}
