//! The directory of a training run, finished or not.
//!
//! In: `run.toml` and `manifest.json` of all sessions, `metrics.jsonl`, `evaluation.json`,
//! `summary.json`. Out: [`Run`].
//! Invariant: each file may be absent or torn; a remark names a torn file.

use super::{name, read_lines, read_to_string};
use anyhow::{Context, Result, anyhow};
use records::{EpochRecord, Evaluation, EvaluationByClass, Manifest, Summary};
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Bytes that are read at the end of a log.
const TAIL: u64 = 256 << 10;

#[derive(Clone, Debug, Default)]
pub(crate) struct Run {
    /// Name in the report.
    pub(crate) label: String,
    /// Cell that it repeats.
    pub(crate) group: Option<RunGroup>,
    pub(crate) directory: PathBuf,
    /// Text of `run.toml`.
    pub(crate) toml: String,
    /// Options by `section.key`, the newest session first.
    pub(crate) settings: Vec<BTreeMap<String, String>>,
    /// Manifests, the newest session first.
    pub(crate) manifests: Vec<Manifest>,
    pub(crate) epochs: Vec<EpochRecord>,
    /// Absent while the run trains, or if it was killed.
    pub(crate) summary: Option<Summary>,
    /// Best evaluation by class, or the final one of the test split.
    pub(crate) by_class: Option<EvaluationByClass>,
    /// End of the log of the newest session.
    pub(crate) log: Vec<String>,
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

/// The score of a run's best epoch.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BestScore {
    pub(crate) split: String,
    /// `top1`, `loss` or the name of a metric.
    pub(crate) figure: String,
    pub(crate) value: f64,
    pub(crate) lower_is_better: bool,
}

