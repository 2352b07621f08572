//! `records.jsonl`: one line for every attempt, written when it has ended.
//!
//! In: the study's directory. Out: [`Records`], and what is still to be done.
//! Invariant: a line is whole on the disk before the next run starts; a line that a crash has torn is dropped, and that is said.

use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use records::{AttemptRecord, Status};

use cluster::failure::{Failure, Outcome};

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
    path: PathBuf,
    file: File,
    lines: Vec<AttemptRecord>,
}

impl Records {
    /// Reads what is there; also whether a torn last line was dropped.
    pub(super) fn open(directory: &Path) -> Outcome<(Self, bool)> {
        let path = directory.join(FILE);
        let failed =
            |error: std::io::Error| Failure::Failed(format!("{}: {error}", path.display()));
        let mut file = OpenOptions::new()
            .create(true)
            .read(true)
            .write(true)
            .truncate(false)
            .open(&path)
            .map_err(failed)?;
        let bytes = records::file::read(&path).map_err(failed)?;
        // A line that was written to its end ends with a line feed.
        let whole = bytes
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |last| last + 1);
        let text = String::from_utf8_lossy(&bytes[..whole]).into_owned();
        let mut lines = Vec::new();
        for (index, line) in text.lines().enumerate() {
            lines.push(serde_json::from_str(line).map_err(|error| {
                Failure::Failed(format!(
                    "{}: line {}: expected a record with cell, repetition, attempt and status, got `{}` ({error}): remove the line",
                    path.display(),
                    index + 1,
                    line.chars().take(80).collect::<String>()
                ))
            })?);
        }
        let is_torn = whole < bytes.len();
        file.set_len(whole as u64).map_err(failed)?;
        file.seek(SeekFrom::End(0)).map_err(failed)?;
        Ok((Records { path, file, lines }, is_torn))
    }

    /// Adds an attempt; it is on the disk when this returns.
    pub(super) fn append(&mut self, record: AttemptRecord) -> Outcome {
        let failed =
            |error: std::io::Error| Failure::Failed(format!("{}: {error}", self.path.display()));
        let line = serde_json::to_string(&record).map_err(|error| failed(error.into()))?;
        self.file
            .write_all(format!("{line}\n").as_bytes())
            .map_err(failed)?;
        self.file.sync_data().map_err(failed)?;
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

    /// What a repetition needs at the start of a session: nothing if it is done, also if it was disturbed as often as is allowed.
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

    /// The cell's newest attempt that is ok, else the newest that was disturbed; never a failed one.
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
        let (mut records, is_torn) = Records::open(folder.path()).unwrap();
        assert!(!is_torn);
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
        let (records, _) = Records::open(folder.path()).unwrap();
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
    fn a_torn_last_line_is_dropped_and_the_next_one_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let whole = line(&record("a", 1, 1, "ok"));
        for torn in [
            "{",
            "{\"cell\":\"a\",\"repetition\":2,\"attempt\":1,\"status\":\"ok\"}",
            "\u{e9}",
        ] {
            fs::write(folder.path().join(FILE), format!("{whole}\n{torn}")).unwrap();
            let (mut records, is_torn) = Records::open(folder.path()).unwrap();
            assert!(is_torn, "{torn}");
            assert_eq!(records.need("a", 2, 3, false), Need::Attempt(1));
            records.append(record("a", 2, 1, "ok")).unwrap();
            let text = fs::read_to_string(folder.path().join(FILE)).unwrap();
            assert_eq!(
                text,
                format!("{whole}\n{}\n", line(&record("a", 2, 1, "ok")))
            );
        }
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
