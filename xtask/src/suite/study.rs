//! A tiny study by `trainer study`, and what it leaves in its folder.
//!
//! In: a folder, a network. Out: a command, the attempts in its records.
//! Invariant: nobody waits for a quiet machine, as the checks run on busy ones.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// A study of two cells, of one and of two ranks.
pub(crate) struct Study {
    file: PathBuf,
    pub(crate) folder: PathBuf,
    repetitions: usize,
}

/// Its cells.
const IDS: [&str; 2] = [
    "resnet8-f32-b4-r1-allreduce-NETWORK",
    "resnet8-f32-b4-r2-allreduce-NETWORK",
];

impl Study {
    /// Writes the study's file.
    pub(crate) fn write(
        folder: &Path,
        name: &str,
        network: &str,
        repetitions: usize,
    ) -> Result<Self, String> {
        let text = format!(
            "name = \"{name}\"\ntitle = \"A small study\"\nabout = \"Two cells.\"\nrepetitions = {repetitions}\n\
             [base]\nmodel = \"resnet8\"\ndevice = \"flex\"\nbatch_size_per_rank = 4\nsteps = 2\nwarmup_steps = 1\n\
             [[matrix]]\nscaling = \"weak\"\nranks = [1, 2]\nnetwork = \"{network}\"\n"
        );
        let file = folder.join(format!("{name}.toml"));
        fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))?;
        Ok(Study {
            file,
            folder: folder.join(name),
            repetitions,
        })
    }

    /// Adds the study's words to the trainer's command.
    pub(crate) fn command(&self, mut program: Command) -> Command {
        program
            .arg("study")
            .arg(&self.file)
            .arg("--output")
            .arg(&self.folder);
        program.args(["--no-quiet-check", "--no-report"]);
        program
    }

    /// The text of records.jsonl, empty before there is one.
    pub(crate) fn records(&self) -> String {
        fs::read_to_string(self.folder.join("records.jsonl")).unwrap_or_default()
    }

    /// Checks that every repetition of every cell has exactly one attempt, with a speed.
    pub(crate) fn expect_each_once(&self, network: &str) -> Result<(), String> {
        let mut attempts: BTreeMap<(String, u64), usize> = BTreeMap::new();
        for line in self.records().lines() {
            let record: Value =
                serde_json::from_str(line).map_err(|error| format!("{error}: {line}"))?;
            let rate = record["result"]["images_per_second"]
                .as_f64()
                .unwrap_or_default();
            if record["status"] != "ok" || rate <= 0.0 {
                return Err(format!("expected a record with a speed, got {line}"));
            }
            let key = (
                record["cell"].as_str().unwrap_or_default().to_owned(),
                record["repetition"].as_u64().unwrap_or(0),
            );
            *attempts.entry(key).or_default() += 1;
        }
        let cells = IDS.map(|id| id.replace("NETWORK", network));
        let all = cells.iter().flat_map(|cell| {
            (1..=self.repetitions as u64).map(move |number| (cell.clone(), number))
        });
        let expected: BTreeMap<(String, u64), usize> = all.map(|key| (key, 1)).collect();
        if attempts == expected {
            Ok(())
        } else {
            Err(format!("expected one attempt each, got {attempts:?}"))
        }
    }
}
