//! What a report is made of, read from disk.
//!
//! In: paths, recognised by what they hold. Out: [`Sources`]. Invariant: nothing is taken for what it is not; what is torn or missing
//! is left out and said, and unknown fields are passed over.

mod prediction;
mod run;
mod study;
mod trace;

pub(crate) use prediction::{Predictions, Round};
pub(crate) use run::{Run, RunGroup};
pub(crate) use study::{StudyFolder, is_judged};
pub(crate) use trace::Trace;

use crate::Refusal;
use anyhow::{Context, Result, ensure};
use records::{Comparison, NetbenchResult, StudyCell};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// All inputs of a report.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    /// Training runs, those of studies among them.
    pub(crate) runs: Vec<Run>,
    pub(crate) studies: Vec<StudyFolder>,
    /// Comparisons with other frameworks, those of studies among them.
    pub(crate) comparisons: Vec<Comparison>,
    /// Predictions, those of studies among them.
    pub(crate) predictions: Vec<Predictions>,
    /// Measurements of a network, by name.
    pub(crate) networks: Vec<(String, NetbenchResult)>,
    pub(crate) traces: Vec<(String, Trace)>,
    /// What was left out and why.
    pub(crate) remarks: Vec<String>,
}

const EXPECTED: &str = "a run's or study's directory, a prediction, a file of netbench or a trace";

impl Sources {
    /// Reads all paths, each of any kind.
    ///
    /// # Errors
    /// a [`Refusal`] if a path is none of these, or one is there twice; when it cannot be read or is not what it says it is.
    pub(crate) fn read(paths: &[impl AsRef<Path>]) -> Result<Self> {
        let mut sources = Self::default();
        let mut known: Vec<(PathBuf, &Path)> = Vec::new();
        for path in paths.iter().map(AsRef::as_ref) {
            let place = place(path);
            if let Some((_, first)) = known.iter().find(|(other, _)| *other == place) {
                let got = format!(
                    "{} and {}, which are the same; leave one out",
                    first.display(),
                    path.display()
                );
                return Err(Refusal {
                    option: "DIR",
                    expected: "each input once".to_owned(),
                    got,
                }
                .into());
            }
            known.push((place, path));
            sources.add(path)?;
        }
        sources.tell_runs_apart();
        Ok(sources)
    }

    /// Runs of one name are called by their directories.
    fn tell_runs_apart(&mut self) {
        let labels: Vec<String> = self.runs.iter().map(|run| run.label.clone()).collect();
        for run in &mut self.runs {
            if labels.iter().filter(|label| **label == run.label).count() > 1 {
                run.label = run.directory.display().to_string();
            }
        }
    }

    fn add(&mut self, path: &Path) -> Result<()> {
        let unknown = |what: &str| -> anyhow::Error {
            let got = format!("{}, {what}", path.display());
            Refusal {
                option: "DIR",
                expected: EXPECTED.to_owned(),
                got,
            }
            .into()
        };
        if !path.exists() {
            return Err(unknown("which does not exist"));
        }
        if path.is_dir() {
            return match () {
                () if path.join("study.json").is_file() => self.add_study(path),
                () if Run::is_in(path) => {
                    self.runs.push(Run::read(path)?);
                    Ok(())
                }
                () => Err(unknown(
                    "which has no study.json, run.toml, manifest.json or metrics.jsonl",
                )),
            };
        }
        let text = records::file::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        let value: Value = serde_json::from_str(&text)
            .map_err(|error| unknown(&format!("which is no JSON: {error}")))?;
        let schema = value["schema"].as_str().unwrap_or_default().to_owned();
        let folder = path.parent().unwrap_or(Path::new("."));
        match () {
            () if schema.starts_with("lockstep.prediction/") => {
                self.predictions
                    .push(Predictions::from_value(path, value, &mut self.remarks)?);
            }
            () if schema.starts_with("lockstep.study/") => self.add_study(folder)?,
            () if value["point_to_point"].is_array() => self
                .networks
                .push((network_name(path), parsed(path, value)?)),
            () if Trace::is_one(&value) => {
                self.traces.push((name(path), Trace::from_value(&value)))
            }
            () => return Err(unknown("which is JSON of another kind")),
        }
        Ok(())
    }

