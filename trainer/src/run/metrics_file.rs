//! `metrics.jsonl`: what a run's epochs gave.
//!
//! In: [`EpochRecord`]s. Out: a line each. Invariant: a line is on disk when it counts as written, and none is of an epoch that is made again.

use crate::measure::whole_file::{sync_parent, write_atomically};
use anyhow::{Context, Result};
use records::EpochRecord;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

/// `metrics.jsonl`: one [`EpochRecord`] a line, on disk when [`append`](Self::append) returns.
#[derive(Debug)]
pub struct MetricsFile {
    file: File,
    path: PathBuf,
}

impl MetricsFile {
    /// Opens the file to go on with `epoch`: lines of that and later epochs, which will be done again, and a line
    /// that a crash tore, are dropped. Returns the records that stay.
    ///
    /// # Errors
    /// I/O errors.
    pub fn truncate_from(path: &Path, epoch: u64) -> Result<(Self, Vec<EpochRecord>)> {
        let bytes = match fs::read(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            bytes => bytes.with_context(|| format!("cannot read {}", path.display()))?,
        };
        let text = String::from_utf8_lossy(&bytes);
        let mut kept_lines = String::new();
        let mut records = Vec::new();
        for line in text.lines() {
            if let Ok(record) = serde_json::from_str::<EpochRecord>(line)
                && record.epoch < epoch
            {
                kept_lines.push_str(line);
                kept_lines.push('\n');
                records.push(record);
            }
        }
        if kept_lines != text {
            write_atomically(path, kept_lines.as_bytes())?;
        }
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .with_context(|| format!("cannot open {}", path.display()))?;
        sync_parent(path)?;
        Ok((Self { file, path: path.to_owned() }, records))
    }

    /// Adds a line and waits until it is on disk.
    ///
    /// # Errors
    /// I/O errors.
    pub fn append(&mut self, record: &EpochRecord) -> Result<()> {
        let context = || format!("cannot write {}", self.path.display());
        let mut line = serde_json::to_string(record).with_context(context)?;
        line.push('\n');
        self.file.write_all(line.as_bytes()).with_context(context)?;
        self.file.sync_data().with_context(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::metrics::tests::record;

    #[test]
    fn lines_of_epochs_to_be_redone_and_torn_lines_are_dropped() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("metrics.jsonl");
        let (mut file, records) = MetricsFile::truncate_from(&path, 0).unwrap();
        assert!(records.is_empty());
        for epoch in 0..3 {
            file.append(&record(epoch, Some(epoch))).unwrap();
        }
        // A crash may leave anything.
        fs::write(&path, [fs::read(&path).unwrap(), b"{\"epoch\": 0, \"st\xff\xfe".to_vec()].concat()).unwrap();
        let (mut file, records) = MetricsFile::truncate_from(&path, 2).unwrap();
        assert_eq!(records, [record(0, Some(0)), record(1, Some(1))]);
        file.append(&record(2, None)).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let epochs: Vec<u64> =
            text.lines().map(|line| serde_json::from_str::<EpochRecord>(line).unwrap().epoch).collect();
        assert_eq!(epochs, [0, 1, 2]);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "no partial file is left");
    }
}
