//! `metrics.jsonl`: what a run's epochs gave.
//!
//! In: [`EpochRecord`]s. Out: a line each. Invariant: a line is on disk when it counts as written, and none is of an epoch that is made again.

use crate::measure::whole_file::{sync_parent, write_atomically};
use crate::run::output::numbered_beside;
use anyhow::{Context, Result};
use records::EpochRecord;
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
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
    /// that a crash tore, are dropped. Where an earlier epoch has no record, or another line than the last cannot be read, it says so;
    /// then the file stays under another name, too, if it has such a line.
    ///
    /// # Errors
    /// When it is no file; I/O errors.
    pub fn truncate_from(path: &Path, epoch: u64) -> Result<(Self, Option<String>)> {
        let bytes = match records::file::read(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            bytes => bytes.with_context(|| format!("cannot read {}", path.display()))?,
        };
        let text = String::from_utf8_lossy(&bytes);
        let (mut kept_lines, mut kept_epochs) = (String::new(), BTreeSet::new());
        let mut lost = Vec::new();
        for (number, line) in text.lines().enumerate() {
            match serde_json::from_str::<EpochRecord>(line) {
                Ok(record) if record.epoch < epoch => {
                    kept_lines.push_str(line);
                    kept_lines.push('\n');
                    kept_epochs.insert(record.epoch);
                }
                Ok(_) => {}
                Err(_) if line.trim().is_empty() => {}
                Err(_) => lost.push(number + 1),
            }
        }
        // A crash tears the last one.
        lost.pop_if(|number| *number == text.lines().count());
        let mut warnings: Vec<String> = missing(&kept_epochs, epoch).into_iter().collect();
        if let Some(first) = lost.first() {
            let aside = (1..).map(|number| numbered_beside(path, number)).find(|aside| !aside.exists());
            let aside = aside.context("metrics: no free name")?;
            write_atomically(&aside, &bytes)?;
            warnings.push(format!("line {first} cannot be read, the file as it was is kept as {}", aside.display()));
        }
        let warning = (!warnings.is_empty()).then(|| format!("{}: {}", path.display(), warnings.join("; ")));
        if kept_lines != text {
            write_atomically(path, kept_lines.as_bytes())?;
        }
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .with_context(|| format!("cannot open {}", path.display()))?;
        sync_parent(path)?;
        Ok((Self { file, path: path.to_owned() }, warning))
    }

    /// Adds a line and waits until it is on disk.
    pub fn append(&mut self, record: &EpochRecord) -> Result<()> {
        let context = || format!("cannot write {}", self.path.display());
        let mut line = serde_json::to_string(record).with_context(context)?;
        line.push('\n');
        self.file.write_all(line.as_bytes()).with_context(context)?;
        self.file.sync_data().with_context(context)
    }
}

/// Which epochs before `end` are not among these, in words.
fn missing(epochs: &BTreeSet<u64>, end: u64) -> Option<String> {
    let mut gaps = Vec::new();
    let mut next = 0;
    for epoch in epochs.iter().copied().chain([end]) {
        match epoch.saturating_sub(next) {
            0 => {}
            1 => gaps.push(next.to_string()),
            _ => gaps.push(format!("{next} to {}", epoch - 1)),
        }
        next = epoch.saturating_add(1);
    }
    let gaps = gaps.join(", ");
    (!gaps.is_empty())
        .then(|| format!("records of epochs {gaps} are missing or unreadable, and no report tells of them"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::metrics::tests::record;
    use std::fs;

    fn epochs(path: &Path) -> Vec<u64> {
        let text = fs::read_to_string(path).unwrap();
        text.lines().map(|line| serde_json::from_str::<EpochRecord>(line).unwrap().epoch).collect()
    }

    #[test]
    fn lines_of_epochs_to_be_redone_and_torn_lines_are_dropped() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("metrics.jsonl");
        let (mut file, warning) = MetricsFile::truncate_from(&path, 0).unwrap();
        assert_eq!((epochs(&path), warning), (Vec::new(), None));
        for epoch in 0..3 {
            file.append(&record(epoch, Some(epoch))).unwrap();
        }
        // A crash may leave anything.
        fs::write(&path, [fs::read(&path).unwrap(), b"{\"epoch\": 0, \"st\xff\xfe".to_vec()].concat()).unwrap();
        let (mut file, warning) = MetricsFile::truncate_from(&path, 2).unwrap();
        assert_eq!((epochs(&path), warning), (vec![0, 1], None));
        file.append(&record(2, None)).unwrap();
        assert_eq!(epochs(&path), [0, 1, 2]);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "no partial file is left");
    }

    #[test]
    fn epochs_without_a_record_are_told_and_a_file_with_damaged_lines_is_kept_aside() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("metrics.jsonl");
        let line = |epoch| serde_json::to_string(&record(epoch, None)).unwrap();
        let damaged = [line(0), "{\"epoch\": 1, \"st".to_owned(), line(2), line(4), line(5)].join("\n");
        fs::write(&path, &damaged).unwrap();
        let (_, warning) = MetricsFile::truncate_from(&path, 8).unwrap();
        let aside = directory.path().join("metrics-1.jsonl");
        let expected = format!(
            "{}: records of epochs 1, 3, 6 to 7 are missing or unreadable, and no report tells of them; line 2 cannot be read, \
             the file as it was is kept as {}",
            path.display(),
            aside.display()
        );
        assert_eq!(warning, Some(expected));
        assert_eq!((epochs(&path), fs::read_to_string(&aside).unwrap()), (vec![0, 2, 4, 5], damaged));
        fs::remove_file(&path).unwrap();
        let (_, warning) = MetricsFile::truncate_from(&path, u64::MAX).unwrap();
        assert!(warning.is_some_and(|warning| warning.contains("epochs 0 to 18446744073709551614 are missing")));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2, "nothing more is kept");
    }
}