impl BestScore {
    /// Returns split and figure in words, such as `val accuracy`.
    pub(crate) fn name(&self) -> String {
        let figure = match self.figure.as_str() {
            "top1" => "accuracy",
            figure => figure,
        };
        format!("{} {figure}", self.split)
    }
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
        let is_session = |number: &i32| directory.join(format!("manifest-{number}.json")).exists();
        let earlier = (1..).take_while(is_session);
        for suffix in earlier
            .map(|number| format!("-{number}"))
            .chain([String::new()])
        {
            let manifest = run.file(&format!("manifest{suffix}.json"), json);
            run.manifests.splice(0..0, manifest);
            run.toml = String::new();
            if let Some(text) = run.file(&format!("run{suffix}.toml"), |text| Ok(text.to_owned())) {
                match options(&text) {
                    Ok(options) => run.settings.insert(0, options),
                    Err(error) => run
                        .remarks
                        .push(format!("run{suffix}.toml cannot be read: {error}")),
                }
                run.toml = text;
            }
        }
        let epochs: Vec<EpochRecord> =
            read_lines(&directory.join("metrics.jsonl"), &mut run.remarks)?;
        // The last record of an epoch counts.
        let epochs = epochs.into_iter().map(|record| (record.epoch, record));
        run.epochs = BTreeMap::from_iter(epochs).into_values().collect();
        run.summary = run.file("summary.json", json);
        run.by_class = run.file("evaluation.json", json);
        run.log = last_session(&directory.join("train.log"));
        run.add_remarks();
        Ok(run)
    }

    /// Reads a file, if it exists; a remark names a file that cannot be read.
    fn file<T>(&mut self, name: &str, parse: fn(&str) -> Result<T>) -> Option<T> {
        let path = self.directory.join(name);
        if !path.exists() {
            return None;
        }
        let parsed = read_to_string(&path)
            .and_then(|text| parse(&text).with_context(|| path.display().to_string()));
        parsed
            .map_err(|error| self.remarks.push(format!("{error:#}")))
            .ok()
    }

    fn add_remarks(&mut self) {
        let mut remarks = Vec::new();
        if !self.directory.join("summary.json").exists() {
            remarks.push("no summary.json: the run still trains, or was killed".to_owned());
        }
        if let Some(index) = self.progress().iter().position(Option::is_none) {
            remarks.push(format!(
                "epoch {} is missing in metrics.jsonl, so images and seconds are unknown from there on",
                index + 1
            ));
        }
        if self.epochs.is_empty() {
            remarks.push("no epoch in metrics.jsonl".to_owned());
        }
        let ranks = self.ranks_by_session();
        if ranks.contains(',') {
            remarks.push(format!(
                "its sessions had different numbers of ranks: {ranks}; speeds are those of the last session"
            ));
        }
        if self
            .summary
            .as_ref()
            .is_some_and(|summary| summary.stopped_early)
        {
            remarks.push("stopped before its last epoch".to_owned());
        }
        let alerts = alerts(&self.log, &[]).into_iter();
        let warnings = alerts.filter_map(|line| Some(line.strip_prefix("warning: ")?.to_owned()));
        remarks.extend(warnings);
        self.remarks.extend(remarks);
    }

    pub(crate) fn manifest(&self) -> Option<&Manifest> {
        self.manifests.first()
    }

    /// Lists a value of all sessions, the first session first, without repetition: `2, then 1`.
    pub(crate) fn by_session(&self, value: impl Fn(&Manifest) -> String) -> String {
        in_turn(self.manifests.iter().map(value))
    }

    /// Lists the ranks of all sessions.
    pub(crate) fn ranks_by_session(&self) -> String {
        self.by_session(|manifest| manifest.launch.ranks.to_string())
    }

    /// Returns the ranks of all sessions if they differ, otherwise those that trained.
    pub(crate) fn ranks_in_turn(&self) -> Option<String> {
        let of_sessions = Some(self.ranks_by_session());
        let differing = of_sessions.filter(|ranks| ranks.contains(','));
        differing.or_else(|| Some(self.ranks()?.to_string()))
    }

    /// Lists every option's values in all sessions as [`by_session`](Self::by_session) does.
    pub(crate) fn settings_by_session(&self) -> BTreeMap<String, String> {
        let keys: BTreeSet<&String> = self.settings.iter().flat_map(BTreeMap::keys).collect();
        let values = |key: &String| {
            let sessions = self.settings.iter();
            in_turn(sessions.map(|settings| {
                let value = settings.get(key).map_or("unset", String::as_str);
                value.to_owned()
            }))
        };
        keys.into_iter()
            .map(|key| (key.clone(), values(key)))
            .collect()
    }

    /// Returns an option of the newest session.
    pub(crate) fn setting(&self, key: &str) -> Option<&str> {
        self.settings.first()?.get(key).map(String::as_str)
    }

    /// Returns the name of the model, or of the family of a custom model.
    pub(crate) fn model(&self) -> Option<&str> {
        self.setting("model.model").or(self.setting("model.family"))
    }

    /// Returns the result: split, number of the model's epoch, and scores of the test split at the
    /// end, otherwise of the last evaluation.
    pub(crate) fn result(&self) -> Option<(&'static str, u64, &Evaluation)> {
        let tested = self
            .summary
            .as_ref()
            .and_then(|summary| summary.test.as_ref());
        let tested = tested.map(|test| ("test", test.epoch.saturating_add(1), &test.scores));
        tested.or_else(|| {
            let epochs = self.epochs.iter().rev();
            let mut evaluated = epochs.filter_map(|epoch| Some((epoch, epoch.evaluation()?)));
            let (epoch, (split, scores)) = evaluated.next()?;
            Some((split, epoch.number(), scores))
        })
    }

    /// Returns the score that chose the best epoch; before the end of a run the best accuracy or
    /// loss so far. `None` before the first evaluation.
    pub(crate) fn best(&self) -> Option<BestScore> {
        let evaluations = self.epochs.iter().filter_map(EpochRecord::evaluation);
        let summary = self.summary.as_ref();
        if let Some(best) = summary.and_then(|summary| summary.best.as_ref()) {
            let (split, figure) = best.monitor.split_once('-')?;
            let mut values = evaluations.filter_map(|(_, scores)| scores.value(figure));
            return Some(BestScore {
                split: split.to_owned(),
                figure: figure.to_owned(),
                value: best.value,
                lower_is_better: figure == "loss" || values.any(|value| value > best.value),
            });
        }
        let (split, last) = evaluations.clone().next_back()?;
        let lower_is_better = last.top1.is_none();
        let figure = if lower_is_better { "loss" } else { "top1" };
        let values = evaluations.filter_map(|(_, scores)| scores.value(figure));
        let value = match lower_is_better {
            true => values.min_by(f64::total_cmp),
            false => values.max_by(f64::total_cmp),
        };
        Some(BestScore {
            split: split.to_owned(),
            figure: figure.to_owned(),
            value: value?,
            lower_is_better,
        })
    }

    /// Returns the seconds of all epochs, with evaluations and checkpoints.
    pub(crate) fn seconds(&self) -> Option<f64> {
        Some((*self.progress().last()?)?.1)
    }

    pub(crate) fn global_batch_size(&self) -> Option<u64> {
        self.setting("batch.global-batch-size")?.parse().ok()
    }

    /// Returns the ranks that trained the last epoch; before its end the ranks of the newest
    /// session, servers included.
    pub(crate) fn ranks(&self) -> Option<usize> {
        let recorded = self.epochs.last().map(|epoch| epoch.num_ranks);
        recorded
            .filter(|ranks| *ranks > 0)
            .or_else(|| Some(self.manifest()?.launch.ranks))
    }

    /// Returns images/s of the last session; of its last measured epoch if it has not ended or ran
    /// no step.
    pub(crate) fn images_per_second(&self) -> Option<f64> {
        let summary = self.summary.as_ref();
        summary
            .and_then(|summary| summary.images_per_second)
            .map(|stats| stats.mean)
            .filter(|speed| *speed > 0.0)
            .or_else(|| self.of_last_epochs(EpochRecord::speed))
    }

    /// Returns a value of the newest epoch that has one and ran on as many ranks as the last epoch.
    pub(crate) fn of_last_epochs(&self, value: fn(&EpochRecord) -> Option<f64>) -> Option<f64> {
        let ranks = self.epochs.last()?.num_ranks;
        let epochs = self.epochs.iter().rev();
        epochs
            .filter(|epoch| epoch.num_ranks == ranks)
            .find_map(value)
    }

    /// Returns the largest memory of a rank, bytes.
    pub(crate) fn peak_memory_bytes(&self) -> Option<u64> {
        let of_epochs = self.epochs.iter().map(|epoch| epoch.peak_memory_bytes);
        let of_summary = self.summary.iter().map(|summary| summary.peak_memory_bytes);
        let peak = of_epochs.chain(of_summary).max();
        peak.filter(|bytes| *bytes > 0)
    }

    /// Returns images and seconds at the end of every epoch; unknown after the first missing epoch.
    pub(crate) fn progress(&self) -> Vec<Option<(f64, f64)>> {
        let mut images = 0.0;
        let mut seconds = 0.0;
        let end = |(index, epoch): (usize, &EpochRecord)| {
            images += epoch.train_num_samples as f64;
            seconds += epoch.seconds_total;
            (epoch.epoch == index as u64).then_some((images, seconds))
        };
        self.epochs.iter().enumerate().map(end).collect()
    }
}

