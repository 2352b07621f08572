//! The directory of a study: its plan, and a record of every attempt.
//!
//! In: `study.json`, `records.jsonl`. Out: [`StudyFolder`]. Invariant: one attempt of a repetition counts: the one that was
//! undisturbed, else the last.

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
                remarks.push(format!("{}: no records.jsonl, so nothing of it was measured", directory.display()));
                Vec::new()
            }
        };
        Ok(Self { plan, attempts, directory: directory.to_owned() })
    }

    /// The attempt that counts of every repetition that has one, in the order of the cells.
    pub(crate) fn counted(&self) -> Vec<(&StudyCell, &AttemptRecord)> {
        let mut counted = Vec::new();
        for cell in &self.plan.cells {
            let mut repetitions: Vec<u64> =
                self.attempts.iter().filter(|record| record.cell == cell.id).map(|record| record.repetition).collect();
            repetitions.sort_unstable();
            repetitions.dedup();
            for repetition in repetitions {
                let attempts =
                    || self.attempts.iter().filter(|record| record.cell == cell.id && record.repetition == repetition);
                let best = attempts().filter(|record| record.status == Status::Ok).max_by_key(|record| record.attempt);
                let last = || {
                    attempts().filter(|record| record.status == Status::Disturbed).max_by_key(|record| record.attempt)
                };
                counted.extend(best.or_else(last).map(|record| (cell, record)));
            }
        }
        counted
    }
}

/// Whether what others took meanwhile was held against a limit; a failed attempt has nothing to judge.
pub(crate) fn is_judged(record: &AttemptRecord) -> bool {
    let quiet = record.quiet.unwrap_or_default();
    record.status != Status::Ok || quiet.limit_cores.is_some() && quiet.during.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_undisturbed_attempt_counts_before_a_disturbed_one_and_a_failed_one_never() {
        let record = |repetition: u64, attempt: u64, status: &str| -> AttemptRecord {
            let value =
                serde_json::json!({ "cell": "a", "repetition": repetition, "attempt": attempt, "status": status });
            serde_json::from_value(value).unwrap()
        };
        let attempts = vec![
            record(1, 1, "disturbed"),
            record(1, 2, "ok"),
            record(2, 1, "disturbed"),
            record(2, 2, "disturbed"),
            record(3, 1, "failed"),
        ];
        let cells = vec![StudyCell { id: "a".to_owned(), ..StudyCell::default() }];
        let plan = Study { cells, ..Study::default() };
        let study = StudyFolder { plan, attempts, ..StudyFolder::default() };
        let counted: Vec<(u64, u64)> =
            study.counted().iter().map(|(_, record)| (record.repetition, record.attempt)).collect();
        assert_eq!(counted, [(1, 2), (2, 2)]);
    }
}