    /// Adds a study with its runs, network measurements, predictions and comparison.
    fn add_study(&mut self, directory: &Path) -> Result<()> {
        let study = StudyFolder::read(directory, &mut self.remarks)?;
        let number = self.studies.len() + 1;
        let networks: Vec<String> = study
            .plan
            .cells
            .iter()
            .filter(|cell| cell.kind == "netbench")
            .map(network_of)
            .collect();
        for (cell, record) in study.counted() {
            let place = directory.join(&record.directory);
            let repeated = |name: String| match cell.repetitions {
                0 | 1 => name,
                _ => format!("{name} #{}", record.repetition),
            };
            let label = repeated(cell.id.clone());
            if cell.settings.contains_key("framework") {
                continue;
            }
            match cell.kind.as_str() {
                "train" if Run::is_in(&place.join("run")) => match Run::read(&place.join("run")) {
                    Ok(run) => {
                        let group = Some(RunGroup {
                            study: number,
                            cell: cell.id.clone(),
                        });
                        self.runs.push(Run {
                            label,
                            group,
                            ..run
                        });
                    }
                    Err(error) => self.remarks.push(format!("{label}: {error:#}")),
                },
                "train" => self.remarks.push(format!(
                    "{label}: the run's directory {} is absent, its curves are left out",
                    place.join("run").display()
                )),
                "netbench" => match read_json(&place.join("network.json")) {
                    Ok(network) => {
                        // Cells of one network differ in something else, which their ids tell.
                        let is_only = networks
                            .iter()
                            .filter(|name| **name == network_of(cell))
                            .count()
                            == 1;
                        let name = if is_only {
                            repeated(network_of(cell))
                        } else {
                            label
                        };
                        // Another study may have measured one of the same name.
                        let of_study = if number > 1 {
                            format!(", study {number}")
                        } else {
                            String::new()
                        };
                        self.networks.push((name + &of_study, network));
                    }
                    Err(error) => self.remarks.push(format!("{label}: {error:#}")),
                },
                _ => {}
            }
        }
        self.add_predictions(&study, number);
        let mut study = study;
        self.comparisons
            .extend(Comparison::of(&study.plan, &study.attempts));
        // Sections about training show Lockstep's cells only.
        let is_training = |cell: &StudyCell| !cell.settings.contains_key("framework");
        study.plan.cells.retain(is_training);
        if !study.plan.cells.is_empty() || self.comparisons.is_empty() {
            self.studies.push(study);
        }
        Ok(())
    }

    fn add_predictions(&mut self, study: &StudyFolder, number: usize) {
        let files = sorted(&study.directory.join("predictions"));
        let mut read = Vec::new();
        for path in files.iter().filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "json")
        }) {
            let file = read_json(path)
                .and_then(|value| Predictions::from_value(path, value, &mut self.remarks));
            match file {
                Ok(mut file) => {
                    file.stand_in(study, number);
                    read.push(file);
                }
                Err(error) => self
                    .remarks
                    .push(format!("{error:#}, so that it is left out")),
            }
        }
        self.predictions.extend(Predictions::merged(read));
    }
}

/// Returns the place of an input; of the file that makes a directory a study, the directory.
fn place(path: &Path) -> PathBuf {
    let whole = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let is_of_folder = whole.ends_with("study.json");
    whole
        .parent()
        .filter(|_| is_of_folder)
        .map(Path::to_owned)
        .unwrap_or(whole)
}

/// What is in a folder, by name; nothing of one that is not there.
fn sorted(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .collect();
    paths.sort();
    paths
}

/// The last part of a path, or all of it where that says nothing.
fn name(path: &Path) -> String {
    let whole = || path.display().to_string();
    path.file_name()
        .map_or_else(whole, |name| name.to_string_lossy().into_owned())
}

/// The network that a cell runs over, or its id where it says none.
fn network_of(cell: &StudyCell) -> String {
    Some(cell.setting("network"))
        .filter(|network| !network.is_empty())
        .unwrap_or_else(|| cell.id.clone())
}

/// What a measurement of a network is called: as its file, but one of those that all studies call alike as the directory that tells them
/// apart, `CELL/ATTEMPT/network.json` as CELL.
fn network_name(path: &Path) -> String {
    let folder = |above: usize| {
        path.ancestors()
            .nth(above)?
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
    };
    let of_folder = match folder(3).as_deref() {
        Some("runs") => folder(2),
        _ => folder(1),
    };
    of_folder
        .filter(|_| path.file_name().is_some_and(|name| name == "network.json"))
        .unwrap_or_else(|| name(path))
}

/// A file of JSON.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let text = records::file::read_to_string(path)
        .with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| path.display().to_string())
}

fn parsed<T: DeserializeOwned>(path: &Path, value: Value) -> Result<T> {
    records::from_value(value).with_context(|| path.display().to_string())
}

