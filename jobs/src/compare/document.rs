//! `comparison.json`: what a comparison has found so far.
//!
//! In: rows and accuracies as they come. Out: the file, whole at any time.
//! Invariant: a comparison goes on only in the directory of the same job on the same kind of machine; what was measured is kept.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::block::read;
use super::row::{Key, Row};
use crate::failure::{Failure, Outcome};
use crate::machine;

const SCHEMA: &str = "lockstep.comparison/1";

/// The contents of the file.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Document {
    path: PathBuf,
    created: String,
    commit: String,
    machine: Value,
    job: Value,
    pub(super) rows: Vec<Row>,
    /// Records of training on images, as they are written.
    pub(super) accuracy: Vec<Value>,
}

impl Document {
    /// A new one, or that of a directory if it has one of the same job and `is_again` does not ask for a new one.
    pub(super) fn open(
        directory: &Path,
        commit: Option<String>,
        machine: Value,
        job: Value,
        is_again: bool,
    ) -> Outcome<Self> {
        let path = directory.join("comparison.json");
        let (created, commit) = (machine::now().unwrap_or_default(), commit.unwrap_or_default());
        let new = Document { path, created, commit, machine, job, rows: Vec::new(), accuracy: Vec::new() };
        if is_again || !new.path.exists() {
            return Ok(new);
        }
        let found = read(&new.path).map_err(Failure::Failed)?;
        new.continued(&found)
    }

    fn continued(mut self, found: &Value) -> Outcome<Self> {
        let path = self.path.display();
        let remedy = "give another --output, or --again to measure all anew";
        if found["schema"] != SCHEMA {
            return Err(Failure::Failed(format!(
                "{path}: schema: expected {SCHEMA}, got {}: {remedy}",
                found["schema"]
            )));
        }
        // More blocks of the same job may be measured.
        let without_blocks = |job: &Value| {
            let mut job = job.clone();
            job.as_object_mut().map(|entries| entries.remove("blocks"));
            job
        };
        let cpu_model = |machine: &Value| machine["cpu_model"].clone();
        for (what, own, theirs) in [
            ("job", without_blocks(&self.job), without_blocks(&found["job"])),
            ("cpu_model", cpu_model(&self.machine), cpu_model(&found["machine"])),
        ] {
            if own != theirs {
                return Err(Failure::Failed(format!("{path}: {what}: expected {own}, got {theirs}: {remedy}")));
            }
        }
        let rows = found["rows"].as_array().map(Vec::as_slice).unwrap_or_default();
        let rows: Option<Vec<Row>> = rows.iter().map(Row::from_json).collect();
        self.rows = rows.ok_or_else(|| Failure::Failed(format!("{path}: rows: cannot be read: {remedy}")))?;
        // What had no number is tried again; blocks before a failed one are kept.
        for row in &mut self.rows {
            row.gap = None;
        }
        self.rows.retain(|row| !row.blocks.is_empty());
        self.accuracy = found["accuracy"].as_array().cloned().unwrap_or_default();
        self.accuracy.retain(|record| record["gap"].is_null());
        self.created = found["created"].as_str().unwrap_or_default().to_owned();
        Ok(self)
    }

    /// The row of this key, made if it is not there.
    pub(super) fn row(&mut self, key: &Key, threads: usize) -> &mut Row {
        let index = self.rows.iter().position(|row| row.key == *key).unwrap_or_else(|| {
            self.rows.push(Row::new(key.clone(), threads));
            self.rows.len() - 1
        });
        &mut self.rows[index]
    }

    /// Writes the file.
    pub(super) fn save(&self) -> Outcome {
        let document = json!({
            "schema": SCHEMA,
            "created": self.created,
            "commit": self.commit,
            "machine": self.machine,
            "job": self.job,
            "rows": self.rows.iter().map(|row| row.to_json(&self.rows)).collect::<Vec<_>>(),
            "accuracy": self.accuracy,
        });
        crate::json::write(&self.path, &document)
    }
}

#[cfg(test)]
mod tests {
    use super::super::row::tests::row;
    use super::*;
    use std::fs;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("lockstep-jobs-{}-document-{name}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    fn open(folder: &Path, job: Value, is_again: bool) -> Outcome<Document> {
        Document::open(folder, None, json!({ "cpu_model": "x" }), job, is_again)
    }

    #[test]
    fn a_half_done_comparison_goes_on_and_its_gaps_are_tried_again() {
        let folder = folder("resumed");
        let mut document = open(&folder, json!({ "steps": 8 }), false).unwrap();
        document.rows.push(row("Lockstep", 1, &[100.0], (2.5, 2.0)));
        document.rows.push(row("MXNet", 1, &[50.0], (2.5, 2.0)));
        document.rows.push(Row { gap: Some("not installed".into()), ..row("JAX", 1, &[], (0.0, 0.0)) });
        document.accuracy.push(json!({ "framework": "Lockstep", "epochs": [] }));
        let measured = document.rows[..2].to_vec();
        // Its second block failed.
        document.rows[1].gap = Some("did not end".into());
        document.save().unwrap();
        let resumed = open(&folder, json!({ "steps": 8, "blocks": 9 }), false).unwrap();
        let anew = open(&folder, json!({ "steps": 9 }), true).unwrap();
        let other = open(&folder, json!({ "steps": 9 }), false);
        fs::remove_dir_all(folder).unwrap();
        assert_eq!((resumed.rows, resumed.accuracy.len()), (measured, 1));
        assert!(anew.rows.is_empty());
        assert!(other.unwrap_err().to_string().contains("--again"));
    }

    #[test]
    fn a_file_of_another_kind_is_refused() {
        let folder = folder("other");
        fs::write(folder.join("comparison.json"), "{\"schema\": \"x\"}").unwrap();
        let refusal = open(&folder, json!({}), false).unwrap_err().to_string();
        fs::remove_dir_all(folder).unwrap();
        assert!(refusal.contains(SCHEMA), "{refusal}");
    }
}
