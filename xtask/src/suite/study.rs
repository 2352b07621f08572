//! A tiny study by `trainer study`, and its records.
//!
//! In: a folder, a network. Out: a command, the attempts in the records.
//! Invariant: the study does not wait for a quiet machine, as the checks run on busy ones.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use super::{Checked, Suite, expect};
use crate::at;

/// A study of two cells, with one and with two ranks.
pub(crate) struct TinyStudy {
    file: PathBuf,
    pub(crate) folder: PathBuf,
    repetitions: u64,
}

impl TinyStudy {
    /// Writes the study's file; removes the output of an earlier attempt.
    pub(crate) fn write(
        suite: &Suite,
        name: &str,
        network: &str,
        repetitions: u64,
    ) -> Checked<Self> {
        let text = format!(
            r#"
            name = "{name}"
            title = "A small study"
            about = "Two cells."
            repetitions = {repetitions}
            [base]
            model = "resnet8"
            device = "flex"
            batch_size_per_rank = 4
            steps = 2
            warmup_steps = 1
            [[matrix]]
            scaling = "weak"
            ranks = [1, 2]
            network = "{network}"
            "#
        );
        let file = suite.folder.join(format!("{name}.toml"));
        fs::write(&file, text).map_err(at(&file))?;
        let folder = suite.folder.join(name);
        let _ = fs::remove_dir_all(&folder);
        Ok(TinyStudy {
            file,
            folder,
            repetitions,
        })
    }

    /// Adds the study's arguments to a command of the trainer.
    pub(crate) fn command(&self, mut program: Command) -> Command {
        program.arg("study").arg(&self.file);
        program.arg("--output").arg(&self.folder);
        program.args(["--no-quiet-check", "--no-report"]);
        program
    }

    /// Returns the text of `records.jsonl`; empty if there is no such file yet.
    pub(crate) fn records(&self) -> String {
        fs::read_to_string(self.folder.join("records.jsonl")).unwrap_or_default()
    }

    /// Expects one attempt with a speed for every repetition of every cell.
    pub(crate) fn expect_each_once(&self, network: &str) -> Checked {
        let mut attempts: BTreeMap<(String, u64), usize> = BTreeMap::new();
        for line in self.records().lines() {
            let record: Value =
                serde_json::from_str(line).map_err(|error| format!("{error}: {line}"))?;
            let rate = record["result"]["images_per_second"].as_f64();
            expect(
                record["status"] == "ok" && rate > Some(0.0),
                format!("expected a record with a speed, got {line}"),
            )?;
            let cell = record["cell"].as_str().unwrap_or_default().to_owned();
            let repetition = record["repetition"].as_u64().unwrap_or(0);
            *attempts.entry((cell, repetition)).or_default() += 1;
        }
        let mut expected = BTreeMap::new();
        for ranks in [1, 2] {
            let cell = format!("resnet8-f32-b4-r{ranks}-allreduce-{network}");
            for repetition in 1..=self.repetitions {
                expected.insert((cell.clone(), repetition), 1);
            }
        }
        expect(
            attempts == expected,
            format!("expected one attempt each, got {attempts:?}"),
        )
    }
}
