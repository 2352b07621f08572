//! `comparison.json`: what a comparison has found so far.
//!
//! In: rows and accuracies as they come. Out: the file, whole at any time.
//! Invariant: a comparison goes on only in the directory of the same job and program on the same kind of machine; what was measured is kept.

use std::path::{Path, PathBuf};

use records::{COMPARISON_SCHEMA, Comparison, ComparisonRow, Course, Machine};
use serde_json::{Map, Value};

use super::block::read;
use super::row::{Key, Row};
use crate::machine::{self, Program};
use cluster::failure::{Failure, Outcome};

/// The contents of the file.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Document {
    path: PathBuf,
    pub(super) created: String,
    program: Program,
    machine: Machine,
    job: Map<String, Value>,
    pub(super) rows: Vec<Row>,
    /// What was tried to find each framework's best setting.
    pub(super) sweep: Vec<Row>,
    /// Records of training on images, as they are written.
    pub(super) accuracy: Vec<Course>,
}

impl Document {
    /// A new one, or that of a directory if it has one of the same job and `is_again` does not ask for a new one.
    pub(super) fn open(
        directory: &Path,
        program: Program,
        machine: Machine,
        job: Map<String, Value>,
        is_again: bool,
    ) -> Outcome<Self> {
        let path = directory.join("comparison.json");
        let created = machine::now().unwrap_or_default();
        let (rows, sweep, accuracy) = Default::default();
        let new = Document {
            path,
            created,
            program,
            machine,
            job,
            rows,
            sweep,
            accuracy,
        };
        if is_again || !new.path.exists() {
            return Ok(new);
        }
        new.continued()
    }

    /// Writes a file that is not there yet: by it the directory is known as a comparison's, whatever ends this start.
    pub(super) fn begin(&self) -> Outcome {
        if self.path.exists() {
            Ok(())
        } else {
            self.save()
        }
    }

    /// With what was measured before, if anything was.
    fn continued(mut self) -> Outcome<Self> {
        let path = self.path.display();
        let remedy = "give another --output, or --again to measure all anew";
        let refused = |what: String| Failure::Failed(format!("{path}: {what}: {remedy}"));
        let found: Comparison =
            read(&self.path).map_err(|error| Failure::Failed(format!("{error}: {remedy}")))?;
        if found.schema != COMPARISON_SCHEMA {
            return Err(refused(format!(
                "schema: expected {COMPARISON_SCHEMA}, got `{}`",
                found.schema
            )));
        }
        let is_begun = found
            .rows
            .iter()
            .chain(&found.sweep)
            .any(|row| !row.blocks.is_empty())
            || !found.accuracy.is_empty();
        if !is_begun {
            return Ok(self);
        }
        // More rounds of the same job may be measured.
        let without_rounds = |job: &Map<String, Value>| {
            let kept = job.iter().filter(|(key, _)| *key != "rounds");
            Value::Object(
                kept.map(|(key, value)| (key.clone(), value.clone()))
                    .collect(),
            )
        };
        let (own, theirs) = (without_rounds(&self.job), without_rounds(&found.job));
        if own != theirs {
            return Err(refused(format!("job: expected {own}, got {theirs}")));
        }
        let (own, theirs) = (&self.machine.cpu_model, &found.machine.cpu_model);
        if own != theirs {
            return Err(refused(format!(
                "cpu_model: expected {own:?}, got {theirs:?}"
            )));
        }
        let (own, theirs) = (self.machine.cpu_count, found.machine.cpu_count);
        if own != theirs {
            return Err(refused(format!("cpu_count: expected {own}, got {theirs}")));
        }
        let (own, theirs) = (
            self.program.commit.as_deref().unwrap_or_default(),
            &found.commit,
        );
        if own != theirs {
            return Err(refused(format!(
                "commit of our program: expected {own:?}, got {theirs:?}"
            )));
        }
        let (own, theirs) = (&self.program.sha256, &found.program_sha256);
        if own != theirs {
            let shown = |sum: &Option<String>| sum.clone().unwrap_or_else(|| "none".to_owned());
            return Err(refused(format!(
                "SHA-256 of our program: expected {}, got {}",
                shown(own),
                shown(theirs)
            )));
        }
        // What had no number is tried again; blocks before a failed one are kept.
        let measured = |rows: Vec<ComparisonRow>| -> Vec<Row> {
            let rows = rows.into_iter().map(|row| Row {
                gap: None,
                ..Row::of(row)
            });
            rows.filter(|row| !row.blocks.is_empty()).collect()
        };
        (self.rows, self.sweep) = (measured(found.rows), measured(found.sweep));
        self.accuracy = found
            .accuracy
            .into_iter()
            .filter(|course| course.gap.is_none())
            .collect();
        self.created = found.created;
        Ok(self)
    }

