//! `metrics.jsonl`: what a run's epochs gave.
//!
//! In: [`EpochRecord`]s. Out: a line each. Invariant: a line is on disk when it counts as written, and none is of an epoch that is made again.

use crate::measure::held_file::HeldFile;
use crate::measure::whole_file::{sync_parent, write_atomically};
use crate::run::output::numbered_beside;
use anyhow::{Context, Result};
use records::EpochRecord;
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::Path;

/// `metrics.jsonl`: one [`EpochRecord`] a line, on disk when [`append`](Self::append) returns.
#[derive(Debug)]
pub struct MetricsFile {
    file: HeldFile,
    /// What the file is to have, at least.
    lines: String,
    /// How long it was after the last line.
    len: u64,
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
            let aside = (1..)
                .map(|number| numbered_beside(path, number))
                .find(|aside| !aside.exists());
            let aside = aside.context("metrics: no free name")?;
            write_atomically(&aside, &bytes)?;
            warnings.push(format!(
                "line {first} cannot be read, the file as it was is kept as {}",
                aside.display()
            ));
        }
        let warning =
            (!warnings.is_empty()).then(|| format!("{}: {}", path.display(), warnings.join("; ")));
        if kept_lines != text {
            write_atomically(path, kept_lines.as_bytes())?;
        }
        let file = HeldFile::open(path)?;
        sync_parent(path)?;
        Ok((
            Self {
                file,
                len: kept_lines.len() as u64,
                lines: kept_lines,
            },
            warning,
        ))
    }

    /// Adds a line and waits until it is on disk, in the file that is at the path then: where that was replaced, removed or cut, it
    /// gets the lines that it lacks, and this says so.
    pub fn append(&mut self, record: &EpochRecord) -> Result<Option<String>> {
        let path = self.file.path().to_owned();
        let context = || format!("cannot write {}", path.display());
        let line = serde_json::to_string(record).with_context(context)? + "\n";
        self.lines.push_str(&line);
        let mut is_lossy =
            self.file.follow()? || self.file.num_bytes().with_context(context)? < self.len;
        loop {
            let text = if is_lossy {
                self.missing()
            } else {
                Ok(line.clone())
            };
            text.and_then(|text| self.file.add(&text))
                .and_then(|()| self.file.sync())
                .with_context(context)?;
            if !self.file.follow()? {
                break;
            }
            is_lossy = true;
        }
        self.len = self.file.num_bytes().with_context(context)?;
        if !is_lossy {
            return Ok(None);
        }
        sync_parent(&path)?;
        Ok(Some(format!(
            "{} was replaced, removed or cut during the run; it has all records again",
            path.display()
        )))
    }

    /// The lines of epochs that have none in the file.
    fn missing(&self) -> std::io::Result<String> {
        let epoch = |line: &str| {
            serde_json::from_str(line)
                .ok()
                .map(|record: EpochRecord| record.epoch)
        };
        let bytes = records::file::read(self.file.path())?;
        let there: BTreeSet<u64> = String::from_utf8_lossy(&bytes)
            .lines()
            .filter_map(epoch)
            .collect();
        let is_missing = |line: &&str| epoch(line).is_some_and(|epoch| !there.contains(&epoch));
        let end = if bytes.last().is_some_and(|last| *last != b'\n') {
            "\n"
        } else {
            ""
        };
        let missing: Vec<&str> = self
            .lines
            .split_inclusive('\n')
            .filter(is_missing)
            .collect();
        Ok(format!("{end}{}", missing.concat()))
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
    (!gaps.is_empty()).then(|| {
        format!("records of epochs {gaps} are missing or unreadable, and no report tells of them")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::metrics::tests::record;
    use std::fs;

    fn epochs(path: &Path) -> Vec<u64> {
        let text = fs::read_to_string(path).unwrap();
        text.lines()
            .map(|line| serde_json::from_str::<EpochRecord>(line).unwrap().epoch)
            .collect()
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
        fs::write(
            &path,
            [
                fs::read(&path).unwrap(),
                b"{\"epoch\": 0, \"st\xff\xfe".to_vec(),
            ]
            .concat(),
        )
        .unwrap();
        let (mut file, warning) = MetricsFile::truncate_from(&path, 2).unwrap();
        assert_eq!((epochs(&path), warning), (vec![0, 1], None));
        file.append(&record(2, None)).unwrap();
        assert_eq!(epochs(&path), [0, 1, 2]);
        assert_eq!(
            fs::read_dir(directory.path()).unwrap().count(),
            1,
            "no partial file is left"
        );
    }

    #[test]
    fn a_record_is_in_the_file_of_that_name_whatever_became_of_the_one_before() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("metrics.jsonl");
        let (mut file, _) = MetricsFile::truncate_from(&path, 0).unwrap();
        assert_eq!(file.append(&record(0, None)).unwrap(), None);
        let edit = || {
            // As an editor does that ends no last line.
            fs::write(
                path.with_extension("new"),
                fs::read_to_string(&path).unwrap().trim_end(),
            )
            .unwrap();
            fs::rename(path.with_extension("new"), &path).unwrap();
        };
        let disturbances: [&dyn Fn(); 4] = [
            &edit,
            &|| fs::remove_file(&path).unwrap(),
            &|| fs::rename(&path, path.with_extension("1")).unwrap(),
            &|| fs::write(&path, "").unwrap(),
        ];
        for (epoch, disturb) in (1..).step_by(2).zip(disturbances) {
            disturb();
            let warning = file.append(&record(epoch, None)).unwrap().unwrap();
            assert!(
                warning.contains("metrics.jsonl was replaced, removed or cut"),
                "{warning}"
            );
            assert_eq!(file.append(&record(epoch + 1, None)).unwrap(), None);
            assert_eq!(epochs(&path), (0..=epoch + 1).collect::<Vec<_>>());
        }
    }

    #[test]
    fn epochs_without_a_record_are_told_and_a_file_with_damaged_lines_is_kept_aside() {
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
        let (_, warning) = MetricsFile::truncate_from(&path, 8).unwrap();
        let aside = directory.path().join("metrics-1.jsonl");
        let expected = format!(
            "{}: records of epochs 1, 3, 6 to 7 are missing or unreadable, and no report tells of them; line 2 cannot be read, \
             the file as it was is kept as {}",
            path.display(),
            aside.display()
        );
        assert_eq!(warning, Some(expected));
        assert_eq!(
            (epochs(&path), fs::read_to_string(&aside).unwrap()),
            (vec![0, 2, 4, 5], damaged)
        );
        fs::remove_file(&path).unwrap();
        let (_, warning) = MetricsFile::truncate_from(&path, u64::MAX).unwrap();
        assert!(warning.is_some_and(|warning| {
            warning.contains("epochs 0 to 18446744073709551614 are missing")
        }));
        assert_eq!(
            fs::read_dir(directory.path()).unwrap().count(),
            2,
            "nothing more is kept"
        );
    }
}
