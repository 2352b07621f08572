//! Inputs of a report, read from disk.
//!
//! In: paths of any kind, recognised by their contents. Out: [`Sources`]. Invariant: a torn or missing file is left out
//! with a remark; unknown fields are ignored.

mod prediction;
mod run;
mod trace;

pub(crate) use prediction::{Predictions, Round};
pub(crate) use run::{Run, RunGroup};
pub(crate) use trace::Trace;

use crate::Refusal;
use anyhow::{Context, Result, ensure};
use records::{AttemptRecord, Comparison, NetbenchResult, STUDY_SCHEMA, Status, Study, StudyCell};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// All inputs of a report; a study's runs, comparisons, predictions and networks are among the others.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    pub(crate) runs: Vec<Run>,
    pub(crate) studies: Vec<StudyFolder>,
    pub(crate) comparisons: Vec<Comparison>,
    pub(crate) predictions: Vec<Predictions>,
    /// Measurements of a network, by name.
    pub(crate) networks: Vec<(String, NetbenchResult)>,
    pub(crate) traces: Vec<(String, Trace)>,
    /// Warnings about everything that was left out.
    pub(crate) remarks: Vec<String>,
}

/// A study with its attempts in the order of time.
#[derive(Clone, Debug, Default)]
pub(crate) struct StudyFolder {
    pub(crate) plan: Study,
    pub(crate) attempts: Vec<AttemptRecord>,
    pub(crate) directory: PathBuf,
}

const EXPECTED: &str = "a run's or study's directory, a prediction, a file of netbench or a trace";

impl Sources {
    /// Reads all paths.
    ///
    /// # Errors
    /// A [`Refusal`] if a path is of no known kind or is given twice; when it cannot be read.
    pub(crate) fn read(paths: &[impl AsRef<Path>]) -> Result<Self> {
        let mut sources = Self::default();
        let mut known: Vec<(PathBuf, &Path)> = Vec::new();
        for path in paths.iter().map(AsRef::as_ref) {
            let place = place(path);
            if let Some((_, first)) = known.iter().find(|(other, _)| *other == place) {
                let paths = format!("{} and {}", first.display(), path.display());
                let got = format!("{paths}, which are the same; remove one");
                let expected = "each input once".to_owned();
                return Err(Refusal {
                    option: "DIR",
                    expected,
                    got,
                }
                .into());
            }
            known.push((place, path));
            sources.add(path)?;
        }
        sources.name_runs_apart();
        Ok(sources)
    }

    /// Names runs of the same name by their directories.
    fn name_runs_apart(&mut self) {
        let labels: Vec<String> = self.runs.iter().map(|run| run.label.clone()).collect();
        for run in &mut self.runs {
            if labels.iter().filter(|label| **label == run.label).count() > 1 {
                run.label = run.directory.display().to_string();
            }
        }
    }

    fn add(&mut self, path: &Path) -> Result<()> {
        let refuse = |problem: &str| -> Result<()> {
            let got = format!("{}, {problem}", path.display());
            Err(Refusal {
                option: "DIR",
                expected: EXPECTED.to_owned(),
                got,
            }
            .into())
        };
        if !path.exists() {
            return refuse("which does not exist");
        }
        if path.is_dir() {
            if path.join("study.json").is_file() {
                return self.add_study(path);
            }
            if !Run::is_in(path) {
                return refuse("which has no study.json, run.toml, manifest.json or metrics.jsonl");
            }
            self.runs.push(Run::read(path)?);
            return Ok(());
        }
        let text = records::file::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        let value: Value = match serde_json::from_str(&text) {
            Ok(value) => value,
            Err(error) => return refuse(&format!("which is no JSON: {error}")),
        };
        match value["schema"]
            .as_str()
            .and_then(|schema| schema.split_once('/'))
        {
            Some(("lockstep.prediction", _)) => {
                self.predictions
                    .push(Predictions::read(path, &mut self.remarks)?);
            }
            Some(("lockstep.study", _)) => {
                self.add_study(path.parent().unwrap_or(Path::new(".")))?
            }
            _ if value["point_to_point"].is_array() => {
                let network =
                    records::from_value(value).with_context(|| path.display().to_string())?;
                self.networks.push((network_name(path), network));
            }
            _ if Trace::is_one(&value) => self.traces.push((name(path), Trace::from_value(&value))),
            _ => return refuse("which is JSON of another kind"),
        }
        Ok(())
    }