    /// Writes the file.
    pub(super) fn save(&self) -> Outcome {
        let document = Comparison {
            schema: COMPARISON_SCHEMA.to_owned(),
            created: self.created.clone(),
            commit: self.program.commit.clone().unwrap_or_default(),
            program_sha256: self.program.sha256.clone(),
            machine: self.machine.clone(),
            job: self.job.clone(),
            rows: self.rows.iter().map(|row| row.record(&self.rows)).collect(),
            sweep: self
                .sweep
                .iter()
                .map(|row| row.record(&self.sweep))
                .collect(),
            accuracy: self.accuracy.clone(),
        };
        cluster::json::write(&self.path, &document)
    }
}

/// The row of this key, made if it is not there.
pub(super) fn row_of<'r>(rows: &'r mut Vec<Row>, key: &Key, threads: usize) -> &'r mut Row {
    let index = rows
        .iter()
        .position(|row| row.key == *key)
        .unwrap_or_else(|| {
            rows.push(Row::new(key.clone(), threads));
            rows.len() - 1
        });
    &mut rows[index]
}

#[cfg(test)]
mod tests {
    use super::super::row::tests::row;
    use super::*;
    use serde_json::json;
    use std::fs;

    fn open(folder: &Path, job: Value, is_again: bool) -> Outcome<Document> {
        let machine = Machine {
            cpu_model: Some("x".to_owned()),
            ..Machine::default()
        };
        Document::open(
            folder,
            Program::default(),
            machine,
            job.as_object().unwrap().clone(),
            is_again,
        )
    }

    #[test]
    fn a_half_done_comparison_goes_on_and_its_gaps_are_tried_again() {
        let folder = tempfile::tempdir().unwrap();
        let mut document = open(folder.path(), json!({ "steps": 8 }), false).unwrap();
        document.rows.push(row("Lockstep", 1, &[100.0], (2.5, 2.0)));
        document.rows.push(row("MXNet", 1, &[50.0], (2.5, 2.0)));
        document.rows.push(Row {
            gap: Some("not installed".into()),
            ..row("JAX", 1, &[], (0.0, 0.0))
        });
        document.accuracy.push(Course {
            framework: "Lockstep".to_owned(),
            ..Course::default()
        });
        let measured = document.rows[..2].to_vec();
        // Its second block failed.
        document.rows[1].gap = Some("did not end".into());
        document.save().unwrap();
        let resumed = open(folder.path(), json!({ "steps": 8, "rounds": 9 }), false).unwrap();
        let anew = open(folder.path(), json!({ "steps": 9 }), true).unwrap();
        let other = open(folder.path(), json!({ "steps": 9 }), false);
        assert_eq!((resumed.rows, resumed.accuracy.len()), (measured, 1));
        assert!(anew.rows.is_empty());
        assert!(other.unwrap_err().to_string().contains("--again"));
    }

    #[test]
    fn a_comparison_of_another_program_or_number_of_processors_is_not_gone_on_with() {
        let folder = tempfile::tempdir().unwrap();
        let open = |commit: &str, sum: &str, cpu_count: u64| {
            let machine = Machine {
                cpu_count,
                ..Machine::default()
            };
            let program = Program {
                commit: Some(commit.to_owned()),
                sha256: Some(sum.to_owned()),
            };
            Document::open(folder.path(), program, machine, Map::new(), false)
        };
        let mut measured = open("a", "1", 2).unwrap();
        measured.save().unwrap();
        assert!(open("b", "2", 4).is_ok(), "nothing is measured yet");
        measured.rows.push(row("Lockstep", 1, &[100.0], (2.5, 2.0)));
        measured.save().unwrap();
        let found = [
            open("a", "1", 2),
            open("b", "2", 2),
            open("a", "2", 2),
            open("a", "1", 4),
        ];
        let [same, commit, changed, processors] =
            found.map(|document| document.map_err(|no| no.to_string()));
        assert!(same.is_ok());
        let (commit, changed, processors) = (
            commit.unwrap_err(),
            changed.unwrap_err(),
            processors.unwrap_err(),
        );
        assert!(
            changed.contains("SHA-256 of our program: expected 2, got 1"),
            "{changed}"
        );
        assert!(
            commit.contains("expected \"b\", got \"a\"") && commit.contains("--again"),
            "{commit}"
        );
        assert!(
            processors.contains("cpu_count: expected 4, got 2"),
            "{processors}"
        );
    }

    #[test]
    fn a_file_of_another_kind_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("comparison.json"), "{\"schema\": \"x\"}").unwrap();
        let refusal = open(folder.path(), json!({}), false)
            .unwrap_err()
            .to_string();
        assert!(refusal.contains(COMPARISON_SCHEMA), "{refusal}");
    }
}