/// The lines of a file that are what they should be; others are counted in a remark.
fn read_lines<T: DeserializeOwned>(path: &Path, remarks: &mut Vec<String>) -> Result<Vec<T>> {
    let bytes =
        records::file::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    let record = |line: &&str| records::from_value(serde_json::from_str(line).ok()?).ok();
    let records: Vec<T> = lines.iter().filter_map(record).collect();
    let num_lost = lines.len() - records.len();
    if num_lost > 0 {
        remarks.push(format!(
            "{}: {num_lost} of {} lines cannot be read and are left out",
            path.display(),
            lines.len()
        ));
    }
    Ok(records)
}

/// Compares a schema such as `lockstep.study/1` with the one this program knows; a newer one is read as far as it is known.
fn check_schema(path: &Path, value: &Value, known: &str, remarks: &mut Vec<String>) -> Result<()> {
    let schema = value["schema"].as_str().unwrap_or_default();
    let (kind, _) = known.split_once('/').unwrap_or((known, ""));
    ensure!(
        schema
            .split_once('/')
            .is_some_and(|(found, _)| found == kind),
        "{}: schema: expected {known}, got {}",
        path.display(),
        if schema.is_empty() { "none" } else { schema }
    );
    if schema != known {
        remarks.push(format!(
            "{}: its schema {schema} is not {known}, which this program was written for: what it adds is left out",
            path.display()
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_is_called_by_what_tells_it_from_others() {
        let names = [
            "a/study/runs/netbench-1gbit/r1a1/network.json",
            "cluster/network.json",
            "network.json",
            "a/ib.json",
        ];
        assert_eq!(
            names.map(|path| network_name(Path::new(path))),
            ["netbench-1gbit", "cluster", "network.json", "ib.json"]
        );
    }

    #[test]
    fn runs_of_one_name_are_called_by_their_directories() {
        let folder = tempfile::tempdir().unwrap();
        let paths = ["a/run", "b/run", "b/other"].map(|path| folder.path().join(path));
        for path in &paths {
            fs::create_dir_all(path).unwrap();
            fs::write(path.join("run.toml"), "").unwrap();
        }
        let sources = Sources::read(&paths).unwrap();
        let labels: Vec<&str> = sources.runs.iter().map(|run| run.label.as_str()).collect();
        let path = |index: usize| paths[index].display().to_string();
        assert_eq!(labels, [path(0), path(1), "other".to_owned()]);
    }

    #[cfg(unix)]
    #[test]
    fn a_named_pipe_is_refused_as_an_input_and_left_out_of_a_run_with_a_remark() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::create_dir(path("run")).unwrap();
        fs::write(path("run/metrics.jsonl"), "").unwrap();
        for pipe in ["pipe", "run/run.toml", "run/summary.json"] {
            assert!(
                std::process::Command::new("mkfifo")
                    .arg(path(pipe))
                    .status()
                    .unwrap()
                    .success()
            );
        }
        let error = format!("{:#}", Sources::read(&[path("pipe")]).unwrap_err());
        assert!(
            error.contains("expected a regular file, got a folder, pipe or device"),
            "{error}"
        );
        let sources = Sources::read(&[path("run")]).unwrap();
        for pipe in ["run/run.toml", "run/summary.json"] {
            let expected = format!(
                "cannot read {}: expected a regular file",
                path(pipe).display()
            );
            let remarks = &sources.runs[0].remarks;
            assert!(
                remarks.iter().any(|remark| remark.starts_with(&expected)),
                "{remarks:?}"
            );
        }
    }

    #[test]
    fn an_input_that_is_given_twice_is_refused_whatever_it_is_called() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::create_dir_all(path("study/runs")).unwrap();
        fs::write(
            path("study/study.json"),
            r#"{ "schema": "lockstep.study/1" }"#,
        )
        .unwrap();
        fs::create_dir(path("run")).unwrap();
        fs::write(path("run/run.toml"), "").unwrap();
        for (first, second) in [
            ("study", "study/runs/.."),
            ("study", "study/study.json"),
            ("run", "run"),
        ] {
            let refused = Sources::read(&[path(first), path(second)])
                .unwrap_err()
                .to_string();
            let [first, second] = [first, second].map(|name| path(name).display().to_string());
            let expected = format!(
                "DIR: expected each input once, got {first} and {second}, which are the same; leave one out"
            );
            assert_eq!(refused, expected);
        }
        assert_eq!(
            Sources::read(&[path("study"), path("run")])
                .unwrap()
                .runs
                .len(),
            1
        );
    }
}