    /// Adds a study with its runs, networks, predictions and comparison.
    fn add_study(&mut self, directory: &Path) -> Result<()> {
        let mut study = StudyFolder::read(directory, &mut self.remarks)?;
        let number = self.studies.len() + 1;
        for (cell, record) in study.counted() {
            if !is_training(cell) {
                continue;
            }
            let place = directory.join(&record.directory);
            let label = repeated(&cell.id, cell, record);
            let added = match cell.kind.as_str() {
                "train" => self.add_run_of(cell, number, &label, &place.join("run")),
                "netbench" => {
                    let name = study.network_of(cell, record);
                    read_json(&place.join("network.json")).map(|network| {
                        // Another study may have measured a network of the same name.
                        let study = if number > 1 {
                            format!(", study {number}")
                        } else {
                            String::new()
                        };
                        self.networks.push((name + &study, network));
                    })
                }
                _ => Ok(()),
            };
            if let Err(error) = added {
                self.remarks.push(format!("{label}: {error:#}"));
            }
        }
        self.add_predictions(&study, number);
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
        let place = directory.display();
        ensure!(
            Run::is_in(directory),
            "the run's directory {place} is absent, its curves are left out"
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

    fn add_predictions(&mut self, study: &StudyFolder, number: usize) {
        let mut read = Vec::new();
        for path in sorted(&study.directory.join("predictions")) {
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            match Predictions::read(&path, &mut self.remarks) {
                Ok(file) => read.push(file.in_study(study, number)),
                Err(error) => self.remarks.push(format!("{error:#}, so it is left out")),
            }
        }
        self.predictions.extend(Predictions::merged(read));
    }
}

impl StudyFolder {
    /// Reads a study; without records it has cells only.
    fn read(directory: &Path, remarks: &mut Vec<String>) -> Result<Self> {
        let plan = read_with_schema(&directory.join("study.json"), STUDY_SCHEMA, remarks)?;
        let records = directory.join("records.jsonl");
        let attempts = if records.exists() {
            read_lines(&records, remarks)?
        } else {
            remarks.push(format!(
                "{}: no records.jsonl, so nothing was measured",
                directory.display()
            ));
            Vec::new()
        };
        Ok(Self {
            plan,
            attempts,
            directory: directory.to_owned(),
        })
    }

    /// Returns the attempt that counts of every repetition that has one, in the order of the cells.
    pub(crate) fn counted(&self) -> Vec<(&StudyCell, &AttemptRecord)> {
        self.plan.counted(&self.attempts)
    }

    /// Names the measured network of a cell; by the cell if several cells measure one network.
    fn network_of(&self, cell: &StudyCell, record: &AttemptRecord) -> String {
        let network = |cell: &StudyCell| match cell.setting("network") {
            network if network.is_empty() => cell.id.clone(),
            network => network,
        };
        let is_same =
            |other: &&StudyCell| other.kind == "netbench" && network(other) == network(cell);
        match self.plan.cells.iter().filter(is_same).count() {
            1 => repeated(&network(cell), cell, record),
            _ => repeated(&cell.id, cell, record),
        }
    }
}

/// Adds the number of the repetition to a name if there are several.
fn repeated(name: &str, cell: &StudyCell, record: &AttemptRecord) -> String {
    match cell.repetitions {
        0 | 1 => name.to_owned(),
        _ => format!("{name} #{}", record.repetition),
    }
}

/// Returns true if the use of the CPUs by others was compared with a limit, or the attempt failed.
pub(crate) fn is_judged(record: &AttemptRecord) -> bool {
    let quiet = record.quiet.unwrap_or_default();
    record.status != Status::Ok || quiet.limit_cores.is_some() && quiet.during.is_some()
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

/// Returns the entries of a folder by name; none if it is absent.
fn sorted(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// Returns the last component of a path.
fn name(path: &Path) -> String {
    match path.file_name() {
        Some(name) => name.to_string_lossy().into_owned(),
        None => path.display().to_string(),
    }
}

/// Names a measured network by its file; `network.json`, the same in all studies, by its directory: `CELL` of
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

pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let text = records::file::read_to_string(path)
        .with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| path.display().to_string())
}

/// Reads a file with a schema such as `lockstep.study/1`. A newer version is read as far as it is known.
fn read_with_schema<T: DeserializeOwned>(
    path: &Path,
    known: &str,
    remarks: &mut Vec<String>,
) -> Result<T> {
    let value: Value = read_json(path)?;
    let schema = value["schema"].as_str().unwrap_or("none");
    let kind = |schema: &str| schema.split_once('/').map(|(kind, _)| kind.to_owned());
    let place = path.display();
    ensure!(
        kind(schema) == kind(known),
        "{place}: schema: expected {known}, got {schema}"
    );
    if schema != known {
        remarks.push(format!(
            "{place}: its schema {schema} is not {known}; unknown additions are left out"
        ));
    }
    records::from_value(value).with_context(|| place.to_string())
}

/// Reads the lines of a file; a remark counts the unreadable ones.
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
        let place = path.display();
        remarks.push(format!(
            "{place}: {num_lost} of {} lines cannot be read and are left out",
            lines.len()
        ));
    }
    Ok(records)
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
                "DIR: expected each input once, got {first} and {second}, which are the same; remove one"
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
