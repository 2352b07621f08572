//! The directory of a study: its plan, and a record of every attempt.
//!
//! In: `study.json`, `records.jsonl`. Out: [`StudyFolder`]. Invariant: one attempt of a repetition counts.

use super::{check_schema, parsed, read_json, read_lines};
use anyhow::Result;
use records::{AttemptRecord, STUDY_SCHEMA, Status, Study, StudyCell};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// A study with its attempts.
#[derive(Clone, Debug, Default)]
pub(crate) struct StudyFolder {
    /// What was to be measured.
    pub(crate) plan: Study,
    /// Every attempt, in time.
    pub(crate) attempts: Vec<AttemptRecord>,
    pub(crate) directory: PathBuf,
}

impl StudyFolder {
    /// Reads a study; without records it has cells only.
    ///
    /// # Errors
    /// When `study.json` cannot be read or is not a study's.
    pub(crate) fn read(directory: &Path, remarks: &mut Vec<String>) -> Result<Self> {
        let path = directory.join("study.json");
        let value: Value = read_json(&path)?;
        check_schema(&path, &value, STUDY_SCHEMA, remarks)?;
        let plan: Study = parsed(&path, value)?;
        let records = directory.join("records.jsonl");
        let attempts = match records.exists() {
            true => read_lines(&records, remarks)?,
            false => {
                remarks.push(format!(
                    "{}: no records.jsonl, so nothing of it was measured",
                    directory.display()
                ));
                Vec::new()
            }
        };
        Ok(Self {
            plan,
            attempts,
            directory: directory.to_owned(),
        })
    }

    /// The attempt that counts of every repetition that has one, in the order of the cells.
    pub(crate) fn counted(&self) -> Vec<(&StudyCell, &AttemptRecord)> {
        self.plan.counted(&self.attempts)
    }
}

/// Whether what others took meanwhile was held against a limit; a failed attempt has nothing to judge.
pub(crate) fn is_judged(record: &AttemptRecord) -> bool {
    let quiet = record.quiet.unwrap_or_default();
    record.status != Status::Ok || quiet.limit_cores.is_some() && quiet.during.is_some()
}
