//! Inputs of a report, read from disk.
//!
//! In: paths of any kind, recognised by their contents. Out: [`Sources`].
//! Invariant: a torn or missing file is left out with a remark. Unknown fields are ignored.

mod run;
mod trace;

pub(crate) use run::{Run, RunGroup, alerts, last_session};

use crate::Refusal;
use anyhow::{Context, Result, anyhow, ensure};
use records::{
    AttemptRecord, Comparison, NetbenchResult, PREDICTION_SCHEMA, PredictionFile, RankSeconds,
    STUDY_SCHEMA, Study, StudyCell,
};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// All inputs of a report. The runs, comparison, predictions and networks of a study are among the
/// others.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    pub(crate) runs: Vec<Run>,
    pub(crate) studies: Vec<StudyFolder>,
    pub(crate) comparisons: Vec<Comparison>,
    pub(crate) predictions: Vec<Predictions>,
    /// Measurements of a network, by name.
    pub(crate) networks: Vec<(String, NetbenchResult)>,
    /// Time of every rank in the steps of a trace, by name.
    pub(crate) traces: Vec<(String, Vec<RankSeconds>)>,
    /// Warnings about everything that was left out.
    pub(crate) remarks: Vec<String>,
}

/// A study with its attempts in the order of time.
#[derive(Debug, Default)]
pub(crate) struct StudyFolder {
    pub(crate) plan: Study,
    pub(crate) attempts: Vec<AttemptRecord>,
}

/// Predictions of one file, or of one file for each repetition of a cell.
#[derive(Debug, Default)]
pub(crate) struct Predictions {
    /// Name in the report.
    pub(crate) label: String,
    /// Number, from 1, of the study that contains the files.
    pub(crate) study: Option<usize>,
    /// Files in the order of their first predicted speed.
    pub(crate) files: Vec<PredictionFile>,
}

impl Predictions {
    /// Returns the file with the median speed.
    pub(crate) fn file(&self) -> &PredictionFile {
        &self.files[self.files.len() / 2]
    }
}

const EXPECTED: &str = "a run's or study's directory, a prediction, a file of netbench or a trace";

fn refusal(expected: &str, got: String) -> anyhow::Error {
    let refusal = Refusal {
        option: "DIR",
        expected: expected.to_owned(),
        got,
    };
    refusal.into()
}

impl Sources {
    /// Reads all paths.
    ///
    /// # Errors
    /// A [`Refusal`] if a path is of no known kind or is given twice; when it cannot be read.
    pub(crate) fn read(paths: &[impl AsRef<Path>]) -> Result<Self> {
        let mut sources = Self::default();
        let mut known: BTreeMap<PathBuf, &Path> = BTreeMap::new();
        for path in paths.iter().map(AsRef::as_ref) {
            if let Some(first) = known.insert(place(path), path) {
                let paths = format!("{} and {}", first.display(), path.display());
                let got = format!("{paths}, which are the same; remove one");
                return Err(refusal("each input once", got));
            }
            let refused = |problem: &str| {
                let got = format!("{}, {problem}", path.display());
                refusal(EXPECTED, got)
            };
            if !path.exists() {
                return Err(refused("which does not exist"));
            } else if path.join("study.json").is_file() {
                sources.add_study(path)?;
            } else if Run::is_in(path) {
                sources.runs.push(Run::read(path)?);
            } else if path.is_dir() {
                let problem = "without study.json, run.toml, manifest.json and metrics.jsonl";
                return Err(refused(problem));
            } else {
                let text = read_to_string(path)?;
                let value = serde_json::from_str(&text)
                    .map_err(|error| refused(&format!("which is not JSON: {error}")))?;
                if !sources.add_file(path, value)? {
                    return Err(refused("which is JSON of another kind"));
                }
            }
        }
        sources.name_by_directories();
        Ok(sources)
    }

    /// Names runs of the same name by their directories.
    fn name_by_directories(&mut self) {
        let labels: Vec<String> = self.runs.iter().map(|run| run.label.clone()).collect();
        for run in &mut self.runs {
            if labels.iter().filter(|label| **label == run.label).count() > 1 {
                run.label = run.directory.display().to_string();
            }
        }
    }

