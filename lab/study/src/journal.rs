//! `records.jsonl`: a line for each attempt, written when it has ended.
//!
//! In: the study's directory. Out: [`Records`], and what is still to be done.
//! Invariant: the disk has the line of an attempt before the next one starts.

use std::path::Path;

use cluster::failure::{Failure, Outcome};
use cluster::output::say;
use records::{AttemptRecord, JsonLines, Status, read_lines};

const FILE: &str = "records.jsonl";
/// What a repetition needs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Need {
    Nothing,
    /// Another attempt, with this number.
    Attempt(usize),
}

/// All attempts so far.
pub(super) struct Records {
    file: JsonLines,
    lines: Vec<AttemptRecord>,
}

impl Records {
    /// Reads the attempts of earlier sessions.
    pub(super) fn open(directory: &Path) -> Outcome<Self> {
        let path = directory.join(FILE);
        let failed =
            |error: std::io::Error| Failure::Failed(format!("{}: {error}", path.display()));
        let mut texts = Vec::new();
        let mut lines = Vec::new();
        for (number, line) in (1..).zip(read_lines(&path).map_err(failed)?) {
            lines.push(line.record.map_err(|error| {
                Failure::Failed(format!(
                    "{}: line {number}: expected a record with cell, repetition, attempt and status, got `{}` ({error}): remove the line",
                    path.display(),
                    line.text.chars().take(80).collect::<String>()
                ))
            })?);
            texts.push(line.text);
        }
        let texts = texts.iter().map(String::as_str);
        let file = JsonLines::create(&path, texts).map_err(failed)?;
        Ok(Records { file, lines })
    }

    /// Adds an attempt. The disk has it when this returns.
    pub(super) fn append(&mut self, record: AttemptRecord) -> Outcome {
        let appended = self.file.append(std::slice::from_ref(&record));
        let was_intact = appended.map_err(|error| Failure::Failed(error.to_string()))?;
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

    /// What a repetition needs at the start of a session: nothing if it is done, also if it was
    /// disturbed as often as is allowed.
    pub(super) fn need(
        &self,
        cell: &str,
        repetition: usize,
        most_attempts: usize,
        again_disturbed: bool,
    ) -> Need {
        let num_disturbed = self
            .of(cell, repetition)
            .filter(|line| line.status == Status::Disturbed)
            .count();
        let is_ok = self
            .of(cell, repetition)
            .any(|line| line.status == Status::Ok);
        if is_ok || (num_disturbed >= most_attempts && !again_disturbed) {
            return Need::Nothing;
        }
        Need::Attempt(self.next_attempt(cell, repetition))
    }

    pub(super) fn next_attempt(&self, cell: &str, repetition: usize) -> usize {
        self.of(cell, repetition)
            .map(|line| line.attempt as usize)
            .max()
            .unwrap_or(0)
            + 1
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    pub(super) fn has_cell(&self, cell: &str) -> bool {
        self.lines.iter().any(|line| line.cell == cell)
    }

    /// The cell's newest attempt that is ok, else the newest that was disturbed; never a failed
    /// one.
    pub(super) fn newest(&self, cell: &str) -> Option<&AttemptRecord> {
        let ended = self
            .lines
            .iter()
            .filter(|line| line.cell == cell && line.status != Status::Failed);
        ended.max_by_key(|line| (line.status == Status::Ok, line.repetition, line.attempt))
    }

    /// The last attempt's status, if there is any.
    pub(super) fn status(&self, cell: &str, repetition: usize) -> Option<Status> {
        self.of(cell, repetition)
            .next_back()
            .map(|line| line.status)
    }

    /// Seconds of the cell's last attempt, or the mean of all, that did not fail.
    pub(super) fn expected_seconds(&self, cell: &str) -> Option<f64> {
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
        let record = json!({ "cell": cell, "repetition": repetition, "attempt": attempt, "status": status, "seconds": 2.0 });
        serde_json::from_value(record).unwrap()
    }

    fn line(record: &AttemptRecord) -> String {
        serde_json::to_string(record).unwrap()
    }

    #[test]
    fn done_repetitions_are_not_done_again_after_reading_the_file_anew() {
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
        let (nothing, attempt) = (Need::Nothing, Need::Attempt);
        assert_eq!(
            needs(false),
            [nothing, nothing, attempt(2), attempt(2), attempt(1)]
        );
        assert_eq!(
            needs(true),
            [nothing, attempt(3), attempt(2), attempt(2), attempt(1)]
        );
        assert_eq!(records.need("b", 1, 2, false), attempt(1));
        assert!(records.has_cell("a") && !records.has_cell("b"));
        assert_eq!(records.status("a", 2), Some(Status::Disturbed));
        assert_eq!(records.expected_seconds("b"), Some(2.0));
    }

    #[test]
    fn a_broken_line_in_the_middle_is_an_error_with_its_number() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(
            folder.path().join(FILE),
            format!("{}\n{{}}\n", line(&record("a", 1, 1, "ok"))),
        )
        .unwrap();
        let Err(failure) = Records::open(folder.path()) else {
            panic!("line 2 is no record")
        };
        assert!(failure.to_string().contains("line 2"), "{failure}");
    }
}
