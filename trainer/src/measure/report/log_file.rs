//! `train.log`: the text of the console.
//!
//! In: lines. Out: the file. Invariant: after [`LogFile::follow`] the open file is the one at the
//! path.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use records::file;

/// The file, open to be appended to.
#[derive(Debug)]
pub struct LogFile {
    file: File,
    path: PathBuf,
}

impl LogFile {
    /// Opens the file, or creates it.
    ///
    /// # Errors
    /// If the path is not that of a regular file; I/O errors.
    pub fn open(path: &Path) -> Result<Self> {
        let open = || {
            if path.exists() {
                file::open(path)?;
            }
            OpenOptions::new().create(true).append(true).open(path)
        };
        Ok(Self {
            file: open().with_context(|| format!("cannot open {}", path.display()))?,
            path: path.to_owned(),
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the file again if another process has replaced or removed it. Returns true if so.
    pub(super) fn follow(&mut self) -> Result<bool> {
        let is_replaced = file::is_replaced(&self.file, &self.path);
        if is_replaced {
            *self = Self::open(&self.path)?;
        }
        Ok(is_replaced)
    }

    /// Appends a line. A full disk must not end the run, so errors are dropped.
    pub(super) fn line(&mut self, text: &str) {
        let _ = self.file.write_all(format!("{text}\n").as_bytes());
    }
}