/// Joins values of sessions, the newest of which comes first; equal neighbours are one.
fn in_turn(values: impl Iterator<Item = String>) -> String {
    let mut values: Vec<String> = values.collect();
    values.reverse();
    values.dedup();
    values.join(", then ")
}

fn lines_at_end(path: &Path) -> Vec<String> {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = records::file::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().unwrap_or_default();
    String::from_utf8_lossy(&bytes)
        .lines()
        .map(str::to_owned)
        .collect()
}

/// Returns the last lines of a log since the head that begins a session; none if the
/// log cannot be read.
pub(crate) fn last_session(path: &Path) -> Vec<String> {
    let mut lines = lines_at_end(path);
    let start = lines.iter().rposition(|line| line.starts_with("run  "));
    lines.split_off(start.unwrap_or(0))
}

/// Returns warnings, errors and the ranks' lines below an error, each once.
pub(crate) fn alerts(log: &[String], output: &[String]) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let mut alerts = Vec::new();
    let mut is_below_error = false;
    for line in log.iter().chain(output) {
        let is_error = line.starts_with("error");
        is_below_error = is_error || is_below_error && line.starts_with("  rank ");
        if (is_below_error || line.starts_with("warning: ")) && seen.insert(line) {
            alerts.push(line.clone());
        }
    }
    alerts
}

