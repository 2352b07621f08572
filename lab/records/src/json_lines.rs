//! A file with one JSON record per line, such as `metrics.jsonl`.
//!
//! In: records. Out: the file. Invariant: the file is replaced as a whole, so a crash leaves no
//! torn line; when [`JsonLines::append`] returns, the disk has every line, even if another process
//! removed or cut the file.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::file;

/// A line of the file.
#[derive(Debug)]
pub struct JsonLine<T> {
    /// Text without the line feed.
    pub text: String,
    /// The record, or the error if the text is not a record.
    pub record: serde_json::Result<T>,
}

/// Reads the lines of a file. A file that does not exist has none.
///
/// # Errors
/// If the path is not a regular file; I/O errors.
pub fn read_lines<T: DeserializeOwned>(path: &Path) -> io::Result<Vec<JsonLine<T>>> {
    let bytes = match file::read(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
        bytes => bytes?,
    };
    let text = String::from_utf8_lossy(&bytes);
    Ok(text
        .lines()
        .map(|line| JsonLine {
            text: line.to_owned(),
            record: serde_json::from_str(line),
        })
        .collect())
}

/// A file of this process, with its lines in memory.
#[derive(Debug)]
pub struct JsonLines {
    path: PathBuf,
    text: String,
}

impl JsonLines {
    /// Returns a file without lines. The first appended record replaces any file at `path`.
    pub fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            text: String::new(),
        }
    }

    /// Writes a file of these lines if it does not have exactly these lines.
    ///
    /// # Errors
    /// If the path is not a regular file; I/O errors.
    pub fn create<'a>(path: &Path, lines: impl IntoIterator<Item = &'a str>) -> io::Result<Self> {
        let mut file = Self::new(path);
        for line in lines {
            file.text.push_str(line);
            file.text.push('\n');
        }
        if !file.is_on_disk() {
            file::replace(path, file.text.as_bytes())?;
        }
        Ok(file)
    }

    /// Appends records. Returns true if the file was intact: false if another process changed or
    /// removed it.
    ///
    /// # Errors
    /// I/O errors.
    pub fn append<T: Serialize>(&mut self, records: &[T]) -> io::Result<bool> {
        let was_intact = self.is_on_disk();
        for record in records {
            self.text.push_str(&serde_json::to_string(record)?);
            self.text.push('\n');
        }
        file::replace(&self.path, self.text.as_bytes())?;
        Ok(was_intact)
    }

    fn is_on_disk(&self) -> bool {
        file::read(&self.path).is_ok_and(|bytes| bytes == self.text.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn every_line_is_in_the_file_even_if_another_process_replaces_removes_or_cuts_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lines.jsonl");
        let mut file = JsonLines::create(&path, ["0"]).unwrap();
        assert!(file.append(&[1]).unwrap());
        let disturbances: [&dyn Fn(); 4] = [
            // An editor that does not end the last line.
            &|| fs::write(&path, fs::read_to_string(&path).unwrap().trim_end()).unwrap(),
            &|| fs::remove_file(&path).unwrap(),
            &|| fs::rename(&path, path.with_extension("1")).unwrap(),
            &|| fs::write(&path, "").unwrap(),
        ];
        for (number, disturb) in (2..).step_by(2).zip(disturbances) {
            disturb();
            assert!(!file.append(&[number]).unwrap());
            assert!(file.append(&[number + 1]).unwrap());
            let lines = read_lines::<u64>(&path).unwrap();
            let records: Vec<u64> = lines.into_iter().map(|line| line.record.unwrap()).collect();
            assert_eq!(records, (0..=number + 1).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_line_that_is_not_a_record_is_returned_as_an_error_and_an_absent_file_has_no_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lines.jsonl");
        assert!(read_lines::<u64>(&path).unwrap().is_empty());
        fs::write(&path, b"1\n{\"a\xff\n2").unwrap();
        let lines = read_lines::<u64>(&path).unwrap();
        assert_eq!(lines[0].record.as_ref().unwrap(), &1);
        assert!(lines[1].record.is_err());
        assert_eq!(lines[2].text, "2");
    }
}
