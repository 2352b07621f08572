//! The directory of a study: cells, and a record of every attempt at them.
//!
//! In: `study.json`, `records.jsonl`. Out: [`Study`]. Invariant: one attempt of a repetition counts: the one that was undisturbed,
//! else the last.

use super::{check_schema, parsed, read_json, read_lines};
use anyhow::Result;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

const SCHEMA: &str = "lockstep.study/1";

/// A study with its records.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Study {
    /// Short name.
    pub name: String,
    /// One line.
    pub title: String,
    /// What it is for.
    pub about: String,
    /// RFC 3339.
    pub created: String,
    /// Of the program.
    pub commit: String,
    /// Where it ran.
    pub machine: Machine,
    /// The whole study file.
    pub toml: String,
    /// What was left out of each measurement.
    pub warmup: String,
    /// How speeds were counted.
    pub images_per_second_means: String,
    /// Accuracy that is aimed at, 0..1, if the study names one.
    pub target_accuracy: Option<f64>,
    /// What was to be measured.
    pub cells: Vec<Cell>,
    /// Every attempt, in time.
    #[serde(skip)]
    pub records: Vec<Record>,
    /// Where it is.
    #[serde(skip)]
    pub directory: PathBuf,
}

/// The machine of a study or comparison.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Machine {
    /// Processor.
    pub cpu_model: String,
    /// Processors to use.
    pub cpu_count: u64,
    /// Bytes.
    pub memory_bytes: u64,
    /// Operating system and architecture.
    pub platform: String,
    /// Of the operating system.
    pub kernel: String,
    /// Communication library.
    pub mpi: String,
}

/// One combination of settings.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Cell {
    /// Unique in the study.
    pub id: String,
    /// `bench`, `train` or `netbench`.
    pub kind: String,
    /// By name.
    pub settings: Map<String, Value>,
    /// Of the trainer.
    pub arguments: Vec<String>,
    /// How often it was to be measured.
    pub repetitions: u64,
}

/// One attempt.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Record {
    /// The cell's id.
    pub cell: String,
    /// From 1.
    pub repetition: u64,
    /// From 1.
    pub attempt: u64,
    /// `ok`, `disturbed` or `failed`.
    pub status: String,
    /// Why not ok.
    pub why: Option<String>,
    /// RFC 3339.
    pub started: String,
    /// Of the whole attempt.
    pub seconds: Option<f64>,
    /// As a shell reads it.
    pub command: String,
    /// Its files, below the study's directory.
    pub directory: String,
    /// How quiet the machine was.
    pub quiet: Value,
    /// By kind of cell.
    pub result: Value,
}

impl Cell {
    /// A setting as text; empty without it.
    pub fn setting(&self, key: &str) -> String {
        match self.settings.get(key) {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
        }
    }
}

impl Study {
    /// Reads a study; without records it has cells only.
    ///
    /// # Errors
    /// When `study.json` cannot be read or is not a study's.
    pub fn read(directory: &Path, remarks: &mut Vec<String>) -> Result<Self> {
        let path = directory.join("study.json");
        let value: Value = read_json(&path)?;
        check_schema(&path, &value, SCHEMA, remarks)?;
        let study: Self = parsed(&path, value)?;
        let records = directory.join("records.jsonl");
        let records = match records.exists() {
            true => read_lines(&records, remarks)?,
            false => {
                remarks.push(format!("{}: no records.jsonl, so nothing of it was measured", directory.display()));
                Vec::new()
            }
        };
        Ok(Self { records, directory: directory.to_owned(), ..study })
    }

    /// The attempt that counts of every repetition that has one, in the order of the cells.
    pub fn counted(&self) -> Vec<(&Cell, &Record)> {
        let mut counted = Vec::new();
        for cell in &self.cells {
            let mut repetitions: Vec<u64> =
                self.records.iter().filter(|record| record.cell == cell.id).map(|record| record.repetition).collect();
            repetitions.sort_unstable();
            repetitions.dedup();
            for repetition in repetitions {
                let attempts =
                    || self.records.iter().filter(|record| record.cell == cell.id && record.repetition == repetition);
                let best = attempts().filter(|record| record.status == "ok").max_by_key(|record| record.attempt);
                let last =
                    || attempts().filter(|record| record.status == "disturbed").max_by_key(|record| record.attempt);
                counted.extend(best.or_else(last).map(|record| (cell, record)));
            }
        }
        counted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_undisturbed_attempt_counts_before_a_disturbed_one_and_a_failed_one_never() {
        let record = |repetition, attempt, status: &str| Record {
            cell: "a".to_owned(),
            repetition,
            attempt,
            status: status.to_owned(),
            ..Record::default()
        };
        let records = vec![
            record(1, 1, "disturbed"),
            record(1, 2, "ok"),
            record(2, 1, "disturbed"),
            record(2, 2, "disturbed"),
            record(3, 1, "failed"),
        ];
        let cells = vec![Cell { id: "a".to_owned(), ..Cell::default() }];
        let study = Study { cells, records, ..Study::default() };
        let counted: Vec<(u64, u64)> =
            study.counted().iter().map(|(_, record)| (record.repetition, record.attempt)).collect();
        assert_eq!(counted, [(1, 2), (2, 2)]);
    }
}