fn json<T: DeserializeOwned>(text: &str) -> Result<T> {
    Ok(serde_json::from_str(text)?)
}

/// Returns the options of a session by `section.key`.
fn options(text: &str) -> Result<BTreeMap<String, String>> {
    let table: toml::Table = text
        .parse()
        .map_err(|error: toml::de::Error| anyhow!("{}", error.message()))?;
    let value = |value: &toml::Value| match value {
        toml::Value::String(text) => text.clone(),
        value => value.to_string(),
    };
    let mut options = BTreeMap::new();
    for (section, keys) in &table {
        let keys = keys.as_table().into_iter().flatten();
        options.extend(keys.map(|(key, one)| (format!("{section}.{key}"), value(one))));
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_resumed_run_has_the_options_and_ranks_of_all_its_sessions() {
        let directory = tempfile::tempdir().unwrap();
        for (suffix, ranks, resume) in [
            ("-1", 2, ""),
            ("-2", 2, "resume = true"),
            ("", 1, "resume = true"),
        ] {
            let mut manifest = Manifest::default();
            manifest.launch.ranks = ranks;
            let path = |file: String| directory.path().join(file);
            let text = serde_json::to_string(&manifest).unwrap();
            fs::write(path(format!("manifest{suffix}.json")), text).unwrap();
            let text = format!("[run]\nseed = 1\n{resume}\n[data]\ndataset = \"shapes\"\n");
            fs::write(path(format!("run{suffix}.toml")), text).unwrap();
        }
        let run = Run::read(directory.path()).unwrap();
        let expected = [
            ("data.dataset", "shapes"),
            ("run.resume", "unset, then true"),
            ("run.seed", "1"),
        ];
        let expected = expected.map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(run.settings_by_session(), expected.into());
        assert_eq!(run.ranks_by_session(), "2, then 1");
        let remark = "its sessions had different numbers of ranks: 2, then 1; speeds are those of the last session";
        assert!(
            run.remarks.iter().any(|one| one == remark),
            "{:?}",
            run.remarks
        );
    }

    #[test]
    fn warnings_in_the_log_of_the_newest_session_are_remarks() {
        let directory = tempfile::tempdir().unwrap();
        let log = "run  a\nwarning: old\nrun  a\nwarning: uneven\nepoch 1\nwarning: uneven\n";
        fs::write(directory.path().join("train.log"), log).unwrap();
        fs::write(directory.path().join("metrics.jsonl"), "").unwrap();
        let remarks = Run::read(directory.path()).unwrap().remarks;
        let of_log = remarks.iter().filter(|remark| !remark.starts_with("no "));
        assert_eq!(of_log.collect::<Vec<_>>(), ["uneven"]);
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
        fs::write(directory.path().join("metrics.jsonl"), lines.join("\n")).unwrap();
        let run = Run::read(directory.path()).unwrap();
        assert_eq!(run.progress(), [Some((10.0, 3.0)), Some((20.0, 6.0)), None]);
        let is_named = |remark: &String| remark.starts_with("epoch 3 is missing");
        assert!(run.remarks.iter().any(is_named), "{:?}", run.remarks);
    }
}
