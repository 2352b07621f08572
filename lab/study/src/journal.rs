//! `records.jsonl`: a line for each attempt, written when it has ended.
//!
//! In: the study's directory. Out: [`Records`], and the work that is left.
//! Invariant: the disk has the line of an attempt before the next one starts.

use std::path::Path;

use cluster::failure::{Outcome, at, failed};
use cluster::output::say;
use records::{AttemptRecord, JsonLines, Status, read_lines};
use serde_json::Value;

const FILE: &str = "records.jsonl";

/// All attempts so far.
pub(crate) struct Records {
    file: JsonLines,
    lines: Vec<AttemptRecord>,
}

impl Records {
    /// Reads the attempts of earlier sessions.
    pub(crate) fn open(directory: &Path) -> Outcome<Self> {
        let path = directory.join(FILE);
        let mut texts = Vec::new();
        let mut lines = Vec::new();
        for (number, line) in (1..).zip(read_lines(&path).map_err(at(&path))?) {
            lines.push(line.record.map_err(|error| {
                failed!(
                    "{}: line {number}: expected a record with cell, repetition, attempt and status, got `{}` ({error}): remove the line",
                    path.display(),
                    line.text.chars().take(80).collect::<String>()
                )
            })?);
            texts.push(line.text);
        }
        let texts = texts.iter().map(String::as_str);
        let file = JsonLines::create(&path, texts).map_err(at(&path))?;
        Ok(Records { file, lines })
    }

    /// Adds an attempt. The disk has it when this returns.
    pub(crate) fn append(&mut self, record: AttemptRecord) -> Outcome {
        let appended = self.file.append(std::slice::from_ref(&record));
        let was_intact = appended.map_err(|error| failed!("{error}"))?;
        if !was_intact {
            say!(
                "warning: {FILE} was changed or removed during the study. It has all records of the study again"
            );
        }
        self.lines.push(record);
        Ok(())
    }

    fn of<'a>(
        &'a self,
        cell: &'a str,
        repetition: usize,
    ) -> impl DoubleEndedIterator<Item = &'a AttemptRecord> {
        self.lines
            .iter()
            .filter(move |line| line.cell == cell && line.repetition == repetition as u64)
    }

    /// Returns the number of the next attempt; none if there is a quiet result, or as many
    /// disturbed ones as allowed.
    pub(crate) fn need(
        &self,
        cell: &str,
        repetition: usize,
        most_attempts: usize,
        again_disturbed: bool,
    ) -> Option<usize> {
        let num_disturbed = self
            .of(cell, repetition)
            .filter(|line| line.status == Status::Disturbed)
            .count();
        let is_ok = self
            .of(cell, repetition)
            .any(|line| line.status == Status::Ok);
        if is_ok || (num_disturbed >= most_attempts && !again_disturbed) {
            return None;
        }
        Some(self.next_attempt(cell, repetition))
    }

    pub(crate) fn next_attempt(&self, cell: &str, repetition: usize) -> usize {
        self.of(cell, repetition)
            .map(|line| line.attempt as usize)
            .max()
            .unwrap_or(0)
            + 1
    }

    pub(crate) fn lines(&self) -> &[AttemptRecord] {
        &self.lines
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    pub(crate) fn has_cell(&self, cell: &str) -> bool {
        self.lines.iter().any(|line| line.cell == cell)
    }

    /// Returns the cell's newest quiet attempt, otherwise the newest disturbed one.
    pub(crate) fn newest(&self, cell: &str) -> Option<&AttemptRecord> {
        let ended = self
            .lines
            .iter()
            .filter(|line| line.cell == cell && line.status != Status::Failed);
        ended.max_by_key(|line| (line.status == Status::Ok, line.repetition, line.attempt))
    }

    /// Returns the newest result of a repetition.
    pub(crate) fn result<'a>(&'a self, cell: &'a str, repetition: usize) -> Option<&'a Value> {
        let newest = self
            .of(cell, repetition)
            .rfind(|line| line.status != Status::Failed);
        newest.map(|line| &line.result)
    }

    /// Returns the last attempt's status.
    pub(crate) fn status(&self, cell: &str, repetition: usize) -> Option<Status> {
        self.of(cell, repetition)
            .next_back()
            .map(|line| line.status)
    }

    /// Returns the seconds of the cell's last attempt with a result, otherwise the mean of all
    /// cells.
    pub(crate) fn expected_seconds(&self, cell: &str) -> Option<f64> {
        let ended = || {
            self.lines
                .iter()
                .filter(|line| line.status != Status::Failed)
        };
        let own = ended()
            .rfind(|line| line.cell == cell)
            .and_then(|line| line.seconds);
        let all: Vec<f64> = ended().filter_map(|line| line.seconds).collect();
        own.or_else(|| (!all.is_empty()).then(|| all.iter().sum::<f64>() / all.len() as f64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::fs;

    fn record(cell: &str, repetition: usize, attempt: usize, status: &str) -> AttemptRecord {
        AttemptRecord {
            cell: cell.to_owned(),
            repetition: repetition as u64,
            attempt: attempt as u64,
            status: serde_json::from_value(json!(status)).unwrap(),
            seconds: Some(2.0),
            ..AttemptRecord::default()
        }
    }

    #[test]
    fn finished_repetitions_are_not_repeated_after_reading_the_file_again() {
        let folder = tempfile::tempdir().unwrap();
        let mut records = Records::open(folder.path()).unwrap();
        for (repetition, statuses) in [
            (1, &["ok"][..]),
            (2, &["disturbed", "disturbed"]),
            (3, &["disturbed"]),
            (4, &["failed"]),
        ] {
            for (index, status) in statuses.iter().enumerate() {
                records
                    .append(record("a", repetition, index + 1, status))
                    .unwrap();
            }
        }
        drop(records);
        let records = Records::open(folder.path()).unwrap();
        let needs = |again| {
            (1..=5)
                .map(|repetition| records.need("a", repetition, 2, again))
                .collect::<Vec<_>>()
        };
        assert_eq!(needs(false), [None, None, Some(2), Some(2), Some(1)]);
        assert_eq!(needs(true), [None, Some(3), Some(2), Some(2), Some(1)]);
        assert_eq!(records.need("b", 1, 2, false), Some(1));
        assert!(records.has_cell("a") && !records.has_cell("b"));
        assert_eq!(records.status("a", 2), Some(Status::Disturbed));
        assert_eq!(records.expected_seconds("b"), Some(2.0));
    }

    #[test]
    fn the_newest_is_the_last_quiet_attempt_otherwise_the_last_disturbed_one() {
        let folder = tempfile::tempdir().unwrap();
        let mut records = Records::open(folder.path()).unwrap();
        for (repetition, attempt, status, expected) in [
            (1, 1, "failed", None),
            (1, 2, "disturbed", Some((1, 2))),
            (1, 10, "ok", Some((1, 10))),
            (2, 1, "disturbed", Some((1, 10))),
            (2, 9, "failed", Some((1, 10))),
        ] {
            let record = record("a", repetition, attempt, status);
            records.append(record).unwrap();
            let newest = records.newest("a");
            assert_eq!(newest.map(|one| (one.repetition, one.attempt)), expected);
        }
    }

    #[test]
    fn a_broken_line_is_an_error_with_its_number() {
        let folder = tempfile::tempdir().unwrap();
        let first = serde_json::to_string(&record("a", 1, 1, "ok")).unwrap();
        fs::write(folder.path().join(FILE), format!("{first}\n{{broken\n")).unwrap();
        let failure = Records::open(folder.path()).err().unwrap().to_string();
        assert!(failure.contains("line 2"), "{failure}");
    }
}
