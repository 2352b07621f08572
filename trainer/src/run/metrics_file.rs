//! `metrics.jsonl`: a record of each epoch of a run.
//!
//! In: [`EpochRecord`]s. Out: a line each. Invariant: a line is on disk when
//! [`MetricsFile::append`] returns, and no epoch has two.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};
use records::{EpochRecord, JsonLine, JsonLines, file, read_lines};

use crate::run::directory::session_path;

/// The file `metrics.jsonl`, open for appending.
#[derive(Debug)]
pub struct MetricsFile {
    lines: JsonLines,
    path: String,
}

impl MetricsFile {
    /// Opens the file of a run that continues with `epoch`: removes the lines of that and later
    /// epochs, which will be repeated. Returns a warning if an earlier epoch has no record or a
    /// line cannot be read; in the second case a copy of the file stays.
    ///
    /// # Errors
    /// If the path is not that of a regular file; I/O errors.
    pub fn open(path: &Path, epoch: u64) -> Result<(Self, Option<String>)> {
        let shown = path.display().to_string();
        let found: Vec<JsonLine<EpochRecord>> =
            read_lines(path).with_context(|| format!("cannot read {shown}"))?;
        let mut lines = Vec::new();
        let mut epochs = BTreeSet::new();
        for line in &found {
            if let Ok(record) = &line.record
                && record.epoch < epoch
            {
                lines.push(line.text.as_str());
                epochs.insert(record.epoch);
            }
        }
        let is_unreadable =
            |line: &JsonLine<EpochRecord>| line.record.is_err() && !line.text.trim().is_empty();
        let mut warnings = Vec::from_iter(missing(&epochs, epoch));
        if let Some(index) = found.iter().position(is_unreadable) {
            let copy = (1..)
                .map(|number| session_path(path, number))
                .find(|copy| !copy.exists());
            let copy = copy.context("metrics: no free name")?;
            file::replace(&copy, &file::read(path)?)?;
            warnings.push(format!(
                "line {} cannot be read; {} is a copy of the file",
                index + 1,
                copy.display()
            ));
        }
        let warning = (!warnings.is_empty()).then(|| format!("{shown}: {}", warnings.join("; ")));
        let file = Self {
            lines: JsonLines::create(path, lines)?,
            path: shown,
        };
        Ok((file, warning))
    }

    /// Appends the record of an epoch. Returns a warning if another process has changed or removed
    /// the file.
    pub fn append(&mut self, record: &EpochRecord) -> Result<Option<String>> {
        let was_intact = self.lines.append(std::slice::from_ref(record))?;
        let path = &self.path;
        Ok((!was_intact).then(|| {
            format!(
                "{path} was changed or removed during the run. It has all records of the run again"
            )
        }))
    }
}

/// Names the epochs before `end` that are not in `epochs`, counted from 1.
fn missing(epochs: &BTreeSet<u64>, end: u64) -> Option<String> {
    let mut gaps = Vec::new();
    let mut next = 0;
    for epoch in epochs.iter().copied().chain([end]) {
        match epoch.saturating_sub(next) {
            0 => {}
            1 => gaps.push(epoch.to_string()),
            _ => gaps.push(format!("{} to {epoch}", next + 1)),
        }
        next = epoch.saturating_add(1);
    }
    let gaps = gaps.join(", ");
    (!gaps.is_empty()).then(|| {
        format!(
            "records of epochs {gaps} are missing or unreadable, and will be absent from reports"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::metrics::record;
    use std::fs;

    fn epochs(path: &Path) -> Vec<u64> {
        let lines = read_lines::<EpochRecord>(path).unwrap();
        lines
            .into_iter()
            .map(|line| line.record.unwrap().epoch)
            .collect()
    }

    #[test]
    fn lines_of_epochs_that_will_be_repeated_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("metrics.jsonl");
        let (mut file, warning) = MetricsFile::open(&path, 0).unwrap();
        assert!(path.exists() && warning.is_none());
        for epoch in 0..3 {
            file.append(&record(epoch, Some(epoch))).unwrap();
        }
        let (mut file, warning) = MetricsFile::open(&path, 2).unwrap();
        assert_eq!((epochs(&path), warning), (vec![0, 1], None));
        assert_eq!(file.append(&record(2, None)).unwrap(), None);
        assert_eq!(epochs(&path), [0, 1, 2]);
        fs::remove_file(&path).unwrap();
        let warning = file.append(&record(3, None)).unwrap().unwrap();
        assert!(warning.contains("metrics.jsonl was changed or removed"));
        assert_eq!(epochs(&path), [0, 1, 2, 3]);
    }

    #[test]
    fn epochs_without_a_record_are_named_and_a_copy_of_a_damaged_file_stays() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("metrics.jsonl");
        let line = |epoch| serde_json::to_string(&record(epoch, None)).unwrap();
        let damaged = [
            line(0),
            "{\"epoch\": 1, \"st".to_owned(),
            line(2),
            line(4),
            line(5),
        ]
        .join("\n");
        fs::write(&path, &damaged).unwrap();
        let (_, warning) = MetricsFile::open(&path, 8).unwrap();
        let copy = directory.path().join("metrics-1.jsonl");
        let expected = format!(
            "{}: records of epochs 2, 4, 7 to 8 are missing or unreadable, and will be absent from reports; line 2 cannot be \
             read; {} is a copy of the file",
            path.display(),
            copy.display()
        );
        assert_eq!(warning, Some(expected));
        assert_eq!(epochs(&path), [0, 2, 4, 5]);
        assert_eq!(fs::read_to_string(&copy).unwrap(), damaged);
        fs::remove_file(&path).unwrap();
        let (_, warning) = MetricsFile::open(&path, u64::MAX).unwrap();
        assert!(
            warning
                .unwrap()
                .contains("epochs 1 to 18446744073709551615 are")
        );
        let num_files = fs::read_dir(directory.path()).unwrap().count();
        assert_eq!(num_files, 2, "no further copy");
    }
}