    /// Adds a file. Returns false if its kind is unknown.
    fn add_file(&mut self, path: &Path, value: Value) -> Result<bool> {
        let context = || path.display().to_string();
        let schema = value["schema"].as_str().unwrap_or_default();
        if is_of_kind(schema, PREDICTION_SCHEMA) {
            let file = predictions(path, value, &mut self.remarks)?;
            self.predictions.push(Predictions {
                label: name(path),
                study: None,
                files: vec![file],
            });
        } else if is_of_kind(schema, STUDY_SCHEMA) {
            self.add_study(path.parent().unwrap_or(Path::new(".")))?;
        } else if value["point_to_point"].is_array() {
            let network = serde_json::from_value(value).with_context(context)?;
            self.networks.push((network_name(path), network));
        } else if let Some(ranks) = trace::ranks(&value) {
            self.traces.push((name(path), ranks));
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    /// Adds a study with its runs, networks, predictions and comparison.
    fn add_study(&mut self, directory: &Path) -> Result<()> {
        let path = directory.join("study.json");
        let plan = of_schema(&path, read_json(&path)?, STUDY_SCHEMA, &mut self.remarks)?;
        let attempts = read_lines(&directory.join("records.jsonl"), &mut self.remarks)?;
        let mut study = StudyFolder { plan, attempts };
        let number = self.studies.len() + 1;
        for (cell, attempt) in study.plan.counted(&study.attempts) {
            if !is_training(cell) {
                continue;
            }
            let place = directory.join(&attempt.directory);
            let label = match cell.repetitions {
                0 | 1 => cell.id.clone(),
                _ => format!("{} #{}", cell.id, attempt.repetition),
            };
            let added = match cell.kind.as_str() {
                "train" => self.add_run_of(cell, number, &label, &place.join("run")),
                "netbench" => read_json(&place.join("network.json")).map(|network| {
                    // Another study may have measured a network of the same name.
                    let name = match number {
                        1 => label.clone(),
                        _ => format!("{label}, study {number}"),
                    };
                    self.networks.push((name, network));
                }),
                _ => Ok(()),
            };
            if let Err(error) = added {
                self.remarks.push(format!("{label}: {error:#}"));
            }
        }
        self.add_predictions(directory, &study.plan, number);
        let comparison = Comparison::of(&study.plan, &study.attempts);
        self.comparisons.extend(comparison);
        // Sections about training show Lockstep's cells only.
        study.plan.cells.retain(is_training);
        if !study.plan.cells.is_empty() || self.comparisons.is_empty() {
            self.studies.push(study);
        }
        Ok(())
    }

    fn add_run_of(
        &mut self,
        cell: &StudyCell,
        study: usize,
        label: &str,
        directory: &Path,
    ) -> Result<()> {
        ensure!(
            Run::is_in(directory),
            "the run's directory {} is absent, its curves are left out",
            directory.display()
        );
        self.runs.push(Run {
            label: label.to_owned(),
            group: Some(RunGroup {
                study,
                cell: cell.id.clone(),
            }),
            ..Run::read(directory)?
        });
        Ok(())
    }

    /// Adds the predictions of a study; files for single repetitions of a cell are joined.
    fn add_predictions(&mut self, directory: &Path, plan: &Study, study: usize) {
        let mut of_cells: BTreeMap<String, Vec<PredictionFile>> = BTreeMap::new();
        let entries = fs::read_dir(directory.join("predictions"));
        let entries = entries.into_iter().flatten().flatten();
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        paths.retain(|path| path.extension().is_some_and(|ending| ending == "json"));
        paths.sort();
        for path in paths {
            let read =
                read_json(&path).and_then(|value| predictions(&path, value, &mut self.remarks));
            let mut file: PredictionFile = match read {
                Ok(file) => file,
                Err(error) => {
                    let remark = format!("{error:#}, so it is left out");
                    self.remarks.push(remark);
                    continue;
                }
            };
            let first = file.predictions.first();
            let cell = first.and_then(|first| first.cell.clone());
            let planned = plan.cells.iter().find(|one| Some(&one.id) == cell.as_ref());
            let network = planned.map(|cell| cell.setting("network"));
            if let Some(network) = network.filter(|network| !network.is_empty()) {
                file.network.name = network;
            }
            match cell.filter(|_| first.is_some_and(|first| first.repetition.is_some())) {
                Some(cell) => of_cells.entry(cell).or_default().push(file),
                None => self.predictions.push(Predictions {
                    label: name(&path),
                    study: Some(study),
                    files: vec![file],
                }),
            }
        }
        for (label, mut files) in of_cells {
            let speed = |file: &PredictionFile| file.predictions[0].images_per_second;
            files.sort_by(|a, b| speed(a).partial_cmp(&speed(b)).unwrap_or(Ordering::Equal));
            self.predictions.push(Predictions {
                label,
                study: Some(study),
                files,
            });
        }
    }
}

/// Reads a file of predictions. All studies give the file of a measured network the same name, so
/// the network is named by the place of that file.
fn predictions(path: &Path, value: Value, remarks: &mut Vec<String>) -> Result<PredictionFile> {
    let mut file: PredictionFile = of_schema(path, value, PREDICTION_SCHEMA, remarks)?;
    let network = &mut file.network;
    let source = network.source.strip_prefix("measured ").map(Path::new);
    if let Some(source) = source.filter(|source| source.ends_with("network.json"))
        && network.name == "network"
    {
        network.name = network_name(source);
    }
    Ok(file)
}

/// Returns true for Lockstep's cells, and false for cells of other frameworks in a comparison.
fn is_training(cell: &StudyCell) -> bool {
    !cell.settings.contains_key("framework")
}

/// Returns the canonical place of an input; for `study.json` its directory.
fn place(path: &Path) -> PathBuf {
    let whole = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    match whole.parent() {
        Some(parent) if whole.ends_with("study.json") => parent.to_owned(),
        _ => whole,
    }
}

/// Returns the last component of a path.
fn name(path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str());
    name.to_string_lossy().into_owned()
}

/// Names a measured network by its file, and a `network.json` by its directory: `CELL` of
/// `runs/CELL/ATTEMPT/network.json`.
fn network_name(path: &Path) -> String {
    let folder = |above: usize| path.ancestors().nth(above).and_then(Path::file_name);
    let of_folder = match folder(3) {
        Some(runs) if runs == "runs" => folder(2),
        _ => folder(1),
    };
    match of_folder {
        Some(folder) if path.ends_with("network.json") => folder.to_string_lossy().into_owned(),
        _ => name(path),
    }
}

fn read_to_string(path: &Path) -> Result<String> {
    records::file::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T> {
    serde_json::from_str(&read_to_string(path)?).with_context(|| path.display().to_string())
}

/// Returns true if a schema such as `lockstep.study/1` is a version of the known one.
fn is_of_kind(schema: &str, known: &str) -> bool {
    let kind = |schema: &str| schema.rsplit_once('/').map(|(kind, _)| kind.to_owned());
    kind(schema) == kind(known)
}

/// Parses a file with a schema. A newer version is read as far as it is known.
fn of_schema<T: DeserializeOwned>(
    path: &Path,
    value: Value,
    known: &str,
    remarks: &mut Vec<String>,
) -> Result<T> {
    let schema = value["schema"].as_str().unwrap_or("none").to_owned();
    let place = path.display();
    if !is_of_kind(&schema, known) {
        return Err(anyhow!("{place}: schema: expected {known}, got {schema}"));
    }
    if schema != known {
        remarks.push(format!(
            "{place}: its schema {schema} is not {known}; unknown additions are left out"
        ));
    }
    serde_json::from_value(value).with_context(|| place.to_string())
}

/// Reads the records of a file; a remark counts the unreadable lines.
fn read_lines<T: DeserializeOwned>(path: &Path, remarks: &mut Vec<String>) -> Result<Vec<T>> {
    let place = path.display();
    let mut lines = records::read_lines(path).with_context(|| format!("cannot read {place}"))?;
    lines.retain(|line| !line.text.trim().is_empty());
    let num_lines = lines.len();
    let records: Vec<T> = lines
        .into_iter()
        .filter_map(|line| line.record.ok())
        .collect();
    let num_lost = num_lines - records.len();
    if num_lost > 0 {
        remarks.push(format!(
            "{place}: {num_lost} of {num_lines} lines cannot be read and are left out"
        ));
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_network_is_named_by_its_file_or_directory() {
        for (path, expected) in [
            (
                "a/study/runs/netbench-1gbit/r1a1/network.json",
                "netbench-1gbit",
            ),
            ("cluster/network.json", "cluster"),
            ("network.json", "network.json"),
            ("a/ib.json", "ib.json"),
        ] {
            assert_eq!(network_name(Path::new(path)), expected);
        }
    }

    #[test]
    fn a_measured_network_is_named_by_its_study_and_not_by_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, value: Value| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, value.to_string()).unwrap();
        };
        let prediction = json!({
            "schema": PREDICTION_SCHEMA, "predictions": [{ "ranks": 2, "cell": "a" }],
            "network": { "name": "network", "source": "measured s/runs/netbench-1gbit/r1a1/network.json" },
        });
        let network = json!({
            "environment": {
                "version": "", "commit": "", "date": "", "command_line": [], "processor": "", "processor_count": 1,
                "platform": "", "library": "", "ranks": 2, "nodes": 2, "node_of_rank": [],
            },
            "method": {
                "confidence": 0.95, "precision": 0.05, "seconds_per_point": 1.0, "most_repetitions": 9,
            },
            "possible_pairs": 1, "point_to_point": [], "links": {}, "collectives": [],
        });
        let cell = |id: &str, kind: &str, network: &str| {
            let settings = json!({ "network": network });
            json!({ "id": id, "kind": kind, "settings": settings })
        };
        let cells = [
            cell("a", "bench", "1gbit"),
            cell("b", "bench", "200mbit"),
            cell("n", "netbench", "1gbit"),
        ];
        for study in ["s", "t"] {
            let plan = json!({ "schema": STUDY_SCHEMA, "cells": cells });
            write(&format!("{study}/study.json"), plan);
            let record = json!({ "cell": "n", "repetition": 1, "attempt": 1, "status": "ok", "directory": "runs/n/r1a1" });
            write(&format!("{study}/records.jsonl"), record);
            write(
                &format!("{study}/runs/n/r1a1/network.json"),
                network.clone(),
            );
            write(&format!("{study}/predictions/p.json"), prediction.clone());
        }
        write("p.json", prediction);
        write("ib.json", network);
        let paths = ["p.json", "ib.json", "s", "t"].map(|path| folder.path().join(path));
        let sources = Sources::read(&paths).unwrap();
        let predicted = sources.predictions.iter();
        let predicted: Vec<(&str, Option<usize>)> = predicted
            .map(|one| (one.file().network.name.as_str(), one.study))
            .collect();
        let expected = [
            ("netbench-1gbit", None),
            ("1gbit", Some(1)),
            ("1gbit", Some(2)),
        ];
        assert_eq!(predicted, expected);
        let measured = sources.networks.iter().map(|(name, _)| name.as_str());
        assert_eq!(measured.collect::<Vec<_>>(), ["ib.json", "n", "n, study 2"]);
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
            let mut make = std::process::Command::new("mkfifo");
            assert!(make.arg(path(pipe)).status().unwrap().success());
        }
        let error = format!("{:#}", Sources::read(&[path("pipe")]).unwrap_err());
        let problem = "expected a regular file, got a folder, pipe or device";
        assert!(error.contains(problem), "{error}");
        let run = Sources::read(&[path("run")]).unwrap().runs.remove(0);
        for pipe in ["run/run.toml", "run/summary.json"] {
            let pipe = path(pipe);
            let expected = format!("cannot read {}: expected a regular file", pipe.display());
            let is_named = |remark: &String| remark.starts_with(&expected);
            assert!(run.remarks.iter().any(is_named), "{:?}", run.remarks);
        }
    }

    #[test]
    fn an_input_that_is_given_twice_is_refused_whatever_its_path() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::create_dir_all(path("study/runs")).unwrap();
        let study = r#"{ "schema": "lockstep.study/1" }"#;
        fs::write(path("study/study.json"), study).unwrap();
        fs::create_dir(path("run")).unwrap();
        fs::write(path("run/run.toml"), "").unwrap();
        for (first, second) in [
            ("study", "study/runs/.."),
            ("study", "study/study.json"),
            ("run", "run"),
        ] {
            let refused = Sources::read(&[path(first), path(second)]).unwrap_err();
            let [first, second] = [first, second].map(|name| path(name).display().to_string());
            let expected = format!(
                "DIR: expected each input once, got {first} and {second}, which are the same; remove one"
            );
            assert_eq!(refused.to_string(), expected);
        }
        let sources = Sources::read(&[path("study"), path("run")]).unwrap();
        assert_eq!(sources.runs.len(), 1);
    }
}
