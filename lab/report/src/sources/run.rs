//! The directory of a training run, finished or not.
//!
//! In: `run.toml`, `manifest.json` and those of earlier sessions, `metrics.jsonl`, `evaluation.json`, `summary.json`. Out: [`Run`].
//! Invariant: each file may be absent or torn; then what it would have told is absent, and a remark says so.

use super::{name, read_json, read_lines};
use anyhow::Result;
use records::{EpochRecord, EvaluationByClass, Manifest, Summary};
use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, Default)]
pub(crate) struct Run {
    /// What it is called in the report.
    pub(crate) label: String,
    /// What it repeats, if it is of a study.
    pub(crate) group: Option<RunGroup>,
    pub(crate) directory: PathBuf,
    /// The text of `run.toml`.
    pub(crate) toml: String,
    /// Its options as (`section.key`, value).
    pub(crate) settings: BTreeMap<String, String>,
    /// Those of earlier sessions, the first session first.
    pub(crate) earlier_settings: Vec<BTreeMap<String, String>>,
    /// The newest session first.
    pub(crate) manifests: Vec<Manifest>,
    pub(crate) epochs: Vec<EpochRecord>,
    /// Absent while it runs, or if it was killed.
    pub(crate) summary: Option<Summary>,
    /// The best evaluation by class, or the final one of the test split; absent before an evaluation.
    pub(crate) by_class: Option<EvaluationByClass>,
    /// What a reader should know.
    pub(crate) remarks: Vec<String>,
}

/// A cell of a study, which runs repeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunGroup {
    /// Number of the study, from 1.
    pub(crate) study: usize,
    pub(crate) cell: String,
}

impl Run {
    /// Whether a directory looks like one of a run.
    pub(crate) fn is_in(directory: &Path) -> bool {
        ["run.toml", "manifest.json", "metrics.jsonl"]
            .iter()
            .any(|file| directory.join(file).is_file())
    }

    /// Reads what is there.
    ///
    /// # Errors
    /// When the metrics are there and cannot be read.
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
        match run.toml.parse::<toml::Table>() {
            Ok(table) => run.settings = flat(&table),
            Err(error) => run
                .remarks
                .push(format!("run.toml cannot be read: {}", error.message())),
        }
        let earlier = (1..)
            .map(|session| directory.join(format!("manifest-{session}.json")))
            .take_while(|path| path.exists());
        let mut paths: Vec<PathBuf> = earlier.collect();
        let options = |session| {
            records::file::read_to_string(&directory.join(format!("run-{session}.toml"))).ok()
        };
        let options = (1..=paths.len()).filter_map(|session| options(session)?.parse().ok());
        run.earlier_settings = options.map(|table| flat(&table)).collect();
        paths.push(directory.join("manifest.json"));
        for path in paths.iter().rev() {
            match read_json(path) {
                Ok(manifest) => run.manifests.push(manifest),
                Err(error) => run.remarks.push(format!("{error:#}")),
            }
        }
        let metrics = directory.join("metrics.jsonl");
        let epochs: Vec<EpochRecord> = match metrics.exists() {
            true => read_lines(&metrics, &mut run.remarks)?,
            false => Vec::new(),
        };
        let by_epoch: BTreeMap<u64, EpochRecord> = epochs
            .into_iter()
            .map(|record| (record.epoch, record))
            .collect();
        run.epochs = by_epoch.into_values().collect();
        let summary = directory.join("summary.json");
        if summary.exists() {
            match read_json(&summary) {
                Ok(summary) => run.summary = Some(summary),
                Err(error) => run.remarks.push(format!("{error:#}")),
            }
        } else {
            run.remarks.push(
                "it has no summary.json: it still runs, or was killed; this is what it has written"
                    .to_owned(),
            );
        }
        let by_class = directory.join("evaluation.json");
        if by_class.exists() {
            match read_json(&by_class) {
                Ok(evaluation) => run.by_class = Some(evaluation),
                Err(error) => run.remarks.push(format!("{error:#}")),
            }
        }
        if let Some(index) = run.progress().iter().position(Option::is_none) {
            run.remarks.push(format!(
                "epoch {} is missing in its metrics.jsonl, so images and seconds are unknown from there on",
                index + 1
            ));
        }
        if run.epochs.is_empty() {
            run.remarks
                .push("no epoch is in its metrics.jsonl".to_owned());
        }
        let ranks = run.by_session(|manifest| manifest.launch.ranks.to_string());
        if ranks.contains(',') {
            run.remarks.push(format!(
                "its sessions had different numbers of ranks: {ranks}; speeds are those of the last"
            ));
        }
        if run
            .summary
            .as_ref()
            .is_some_and(|summary| summary.stopped_early)
        {
            run.remarks
                .push("it was stopped before its last epoch".to_owned());
        }
        Ok(run)
    }

    pub(crate) fn manifest(&self) -> Option<&Manifest> {
        self.manifests.first()
    }

    /// Returns what the manifests of the sessions have, the first session's first: `2, then 1`; once what several in a row have.
    pub(crate) fn by_session(&self, value: impl Fn(&Manifest) -> String) -> String {
        in_turn(self.manifests.iter().rev().map(value))
    }

    /// Returns every option with its values in the sessions, without the quotes of a text, as [`by_session`](Self::by_session) does.
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

    /// An option's value, without the quotes of a text.
    pub(crate) fn setting(&self, key: &str) -> Option<&str> {
        self.settings.get(key).map(|value| value.trim_matches('"'))
    }

    /// Ranks that trained the last epoch; before its end those of the newest session, servers of their own among them.
    pub(crate) fn ranks(&self) -> Option<usize> {
        let recorded = self
            .epochs
            .last()
            .map(|epoch| epoch.num_ranks)
            .filter(|ranks| *ranks > 0);
        recorded.or_else(|| self.manifest().map(|manifest| manifest.launch.ranks))
    }

    /// Training speed of the last session, images/s; of the last epoch that has one if it has not ended, or made no step.
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

    /// What the newest epoch tells of those on as many ranks as the last.
    pub(crate) fn of_last_epochs(&self, value: fn(&EpochRecord) -> Option<f64>) -> Option<f64> {
        let ranks = self.epochs.last()?.num_ranks;
        self.epochs
            .iter()
            .rev()
            .filter(|epoch| epoch.num_ranks == ranks)
            .find_map(value)
    }

    /// Largest memory of a rank, bytes.
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

    /// Images trained and seconds gone at the end of every epoch; unknown from the first on of which the record is missing.
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

/// Values one after the other; once what several in a row have.
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
        let remark =
            "its sessions had different numbers of ranks: 2, then 1; speeds are those of the last";
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
                .any(|remark| remark.starts_with("epoch 2 is missing")),
            "{:?}",
            run.remarks
        );
    }
}
